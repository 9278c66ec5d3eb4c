"""Of a secure round no answer of the API has a value of a single device: every answer to operators is searched, of a
round under way and of one that has ended. The same search finds them in plain rounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from client_sdk.protocol.names import Route
from coordinator.requests import TABLE
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.served import RUN, Served
from tests.coordinator.world import World

VALUES = {
    "bytes", "seconds", "fetch_s", "train_s", "encode_s", "examples", "weight", "metrics", "held_out",
    "held_out_examples", "steps", "steps_planned", "loss", "accuracy",
}  # fmt: skip
"""Names of what a device's work is measured by."""
STREAMS = (Route.EVENTS, Route.STREAM)


def answers(world: World, run: str) -> dict[str, Any]:
    """Every answer to GET that an owner may read, by its path: those of the table, and both streams."""
    key = world.coordinator.access.keys.create_owner("a test", "").text
    app = create_app(world.coordinator, Settings())
    templates = [entry.route for entry in TABLE if entry.method == "GET" and entry.permission.of_operators]
    found: dict[str, Any] = {}

    async def talk() -> None:
        transport = httpx2.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            for template in (*templates, *STREAMS):
                for row in world.rows if "{device}" in template else world.rows[:1]:
                    path = str(template).format(run=run, round=1, device=row.device, ledger=f"run:{run}")
                    answer = await http.get(path, params={"follow": "false"} if template in STREAMS else {})
                    # refused: this run has a plan, and no section [privacy]
                    refused = str(template).startswith((Route.FLOWER_RUNS, Route.RUN_PRIVACY))
                    expected = 404 if template == Route.LEDGER else 409 if refused else 200
                    assert answer.status_code == expected, (path, answer.text)
                    found[path] = told(answer)

    asyncio.run(talk())
    app.state.service.close()
    return found


def told(answer: httpx2.Response) -> Any:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    return answer.json()


def values(told: Any, devices: set[str], where: str = "") -> Iterator[str]:
    """Where a value stands beside the id of a device: in one object with it, under it, or in one list with it."""
    if isinstance(told, dict):
        if any(isinstance(one, str) and one in devices for one in told.values()):
            yield from (f"{where}.{name}" for name in sorted(VALUES & told.keys()) if told[name] not in (None, {}, ""))
        for name, one in told.items():
            if (
                name in devices
                and isinstance(one, int | float | dict | list)
                and not where.endswith((".barred", ".disputes"))
            ):
                yield f"{where}.<device>"
            yield from values(one, devices, f"{where}.{name}")
    elif isinstance(told, list):
        if any(isinstance(one, str) and one in devices for one in told) and any(
            isinstance(one, int | float) for one in told
        ):
            yield f"{where}[device, number]"
        for one in told:
            yield from values(one, devices, where)


def found(world: World, run: str) -> dict[str, set[str]]:
    devices = {row.device for row in world.rows}
    every = {path: set(values(answer, devices)) for path, answer in answers(world, run).items()}
    return {path: names for path, names in every.items() if names}


@pytest.fixture
def secure() -> Iterator[Served]:
    made = Served()
    made.secure_run()
    made.begin()
    yield made
    made.close()


@pytest.mark.parametrize("phase", ["sharing", "masking", "unmasking", "idle"])
def test_no_answer_of_a_secure_round_has_a_value_of_one_device(secure: Served, phase: str) -> None:
    secure.play(lambda: secure.state.phase == phase) if phase != "idle" else secure.play()
    assert secure.state.phase == phase
    assert found(secure, RUN) == {}
    lanes = secure.coordinator.insight.lanes.of_round(RUN, 1)
    assert (lanes.devices, lanes.lanes, lanes.buckets, lanes.ends) == (6, [], [], {})
    assert "secure" in lanes.secure


def test_the_same_search_finds_them_in_a_plain_round() -> None:
    world = World(4)
    world.create(finish={"rounds": 1})
    world.play_round(1)
    there = found(world, "marks")
    assert there["/v1/runs/marks/rounds/1/lanes"] == {
        ".lanes.bytes", ".lanes.encode_s", ".lanes.fetch_s", ".lanes.train_s",
    }  # fmt: skip
    events = there["/v1/runs/marks/events"]
    assert {".body.bytes", ".body.examples", ".body.metrics", ".body.seconds", ".body.cohort[device, number]"} <= events
    assert set(there) == {"/v1/runs/marks/rounds/1/lanes", "/v1/runs/marks/events"}


def test_the_search_finds_what_is_under_a_device() -> None:
    told = {"a": {"d1": 3}, "barred": {"d1": 4}, "b": [["d1", 2]], "c": {"who": "d1", "weight": 1, "bytes": None}}
    assert set(values(told, {"d1"})) == {".a.<device>", ".b[device, number]", ".c.weight"}
