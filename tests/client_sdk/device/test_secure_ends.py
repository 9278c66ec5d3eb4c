"""How a device's part in a secure round ends, and what is left of it: no secret, no clear update, a true history."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_sdk.credentials.certificate import sign_revocations
from client_sdk.device.actions import (
    Answered,
    Failed,
    FetchList,
    ListFetched,
    Reply,
    RequestRefused,
    Save,
    Send,
    Unreachable,
)
from client_sdk.device.record import Record, StorageError
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.protocol.devices import Policy, Withdrawal
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, problem
from client_sdk.protocol.secure import Octets, SecureRefusal
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Advertisements, Memory, Step
from client_sdk.secagg.shares import Bundle
from coordinator.engine import events as ev
from coordinator.secure import validation
from tests.client_sdk.bounds import any_work
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with
from tests.client_sdk.secagg.attempt import AUTHORITY_KEY, FOREVER
from tests.coordinator.secure.liars import accuses, deals_garbage_to, nothing, right
from tests.coordinator.secure.world import STAGES


def assert_nothing_is_left(phone: SessionPhone) -> None:
    record = phone.storage.load()
    assert record is not None
    assert (record.assignment, record.update_digest, record.work, record.farewell) == (None, None, None, None)
    assert not phone.storage.load_secure().live
    assert isinstance(phone.storage, MemoryStorage)
    assert not phone.storage._updates


def has_sent(phone: SessionPhone, stage: str, attempt: int = 0) -> bool:
    return (1, attempt, stage) in phone.sent


def reason(phone: SessionPhone) -> str:
    return phone.storage.history()[-1].reason


@pytest.mark.parametrize("stage", STAGES)
def test_another_device_may_vanish_at_each_exchange(stage: Any) -> None:
    world, (phone, gone) = world_with(2, cohort={"quorum": 0.6})
    gone.stops_before = stage
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert phone.trainings == 1
    assert_nothing_is_left(phone)


def test_a_round_that_is_keyed_anew_takes_the_same_update() -> None:
    world, (phone,) = world_with(1, cohort={"quorum": 0.6})
    world.play(done=lambda _: has_sent(phone, "share"))
    for victim in world.phones[1:3]:  # too many for this attempt: keys anew
        victim.stops = "share"
    finish(world, [phone])
    assert {attempt for _, attempt, _ in phone.sent} == {0, 1}, world.reasons
    assert (phone.history, phone.trainings) == ([(1, "receipt")], 1)
    assert_nothing_is_left(phone)


@pytest.mark.parametrize("answer", [right, nothing])
def test_a_device_that_was_dealt_garbage_complains_and_its_update_counts(answer: Any) -> None:
    """Its session goes on in the same attempt."""
    world, (phone, other) = world_with(2, n=12, secure={"quiet_s": 5})
    deals_garbage_to(world.phones[8], {0, 1}, answer)
    finish(world, [phone, other])
    for one in (phone, other):
        assert has_sent(one, "complain")
        assert (one.history, one.trainings) == ([(1, "receipt")], 1)
        assert_nothing_is_left(one)
    assert {attempt for _, attempt, _ in phone.sent} == {0}
    assert (world.phones[8].name in world.survivors()) == (answer is right)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_complaint_and_an_answer_to_one_are_the_same_after_a_restart_anywhere(when: str) -> None:
    """One device is dealt garbage, and another one, which has masked, is accused by a liar."""

    def scene() -> tuple[Any, SessionPhone, SessionPhone]:
        world, (holder, dealer) = world_with(2, n=8)
        deals_garbage_to(world.phones[7], {0}, right)
        accuses(world.phones[6], {1})
        return world, holder, dealer

    world, holder, dealer = scene()
    finish(world, [holder, dealer])
    points = {
        number: [
            place
            for place, action in enumerate(phone.performed)
            if isinstance(action, Send) and action.path.get("stage") in ("share", "mask", "complain", "open")
        ]
        for number, phone in enumerate((holder, dealer))
    }
    assert all(points.values())
    for number, places in points.items():
        for place in places:
            world, holder, dealer = scene()
            (holder, dealer)[number].crashes = {place: when}
            finish(world, [holder, dealer])
            for phone in (holder, dealer):
                assert phone.history == [(1, "receipt")], (number, place)
                assert all(len(bodies) == 1 for bodies in phone.sent.values()), "the same bytes again"
            assert has_sent(holder, "complain")
            assert has_sent(dealer, "open")


def test_a_device_whose_row_was_altered_on_the_way_to_a_peer_opens_nothing_and_withdraws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the coordinator, which passes the complaint on."""
    monkeypatch.setattr(validation, "complained", lambda *given: None)
    world, (victim, dealer) = world_with(2, n=8)
    at = world.phones[1].name

    def spoiled(found: Octets, send: Send) -> Octets:
        if send.path.get("stage") != "share":
            return found
        bundle = Bundle.parse(found.content, 8)
        rows = tuple((of, bytes(len(one)) if of == 1 else one, more) for of, one, more in bundle.rows)
        return Octets(content=Bundle(bundle.owner, rows, bundle.own).encoded)

    victim.change = spoiled
    finish(world, [victim, dealer])
    assert (dealer.name, has_sent(victim, "complain"), has_sent(dealer, "open")) == (at, True, False)
    assert dealer.history == [(1, "withdrawn")]
    assert "altered on the way" in reason(dealer)


# ------------------------------------------------------------ final refusals


def test_the_clear_update_is_gone_before_the_device_sends_its_signature() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: has_sent(phone, "survivors"))
    record = phone.storage.load()
    assert record is not None
    assert record.update_digest is None
    (live,) = phone.storage.load_secure().live.values()
    assert live.step is Step.SIGNED
    assert isinstance(phone.storage, MemoryStorage)
    assert not phone.storage._updates


@pytest.mark.parametrize("crash", [None, "before", "after"])
def test_a_final_refusal_is_told_until_it_is_heard_also_after_a_restart(crash: str | None) -> None:
    world, (phone,) = world_with(1)
    marked = bytes.fromhex(phone.contribution().tensors)
    phone.storage.keep(lambda newest: _with_spent(newest, marked))
    tries = {"left": 3}

    def deaf(send: Send) -> Reply:
        if send.route is not Route.SECURE_REFUSAL or not tries["left"]:
            return None
        tries["left"] -= 1
        return Unreachable("the network is gone", world.at)

    phone.interfere = deaf
    if crash is not None:
        probe_world, (probe,) = world_with(1)
        probe.storage.keep(lambda newest: _with_spent(newest, marked))
        probe_world.play(done=lambda _: bool(probe.routes(Route.SECURE_REFUSAL)))
        phone.crashes = {len(probe.performed) - 1: crash}
    world.play(done=lambda _: bool(phone.storage.history()))
    said = SecureRefusal(
        spent=True, reason="This device has signed a survivor list on this checkpoint and is spent there."
    )
    assert {send.message for send in phone.routes(Route.SECURE_REFUSAL)} == {said}
    assert len(phone.routes(Route.SECURE_REFUSAL)) >= 4
    assert [event.device for event in world.happened(ev.Spent)] == [phone.name]
    assert phone.history == [(1, "withdrawn")]
    assert not phone.routes(Route.WITHDRAWN)
    assert_nothing_is_left(phone)


def _with_spent(newest: Memory, marked: bytes) -> Memory:
    return replace(newest, spent=newest.spent | {marked})


# ------------------------------------------------------------ other refusals


def test_a_header_of_another_plan_is_refused_and_the_device_withdraws() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.secure_task = {"max_norm": 3.0}
    finish(world, [phone])
    (said,) = phone.routes(Route.WITHDRAWN)
    text = "The header has other terms than the plan that this device agreed to."
    assert said.message == Withdrawal(attempt=0, reason=text)
    assert (phone.history, reason(phone)) == ([(1, "withdrawn")], text)
    assert not phone.sent
    assert_nothing_is_left(phone)


@pytest.mark.parametrize("crash", [None, "before", "after"])
@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"smallest_cohort": 4}, "This device hides among 4 or more"),
        ({"fewest_examples": 200}, "no update of fewer than 200 examples"),
        ({"fewest_steps": 9}, "9 steps behind an update"),
    ],
)
def test_repro_work_that_the_owner_refuses_is_declined_for_good_before_training(
    bounds: dict[str, Any], words: str, crash: str | None
) -> None:
    """The device withdrew, and was drawn for the same work again and again."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.policy = Policy(secure=any_work(**{"smallest_cohort": 3, **bounds}))
    if crash is not None:
        phone.crashes = {2: crash}  # the check-in, what was assigned, the refusal
    finish(world, [phone])
    assert (phone.history, phone.trainings) == ([(1, "withdrawn")], 0)
    assert isinstance(phone.performed[2], Save)
    (said,) = {send.message for send in phone.routes(Route.SECURE_REFUSAL)}
    assert isinstance(said, SecureRefusal)
    assert words in said.reason
    assert not phone.routes(Route.WITHDRAWN)
    assert world.log.state.round is None or phone.name in world.log.state.declined
    assert [event.device for event in world.happened(ev.Declined)] == [phone.name]
    assert_nothing_is_left(phone)


def test_where_todays_sums_are_made_a_device_withdraws_and_is_asked_another_day() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.policy = Policy(secure=any_work(smallest_cohort=3, sums_made=True))
    finish(world, [phone])
    assert (len(phone.routes(Route.WITHDRAWN)), phone.routes(Route.SECURE_REFUSAL)) == (1, [])
    assert not world.happened(ev.Declined)


def test_bytes_that_are_no_header_end_the_devices_part() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.change = lambda found, send: Octets(content=b"?") if send.route is Route.SECURE else found
    finish(world, [phone])
    assert phone.history == [(1, "withdrawn")]
    assert_nothing_is_left(phone)


def test_a_device_that_advertised_a_moment_ago_waits_and_then_joins() -> None:
    world, (phone,) = world_with(1)
    tries = {bytes.fromhex(phone.contribution().tensors): Advertisements(count=1, last_at=world.at)}
    phone.storage.keep(lambda newest: replace(newest, advertisements=tries))
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert world.at >= 1010


def test_another_program_that_plays_this_device_ends_this_one_with_a_sentence() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: has_sent(phone, "advertise"))
    phone.storage.keep(lambda newest: newest.marks)
    with pytest.raises(StorageError, match="Another program plays this device"):
        finish(world, [phone])


# ------------------------------------------------------------ the revocation list


def test_a_list_that_cannot_be_had_is_waited_for() -> None:
    world, (phone,) = world_with(1)
    busy = problem("busy", "No list of the authority was seen yet.").problem
    replies: list[Reply] = [RequestRefused(busy, world.at), Unreachable("gone", world.at)]
    phone.listed = lambda asked: replies.pop() if replies else None
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert {asked.digest for asked in phone.performed if isinstance(asked, FetchList)} == {
        world.authority.revocations.digest
    }


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Failed("Revocation list 1 is older than 2, which was seen.", 1000.0), "is older than 2"),
        (RequestRefused(problem("unknown-run", "There is no list.").problem, 1000.0), "There is no list"),
    ],
    ids=["rolled back", "refused"],
)
def test_without_a_list_that_it_can_take_a_device_withdraws(reply: Reply, words: str) -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.listed = lambda asked: reply
    finish(world, [phone])
    assert phone.history == [(1, "withdrawn")]
    assert words in reason(phone)
    assert not phone.sent
    assert_nothing_is_left(phone)


def test_a_header_with_another_list_than_the_coordinator_shows_is_refused() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    newer = sign_revocations(AUTHORITY_KEY, counter=3, issued=0, next_update=FOREVER, revoked=frozenset())
    phone.listed = lambda asked: ListFetched(newer, world.at)
    finish(world, [phone])
    assert "The header names another revocation list, number 2" in reason(phone)


# ------------------------------------------------------------ the last message


@pytest.mark.parametrize("until", [ev.Opened, ev.Committed])
def test_a_device_whose_shares_come_when_enough_are_there_has_its_part_in_the_sum(until: type[ev.Event]) -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    refused: list[str] = []

    def slow(send: Send) -> Reply:
        if send.path.get("stage") != "unmask" or send.method != "PUT":
            return None
        if not world.happened(until):
            return Unreachable("slow", world.at)
        refused.append(send.method)
        return None

    phone.interfere = slow
    finish(world, [phone])
    assert refused, "it was sent, after the sum was there"
    assert (phone.history, phone.trainings) == ([(1, "receipt")], 1)
    assert phone.routes(Route.WITHDRAWN) == []
    assert phone.name in world.survivors()
    assert_nothing_is_left(phone)


# ------------------------------------------------------------ on the disk


def test_the_clear_update_is_overwritten_on_the_disk_before_the_signature_is_sent(tmp_path: Path) -> None:
    world, (phone,) = world_with(1)
    with FileStorage(tmp_path / "device", durable=False) as storage:
        storage.save(phone.storage.load() or Record())
        phone.storage = storage
        world.play(done=lambda _: has_sent(phone, "mask"))
        (update,) = (tmp_path / "device").glob("update-*")
        content = update.read_bytes()
        assert phone.member.values.tobytes() in content
        os.link(update, tmp_path / "the same blocks")
        world.play(done=lambda _: has_sent(phone, "survivors"))
        assert not list((tmp_path / "device").glob("update-*"))
        assert (tmp_path / "the same blocks").read_bytes() == bytes(len(content))
        finish(world, [phone])
        assert phone.history == [(1, "receipt")]


# ------------------------------------------------------------ the network


def test_a_network_that_is_gone_ends_nothing_until_the_attempt_has_expired() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    world.play(done=lambda _: has_sent(phone, "share"))
    page = Problem(type="about:blank", title="Not found", status=404)

    def gone(send: Send) -> Reply:
        return Unreachable("gone", world.at) if len(phone.performed) % 2 else RequestRefused(page, world.at)

    phone.interfere = gone
    header = next(iter(phone.storage.load_secure().live.values())).header
    expires_at = AttemptHeader.parse(header).expires_at
    while world.at <= expires_at:
        assert [live.header for live in phone.storage.load_secure().live.values()] == [header]
        phone.turn(world)
        world.at = max(world.at + 1, phone.not_before)
    for _ in range(6):
        phone.turn(world)
        world.at = max(world.at + 1, phone.not_before)
    assert not phone.storage.load_secure().live
    assert phone.history == []
    phone.interfere = lambda send: None
    finish(world, [phone])
    assert phone.history[0][0] == 1
    assert_nothing_is_left(phone)


def test_answers_of_other_kinds_are_a_bug_of_the_driver() -> None:
    world, (phone,) = world_with(1)
    phone.change = lambda found, send: found
    phone.interfere = lambda send: (
        Answered(Withdrawal(attempt=0, reason="no"), world.at) if send.route is Route.SECURE else None
    )
    with pytest.raises(TypeError, match="the driver answered POST"):
        finish(world, [phone])
