"""A device's session, as tests of it start and drive it."""

from __future__ import annotations

import hashlib
from typing import Any

from client_sdk.device.session import Session, participate
from client_sdk.protocol.devices import CheckIn
from tests.client_sdk.device.scripted import Driver, offer

URL = "http://coordinator.test"


def entropy() -> Any:
    """A stream that never gives the same bytes twice, so that a second key would show."""
    counter = iter(range(1_000_000))
    return lambda count: hashlib.sha512(str(next(counter)).encode()).digest()[:count]


def session(driver: Driver, rounds: int | None = 1, draw: Any = None, **changes: Any) -> Session:
    given_offer: CheckIn = changes.pop("offer", offer())
    settings: dict[str, Any] = {
        "coordinator": URL,
        "offer": lambda: given_offer,
        "enrolment_token": driver.coordinator.authority.enrolment,
        "rounds": rounds,
        "entropy": draw or entropy(),
        "at": driver.clock,
    }
    return participate(driver.storage.load(), **(settings | changes))


def run(driver: Driver, rounds: int | None = 1, **changes: Any) -> int:
    return driver.drive(session(driver, rounds, **changes))
