"""The errors of a simulation. Their messages are sentences for the user.

::

    SimulationError       base; the message is for people
      ClientFailed        the user's own code raised while a client trained: its traceback, and how to run it again
      Stalled             many rounds in a row were abandoned: none would ever be committed
    SimulationWarning     no error: what the plan will do to clients' updates
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.history import History


def not_scored(what: str, error: BaseException, *, on: str = "") -> str:
    """The message for a failure of scoring: a sentence, and the traceback where the user's code raised the error."""
    own = error.__cause__ or error
    reason = str(error) if _ours(error) else f"{type(error).__name__}: {error}"
    words = f"{what} could not be scored{on}: {reason}"
    if _ours(own):
        return words
    trace = "".join(traceback.format_exception(type(own), own, own.__traceback__, chain=False))
    return f"{words}\n\n{trace.rstrip()}"


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
    """Many rounds in a row were abandoned."""
