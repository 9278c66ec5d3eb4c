"""What devices ask of the desk, out of turn, twice, too late, or without any business there."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.problems import ProblemError
from client_sdk.secagg.header import Header
from client_sdk.secagg.statement import Stage
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.secure.desk import OVER, Arrived
from tests.client_sdk.secagg.attempt import digest
from tests.coordinator.secure.world import STAGES, World


def kind_of(world: World, *given: Any) -> str:
    """With what an answer is refused."""
    with pytest.raises(ProblemError) as caught:
        world.desk.answer(*given)
    return caught.value.kind


def test_the_header_says_what_the_plan_says() -> None:
    world = World(5, secure={"q": 12, "weight_cap": 900, "cipher": "chacha20", "expires_s": 3600.5})
    world.play(lambda w: bool(w.happened(ev.Announced)))
    body = world.desk.header(world.phones[0].name, 1)
    assert body is not None
    header = Header.parse(body)
    assert (header.run, header.round, header.attempt) == ("run-1", 1, 0)
    assert (header.model.hex(), header.plan.hex()) == (world.start, world.plan.digest)
    assert (header.dimension, header.codec, header.codec_version) == (5, "float32", 1)
    assert (header.q, header.max_norm, header.max_abs, header.weight_cap) == (12, 4.0, 1.0, 900)
    assert (header.cipher, header.rule.profile, header.minimum_cohort) == ("chacha20", "strict", 3)
    assert (header.revocations, header.revocations_digest) == (2, digest("revocations"))
    assert header.expires_at == 1000 + 3601


def test_a_header_is_for_the_cohort_of_the_round() -> None:
    world = World(4)
    name = world.phones[0].name
    with pytest.raises(ProblemError) as caught:
        world.desk.header(name, 1)
    assert caught.value.kind == "conflict", "no cohort has been drawn"
    world.play(lambda w: w.state.phase == "collecting")
    assert world.desk.header(name, 1) is None
    world.play(lambda w: bool(w.happened(ev.Announced)))
    assert world.desk.header(name, 1) is not None
    for device, round_, kind in (("stranger", 1, "not-selected"), (name, 2, "stale"), (name, 0, "late")):
        with pytest.raises(ProblemError) as caught:
            world.desk.header(device, round_)
        assert caught.value.kind == kind
    world.play()
    with pytest.raises(ProblemError) as caught:
        world.desk.header(name, 1)
    assert caught.value.kind == "late"


def test_answers_come_when_their_phase_does() -> None:
    """Asked by one device at every moment, and for every message."""
    world = World(4)
    name = world.phones[0].name
    seen: dict[str, set[str]] = {}

    def ask(w: World) -> bool:
        if w.state.phase == "selecting":
            return False
        for stage in STAGES:
            try:
                told = w.desk.answer(name, 1, 0, stage)
            except ProblemError as error:
                seen.setdefault(w.state.phase, set()).add(f"{stage}: {error.kind}")
            else:
                if told is not None:
                    seen.setdefault(w.state.phase, set()).add(stage)
        return False

    world.play(ask)
    ask(world)
    late = {f"{stage}: late" for stage in STAGES[:4]}
    assert seen == {
        "sharing": {"advertise"},
        "masking": {"advertise", "share"},
        "agreeing": {"advertise", "share: late", "mask"},
        "unmasking": {"advertise", "share: late", "mask", "survivors"},
        "committing": {"advertise", "share: late"},
        "idle": {*late, "unmask"},
    }
    assert world.desk.answer(name, 1, 0, "unmask") == OVER


def test_strangers_and_older_attempts_get_no_answer() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play(lambda w: w.state.attempt == 1 and w.state.phase == "masking")
    name = world.phones[5].name
    assert world.desk.answer(name, 1, 1, "share") is not None
    assert kind_of(world, name, 1, 0, "share") == "stale"
    assert kind_of(world, "stranger", 1, 1, "share") == "not-selected"
    assert kind_of(world, world.phones[0].name, 1, 1, "advertise") == "withdrawn"
    assert kind_of(world, name, 2, 0, "advertise") == "stale"


def test_a_delivery_is_for_its_receiver() -> None:
    world = World(5)
    world.play(lambda w: w.state.phase == "masking")
    bodies = [world.desk.answer(phone.name, 1, 0, "share") for phone in world.phones]
    assert len(set(bodies)) == 5
    assert bodies == [world.desk.answer(phone.name, 1, 0, "share") for phone in world.phones]


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_again_is_taken_again(stage: Stage) -> None:
    world = World(4)
    phone = world.phones[1]
    count = []

    def twice(said: Any, w: World) -> Any:
        phone.bend = None
        w.hear(phone, said)
        before, blobs = w.state, set(w.blobs.digests())
        w.hear(phone, said)
        assert w.state is before
        assert set(w.blobs.digests()) == blobs
        count.append(said.stage)
        return said

    phone.bend = lambda said, w: twice(said, w) if said.stage == stage else said
    world.play()
    assert count == [stage]
    assert len(world.survivors()) == 4


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_message_before_its_time_is_refused_and_not_kept(stage: Stage) -> None:
    world = World(4)
    world.play(lambda w: bool(w.happened(ev.Announced)))
    before, blobs = world.state, set(world.blobs.digests())
    arrived = Arrived(
        device=world.phones[0].name, round=1, attempt=0, stage=stage, body=b"anything", signature=bytes(64)
    )
    with world.blobs.spool() as spool:
        spool.write(b"anything")
        arrived = replace(arrived, vector=spool if stage == "mask" else None)
        with pytest.raises(ProblemError) as caught:
            world.desk.hear(arrived)
    assert caught.value.kind == "stale"
    assert world.state is before
    assert set(world.blobs.digests()) == blobs


def test_a_masked_input_comes_with_its_vector() -> None:
    world = World(4)
    with pytest.raises(ProblemError, match="vector"):
        world.desk.hear(Arrived(device="device-0000", round=1, attempt=0, stage="mask", body=b"", signature=bytes(64)))


def test_a_vector_that_comes_too_late_leaves_its_reason_and_no_bytes() -> None:
    world = World(5)
    slow = world.phones[4]
    held: list[Any] = []

    def hold(said: Any, w: World) -> Any:
        held.append(said)
        raise ConnectionError

    slow.bend = lambda said, w: hold(said, w) if said.stage == "mask" else said
    world.play(lambda w: _turn_until_held(w) and w.state.phase == "agreeing")
    slow.bend = None
    blobs = set(world.blobs.digests())
    with pytest.raises(ProblemError) as caught:
        world.hear(slow, held[0])
    assert caught.value.kind == "late"
    assert set(world.blobs.digests()) == blobs
    refusal = world.every(fx.RecordRefusal)[-1]
    assert (refusal.device, refusal.kind) == (slow.name, "late")
    assert refusal.digest == hashlib.sha256(held[0].blob).hexdigest()


def _turn_until_held(world: World) -> bool:
    """The slow device's request fails on the way: it stops trying."""
    slow = world.phones[4]
    if world.state.phase == "masking":
        slow.stops = None
        if slow.member.said is not None and slow.member.said.stage == "mask":
            try:
                assert slow.bend is not None
                slow.bend(slow.member.said, world)
            except ConnectionError:
                slow.gone = True
    return True


def test_who_is_revoked_after_the_roster_costs_a_restarted_coordinator_the_attempt_and_no_more() -> None:
    world = World(5, rounds_=1)
    gone = world.phones[3]
    world.play(lambda w: w.state.phase == "masking")
    world.authority.revoked.add(gone.name)
    world.reboot()
    world.play(lambda w: w.state.round > 3)
    assert any("cannot go on" in refusal for phone in world.phones for refusal in phone.refusals)
    assert world.state.version == 1
    assert gone.name not in world.survivors()
    world.assert_clean()
