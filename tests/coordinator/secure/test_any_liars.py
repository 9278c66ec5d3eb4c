"""Any devices that lie or vanish, up to n - t, in any way: no honest device is ever barred, and the round ends with the
right sum or says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.secagg.shares import Bundle
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from tests.coordinator.secure.test_cheats import second_round, tools
from tests.coordinator.secure.test_lying_holders import (
    dealing,
    not_through_the_secret,
    one_bit,
    one_off,
    other_kind,
    random_bytes,
    revealing,
    scattered,
    two_swapped,
    with_digests,
)
from tests.coordinator.secure.test_rounds import assert_committed
from tests.coordinator.secure.world import Phone, World
from tests.rotating import on_day

pytestmark = pytest.mark.slow

HOLDERS: dict[str, Callable[[Phone], None]] = {
    "reveals random bytes": lambda phone: revealing(phone, random_bytes),
    "reveals a wrong bit": lambda phone: revealing(phone, one_bit),
    "swaps two dealers' shares": lambda phone: revealing(phone, two_swapped),
    "reveals the other kind": lambda phone: revealing(phone, other_kind(phone)),
    "vanishes before it signs": lambda phone: setattr(phone, "stops", "survivors"),
    "vanishes before it reveals": lambda phone: setattr(phone, "stops", "unmask"),
}
"""Faults of which the round takes n - t."""


def wrong_digests(phone: Phone, holders: set[int]) -> None:
    dealing(phone, lambda bundle: with_digests(bundle, holders))


DISPROVED: dict[str, Callable[[Phone], None]] = {
    "deals on no polynomial": lambda phone: tools(phone, split=scattered()),
    "deals another secret": lambda phone: tools(
        phone, split=not_through_the_secret(phone.member.device.primitives.split)
    ),
    "deals one share off": lambda phone: tools(phone, split=one_off(phone.member.device.primitives.split)),
}
"""Faults that t shares may prove. Nobody else is barred."""

OTHERS: dict[str, Callable[[Phone], None]] = {
    "signs wrong digests for one": lambda phone: wrong_digests(phone, {0, 1}),
    "signs wrong digests for many": lambda phone: wrong_digests(phone, {0, 1, 2, 3, 4}),
    "signs wrong digests of its own": lambda phone: dealing(phone, zeros_for_its_own),
    "vanishes before it shares": lambda phone: setattr(phone, "stops", "share"),
    "vanishes before it masks": lambda phone: setattr(phone, "stops", "mask"),
}


def zeros_for_its_own(bundle: Bundle) -> Bundle:
    return replace(bundle, own=bytes(64))


def played(n: int, faults: dict[int, str]) -> World:
    world = World(n, cohort={"quorum": 0.3})
    for place, what in faults.items():
        (HOLDERS | DISPROVED | OTHERS)[what](world.phones[place])
    world.play(second_round)
    return world


@on_day(0, of=2)
@settings(max_examples=settings().max_examples * 2 // 5)
@given(n=st.integers(5, 10), data=st.data())
def test_no_honest_device_is_barred_and_the_round_says_how_it_ended(n: int, data: st.DataObject) -> None:
    most = n - (2 * n // 3 + 1)
    places = data.draw(st.sets(st.integers(0, n - 1), max_size=most))
    kinds = st.sampled_from(sorted(HOLDERS | DISPROVED | OTHERS))
    faults = {place: data.draw(kinds) for place in sorted(places)}
    world = played(n, faults)
    disproved = {world.phones[place].name for place, what in faults.items() if what in DISPROVED}
    assert set(world.state.barred) <= disproved
    assert {device for event in world.happened(ev.OpeningFailed) for device in event.lost} <= disproved
    world.assert_clean()
    if world.state.version == 1:
        row = world.every(fx.RecordCheckpoint)[0]
        assert row.round == 1
        assert_committed(world)
    else:
        assert world.reasons[0]
        assert world.state.barred or not set(faults.values()) <= set(HOLDERS)


@on_day(1, of=2)
@settings(max_examples=settings().max_examples // 5)
@given(n=st.integers(5, 10), data=st.data())
def test_n_minus_t_holders_may_lie_and_vanish_and_the_sum_is_right(n: int, data: st.DataObject) -> None:
    most = n - (2 * n // 3 + 1)
    places = data.draw(st.sets(st.integers(0, n - 1), min_size=most, max_size=most))
    faults = {place: data.draw(st.sampled_from(sorted(HOLDERS))) for place in sorted(places)}
    world = played(n, faults)
    assert world.state.barred == {}
    assert world.state.version == 1
    assert len(world.survivors()) == n
    assert_committed(world)
