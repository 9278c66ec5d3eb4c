"""A viewer whose socket stalls: it is sent one piece at a time, misses what it cannot take, and delays nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import pytest

from client_sdk.protocol.names import Route
from coordinator.service import stream_viewers
from coordinator.service.sockets.server import HttpServer
from coordinator.service.stream_viewers import RING
from tests.coordinator.service.test_scopes import Served, served  # noqa: F401

RUNS = 150
"""So many that a snapshot is larger than what the kernel takes for a socket that is not read."""
KERNEL_BYTES = 8192
"""How much the kernel keeps to send on each socket; left alone, it takes more and more while nobody reads."""
READY_S = 30.0


class Unsignalled(HttpServer):
    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@contextmanager
def listening(made: Served) -> Iterator[HttpServer]:
    """The service on a real socket of its own, in a thread, which can have no signals."""
    ready = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)  # what it accepts inherits this
    server = Unsignalled(made.app, listener, ready.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(READY_S)
        yield server
    finally:
        made.service.stop()
        server.should_exit = True
        thread.join(READY_S)


@dataclass
class Frames:
    """What has come over one socket."""

    names: list[str] = field(default_factory=list)
    """Of the events, in order."""
    newest: int = 0
    """The number of the newest frame."""
    status: str = ""
    """Of the run *red*."""

    def take(self, line: str) -> None:
        key, _, value = line.strip().partition(": ")
        if key == "event":
            self.names.append(value)
        elif key == "id":
            self.newest = int(value.rpartition("-")[2])
        elif key == "data":
            body = json.loads(value)
            views = body.get("runs") or [{"run": body.get("run"), **body.get("patch", {})}]
            self.status = next(
                (view["status"] for view in views if view["run"] == "red" and "status" in view), self.status
            )


def connect(server: HttpServer, key: str, *, small: bool) -> socket.socket:
    """Asks for the stream. ``small``: the kernel keeps little of what is not read."""
    found = socket.socket()
    if small:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    found.settimeout(READY_S)
    found.connect(server._listener.getsockname())
    found.sendall(f"GET {Route.STREAM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    return found


def follow(found: socket.socket, frames: Frames) -> threading.Thread:
    """Reads what comes, until the socket is closed."""

    def read() -> None:
        with found.makefile("rb") as lines:
            for line in lines:
                frames.take(line.decode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + READY_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.slow
def test_a_socket_that_is_not_read_misses_frames_keeps_no_memory_and_delays_nobody(
    served: Served,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_viewers, "TICK_S", 0.005)
    for number in range(RUNS):
        served.world.create(served.world.model(), name=f"run-{number}", task={"learner": "tests:none"})
    key, operators = served.key("viewer", "*"), served.world.coordinator.operators
    with listening(served) as server:
        late, seen = Frames(), Frames()
        stalled = connect(server, key, small=True)
        held = settled(server)
        reads = connect(server, key, small=False)
        follow(reads, seen)
        until(lambda: seen.status == "running")
        began = seen.newest
        for turn in range(RING + 20):
            (operators.resume if turn % 2 else operators.pause)("red")
            wanted = "running" if turn % 2 else "paused"
            until(lambda wanted=wanted: seen.status == wanted)  # type: ignore[misc]
        assert seen.newest >= began + RING + 20
        assert seen.names.count("snapshot") == 1, "who reads misses nothing"
        until(lambda: buffered(server) <= held)  # nothing more is kept for the socket that is not read
        follow(stalled, late)
        until(lambda: late.newest == seen.newest)
        # The first piece, the one that waited for the socket, and the newest state in place of all others.
        assert late.names == ["snapshot", "patch", "snapshot"]
        assert late.status == seen.status
        reads.close()
        stalled.close()


def buffered(server: HttpServer) -> int:
    """Bytes that the process keeps for its sockets because the kernel has not taken them."""
    return sum(found.transport.get_write_buffer_size() for found in list(server.server_state.connections))


def settled(server: HttpServer) -> int:
    """``buffered`` once the kernel takes no more of a first piece that nobody reads."""
    until(lambda: buffered(server) > 0)
    kept = 0
    while kept != (now := buffered(server)):
        kept = now
        time.sleep(0.3)
    assert kept, "the piece is larger than what the kernel takes"
    return kept
