"""What somebody with a shell could change in a data folder: a table of functions, each of which returns the round that
``verify`` must name.

Rounds and events are those of ``history``. Each module has the doctorings of one subject.
"""

from __future__ import annotations

from tests.coordinator.verify.doctorings import blobs, checkpoints, contributions, log, refusals, rounds, run
from tests.coordinator.verify.doctorings.table import DOCTORINGS, RETAINED_ONLY

__all__ = ["DOCTORINGS", "RETAINED_ONLY", "blobs", "checkpoints", "contributions", "log", "refusals", "rounds", "run"]
