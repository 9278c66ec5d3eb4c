"""A request of a device or a worker in the network, and the types of its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.names import Message
from client_sdk.protocol.problems import Problem
from coordinator.requests import TABLE, Table
from tests.explorer.holders import Holder, QuickSigner

Answer = Message | Problem | bytes | None
Respond = Callable[[Answer], None]


def never() -> bool:
    """The client stays until it has its answer."""
    return False


@dataclass(slots=True)
class SentRequest:
    """One signed request: the action, and the body if it has one. ``dataclasses.replace`` signs it afresh, with another
    nonce; delivered twice, the same one is a replay."""

    send: Send | Fetch
    signer: QuickSigner
    body: bytes = b""
    gone: Callable[[], bool] = never
    """Whether the client has disconnected."""
    table: Table = TABLE
    as_holder: Holder | None = None
    """Whose key a liar names; None: its own."""
    event: str = field(init=False)
    """Its name in counts and traces."""
    signature: RequestSignature = field(init=False)
    date: str = field(default="", init=False)
    """The header Date of the answer that refused its time."""

    def __post_init__(self) -> None:
        send = self.send
        self.event = "fetch" if isinstance(send, Fetch) else self.table.find(send.method, send.route).name
        self.signature = self.signer.sign(as_holder=self.as_holder)

    @property
    def holder(self) -> Holder:
        """Whose key has signed it, whatever it says."""
        return self.signer.holder
