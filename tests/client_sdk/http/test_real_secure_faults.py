"""Two dozen clients in one secure round of a real coordinator: one vanishes in each exchange, one is late for the
roster, one lies to another, which complains and counts; the liar is out. What is committed is the integer sum of the
survivors, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.protocol.devices import Task
from client_sdk.secagg import device
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.quantize import rounding_key
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.store import open_store
from coordinator.store.port import Json, Store
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.client_sdk.http.secure_clients import LEARNER, Network, SecureFleet
from tests.client_sdk.secagg.lanes_of_sums import mean_of_sum
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

DIMENSION = 9


def plan(select: int, goal: int, **secure: Any) -> dict[str, Any]:
    section = {"max_norm": 2.0, "max_abs": 1.0, "minimum_cohort": 3, "exchange_s": 10}
    return {
        "name": "hidden",
        "task": {"learner": LEARNER, "learner_version": "1.0"},
        "cohort": {"select": select, "goal": goal, "quorum": 0.4, "select_s": 30, "collect_s": 20},
        "aggregation": {"weighting": "examples", "weight_cap": 100, "partial": "refuse"},
        "finish": {"rounds": 1, "abandoned": 1},
        "secure": {**section, **secure},
    }


class Drawn:
    """A learner whose update is drawn once for each device, within the clip of the plan."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.delta = np.random.default_rng(slot).uniform(-0.3, 0.3, DIMENSION).astype(np.float32)
        self.trainings = 0

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        self.trainings += 1
        return Update({"w": self.delta.copy()}, examples=len(data.x), metrics={})


@dataclass
class Gone(httpx2.BaseTransport):
    """A network that fails for good when the message of this exchange is to be sent."""

    inner: httpx2.BaseTransport
    stage: str
    gone: bool = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.gone |= request.method == "PUT" and request.url.path.endswith(f"/attempts/0/secure/{self.stage}")
        if self.gone:
            raise httpx2.ConnectError("the device has vanished")
        return self.inner.handle_request(request)


@dataclass
class Slow(httpx2.BaseTransport):
    """A network that keeps the device's keys back until the first attempt has its roster."""

    inner: httpx2.BaseTransport
    rostered: threading.Event

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PUT" and request.url.path.endswith("/attempts/0/secure/advertise"):
            assert self.rostered.wait(90)
        return self.inner.handle_request(request)


@dataclass
class Seen(httpx2.BaseTransport):
    """A network that notes when the roster is there."""

    inner: httpx2.BaseTransport
    rostered: threading.Event

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PUT" and request.url.path.endswith("/secure/share"):
            self.rostered.set()
        return self.inner.handle_request(request)


def gone(stage: str) -> Network:
    return lambda inner: Gone(inner, stage)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def logged(store: Store, run: str, kind: str) -> list[Json]:
    return [row.body for row in store.events(run, 0) if row.kind == kind]


def outcomes(fleet: SecureFleet) -> dict[int, str]:
    """What each device has noted of the round, where it has noted its end."""
    found = {slot: list(storage.history()) for slot, storage in fleet.storages.items()}
    return {slot: entries[-1].result for slot, entries in found.items() if entries}


def secrets_of(fleet: SecureFleet) -> dict[int, bytes]:
    records = {slot: storage.load() for slot, storage in fleet.storages.items()}
    return {slot: bytes.fromhex(record.secret) for slot, record in records.items() if record is not None}


def require_exact(server: Server, run: str, fleet: SecureFleet, slots: list[int], names: dict[int, str]) -> None:
    """The model is that of the integer sum of these devices' lanes, and of no others, bit for bit."""
    rounding, committed = secrets_of(fleet), model_of(server, run)["w"]
    server.stop()
    store = open_store(f"sqlite:///{server.folder / 'quorate.sqlite3'}")
    try:
        assert sorted(row.device for row in store.contributions(run, 1)) == sorted(names[slot] for slot in slots)
        header = AttemptHeader.parse(bytes.fromhex(str(logged(store, run, "Announced")[-1]["header"])))
        n = len(logged(store, run, "Rostered")[-1]["groups"][0]["order"])  # type: ignore[arg-type]
        weight = logged(store, run, "Opened")[-1]["weight"]
    finally:
        store.close()
    total = np.zeros(header.lanes, np.int64)
    for slot in slots:
        key = rounding_key(rounding[slot], header.digest)
        delta = fleet.learners[slot].delta
        total += header.quantizer.lanes(delta, 10 + slot, header.lane_bits(n), key)
    assert weight == sum(10 + slot for slot in slots)
    mean, _ = mean_of_sum(header.quantizer, total, len(slots))
    assert committed.tobytes() == mean.astype(np.float32).tobytes()


@on_day(0, of=2)
def test_one_vanishes_in_each_exchange_one_is_late_and_one_complains_of_a_liar(
    real: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, liar, victim, rostered = 0, 1, 2, threading.Event()
    vanish = {3: "advertise", 4: "share", 5: "mask", 6: "survivors", 7: "unmask"}
    run = create(real, plan(22, goal=20), {"w": np.zeros(DIMENSION, np.float32)})
    networks = {slot: gone(stage) for slot, stage in vanish.items()}
    networks |= {late: lambda inner: Slow(inner, rostered), 8: lambda inner: Seen(inner, rostered)}

    dealt = device.deal

    def deal(cohort: Any, place: int, *others: Any) -> Any:
        bundle, own = dealt(cohort, place, *others)
        if threading.current_thread().name != f"d{liar}":
            return bundle, own
        wronged = cohort.place_of(fleet.device(victim))
        rows = tuple((to, bytes(len(pair)) if to == wronged else pair, digests) for to, pair, digests in bundle.rows)
        return replace(bundle, rows=rows), own

    monkeypatch.setattr(device, "deal", deal)
    fleet = SecureFleet(real, tmp_path / "devices", [Drawn(slot) for slot in range(22)], networks)
    survivors = [slot for slot in range(22) if slot not in (late, liar, 3, 4, 5)]
    try:
        view = wait_for_end(real, run)
        for slot in survivors:
            if slot not in vanish:
                fleet.wait_for(slot, "under masks.")
        fleet.wait_for(late, "no run is under way")
        fleet.wait_for(liar, "Withdrew")
        names = {slot: fleet.device(slot) for slot in range(22)}
        assert (view.status, view.version) == ("finished", 1)
        found = outcomes(fleet)
        assert {slot: result for slot, result in found.items() if slot in survivors} == {
            slot: "receipt" for slot in survivors if slot not in vanish
        }
        assert (found[late], found[liar]) == ("dropped", "withdrawn"), "it cannot open what it dealt"
        (row,) = real.http.get(f"/v1/runs/{run}/rounds").json()
        assert (row["status"], row["attempt"]) == ("committed", 0)
        assert (row["funnel"]["reported"], row["secure"]["excluded"]) == (len(survivors), 1)
        disputes = real.http.get(f"/v1/runs/{run}").json()["disputes"]
        assert disputes == {names[liar]: 1, names[victim]: 1}
    finally:
        fleet.end()
    require_exact(real, run, fleet, survivors, names)
