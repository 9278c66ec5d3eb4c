"""Who was in groups whose sum was bad rests in some rounds: it rises, fades, and bars nobody. A liar is drawn less than
the honest devices beside it, and one that lies to have another device drawn less does as much to itself.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable

import pytest

from client_sdk.secagg.graph import groups_of
from coordinator.engine.event_fields import Group
from coordinator.engine.plan import selection_of
from coordinator.engine.secure.suspicion import MOST, MOST_SUSPECTED, faded, raised, resting
from tests.coordinator.engine.secure_story import POOL, SIX, SecureStory
from tests.coordinator.engine.story import Story

THREE = (("a", "b", "c"), ("d", "e", "f"), ("g", "h", "i"))


class GroupStory(SecureStory):
    """Without the checks after each event, which other tests make."""

    happens = Story.happens

    def __init__(self, *, rounds: int = 50, select: int = 9, groups: int = 3) -> None:
        sizes = {"select": select, "goal": select, "pool": select, "quorum": 0.5}
        super().__init__(cohort=sizes, secure={"groups": groups}, finish={"rounds": rounds, "abandoned": 100})
        self.created()

    def to_the_sums(self, groups: tuple[tuple[str, ...], ...] = THREE) -> None:
        """A round up to the opening of the sums of these groups."""
        cohort = [device for group in groups for device in group]
        self.cohort(*cohort)
        for device in cohort:
            self.advertised(device)
        self.rostered(
            groups=tuple(Group(order=order, threshold=2, signers=2, fewest=len(order) - 1) for order in groups)
        )
        for says in (self.shared, self.masked, self.signed, self.revealed):
            for device in cohort:
                says(device)

    def whole(self, groups: tuple[tuple[str, ...], ...] = THREE, bad: tuple[int, ...] = ()) -> None:
        """A round in which the sums of the ``bad`` groups are impossible."""
        self.to_the_sums(groups)
        for number in range(len(groups)):
            (self.opening_failed if number in bad else self.opened)(group=number)
        if self.state.phase == "committing":
            self.committed()


def test_a_bad_sum_raises_it_for_all_of_its_group_and_good_sums_end_it() -> None:
    story = GroupStory()
    story.whole(bad=(1,))
    assert (story.state.version, story.state.suspicion) == (1, {"d": 8, "e": 8, "f": 8})
    story.whole((("a", "b", "d"), ("c", "e", "g"), ("f", "h", "i")), bad=(1,))
    assert story.state.suspicion == {"d": 4, "f": 4, "c": 8, "e": 16, "g": 8}
    for held in (8, 4, 2, 1):
        story.to_the_sums()
        story.opened(group=1)
        assert story.state.suspicion["e"] == held
        story.opened(group=0)
        story.opened(group=2)
        story.committed()
    story.whole()
    assert story.state.suspicion == {}


def test_the_only_group_of_a_round_is_one_too() -> None:
    story = SecureStory().opening()
    story.opening_failed(reason="the canary lane sums to 5, not to the 6 survivors")
    assert (story.state.round_number, story.state.suspicion) == (2, dict.fromkeys(SIX, 8))


def test_it_has_a_most_and_bars_nobody() -> None:
    suspicion = raised({}, ["a"])
    for _ in range(10):
        suspicion = raised(suspicion, ["a"])
    assert suspicion == {"a": MOST}
    rounds = [resting(suspicion, ["a"], 1, seed=7, round=number) for number in range(2000)]
    assert 0.70 < sum(map(bool, rounds)) / 2000 < 0.80
    story = GroupStory()
    story.whole(bad=(1,))
    assert story.state.barred == {}


def test_who_is_proven_at_fault_is_barred_and_the_others_of_its_group_are_not_suspected() -> None:
    story = GroupStory()
    story.to_the_sums()
    story.opening_failed("e", group=1)
    assert (set(story.state.barred), story.state.suspicion) == ({"e"}, {})


@pytest.mark.parametrize("last", ["advertised", "shared", "masked", "signed"])
def test_devices_that_vanish_raise_nothing(last: str) -> None:
    """Nor does an outage: for the engine all devices are silent then."""
    story = GroupStory()
    story.cohort(*"abcdefghi")
    for exchange in ("advertised", "shared", "masked", "signed"):
        for device in "abcdefghi":
            getattr(story, exchange)(device)
        if exchange == "advertised":
            groups = [Group(order=order, threshold=2, signers=2, fewest=2) for order in THREE]
            story.rostered(groups=tuple(groups))
        if exchange == last:
            break
    before = story.state.round_number
    for _ in range(50):
        story.tick(20)
    assert story.state.round_number > before, "the round is over"
    assert story.state.suspicion == {}


def test_who_has_not_masked_is_not_suspected() -> None:
    story = GroupStory()
    story.cohort(*"abcdefghi")
    for device in "abcdefghi":
        story.advertised(device)
    story.rostered(groups=tuple(Group(order=order, threshold=2, signers=2, fewest=2) for order in THREE))
    for device in "abcdefghi":
        story.shared(device)
    for device in "abcdeghi":
        story.masked(device)
    story.tick(20)
    for says in (story.signed, story.revealed):
        for device in "abcdeghi":
            says(device)
    story.opening_failed(group=1)
    assert story.state.suspicion == {"d": 8, "e": 8}


def test_it_is_bounded() -> None:
    suspicion = raised({}, ["liar"])
    for number in range(0, 5 * MOST_SUSPECTED, 10):
        suspicion = raised(suspicion, ["liar", *(f"d{number + place}" for place in range(10))])
        assert len(suspicion) <= MOST_SUSPECTED + 11
    assert suspicion["liar"] == MOST
    assert faded({"a": 1}, "a") == {}


def test_as_many_rest_as_leave_a_cohort_the_most_suspected_first() -> None:
    suspicion = {"a": 48, "b": 8, "c": 24}
    for number in range(200):
        all_ = resting(suspicion, POOL, len(POOL), seed=7, round=number)
        one = resting(suspicion, POOL, 1, seed=7, round=number)
        assert len(one) == min(1, len(all_))
        assert one <= all_ <= set("abc")
        assert all(suspicion[other] <= suspicion[device] for device in one for other in all_)
        assert resting(suspicion, POOL, 0, seed=7, round=number) == set()
    choice = selection_of(SecureStory().state.plan)
    rows = [(device, 10) for device in POOL]
    for k in (7, 8, 9):
        drawn = [choice.draw(rows, k, seed=7, round=number, suspicion=suspicion) for number in range(50)]
        assert {len(cohort) for cohort in drawn} == {min(k, 8)}


# ---------------------------------------------------------------- many rounds

WAIT = tuple(f"device-{number:02}" for number in range(24))
Lies = Callable[[str, tuple[str, ...]], bool]
"""Whether this liar garbles its vector beside these devices of its group."""


def drawn_in(rounds: int, liars: tuple[str, ...], lies: Lies, seed: int = 7) -> Counter[str]:
    """For how many rounds each of 24 devices was drawn, 12 a round in 3 groups, by the coordinator's own draw and the
    devices' own division."""
    story = GroupStory(rounds=rounds + 1, select=12)
    choice, rows = selection_of(story.state.plan), [(device, 10) for device in WAIT]
    chance, drawn = random.Random(seed), Counter[str]()
    while story.state.round_number <= rounds:
        number, out = story.state.round_number, {*story.state.spent}
        waiting = [row for row in rows if row[0] not in out]
        cohort = choice.draw(waiting, 12, seed=seed, round=number, suspicion=story.state.suspicion)
        nonces = [hashlib.sha256(f"{device} {chance.random()}".encode()).digest() for device in cohort]
        groups = tuple(tuple(cohort[place] for place in places) for places in groups_of(nonces, 3))
        bad = [n for n, group in enumerate(groups) if any(one in group and lies(one, group) for one in liars)]
        drawn.update(cohort)
        story.whole(groups, tuple(bad))
    return drawn


@pytest.mark.slow
def test_a_device_that_always_lies_is_drawn_less_than_half_as_often_as_honest_ones() -> None:
    """30 times in 200 rounds; honest devices 90 to 115 times."""
    liar, *honest = WAIT
    drawn = drawn_in(200, (liar,), lambda one, group: True)
    share = sum(drawn[device] for device in honest) / len(honest)
    assert drawn[liar] < 0.4 * share
    assert min(drawn[device] for device in honest) > 0.8 * 100, "half of the devices are drawn in each round"


@pytest.mark.slow
@pytest.mark.parametrize(("liars", "least"), [(1, 0.85), (9, 0.25)])
def test_liars_that_want_another_device_drawn_less_harm_themselves_and_do_not_bar_it(liars: int, least: float) -> None:
    """Each lies only beside its victim. One is drawn as seldom as the victim, since the same sums count against both;
    many share what they do to it, and it is drawn all the same."""
    victim, *others = WAIT
    drawn = drawn_in(200, tuple(others[:liars]), lambda one, group: victim in group)
    honest = others[liars:]
    share = sum(drawn[device] for device in honest) / len(honest)
    assert drawn[victim] > least * share
    assert liars > 1 or drawn[others[0]] < 1.15 * drawn[victim]
    assert min(drawn[device] for device in honest) > 0.8 * 100
