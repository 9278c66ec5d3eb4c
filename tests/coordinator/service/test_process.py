"""The server process: its folder, how it starts, how it refuses, how it stops."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from pydantic import ValidationError

from coordinator.authority.app import inside_authority
from coordinator.blobs import BlobError, BlobFolder
from coordinator.key_file import made_or_read
from coordinator.service import process
from coordinator.settings import Settings
from coordinator.store import open_store
from coordinator.store.port import StoreError
from coordinator.verify import AuditWitness, verify
from tests import forks
from tests.coordinator.service.conftest import Server, launch
from tests.coordinator.service.test_rounds import until
from tests.rotating import in_parts, on_day


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
        assert second.http.get(f"/v1/runs/{run}").json()["status"] == "running"
        device.http = second.http
        assert device.check_in(0).json()["kind"] == "wait"
    finally:
        assert second.stop(signal.SIGTERM) == 0


@on_day(0, of=3)
def test_its_numerical_libraries_have_one_thread_unless_its_user_says_otherwise(tmp_path: Path) -> None:
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}

    def threads(**given: str) -> int:
        """Of the whole process, once it is ready: numerical libraries start theirs when they are loaded."""
        command = [sys.executable, "-m", "coordinator.cli", "serve", "--json", "--data", str(tmp_path / "data")]
        started = subprocess.Popen(
            [*command, "--port", "0"], env=others | given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert started.stdout is not None
        assert started.stdout.readline()
        found = len(list(Path(f"/proc/{started.pid}/task").iterdir()))
        started.terminate()
        started.communicate(timeout=30)
        return found

    alone = threads()
    assert threads(OMP_NUM_THREADS="1") == alone
    assert threads(OMP_NUM_THREADS="2") == alone + 1


@on_day(1, of=3)
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
        assert len({row.named_tensors.get("server-optimizer") for row in store.checkpoints("adam")}) == 4
        assert list(verify(store, BlobFolder(folder / "blobs"))) == []
    finally:
        store.close()


@on_day(1, of=2)
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


@on_day(2, of=3)
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


@on_day(2, of=3)
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
        process.serve(Settings(data=tmp_path / "data", port=0), lambda ready: None, inside_authority)


@pytest.mark.slow
@pytest.mark.parametrize("options", in_parts([pytest.param(()), pytest.param(("--dev-authority",))], of=2))
def test_without_json_it_tells_people_what_to_do_next(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "coordinator.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(7 if options else 6)]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    text = "".join(lines)
    assert "http://127.0.0.1:" in text
    assert "/docs" in text
    if options:
        for joins, holder in (("device", "device"), ("datacenter join", "worker")):
            assert f"quorate {joins} --token-file {tmp_path}/data/authority/{holder}-token --data" in text
        assert "qe1_" not in text
        assert "could make devices up" in text
    else:
        assert "none, so no device can register" in text
    assert process.returncode == 0


def test_settings_come_from_the_environment_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_THREADS", "3")
    assert Settings().threads == 3
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert Settings(host=host).host == host
    for wrong in ({"host": "10.0.0.1"}, {"host": "example.org"}, {"port": 70_000}, {"pace_min_s": 9, "pace_max_s": 3}):
        with pytest.raises(ValidationError):
            Settings(**wrong)


def of_audit(folder: Path, *keys: str) -> tuple[list[tuple[str, str]], list[str]]:
    """((who, what) of each row of the audit, what ``verify`` finds wrong in it). ``keys``: who may have signed."""
    store = open_store(f"sqlite:///{folder / 'quorate.sqlite3'}")
    try:
        found = [(row.by, row.action) for _, row in store.audit_of_all(0, 1000)]
        wrong = [item.what for item in verify(store, audit=AuditWitness(keys)) if item.invariant == "audit"]
    finally:
        store.close()
    return found, wrong


@on_day(0, of=2)
def test_the_audit_is_signed_by_a_key_of_the_folder_also_after_kill_9(tmp_path: Path) -> None:
    """A row and where the audit ends are one transaction: nothing that happens in between is half there."""
    folder = tmp_path / "data"
    server = Server.start(folder)
    path = folder / "audit-key.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = made_or_read(path).public_hex
    recording = threading.Thread(target=lambda: asked_until_it_is_gone(server))
    recording.start()
    until(lambda: of_audit(folder, key)[0][-1][1] == "key.create done")
    until(lambda: len(of_audit(folder, key)[0]) > 10)
    server.process.kill()
    recording.join(30)
    rows, wrong = of_audit(folder, key)
    assert wrong == []
    assert rows[:2] == [("quorate serve", "audit.key"), ("quorate serve", "key.create done")]
    again = Server.start(folder)
    again.http.post("/v1/keys", json={"role": "viewer"}).raise_for_status()
    again.stop()
    more, wrong = of_audit(folder, key)
    assert wrong == []
    assert more[: len(rows)] == rows
    assert [action for _, action in more[len(rows) :]] == ["key.create", "key.create done"], (
        "it signs with the same key"
    )


def asked_until_it_is_gone(server: Server) -> None:
    with suppress(httpx2.HTTPError):
        while True:
            server.http.post("/v1/keys", json={"role": "viewer"}).raise_for_status()


@on_day(0, of=3)
def test_two_replicas_sign_one_audit_each_with_its_key(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'quorate.sqlite3'}"
    folders = [tmp_path / "one", tmp_path / "two"]
    servers = [Server.start(folder, "--database", database) for folder in folders]
    for _ in range(3):
        for server in servers:
            server.http.post("/v1/keys", json={"role": "viewer"}).raise_for_status()
    for server in servers:
        server.stop()
    keys = [made_or_read(folder / "audit-key.pem").public_hex for folder in folders]
    rows, wrong = of_audit(tmp_path, *keys)
    assert wrong == []
    assert len(rows) == 2 * (4 + 3 * 2)
    assert any("a key that was not given" in what for what in of_audit(tmp_path, keys[0])[1])


@on_day(1, of=2)
def test_an_audit_key_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "elsewhere.pem"
    path.write_text("no key")
    path.chmod(0o600)
    monkeypatch.setenv("QUORATE_AUDIT_KEY", str(path))
    assert "The audit cannot be signed." in refused(tmp_path / "data")
    assert not (tmp_path / "data" / "audit-key.pem").exists()
    path.unlink()
    Server.start(tmp_path / "data").stop()
    assert not (tmp_path / "data" / "audit-key.pem").exists()
    rows, wrong = of_audit(tmp_path / "data", made_or_read(path).public_hex)
    assert (rows[0], wrong) == (("quorate serve", "audit.key"), [])


@pytest.mark.slow
def test_a_fork_says_what_a_new_process_says(tmp_path: Path) -> None:
    """Most servers and commands of the tests are forks (``tests/forks.py``)."""
    asked = os.environ | {"QUORATE_DATABASE": "postgresql+nothing://127.0.0.1/quorate"}
    words = ["serve", "--data", "here", "--port", "0"]
    command = [sys.executable, "-m", "coordinator.cli", *words]
    new = subprocess.run(command, cwd=tmp_path, env=asked, capture_output=True, text=True, timeout=60, check=False)
    fork = forks.run(words, forks.COORDINATOR, cwd=tmp_path, env=asked)
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)
    assert (new.returncode, len(new.stderr.splitlines())) == (1, 1)
