"""Copies of a device's storage, and of answers in a trace."""

from __future__ import annotations

from client_sdk.device.storage import MemoryStorage


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    """A storage with what this one has now."""
    twin = MemoryStorage()
    record = storage.load()
    twin._record, twin._updates, twin._history = record, dict(storage._updates), list(storage._history)
    twin._secure = storage._secure
    return twin


def text_of(message: object) -> str:
    """An answer in a line of the trace."""
    kind = type(message).__name__.lower()
    shown = [
        f"{name} {getattr(message, name)}"
        for name in ("run", "round", "result", "reason")
        if getattr(message, name, "")
    ]
    return " ".join([kind, *shown])
