"""The garbage collector kept from walking, again and again, through all that was there before a simulation began.

A round makes hundreds of small records, and Python looks for garbage whenever enough have been made: through the
modules, the user's data and whatever else the process holds, which takes longer than the records themselves (a fifth of
all that a simulation does besides training). What was there before is set aside for as long as rounds are played, and
looked through again afterwards. This file has never heard of rounds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_depth = 0
"""How many are inside."""


@contextmanager
def settled() -> Iterator[None]:
    """Sets aside what is there now, until the last who is inside has left. Does nothing where the user has set things
    aside (``gc.freeze``): they would come back with ours."""
    global _depth
    if not _depth and gc.get_freeze_count():
        yield
        return
    if not _depth:
        gc.freeze()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth:
            gc.unfreeze()
