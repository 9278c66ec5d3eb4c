"""Secure rounds over HTTP: whole rounds of real devices, what is refused at each route, and what a repetition gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE, SECURE_HEADER, SecureSigned, Stage
from client_sdk.secagg.actions import Transmit
from coordinator.verify import verify
from tests.coordinator.served import RUN, STAGES, Phone, Served
from tests.coordinator.service.wire import kind

pytestmark = pytest.mark.whole


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def counted(world: Served, round: int = 1) -> list[int]:
    return sorted(world.index(row.device) for row in world.store.contributions(RUN, round))


def test_a_strict_round_of_six_is_summed(world: Served) -> None:
    world.secure_run()
    world.begin()
    world.play()
    view = world.coordinator.operators.run(RUN)
    assert (view.status, view.version) == ("finished", 1)
    assert counted(world) == list(range(6))
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(range(6)), atol=1e-3)
    assert all(phone.through and not phone.refused for phone in world.phones)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_device_that_vanishes_costs_no_round(world: Served, stage: Stage) -> None:
    world.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    world.phones[2].stops = stage
    world.begin()
    world.play_to_end()
    left = [0, 1, 3, 4, 5]
    there = left if stage in ("advertise", "share", "mask") else list(range(6))
    assert counted(world) == there
    assert np.allclose(world.checkpoint(RUN)["w"], world.sum_of(there), atol=1e-3)


def test_no_blob_of_the_round_is_left(world: Served) -> None:
    world.secure_run()
    world.begin()
    world.play(lambda: world.state.phase == "unmasking")
    under_way = set(world.state.secure.blobs)
    assert under_way <= set(world.stored())
    world.play()
    assert not under_way & set(world.stored())
    line = {row.digest for row in world.store.checkpoints(RUN)}
    pool = world.store.round(RUN, 1).body["pool"]
    assert set(world.stored()) == line | {pool}


# ------------------------------------------------------------ the same again


def again_over_the_wire(world: Served) -> list[tuple[str, int, str]]:
    """Plays a round in which every message is sent twice, the second time with a fresh signature of the request. What
    the second one was answered."""
    found = []
    tell = world.tell

    def twice(phone: Phone, message: Transmit, **changes: Any) -> Any:
        first = tell(phone, message, **changes)
        second = tell(phone, message, **changes)
        found.append((message.stage, second.status_code, kind(second)))
        return first

    world.tell = twice  # type: ignore[method-assign]
    world.play()
    return found


@pytest.mark.slow
def test_the_same_message_again_is_acknowledged_again_and_counts_once(world: Served) -> None:
    world.secure_run()
    world.begin()
    again = again_over_the_wire(world)
    assert len(again) == 5 * 6
    assert {(status, of) for stage, status, of in again} == {(200, "")}
    assert counted(world) == list(range(6))
    events = [row.kind for row in world.store.events(RUN, 0)]
    for name in ("Advertised", "Shared", "Masked", "Signed", "Revealed"):
        assert events.count(name) == 6, name


@pytest.mark.parametrize("stage", STAGES)
def test_repro_other_bytes_under_the_signature_of_what_counts_are_refused(world: Served, stage: Stage) -> None:
    """Of a list only the signature is stored: other bytes beside it were acknowledged as the same message."""
    world.secure_run()
    world.begin()
    tell, seen = world.tell, list[tuple[int, str]]()

    def again(phone: Phone, message: Transmit, **changes: Any) -> Any:
        first = tell(phone, message, **changes)
        if message.stage == stage and phone.number == 2 and not changes:
            body = message.blob if stage == "mask" else message.body
            answer = tell(phone, message, body=body[:-1] + bytes([body[-1] ^ 1]))
            seen.append((answer.status_code, kind(answer)))
        return first

    world.tell = again  # type: ignore[method-assign]
    world.play()
    assert seen == [(409, "duplicate")]
    assert counted(world) == list(range(6))


def test_a_vector_that_counts_is_acknowledged_again_without_being_read(
    world: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device may send its 3 MB for as long as the round lasts: they were written and hashed each time."""
    world.secure_run()
    world.begin()
    blobs, tell = world.coordinator.core.blobs, world.tell
    spooled, seen = list[Any](), list[tuple[str, int, str]]()
    spool = blobs.spool

    def counting(*limits: int) -> Any:
        spooled.append(limits)
        return spool(*limits)

    monkeypatch.setattr(blobs, "spool", counting)

    def again(phone: Phone, message: Transmit, **changes: Any) -> Any:
        first = tell(phone, message, **changes)
        if message.stage == "mask" and not changes:
            before = len(spooled)
            for change in ({}, {"body": message.blob[:-1] + b"x"}, {"body": b""}, {"body": bytes(1_000_000)}):
                answer = tell(phone, message, **change)
                seen.append((answer.text, answer.status_code, kind(answer)))
            assert len(spooled) == before, "a vector was read"
            assert seen[-4][0] == first.text
        return first

    world.tell = again  # type: ignore[method-assign]
    world.play()
    assert [(status, why) for _, status, why in seen] == 6 * [(200, ""), *3 * [(409, "duplicate")]]
    assert counted(world) == list(range(6))


def test_an_answer_can_be_asked_for_again(world: Served) -> None:
    world.secure_run()
    world.begin()
    world.play(lambda: world.state.phase == "sharing")
    phone = world.phones[3]
    first, second = world.answer(phone, "advertise"), world.answer(phone, "advertise")
    assert first.status_code == second.status_code == 200
    assert first.headers["content-type"] == OCTETS_MEDIA_TYPE
    assert first.content == second.content
    assert world.header(phone).content == world.header(phone).content


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_other_bytes_are_refused_and_cost_the_device_nothing(world: Served, stage: Stage) -> None:
    """A request of the device's own key with another body: what a proxy with its TLS key could not make, and a bug of
    the device could."""
    world.secure_run()
    world.begin()
    seen: list[tuple[int, str]] = []
    tell = world.tell

    def spoil(phone: Phone, message: Transmit, **changes: Any) -> Any:
        if message.stage == stage and phone.number == 2 and not changes and not seen:
            body = message.blob if stage == "mask" else message.body
            answer = tell(phone, message, body=body[:-1] + bytes([body[-1] ^ 1]))
            seen.append((answer.status_code, kind(answer)))
        return tell(phone, message, **changes)

    world.tell = spoil  # type: ignore[method-assign]
    world.play()
    assert seen == [(422, "invalid-update")]
    assert counted(world) == list(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_an_altered_header_is_refused_and_costs_the_device_nothing(world: Served, stage: Stage) -> None:
    """The signature of the request does not cover Quorate-Secure: what stands in it is a signature itself, of the
    message, or is covered by that one."""
    world.secure_run()
    world.begin()
    seen: list[str] = []
    tell = world.tell

    def spoil(phone: Phone, message: Transmit, **changes: Any) -> Any:
        if message.stage == stage and phone.number == 2 and not changes and not seen:
            said = said_of(message)
            flipped = {"signature": flip(said.signature)}
            others: list[dict[str, str]] = [flipped, {"signature": ""}]
            others += [{"body": flip(said.body)}, {"body": ""}] if said.body else []
            others += [{"certificate": flip(said.certificate)}, {"certificate": ""}] if said.certificate else []
            for change in others:
                answer = tell(phone, message, beside=said.changed(**change))
                assert answer.status_code == 422, answer.text
                seen.append(kind(answer))
        return tell(phone, message, **changes)

    world.tell = spoil  # type: ignore[method-assign]
    world.play()
    assert seen
    assert set(seen) == {"invalid-update"}
    assert counted(world) == list(range(6))


def flip(text: str) -> str:
    return text[:-2] + f"{int(text[-2:], 16) ^ 1:02x}"


def said_of(message: Transmit) -> SecureSigned:
    return SecureSigned(
        signature=message.signature.hex(),
        certificate=message.blob.hex() if message.stage == "advertise" else "",
        body=message.body.hex() if message.stage == "mask" else "",
    )


def test_a_message_without_its_header_is_refused(world: Served) -> None:
    world.secure_run()
    world.begin()
    where = {"stage": "advertise", "body": b"x"}
    answer = world.ask(world.phones[0], "PUT", Route.SECURE_MESSAGE, **where)
    assert (answer.status_code, kind(answer)) == (422, "invalid-request")
    assert SECURE_HEADER in answer.json()["detail"]


# ------------------------------------------------------------ bounds


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_longer_body_is_refused_before_it_is_read(world: Served, stage: Stage) -> None:
    world.secure_run()
    world.begin()
    seen: list[tuple[str, int, int]] = []
    tell = world.tell

    def longer(phone: Phone, message: Transmit, **changes: Any) -> Any:
        if message.stage == stage and phone.number == 2 and not seen:
            limit = world.coordinator.secure.of(RUN).requests.limit(world.rows[2].device, 1, 0, stage)
            body = message.blob if stage == "mask" else message.body
            assert len(body) <= limit
            if stage == "mask":
                assert len(body) == limit
            answer = tell(phone, message, body=bytes(limit + 1))
            seen.append((kind(answer), limit, len(body)))
        return tell(phone, message, **changes)

    world.tell = longer  # type: ignore[method-assign]
    world.play()
    assert [refusal for refusal, _, _ in seen] == ["too-large"]
    assert seen[0][1] <= 2 * seen[0][2] + 1024, "a bound that bounds"
    assert counted(world) == list(range(6))


def test_no_vector_is_read_that_does_not_count_and_a_late_one_is_recorded_once(world: Served) -> None:
    """Each of these bodies is longer than any that is read: it is refused for what it is, not for its length."""
    world.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    late, masked = world.phones[2], world.phones[3]
    late.stops = "mask"
    heard: dict[int, Transmit] = {}
    tell = world.tell

    def keep(phone: Phone, message: Transmit, **changes: Any) -> Any:
        if message.stage == "mask":
            heard[phone.number] = message
        return tell(phone, message, **changes)

    world.tell = keep  # type: ignore[method-assign]
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    world.play()
    world.pass_time(21)
    assert world.state.phase == "agreeing"
    assert late.member.outgoing is not None
    for number in range(3):
        other = replace(heard[masked.number], signature=bytes([number]) * 64)
        assert kind(tell(masked, other, body=bytes(100_000))) == "duplicate"
        mine = replace(late.member.outgoing, signature=bytes([number]) * 64)
        assert kind(tell(late, mine, body=bytes(100_000))) == "late"
    assert tell(masked, heard[masked.number]).status_code == 200
    world.play_to_end()
    for _ in range(2):
        assert kind(tell(late, late.member.outgoing)) == "late"
        assert kind(tell(masked, heard[masked.number])) == "late"
    (row,) = world.store.refusals(RUN, 1)
    assert (row.device, row.kind, row.digest) == (world.rows[2].device, "late", None)
    assert "masking" in row.reason
    funnel = world.coordinator.operators.round(RUN, 1).funnel
    assert (funnel.selected, funnel.reported, funnel.late, funnel.dropped) == (6, 5, 1, 0)


def test_no_body_of_a_device_outside_the_round_is_read(world: Served) -> None:
    world.secure_run(cohort={"select": 5, "goal": 5, "quorum": 0.6, "select_s": 10, "collect_s": 60, "pool": 6})
    world.begin()
    (outside,) = [phone for phone in world.phones if world.rows[phone.number].device not in world.state.current.members]
    said = SecureSigned(signature="00" * 64)
    for stage in STAGES:
        answer = world.ask(outside, "PUT", Route.SECURE_MESSAGE, body=b"x", beside=said, stage=stage)
        assert kind(answer) == "not-selected", stage
        answer = world.ask(outside, "POST", Route.SECURE_ANSWER, {"hold_s": 0}, stage=stage)
        assert kind(answer) == "not-selected", stage
    assert kind(world.header(outside)) == "not-selected"
    refusal = {"spent": True, "reason": "It has signed."}
    assert kind(world.ask(outside, "POST", Route.SECURE_REFUSAL, refusal)) == "not-selected"


def test_a_plain_run_has_no_secure_round(world: Served) -> None:
    world.create(name="plain")
    said = SecureSigned(signature="00" * 64)
    phone = world.phones[0]
    asked = [
        world.ask(phone, "POST", Route.SECURE, {"hold_s": 0}, run="plain"),
        world.ask(phone, "PUT", Route.SECURE_MESSAGE, body=b"x", beside=said, stage="share", run="plain"),
        world.ask(phone, "POST", Route.SECURE_ANSWER, {"hold_s": 0}, stage="share", run="plain"),
    ]
    assert [kind(answer) for answer in asked] == ["conflict"] * 3
    assert kind(world.ask(phone, "POST", Route.SECURE, {"hold_s": 0}, run="none")) == "unknown-run"


def test_another_attempt_or_round_is_stale(world: Served) -> None:
    world.secure_run()
    world.begin()
    phone = world.phones[0]
    for where in ({"attempt": 1}, {"round": 2}):
        answer = world.ask(phone, "POST", Route.SECURE_ANSWER, {"hold_s": 0}, stage="advertise", **where)
        assert kind(answer) == "stale", where


# ------------------------------------------------------------ complaints and refusals


def test_a_device_that_is_spent_says_so_and_is_drawn_no_more(world: Served) -> None:
    world.secure_run()
    world.begin()
    message = {"spent": True, "reason": "This device has signed a survivor list on this checkpoint."}
    for _ in range(2):
        assert world.ask(world.phones[1], "POST", Route.SECURE_REFUSAL, message).status_code == 200
    assert world.state.spent == (world.rows[1].device,)
    assert [row.kind for row in world.store.events(RUN, 0)].count("Spent") == 1


def test_a_device_that_declines_for_good_is_drawn_no_more(world: Served) -> None:
    world.secure_run()
    world.begin()
    message = {"spent": False, "reason": "This device advertised 8 times on this checkpoint, the most that it does."}
    for _ in range(2):
        assert world.ask(world.phones[1], "POST", Route.SECURE_REFUSAL, message).status_code == 200
    assert world.state.declined == {world.rows[1].device: message["reason"]}
    assert [row.kind for row in world.store.events(RUN, 0)].count("Declined") == 1


def test_repro_what_is_declined_after_the_rounds_end_is_kept_while_the_model_is_the_same(world: Served) -> None:
    """The first few of a small run ended its round. The others were refused as late, and were drawn in round after
    round before the run said that it waits."""
    world.secure_run()
    world.begin()
    message = {"spent": False, "reason": "This device's owner allows whole passes only."}
    for phone in world.phones:
        answer = world.ask(phone, "POST", Route.SECURE_REFUSAL, message, round=1)
        assert answer.status_code == 200, answer.text
    assert (world.state.round_number, world.state.version) == (2, 0)
    assert world.state.declined == {row.device: message["reason"] for row in world.rows}
    assert world.ask(world.phones[0], "POST", Route.SECURE_REFUSAL, message, round=1).status_code == 200
    assert [row.kind for row in world.store.events(RUN, 0)].count("Declined") == len(world.phones)
    assert [found.what for found in verify(world.store, world.blobs)] == []


def test_repro_a_device_whose_attempt_was_given_up_is_still_in_the_round(world: Served) -> None:
    """Its masked vector was recorded as refused with the attempt, and the device was told that its part was over."""
    world.secure_run(cohort={"select": 6, "goal": 6, "quorum": 0.6, "select_s": 10, "collect_s": 60})
    for phone in world.phones[4:]:
        phone.stops = "mask"
    world.begin()
    world.play(lambda: world.state.current.attempt == 0 and world.state.phase == "masking")
    world.play()
    world.pass_time(21)
    assert world.state.current.attempt == 1, world.state
    assert {row.kind for row in world.store.refusals(RUN, 1)} == {"abandoned"}
    told = world.ask(world.phones[0], "GET", Route.OUTCOME)
    assert told.json()["result"] == "pending"
