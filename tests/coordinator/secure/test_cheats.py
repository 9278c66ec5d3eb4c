"""Devices that cheat, come late, or are used up: seen where it can be seen, named where a commitment allows it, and
never a silently wrong model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.masks import MaskedInput, Masker
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Survivors
from client_sdk.tensors import from_bytes
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from tests.client_sdk.secagg.attempt import entropy
from tests.coordinator.secure.test_rounds import assert_committed
from tests.coordinator.secure.world import Phone, World


def second_round(world: World) -> bool:
    """Whether the first round has ended, and all is done that it left to do."""
    return world.state.round_number == 2 and not [todo for todo in world.log.todo if isinstance(todo, fx.Discard)]


def tools(phone: Phone, **primitives: Any) -> None:
    """Replaces steps of a device."""
    device = phone.member.device
    phone.member.device = replace(device, primitives=replace(device.primitives, **primitives))


def resigned(phone: Phone, world: World, message: Transmit, body: bytes, blob: bytes | None = None) -> Transmit:
    """What a device says, changed, with its signature under it."""
    secure = world.state.secure
    assert secure is not None
    h = world.requests._attempts.of(secure, phone.name).cohort.h
    signature = signed(phone.member.device.signer, h, message.stage, body)
    return Transmit(message.stage, body, signature, message.blob if blob is None else blob)


def cheating(phone: Phone, stage: Stage, change: Callable[[Transmit, World], Transmit]) -> None:
    phone.bend = lambda message, world: change(message, world) if message.stage == stage else message


def assert_commits_without(world: World, phone: Phone, attempts: int, stage: Stage = "mask") -> None:
    """The round committed without this device and, where another attempt was needed, under new keys. It was: when two
    more vanished in this stage."""
    vanished = {phone.name}
    if attempts == 2:
        for each in world.phones[-2:]:
            each.stops = stage
            vanished.add(each.name)
    world.play()
    assert len(world.happened(ev.Announced)) == attempts
    assert (phone.name in world.happened(ev.Rostered)[-1].groups[0].order) == (attempts == 1 and stage != "advertise")
    assert set(world.survivors()) == {each.name for each in world.phones} - vanished
    assert_committed(world)


# ------------------------------------------------------------ shares that do not open


def test_a_dealer_of_whom_several_complain_is_left_out() -> None:
    world = World(5)
    cheat = world.phones[1]
    tools(cheat, seal=lambda *given: entropy(given[2:4])(SEALED_BYTES))
    world.play()
    complaints = world.happened(ev.Complained)
    assert {event.dealers for event in complaints} == {(cheat.name,)}
    assert len(complaints) >= 2
    assert len(world.happened(ev.Announced)) == 2
    assert set(world.survivors()) == {each.name for each in world.phones} - {cheat.name}
    assert_committed(world)


def test_where_one_complains_of_one_the_round_goes_on_without_the_dealer_alone() -> None:
    """What it dealt opens for nobody, so it has no answer."""
    world = World(8)
    dealer, victim = world.phones[1], world.phones[4]
    honest = dealer.member.device.primitives.seal

    def seal(agreed: bytes, h: bytes, of: tuple[int, str], to: tuple[int, str], pair: Any) -> bytes:
        sealed = honest(agreed, h, of, to, pair)
        return bytes(SEALED_BYTES) if to[1] == victim.name else sealed

    tools(dealer, seal=seal)
    world.play()
    assert [(event.device, event.dealers) for event in world.happened(ev.Complained)] == [(victim.name, (dealer.name,))]
    assert len(world.happened(ev.Announced)) == 1
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {dealer.name}
    assert_committed(world)


def test_a_device_complains_of_all_at_once() -> None:
    """What two dealers sealed for one device does not open: it names both, and masks without them."""
    world = World(12, cohort={"quorum": 0.4})
    dealers, victim = world.phones[1:3], world.phones[4]
    for dealer in dealers:
        honest = dealer.member.device.primitives.seal

        def seal(
            agreed: bytes, h: bytes, of: tuple[int, str], to: tuple[int, str], pair: Any, was: Any = honest
        ) -> Any:
            sealed = was(agreed, h, of, to, pair)
            return bytes(SEALED_BYTES) if to[1] == victim.name else sealed

        tools(dealer, seal=seal)
    world.play()
    assert [event.dealers for event in world.happened(ev.Complained)] == [tuple(dealer.name for dealer in dealers)]
    assert len(world.happened(ev.Announced)) == 1
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {dealer.name for dealer in dealers}
    assert_committed(world)


# ------------------------------------------------------------ messages that no honest device signs


def longer(message: Transmit, world: World, phone: Phone) -> Transmit:
    blob = message.blob + b"\0"
    body = replace(MaskedInput.parse(message.body), digest=hashlib.sha256(blob).digest()).encoded
    return resigned(phone, world, message, body, blob)


@pytest.mark.parametrize(("n", "attempts"), [(5, 1), (7, 2)])
def test_a_vector_of_another_length_is_its_devices_fault(n: int, attempts: int) -> None:
    world = World(n)
    cheat = world.phones[2]
    cheating(cheat, "mask", lambda message, w: longer(message, w, cheat))
    assert_commits_without(world, cheat, attempts)
    assert "bytes, not" in world.happened(ev.Faulted)[0].reason
    assert any("invalid-update" in refusal for refusal in cheat.refusals)


@pytest.mark.parametrize(("n", "attempts"), [(5, 1), (7, 2)])
def test_shares_for_too_few_are_their_dealers_fault(n: int, attempts: int) -> None:
    world = World(n)
    cheat = world.phones[2]

    def fewer(message: Transmit, w: World) -> Transmit:
        bundle = Bundle.parse(message.body, n)
        return resigned(cheat, w, message, replace(bundle, rows=bundle.rows[1:]).encoded)

    cheating(cheat, "share", fewer)
    assert_commits_without(world, cheat, attempts, "share")
    assert "holders" in world.happened(ev.Faulted)[0].reason


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "survivors", "unmask"])
def test_a_wrong_signature_is_nobodys_fault(stage: Stage) -> None:
    """From any sender, it is refused, and the device's own message is still accepted."""
    world = World(4)
    phone = world.phones[0]
    forged: list[Transmit] = []

    def forge(message: Transmit, w: World) -> Transmit:
        if forged:
            return message
        forged.append(message)
        with pytest.raises(ProblemError, match="signature"):
            w.hear(phone, replace(message, signature=bytes(64)))
        return message

    cheating(phone, stage, forge)
    world.play()
    assert len(forged) == 1
    assert world.happened(ev.Faulted) == []
    assert len(world.happened(ev.Announced)) == 1
    assert len(world.survivors()) == 4
    assert_committed(world)


def test_the_first_vector_of_a_device_counts() -> None:
    world = World(4)
    phone = world.phones[0]
    refused: list[str] = []

    def twice(message: Transmit, w: World) -> Transmit:
        blob = bytes(len(message.blob))
        body = replace(MaskedInput.parse(message.body), digest=hashlib.sha256(blob).digest()).encoded
        other = resigned(phone, w, message, body, blob)
        phone.bend = None
        w.hear(phone, message)
        before = w.state
        with pytest.raises(ProblemError, match="first") as caught:
            w.hear(phone, other)
        refused.append(caught.value.kind)
        assert w.state is before
        assert hashlib.sha256(blob + other.signature).hexdigest() not in w.ever
        return message

    cheating(phone, "mask", twice)
    world.play()
    assert refused == ["duplicate"]
    assert not world.every(fx.RecordRefusal), "a device cannot write rows without end"
    assert len(world.survivors()) == 4
    assert_committed(world)


def test_no_device_names_anothers_file_as_its_own() -> None:
    """One that sends the bytes of another's vector has them kept under another name: what is deleted with one round
    belongs to nobody else."""
    world = World(5)
    first, copycat = world.phones[0], world.phones[1]

    def copy(message: Transmit, w: World) -> Transmit:
        blob = next(each.blob for each in first.member.log if each.stage == "mask")
        body = replace(MaskedInput.parse(message.body), digest=hashlib.sha256(blob).digest()).encoded
        return resigned(copycat, w, message, body, blob)

    cheating(copycat, "mask", copy)
    world.play(lambda w: w.state.phase == "agreeing")
    secure = world.state.secure
    assert secure is not None
    assert len(set(secure.masked.values())) == 5
    bodies = [world.ever[secure.masked[phone.name]][:-64] for phone in (first, copycat)]
    assert bodies[0] == bodies[1]


def test_who_would_spoil_the_roster_is_left_out() -> None:
    world = World(5)
    cheat = world.phones[3]
    original = cheat.member.device.entropy
    stolen = entropy(("secrets", 0))  # device 0 draws the same
    cheat.member.device = replace(cheat.member.device, entropy=stolen)
    world.play(lambda w: bool(w.happened(ev.Faulted)))
    cheat.member.device = replace(cheat.member.device, entropy=original)
    world.play()
    faulted = {event.device for event in world.happened(ev.Faulted)}
    assert faulted == {world.phones[0].name, cheat.name}, "nobody can tell who copied whom"
    assert set(world.survivors()) == {each.name for each in world.phones} - faulted
    assert_committed(world)


def test_who_was_revoked_meanwhile_is_left_out() -> None:
    world = World(5)
    gone = world.phones[3]
    world.play(lambda w: gone.name in (w.state.secure.advertised if w.state.secure else ()))
    world.authority.revoked.add(gone.name)
    assert_commits_without(world, gone, 1, "advertise")
    assert "vouch" in world.happened(ev.Faulted)[0].reason


# ------------------------------------------------------------ exchange 5


def garbage(secret: bytes, holders: Any, threshold: int, draw: Any) -> list[bytes]:
    return [entropy(("garbage", x))(32).rjust(SHARE_BYTES, b"\0") for x in holders]


def test_a_dealer_that_cannot_be_rebuilt_is_named_and_barred() -> None:
    """It opens for its holders, and is no share of what the dealer committed to."""
    world = World(5)
    cheat = world.phones[1]
    tools(cheat, split=garbage)
    world.play(second_round)
    assert world.state.version == 0
    assert set(world.state.barred) == {cheat.name}
    assert cheat.name in world.reasons[0]
    assert world.happened(ev.OpeningFailed)[-1].lost == (cheat.name,)
    assert len(world.state.spent) == 5
    world.assert_clean()
    world.play(lambda w: w.state.round_number == 4)
    assert world.state.version == 0, "all are spent"


def test_a_dealer_that_shared_another_key_than_it_showed_is_named_and_barred() -> None:
    """The shares agree with each other, and not with the key that peers masked with."""
    world = World(5)
    cheat = world.phones[1]
    honest = cheat.member.device.primitives.split

    def other(secret: bytes, *given: Any) -> list[bytes]:
        return honest(hashlib.sha256(secret).digest(), *given)

    tools(cheat, split=other)
    cheat.stops = "mask"
    world.play(second_round)
    assert set(world.state.barred) == {cheat.name}
    assert world.state.version == 0


# ------------------------------------------------------------ inside the lanes


class Spoiling(Masker):
    """A device that changes its lanes before it masks them."""

    change: Callable[[Any], None]

    def apply(self, vector: Any, *given: Any) -> None:
        change, self.change = self.change, lambda lanes: None
        change(vector)
        super().apply(vector, *given)


def spoil(phone: Phone, world: World, lane: int, to: Callable[[int, int], int]) -> None:
    """Makes one lane of the sum what ``to`` says, given what it would be and the lanes' bits."""

    def masker(bits: int, *more: Any) -> Spoiling:
        header = world.header()
        total = sum(int(world.lanes_of(each.name, header, bits)[lane]) for each in world.phones)

        def change(vector: Any) -> None:
            vector[lane] += np.array(to(total, bits) - total, np.int64).astype(vector.dtype)

        made = Spoiling(bits, *more)
        made.change = change
        return made

    tools(phone, masker=masker)


@pytest.mark.parametrize(
    ("lane", "to", "match"),
    [
        pytest.param(0, lambda total, bits: (1 << bits) - 1, "more than the survivors", id="out of range"),
        pytest.param(-2, lambda total, bits: 5 * 1000 + 1, "weights", id="over-weight"),
        pytest.param(-1, lambda total, bits: total + 1, "canary", id="wrong canary"),
        pytest.param(-1, lambda total, bits: total - 1, "canary", id="no canary"),
    ],
)
def test_an_impossible_sum_is_refused_and_no_device_is_at_fault(
    lane: int, to: Callable[[int, int], int], match: str
) -> None:
    world = World(5)
    spoil(world.phones[2], world, lane, to)
    world.play(second_round)
    assert world.state.version == 0
    assert match in world.reasons[0]
    assert world.state.barred == {}
    assert world.happened(ev.OpeningFailed)[-1].lost == ()
    assert world.happened(ev.Opened) == []
    world.assert_clean()


def test_masks_that_do_not_cancel_show_in_the_canary() -> None:
    """A device masks with seeds of its own."""
    world = World(5)

    class Own(Masker):
        def apply(self, vector: Any, seed: bytes, *given: Any) -> None:
            super().apply(vector, hashlib.sha256(seed).digest(), *given)

    tools(world.phones[0], masker=Own)
    world.play(second_round)
    assert world.state.version == 0
    assert "canary" in world.reasons[0]


# ------------------------------------------------------------ retries, late devices


def test_a_fresh_attempt_goes_without_the_silent() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play()
    assert len(world.happened(ev.Announced)) == 2
    assert world.happened(ev.Rostered)[-1].groups[0].order == tuple(phone.name for phone in world.phones[3:])
    assert_committed(world)
    first, second = (event.header for event in world.happened(ev.Announced))
    assert first != second


def test_no_key_of_an_attempt_serves_in_another() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play()
    shown = [event.digest for event in world.happened(ev.Advertised)]
    assert len(set(shown)) == len(shown) == 11
    bodies = [world.ever[digest] for digest in shown]
    for phone in world.phones[3:]:
        keys = {
            body[body.index(phone.name.encode()) + len(phone.name) :][:64]
            for body in bodies
            if phone.name.encode() in body
        }
        assert len(keys) == 2


def test_a_device_that_came_too_late_joins_the_next_attempt() -> None:
    world = World(7, cohort={"collect_s": 30})
    late = world.phones[6]
    late.late_s = 45.0
    for phone in world.phones[:3]:
        phone.stops = "share"
    world.play()
    first, second = world.happened(ev.Rostered)
    assert late.name not in first.groups[0].order
    assert late.name in second.groups[0].order
    assert late.name in world.survivors()
    assert_committed(world)


def test_a_message_of_an_older_attempt_is_stale() -> None:
    world = World(7)
    for phone in world.phones[:3]:
        phone.stops = "share"
    old: list[tuple[Any, Transmit]] = []

    def remember(message: Transmit, w: World) -> Transmit:
        old.append((world.phones[4].head, message))
        return message

    phone = world.phones[4]
    phone.bend = remember
    world.play(lambda w: w.state.current.attempt == 1)
    phone.bend = None
    phone.head, message = old[-1]
    before = world.state
    with pytest.raises(ProblemError, match="attempt") as caught:
        world.hear(phone, message)
    assert caught.value.kind in ("stale", "late")
    assert world.state is before
    phone.restart()
    world.play()
    assert_committed(world)


def test_a_round_has_so_many_attempts_and_is_then_abandoned() -> None:
    """Four vanish before they share and three of the other five before they mask; nobody is spent."""
    world = World(9, secure={"attempts": 2}, cohort={"quorum": 0.3})
    for phone in world.phones[:4]:
        phone.stops = "share"
    for phone in world.phones[4:7]:
        phone.stops = "mask"
    world.play(second_round)
    assert len(world.happened(ev.Announced)) == 2
    assert "secure.attempts = 2" in world.reasons[0]
    assert world.state.version == 0
    assert world.state.spent == ()
    world.assert_clean()


# ------------------------------------------------------------ used up


def exhausted() -> World:
    """All four sign, and two vanish before they reveal: t is 3."""
    world = World(4, rounds_=2)
    for phone in world.phones[:2]:
        phone.stops = "unmask"
    world.play(lambda w: w.state.round_number == 2 and w.state.phase == "selecting")
    assert len(world.state.spent) == 4
    for phone in world.phones:
        phone.gone, phone.stops = False, None
        phone.restart()
    world.play(lambda w: bool(w.state.exhausted))
    return world


def test_an_exhausted_run_says_so() -> None:
    world = exhausted()
    assert world.state.version == 0
    assert "exhausted" in world.state.exhausted
    assert (world.state.version, world.state.current.missed, world.state.waits) == (0, 1, True)


def test_the_owner_lets_an_exhausted_run_go_on() -> None:
    world = exhausted()
    world.play(lambda w: w.state.phase == "selecting" and bool(w.state.exhausted))
    world.log.submit(lambda state, at: ev.Advanced(at=at, round=state.round_number, by="the owner"))
    world.play(lambda w: w.state.version == 1)
    row = world.every(fx.RecordCheckpoint)[0]
    assert row.contributions == ()
    assert row.origin
    moved = from_bytes(world.blobs.open(row.digest).read())["w"].astype(np.float64) - world.model["w"]
    assert sorted(moved)[:-1] == [0.0] * (moved.size - 1)
    assert 0 < max(moved) < 1e-6
    assert world.state.exhausted == ""
    assert world.state.spent == ()
    world.play()
    assert world.state.version == 2
    assert len(world.survivors(2)) == 4
    world.assert_clean()


def test_devices_whose_signatures_were_lost_say_that_they_are_spent() -> None:
    """All sign, nothing arrives: the coordinator knows of nobody that is spent, and would ask the same devices for
    ever, with no way out."""
    world = World(4, rounds_=1)
    received = world.hear
    world.hear = lambda phone, message: None if message.stage == "survivors" else received(phone, message)  # type: ignore[method-assign]
    world.play(lambda w: w.state.round_number == 2 and w.state.phase == "selecting")
    assert world.state.spent == ()
    assert all(phone.member.memory.spent for phone in world.phones)
    world.hear = received  # type: ignore[method-assign]
    world.play(lambda w: bool(w.state.exhausted), 500)
    messages = [event.device for event in world.happened(ev.Spent)]
    assert tuple(messages) == world.state.spent
    assert len(messages) >= 2, "of four three are needed"
    world.play(lambda w: w.state.phase == "selecting" and bool(w.state.exhausted))
    world.log.submit(lambda state, at: ev.Advanced(at=at, round=state.round_number, by="the owner"))
    world.play()
    assert world.state.version == 1
    assert world.state.spent == ()
    world.assert_clean()


def test_a_round_goes_on_without_a_device_that_says_it_is_spent() -> None:
    """Its signature was lost, and the others vanished before they were shown the list."""
    world = World(6, rounds_=1, cohort={"quorum": 0.6})
    received = world.hear
    world.hear = lambda phone, message: None if message.stage == "survivors" else received(phone, message)  # type: ignore[method-assign]
    world.play(lambda w: w.state.phase == "agreeing")
    for phone in world.phones[1:]:
        phone.gone = True
    world.play(lambda w: w.state.round_number == 2 and w.state.phase == "selecting")
    assert [bool(phone.member.memory.spent) for phone in world.phones] == [True] + [False] * 5
    world.hear = received  # type: ignore[method-assign]
    for phone in world.phones[1:]:
        phone.gone = False
        phone.restart()
    world.play()
    assert world.state.version == 1
    assert world.survivors() == [phone.name for phone in world.phones[1:]]
    assert [event.device for event in world.happened(ev.Spent)] == [world.phones[0].name]
    world.assert_clean()


def test_a_crash_anywhere_in_an_advance_changes_no_bit() -> None:
    def advanced(crash: int | None) -> World:
        world = exhausted()
        world.play(lambda w: w.state.phase == "selecting" and bool(w.state.exhausted))
        world.log.submit(lambda state, at: ev.Advanced(at=at, round=state.round_number, by="the owner"))
        world.crash_at(crash)
        return world.play(lambda w: w.state.version == 1)

    undisturbed = advanced(None)
    for at in range(undisturbed.points.passed):
        again = advanced(at)
        assert again.crashes == 1
        assert again.state.checkpoint == undisturbed.state.checkpoint


def test_survivors_are_shown_in_one_order() -> None:
    world = World(5).play()
    for phone in world.phones:
        assert {message.body for message in phone.member.log if message.stage == "survivors"} == {
            Survivors(tuple(range(5))).encoded
        }
