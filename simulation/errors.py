"""The errors of a simulation. Their messages are sentences for the user.

::

    SimulationError       base; the message is for people
      ClientFailed        the user's own code raised while a client trained: its traceback, and how to run it again
      Stalled             many rounds in a row were abandoned: none would ever be committed
    SimulationWarning     no error: what the plan will do to clients' updates
"""

from __future__ import annotations

import os
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.history import History


def not_scored(what: str, error: BaseException, *, on: str = "") -> str:
    """The message for a failure of scoring: a sentence, and the traceback where the user's code raised the error."""
    reason = str(error) if _ours(error) else f"{type(error).__name__}: {error}"
    words = f"{what} could not be scored{on}: {reason}"
    trace = own_trace(error.__cause__ or error)
    return f"{words}\n\n{trace}" if trace else words


def own_trace(error: BaseException) -> str:
    """The traceback with the lines of the user's own code alone, neither ours nor torch's; empty where it has none,
    such as for labels that a loss of torch refuses: the sentence says all that there is to know."""
    shown = traceback.TracebackException.from_exception(error)
    found: traceback.TracebackException | None = shown
    lines = 0
    while found is not None:
        found.stack = traceback.StackSummary.from_list(
            [line for line in found.stack if not line.filename.startswith(_NOT_THE_USERS)]
        )
        lines += len(found.stack)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "".join(shown.format()).rstrip() if lines else ""


_PACKAGES = ("client_sdk", "coordinator", "simulation", "torch")
_NOT_THE_USERS = tuple(
    str(Path(spec.origin).parent) + os.sep for name in _PACKAGES if (spec := find_spec(name)) and spec.origin
)


def _ours(error: BaseException) -> bool:
    return type(error).__module__.startswith("client_sdk.")


class SimulationWarning(UserWarning):
    """The plan will treat some clients' updates as the user may not expect: said before round 1."""


class SimulationError(Exception):
    """The simulation cannot begin or go on."""

    history: History | None = None
    """The history up to the error."""


class ClientFailed(SimulationError):
    """The learner failed on one client's data. ``__cause__`` is the user's own error if this process raised it."""

    def __init__(self, client: str, round: int, words: str, init: str | None = None) -> None:
        """``init``: the file of the client's model, where the run has no folder."""
        super().__init__(words)
        self.client = client
        self.round = round
        self.init = init


class Stalled(SimulationError):
    """Many rounds in a row were abandoned, or none opens."""
