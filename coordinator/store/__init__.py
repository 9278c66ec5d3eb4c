"""The store: its port, the memory store, and ``open_store``. Only ``open_store`` imports SQLAlchemy."""

from __future__ import annotations

from client_sdk.identity import Signer
from coordinator.store.memory import MemoryStore as MemoryStore
from coordinator.store.port import CheckpointRow as CheckpointRow
from coordinator.store.port import ClaimRow as ClaimRow
from coordinator.store.port import Conflict as Conflict
from coordinator.store.port import ContributionRow as ContributionRow
from coordinator.store.port import DeviceRow as DeviceRow
from coordinator.store.port import EventRow as EventRow
from coordinator.store.port import FenceLost as FenceLost
from coordinator.store.port import Json as Json
from coordinator.store.port import MetricRow as MetricRow
from coordinator.store.port import Reader as Reader
from coordinator.store.port import RefusalRow as RefusalRow
from coordinator.store.port import RoundRow as RoundRow
from coordinator.store.port import RunRow as RunRow
from coordinator.store.port import Store as Store
from coordinator.store.port import StoreError as StoreError
from coordinator.store.port import Transaction as Transaction
from coordinator.store.port import WaitingRow as WaitingRow


def open_store(url: str, *, lock_timeout_s: float = 30.0, audit_signer: Signer | None = None) -> Store:
    """Opens the database at this SQLAlchemy URL (``sqlite:////folder/quorate.db``); creates or migrates it if needed.

    ``sqlite://`` is a database in memory. ``lock_timeout_s``: how long a transaction waits for another one.
    ``audit_signer`` signs each row of the audit that is written through this store; without it they are chained only.
    StoreError, in one sentence, when the URL is not valid, the folder can't be written, the file is not a database or
    belongs to another program, or the schema is newer than this code.
    """
    from coordinator.store.migrate import migrate
    from coordinator.store.sql import SqlStore

    store = SqlStore(url, lock_timeout_s=lock_timeout_s, audit_signer=audit_signer)
    try:
        migrate(store.engine)
    except BaseException:
        store.close()
        raise
    return store
