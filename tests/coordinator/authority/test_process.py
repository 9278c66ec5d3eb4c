"""A real authority process, as an operator starts it: what it acknowledged is there after ``kill -9``."""

from __future__ import annotations

import json
import select
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from client_sdk.credentials.certificate import Certificate, RevocationList, following
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.authority import AuthorityClient
from client_sdk.identity import DeviceKey
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.folder import opened
from coordinator.authority.issuer import current_list
from tests.coordinator.authority.test_commands import lines
from tests.ports import free_port
from tests.rotating import on_day

READY_S = 120.0


def start(folder: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coordinator.cli", "authority", "serve", "--data", str(folder), "--json"]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    line = process.stdout.readline() if ready else ""
    if not line:
        process.kill()
        raise AssertionError(f"the authority did not start: {process.communicate()[1]}")
    assert json.loads(line)["address"] == f"http://127.0.0.1:{port}"
    return process


class Enrolling(threading.Thread):
    """Enrols, and lets every third device leave, until the authority is gone; keeps what was acknowledged."""

    def __init__(self, token: EnrolmentToken) -> None:
        super().__init__()
        self.token = token
        self.certified: list[Certificate] = []
        self.left: list[bytes] = []
        self.lists: list[RevocationList] = []
        self.enough = threading.Event()

    def run(self) -> None:
        with AuthorityClient(self.token.url, self.token.authority) as asking:
            try:
                while True:
                    key = DeviceKey.create()
                    made = asking.enrol(self.token, key)
                    self.certified.append(made)
                    if len(self.certified) % 3 == 0:
                        asking.leave(key)
                        self.left.append(made.key_id)
                    self.lists.append(asking.revocations(self.lists[-1] if self.lists else None))
                    if len(self.certified) >= 4:
                        self.enough.set()
            except ProblemError:
                self.enough.set()


@pytest.mark.slow
def test_killed_at_any_moment_it_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    port = free_port()
    lines("init", "--url", f"http://127.0.0.1:{port}", "--data", str(tmp_path / "a"))
    (made,) = lines("token", "--data", str(tmp_path / "a"), "--uses", "100000")
    token = EnrolmentToken.parse(made["token"])
    seen: list[RevocationList] = []
    for delay_s in (0.0, 0.03, 0.07):
        process = start(tmp_path / "a", port)
        crowd = [Enrolling(token) for _ in range(4)]
        for devices in crowd:
            devices.start()
        assert all(devices.enough.wait(READY_S) for devices in crowd)
        threading.Event().wait(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left: list[bytes] = []
        for devices in crowd:
            devices.join()
            seen += devices.lists
            left += devices.left
        with opened(tmp_path / "a") as (issuer, ledger), ledger.writing() as rows:
            for certificate in (one for devices in crowd for one in devices.certified):
                key = rows.key(certificate.key_id)
                assert key is not None
                if certificate.key_id in left:
                    assert key.revoked_at is not None
                elif key.revoked_at is None:
                    assert key.certificate == certificate.encoded
            now = current_list(rows, issuer, certificate.not_before + 600)
            assert set(left) <= set(now.revoked)
            for before in seen:
                assert following(before, now.encoded, issuer.trusted).counter >= before.counter


@on_day(0, of=3)
def test_it_serves_its_folder_alone_stops_cleanly_and_leaves_no_secret_in_its_files(tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "a"
    lines("init", "--url", f"http://127.0.0.1:{port}", "--data", str(folder))
    (made,) = lines("token", "--data", str(folder))
    token = EnrolmentToken.parse(made["token"])
    process = start(folder, port)
    try:
        command = [sys.executable, "-m", "coordinator.cli", "authority", "serve", "--data", str(folder), "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
        assert second.returncode == 1
        assert "Another authority" in second.stderr
        with AuthorityClient(token.url, token.authority) as asking:
            certificate = asking.enrol(token, DeviceKey.create())
            (found,) = lines("revoke", certificate.id, "--data", str(folder))
            assert asking.revocations().counter == found["list"], "what the command did is served at once"
        assert token.text not in Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=READY_S)
    assert process.returncode == 0
    assert err == ""
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert token.secret not in path.read_bytes()
        assert token.secret.hex().encode() not in path.read_bytes()
