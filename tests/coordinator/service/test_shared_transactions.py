"""Requests that write announce themselves before they are checked, so that those that are checked at the same time
share a transaction (``GroupCommit.coming``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.served import RUN, Served


@pytest.fixture
def world() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


class Announced:
    """How many requests are announced now, and whether one was when something was written."""

    def __init__(self) -> None:
        self.now = 0
        self.written: Counter[tuple[str, bool]] = Counter()

    @contextmanager
    def coming(self) -> Iterator[None]:
        self.now += 1
        yield
        self.now -= 1

    def note(self, what: str) -> None:
        self.written[what, bool(self.now)] += 1


def test_what_devices_send_in_a_secure_round_is_announced(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    world.secure_run()
    world.begin()
    log, announced = world.coordinator.core.log(RUN), Announced()
    submit = log.submit

    def noted(*given: Any, **more: Any) -> Any:
        before = world.store.head(RUN)
        effects = submit(*given, **more)
        for row in world.store.events(RUN, before):
            announced.note(row.kind)
        return effects

    monkeypatch.setattr(log, "submit", noted)
    monkeypatch.setattr(log, "coming", announced.coming)
    for phone in world.phones:
        assert world.ask(phone, "POST", Route.STARTED, {"attempt": 0}).status_code == 200
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1
    of_devices = ("Started", "Advertised", "Shared", "Masked", "Signed", "Revealed")
    assert {kind: announced.written[kind, True] for kind in of_devices} == dict.fromkeys(of_devices, 6)
    assert not any(announced.written[kind, False] for kind in of_devices)
    assert not announced.now


def test_a_check_in_is_announced(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    world.secure_run()
    fleet, announced = world.coordinator.fleet, Announced()
    wait_all = fleet.wait_all
    monkeypatch.setattr(fleet, "wait_all", lambda arrivals: (announced.note("wait"), wait_all(arrivals))[1])
    monkeypatch.setattr(fleet, "coming", announced.coming)
    message = world.message().model_copy(update={"hold_s": 0}).model_dump(mode="json")
    for phone in world.phones:
        assert world.ask(phone, "POST", Route.CHECK_IN, message).status_code == 200
    assert announced.written == {("wait", True): 6}
    assert not announced.now
