"""A request of a device or a worker on its way, and what may answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.names import Message
from client_sdk.protocol.problems import Problem
from coordinator.requests import TABLE, Table

Answer = Message | Problem | bytes | None
Respond = Callable[[Answer], None]


@dataclass(slots=True)
class SentRequest:
    """One request on its way: what was asked, the body if it has one, and who asks."""

    send: Send | Fetch
    body: bytes = b""
    gone: Callable[[], bool] = lambda: False
    """Whether the client has cut the connection."""
    table: Table = TABLE

    @property
    def event(self) -> str:
        return "fetch" if isinstance(self.send, Fetch) else self.table.find(self.send.method, self.send.route).name
