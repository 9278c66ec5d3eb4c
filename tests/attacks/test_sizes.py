"""A viewer who reads the total weight of each secure round, and who was in it: linear equations whose solution is every
device's number of examples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import Route
from client_sdk.update import Update, Work
from coordinator.access import LOCAL_OWNER
from coordinator.blobs import MemoryBlobs
from coordinator.runtime import views
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.settings import Settings
from simulation import simulate
from simulation.history.recorded_run import RecordedRun
from tests.coordinator.service.test_no_values_of_one_device import told
from tests.rotating import on_day

pytestmark = pytest.mark.slow

DEVICES, PER_ROUND, ROUNDS = 26, 20, 28
SIZES = np.random.default_rng(5).integers(20, 600, DEVICES)


def learner(model: Any, data: Any, task: Any) -> Update:
    return Update({"w": np.ones(4, np.float32)}, examples=len(data[0]), work=Work(steps=4))


def plan(weighting: str, rounds: int) -> dict[str, Any]:
    return {
        "name": "sizes",
        "cohort": {"select": PER_ROUND, "goal": PER_ROUND, "pool": DEVICES, "quorum": 1.0},
        "aggregation": {"weighting": weighting, "partial": "refuse"},
        "secure": {"max_norm": 4.0, "max_abs": 2.0, "minimum_cohort": 3, "reserve": 0},
        "finish": {"rounds": rounds},
    }


def seen_by_a_viewer(coordinator: Coordinator, *routes: str) -> list[Any]:
    """The answers over HTTP."""
    key = coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="viewer")).text
    app, found = create_app(coordinator, Settings()), []

    async def talk() -> None:
        headers = {"Authorization": f"Bearer {key}"}
        wire = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=wire, base_url="http://localhost", headers=headers) as http:
            for route in routes:
                params = {"follow": "false"} if route is Route.EVENTS else {}
                answer = await http.get(route.format(run="sizes"), params=params)
                assert answer.status_code == 200, answer.text
                found.append(told(answer))

    asyncio.run(talk())
    app.state.service.close()
    return found


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    """It has played the rounds."""
    with played("examples", ROUNDS) as history:
        yield Coordinator(Core(history._store, MemoryBlobs()))


def played(weighting: str, rounds: int) -> RecordedRun:
    clients = {f"c{number:02}": (np.zeros((size, 1)), np.zeros(size)) for number, size in enumerate(SIZES)}
    start = {"w": np.zeros(4, np.float32)}
    return simulate(plan(weighting, rounds), learner, clients, init=start, secure="quantized", progress=False)


def exact_sizes(coordinator: Coordinator) -> int:
    """Of how many devices the viewer finds the size."""
    rounds, events = seen_by_a_viewer(coordinator, Route.ROUNDS, Route.EVENTS)
    inside = np.zeros((ROUNDS, DEVICES))
    for event in events:
        if event["kind"] == "Masked":
            inside[event["body"]["round"] - 1, int(event["body"]["device"][1:])] = 1
        assert "weight" not in event["body"]
    assert np.all(inside.sum(axis=1) == PER_ROUND)
    totals = np.array([one["weight"] for one in rounds], float)
    solved = np.linalg.lstsq(inside, totals, rcond=None)[0]
    return int(np.sum(np.abs(solved - SIZES) < 0.5))


@on_day(1, of=2)
def test_the_totals_that_a_viewer_sees_give_no_devices_size(coordinator: Coordinator) -> None:
    assert exact_sizes(coordinator) == 0


def test_exact_totals_give_nearly_all(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding is what holds."""
    monkeypatch.setattr(views, "rounded_total", lambda weight, devices: weight)
    assert exact_sizes(coordinator) >= 23


def test_equal_weights_have_the_number_of_devices_as_their_total() -> None:
    with played("equal", 1) as history:
        (rounds,) = seen_by_a_viewer(Coordinator(Core(history._store, MemoryBlobs())), Route.ROUNDS)
    assert [one["weight"] for one in rounds] == [PER_ROUND]


@pytest.mark.parametrize(
    ("weight", "devices", "shown"),
    [(0, 0, 0), (64, 64, 64), (65, 64, 70), (640, 64, 640), (641, 64, 600), (5_149, 17, 5_000), (5_500, 17, 6_000)],
)
def test_one_device_of_usual_size_does_not_show_in_a_rounded_total(weight: int, devices: int, shown: int) -> None:
    assert views.rounded_total(weight, devices) == shown
