"""One thread for torch's arithmetic while a client is trained or scored, and as many as before afterwards.

How many threads share a sum decides how it is rounded, so a client's update would differ between engines, and between
machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Does nothing where torch has not been imported."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 1
    if torch is None or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
