"""Whole rounds through ``step``, with real devices: the committed model is the mean of the survivors, to the bit,
whoever vanishes and whenever the coordinator dies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import codecs
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.lanes import pack, unpack
from coordinator.blobs import FileBlobs
from coordinator.engine import events as ev
from coordinator.secure.blob_formats import sum_of
from tests.coordinator.secure.world import STAGES, World
from tests.rotating import taking_turns

RING: dict[str, Any] = {"profile": "fast", "drop": 3, "corrupt": 0.1, "sigma": 20, "eta": 20, "minimum_cohort": 17}
PARTS = 3
"""The places of a crash are in so many parts."""


def assert_committed(world: World) -> None:
    """One version, which is the mean by the formula out of the survivors' integer sum; nothing is left behind."""
    assert world.state.version == 1, world.reasons
    total = next(body for digest, body in world.ever.items() if digest == world.happened(ev.Opened)[-1].digest)
    header = world.header()
    wanted = world.integer_sum()
    found = unpack(sum_of(total), header.lanes, header.lane_bits(world.roster_size()))
    assert np.array_equal(found, wanted)
    assert np.array_equal(world.weights(), world.expected_weights())
    world.assert_clean()


@pytest.mark.parametrize("n", [3, 4, 7, 12, 20])
def test_an_honest_round(n: int) -> None:
    world = World(n).play()
    assert world.survivors() == [phone.name for phone in world.phones]
    assert_committed(world)
    assert len(world.happened(ev.Announced)) == 1
    assert all(phone.refusals == [] for phone in world.phones)


def test_an_honest_round_in_a_ring() -> None:
    world = World(20, secure=RING).play()
    rostered = world.happened(ev.Rostered)[0]
    assert sorted(rostered.groups[0].ring) == list(range(20))
    assert 0 < rostered.groups[0].neighbours < 19
    assert_committed(world)


@pytest.mark.slow
@settings(max_examples=32)
@given(q=st.integers(1, 24), n=st.integers(3, 6), data=st.data())
def test_the_sum_is_exact_at_every_q(q: int, n: int, data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 1000))
    world = World(n, dimension=data.draw(st.integers(1, 12)), secure={"q": q, "weight_cap": cap})
    for phone in world.phones:
        phone.member.weight = data.draw(st.integers(1, cap))
    spare = n - (2 * n // 3 + 1)
    for phone in data.draw(st.permutations(world.phones))[: data.draw(st.integers(0, spare))]:
        phone.stops = data.draw(st.sampled_from(STAGES[2:]))
    world.play()
    assert_committed(world)


@pytest.mark.parametrize("q", range(1, 25))
def test_every_q_there_is(q: int) -> None:
    world = World(4, secure={"q": q, "weight_cap": 1000})
    world.phones[q % 4].stops = STAGES[2 + q % 3]
    world.play()
    assert_committed(world)


@pytest.mark.parametrize("codec", codecs.linear_names())
def test_a_codecs_sum_is_the_integer_sum_and_decodes_to_the_mean_of_the_deltas(codec: str) -> None:
    """Of a model of two blocks, with one device gone; at q = 4 with weights far above 15."""
    size, several = 100_000, {"q": 4, "max_abs": 0.02, "weight_cap": 1000}
    world = World(5, dimension=size, secure=several, task={"codec": codec})
    rng = np.random.default_rng(8)
    for phone in world.phones:
        delta = (rng.normal(size=size) * 0.003).astype(np.float32)
        seed = codecs.seed_for(codec, world.plan.digest, 1)
        phone.member.values, phone.member.weight = codecs.linear(codec).forward(delta, seed), 900
    world.phones[2].stops = STAGES[2]
    world.play()
    assert_committed(world)
    header = world.header()
    assert header.codec_seed == codecs.seed_for(codec, world.plan.digest, 1)
    assert header.dimension == codecs.linear(codec).count(size)
    assert header.quantizer.weight_lanes == 3
    values = np.mean([phone.member.values for phone in world.phones if phone is not world.phones[2]], axis=0)
    wanted = codecs.linear(codec).back(lambda start, count: values[start : start + count], size, header.codec_seed)
    moved = world.weights() - world.model["w"]
    errors = moved - wanted(0, size)
    step = 2 * 0.02 / 14 / 0.9
    scaled = math.sqrt(size / header.dimension) if "unbiased" in codec else 1.0
    assert math.sqrt(float((errors**2).mean())) < step / 2 / math.sqrt(4) * 1.05 * scaled
    assert np.count_nonzero(np.abs(moved) > 1e-6) <= header.dimension, "coordinates not drawn stay as they are"


def test_a_round_draws_anew() -> None:
    """A header's seed is of its own round."""
    world = World(4, dimension=70_000, rounds_=2, task={"codec": "sampled-half-rotated@1"}).play()
    first, second = (world.header(number).codec_seed for number in (1, 2))
    assert first == codecs.seed_for("rotated@1", world.plan.digest, 1)
    assert second == codecs.seed_for("rotated@1", world.plan.digest, 2) != first


def test_the_roster_is_of_the_first_and_a_reserve() -> None:
    """Of eight, six advertise first: goal and reserve. The others hear that it was made without them."""
    world = World(8, cohort={"select": 8, "goal": 5}, secure={"reserve": 1}).play()
    assert world.roster_size() == 6
    assert len(world.survivors()) == 6
    assert [bool(phone.refusals) for phone in world.phones] == [False] * 6 + [True] * 2
    assert_committed(world)


def test_several_rounds_one_after_another() -> None:
    world = World(4, rounds_=3).play()
    assert world.state.version == 3
    assert [event.round for event in world.happened(ev.Opened)] == [1, 2, 3]
    assert world.state.spent == ()
    world.assert_clean()


# ------------------------------------------------------------ who vanishes


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("n", "gone"), [(4, 1), (7, 2)])
def test_vanishing_anywhere_stops_no_round_that_has_its_threshold(n: int, gone: int, stage: Stage) -> None:
    world = World(n)
    for phone in world.phones[1 : 1 + gone]:
        phone.stops = stage
    world.play()
    assert_committed(world)
    names = [phone.name for phone in world.phones]
    vanished = names[1 : 1 + gone]
    left = set(names) if stage in ("survivors", "unmask") else set(names) - set(vanished)
    assert set(world.survivors()) == left


@pytest.mark.parametrize("stage", STAGES)
def test_vanishing_from_a_ring(stage: Stage) -> None:
    world = World(20, secure=RING)
    for phone in world.phones[4:7]:
        phone.stops = stage
    world.play()
    assert_committed(world)


@pytest.mark.slow
@settings(max_examples=20)
@given(n=st.integers(4, 9), data=st.data())
def test_devices_vanish_at_different_exchanges(n: int, data: st.DataObject) -> None:
    world = World(n)
    spare = n - (2 * n // 3 + 1)
    for phone in data.draw(st.permutations(world.phones))[:spare]:
        phone.stops = data.draw(st.sampled_from(STAGES))
    world.play()
    assert_committed(world)


@pytest.mark.parametrize("stage", STAGES)
def test_without_its_threshold_a_round_is_abandoned(stage: Stage) -> None:
    """3 of 7 vanish, and t is 5. The next round is made by the four that are left."""
    world = World(7, secure={"attempts": 1})
    for phone in world.phones[:3]:
        phone.stops = stage
    before_agreeing = stage in STAGES[:3]
    world.play(lambda w: w.state.version == 1 or w.state.round_number > 2 or bool(w.state.exhausted))
    if stage == "advertise":
        assert world.state.version == 1
        return
    assert world.reasons
    assert world.state.round_number >= 2
    if before_agreeing:
        assert world.state.spent == ()
        assert world.state.version == 1
    elif stage == "survivors":
        assert len(world.state.spent) == 4
    else:
        assert len(world.state.spent) == 7


@pytest.mark.parametrize("stage", STAGES[1:])
def test_an_abandoned_round_leaves_no_secret_on_a_device(stage: Stage) -> None:
    """They ask for an answer, and hear that the round is over."""
    world = World(7, secure={"attempts": 1})
    for phone in world.phones[:3]:
        phone.stops = stage
    world.play(lambda w: w.state.round_number == 2 and w.state.phase == "selecting")
    assert world.state.version == 0
    others = world.phones[3:]
    assert stage == "unmask" or any(phone.member.memory.live for phone in others)
    for phone in others:
        phone.turn(world)
        assert phone.member.memory.live == {}
        assert bool(phone.member.memory.spent) == (stage in STAGES[3:])


# ------------------------------------------------------------ when the coordinator dies


def points(n: int, **given: Any) -> tuple[str, int]:
    """The digest of an undisturbed round, and at how many points a coordinator can die in it."""
    world = World(n, **given).play()
    assert_committed(world)
    return world.state.checkpoint, world.points.passed


@pytest.mark.slow
@pytest.mark.parametrize("part", taking_turns(*range(PARTS)))
def test_a_crash_anywhere_changes_no_bit(part: int) -> None:
    wanted, count = points(3)
    assert count > 60
    for at in range(part, count, PARTS):
        world = World(3, crash=at).play()
        assert world.crashes == 1, f"at {at}"
        assert world.state.checkpoint == wanted, f"at {at}"
        assert_committed(world)


@pytest.mark.slow
@pytest.mark.parametrize("part", taking_turns(*range(PARTS)))
def test_a_crash_anywhere_with_somebody_gone(part: int) -> None:
    def world(crash: int | None = None) -> World:
        made = World(4, crash=crash)
        made.phones[2].stops = "mask"
        return made.play()

    crash_everywhere(world, part)


@pytest.mark.slow
@pytest.mark.parametrize("part", taking_turns(*range(PARTS)))
def test_a_crash_anywhere_between_two_attempts(part: int) -> None:
    """Two of five vanish after the roster, and the three others are keyed anew."""

    def world(crash: int | None = None) -> World:
        made = World(5, crash=crash)
        for phone in made.phones[:2]:
            phone.stops = "share"
        return made.play()

    assert len(world().happened(ev.Announced)) == 2
    crash_everywhere(world, part)


def crash_everywhere(world: Callable[[int | None], World], part: int) -> None:
    undisturbed = world(None)
    assert_committed(undisturbed)
    for at in range(part, undisturbed.points.passed, PARTS):
        again = world(at)
        assert again.crashes == 1
        assert again.state.checkpoint == undisturbed.state.checkpoint, f"at {at}"
        assert_committed(again)


@pytest.mark.slow
@settings(max_examples=20)
@given(n=st.integers(4, 7), data=st.data())
def test_crashes_and_vanishing_together(n: int, data: st.DataObject) -> None:
    """Whatever happens, the round commits the exact sum of those who masked, and leaves nothing behind."""
    crashes = data.draw(st.sets(st.integers(0, 250), max_size=6))
    world = World(n, crash=crashes)
    for phone in data.draw(st.permutations(world.phones))[: n - (2 * n // 3 + 1)]:
        phone.stops = data.draw(st.sampled_from(STAGES))
    for phone in data.draw(st.sets(st.sampled_from(world.phones), max_size=2)):
        phone.forgetful = True
    world.play()
    assert_committed(world)


@pytest.mark.slow
@settings(max_examples=25)
@given(n=st.integers(3, 7), data=st.data())
def test_whatever_happens_a_round_ends_and_leaves_nothing(n: int, data: st.DataObject) -> None:
    """Anybody may vanish anywhere, and the coordinator die: the round commits the exact sum, or nothing."""
    world = World(n, crash=data.draw(st.sets(st.integers(0, 200), max_size=4)), secure={"attempts": 2})
    for phone in data.draw(st.sets(st.sampled_from(world.phones))):
        phone.stops = data.draw(st.sampled_from(STAGES))

    def ended(w: World) -> bool:
        return w.state.round_number == 2 and w.state.phase == "selecting" and not w.log.todo

    world.play(ended)
    if world.state.version:
        assert_committed(world)
    else:
        assert len(world.reasons) == 1
        assert world.state.checkpoint == world.start
        assert world.happened(ev.Committed) == []
    world.assert_clean()
    assert set(world.state.spent) <= {event.device for event in world.happened(ev.Signed)}


def test_blobs_in_files_make_no_difference(tmp_path: Path) -> None:
    wanted, _ = points(4)
    blobs = FileBlobs(tmp_path, durable=False)
    world = World(4, blobs=blobs).play()
    assert world.state.checkpoint == wanted
    world.assert_clean()


def test_devices_that_are_started_again_and_again() -> None:
    """From what they kept, they say the same again."""
    wanted, _ = points(4)
    world = World(4)
    for phone in world.phones:
        phone.forgetful = True
    world.play()
    assert world.state.checkpoint == wanted
    assert_committed(world)


# ------------------------------------------------------------ what is never there


@pytest.mark.parametrize("gone", [0, 1])
def test_nothing_of_one_device_is_ever_unmasked_on_the_server(gone: int) -> None:
    """No blob that ever was holds a device's lanes, a sum of some of them, a secret that it did not reveal, or one that
    was rebuilt."""
    world = World(5)
    for phone in world.phones[:gone]:
        phone.stops = "mask"
    world.play()
    assert_committed(world)
    header, bits = world.header(), world.header().lane_bits(5)
    names = world.survivors()
    rows = {name: world.lanes_of(name, header, bits) for name in names}
    whole = pack(world.integer_sum(), bits)
    for mask in range(1, 2 ** len(names)):
        part = [rows[name] for place, name in enumerate(names) if mask >> place & 1]
        packed = pack(np.sum(part, axis=0).astype(part[0].dtype), bits)
        raw = np.sum(part, axis=0).astype(part[0].dtype).tobytes()
        found = [body for body in world.ever.values() if packed in body or raw in body]
        assert [sum_of(body) for body in found] == ([whole] if len(part) == len(names) else [])
    secrets = {live for phone in world.phones for live in phone.secrets if len(live) == 32}
    assert len(secrets) == 15
    for secret in secrets:
        assert not any(secret in body for body in world.ever.values())
        assert not any(secret.hex() in text for text in world.texts())


def test_of_each_dealer_one_kind_of_share_is_ever_revealed() -> None:
    world = World(5)
    world.phones[0].stops = "mask"
    world.play()
    revealed = [world.ever[event.digest] for event in world.happened(ev.Revealed)]
    assert len(revealed) >= 4
    for phone in world.phones:
        for pair in phone.pairs:
            seen = [any(share in body for body in revealed) for share in (pair.self_mask, pair.mask_key)]
            assert seen != [True, True]
