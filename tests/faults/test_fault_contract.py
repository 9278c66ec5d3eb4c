"""The contract of every fault of the explorer, so that a new one works in searches, traces and shrinking.

A fault occurs within a few small schedules that focus on it, and only in the storm. Left out, it does not occur, and no
other draw changes. The schedules are found by their seeds, so each fault in ``FAULTS`` is tested.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count

import pytest

from tests.explorer.chance import Chance
from tests.explorer.counts import Coverage, meets
from tests.explorer.faults import DISK_FAULTS, FAULTS
from tests.explorer.schedule import Schedule
from tests.explorer.shape import PHASES, Shape
from tests.explorer.world import World
from tests.rotating import in_parts

pytestmark = pytest.mark.whole

MOST_SCHEDULES = 40
"""Schedules in which a focused fault must occur. Today the rarest needs 11, most need 1."""
MOST_DEVICES = 7
IN_MEMORY = ("memory", "memory")
"""Store and blobs."""
FAMILIES = {
    "network",
    "device",
    "authority",
    "coordinator",
    "store",
    "blobs",
    "clock",
    "operator",
    "secure",
    "datacenter",
    "disk",
}


class EveryOf(frozenset[str]):
    """For ``without``: all occurrences of one fault."""

    def __new__(cls, fault: str) -> EveryOf:
        return super().__new__(cls, (fault,))

    def __contains__(self, name: object) -> bool:
        (fault,) = self
        return str(name).partition("@")[0] == fault


class Noted(Schedule):
    """A schedule that counts the occurrences of faults before, during and after its storm."""

    before = 0
    until_calm: int | None = None

    def _begin(self) -> None:
        self.before = len(self.world.chance.struck)
        super()._begin()

    def _heal(self) -> None:
        self._storm_ends()
        super()._heal()

    def _settle(self) -> None:
        self._storm_ends()
        super()._settle()

    def _storm_ends(self) -> None:
        if self.until_calm is None:
            self.until_calm = len(self.world.chance.struck)


def played(shape: Shape, without: frozenset[str] = frozenset()) -> Noted:
    """The schedule, played to its end. Raises Broken where it fails."""
    schedule = Noted(shape, without=without)
    schedule.play()
    return schedule


def of(fault: str, names: list[str]) -> list[str]:
    """The occurrences of this fault among ``names``."""
    return [name for name in names if name.startswith(f"{fault}@")]


_FOCUSED: dict[str, list[Shape]] = defaultdict(list)
_SEEDS = count()


def focused(fault: str) -> Iterator[Shape]:
    """Small schedules that focus on the fault, by their seeds. Seeds found for other faults are cached,
    since only one seed in hundreds focuses on a fault of the datacenter."""
    for number in range(MOST_SCHEDULES):
        while len(_FOCUSED[fault]) <= number:
            shape = Shape.of(next(_SEEDS))
            in_memory = (shape.store, shape.blobs) == IN_MEMORY or shape.focus[0] in DISK_FAULTS
            if shape.devices <= MOST_DEVICES and in_memory:
                _FOCUSED[shape.focus[0]].append(shape)
        yield _FOCUSED[fault][number]


@cache
def met(fault: str) -> Noted:
    """The first of them in which it occurs."""
    for shape in focused(fault):
        schedule = played(shape)
        if of(fault, schedule.world.chance.struck):
            return schedule
    pytest.fail(f"{fault} did not strike in {MOST_SCHEDULES} schedules that focus on it: does anything ask for it?")


@pytest.fixture(params=in_parts(FAULTS, of=2))
def fault(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_has_a_family_a_rate_and_a_description(fault: str) -> None:
    found = FAULTS[fault]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", fault), "the name of a strike is fault@where#count"
    assert found.family in FAMILIES
    assert 0 < found.rate < 1
    assert re.fullmatch(r"[a-z].{9,99}[^.]", found.description), "half a sentence, for the table and the trace"
    assert list(FAULTS.values()).count(found) == 1


def test_coverage_knows_it(fault: str) -> None:
    for phase in PHASES:
        coverage = Coverage()
        missing = Counter(coverage.never())
        coverage.fault(fault, phase)
        expected = [(fault, phase)] if meets(fault, phase) else []
        assert list((missing - Counter(coverage.never())).elements()) == expected


def test_it_strikes_in_a_schedule_that_focuses_on_it_neither_before_the_storm_nor_after_it(fault: str) -> None:
    schedule = met(fault)
    assert schedule.before == 0
    assert schedule.until_calm == len(schedule.world.chance.struck)


def test_a_world_asks_for_it_in_a_storm_only_and_where_it_is_possible(fault: str) -> None:
    shape = replace(Shape.of(0), rates={fault: 1.0}, focus=("", ""))
    world = World(shape)
    outcomes = []
    for world.stormy in (False, True, False):
        outcomes.append(world.strikes(fault, "here"))
    assert outcomes == [False, True, False]
    assert world.chance.struck == [f"{fault}@here#0"]
    calm = World(replace(shape, rates={}, focus=(fault, "idle")))
    assert not any(calm.strikes(fault, "here") for _ in range(100)), "a calm world has no storm"
    impossible = World(replace(shape, rates={}))
    impossible.stormy = True
    assert not any(impossible.strikes(fault, "here") for _ in range(100))


@pytest.mark.slow
def test_left_out_it_strikes_no_more(fault: str) -> None:
    shape, names = met(fault).shape, met(fault).world.chance.struck
    first = names.index(of(fault, names)[0])
    less = played(shape, without=frozenset({names[first]})).world.chance.struck
    assert less[:first] == names[:first], "up to there it is the same schedule"
    assert names[first] not in less
    none = played(shape, without=EveryOf(fault)).world.chance.struck
    assert none[:first] == names[:first]
    assert not of(fault, none)


def test_left_out_it_moves_no_other_draw(fault: str) -> None:
    other = next(name for name in FAULTS if name != fault)

    def draws(without: frozenset[str]) -> tuple[list[bool], list[float], list[str]]:
        chance = Chance(7, without)
        answers, units = [], []
        for number in range(200):
            chance.strikes(fault, "here", 0.5)
            answers.append(chance.strikes(other, f"place {number % 3}", 0.5))
            units.append(chance.unit(fault))
        return answers, units, chance.struck

    answers, units, struck = draws(frozenset())
    mine = of(fault, struck)
    assert 60 < len(mine) < 140
    some = frozenset(mine[::2])
    assert draws(some) == (answers, units, [name for name in struck if name not in some])
    assert draws(EveryOf(fault)) == (answers, units, [name for name in struck if name not in mine])
