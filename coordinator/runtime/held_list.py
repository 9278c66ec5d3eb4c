"""The revocation list that a coordinator holds: the newest that it, or a replica over the same store, has seen.

Older ones stay in the store until they are out of date, since the header of a secure attempt names one of them by its
digest, and devices begin the attempt by that one alone.
"""

from __future__ import annotations

import threading

from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.revocations import CLOCKS_APART_S, RevocationList, following
from coordinator.access.audit import Audit
from coordinator.runtime.clock import Clock
from coordinator.runtime.registered_keys import TOGETHER
from coordinator.runtime.signals import Signals, secure_key
from coordinator.store.port import ListRow, Store

READ_S = 5.0
"""Seconds for which the stored list is not read again: what another replica took is seen after this time at the
latest."""


def list_row(found: RevocationList) -> ListRow:
    """The row that stores this list."""
    return ListRow(
        authority=found.authority.hex(),
        counter=found.counter,
        digest=found.digest.hex(),
        next_update=found.next_update,
        encoded=found.encoded,
    )


class HeldList:
    """The list of one authority. Safe from any thread."""

    def __init__(self, store: Store, clock: Clock, signals: Signals) -> None:
        self._store = store
        self._clock = clock
        self._signals = signals
        self._held: RevocationList | None = None
        self._read_at: float | None = None
        self._taking, self._setting = threading.Lock(), threading.Lock()

    def locked(self) -> bool:
        """Whether a thread takes a list."""
        return self._taking.locked()

    def forget(self) -> None:
        """Reads the stored list anew when it is asked for next."""
        self._read_at = None

    def newest(self, authority: str, *, read: bool = False) -> RevocationList | None:
        """The newest list of the authority of this id; None: none was seen. ``read``: the stored one is read now, so
        that no replica has a newer one."""
        now = self._clock.now()
        if read or self._read_at is None or not 0 <= now - self._read_at < READ_S:
            stored = self._store.revocations(authority)
            if stored is not None and (self._held is None or stored != self._held.encoded):
                found = RevocationList.parse(stored)
                if self._held is None or found.counter > self._held.counter:
                    self._replace(found)
            self._read_at = now
        return self._held

    def named(self, digest: str) -> bytes | None:
        """The list of this digest: the newest, or one that it has replaced and that is still in date."""
        held = self._held
        if held is not None and held.digest.hex() == digest:
            return held.encoded
        return self._store.revocation_list(digest)

    def take(self, encoded: bytes, trusted: TrustedAuthority, audit: Audit) -> RevocationList:
        """Stores a list that follows the one that is held, and returns the newest. CredentialError."""
        with self._taking:
            authority = trusted.id.hex()
            held = self.newest(authority)
            found = following(held, encoded, trusted)
            if found is held:
                return found
            self._replace(found, is_stored=False)
        audit.record("authority", "revocations.taken", f"counter={found.counter} keys={len(found.revoked)}")
        return found

    def _replace(self, found: RevocationList, *, is_stored: bool = True) -> None:
        """Holds the list from now on, and stores it before. Devices whose keys are new on it leave the pool: this
        process may have let them in after another one had taken the list. What is held open for them is woken."""
        devices, first = self._devices_new_on(found), self._held is None
        if devices or not is_stored:
            with self._store.transaction() as tx:
                if not is_stored:
                    tx.put_revocations(list_row(found))
                    before = self._clock.now() - CLOCKS_APART_S
                    tx.drop_revocations(found.authority.hex(), found.counter, before)
                tx.drop_waiting(devices)
        with self._setting:  # another thread may hold a newer one by now
            if self._held is None or found.counter > self._held.counter:
                self._held = found
        if not first and found.revoked:
            keys = [key for device in devices for key in (f"device:{device}", secure_key(device))]
            self._signals.wake_many([*keys, "workers"])

    def _devices_new_on(self, found: RevocationList) -> list[str]:
        """The registered devices whose keys are on this list, and not on the one that is held."""
        known = () if self._held is None else self._held.revoked
        new = sorted(key.hex() for key in set(found.revoked).difference(known))
        parts = (new[start : start + TOGETHER] for start in range(0, len(new), TOGETHER))
        return sorted(row.device for part in parts for row in self._store.devices_by_keys(part))
