"""One thread for torch's arithmetic while a client is trained or scored, and as many as before afterwards.

How many threads share a sum decides how it is rounded, so a client's update would differ between engines, and between
machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


def one_thread() -> AbstractContextManager[None]:
    """Does nothing where torch has not been imported, or uses one thread already."""
    torch = sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    return _UNCHANGED if threads == 1 else _changed(torch, threads)


_UNCHANGED = nullcontext()


@contextmanager
def _changed(torch: Any, before: int) -> Iterator[None]:
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
