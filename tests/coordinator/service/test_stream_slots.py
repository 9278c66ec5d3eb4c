"""Slots of event streams: one operator takes none from others, and whoever goes away leaves its slot."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from client_sdk.protocol.names import Route
from coordinator.service import stream_viewers
from coordinator.service.sockets.server import HttpServer
from coordinator.settings import Settings
from tests.coordinator.service.test_scopes import Served
from tests.coordinator.service.test_stalled_viewer import listening, until

EVENTS, ALL = Route.EVENTS.format(run="red"), str(Route.STREAM)
PATIENCE_S = 10.0


def opened(server: HttpServer, path: str, key: str) -> tuple[socket.socket, str]:
    """A connection that asks for a stream, and the first bytes of its answer."""
    found = socket.create_connection(server._listener.getsockname(), timeout=PATIENCE_S)
    found.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    answer = b""
    while b"retry: 2000" not in answer and b'"detail"' not in answer:
        piece = found.recv(65_536)
        assert piece, answer
        answer += piece
    return found, answer.decode()


@pytest.mark.parametrize(("path", "what"), [(EVENTS, "event streams"), (ALL, "viewers")])
def test_repro_one_operator_takes_no_place_from_others(path: str, what: str) -> None:
    served = Served(Settings(streams=16, viewers=16))
    greedy, others = served.key("viewer", "red"), [served.key("viewer", "red") for _ in range(7)]
    with listening(served) as server:
        held = [opened(server, path, greedy) for _ in range(2)]
        third, refusal = opened(server, path, greedy)
        third.close()
        assert refusal.startswith("HTTP/1.1 503 ")
        assert "retry-after: 30" in refusal.lower()
        assert f"has 2 {what} already, an eighth of all" in refusal
        held += [opened(server, path, other) for other in others for _ in range(2)]
        assert all(answer.startswith("HTTP/1.1 200 ") for _, answer in held)
        late, full = opened(server, path, served.key("viewer", "red"))
        late.close()
        assert f"16 {what} are connected already" in full
        held.pop(0)[0].close()

        def again() -> bool:
            found, answer = opened(server, path, greedy)
            held.append((found, answer))
            return answer.startswith("HTTP/1.1 200 ")

        until(again)
        for found, _ in held:
            found.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", [EVENTS, ALL])
def test_a_thousand_reconnects_leave_no_place_taken(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go before the answer has begun, while it begins, or with a piece unread, and reset the connection."""
    monkeypatch.setattr(stream_viewers, "TICK_S", 0.01)
    served = Served(Settings(streams=16, viewers=16))
    key = served.key("viewer", "red")
    with listening(served) as server:
        for number in range(1000):
            found = socket.create_connection(server._listener.getsockname(), timeout=PATIENCE_S)
            last = ("", "Last-Event-ID: 1\r\n", "Last-Event-ID: 00000000-7\r\n" * (path == ALL))[number % 3]
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{last}Authorization: Bearer {key}\r\n\r\n"
            found.sendall(head.encode())
            time.sleep((0, 0.001, 0.003)[number // 3 % 3])
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            found.close()
        held: list[socket.socket] = []

        def both_places_are_free() -> bool:
            found, answer = opened(server, path, key)
            (held if answer.startswith("HTTP/1.1 200 ") else refused).append(found)
            return len(held) == 2

        refused: list[socket.socket] = []
        until(both_places_are_free)  # some of the thousand are still on their way
        for found in held + refused:
            found.close()
