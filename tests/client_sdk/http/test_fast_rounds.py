"""A *fast* secure round of many real clients over HTTP: 100 in every full run of the tests, 1,000 in soak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.http.client import Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Policy, Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from tests.client_sdk.bounds import any_work
from tests.client_sdk.http.crowd import Crowd
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

LEARNER = "tests:shift"
VALUES = 20_000


class Shift:
    """Moves one value by 1: the mean shows who is in the sum."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        delta = np.zeros(VALUES, np.float32)
        delta[self.slot] = 1.0
        return Update({"w": delta}, examples=len(data.x))


def plan(devices: int, drop: int, exchange_s: float) -> dict[str, Any]:
    return {
        "name": "fast",
        "task": {"learner": LEARNER},
        "cohort": {
            "select": devices,
            "goal": devices,
            "quorum": 0.9,
            "select_s": 4 * exchange_s,
            "collect_s": 4 * exchange_s,
        },
        "aggregation": {"weighting": "equal", "partial": "refuse"},
        "finish": {"rounds": 1, "abandoned": 1},
        "secure": {
            "profile": "fast",
            "drop": drop,
            "max_norm": 2.0,
            "max_abs": 1.0,
            "minimum_cohort": 64,
            "exchange_s": exchange_s,
        },
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def play(server: Server, devices: int, vanishing: dict[str, int], drop: int, exchange_s: float) -> None:
    """One round. ``vanishing``: a notice -> which client stops when it gives it."""
    run = create(server, plan(devices, drop, exchange_s), {"w": np.zeros(VALUES, np.float32)})

    def stop(slot: int, notice: Notice) -> None:
        if any(slot == who and text in notice.text for text, who in vanishing.items()):
            crowd.stops[slot].set()

    policy = Policy(secure_only=True, secure=any_work(smallest_cohort=64))
    with Crowd(server, LEARNER, [Shift(slot) for slot in range(devices)], policy, stop) as crowd:
        view = wait_for_end(server, run, 4.5 * exchange_s)
    with OperatorClient(server.url) as operator:
        found = operator.rounds(run)[0]
    assert (view.status, view.version) == ("finished", 1), found
    assert found.secure is not None
    came = {one.exchange: one.came for one in found.secure.exchanges}
    assert came["advertise"] == devices
    assert came["mask"] == devices - 1, "one vanished before it had masked"
    mean = model_of(server, run)["w"]
    counted = np.flatnonzero(mean > 0.5 / devices)
    assert len(counted) == came["mask"]
    assert list(set(range(devices)) - set(counted.tolist())) == [vanishing["Has shown its keys"]]
    np.testing.assert_allclose(mean[counted], 1 / len(counted), atol=1e-3 / devices)


@on_day(0, of=2)
def test_a_hundred_clients_in_a_fast_round(server: Server) -> None:
    play(server, 100, {"Has shown its keys": 7, "Has sent its update": 13}, drop=8, exchange_s=60)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_thousand_clients_in_a_fast_round(server: Server) -> None:
    play(server, 1000, {"Has shown its keys": 7, "Has sent its update": 13}, drop=50, exchange_s=240)
