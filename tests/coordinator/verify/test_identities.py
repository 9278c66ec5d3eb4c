"""``verify`` holds certificates, key ids, revocation lists, API keys and the pool against what signs or records them:
a table of what somebody with a shell could change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from client_sdk.credentials.certificate import Certificate, RevocationList, sign_revocations
from client_sdk.protocol.access import CreateKey
from coordinator.access import OperatorAccess
from coordinator.access.roles import Grant, Operator, Role, Scope
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.runtime.process_state import list_row
from coordinator.store import open_store
from coordinator.verify import verify
from simulation.virtual.device import device_row
from tests.coordinator.certified import Certifier, key_of
from tests.coordinator.runtime.test_workers import Center
from tests.coordinator.verify.history import Doctor, doctored
from tests.coordinator.world import World

KEY = key_of("somebody's phone")
CREATOR = Operator("key:0123456789abcdef", (Grant(Role.OWNER, Scope.parse("*")),), None)
FIRST = "(SELECT min(device) FROM devices WHERE certificate != '')"
LAST = "(SELECT max(device) FROM devices WHERE certificate != '')"
OTHER_WORKER = (
    "INSERT INTO workers (worker, key_id, certificate, label, created_at, revoked_at) "
    "VALUES ('w1', NULL, '', 'c', 1000.0, {})"
)
OTHER_DEVICE = (
    "INSERT INTO devices (device, key_id, certificate, label, examples_cap, enrolled_at, left_at, facts) "
    "VALUES ('d000000000000000a', {key}, '', '', 10, 1000.0, {left}, '{{}}')"
)
NEWEST = "counter = (SELECT max(counter) FROM revocation_lists)"


def play(folder: Path) -> None:
    """Certified devices of which some wait, a worker, an authority's lists, and API keys of two origins."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    center = Center(3, store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    coordinator, at = center.coordinator, center.clock.at
    coordinator.access.audit.record("quorate serve", "audit.key", "key=" + "0" * 64)
    coordinator.identities.record_authority()
    center.authority.admit(coordinator, [key_of("one"), key_of("two")], at=at)
    worker = center.authority.certificate(key_of("three"), at=at, holder="worker")
    coordinator.identities.register_worker(worker, label="cluster 7")
    coordinator.identities.take_list(center.authority.list(at, key_of("four")))
    record, keys = coordinator.access.audit.record, coordinator.access.keys
    record(worker.id, "worker.register", "label=cluster 7")
    record(worker.id, "worker.register done", f"worker={worker.id}")
    with store.transaction() as tx:
        tx.revoke_worker(worker.id, at)
    record(CREATOR.id, "worker.revoke done", f"worker={worker.id}")
    keys.create_owner("quorate serve", "owner-key")
    record(CREATOR.id, "key.create", "role=viewer scope=marks expires_in_s=3600.0 label=the wall")
    made = keys.create(CREATOR, CreateKey(role="viewer", scope="marks", label="the wall", expires_in_s=3600))
    keys.revoke(CREATOR, made.key)
    record(CREATOR.id, "key.revoke done", f"key={made.key}")
    center.check_in()
    leaver = store.devices()[1]
    record(leaver.device, "device.leave")
    coordinator.identities.leave(leaver)
    store.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    play(folder)
    return folder


@pytest.fixture
def folder(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "data"))


def found(folder: Path, *, known: bool = True) -> list[str]:
    """What ``verify`` says of identities. ``known``: with the authority's key."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    try:
        authorities = [Certifier().issuer.trusted] if known else []
        return [wrong.what for wrong in verify(store, authorities=authorities) if wrong.invariant == "identity"]
    finally:
        store.close()


@pytest.mark.parametrize("known", [True, False])
def test_an_honest_database_is_clean(folder: Path, known: bool) -> None:
    assert found(folder, known=known) == []


def test_without_the_authoritys_key_a_note_says_that_signatures_are_not_checked(folder: Path) -> None:
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    notes: list[str] = []
    list(verify(store, note=notes.append))
    store.close()
    assert any("--authority-key" in note for note in notes)


Change = Callable[[Doctor], None]
DOCTORINGS: dict[str, tuple[Change, str, bool]] = {}
"""Name -> (what is done, what ``verify`` must say, whether it also does without the authority's key)."""


def doctoring(says: str, *, keyless: bool = True) -> Callable[[Change], Change]:
    def add(function: Change) -> Change:
        DOCTORINGS[function.__name__.replace("_", "-")] = function, says, keyless
        return function

    return add


def statement(name: str, says: str, sql: str, *values: object) -> None:
    DOCTORINGS[name] = (lambda d: d.sql(sql, *values)), says, True


def flipped(d: Doctor, table: str, column: str, where: str, at: int) -> None:
    """Flips one bit of a credential; ``at``: the byte's place."""
    data = d.one(f"SELECT {column} FROM {table} WHERE {where}")
    changed = bytearray(bytes.fromhex(data) if isinstance(data, str) else data)
    changed[at] ^= 1
    d.sql(f"UPDATE {table} SET {column} = ? WHERE {where}", changed.hex() if isinstance(data, str) else bytes(changed))


def forged(holder: str = "device", *, id: str | None = None) -> Certificate:
    """A certificate that another authority has signed."""
    return Certifier("forger").certificate(KEY, at=1000.0, holder="worker" if holder == "worker" else "device", id=id)


statement(
    "another-devices-certificate",
    "its certificate is that of the device",
    f"UPDATE devices SET certificate = (SELECT certificate FROM devices WHERE device = {LAST}) WHERE device = {FIRST}",
)
statement(
    "a-workers-certificate-for-a-device",
    "its certificate is that of the worker",
    f"UPDATE devices SET certificate = (SELECT max(certificate) FROM workers) WHERE device = {FIRST}",
)
statement("key-id-of-a-device", "its key is", f"UPDATE devices SET key_id = ? WHERE device = {FIRST}", "0" * 32)
statement("authorities-deleted", "never took", "DELETE FROM authorities")
statement(
    "session-of-nobody",
    "the audit has no login of it",
    "INSERT INTO logins (login, kind, secret_hash, who, by, key, claims, created_at, expires_at) "
    "SELECT 'ffffffffffffffff', 'session', secret_hash, 'key:' || key, 'key', key, '', 1000, 1e12 FROM api_keys "
    "WHERE role = 'owner'",
)
statement("key-id-of-a-worker", "its key is", "UPDATE workers SET key_id = ?", "0" * 32)
statement("certificate-cut", "is not valid", f"UPDATE devices SET certificate = 'ab' WHERE device = {FIRST}")
statement(
    "certificate-that-is-no-hexadecimal",
    "is not valid",
    f"UPDATE devices SET certificate = 'no' WHERE device = {FIRST}",
)
statement("certificate-of-a-worker-cut", "is not valid", "UPDATE workers SET certificate = 'ab'")
statement("certificate-deleted", "has no certificate", "UPDATE devices SET certificate = ''")
statement("key-deleted", "has not left", f"UPDATE devices SET key_id = NULL WHERE device = {FIRST}")
statement("authority-exchanged", "never took", "UPDATE authorities SET authority = ?", "0" * 32)
statement(
    "counter-of-a-list-raised",
    "differs from the bytes",
    f"UPDATE revocation_lists SET counter = counter + 1000 WHERE {NEWEST}",
)
statement(
    "digest-of-a-list", "differs from the bytes", f"UPDATE revocation_lists SET digest = ? WHERE {NEWEST}", "0" * 64
)
statement(
    "next-update-of-a-list", "differs from the bytes", "UPDATE revocation_lists SET next_update = next_update + 1"
)
statement(
    "authority-of-a-list",
    "differs from the bytes",
    f"UPDATE revocation_lists SET authority = ? WHERE {NEWEST}",
    "0" * 32,
)
statement("newest-list-deleted", "the newest revocation list", f"DELETE FROM revocation_lists WHERE {NEWEST}")
statement("lists-deleted", "the newest revocation list", "DELETE FROM revocation_lists")
statement("list-cut", "is not valid", f"UPDATE revocation_lists SET encoded = x'8100' WHERE {NEWEST}")
statement("id-of-an-api-key", "the audit has no row", "UPDATE api_keys SET key = ? WHERE role = 'owner'", "f" * 16)
statement("api-key-deleted", "that it was created", "DELETE FROM api_keys WHERE role = 'viewer'")
statement("role-of-an-api-key", "another grant", "UPDATE api_keys SET role = 'owner' WHERE role = 'viewer'")
statement("scope-of-an-api-key", "another grant", "UPDATE api_keys SET scope = '*' WHERE role = 'viewer'")
statement("api-key-that-lasts", "another grant", "UPDATE api_keys SET expires_at = NULL")
statement("owners-key-that-ends", "another grant", "UPDATE api_keys SET expires_at = 1e9 WHERE role = 'owner'")
statement("owners-key-made-a-viewers", "another grant", "UPDATE api_keys SET role = 'viewer' WHERE role = 'owner'")
statement("api-key-no-longer-revoked", "is not revoked", "UPDATE api_keys SET revoked_at = NULL")
statement("api-key-revoked-by-nobody", "no request of that", "UPDATE api_keys SET revoked_at = 1 WHERE role = 'owner'")
for column, value in (("secret_hash", "f" * 64), ("label", "mine"), ("created_by", "olga"), ("created_at", 1.0)):
    statement(f"{column}-of-an-api-key", "another grant, secret, label", f"UPDATE api_keys SET {column} = ?", value)
statement("inside-of-an-authority", "is in the audit alone", "UPDATE authorities SET inside = 1 - inside")
statement("since-of-an-authority", "is not in the audit", "UPDATE authorities SET since = since - 3600")
statement(
    "authority-invented",
    "is not in the audit",
    "INSERT INTO authorities (number, authority, inside, since) VALUES (9, ?, 0, 1000.0)",
    "0" * 32,
)
statement("worker-revoked-by-nobody", "no request of that", OTHER_WORKER.format("1"))
statement("worker-invented", "no run is simulated", OTHER_WORKER.format("NULL"))
statement(
    "device-invented",
    "no run is simulated",
    OTHER_DEVICE.format(key="'00000000000000000000000000000001'", left="NULL"),
)
statement("device-that-left-invented", "no request of that", OTHER_DEVICE.format(key="NULL", left="1001"))
statement(
    "device-that-has-not-left",
    "no request of that",
    f"UPDATE devices SET key_id = NULL, certificate = '', left_at = 1e9 WHERE device = {LAST}",
)
statement("left-at-set", "no request of that", f"UPDATE devices SET left_at = 1e9 WHERE device = {LAST}")
statement("left-before-it-asked", "and asked for it", "UPDATE devices SET left_at = 1 WHERE left_at IS NOT NULL")
statement("registered-earlier", "was registered at", "UPDATE devices SET enrolled_at = enrolled_at - 60")
statement("registered-later", "was registered at", "UPDATE devices SET enrolled_at = enrolled_at + 60")
statement("worker-registered-earlier", "was registered at", "UPDATE workers SET created_at = created_at - 60")
statement("worker-revoked-later", "by the audit at", "UPDATE workers SET revoked_at = revoked_at + 3600")
statement("api-key-revoked-later", "by the audit at", "UPDATE api_keys SET revoked_at = revoked_at + 3600")
statement("worker-no-longer-revoked", "is not revoked", "UPDATE workers SET revoked_at = NULL")
statement("worker-of-another-name", "is called", "UPDATE workers SET label = 'cluster 8'")
statement("worker-deleted", "is not there", "DELETE FROM workers")
statement("cap-raised-above-the-registrations", "it registered with", "UPDATE devices SET examples_cap = 1000000000")
statement("cap-lowered-below-who-waits", "waits with", "UPDATE devices SET examples_cap = 1")
statement("waiting-above-the-cap", "waits with", "UPDATE waiting SET examples = examples + 100000")
statement(
    "waiting-and-not-registered",
    "is not registered",
    "UPDATE waiting SET device = 'nobody' WHERE device = (SELECT min(device) FROM waiting)",
)


def doubled(table: str) -> Change:
    def change(d: Doctor) -> None:
        d.lift(table)
        d.sql(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 1")

    return change


for table in ("devices", "workers", "api_keys", "waiting", "revocation_lists"):
    DOCTORINGS[f"{table}-has-a-row-twice"] = doubled(table), "is stored 2 times", True


@doctoring("is stored 2 times")
def another_grant_of_an_api_key_beside_it(d: Doctor) -> None:
    d.lift("api_keys")
    d.sql("INSERT INTO api_keys SELECT * FROM api_keys WHERE role = 'viewer'")
    d.sql("UPDATE api_keys SET role = 'owner' WHERE rowid = (SELECT min(rowid) FROM api_keys WHERE role = 'viewer')")


@doctoring("is not there")
def registered_device_deleted(d: Doctor) -> None:
    name = d.one("SELECT min(device) FROM waiting")
    d.sql("DELETE FROM devices WHERE device = ?", name)
    d.sql("DELETE FROM waiting WHERE device = ?", name)


@doctoring("is not valid", keyless=False)
def signature_of_a_certificate_flipped(d: Doctor) -> None:
    flipped(d, "devices", "certificate", f"device = {FIRST}", -1)


@doctoring("is not valid", keyless=False)
def end_of_a_certificate_raised(d: Doctor) -> None:
    flipped(d, "devices", "certificate", f"device = {FIRST}", -66)


@doctoring("is not valid", keyless=False)
def signature_of_a_workers_certificate_flipped(d: Doctor) -> None:
    flipped(d, "workers", "certificate", "certificate != ''", -1)


@doctoring("is not valid", keyless=False)
def signature_of_a_list_flipped(d: Doctor) -> None:
    flipped(d, "revocation_lists", "encoded", NEWEST, -1)


@doctoring("differs from the bytes")
def next_update_of_a_list_signed_anew(d: Doctor) -> None:
    before = RevocationList.parse(d.one(f"SELECT encoded FROM revocation_lists WHERE {NEWEST}"))
    times = {"counter": before.counter, "issued": before.issued, "next_update": before.next_update + 9}
    signed = sign_revocations(key_of("authority"), **times, revoked=before.revoked)
    d.sql(f"UPDATE revocation_lists SET encoded = ? WHERE {NEWEST}", signed.encoded)


@doctoring("is not valid", keyless=False)
def list_flipped_and_its_row_made_anew(d: Doctor) -> None:
    encoded = bytearray(d.one(f"SELECT encoded FROM revocation_lists WHERE {NEWEST}"))
    encoded[-1] ^= 1
    row = list_row(RevocationList.parse(bytes(encoded)))
    d.sql(f"UPDATE revocation_lists SET encoded = ?, digest = ? WHERE {NEWEST}", row.encoded, row.digest)


@doctoring("never took")
def certificate_of_another_authority(d: Doctor) -> None:
    name = d.one(f"SELECT {FIRST}")
    made = forged(id=name)
    d.sql(
        "UPDATE devices SET certificate = ?, key_id = ? WHERE device = ?", made.encoded.hex(), made.key_id.hex(), name
    )


@doctoring("never took")
def list_of_another_authority(d: Doctor) -> None:
    row = list_row(RevocationList.parse(Certifier("forger").list(1000.0)))
    d.sql(
        "INSERT INTO revocation_lists (authority, counter, digest, next_update, encoded) VALUES (?, ?, ?, ?, ?)",
        *(getattr(row, name) for name in ("authority", "counter", "digest", "next_update", "encoded")),
    )


@doctoring("has 0 keys, and the audit says 1")
def revoked_key_taken_from_the_list_by_the_authority(d: Doctor) -> None:
    """A second list of the same number, signed by the authority."""
    before = RevocationList.parse(d.one(f"SELECT encoded FROM revocation_lists WHERE {NEWEST}"))
    times = {"counter": before.counter, "issued": before.issued, "next_update": before.next_update}
    row = list_row(sign_revocations(key_of("authority"), **times, revoked=()))
    d.sql(f"UPDATE revocation_lists SET encoded = ?, digest = ? WHERE {NEWEST}", row.encoded, row.digest)


@doctoring("the audit has no row")
def owners_key_that_nobody_created(d: Doctor) -> None:
    d.sql(
        "INSERT INTO api_keys (key, secret_hash, role, scope, label, created_at, created_by) "
        "SELECT 'ffffffffffffffff', secret_hash, role, scope, label, created_at, created_by FROM api_keys "
        "WHERE role = 'owner'"
    )


@pytest.mark.parametrize(
    ("name", "known"),
    [(name, known) for name, (_, _, keyless) in DOCTORINGS.items() for known in (True, False) if known or keyless],
)
def test_a_doctoring_is_named(folder: Path, name: str, known: bool) -> None:
    change, says, _ = DOCTORINGS[name]
    with doctored(folder) as doctor:
        change(doctor)
    assert any(says in what for what in found(folder, known=known)), found(folder, known=known)


def test_a_key_whose_request_was_cut_short_by_a_crash_is_no_violation(folder: Path) -> None:
    """A key and its row of the audit are one transaction. A revocation was asked for before."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    access = OperatorAccess(store, now=lambda: 1000.0, entropy=os.urandom)
    key = access.keys.create(CREATOR, CreateKey(role="viewer", scope="*", label="a = b", expires_in_s=3600)).key
    assert found(folder) == []
    access.audit.record(CREATOR.id, "key.revoke", f"key={key}")
    access.keys.revoke(CREATOR, key)
    assert found(folder) == []
    store.close()


def test_a_folder_that_was_never_served_has_no_audit_of_who_was_taken_in(tmp_path: Path) -> None:
    """A simulation's devices have no certificate."""
    world = World(0, store=open_store(f"sqlite:///{tmp_path / DATABASE_FILE}"))
    with world.store.transaction() as tx:
        tx.insert_device(device_row("simulated", 10, "", 1000.0))
    world.store.close()
    assert found(tmp_path) == []
