"""Says from a thread of its own that a device is there while its ClientApp works, which may take hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PRESENCE_S = 15.0
"""Seconds between two such requests: a coordinator takes a device as gone after four times that. A ClientApp that is
done sooner costs none."""


@contextmanager
def present(say: Callable[[], None], every_s: float | None = None) -> Iterator[None]:
    """Call ``say`` every ``every_s`` seconds (None: PRESENCE_S) while the block runs, first after that time. What it
    raises is dropped."""
    over = Event()

    def repeat() -> None:
        while not over.wait(PRESENCE_S if every_s is None else every_s):
            try:
                say()
            except Exception:  # noqa: BLE001, S112 - the next one may succeed, and nothing depends on it
                continue

    thread = Thread(target=repeat, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
