"""A buffered run over HTTP: slow and fast devices, and a coordinator that is killed in the middle of it."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx2
import pytest

from client_sdk.protocol.devices import Assignment, Outcome, Receipt
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import open_store
from coordinator.verify import verify
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until

pytestmark = [pytest.mark.whole, pytest.mark.slow]
ROUNDS = 8
PLAN = {
    "cohort": {"select": 300, "goal": 2, "collect_s": 60},
    "buffered": {"concurrency": 4, "most_stale": 2},
    "finish": {"rounds": ROUNDS},
    "retention": {"rounds": ROUNDS},
}


def trains(device: Device, over: threading.Event) -> None:
    """Trains until the run is over; sends what has no answer again, as real devices do."""
    while not over.is_set():
        try:
            answer = device.check_in(2)
            if answer.status_code != 200 or answer.json()["kind"] != "assignment":
                continue
            work = Assignment.model_validate_json(answer.content)
            body = device.body(work, value=1.0)
            while not over.is_set() and device.put(work, body).status_code == 503:
                time.sleep(0.05)
        except httpx2.HTTPError:
            time.sleep(0.05)


def test_slow_and_fast_devices_and_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    run = server.create_run("buffered", **PLAN)
    slow, slower = server.device("buffered", 0), server.device("buffered", 1)
    kept, lost = slow.wait_for_work(), slower.wait_for_work()
    assert (kept.round, kept.checkpoint.version) == (1, 0)
    fast = [server.device("buffered", slot) for slot in (2, 3, 4)]

    def version() -> int:
        return int(server.http.get(f"/v1/runs/{run}").json()["version"])

    for one, other in ((0, 1),):
        for device in (fast[one], fast[other]):
            work = device.wait_for_work()
            assert device.put(work, device.body(work, value=1.0)).status_code == 200
    until(lambda: version() == 1)

    server.process.send_signal(signal.SIGKILL)
    server.process.wait(10)
    port = int(server.url.rsplit(":", 1)[1])
    server = Server.start(tmp_path / "data", port=port)
    for device in (slow, slower, *fast):
        device.http = server.http
    again = Assignment.model_validate_json(slow.check_in(0).content)
    assert (again.round, again.checkpoint) == (kept.round, kept.checkpoint), "its place has outlived the process"
    assert slow.fetch(again).status_code == 200, "and so has the version that it trains"
    stale = slow.put(kept, slow.body(kept, value=1.0))
    receipt = Receipt.model_validate_json(stale.content)
    assert (receipt.round, receipt.weight) == (1, 10 * 45), "10 examples, one version behind"

    over = threading.Event()
    threads = [threading.Thread(target=trains, args=(device, over)) for device in fast]
    for thread in threads:
        thread.start()
    until(lambda: version() >= 4)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(10)
    server = Server.start(tmp_path / "data", port=port)
    for device in (slow, slower, *fast):
        device.http = server.http
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["status"] == "finished")
    over.set()
    for thread in threads:
        thread.join(30)
    assert version() == ROUNDS
    why = refused(slower.put(lost, slower.body(lost)), 409, "late")
    assert "the update is of version" in why
    outcomes = [Outcome.model_validate_json(one.outcome(run, 1).content) for one in (slow, slower)]
    assert [(one.result, one.version) for one in outcomes] == [("counted", 2), ("refused", None)]
    assert slow.put(kept, slow.body(kept, value=1.0)).content == stale.content
    assert server.stop() == 0
    store = open_store(f"sqlite:///{tmp_path / 'data' / DATABASE_FILE}")
    try:
        folder: BlobFolder = FileBlobs(tmp_path / "data" / BLOBS_FOLDER)
        assert list(verify(store, folder)) == []
        for number in range(1, ROUNDS + 1):
            assert len(store.contributions(run, number)) == 2
    finally:
        store.close()
