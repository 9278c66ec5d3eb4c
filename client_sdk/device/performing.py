"""Performs the actions that concern the device's storage alone: the same for every driver of a session."""

from __future__ import annotations

from typing import assert_never

from client_sdk.device.actions import Load, Loaded, MemoryKept, MemoryNotKept, Save
from client_sdk.device.record import Storage
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.errors import SecaggError

Stored = Save | Keep | Load


def perform_stored(storage: Storage, action: Stored, at: float) -> MemoryKept | MemoryNotKept | Loaded | None:
    """Perform ``action`` on ``storage``, and return the reply. ``at``: Unix seconds. StorageError."""
    match action:
        case Save():
            storage.save(action.record, action.update, action.joined)
            return None
        case Keep():
            try:
                return MemoryKept(storage.keep(action.change), at)
            except SecaggError as error:
                return MemoryNotKept(error, at)
        case Load():
            with storage.update(action.digest) as file:
                return Loaded(file.read(), at)
        case _:
            assert_never(action)
