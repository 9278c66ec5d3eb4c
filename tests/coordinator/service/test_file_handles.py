"""At the limit of file handles: new connections wait, established devices go on, and the log says so once."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from client_sdk.protocol.names import Route
from coordinator.limits import Admission
from coordinator.service.errors import problem_of
from coordinator.service.sockets.protocol import most_connections
from coordinator.service.sockets.server import Acceptor
from coordinator.settings import Settings
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.raw import RawConnection, head

HANDLES = 200


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.slow
def test_new_connections_wait_established_devices_go_on_and_the_log_says_so(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = Server.start(tmp_path / "data", handles=HANDLES)
    device, run = server.device("handles"), server.create_run("handles", select=1, goal=1)
    log = server.log
    most = HANDLES // 2
    crowd = [RawConnection(server.url) for _ in range(most + 40)]
    for connection in crowd:
        connection.send(head())
    assert log.line("new connections wait")
    began, spent = time.monotonic(), cpu_s(server.process.pid)

    work = device.wait_for_work()
    device.put(work, device.body(work)).raise_for_status()
    while server.http.get(Route.RUN.format(run=run)).json()["version"] < 1:
        assert time.monotonic() - began < 20
    assert server.http.get("/readyz").json()["ok"]
    crowd[-1].socket.settimeout(1)
    with pytest.raises(TimeoutError):
        crowd[-1].read()
    assert cpu_s(server.process.pid) - spent < 0.7 * (time.monotonic() - began) + 0.5, "it waits without spinning"

    for connection in crowd[:60]:
        connection.socket.close()
    crowd[-1].socket.settimeout(20)
    assert crowd[-1].read().status == 200, "it waited, and was answered when there was room"
    assert Device(server.http, server.token, "later").id
    for connection in crowd:
        connection.socket.close()
    assert server.stop() == 0
    text = log.text()
    assert text.count("new connections wait") == 1
    assert f'"connections": {most}' in text
    assert "Traceback" not in text
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


class Scarce(socket.socket):
    """A listening socket without handles for its first connections."""

    failures: ClassVar = [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOBUFS]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, "none left")
        return super().accept()


def test_an_accept_that_fails_for_want_of_handles_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Greet(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")
            transport.close()

    async def scenario() -> bytes:
        listener = Scarce(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        acceptor = Acceptor(listener, lambda _: Greet(), lambda: 0, 10, Admission(Settings(), 10), pause_s=0.001)
        acceptor.start(8)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        greeting = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        acceptor.close()
        listener.close()
        return greeting

    assert asyncio.run(scenario()) == b"hello"
    assert Scarce.failures == []
    logged = capsys.readouterr()
    assert (logged.out + logged.err).count("new connections wait") == 1


def test_half_of_the_handles_or_more_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((200, 100), (1024, 864), (65_536, 65_376)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections(Settings()) == most


def test_a_file_that_no_handle_is_left_for_is_no_bug() -> None:
    for number in (errno.EMFILE, errno.ENFILE):
        assert problem_of(OSError(number, "Too many open files")).kind == "busy"
