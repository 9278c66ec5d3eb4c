"""Theorem B of docs/secure-aggregation-proofs.md, played: what opened sums of one checkpoint give together.

Rosters of nine, *strict*: seven signatures open a list, four devices collude, so at least three honest ones have
signed. Colluding devices help with everything, in any number of attempts. Two runs share the checkpoint.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest

from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.survivors import Survivors
from tests.client_sdk.secagg.attempt import Authority, header
from tests.client_sdk.secagg.fleet import Coordinator, Member, fleet, plain_sum
from tests.rotating import on_day

N, SIGNERS, COLLUDING = 9, 7, 4
BOUND = SIGNERS - COLLUDING


@dataclass
class Devices:
    """Honest devices, by number, and four that collude: they come after them in the roster."""

    honest: list[Member]
    colluding: list[Member]
    authority: Authority

    @classmethod
    def of(cls, honest: int) -> Devices:
        members, authority = fleet(honest + COLLUDING)
        return cls(members[:honest], members[honest:], authority)


@dataclass
class Tried:
    """An attempt with five honest devices. What is played is the coordinator's choice, so far as devices follow."""

    devices: Devices
    numbers: Sequence[int]
    """Its honest devices, ascending."""
    number: int
    run: str = "run-1"
    coordinator: Coordinator = field(init=False)
    signed: set[int] = field(default_factory=set)
    """Honest devices that signed its list."""
    total: Lanes | None = None

    def __post_init__(self) -> None:
        forgetful = [replace(member, disk=Memory().encoded) for member in self.devices.colluding]
        members = [*(self.devices.honest[number] for number in self.numbers), *forgetful]
        self.coordinator = Coordinator(
            header(attempt=self.number, run=self.run, dimension=5), self.devices.authority, members
        )

    def places(self, numbers: Collection[int]) -> list[int]:
        """The places of these honest devices, and of all that collude."""
        return [place for place in range(N) if place >= N - COLLUDING or self.numbers[place] in numbers]

    def open(self, at: float) -> None:
        """All advertise."""
        self.roster = self.coordinator.open(at)

    def share(self, numbers: Collection[int]) -> None:
        for place in self.places(numbers):
            self.coordinator.members[place].tell(self.roster)
            self.coordinator.hear_share(place)

    def mask(self, numbers: Collection[int]) -> None:
        for place in self.places(numbers):
            self.coordinator.members[place].tell(self.coordinator.delivery(place))
            self.coordinator.hear_mask(place)

    def sign(self, numbers: Collection[int]) -> None:
        listed = self.coordinator.survivors()
        for place in self.places(numbers):
            self.coordinator.members[place].tell(listed.encoded)
            self.coordinator.hear_survivors(place)
            self.signed |= {self.numbers[place]} if place < len(self.numbers) else set()

    def unmask(self, numbers: Collection[int]) -> None:
        """All that signed reveal; the sum is opened, and is right."""
        listed = self.coordinator.survivors()
        for place in self.places(numbers):
            self.coordinator.members[place].tell(self.coordinator.proof())
            self.coordinator.hear_unmask(place, listed)
        self.total = self.coordinator.unmasked(listed)
        assert np.array_equal(self.total, plain_sum(self.coordinator, listed))

    @property
    def summed(self) -> set[int]:
        """The honest devices in its sum."""
        return {self.numbers[place] for place in self.coordinator.survivors().places if place < len(self.numbers)}

    def without_colluders(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The opened sum less what the colluding devices put in."""
        assert self.total is not None
        own = plain_sum(self.coordinator, Survivors(tuple(range(N - COLLUDING, N))))
        return self.total.astype(np.int64) - own.astype(np.int64)


def most_alike(tried: Sequence[Tried], coefficients: Sequence[int]) -> int:
    """Of the honest devices in this combination of sums: the most that have one and the same coefficient, not 0."""
    counted = Counter[int]()
    for attempt, coefficient in zip(tried, coefficients, strict=True):
        counted.update(dict.fromkeys(attempt.summed, 0))
        for device in attempt.summed:
            counted[device] += coefficient
    return max(Counter(value for value in counted.values() if value).values(), default=0)


def hidden_among(tried: Sequence[Tried]) -> int:
    """The least of ``most_alike`` over all combinations with coefficients from -2 to 2."""
    combinations = product(range(-2, 3), repeat=len(tried))
    return min(most_alike(tried, coefficients) for coefficients in combinations if any(coefficients))


def test_the_bound_on_combined_sums_is_tight_by_one() -> None:
    """Of nine that mask, three honest ones sign. The two others sign the next list, with one that is new."""
    devices = Devices.of(8)
    first = Tried(devices, range(5), 0)
    first.open(0.0)
    first.share(range(5))
    first.mask(range(5))
    first.sign(range(3))
    first.unmask(range(3))
    second = Tried(devices, range(3, 8), 1)
    second.open(60.0)
    for step in (second.share, second.mask, second.sign, second.unmask):
        step((3, 4, 5))
    assert (first.summed, second.summed) == ({0, 1, 2, 3, 4}, {3, 4, 5})
    assert hidden_among([first, second]) == BOUND
    difference = first.without_colluders() - second.without_colluders()
    alone = [plain_sum(first.coordinator, Survivors((place,))).astype(np.int64) for place in range(3)]
    new = plain_sum(second.coordinator, Survivors((2,))).astype(np.int64)
    # The two that are in both sums are rounded anew in each attempt, by one unit at most.
    assert np.max(np.abs(difference - sum(alone) + new)) <= 2
    assert len({0, 1, 2, 5}) == BOUND + 1


def test_no_shorter_list_is_opened() -> None:
    devices = Devices.of(5)
    first = Tried(devices, range(5), 0)
    first.open(0.0)
    first.share(range(5))
    first.mask(range(5))
    first.sign(range(BOUND - 1))
    with pytest.raises(SecaggError, match=r"6 of .* signed the list; it takes 7"):
        first.unmask(range(BOUND - 1))


def chain(seed: int, honest: int) -> list[Tried]:
    """Attempts of two runs on one checkpoint, whose steps alternate at random; those that were opened. A device that
    another attempt asks leaves the one that it was in."""
    chance, devices = random.Random(seed), Devices.of(honest)
    steps = {"open": "share", "share": "mask", "mask": "sign", "sign": "unmask", "unmask": ""}
    waiting: dict[int, str] = {}
    tried: list[Tried] = []
    at_work: dict[int, int] = {}
    spent: set[int] = set()
    clock = 0.0
    while len(tried) < 7 or any(waiting.values()):
        clock += 60.0
        ready = [index for index, step in waiting.items() if step]
        if len(tried) < 7 and (len(ready) < 2 or chance.random() < 0.3):
            able = [number for number in range(honest) if number not in spent]
            if len(able) < 5:
                break
            numbers = sorted(chance.sample(able, 5))
            made = Tried(devices, numbers, len(tried), chance.choice(("run-1", "run-2")))
            made.open(clock)
            at_work |= dict.fromkeys(numbers, len(tried))
            waiting[len(tried)] = "share"
            tried.append(made)
            continue
        index = chance.choice(ready)
        attempt, step = tried[index], waiting[index]
        here = [number for number in attempt.numbers if at_work[number] == index]
        if step == "sign":
            here = here[:BOUND]
        elif step == "unmask":
            here = sorted(attempt.signed)
        if len(here) < BOUND:
            waiting[index] = ""
            continue
        getattr(attempt, step)(here)
        waiting[index] = steps[step]
        if step == "sign":
            spent |= attempt.signed
    return [attempt for attempt in tried if attempt.total is not None]


@on_day(0, of=2)
def test_overlapping_attempts_of_two_runs_hide_devices_among_as_many_as_the_theorem_says() -> None:
    several = overlapping = 0
    for seed in range(12):
        opened = chain(seed, 10)
        several += len(opened) > 1
        overlapping += sum(bool(one.summed & other.signed) for one in opened for other in opened if one is not other)
        assert all(len(attempt.signed) >= BOUND for attempt in opened)
        assert not any(one.signed & other.signed for one in opened for other in opened if one is not other)
        assert not opened or hidden_among(opened) >= BOUND
    assert several
    assert overlapping


def test_of_devices_that_are_set_back_the_theorem_does_not_hold() -> None:
    """The control: two sums that differ in one device each."""
    devices, sums = Devices.of(6), []
    for number, numbers in enumerate([(0, 1, 2, 3, 4), (0, 1, 2, 3, 5)]):
        sums.append(Tried(devices, numbers, number))
        sums[-1].open(60.0 * number)
        for step in (sums[-1].share, sums[-1].mask, sums[-1].sign, sums[-1].unmask):
            step(numbers)
        for member in devices.honest:
            member.disk = Memory().encoded
    assert hidden_among(sums) == 1
