"""The server process: its folder and token, how it starts, how it refuses, how it stops."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from coordinator.blobs import BlobError, FileBlobs
from coordinator.service import process
from coordinator.settings import Settings
from coordinator.store import open_store
from coordinator.store.port import StoreError
from coordinator.verify import verify
from tests.coordinator.service.conftest import Server, launch
from tests.coordinator.service.devices import Device
from tests.coordinator.service.test_rounds import until


def refused(folder: Path, *options: str, port: int = 0) -> str:
    """Starts a server that must not start; returns its one sentence."""
    process = launch(folder, *options, port=port)
    found, error = process.communicate(timeout=30)
    assert process.returncode == 1, found
    assert found == ""
    assert len(error.strip().splitlines()) == 1, error
    return error


@pytest.mark.slow
def test_it_stops_cleanly_and_quickly_and_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = Server.start(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "enrolment-token").stat().st_mode) == 0o600
    assert (folder / "enrolment-token").read_text().strip() == first.token
    run = first.create_run("kept", select=2, goal=2)
    device = first.device("kept")
    answers: list[dict] = []
    held = threading.Thread(target=lambda: answers.append(device.check_in(50).json()))
    held.start()
    until(lambda: first.meter("quorate_held_check_ins") == 1)
    stream = threading.Thread(target=lambda: first.http.get(f"/v1/runs/{run}/events"))
    stream.start()
    until(lambda: first.meter("quorate_event_streams") == 1)
    began = time.monotonic()
    first.process.send_signal(signal.SIGINT)
    held.join(5)
    stream.join(5)
    assert answers[0]["kind"] == "wait"
    assert first.stop() == 0
    assert time.monotonic() - began < 4
    assert "Traceback" not in first.process.stderr.read()

    second = Server.start(folder)
    try:
        assert second.token == first.token
        assert second.http.get(f"/v1/runs/{run}").json()["status"] == "running"
        device.http = second.http
        assert device.check_in(0).json()["kind"] == "wait"
    finally:
        assert second.stop(signal.SIGTERM) == 0


@pytest.mark.slow
def test_killed_in_every_round_the_server_optimizer_goes_on_with_its_state(tmp_path: Path) -> None:
    """Every round is folded again at the end, each from the state that its predecessor left."""
    folder = tmp_path / "data"
    adam = {"server_optimizer": "fedadam", "server_learning_rate": 0.1}
    server = Server.start(folder)
    server.create_run("adam", select=2, goal=2, aggregation=adam, retention={"rounds": 9})
    devices = [server.device("adam", 0), server.device("adam", 1)]
    for version in (1, 2, 3):
        waiting = threading.Thread(target=devices[0].check_in, args=(20,))
        waiting.start()
        work = devices[1].wait_for_work()
        waiting.join()
        devices[1].put(work, devices[1].body(work, value=version)).raise_for_status()
        server.stop(signal.SIGKILL)
        server = Server.start(folder)
        for device in devices:
            device.http = server.http
        again = devices[0].wait_for_work(0)
        devices[0].put(again, devices[0].body(again, value=-0.5 * version)).raise_for_status()
        reached = (server.http, version)
        until(lambda found=reached: found[0].get("/v1/runs/adam").json()["version"] == found[1])  # type: ignore[misc]
    server.stop(signal.SIGKILL)
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    try:
        assert len({row.optimizer for row in store.checkpoints("adam")}) == 4
        assert list(verify(store, FileBlobs(folder / "blobs"))) == []
    finally:
        store.close()


@pytest.mark.slow
def test_after_a_kill_an_assignment_and_a_receipt_are_still_the_same(tmp_path: Path) -> None:
    first = Server.start(tmp_path / "data")
    first.create_run("killed", select=2, goal=2)
    devices = [first.device("killed", 0), first.device("killed", 1)]
    waiting = threading.Thread(target=devices[0].check_in, args=(20,))
    waiting.start()
    work = devices[1].wait_for_work()
    waiting.join()
    body = devices[1].body(work)
    receipt = devices[1].put(work, body).json()
    first.stop(signal.SIGKILL)

    second = Server.start(tmp_path / "data")
    try:
        for device in devices:
            device.http = second.http
        assert devices[1].put(work, body).json() == receipt
        again = devices[0].wait_for_work(0)
        assert (again.round, again.checkpoint) == (work.round, work.checkpoint)
        devices[0].put(again, devices[0].body(again)).raise_for_status()
        until(lambda: second.http.get("/v1/runs/killed").json()["version"] == 1)
        assert devices[1].outcome("killed", work.round).json()["result"] == "counted"
    finally:
        second.stop()


@pytest.mark.slow
def test_one_folder_has_one_server_and_one_port_has_one_too(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "--port" in refused(tmp_path / "other", port=taken.getsockname()[1])
    running = Server.start(tmp_path / "data")
    try:
        found = refused(tmp_path / "data")
        assert "--data" in found
        assert str(running.process.pid) in found
    finally:
        running.stop()


@pytest.mark.slow
def test_the_error_for_a_folder_that_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    assert "is beyond this machine" in refused(tmp_path / "data", "--host", "0.0.0.0")
    (tmp_path / "file").write_text("not a folder")
    assert "--data" in refused(tmp_path / "file")
    assert "atabase" in refused(tmp_path / "data", "--database", "sqlite:////nowhere/at/all.sqlite3")


@pytest.mark.parametrize("error", [StoreError("The disk is full"), BlobError("The disk is full")])
def test_a_folder_that_fails_while_it_is_opened_is_one_sentence(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(core: object) -> None:
        raise error

    monkeypatch.setattr(process, "sweep", fail)
    for changes in ("raise_file_limit", "_give_memory_back"):
        monkeypatch.setattr(process, changes, lambda: None)  # they would change this process
    with pytest.raises(process.CannotServe, match=r"^The data folder cannot be used: The disk is full$"):
        process.serve(Settings(data=tmp_path / "data", port=0), lambda url, key_file, settings: None)


@pytest.mark.slow
def test_without_json_it_tells_people_what_to_do_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coordinator.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(5)]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    text = "".join(lines)
    assert "http://127.0.0.1:" in text
    assert "/docs" in text
    assert (tmp_path / "data" / "enrolment-token").read_text().strip() in text
    assert process.returncode == 0


def test_settings_come_from_the_environment_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_THREADS", "3")
    assert Settings().threads == 3
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert Settings(host=host).host == host
    for wrong in ({"host": "10.0.0.1"}, {"host": "example.org"}, {"port": 70_000}, {"pace_min_s": 9, "pace_max_s": 3}):
        with pytest.raises(ValidationError):
            Settings(**wrong)


@pytest.mark.slow
def test_the_enrolment_token_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_ENROLMENT_TOKEN", "a-token-of-our-own")
    running = Server.start(tmp_path / "data")
    try:
        assert running.token == "a-token-of-our-own"
        assert not (tmp_path / "data" / "enrolment-token").exists()
        assert Device(running.http, running.token, "any").id
    finally:
        running.stop()
