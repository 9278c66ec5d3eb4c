"""Ports for the servers of tests."""

from __future__ import annotations

import socket
from contextlib import suppress
from secrets import randbelow

FIRST, COUNT = 20_000, 12_000
"""Below those that the system gives to connections, and to whoever asks for any port."""


def free_port() -> int:
    """A port on the loopback that nobody has, and that no connection of another test takes before the server does."""
    while True:
        port = FIRST + randbelow(COUNT)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
