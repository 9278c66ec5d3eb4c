"""Rounds of several groups, with real devices: what goes wrong in one costs that group alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.roster import Roster
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from tests.coordinator.secure.test_cheats import cheating, resigned
from tests.coordinator.secure.world import STAGES, World

GROUPS: dict[str, Any] = {"groups": 3, "minimum_cohort": 3}


def in_groups(n: int = 12, quorum: float = 0.5, **sections: Any) -> World:
    secure = {**GROUPS, **sections.pop("secure", {})}
    cohort = {"quorum": quorum, **sections.pop("cohort", {})}
    return World(n, secure=secure, cohort=cohort, **sections)


def groups_of(world: World) -> list[tuple[str, ...]]:
    return [group.order for group in world.happened(ev.Rostered)[-1].groups]


def abandoned(world: World) -> str:
    """Why its first round was."""
    world.play(lambda w: w.state.round_number > 1)
    assert world.state.version == 0
    return str(world.reasons[0])


def deltas(world: World, names: Any) -> np.ndarray:
    """The mean of what these devices put in, to within its rounding."""
    chosen = [phone.member for phone in world.phones if phone.name in names]
    weights = np.array([member.weight for member in chosen], np.float64)
    return np.average([member.values for member in chosen], axis=0, weights=weights)


def moved(world: World) -> np.ndarray:
    return world.weights().astype(np.float64) - world.model["w"]


def near(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.abs(one - other).max() < 1e-3)


def test_an_honest_round_is_the_mean_of_all() -> None:
    world = in_groups().play()
    names = [phone.name for phone in world.phones]
    divided = groups_of(world)
    assert sorted(map(len, divided)) == [4, 4, 4]
    assert sorted(name for group in divided for name in group) == names
    assert sorted(event.group for event in world.happened(ev.Opened)) == [0, 1, 2]
    assert world.survivors() == names
    assert near(moved(world), deltas(world, names))
    world.assert_clean()


def test_the_sum_of_groups_has_the_bits_of_one_sum() -> None:
    """A rule that needs the sum alone gets the mean of all survivors, as their integers give it."""
    world = in_groups().play()
    assert np.array_equal(world.weights(), world.expected_weights())


def test_a_device_masks_with_its_own_group_alone() -> None:
    world = in_groups(cohort={"select": 12, "goal": 12})
    shown: dict[str, int] = {}

    def count(message: Transmit, w: World, name: str = "") -> Transmit:
        shown[name] = len(message.body)
        return message

    for phone in world.phones:
        cheating(phone, "share", lambda message, w, name=phone.name: count(message, w, name))
    world.play()
    alone = World(4)
    cheating(alone.phones[0], "share", lambda message, w: count(message, w, "alone"))
    alone.play()
    assert {shown[phone.name] for phone in world.phones} == {shown["alone"]}


def test_who_is_in_which_group_follows_from_all_nonces() -> None:
    world = in_groups().play()
    digest = world.happened(ev.Rostered)[-1].digest
    roster = Roster.parse(world.ever[digest])
    divided = [tuple(e.advertisement.device for e in group.entries) for group, _ in roster.divided(world.header())]
    assert divided == groups_of(world)
    other = replace(roster.entries[0].advertisement, nonce=bytes(32))
    entries = (replace(roster.entries[0], advertisement=other), *roster.entries[1:])
    again = [
        tuple(e.advertisement.device for e in group.entries)
        for group, _ in replace(roster, entries=entries).divided(world.header())
    ]
    assert again != divided


def wrong_vector(world: World, liar: Any, make: Callable[[bytes], bytes]) -> None:
    def bend(message: Transmit, w: World) -> Transmit:
        blob = make(message.blob)
        body = replace(MaskedInput.parse(message.body), digest=hashlib.sha256(blob).digest()).encoded
        return resigned(liar, w, message, body, blob)

    cheating(liar, "mask", bend)


def test_one_vector_of_garbage_costs_its_group_alone() -> None:
    """With one group the round is abandoned, and its devices are spent."""
    world = in_groups()
    liar = world.phones[5]
    wrong_vector(world, liar, lambda blob: bytes(len(blob) - 1) + blob[-1:])
    world.play()
    mine = next(group for group in groups_of(world) if liar.name in group)
    rest = [phone.name for phone in world.phones if phone.name not in mine]
    assert world.state.version == 1, world.reasons
    assert world.survivors() == rest
    assert near(moved(world), deltas(world, rest))
    assert len(world.happened(ev.OpeningFailed)) == 1
    world.assert_clean()
    alone = World(12, cohort={"quorum": 0.5})
    wrong_vector(alone, alone.phones[5], lambda blob: bytes(len(blob) - 1) + blob[-1:])
    assert abandoned(alone)


def test_with_most_groups_wrong_the_round_is_abandoned() -> None:
    world = in_groups()
    world.play(lambda w: bool(w.happened(ev.Rostered)))
    for group in groups_of(world)[:2]:
        liar = next(phone for phone in world.phones if phone.name == group[0])
        wrong_vector(world, liar, lambda blob: bytes(len(blob) - 1) + blob[-1:])
    assert "cannot be used" in abandoned(world)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_group_whose_devices_vanish_falls_alone(stage: Stage) -> None:
    """Two of four: the group can sign, or rebuild, nothing. From exchange 2 to 5."""
    world = in_groups()
    world.play(lambda w: bool(w.happened(ev.Rostered)))
    group = groups_of(world)[1]
    gone = [phone for phone in world.phones if phone.name in group[:2]]
    for phone in gone:
        phone.stops = stage
    world.play()
    assert world.state.version == 1, world.reasons
    assert world.survivors() == [phone.name for phone in world.phones if phone.name not in group]
    assert len(world.happened(ev.Announced)) == 1, "no second attempt"
    told = [phone for phone in world.phones if phone.name in group and phone not in gone]
    assert stage in ("survivors", "unmask") or all("of its group" in phone.refusals[-1] for phone in told)
    world.assert_clean()


def test_one_device_that_vanishes_costs_no_group() -> None:
    for stage in STAGES[1:]:
        world = in_groups()
        world.phones[3].stops = stage
        world.play()
        left = {phone.name for phone in world.phones}
        left -= {world.phones[3].name} if stage in ("share", "mask") else set()
        assert set(world.survivors()) == left, stage


def test_a_group_that_falls_leaves_a_quorum_or_no_round() -> None:
    """8 of 12 are the quorum: so many are left of two whole groups, and no more."""
    for vanished in (False, True):
        world = in_groups(quorum=0.66)
        liar = world.phones[5]
        wrong_vector(world, liar, lambda blob: bytes(len(blob) - 1) + blob[-1:])
        world.play(lambda w: bool(w.happened(ev.Rostered)))
        other = next(group for group in groups_of(world) if liar.name not in group)
        if vanished:
            next(phone for phone in world.phones if phone.name == other[0]).stops = "mask"
            assert abandoned(world)
        else:
            world.play()
            assert len(world.survivors()) == 8


def test_the_median_of_groups_survives_a_group_that_lies_within_its_range() -> None:
    """A device that sends the opposite at full range moves the mean, and not the median of three groups."""
    results = {}
    for rule in ("mean", "median"):
        world = in_groups(aggregation={"rule": rule, "weighting": "equal", "weight_cap": 1})
        for phone in world.phones:
            phone.member.weight = 1
            phone.member.values = np.full(5, 0.1, np.float32)
        liar = world.phones[5]
        liar.member.values = np.full(5, -0.9, np.float32)
        world.play()
        assert world.state.version == 1, world.reasons
        results[rule] = moved(world)
    assert near(results["median"], np.full(5, 0.1))
    assert np.abs(results["mean"] - 0.1).min() > 0.05


def test_the_same_groups_give_the_same_bits_after_a_crash_at_any_point() -> None:
    quiet = in_groups(quorum=0.5)
    quiet.play()
    wanted = quiet.state.checkpoint
    for part in range(1, 4):
        world = in_groups(quorum=0.5)
        world.crash_at(part * quiet.points.passed // 4)
        world.play()
        assert world.state.checkpoint == wanted


def test_no_group_is_opened_twice() -> None:
    world = in_groups()
    world.play(lambda w: w.state.phase == "unmasking")
    world.play()
    opened = world.happened(ev.Opened)
    assert len({event.group for event in opened}) == len(opened) == 3
    assert [len(action.sums) for action in world.every(fx.CommitSum)][-1] == 3


def test_a_device_that_sends_garbage_in_every_round_ends_no_run_whose_pool_is_its_cohort() -> None:
    world = in_groups(rounds_=4)
    wrong_vector(world, world.phones[5], lambda blob: bytes(len(blob) - 1) + blob[-1:])
    world.play()
    assert world.state.version == 4, world.reasons
    assert len(world.happened(ev.OpeningFailed)) == 4
    assert world.reasons == []
