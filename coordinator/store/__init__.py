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
]
