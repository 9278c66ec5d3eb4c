"""How things end in the explorer: a process that dies, an invariant that breaks. Both are more than errors.

They are BaseExceptions, so that no ``except Exception`` of the product can mistake them for something it can handle.
"""

from __future__ import annotations


class Crash(BaseException):
    """The process of a replica is gone, at this place."""


class Broken(BaseException):
    """An invariant does not hold. ``invariant`` is its name in ``invariants``."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what
