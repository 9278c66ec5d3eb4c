"""A request of a device or a worker in the network, and the types of its answer."""

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
    """One sent request: the action with its token, and the body if it has one."""

    send: Send | Fetch
    body: bytes = b""
    gone: Callable[[], bool] = lambda: False
    """Whether the client has disconnected."""
    table: Table = TABLE

    @property
    def event(self) -> str:
        return "fetch" if isinstance(self.send, Fetch) else self.table.find(self.send.method, self.send.route).name
