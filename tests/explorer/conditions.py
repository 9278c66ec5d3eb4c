"""Conditions under which the product's modules are while a schedule is played."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from coordinator.blobs import blocks, files
from coordinator.runtime import run_log
from tests.explorer.secure.quick_crypto import quick_crypto
from tests.explorer.shape import Shape

PAGE = 3
"""Events of a page of the log."""
BLOCK = 96
"""Bytes of a block of a blob, where bits flip."""


def crypto_of(shape: Shape) -> AbstractContextManager[None]:
    """Secure rounds have real cryptography in some schedules only."""
    return quick_crypto() if shape.secure and not shape.real_crypto else nullcontext()


@contextmanager
def small_pages(*, small_blocks: bool) -> Iterator[None]:
    """Replicas catch up with the log page by page, and a schedule's log is shorter than a page of the product. Nor
    does a blob of a schedule have several blocks."""
    small = [(run_log, "_PAGE", PAGE)] + ([(blocks, "BLOCK", BLOCK), (files, "BLOCK", BLOCK)] if small_blocks else [])
    real = [(module, name, vars(module)[name]) for module, name, _ in small]
    for module, name, value in small:
        vars(module)[name] = value
    try:
        yield
    finally:
        for module, name, value in real:
            vars(module)[name] = value


@contextmanager
def quiet_failures() -> Iterator[None]:
    """The log does not have the failures of store and blobs that are faults of the schedule."""
    storage = logging.getLogger("quorate.storage")
    before, storage.disabled = storage.disabled, True
    try:
        yield
    finally:
        storage.disabled = before


class _Lines(logging.Handler):
    def __init__(self, wrote: Callable[[str], None]) -> None:
        super().__init__()
        self._wrote = wrote

    def emit(self, record: logging.LogRecord) -> None:
        self._wrote(f"{record.getMessage()} {record.exc_text or record.exc_info or ''} {record.__dict__}")


@contextmanager
def log_read(wrote: Callable[[str], None]) -> Iterator[None]:
    """``wrote`` is called with each line of the coordinator's log, with all that the record has."""
    logger, handler = logging.getLogger("quorate"), _Lines(wrote)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
