"""The port of an engine, which trains the clients of a simulated round.

An engine gets the model of a round and jobs, one for each client that will report. It returns the report of each and,
at the end of the round, the exact sum of those that count. The updates stay inside the engine.

========== ==========================================================================================================
engine
========== ==========================================================================================================
serial     one process, one thread, one client after another: the reference
processes  a pool of workers, each with a partial sum of its own
ray        the same workers as actors of Ray, on the machines of a cluster
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
from coordinator.engine.event_fields import UNTREATED, Treated


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One client's part in one round."""

    run: str
    round: int
    attempt: int
    device: str
    cost: int
    """About how many optimizer steps it will take: the longest jobs go first."""
    steps: int | None = None
    """Stop after so many steps; None: do the whole task."""
    changes: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What of its task is other than in the plan, by the plan's schedule or strategy."""
    times: int = 1
    """By how many parts its update is weighed by 1/p: see ``RunState.times``."""
    fetch_s: float = 0.0
    """Virtual seconds until the device has the checkpoint, for the report."""
    train_s: float = 0.0
    """Virtual seconds of its training, for the report."""
    clip: float = 0.0
    """The round's clip, where the plan's adapts."""
    checked: bool = False
    """Whether the digest of the update is wanted."""
    stack: tuple[str, ...] = ()
    """The devices that are trained together with this one, in their order, itself among them (``Kernel.stacked``);
    empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The report of a client. Its update is in the engine's sum with this weight."""

    report: UpdateReport
    weight: int
    treated: Treated = UNTREATED
    digest: str | None = None
    """Of the update's bits and what was measured, where the job asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTrain:
    """The client could not train, and withdraws."""

    reason: str
    """One sentence."""
    trace: str | None = None
    """The traceback of the user's code, where code or data are the cause, with its own lines alone; None where a real
    client may fail in the same way: it ran out of time, has no examples, or its loss became infinite."""
    bad_values: bool = False
    """Whether its values, or its loss, are not finite or beyond what a sum takes."""
    error: BaseException | None = field(default=None, compare=False)
    """The user's error, where it was raised in this process."""


Result = Done | CannotTrain
Meanwhile = Callable[[], None]


def nothing() -> None:
    """The default of ``meanwhile``: does nothing."""


class Engine(Protocol):
    """``begin`` a round, ``submit`` its jobs, ask for each ``result`` and for the ``total``. Used by one thread."""

    def begin(self, round: int, model: Tensors) -> None:
        """Sets the model from which the jobs of this round start; drops the updates of earlier rounds."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Announces these jobs: an engine may begin with them at once, in any order."""

    def result(self, job: Job, meanwhile: Meanwhile = nothing) -> Result:
        """Returns the result of the job, which is trained now where it was not submitted. ``meanwhile`` is called once
        where the caller would only wait for other processes."""

    def total(self, weights: Mapping[str, int]) -> ExactSum:
        """Returns the exact sum of the updates of exactly these devices in this round. ``weights``: device -> weight.

        TensorError where they cannot be added.
        """

    def columns(self, devices: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yields the updates of these devices by blocks of columns, [devices, width], for rules that need all at
        once."""

    def score(self, model: Tensors, devices: Sequence[str]) -> list[Score | None]:
        """Returns the model's score on each device's own held-out examples; None where it has none."""

    def close(self) -> None:
        """Ends all processes. The engine cannot be used afterwards."""
