"""Devices of a fleet that vanish in an exchange of a secure round."""

from __future__ import annotations

from collections import Counter

import httpx2
import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import FIVE_EXCHANGES
from simulation.fleet.trainer import FleetHabits, Vanished, VanishesInExchanges

ALL = FleetHabits(slow=0, vanish=1, late=0)


def request(stage: str, number: int = 1, method: str = "PUT", route: Route = Route.SECURE_MESSAGE) -> httpx2.Request:
    path = route.format(run="mnist", round=number, attempt=0, stage=stage)
    return httpx2.Request(method, f"http://127.0.0.1:1/behind/a/proxy{path}")


def gone_at(device: VanishesInExchanges, number: int = 1) -> list[str]:
    """The messages of a round at which the device vanishes."""
    gone = []
    for stage in FIVE_EXCHANGES:
        try:
            device(request(stage, number))
        except Vanished:
            gone.append(stage)
    return gone


def test_those_that_vanish_are_spread_evenly_over_the_exchanges() -> None:
    gone = Counter(ALL.conduct(device, number).exchange for device in range(400) for number in range(1, 6))
    assert set(gone) == {"advertise", "share", "mask", "survivors", "unmask"}
    assert all(abs(count - 400) < 4 * (2000 * 0.2 * 0.8) ** 0.5 for count in gone.values())


@pytest.mark.parametrize("number", range(1, 6))
def test_a_device_vanishes_before_one_message_and_sends_it_when_it_is_back(number: int) -> None:
    device = VanishesInExchanges(7, ALL)
    assert gone_at(device, number) == [ALL.conduct(7, number).exchange]
    assert gone_at(device, number) == [], "at most once a round"
    assert len(gone_at(device, number + 1)) == 1


def test_other_requests_and_other_devices_are_left_alone() -> None:
    device = VanishesInExchanges(7, ALL)
    stage = ALL.conduct(7, 1).exchange
    device(request(stage, method="POST", route=Route.SECURE_ANSWER))
    device(request(stage, method="POST"))
    device(request(stage, route=Route.UPDATE))
    assert gone_at(VanishesInExchanges(7, FleetHabits(slow=0, vanish=0, late=0))) == []
    with pytest.raises(Vanished) as vanished:
        device(request(stage))
    assert 1.0 <= vanished.value.away <= 2.0
