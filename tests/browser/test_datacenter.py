"""The datacenter's part in a run, in the browser: speeds and leases are the API's, and scaling is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.workers import RESULT_HEADER
from tests.browser.conftest import Visitor
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_rounds import until
from tests.coordinator.service.test_workers import Worker, result

pytestmark = [pytest.mark.service, pytest.mark.slow]

Visit = Callable[..., Visitor]
SECTION = {"data": "proxy", "patience": 1, "lease_s": 4, "batch_size": 64, "steps": 100}
LEARNER = "tests:trained"
STORED_S = 1.1
"""A heartbeat is stored when a quarter of ``lease_s`` has passed."""


def fallen_back(server: Server, name: str, nproc: int) -> str:
    section = {**SECTION, "nproc": nproc}
    run = server.create_run(
        name, task={"learner": LEARNER}, cohort={"select_s": 0.05}, finish={"rounds": 1}, datacenter=section
    )
    until(lambda: server.http.get(Route.RUN.format(run=run)).json()["phase"] == "leasing")
    return run


def lease(worker: Worker, instance: str, nproc: int) -> dict[str, Any]:
    asked = {"instance": instance, "installation": "disk", "learners": {LEARNER: "1"}, "nproc": nproc}
    found: dict[str, Any] = worker.poll(**asked).json()
    assert found["kind"] == "lease", found
    return found


def deliver(worker: Worker, held: dict[str, Any], **metrics: float) -> None:
    path = Route.RESULT.format(run=held["run"], round=held["round"], attempt=held["attempt"])
    report = {"fence": held["fence"], "steps": 100, "examples": 6400, "metrics": {"loss": 0.5, **metrics}}
    worker.send("PUT", path, content=result(), headers={RESULT_HEADER: json.dumps(report)}).raise_for_status()


@pytest.fixture(scope="module")
def trained(server: Server) -> Worker:
    """The worker of a run whose second round it trained: it was started again in between, and so were its processes."""
    worker = Worker(server, fallen_back(server, "trained", 2))
    lease(worker, "i1", 2)
    time.sleep(STORED_S)
    told = {"samples_per_s": 900.0, "communication_share": 0.25, "loss": 0.9, "restarts": 1.0}
    worker.post(Route.HEARTBEAT, step=30, metrics=told).raise_for_status()
    held = lease(worker, "i2", 2)
    deliver(worker, held, samples_per_s=1000.0, communication_share=0.2)
    return worker


@pytest.fixture(scope="module", params=["dark", "light"])
def visitor(request: pytest.FixtureRequest, chromium: Any, server: Server, trained: Worker) -> Iterator[Visitor]:
    found = Visitor(chromium, server.url, color_scheme=request.param, reduced_motion="reduce")
    found.log_in(server.key)
    yield found
    found.close()


def fact(page: Any, name: str) -> str:
    return str(page.locator(f"[data-fact={name}]").inner_text())


def test_a_run_of_devices_says_how_to_have_a_datacenter(visit: Visit, server: Server) -> None:
    run = server.create_run("devices-alone")
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(f"#/runs/{run}/datacenter")
    page.get_by_text("Devices alone train this run").wait_for()
    assert page.get_by_text("quorate run create examples/fallback.toml").count()
    run = server.create_run("not-yet", datacenter={**SECTION, "nproc": 2})
    page = visitor.go(f"#/runs/{run}/datacenter")
    page.get_by_text("The datacenter has taken no round so far. It does after 1 abandoned round in a row.").wait_for()
    assert page.get_by_text("quorate datacenter join --token-file FILE --data proxy --nproc 2").count()


def test_speed_leases_and_restarts_are_those_of_the_api(visit: Visit, server: Server, trained: Worker) -> None:
    visitor = visit()
    page = visitor.log_in(server.key)
    page.get_by_role("link", name="trained").first.click()
    page.get_by_role("link", name="Datacenter").click()
    page.get_by_role("img", name="Training of round 2").wait_for()
    found = server.http.get(Route.ROUND_LEASES.format(run="trained", round=2)).json()
    assert [(one["began"], one["outcome"]) for one in found["leases"]] == [
        ("first", "replaced"),
        ("restarted", "delivered"),
    ]
    assert [fact(page, name) for name in ("samples", "share", "worker", "leases")] == ["1,000", "20 %", "trained", "2"]
    assert fact(page, "restarts") == "2", "one of the worker, one of its processes"
    page.get_by_role("region", name="When the datacenter took over").get_by_text(
        "1 federated round in a row had to be abandoned."
    ).wait_for()
    leases = page.get_by_role("region", name="Leases of round 2")
    assert [row.split("\t")[0] for row in leases.locator("tbody tr").all_inner_texts()] == ["2", "1"]
    assert leases.get_by_text("The worker was started again.").count() == 2, "why the one ended and the other began"
    page.get_by_role("button", name="Show the table").last.click()
    points = page.get_by_role("region", name="Training of round 2")
    assert [row.split("\t")[1:5] for row in points.locator("tbody tr").all_inner_texts()] == [
        ["2", "100", "1,000", "20 %"],
        ["1", "30", "900", "25 %"],
    ]
    workers = page.get_by_role("region", name="Registered workers")
    workers.get_by_role("cell", name=trained.id).wait_for()


def test_axe_finds_nothing_and_a_phone_shows_all_of_it(visitor: Visitor) -> None:
    page = visitor.go("#/runs/trained/datacenter")
    page.get_by_role("img", name="Training of round 2").wait_for()
    assert visitor.violations() == []
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        visitor.fits()
    finally:
        page.set_viewport_size({"width": 1400, "height": 900})


def test_scaling_is_told_once_a_baseline_was_measured(visit: Visit, server: Server, trained: Worker) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go("#/runs/trained/datacenter")
    page.get_by_text("No baseline was measured").wait_for()
    assert fact(page, "scaling") == "–"
    fallen_back(server, "alone", 1)
    deliver(trained, lease(trained, "i3", 1), samples_per_s=625.0)
    page.locator("[data-fact=scaling]").get_by_text("80 %").wait_for()
    page.get_by_text("2 processes train on 1,000 samples a second, one on 625").wait_for()
