"""The cache of registered keys: what it reads, and when it sees what another replica changed."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.identity import DeviceKey
from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.process_state import LATELY_S, ROW_S, TOGETHER, RegisteredKeys
from coordinator.store.memory import MemoryStore
from coordinator.store.port import DeviceRow, WorkerRow
from tests.coordinator.certified import Certifier, key_id, key_of
from tests.coordinator.store import rows

CERTIFIER = Certifier()


class Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0
        self.behind_s = 0.0

    def now(self) -> float:
        return self.at - self.behind_s

    def elapsed(self) -> float:
        return self.at


class CountingStore(MemoryStore):
    """Notes how many rows each read asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def device_by_key(self, key_id: str) -> DeviceRow | None:
        self.reads.append(1)
        return super().device_by_key(key_id)

    def devices_by_keys(self, key_ids: Collection[str]) -> list[DeviceRow]:
        self.reads.append(len(key_ids))
        found = (MemoryStore.device_by_key(self, key_id) for key_id in key_ids)
        return [row for row in found if row is not None]


def certified(certificate: Certificate) -> dict[str, str]:
    """The columns of a row that say whose it is."""
    return {"key_id": certificate.key_id.hex(), "certificate": certificate.encoded.hex()}


class Registry:
    """A store with devices, and a replica's cache of it."""

    def __init__(self, count: int) -> None:
        self.clock, self.store = Clock(), CountingStore()
        self.ours = RegisteredKeys(self.store, self.clock)
        self.ids = [self.register(key_of(f"device {number}")) for number in range(count)]

    def register(self, key: DeviceKey) -> str:
        certificate = CERTIFIER.certificate(key, at=self.clock.at)
        with self.store.transaction() as tx:
            tx.insert_device(rows.device(certificate.id, **certified(certificate)))
        return key_id(key).hex()

    def renew(self, number: int) -> str:
        """A newer certificate of the same key, from another replica."""
        key = key_of(f"device {number}")
        certificate = CERTIFIER.certificate(key, at=self.clock.at + 1)
        with self.store.transaction() as tx:
            tx.certify_device(certificate.id, key_id(key).hex(), certificate.encoded.hex())
        return certificate.encoded.hex()

    def ask(self, *ids: str) -> list[int]:
        """Asks for these keys in turn, and returns how many rows each read asked for."""
        self.store.reads.clear()
        for name in ids:
            self.ours.of(name)
        return list(self.store.reads)


def test_a_row_is_read_once_and_again_when_it_is_old() -> None:
    there = Registry(1)
    (name,) = there.ids
    assert there.ask(name, name) == [1]
    there.clock.at += ROW_S
    assert there.ask(name) == []
    there.clock.at += 0.001
    assert there.ask(name, name) == [1]


def test_the_rows_of_all_who_asked_lately_are_read_in_one_statement() -> None:
    there = Registry(40)
    assert there.ask(*there.ids) == [1] * 40
    there.clock.at += ROW_S + 1
    assert there.ask(*there.ids) == [40]


def test_no_statement_reads_more_than_some_rows() -> None:
    there = Registry(TOGETHER + 3)
    there.ask(*there.ids)
    there.clock.at += ROW_S + 1
    assert there.ask(*there.ids) == [TOGETHER, 3]


def test_who_has_not_asked_for_long_is_not_read_for_others() -> None:
    there = Registry(3)
    there.ask(*there.ids)
    first, second, third = there.ids
    for _ in range(6):
        there.clock.at += LATELY_S / 5
        there.ask(first, second)
    there.clock.at += ROW_S + 1
    assert there.ask(first, second) == [2]
    assert there.ask(third) == [1]


def test_who_asks_again_after_long_is_read() -> None:
    there = Registry(2)
    there.ask(*there.ids)
    there.clock.at += 10 * LATELY_S
    assert there.ask(*there.ids) == [1, 1]


def test_a_certificate_of_another_replica_is_seen_when_the_rows_are_read_again() -> None:
    there = Registry(3)
    there.ask(*there.ids)
    newer = there.renew(2)
    there.clock.at += ROW_S
    assert there.ours.of(there.ids[2]).row.certificate != newer
    there.clock.at += 1
    assert there.ask(there.ids[0]) == [3], "with the first one's row the others' are read"
    found = there.ours.of(there.ids[2])
    assert (found.row.certificate, found.certificate.encoded.hex()) == (newer, newer)


def test_who_left_at_another_replica_is_unregistered_when_the_rows_are_read_again() -> None:
    there = Registry(3)
    there.ask(*there.ids)
    device = there.ours.of(there.ids[1]).row
    assert isinstance(device, DeviceRow)
    with there.store.transaction() as tx:
        tx.forget_device(device.device, there.clock.at)
    there.clock.at += ROW_S + 1
    assert there.ask(there.ids[0]) == [3]
    with pytest.raises(ProblemError) as refused:
        there.ours.of(there.ids[1])
    assert refused.value.kind == "unregistered"


@pytest.mark.parametrize("old", [False, True])
def test_what_was_read_before_the_rows_were_forgotten_is_not_cached_after_it(
    old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device registers again while another request reads its old row."""
    there = Registry(1)
    (name,) = there.ids
    if old:
        there.ask(name)
        there.clock.at += ROW_S + 1
    renewed: list[str] = []
    one, many = there.store.device_by_key, there.store.devices_by_keys

    def renew() -> None:
        if not renewed:
            renewed.append(there.renew(0))
            there.ours.forget()

    def read_one(key: str) -> DeviceRow | None:
        row = one(key)
        renew()
        return row

    def read_many(keys: Collection[str]) -> list[DeviceRow]:
        found = many(keys)
        renew()
        return found

    monkeypatch.setattr(there.store, "device_by_key", read_one)
    monkeypatch.setattr(there.store, "devices_by_keys", read_many)
    there.ours.of(name)
    assert there.ours.of(name).row.certificate == renewed[0]


def test_a_row_without_a_certificate_is_of_nobody_who_is_registered() -> None:
    there = Registry(2)
    there.ask(*there.ids)
    device = there.ours.of(there.ids[1]).row
    assert isinstance(device, DeviceRow)
    with there.store.transaction() as tx:
        tx.certify_device(device.device, there.ids[1], "")
    there.clock.at += ROW_S + 1
    assert there.ask(there.ids[0]) == [2]
    with pytest.raises(ProblemError, match="register again"):
        there.ours.of(there.ids[1])


def test_while_a_thread_reads_many_rows_the_others_read_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Registry(3)
    there.ask(*there.ids)
    there.clock.at += ROW_S + 1
    many, meanwhile = there.store.devices_by_keys, []

    def slow(keys: Collection[str]) -> list[DeviceRow]:
        meanwhile.append(there.ask(there.ids[2]))
        return many(keys)

    monkeypatch.setattr(there.store, "devices_by_keys", slow)
    there.ours.of(there.ids[0])
    assert meanwhile == [[1]]


def test_a_worker_is_known_by_its_key_too_and_its_revocation_is_seen() -> None:
    there, key = Registry(1), key_of("a worker")
    certificate = CERTIFIER.certificate(key, at=there.clock.at, holder="worker")
    with there.store.transaction() as tx:
        tx.insert_worker(rows.worker(certificate.id, **certified(certificate)))
    name = key_id(key).hex()
    there.ask(there.ids[0], name)
    with there.store.transaction() as tx:
        tx.revoke_worker(certificate.id, there.clock.at)
    there.clock.at += ROW_S + 1
    there.ask(there.ids[0])
    found = there.ours.of(name).row
    assert isinstance(found, WorkerRow)
    assert found.revoked_at is not None


def test_a_clock_that_goes_back_makes_no_row_younger() -> None:
    there = Registry(2)
    there.ask(*there.ids)
    there.clock.behind_s = ROW_S
    there.clock.at += ROW_S + 1
    assert sum(there.ask(*there.ids)) >= 2
    assert there.ask(*there.ids) == []
