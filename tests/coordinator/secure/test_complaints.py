"""A dealer that lies to one holder, a holder that accuses an honest dealer, and a coordinator that alters rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_sdk.secagg.complaints import Complaint, OpenedPairs
from client_sdk.secagg.shares import Bundle, SharePair
from client_sdk.secagg.statement import signed
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.secure import validation
from tests.client_sdk.secagg.test_complaints import dealt, false_complaint
from tests.coordinator.secure.liars import accuses, deals_garbage_to, nothing, right, wrong
from tests.coordinator.secure.test_rounds import PARTS, RING, assert_committed
from tests.coordinator.secure.world import World
from tests.rotating import on_day, taking_turns

LIAR, VICTIM = 1, 4


def opened(world: World) -> set[str]:
    """The devices that opened a pair."""
    return {phone.name for phone in world.phones if any(message.stage == "open" for message in phone.member.log)}


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("answer", [right, wrong, nothing])
def test_a_lying_dealer_shuts_out_nobody(answer: Any, rounds: int) -> None:
    world = World(8, rounds_=rounds, secure={"quiet_s": 5})
    liar, victim = world.phones[LIAR], world.phones[VICTIM]
    deals_garbage_to(liar, {VICTIM}, answer)
    world.play()
    assert world.state.version == rounds, world.reasons
    assert world.reasons == []
    assert len(world.happened(ev.Announced)) == rounds, "in one attempt each"
    for version in range(1, rounds + 1):
        there = world.survivors(version)
        assert victim.name in there
        assert (liar.name in there) == (answer is right)
    complaints = world.happened(ev.Complained)
    assert {(event.device, event.dealers) for event in complaints} == {(victim.name, (liar.name,))}
    assert len(world.happened(ev.PairsOpened)) == (rounds if answer is right else 0)
    assert all("those whose digests it signed" in event.reason for event in world.happened(ev.Faulted))
    assert bool(world.happened(ev.Faulted)) == (answer is wrong)
    assert world.state.disputes == {victim.name: {liar.name: complaints[-1].round}}
    if rounds == 1:
        assert_committed(world)


def test_a_dealer_that_is_out_is_out_with_the_vector_that_it_had_masked() -> None:
    world = World(8, secure={"quiet_s": 5})
    liar = world.phones[LIAR]
    deals_garbage_to(liar, {VICTIM}, nothing)
    world.play(lambda w: w.state.phase == "agreeing")
    vector = next(event for event in world.happened(ev.Masked) if event.device == liar.name)
    refused = [effect for effect in world.every(fx.RecordRefusal) if effect.device == liar.name]
    assert [(effect.digest, effect.kind) for effect in refused] == [(vector.digest, "invalid-update")]
    assert "it did not open the shares that device-0004 could not open" in refused[0].reason
    assert set(world.state.current.excluded) == {liar.name}
    world.play()
    assert_committed(world)


def test_where_too_few_hold_its_pair_a_fresh_attempt_goes_without_the_dealer_and_the_others_count() -> None:
    world = World(5, secure={"quiet_s": 5})
    deals_garbage_to(world.phones[LIAR], {VICTIM}, nothing)
    world.play()
    assert len(world.happened(ev.Announced)) == 2
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {world.phones[LIAR].name}
    assert_committed(world)


@pytest.mark.parametrize(
    "answer", [pytest.param(right, marks=on_day(0, of=3)), pytest.param(nothing, marks=on_day(1, of=3))]
)
def test_a_dealer_that_lies_to_a_hundred_holders_shuts_out_nobody_either(answer: Any) -> None:
    """Too few hold its pairs: where it is out, a fresh attempt goes without it."""
    n, victims = 104, set(range(4, 104))
    world = World(n, secure={"quiet_s": 5}, aggregation={"weight_cap": 2000})
    liar = world.phones[LIAR]
    deals_garbage_to(liar, victims, answer)
    world.play()
    others = {phone.name for phone in world.phones} - {liar.name}
    assert set(world.survivors()) == (others | {liar.name} if answer is right else others)
    assert len(world.happened(ev.Announced)) == (1 if answer is right else 2)
    complaints = world.happened(ev.Complained)
    assert sorted(event.device for event in complaints) == sorted(world.phones[victim].name for victim in victims)
    assert {event.dealers for event in complaints} == {(liar.name,)}
    assert max(event.bytes for event in complaints) < 300, "the digest of a row, and a signature"
    pairs = [holder for event in world.happened(ev.PairsOpened) for holder in event.holders]
    assert len(pairs) == len(set(pairs)) == (len(victims) if answer is right else 0), "each is asked for once"
    assert world.state.barred == {}
    assert_committed(world)


def test_around_a_ring_too() -> None:
    """The liar's neighbour complains, whichever it is."""
    for answer in (right, nothing):
        world = World(20, secure={**RING, "quiet_s": 5})
        liar = world.phones[LIAR]
        victims: set[int] = set()
        deals_garbage_to(liar, victims, answer)
        world.play()
        assert {world.phones[victim].name for victim in victims} <= set(world.survivors())
        assert len(victims) == 1
        assert_committed(world)


@pytest.mark.parametrize("accused", [{2}, {0, 2, 3}])
def test_a_false_accuser_costs_time_and_nobody_its_part(accused: set[int]) -> None:
    world = World(8)
    accuses(world.phones[VICTIM], accused)
    world.play()
    assert len(world.happened(ev.Announced)) == 1
    assert world.survivors() == [phone.name for phone in world.phones]
    assert opened(world) == {world.phones[place].name for place in accused}
    pairs = [
        (OpenedPairs.parse(message.body, 8).place, *OpenedPairs.parse(message.body, 8).pairs)
        for phone in world.phones
        for message in phone.member.log
        if message.stage == "open"
    ]
    assert sorted(pairs) == [(place, VICTIM) for place in sorted(accused)], "to that one holder, which has the pair"
    assert_committed(world)


def test_liars_and_accusers_at_once() -> None:
    world = World(12, secure={"quiet_s": 5})
    deals_garbage_to(world.phones[1], {4, 7}, nothing)
    deals_garbage_to(world.phones[2], {4}, right)
    accuses(world.phones[9], {0, 5})
    accuses(world.phones[10], {0, 8})
    world.play()
    assert len(world.happened(ev.Announced)) == 1
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {world.phones[1].name}
    assert_committed(world)


@pytest.mark.parametrize("dealers", [{1}, {1, 2, 3}])
@pytest.mark.parametrize("honest", [False, True])
def test_what_is_altered_between_two_honest_devices_opens_nothing_and_accuses_nobody(
    dealers: set[int], honest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the coordinator, which passes the complaint on; or behind its back: then it takes no complaint of a row that
    it did not deliver."""
    if not honest:
        monkeypatch.setattr(validation, "complained", lambda *given: None)
    world = World(8, secure={"quiet_s": 5, "attempts": 1})
    victim = world.phones[VICTIM]
    genuine = world.requests.answer

    def altered(device: str, round: int, attempt: int, stage: Any) -> bytes | None:
        body = genuine(device, round, attempt, stage)
        if body is None or stage != "share" or device != victim.name:
            return body
        found = Bundle.parse(body, 8)
        rows = tuple((of, bytes(82) if of in dealers else sealed, digests) for of, sealed, digests in found.rows)
        return replace(found, rows=rows).encoded

    world.requests.answer = altered  # type: ignore[method-assign]
    world.play(lambda w: w.state.phase in ("agreeing", "selecting") and w.state.round_number >= 1 and w.at > 1010)
    assert opened(world) == set()
    assert world.happened(ev.Faulted) == []
    if honest:
        assert world.happened(ev.Complained) == []
        assert any("than were delivered to it" in refusal for refusal in victim.refusals)
    else:
        for dealer in dealers:
            assert any("altered on the way" in refusal for refusal in world.phones[dealer].refusals)


@on_day(2, of=3)
def test_a_hundred_rows_of_one_dealer_altered_on_the_way_open_nothing_and_accuse_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the coordinator's back: it takes the complaints, and the dealer refuses the attempt."""
    monkeypatch.setattr(validation, "complained", lambda *given: None)
    n = 104
    world = World(n, secure={"quiet_s": 5, "attempts": 1}, aggregation={"weight_cap": 2000})
    holders = {phone.name for phone in world.phones[4:104]}
    genuine = world.requests.answer

    def altered(device: str, round: int, attempt: int, stage: Any) -> bytes | None:
        body = genuine(device, round, attempt, stage)
        if body is None or stage != "share" or device not in holders:
            return body
        found = Bundle.parse(body, n)
        rows = tuple((of, sealed, bytes(64) if of == LIAR else digests) for of, sealed, digests in found.rows)
        return replace(found, rows=rows).encoded

    world.requests.answer = altered  # type: ignore[method-assign]
    world.play(lambda w: bool(w.reasons) or w.state.phase == "agreeing")
    assert {event.device for event in world.happened(ev.Complained)} == holders
    assert opened(world) == set()
    assert any("altered on the way" in refusal for refusal in world.phones[LIAR].refusals)
    assert world.happened(ev.Faulted) == []
    assert world.happened(ev.Signed) == []
    assert world.state.barred == {}


def with_complaint(fields: dict[str, Any]) -> validation.DealtShares:
    coordinator = dealt()
    fields["coordinator"] = coordinator
    return validation.DealtShares(coordinator.cohort.h, coordinator.bundles.values())


def test_a_complaint_is_of_rows_that_were_delivered() -> None:
    found: dict[str, Any] = {}
    shares = with_complaint(found)
    coordinator = found["coordinator"]
    cohort = coordinator.cohort
    good = false_complaint(coordinator, 0, 2, 3)
    validation.complained(cohort, 0, good.body, good.signature, shares)
    with pytest.raises(validation.SecaggError, match="does not stand under"):
        validation.complained(cohort, 1, good.body, good.signature, shares)
    elsewhere = false_complaint(coordinator, 0, 2, of=1)
    with pytest.raises(validation.Faulty, match="another device's place"):
        validation.complained(cohort, 0, elsewhere.body, elsewhere.signature, shares)
    rows = Complaint.parse(good.body, 6).rows
    other = Complaint(0, ((2, rows[1][1]),)).encoded
    signature = signed(coordinator.members[0].device.signer, cohort.h, "complain", other)
    with pytest.raises(validation.SecaggError, match="than were delivered to it") as caught:
        validation.complained(cohort, 0, other, signature, shares)
    assert not isinstance(caught.value, validation.Faulty)


def test_an_opened_pair_is_of_a_complaint_and_is_the_one_that_was_dealt() -> None:
    found: dict[str, Any] = {}
    shares = with_complaint(found)
    coordinator = found["coordinator"]
    cohort, members = coordinator.cohort, coordinator.members
    for place in (0, 1):
        members[place].tell(coordinator.delivery(place))
    pair = members[0].live(coordinator.header).held[3]

    def judged(opened_: OpenedPairs, holders: set[int]) -> None:
        body = opened_.encoded
        signature = signed(members[3].device.signer, cohort.h, "open", body)
        validation.pairs_opened(cohort, 3, body, signature, holders, shares)

    judged(OpenedPairs(3, {0: pair}), {0, 1})
    for wrong_, words in (
        (OpenedPairs(3, {1: pair}), "not those whose digests it signed"),
        (OpenedPairs(3, {0: SharePair(pair.mask_key, pair.self_mask)}), "not those whose digests it signed"),
        (OpenedPairs(3, {2: pair}), "of which nobody has complained"),
        (OpenedPairs(2, {0: pair}), "another device's place"),
    ):
        with pytest.raises(validation.Faulty, match=words):
            judged(wrong_, {0, 1})


@pytest.mark.slow
@pytest.mark.parametrize("answer", taking_turns(nothing, right))
@pytest.mark.parametrize("part", taking_turns(*range(PARTS)))
@pytest.mark.parametrize("forgetful", [False, True])
def test_a_crash_anywhere_between_complaint_and_list_changes_no_bit(answer: Any, part: int, forgetful: bool) -> None:
    def world(crash: int | None = None) -> World:
        made = World(8, secure={"quiet_s": 5})
        deals_garbage_to(made.phones[LIAR], {VICTIM}, answer)
        made.phones[VICTIM].forgetful = made.phones[0].forgetful = forgetful
        made.play(lambda w: w.state.phase == "masking")
        made.crash_at(crash)
        return made.play()

    usual = world()
    assert_committed(usual)
    passed = usual.points.passed
    for at in range(part, passed, PARTS):
        found = world(at)
        assert found.crashes == 1, f"at {at}"
        assert found.state.version == 1, found.reasons
        assert set(found.survivors()) == set(usual.survivors())
        assert (found.weights() == usual.weights()).all()
