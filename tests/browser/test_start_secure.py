"""A secure run from a checkpoint that devices have signed for: the page says so first; started, it is exhausted and is
advanced, paused and stopped from the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.names import Route
from tests.browser.conftest import Visitor
from tests.client_sdk.http.operated import create, wait_for_end
from tests.client_sdk.http.secure_clients import SecureFleet
from tests.client_sdk.http.test_real_secure_rounds import DEVICES, PLAN, ROUNDS, Mark
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.service, pytest.mark.slow]

SECURE = {
    **PLAN,
    "name": "sealed",
    "cohort": {**PLAN["cohort"], "select_s": 4},
    "finish": {"rounds": 1},
}


@pytest.fixture
def spent(server: Server, tmp_path: Path) -> Iterator[str]:
    """A secure run of one round. Its devices, which have signed for version 0, stay."""
    run = create(server, SECURE, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    fleet = SecureFleet(server, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)])
    try:
        wait_for_end(server, run)
        yield run
    finally:
        fleet.end()


@on_day(0, of=2)
def test_spent_devices_are_said_first_and_the_exhausted_run_is_advanced(
    visit: Callable[..., Visitor], server: Server, spent: str
) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(f"#/runs/{spent}/checkpoints")
    page.get_by_role("link", name="Start a new run from here, version 0").click()
    said = page.locator("[data-fact=spent]")
    said.get_by_text(f"{DEVICES} of {DEVICES} registered devices are spent on this checkpoint").wait_for()
    assert said.get_by_role("listitem").all_inner_texts()[0].startswith("start from another checkpoint")
    assert visitor.violations() == []
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("heading", name=f"{spent}-2", exact=True).wait_for()
    advance = page.get_by_role("button", name="Advance", exact=True)
    advance.wait_for(timeout=60_000)
    advance.click()
    page.locator("[data-fact=rounds]").wait_for()

    def done() -> list[Any]:
        rows = server.http.get(Route.AUDIT, params={"limit": 10_000}).json()
        return [row["action"] for row in rows if row["run"] == f"{spent}-2"]

    advance.wait_for(state="detached")
    assert "run.advance" in done()
    found = server.http.get(Route.RUN.format(run=f"{spent}-2")).json()
    assert found["exhausted"] == ""
    assert found["version"] >= 1


def test_a_newer_checkpoint_has_no_spent_devices(visit: Callable[..., Visitor], server: Server, spent: str) -> None:
    visitor = visit()
    visitor.log_in(server.key)
    page = visitor.go(f"#/start/{spent}/1")
    page.get_by_text("No registered device is spent on this checkpoint").wait_for()
    page.get_by_label("Version").select_option("0")
    page.locator("[data-fact=spent]").wait_for()
