"""What an exchange reports of a connection that broke: whether the request had been with a coordinator."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from client_sdk.device.actions import Send, Unreachable
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.exchange import Exchange
from client_sdk.http.transport import open_http
from client_sdk.protocol.devices import CheckIn, Wait
from client_sdk.protocol.names import Route

CHECK_IN = Send(method="POST", route=Route.CHECK_IN, answers=(Wait,), message=CheckIn(hold_s=20))


@pytest.mark.parametrize("held_s", [None, 0.0, 0.3])
def test_how_long_a_request_was_held_when_the_coordinator_died(held_s: float | None) -> None:
    """None: nothing listens. Otherwise one connection is taken, and closed with the listener after so long."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        time.sleep(held_s or 0.0)
        listener.close()
        connection.close()

    thread = threading.Thread(target=die)
    if held_s is None:
        listener.close()
    else:
        thread.start()
    url = f"http://127.0.0.1:{port}"
    with open_http(url) as http:
        reply = Exchange(http, url, MemoryStorage(), time.monotonic).send(CHECK_IN)
    assert isinstance(reply, Unreachable)
    if held_s is None:
        assert reply.held_s == 0
    else:
        thread.join()
        assert held_s <= reply.held_s < held_s + 0.3
