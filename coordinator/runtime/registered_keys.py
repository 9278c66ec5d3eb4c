"""The rows and certificates of the keys that make requests, cached for some seconds.

A round has dozens of requests of each of its devices, some seconds apart. So rows that have become too old are read
again together, those of all devices that have made requests lately, in one statement.

More than 5 seconds would let a device speak at another replica after it has left. A counter of changes would be one
row that every registration writes. Read together, a secure round of 100 devices costs the server 2.43 CPU seconds
instead of 2.64. What is read while a row changes in this process is not cached: ``forget`` raises a number that the
reader compares.
"""

from __future__ import annotations

import threading
from itertools import islice, takewhile

from client_sdk.credentials.certificate import Certificate
from client_sdk.protocol.problems import problem
from coordinator.runtime.clock import Clock
from coordinator.store.port import DeviceRow, Store, WorkerRow

ROW_S = 5.0
"""Seconds for which a row is cached after it was read. What another replica changes is seen after this time at the
latest."""
LATELY_S = 30.0
"""Seconds since a device's last request in which its row is read again with others': as long as a device waits for one
answer (25 s), and a little more."""
TOGETHER = 500
"""The most rows in one statement."""
_ROWS = 20_000
"""The most cached rows."""


class RegisteredKey:
    """A key that is registered: its row, its newest certificate, and when both were read, in Unix seconds."""

    __slots__ = ("asked_at", "certificate", "read_at", "row")

    def __init__(self, row: DeviceRow | WorkerRow, certificate: Certificate, at: float) -> None:
        self.row, self.certificate = row, certificate
        self.read_at = self.asked_at = at

    def is_recent(self, now: float) -> bool:
        """Whether the row counts as it was read."""
        return 0 <= now - self.read_at <= ROW_S


class RegisteredKeys:
    """The keys of one coordinator's devices and workers. Safe from any thread; no thread waits for another one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._keys: dict[str, RegisteredKey] = {}
        """By id of the key, the one that was read first in front."""
        self._forgotten = 0
        """How often the cached rows were forgotten: what was read before that is not cached after it."""
        self._storing = threading.Lock()
        self._refreshing = threading.Lock()

    def of(self, key_id: str) -> RegisteredKey:
        """The key of this id (32 hexadecimal digits). ProblemError *unregistered*."""
        now = self._clock.now()
        known = self._keys.get(key_id)
        if known is None:
            return self._read(key_id, now)
        known.asked_at = now
        return known if known.is_recent(now) else self._read_again(key_id, now)

    def forget(self) -> None:
        """Reads every row anew from now on: one was changed."""
        with self._storing:
            self._forgotten += 1
            self._keys.clear()

    def _read(self, key_id: str, now: float) -> RegisteredKey:
        forgotten = self._forgotten
        row = self._store.device_by_key(key_id) or self._store.worker_by_key(key_id)
        if row is None or not row.certificate:
            raise problem("unregistered", "no certificate of this key is registered here; register again")
        known = _made(row, self._keys.get(key_id), now)
        self._store_all({key_id: known}, forgotten)
        return known

    def _read_again(self, key_id: str, now: float) -> RegisteredKey:
        """Reads this row, and with it those that are as old; where another thread does that now, this row alone."""
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh(now)
            finally:
                self._refreshing.release()
            known = self._keys.get(key_id)
            if known is not None and known.is_recent(now):
                return known
        return self._read(key_id, now)

    def _refresh(self, now: float) -> None:
        """Reads the oldest rows again, of devices that have made requests lately. The others are forgotten."""
        forgotten = self._forgotten
        with self._storing:
            old = takewhile(lambda item: not item[1].is_recent(now), self._keys.items())
            oldest = dict(islice(old, TOGETHER))
            for key_id in oldest:
                del self._keys[key_id]
        wanted = [
            key_id
            for key_id, known in oldest.items()
            if isinstance(known.row, DeviceRow) and 0 <= now - known.asked_at <= LATELY_S
        ]
        rows = self._store.devices_by_keys(wanted) if wanted else []
        read = {
            row.key_id: _made(row, oldest[row.key_id], now)
            for row in rows
            if row.key_id is not None and row.certificate
        }
        self._store_all(read, forgotten)

    def _store_all(self, read: dict[str, RegisteredKey], forgotten: int) -> None:
        with self._storing:
            if forgotten != self._forgotten:
                return
            if len(self._keys) + len(read) > _ROWS:
                self._keys.clear()
            for key_id, known in read.items():
                self._keys.pop(key_id, None)
                self._keys[key_id] = known


def _made(row: DeviceRow | WorkerRow, before: RegisteredKey | None, now: float) -> RegisteredKey:
    """The key with the row that was read now. Its certificate is parsed where it is another one than ``before``."""
    if before is None or before.row.certificate != row.certificate:
        return RegisteredKey(row, Certificate.parse(bytes.fromhex(row.certificate)), now)
    made = RegisteredKey(row, before.certificate, now)
    made.asked_at = before.asked_at
    return made
