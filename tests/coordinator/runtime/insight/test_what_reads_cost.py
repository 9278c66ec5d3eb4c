"""What people read of a fleet costs as much with many devices as with few: counted in steps of SQLite's machine, which
one request makes in the database, and in rows that it takes from there. No time is measured.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.insight import CheckPlan
from coordinator.engine.eligibility import offer_of
from coordinator.runtime.insight import fleet_views, participation, plan_check
from coordinator.runtime.insight.fleet_views import DeviceFilter
from coordinator.store import open_store, paging, sql
from coordinator.store.port import Store
from tests.coordinator.store import rows
from tests.coordinator.world import LEARNER, World

FEW, MANY = 400, 4000
EACH = 10
"""Steps are counted by so many."""
READS: dict[str, Callable[[World], Any]] = {
    "page": lambda world: listed(world),
    "text": lambda world: listed(world, q="no such text"),
    "class": lambda world: listed(world, device_class="zebra"),
    "seen": lambda world: listed(world, seen_since=world.clock.at + 1),
    **{
        state: lambda world, state=state: listed(world, state=state)
        for state in ("assigned", "waiting", "unfit", "away", "left")
    },
    "of a scope": lambda world: listed(world, sees=lambda run: False),
    "counts": lambda world: world.coordinator.insight.fleet.counts(),
    "fleet": lambda world: world.coordinator.insight.fleet.fleet(),
    "participation": lambda world: world.coordinator.insight.participation.of_run("marks", "", 50, fleet=True),
    "plan": lambda world: world.coordinator.insight.plans.check(CheckPlan(plan=world.plan()), permitted=bool),
    "runs": lambda world: world.coordinator.operators.runs(),
    "device": lambda world: world.coordinator.insight.fleet.device(world.rows[0].device),
    "registered": lambda world: world.store.registered_devices(),
}


def listed(world: World, **wanted: Any) -> list[str]:
    found = world.coordinator.insight.fleet.devices(20, "", DeviceFilter(**wanted))
    return [view.device for view in found]


def fill(store: Store, devices: int, now: float) -> None:
    """Devices that were seen once, of which every second waits."""
    offer = offer_of(CheckIn(examples=10, learners={LEARNER: "1"}))
    names = [f"d-{number:05}" for number in range(devices)]
    with store.transaction() as tx:
        tx.insert_device(*(rows.device(name, label=f"phone/{name}", last_seen_at=now - 90_000) for name in names))
        tx.put_waiting(rows.waiting(name, offer=offer, expires=now + 1e6) for name in names[::2])
    with store.transaction() as tx:
        for name in names[:3]:
            tx.forget_device(name, now)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts the steps and the rows of what is executed inside."""
    found = {"steps": 0, "rows": 0}
    execute = sql.SqliteConnection.execute

    def step() -> int:
        found["steps"] += EACH
        return 0

    class Counted:
        def __init__(self, cursor: sqlite3.Cursor) -> None:
            self._rows = cursor.fetchall()
            found["rows"] += len(self._rows)

        def fetchall(self) -> list[Any]:
            return self._rows

    def counting(self: sql.SqliteConnection, statement: Any, values: Any = sql.ALL) -> Any:
        self._driver.set_progress_handler(step, EACH)
        try:
            return Counted(execute(self, statement, values))
        finally:
            self._driver.set_progress_handler(None, 0)

    with monkeypatch.context() as patched:
        patched.setattr(sql.SqliteConnection, "execute", counting)
        yield found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    found = {}
    for devices in (FEW, MANY):
        path: Path = tmp_path_factory.mktemp("fleet") / "fleet.db"
        world = World(8, store=open_store(f"sqlite:///{path}"))
        fill(world.store, devices, world.clock.at)
        world.create(cohort={"select_s": 10})
        world.check_in()
        world.pass_time(11)
        found[devices] = world
    return found


@pytest.mark.parametrize("read", READS)
def test_a_larger_fleet_costs_no_more(read: str, worlds: dict[int, World], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (paging, fleet_views, participation):
        monkeypatch.setattr(module, "LOOKED_AT", 100)
    monkeypatch.setattr(fleet_views, "READ", 50)
    monkeypatch.setattr(plan_check, "_LOOKED_AT", 50)
    cost = {}
    for devices, world in worlds.items():
        READS[read](world)  # what a process reads once, it has read
        world.clock.at += 60
        with counted(monkeypatch) as found:
            READS[read](world)
        cost[devices] = found
    few, many = cost[FEW], cost[MANY]
    assert many["rows"] <= few["rows"] + 10, cost
    assert many["steps"] <= 1.2 * few["steps"] + 200, cost


def test_a_late_device_costs_no_more_where_many_are_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at where it was recorded already that it is late."""
    cost = {}
    for others in (FEW, MANY):
        store = open_store(f"sqlite:///{tmp_path / str(others)}.sqlite3")
        world = World(4, store=store)
        world.create()
        world.check_in()
        *first, late = world.cohort()
        with store.transaction() as tx:
            tx.insert_refusals(rows.refusal(f"d-{number}", run="marks", round=1) for number in range(others))
        world.report(*first)
        device, devices = world.rows[late].device, world.coordinator.devices
        with world.refuses("late"):
            devices.update_limit(device, "marks", 1, 0)
        with counted(monkeypatch) as found:
            with world.refuses("late"):
                devices.update_limit(device, "marks", 1, 0)
            assert devices.outcome(device, "marks", 1).result == "refused"
        cost[others] = found
        store.close()
    assert cost[MANY]["rows"] == cost[FEW]["rows"], cost
    assert cost[MANY]["steps"] <= 1.2 * cost[FEW]["steps"] + 200, cost
