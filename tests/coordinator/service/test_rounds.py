"""Rounds over HTTP: what each device is answered, and who counted, read from the marks in the sum."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator

import httpx2
import numpy as np
import pytest

from client_sdk.protocol.devices import Outcome, Receipt
from client_sdk.protocol.names import Route, content_digest
from client_sdk.protocol.operators import CheckpointView, RoundView, RunView
from client_sdk.tensors import from_bytes
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_edge import refused

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without the runs of other files: a check-in is held only where no run is without this device's learner."""
    running = Server.start(tmp_path_factory.mktemp("coordinator") / "data")
    yield running
    running.stop()


def until(condition, timeout_s: float = 20) -> None:
    """Reads again until the condition holds; for what happens after an answer was sent."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_a_round_from_check_in_to_commit(server: Server) -> None:
    run = server.create_run("spine", select=3, goal=2, finish={"rounds": 1})
    devices = [server.device("spine", slot) for slot in range(3)]
    answers: dict[int, object] = {}

    def wait(device) -> None:
        answers[device.slot] = device.wait_for_work()

    threads = [threading.Thread(target=wait, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work = [answers[slot] for slot in range(3)]
    assert {w.round for w in work} == {1}
    assert [w.device for w in work] == [device.id for device in devices]
    assert devices[0].check_in().json()["checkpoint"] == work[0].checkpoint.model_dump()  # the same work again

    fetched = devices[0].fetch(work[0])
    assert hashlib.sha256(fetched.content).hexdigest() == work[0].checkpoint.digest
    assert len(fetched.content) == work[0].checkpoint.bytes
    for device, task in zip(devices, work, strict=True):
        assert device.started(task).json() == {"ok": True}
    assert server.http.get(f"/v1/runs/{run}").json()["funnel"]["training"] == 3

    first = devices[0].body(work[0], value=1.0)
    digest = hashlib.sha256(first).hexdigest()
    receipt = Receipt.model_validate_json(devices[0].put(work[0], first).content)
    assert (receipt.device, receipt.digest, receipt.weight) == (devices[0].id, digest, 10)
    again = devices[0].put(work[0], first)
    assert Receipt.model_validate_json(again.content) == receipt
    refused(devices[0].put(work[0], devices[0].body(work[0], value=2.0)), 409, "duplicate")
    assert devices[0].outcome(run, 1).json()["result"] == "pending"

    assert devices[1].put(work[1], devices[1].body(work[1], value=3.0)).status_code == 200
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["status"] == "finished")
    late = devices[2].put(work[2], devices[2].body(work[2]))
    refused(late, 409, "late")

    view = RunView.model_validate_json(server.http.get(f"/v1/runs/{run}").content)
    assert (view.version, view.rounds_committed, view.round) == (1, 1, 1)
    sum_ = from_bytes(server.http.get(Route.CHECKPOINT.format(digest=view.checkpoint)).content)["marks"]
    expected = np.zeros(64, np.float32)
    expected[0], expected[1] = 0.5, 1.5
    assert np.array_equal(sum_, expected)
    outcomes = [Outcome.model_validate_json(device.outcome(run, 1).content) for device in devices]
    assert [outcome.result for outcome in outcomes] == ["counted", "counted", "refused"]
    line = [CheckpointView.model_validate(row) for row in server.http.get(f"/v1/runs/{run}/checkpoints").json()]
    assert [row.version for row in line] == [0, 1]
    assert line[1].parent == line[0].digest
    record = RoundView.model_validate_json(server.http.get(f"/v1/runs/{run}/rounds/1").content)
    assert (record.status, record.weight, record.funnel.reported, record.funnel.late) == ("committed", 20, 2, 1)
    assert server.meter('quorate_rounds_total{kind="federated",outcome="committed"}') >= 1


def test_bad_updates_are_refused_and_the_round_goes_on(server: Server) -> None:
    run = server.create_run("bad", finish={"rounds": 1})
    device = server.device("bad", 5)
    work = device.wait_for_work()
    good = device.body(work)
    bad = bytearray(good)
    bad[-4:] = np.float32(np.nan).tobytes()
    refused(device.put(work, b"x" * (work.max_update_bytes + 1)), 413, "too-large")
    refused(device.put(work, good, signed=b"other bytes"), 422, "digest-mismatch")
    refused(device.put(work, good, replaced={"Content-Digest": "md5=abc"}), 401, "unauthenticated")
    refused(device.put(work, good, replaced={"Content-Digest": content_digest("0" * 64)}), 401, "bad-signature")
    refused(device.put(work.model_copy(update={"round": 9}), good), 409, "stale")
    refused(device.put(work.model_copy(update={"run": "other"}), good), 404, "unknown-run")
    stranger = server.device("bad", 6)
    refused(stranger.put(work, good), 403, "not-selected")
    why = refused(device.put(work, bytes(bad)), 422, "invalid-update")
    assert refused(device.put(work, bytes(bad)), 422, "invalid-update") == why, "the same request, the same answer"
    view = RoundView.model_validate_json(server.http.get(f"/v1/runs/{run}/rounds/1").content)
    assert (view.status, view.funnel.refused, view.departures) == ("abandoned", 1, f"1 update was refused: {why}")
    assert server.meter('quorate_round_devices_total{outcome="refused"}') == 1
    line = f"the last round was abandoned, because {view.reason}. {view.departures}"
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["ok"], ready.json()["stalled"]) == (200, True, {run: line})
    assert server.http.get(f"/v1/runs/{run}").json()["stalled"] == line
    server.http.post(f"/v1/runs/{run}/stop").raise_for_status()
    stored = {path.name for path in (server.folder / "blobs" / "spool").iterdir()}
    assert stored == set()


def test_a_body_in_chunks_is_taken_up_to_its_limit(server: Server) -> None:
    server.create_run("chunks", finish={"rounds": 2})
    device = server.device("chunks", 7)
    work = device.wait_for_work()
    body = device.body(work)
    refused(device.put(work, iter([b"x" * 1000] * (work.max_update_bytes // 1000 + 2))), 413, "too-large")
    assert device.put(work, iter([body[:100], body[100:]])).status_code == 200
    server.http.post("/v1/runs/chunks/stop")


def test_who_withdraws_is_not_waited_for(server: Server) -> None:
    server.create_run("leaves", select=2, goal=1, finish={"rounds": 1})
    devices = [server.device("leaves", 8), server.device("leaves", 9)]
    thread = threading.Thread(target=devices[0].check_in, args=(20,))
    thread.start()
    work = devices[1].wait_for_work()
    thread.join()
    assert devices[1].withdraw(work, "the battery is low").json() == {"ok": True}
    refused(devices[1].put(work, devices[1].body(work)), 409, "withdrawn")
    assert devices[1].outcome("leaves", 1).json()["result"] == "withdrawn"
    assert server.http.get("/v1/runs/leaves/rounds/1").json()["funnel"]["withdrawn"] == 1
    server.http.post("/v1/runs/leaves/stop")


def test_a_held_check_in_is_answered_when_a_run_begins(server: Server) -> None:
    device = server.device("wakes", 10)
    answer: dict[str, object] = {}
    thread = threading.Thread(target=lambda: answer.update(work=device.wait_for_work(20)))
    thread.start()
    until(lambda: server.meter("quorate_held_check_ins") == 1)
    began = time.monotonic()
    server.create_run("wakes", finish={"rounds": 1})
    thread.join()
    assert time.monotonic() - began < 5, "it was found by reading again, not by a signal"
    assert answer["work"].run == "wakes"
    assert server.meter("quorate_held_check_ins") == 0
    server.http.post("/v1/runs/wakes/stop")


def test_a_device_without_work_gets_a_reason_and_a_time_to_return(server: Server) -> None:
    wait = server.device("nothing", 11).check_in(0).json()
    assert wait["kind"] == "wait"
    assert wait["reason"]
    assert 0 <= wait["min_s"] <= wait["max_s"]


def test_a_client_that_goes_away_leaves_the_pool(server: Server) -> None:
    device = server.device("gone", 12)
    with pytest.raises(httpx2.TimeoutException):
        device.check_in(50, timeout=0.3)

    def state() -> str:
        return {row["device"]: row["state"] for row in server.http.get("/v1/devices").json()}[device.id]

    until(lambda: state() == "away")
    assert server.meter("quorate_held_check_ins") == 0


def test_the_newer_of_two_check_ins_of_a_device_is_the_one_that_counts(server: Server) -> None:
    device = server.device("twice", 13)
    older: dict[str, object] = {}
    thread = threading.Thread(target=lambda: older.update(answer=device.check_in(20).json()))
    thread.start()
    until(lambda: server.meter("quorate_held_check_ins") == 1)
    newer: dict[str, object] = {}
    second = threading.Thread(target=lambda: newer.update(work=device.wait_for_work(20)))
    second.start()
    thread.join(5)
    assert older["answer"]["kind"] == "wait"
    server.create_run("twice", finish={"rounds": 1})
    second.join()
    assert newer["work"].run == "twice"
    server.http.post("/v1/runs/twice/stop")
