"""The store: its port, and ``open_store``. Importing this needs no SQLAlchemy; opening a database does."""

from __future__ import annotations

from coordinator.store.memory import MemoryStore
from coordinator.store.port import (
    CheckpointRow,
    Claim,
    Conflict,
    ContributionRow,
    DeviceRow,
    EventRow,
    FenceLost,
    Json,
    MetricRow,
    Reader,
    RefusalRow,
    RoundRow,
    RunRow,
    Store,
    StoreError,
    Transaction,
    WaitingRow,
)

__all__ = [
    "CheckpointRow",
    "Claim",
    "Conflict",
    "ContributionRow",
    "DeviceRow",
    "EventRow",
    "FenceLost",
    "Json",
    "MemoryStore",
    "MetricRow",
    "Reader",
    "RefusalRow",
    "RoundRow",
    "RunRow",
    "Store",
    "StoreError",
    "Transaction",
    "WaitingRow",
    "open_store",
]


def open_store(url: str, *, lock_timeout_s: float = 30.0) -> Store:
    """Opens the database at this SQLAlchemy URL (``sqlite:////folder/quorate.db``), made or migrated where needed.

    ``sqlite://`` is a database in memory. ``lock_timeout_s``: how long a transaction waits for another one.
    StoreError, in one sentence, when the URL is none, the folder can't be written, the file is no database or another
    program's, or the schema is newer than this code.
    """
    from coordinator.store.migrate import migrate
    from coordinator.store.sql import SqlStore

    store = SqlStore(url, lock_timeout_s=lock_timeout_s)
    try:
        migrate(store.engine)
    except BaseException:
        store.close()
        raise
    return store
