"""Every route that reads, of the table and beside it, asked by who sees one run only: nothing of another run comes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from client_sdk.protocol.names import NEXT_HEADER, Route
from tests.coordinator.service.apps import give_back
from tests.coordinator.service.test_scopes import Served

STREAMS = {Route.EVENTS: "?follow=false", Route.STREAM: "?follow=false"}


@pytest.fixture(scope="module")
def two_runs() -> Iterator[Served]:
    """``blue`` has a round under way with half of the devices, and rows of the audit."""
    served = Served()
    world = served.world
    message = world.message().model_copy(update={"learners": {"tests:blue": "1"}})
    for row in world.rows:
        world.coordinator.devices.check_in(row, message)()
    world.settle()
    for run in ("red", "blue"):
        served.ask("POST", f"/v1/runs/{run}/pause", served.key("operator", run)).raise_for_status()
    yield served
    served.service.close()
    give_back(served.app)


def devices_of_blue(served: Served) -> list[str]:
    found = [row.device for row in served.world.coordinator.insight.fleet.devices() if row.run == "blue"]
    assert len(found) == 4
    return found


@pytest.mark.parametrize("role", ["viewer", "operator", "owner"])
def test_who_sees_one_run_reads_nothing_of_another_on_any_route(two_runs: Served, role: str) -> None:
    operators, devices = two_runs.world.coordinator.operators, devices_of_blue(two_runs)
    blue = operators.run("blue")
    secrets = {"blue", str(blue.checkpoint), blue.plan_digest, *devices}
    key, asked, names = two_runs.key(role, "red"), 0, {"round": "1", "device": devices[0]}
    for path, methods in two_runs.app.openapi()["paths"].items():
        if "get" not in methods:
            continue
        for run in ("red", "blue"):
            digest = operators.run(run).checkpoint
            filled = path
            for name, value in {**names, "run": run, "digest": str(digest)}.items():
                filled = filled.replace(f"{{{name}}}", value)
            filled = re.sub(r"\{\w+\}", "x", filled)
            paged = any(one["name"] == "limit" for one in methods["get"].get("parameters", ()))
            answer = two_runs.ask("GET", filled + STREAMS.get(path, "?limit=1" if paged else ""), key)
            assert answer.status_code < 500, filled
            shown = answer.text.replace(filled, "").replace("run blue is outside of your scope", "")
            shown += answer.headers.get(NEXT_HEADER, "")
            found = {secret for secret in secrets if secret in shown and secret not in filled}
            assert not found, (filled, answer.status_code, found, shown[:300])
            asked += answer.status_code == 200
    assert asked > 10, "most routes answer for red"
