"""A request of a device or a worker in the network, and the types of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
    event: str = field(init=False)
    """Its name in counts and traces."""

    def __post_init__(self) -> None:
        send = self.send
        self.event = "fetch" if isinstance(send, Fetch) else self.table.find(send.method, send.route).name
