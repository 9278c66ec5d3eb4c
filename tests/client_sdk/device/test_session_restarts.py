"""A coordinator that is restarted, again and again or for long: how soon its devices are back, and how spread."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from client_sdk.device.actions import Answered, Reply, RequestRefused, Save, Send, Sleep, Unreachable
from client_sdk.device.record import Record
from client_sdk.device.session import participate
from client_sdk.protocol.devices import Registered, Wait
from client_sdk.protocol.problems import Problem, problem
from tests.client_sdk.device.scripted import offer

WAIT = Wait(reason="not selected yet", min_s=0, max_s=0)
PAGE = Problem(type="about:blank", title="Bad Gateway", status=502)


class Device:
    """A registered device that checks in and sleeps. ``answer(now)``: what becomes of a check-in sent now."""

    def __init__(self, answer: Callable[[float], Reply], seed: int = 0) -> None:
        registered = Registered(device="d1", examples_cap=9)
        self._session = participate(
            Record(key_seed="11" * 32, coordinator="x", registered=registered), coordinator="x", offer=offer
        )
        self._answer = answer
        self._chance = random.Random(seed)
        self.now = 0.0

    def check_ins(self) -> Iterator[tuple[float, Sleep | None]]:
        """The time of each check-in, and the sleep before it."""
        reply: Reply = None
        slept = None
        while True:
            action = self._session.send(reply)
            if isinstance(action, Sleep):
                slept, reply = action, None
                self.now += self._chance.uniform(action.min_s, action.max_s)
            elif isinstance(action, Send):
                yield self.now, slept
                slept, reply = None, self._answer(self.now)
                self.now = getattr(reply, "at", self.now)
            else:
                assert isinstance(action, Save)
                reply = None

    def sleeps(self, until: float) -> list[tuple[float, float]]:
        found = []
        for at, slept in self.check_ins():
            if at > until:
                break
            if slept is not None:
                found.append((slept.min_s, slept.max_s))
        return found


def refused(now: float) -> Reply:
    return Unreachable("connection refused", now)


def there_until(end: float, afterwards: Callable[[float], Reply]) -> Callable[[float], Reply]:
    """Check-ins are held for 25 s, the last one until the coordinator ends."""

    def answer(now: float) -> Reply:
        if now >= end:
            return afterwards(now)
        return Answered(WAIT, now + 25) if now + 25 < end else Unreachable("broke", end, held_s=end - now)

    return answer


def test_repro_after_many_restarts_a_device_is_back_within_seconds() -> None:
    """Each restart broke the check-in under way, and each was one more failure in a row: a minute's sleep."""

    def every_ten_seconds(now: float) -> Reply:
        end = (now // 10 + 1) * 10
        return refused(now) if now % 10 < 1 else Unreachable("broke", end, held_s=end - now)

    sleeps = Device(every_ten_seconds).sleeps(600)
    assert len(sleeps) > 60
    assert max(high for _, high in sleeps) <= 4


def test_a_coordinator_that_was_there_a_moment_ago_is_asked_again_within_seconds() -> None:
    sleeps = Device(there_until(100, refused)).sleeps(200)
    assert sleeps[:5] == [(0.5, 4), (1, 2), (2, 4), (4, 8), (4, 8)]
    assert max(high for _, high in sleeps) == 8


def test_one_that_stays_away_is_asked_once_a_minute() -> None:
    sleeps = Device(there_until(100, refused)).sleeps(1000)
    assert sleeps[-1] == (30, 60)
    assert Device(refused).sleeps(300)[:7] == [(0.5, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (30, 60)]


@pytest.mark.parametrize(
    ("reply", "last"),
    [
        (lambda now: Unreachable("closed at once", now, held_s=0.99), (30, 60)),
        (lambda now: Unreachable("was there for a second", now, held_s=1.0), (0.5, 4)),
        (lambda now: RequestRefused(problem("busy", "Full.").problem, now), (30, 60)),
        (lambda now: RequestRefused(PAGE, now), (4, 8)),
    ],
)
def test_only_silence_and_pages_of_a_balancer_are_taken_for_a_restart(
    reply: Callable[[float], Reply], last: tuple[float, float]
) -> None:
    """A coordinator that is busy asks for patience. A balancer that closes at once shows no coordinator."""
    until = 90 if last == (4, 8) else 300
    assert Device(there_until(5, reply)).sleeps(until)[-1] == last


@pytest.mark.parametrize("down_s", [0.0, 1.0, 20.0, 600.0])
def test_thousands_of_devices_come_back_spread_over_seconds(down_s: float) -> None:
    devices, back = 2000, 50 + down_s
    arrivals: list[float] = []
    tried: Counter[int] = Counter()
    for seed in range(devices):
        device = Device(there_until(50, refused), seed)
        for at, _ in device.check_ins():
            if at >= 50:
                tried[int(at)] += 1
            if at >= back:
                arrivals.append(at - back)
                break
    half_second = Counter(int(2 * at) for at in arrivals)
    assert max(half_second.values()) < devices * 0.3
    assert max(arrivals) < (60.0 if down_s > 120 else 8.0)
    assert max(tried.values()) < devices * 0.6
    if down_s > 300:
        late = [count for second, count in tried.items() if 50 + 300 < second < back]
        assert sum(late) / len(late) < devices / 30, "each asks once in 45 s, on average"
