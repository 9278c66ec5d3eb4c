"""What trains the clients of a simulated round, and nothing about when they train or who is selected.

An engine is given the model of a round and jobs, one for each client that will report; it gives back what each reports,
and, at the end of the round, the exact sum of those that count. Updates themselves stay inside it.

========== ==========================================================================================================
engine
========== ==========================================================================================================
serial     one process, one thread, one client after another: the reference
processes  a pool of workers, each with a partial sum of its own
========== ==========================================================================================================

With one kernel all engines give the same bits, since the exact sum has no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Score, UpdateReport
from client_sdk.tensors import Tensors
from client_sdk.tensors.exact_sum import ExactSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One client's part in one round."""

    run: str
    round: int
    attempt: int
    device: str
    cost: int
    """Optimizer steps that it will take about: the longest go first."""
    steps: int | None = None
    """Stop after so many steps; None: do the whole task."""
    fetch_s: float = 0.0
    """Virtual seconds, for the report; likewise the next."""
    train_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a client reports. Its update is in the engine's sum, with this weight."""

    report: UpdateReport
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The client could not train, and withdraws."""

    reason: str
    """One sentence."""
    trace: str = ""
    """The traceback of the user's own code, where it is to blame; empty where a client may fail like this in earnest:
    it ran out of time, has no examples, or its loss went to infinity."""
    error: BaseException | None = field(default=None, compare=False)
    """The user's own error, where it is at hand in this process."""


Result = Done | JobFailed
Meanwhile = Callable[[], None]


def nothing() -> None:
    """What a caller does who has nothing else to do."""


class Engine(Protocol):
    """``begin`` a round, ``submit`` its jobs, ask for each ``result`` and for the ``total``. Used by one thread."""

    def begin(self, round: int, model: Tensors) -> None:
        """The model that the jobs of this round start from; whatever was kept of earlier rounds is forgotten."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """These will be asked for: an engine may begin with them at once, in any order."""

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        """What became of it, trained now where it was not submitted before. ``meanwhile`` is called, once, where the
        caller would only wait for others who train."""

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        """The exact sum of the updates of just these devices in this round, by device -> weight.

        TensorError where they cannot be added.
        """

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """The updates of these devices by blocks of columns, [devices, width]: for rules that need all at once."""

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        """The model scored on each device's own held-out examples; None where it has none."""

    def close(self) -> None:
        """Ends what was started. The engine is of no use afterwards."""
