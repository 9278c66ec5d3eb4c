"""Who devices and workers are: certificates of the pinned authority, the newest of each id, and its revocation list."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.errors import BadCredential, RolledBackList
from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.identities import SignedBy, _Registration
from coordinator.store import MemoryStore
from coordinator.store.gateway import NoSuchValue
from coordinator.store.memory import MemoryTransaction
from coordinator.store.port import DeviceRow, Transaction
from coordinator.verify import verify
from tests.coordinator.certified import Certifier, key_id, key_of
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.runtime.fragile import Crash, FragileStore, Points
from tests.coordinator.world import World

KEY, OTHER = key_of("a new device"), key_of("another device")
DAY_S = 86_400


def signed(key: Any, at: float = 0.0) -> SignedBy:
    return SignedBy(key_id(key).hex(), at)


# ---------------------------------------------------------------- registering


def test_a_device_has_the_id_of_its_certificate_and_keeps_its_first_numbers(make_world: MakeWorld) -> None:
    world = make_world(0)
    certificate = world.authority.certificate(KEY, at=world.clock.at, id="d-ward-7")
    row = world.coordinator.identities.register_device(certificate, examples=500, label="phone")()
    assert (row.device, row.examples_cap, row.label, row.enrolled_at) == ("d-ward-7", 500, "phone", world.clock.at)
    assert row.key_id == key_id(KEY).hex()
    assert row.certificate == certificate.encoded.hex()
    world.clock.at += 5
    assert world.coordinator.identities.register_device(certificate, examples=9999, label="x")() == row, (
        "the same again"
    )
    assert world.coordinator.identities.device(signed(KEY)) == row


def test_repro_the_pool_is_held_before_rows_of_devices_are_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL a new certificate and a new device in one batch, and a check-in, waited for each other."""
    world, taken = World(1), list[str]()
    for name in ("hold_pool", "certify_device", "insert_device"):
        real = getattr(Transaction, name) if name != "hold_pool" else getattr(MemoryTransaction, name)
        monkeypatch.setattr(
            MemoryTransaction, name, lambda tx, *given, name=name, real=real: (taken.append(name), real(tx, *given))[1]
        )
    renewed = world.authority.certificate(world.keys[0], at=world.clock.at + 1, id=world.rows[0].device)
    fresh = world.authority.certificate(KEY, at=world.clock.at)
    world.clock.at += 2
    identities = world.coordinator.identities
    made = identities._register_devices([_Registration(one, 1, "") for one in (renewed, fresh)])
    assert [row.device for row in made if isinstance(row, DeviceRow)] == [renewed.id, fresh.id]
    assert taken[0] == "hold_pool"
    assert {"certify_device", "insert_device"} <= set(taken)


@pytest.mark.parametrize(("says", "cap"), [(0, 100_000), (1, 1), (99_999, 99_999), (2**31, 100_000)])
def test_sizes_are_capped_when_a_device_registers(says: int, cap: int) -> None:
    world = World(0)
    certificate = world.authority.certificate(KEY, at=world.clock.at)
    assert world.coordinator.identities.register_device(certificate, examples=says)().examples_cap == cap


def test_a_newer_certificate_takes_the_place_of_the_one_before_and_an_older_one_does_not(make_world: MakeWorld) -> None:
    world = make_world(0)
    identities = world.coordinator.identities
    first = world.authority.certificate(KEY, at=world.clock.at)
    identities.register_device(first, examples=500, label="phone")()
    world.clock.at += DAY_S
    renewed = world.authority.certificate(KEY, at=world.clock.at)
    row = identities.register_device(renewed, examples=7)()
    assert (row.certificate, row.examples_cap, row.label) == (renewed.encoded.hex(), 500, "phone")
    with world.refuses("not-certified", "a newer certificate"):
        identities.register_device(first)()
    assert identities.device(signed(KEY)) == row


def test_a_rotated_key_takes_the_place_of_the_old_one_under_the_same_id(make_world: MakeWorld) -> None:
    world = make_world(0)
    identities = world.coordinator.identities
    identities.register_device(world.authority.certificate(KEY, at=world.clock.at, id="d1"))()
    rotated = world.authority.certificate(OTHER, at=world.clock.at + 1, id="d1")
    assert identities.register_device(rotated)().device == "d1"
    assert identities.device(signed(OTHER)).device == "d1"
    with world.refuses("unregistered"):
        identities.device(signed(KEY))


def test_of_two_certificates_of_one_second_neither_is_older_unless_it_ends_before(make_world: MakeWorld) -> None:
    """A key that is rotated in the second in which it was certified is not locked out."""
    world = make_world(0)
    identities, short = world.coordinator.identities, Certifier(days=30)
    identities.register_device(world.authority.certificate(KEY, at=world.clock.at, id="d1"))()
    with world.refuses("not-certified", "a newer certificate"):
        identities.register_device(short.certificate(OTHER, at=world.clock.at, id="d1"))()
    identities.register_device(world.authority.certificate(OTHER, at=world.clock.at, id="d1"))()
    assert identities.device(signed(OTHER)).device == "d1"


def test_one_key_is_not_two_devices(make_world: MakeWorld) -> None:
    world = make_world(0)
    world.coordinator.identities.register_device(world.authority.certificate(KEY, at=world.clock.at, id="d1"))()
    with world.refuses("not-certified", "registered as d1"):
        world.coordinator.identities.register_device(world.authority.certificate(KEY, at=world.clock.at, id="d2"))()


def test_a_device_that_registers_from_two_threads_is_one_device(make_world: MakeWorld) -> None:
    world = make_world(0)
    certificate = world.authority.certificate(KEY, at=world.clock.at)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(world.coordinator.identities.register_device(certificate)()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 6
    assert len(world.coordinator.insight.fleet.devices()) == 1


def test_devices_that_register_together_share_a_transaction_with_their_rows_of_the_audit(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(0)
    begun, begin = [], world.store.transaction

    def counted(run: str | None = None) -> Any:
        begun.append(run)
        return begin(run)

    monkeypatch.setattr(world.store, "transaction", counted)
    entered = [enter(world, f"device {number}", at=world.clock.at) for number in range(20)]
    assert begun == []
    assert [settle().device for settle in entered] == [f"d-device-{number}" for number in range(20)]
    assert begun == [None]
    rows = [(row.by, row.action) for _, row in world.store.audit_of_all(2, 99)]
    assert rows == [(f"d-device-{number}", "device.register done") for number in range(20)]
    assert list(verify(world.store)) == []


def enter(world: World, key: str, *, at: float, name: str = "", label: str = "") -> Callable[[], Any]:
    """Queues the registration of a certificate of the key that has this name."""
    certificate = world.authority.certificate(key_of(key), at=at, id=name or f"d-{key.replace(' ', '-')}")
    return world.coordinator.identities.register_device(certificate, label=label)


def answer_of(settle: Callable[[], Any]) -> str:
    """The device and the time of its certificate, or why it is refused."""
    try:
        row = settle()
    except ProblemError as error:
        return error.problem.detail
    return f"{row.device} {Certificate.parse(bytes.fromhex(row.certificate)).not_before}"


def test_of_devices_that_register_together_each_refused_one_is_refused_alone(make_world: MakeWorld) -> None:
    world = make_world(0)
    at = world.clock.at
    for key in ("left", "old", "taken"):
        enter(world, key, at=at)()
    world.coordinator.identities.leave(world.coordinator.identities.device(signed(key_of("left"))))
    asked = [("new", ""), ("left", ""), ("old", ""), ("taken", "d-other"), ("newer", "")]
    times = {"old": at - DAY_S}
    entered = [enter(world, key, at=times.get(key, at + 9), name=name) for key, name in asked]
    answers = [answer_of(settle) for settle in entered]
    since = int(at) + 9 - 600
    assert answers == [
        f"d-new {since}",
        "d-left has left this coordinator, which has forgotten it",
        "a newer certificate of d-old is registered",
        "this key is registered as d-taken",
        f"d-newer {since}",
    ]
    rows = [(row.by, row.action.split()[-1], row.detail) for _, row in world.store.audit_of_all(5, 99)]
    cap = "rounded_cap=131072"
    assert rows == [
        ("d-new", "done", f"device=d-new {cap}"),
        ("d-left", "refused", "revoked-key"),
        ("d-old", "refused", "not-certified"),
        ("d-other", "refused", "not-certified"),
        ("d-newer", "done", f"device=d-newer {cap}"),
    ]
    assert world.store.device("d-other") is None


@pytest.mark.parametrize("seed", range(12))
def test_together_they_get_the_answers_that_they_get_one_after_the_other(seed: int) -> None:
    """Keys that are rotated, handed on and taken, within one transaction and in as many."""
    together, apart, chance = World(0), World(0), Random(seed)
    asked = [(f"key {chance.randrange(4)}", f"d{chance.randrange(3)}", chance.randrange(4)) for _ in range(9)]
    for start in range(0, 9, 3 + 6 * (seed % 2)):
        part = asked[start : start + 3 + 6 * (seed % 2)]
        entered = [enter(together, key, at=together.clock.at + at, name=name) for key, name, at in part]
        expected = [answer_of(enter(apart, key, at=apart.clock.at + at, name=name)) for key, name, at in part]
        assert [answer_of(settle) for settle in entered] == expected
    assert together.store.devices() == apart.store.devices()
    of_both = (world.store.audit_of_all(0, 99) for world in (together, apart))
    one, other = ([(row.by, row.action, row.detail) for _, row in rows] for rows in of_both)
    assert one == other
    assert list(verify(together.store)) == []


def test_where_another_replica_registers_one_of_them_meanwhile_all_get_their_answers(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL its row appears between the read and the insert."""
    world = make_world(0)
    other = enter(world, "b", at=world.clock.at)()
    read, hidden = Transaction.devices_named, [True]

    def before_it(tx: Transaction, devices: Any) -> Any:
        return [] if hidden and hidden.pop() else read(tx, devices)

    monkeypatch.setattr(Transaction, "devices_named", before_it)
    entered = [enter(world, key, at=world.clock.at) for key in "abc"]
    assert [settle().device for settle in entered] == ["d-a", "d-b", "d-c"]
    assert world.store.device("d-b") == other
    assert [row.by for _, row in world.store.audit_of_all(3, 99)] == ["d-a", "d-b", "d-c"]
    assert list(verify(world.store)) == []


def test_a_label_that_the_database_cannot_hold_is_refused_alone(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has no texts with a zero byte."""
    world, insert = make_world(0), Transaction.insert_device

    def strict(tx: Transaction, *rows: DeviceRow) -> None:
        if any("\0" in row.label for row in rows):
            raise NoSuchValue("A value can't be stored: a zero byte.")
        insert(tx, *rows)

    monkeypatch.setattr(Transaction, "insert_device", strict)
    entered = [enter(world, key, at=world.clock.at, label="\0" * (key == "b")) for key in "abc"]
    assert entered[0]().device == "d-a"
    with pytest.raises(NoSuchValue):
        entered[1]()
    assert entered[2]().device == "d-c"
    assert list(verify(world.store)) == []


@pytest.mark.parametrize("point", [1, 2])
def test_a_process_that_dies_as_they_register_has_registered_all_of_them_or_none(point: int) -> None:
    points = Points(point)
    world = World(0, store=FragileStore(MemoryStore(), points))  # type: ignore[arg-type]
    entered = [enter(world, key, at=world.clock.at) for key in "abc"]
    points.armed = True
    with pytest.raises(Crash):
        entered[0]()
    world.boot()
    is_durable = point == 2
    assert [row.device for row in world.store.devices()] == (["d-a", "d-b", "d-c"] if is_durable else [])
    assert len(world.store.audit_of_all(2, 99)) == (3 if is_durable else 0)
    assert [enter(world, key, at=world.clock.at)().device for key in "abc"] == ["d-a", "d-b", "d-c"]
    assert list(verify(world.store)) == []


def test_who_registers_makes_nobody_elses_rows_be_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on while another one registers."""
    world.coordinator.identities.device(signed(world.keys[0]))
    enter(world, "a new one", at=world.clock.at)()
    monkeypatch.setattr(type(world.store), "device_by_key", None)
    assert world.coordinator.identities.device(signed(world.keys[0])).device == world.rows[0].device


def test_workers_register_alike_and_a_revoked_one_comes_not_back(make_world: MakeWorld) -> None:
    world = make_world(0)
    identities = world.coordinator.identities
    certificate = world.authority.certificate(KEY, at=world.clock.at, holder="worker", id="w1")
    row = identities.register_worker(certificate, label="cluster 2")
    assert (row.worker, row.label, row.created_at) == ("w1", "cluster 2", world.clock.at)
    assert identities.register_worker(certificate, label="x") == row
    assert identities.worker(signed(KEY)) == row
    renewed = world.authority.certificate(KEY, at=world.clock.at + 9, holder="worker", id="w1")
    assert identities.register_worker(renewed).certificate == renewed.encoded.hex()
    with world.refuses("not-certified", "a newer certificate"):
        identities.register_worker(certificate)
    world.coordinator.workers.revoke("w1")
    for ask in (lambda: identities.worker(signed(KEY)), lambda: identities.register_worker(renewed)):
        with world.refuses("revoked-key", "by an operator of this coordinator"):
            ask()


def test_the_class_of_a_certificate_decides_whose_requests_it_makes(world: World) -> None:
    world.worker()
    with world.refuses("not-certified", "is a device"):
        world.coordinator.identities.worker(signed(world.keys[0]))
    with world.refuses("not-certified", "is a worker"):
        world.coordinator.identities.device(signed(world.worker_keys[0]))


# ---------------------------------------------------------------- who is let in


def test_a_key_that_nobody_registered_is_told_to_register(world: World) -> None:
    with world.refuses("unregistered", "register again"):
        world.coordinator.identities.device(signed(KEY))
    with world.refuses("unregistered"):
        world.coordinator.identities.public_key(key_id(KEY).hex())


def test_a_certificate_is_valid_for_its_time_by_the_coordinators_clock(make_world: MakeWorld) -> None:
    world = make_world(0)
    identities = world.coordinator.identities
    certificate = world.authority.certificate(KEY, at=world.clock.at)
    identities.register_device(certificate)()
    world.clock.at = certificate.not_after - 1
    assert identities.device(signed(KEY))
    assert identities.valid_s(signed(KEY)) == 1
    world.clock.at += 1
    with world.refuses("expired-certificate", "has expired"):
        identities.device(signed(KEY))
    with world.refuses("expired-certificate", "has expired"):
        identities.require_certificate(certificate, "device")
    world.clock.at = certificate.not_before - 1
    with world.refuses("expired-certificate", "not valid yet"):
        identities.device(signed(KEY))


def test_only_certificates_of_the_pinned_authority_for_that_class_are_taken(world: World) -> None:
    require = world.coordinator.identities.require_certificate
    good = world.authority.certificate(KEY, at=world.clock.at)
    require(good, "device")
    with world.refuses("not-certified", "of another authority"):
        require(Certifier("a proxy's").certificate(KEY, at=world.clock.at), "device")
    with world.refuses("not-certified", "signature"):
        require(type(good).parse(good.body + bytes(64)), "device")
    with world.refuses("not-certified", "one of a device, not of a worker"):
        require(good, "worker")


def test_a_coordinator_whose_authority_is_another_one_now_asks_for_a_new_registration(world: World) -> None:
    certificate = world.authority.certificate(world.keys[0], at=world.clock.at)
    world.authority = Certifier("a new authority")
    world.boot()
    world.coordinator.identities.take_list(world.authority.list(world.clock.at))
    with world.refuses("not-certified", "another authority"):
        world.coordinator.identities.device(signed(world.keys[0]))
    taken = world.authority.certificate(world.keys[0], at=world.clock.at - DAY_S, id=certificate.id)
    assert world.coordinator.identities.register_device(taken)().device == certificate.id, "an older one of another"
    assert world.coordinator.identities.device(signed(world.keys[0])).certificate == taken.encoded.hex()


@pytest.mark.parametrize("clock_falls", [False, True])
def test_a_key_that_another_replica_replaced_is_refused_after_five_seconds(
    make_world: MakeWorld, clock_falls: bool
) -> None:
    """Also where the clock falls meanwhile."""
    world = make_world(0)
    other = world.replica()
    other.identities.register_device(world.authority.certificate(KEY, at=world.clock.at, id="d1"))()
    other.identities.device(signed(KEY))
    world.clock.at += 4
    world.coordinator.identities.register_device(world.authority.certificate(OTHER, at=world.clock.at, id="d1"))()
    other.identities.device(signed(KEY))
    world.clock.at -= 100 if clock_falls else 0
    world.clock.at += 1.5
    with world.refuses("unregistered"):
        other.identities.device(signed(KEY))
    assert other.identities.device(signed(OTHER)).device == "d1"


# ---------------------------------------------------------------- leaving


def test_a_device_that_left_is_forgotten_and_comes_not_back_by_the_same_id(world: World) -> None:
    row = world.coordinator.identities.device(signed(world.keys[0]))
    world.coordinator.devices.check_in(row, world.message())()
    world.coordinator.identities.leave(row)
    left = world.store.device(row.device)
    assert left is not None
    assert (left.key_id, left.certificate, left.label, left.left_at) == (None, "", "", world.clock.at)
    assert world.store.waiting(world.clock.at) == []
    with world.refuses("unregistered"):
        world.coordinator.identities.device(signed(world.keys[0]))
    with world.refuses("revoked-key", "has left"):
        world.coordinator.identities.register_device(
            world.authority.certificate(world.keys[0], at=world.clock.at + 9, id=row.device)
        )()
    (view,) = [view for view in world.coordinator.insight.fleet.devices() if view.device == row.device]
    assert view.state == "left"


def test_a_registration_that_was_let_in_before_its_device_left_brings_it_not_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = world.rows[0]
    newer = world.authority.certificate(world.keys[0], at=world.clock.at + 9, id=row.device)
    world.coordinator.identities.leave(row)
    with monkeypatch.context() as patch, world.refuses("revoked-key", "has left"):
        patch.setattr(world.store, "device", lambda device: row)  # as it was read before
        world.coordinator.identities.register_device(newer)()
    left = world.store.device(row.device)
    assert left is not None
    assert (left.key_id, left.certificate) == (None, "")


def test_a_device_that_leaves_in_a_round_has_withdrawn_from_it(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    world.coordinator.devices.abandon(world.rows[number].device, "the device leaves")
    world.coordinator.devices.abandon(world.rows[number].device, "and again")
    assert world.assignment(number) is None
    assert world.coordinator.operators.run("marks").funnel.withdrawn == 1


# ---------------------------------------------------------------- the authority and its list


def test_without_an_authority_or_its_list_nobody_is_let_in() -> None:
    world = World(1)
    certificate = world.authority.certificate(KEY, at=world.clock.at)
    asks: list[Callable[[Any], object]] = [
        lambda identities: identities.require_certificate(certificate, "device"),
        lambda identities: identities.device(signed(world.keys[0])),
    ]
    alone = Coordinator(Core(world.store, world.blobs, clock=world.clock))
    assert "--authority-key" in alone.identities.trouble()
    assert alone.identities.list() is None
    unlisted = World(0)
    unlisted.store = type(world.store)()  # type: ignore[call-arg]
    unlisted.boot()
    assert "has not seen a revocation list" in unlisted.coordinator.identities.trouble()
    for ask in asks:
        with world.refuses("busy", "has no authority"):
            ask(alone.identities)
    with world.refuses("busy", "has not seen a revocation list"):
        asks[0](unlisted.coordinator.identities)


def test_a_revoked_key_is_out_at_once_and_what_waits_for_it_ends(make_world: MakeWorld) -> None:
    world = make_world(3)
    signals, identities = world.coordinator.core.signals, world.coordinator.identities
    for row in world.rows:
        world.coordinator.devices.check_in(row, world.message())()
    keys = [f"device:{row.device}" for row in world.rows]
    before = [signals.version(key) for key in keys]
    identities.take_list(world.authority.list(world.clock.at, world.keys[1]))
    assert [signals.version(key) > seen for key, seen in zip(keys, before, strict=True)] == [False, True, False]
    assert [
        world.index(row.device) for row in sorted(world.store.waiting(0), key=lambda row: world.index(row.device))
    ] == [0, 2]
    with world.refuses("revoked-key", "has revoked"):
        identities.device(signed(world.keys[1]))
    with world.refuses("revoked-key"):
        identities.require_certificate(world.authority.certificate(world.keys[1], at=world.clock.at), "device")
    assert identities.device(signed(world.keys[0]))
    (audited,) = [row for _, row in world.store.audit_of_all(0, 100) if "keys=1" in row.detail]
    assert (audited.by, audited.action) == ("authority", "revocations.taken")


def test_lists_only_go_forward_also_over_a_restart(make_world: MakeWorld) -> None:
    world = make_world(0)
    old = world.authority.list(world.clock.at)
    new = world.authority.list(world.clock.at, KEY)
    assert world.coordinator.identities.take_list(new).encoded == new
    assert world.coordinator.identities.take_list(new).encoded == new, "the same again changes nothing"
    for coordinator in (world.coordinator, world.boot()):
        with pytest.raises(RolledBackList):
            coordinator.identities.take_list(old)
        held = coordinator.identities.list()
        assert held is not None
        assert held.encoded == new
    with pytest.raises(BadCredential):
        world.coordinator.identities.take_list(Certifier("another").list(world.clock.at))
    with pytest.raises(BadCredential):
        world.coordinator.identities.take_list(b"no list")


def test_a_replica_sees_a_list_that_another_one_took_within_five_seconds(make_world: MakeWorld) -> None:
    world = make_world(1)
    other = world.replica()
    assert other.identities.device(signed(world.keys[0]))
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    world.clock.at += 6
    key = f"device:{world.rows[0].device}"
    seen = other.core.signals.version(key)
    with world.refuses("revoked-key"):
        other.identities.device(signed(world.keys[0]))
    assert other.core.signals.version(key) > seen, "what it holds open for the device ends"


def test_a_list_out_of_date_is_said_and_plain_requests_go_on(world: World) -> None:
    assert world.coordinator.identities.trouble() == ""
    assert "authority" not in world.coordinator.healthy()
    world.clock.at += DAY_S
    assert "out of date" in world.coordinator.identities.trouble()
    assert "Secure rounds wait." in str(world.coordinator.healthy()["authority"])
    assert world.coordinator.identities.device(signed(world.keys[0]))


def test_the_store_says_from_when_on_which_authority_was_trusted(make_world: MakeWorld) -> None:
    world = make_world(0)
    world.boot()
    world.clock.at += 10
    world.authority = Certifier("another")
    world.boot()
    recorded = [(row.authority, row.inside, row.since) for row in world.store.authorities()]
    first, second = Certifier().issuer.trusted.id.hex(), world.authority.issuer.trusted.id.hex()
    assert recorded == [(first, False, world.clock.at - 10), (second, False, world.clock.at)]


def test_a_round_says_whether_the_coordinator_could_have_made_devices_up(world: World) -> None:
    coordinator = world.coordinator
    coordinator.identities.authority = world.authority.pinned(inside=True)
    world.clock.at += 1
    coordinator.recover()
    assert [view.authority for view in coordinator.operators.rounds("marks")] == ["apart"]
    world.play_round(1)
    assert [view.authority for view in coordinator.operators.rounds("marks")] == ["apart", "inside"]
    assert coordinator.operators.run("marks").authority == "inside"


def test_a_database_that_went_back_brings_no_older_list_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was restored from a backup under a coordinator that runs."""
    before = world.store.revocations(world.authority.issuer.trusted.id.hex())
    newest = world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    monkeypatch.setattr(world.store, "revocations", lambda authority: before)
    world.clock.at += 60
    assert world.coordinator.identities.list() == newest
    with world.refuses("revoked-key"):
        world.coordinator.identities.device(signed(world.keys[0]))


def test_after_the_clock_went_back_the_list_of_another_replica_is_seen_nevertheless(world: World) -> None:
    ours, other = world.coordinator.identities, world.replica().identities
    world.clock.at += 3600
    assert ours.list() is not None
    world.clock.at -= 3600
    other.take_list(world.authority.list(world.clock.at, world.keys[0]))
    world.clock.at += 5.5
    with world.refuses("revoked-key"):
        ours.device(signed(world.keys[0]))


def test_whom_a_replica_let_in_before_it_had_read_a_newer_list_leaves_the_pool_when_it_has(
    make_world: MakeWorld,
) -> None:
    """Its place lasts a minute beyond its hold, and the other replica dropped it before it came."""
    world = make_world(2)
    late = world.replica()
    late.identities.list()
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    for row in world.rows:
        late.devices.check_in(row, world.message())()
    assert len(world.store.waiting(world.clock.at)) == 2, "it goes by the list that it has"
    world.clock.at += 6
    late.tick()
    assert [world.index(row.device) for row in world.store.waiting(world.clock.at)] == [1]


def test_a_process_that_starts_drops_from_the_pool_whom_the_list_revokes(make_world: MakeWorld) -> None:
    """One that had let the device in died before it had read the list."""
    world = make_world(2)
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    for row in world.rows:
        world.coordinator.devices.check_in(row, world.message())()
    world.replica().tick()
    assert [world.index(row.device) for row in world.store.waiting(world.clock.at)] == [1]


def test_a_thread_that_is_slow_to_read_a_list_does_not_put_it_in_place_of_a_newer_one(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2)
    late = world.replica()
    late.identities.list()
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    begin, newer = late.core.store.transaction, world.authority.list(world.clock.at, *world.keys[:2])

    def slow(*given: Any) -> Any:
        """While it waits for the database, another thread takes the next list."""
        monkeypatch.undo()
        assert late.identities.take_list(newer).counter == newest
        return begin(*given)

    newest = RevocationList.parse(newer).counter
    monkeypatch.setattr(late.core.store, "transaction", slow)
    world.clock.at += 6
    late.tick()
    assert late.identities.list().counter == newest
