"""The HTTP client of a device or a worker in the explorer's network: it signs each request, and learns the time.

A request that is refused because of its time is signed again, once, by the time of the answer, as
``client_sdk.http`` does.
"""

from __future__ import annotations

from collections.abc import Callable

from client_sdk.device.actions import Fetch, Send
from client_sdk.protocol.problems import Problem
from tests.explorer.holders import Holder, QuickSigner
from tests.explorer.network import Network
from tests.explorer.request import Answer, SentRequest, never
from tests.explorer.world import World


class RequestSender:
    """Sends the requests of one holder. ``clock_off_s``: by how much its machine's clock is wrong."""

    def __init__(self, world: World, network: Network, holder: Holder) -> None:
        self._world = world
        self._network = network
        self.holder = holder
        self.clock_off_s = 0.0
        self.signer = QuickSigner(holder, self.now, world.nonces)

    def now(self) -> float:
        """The time by the clock of this machine."""
        return self._world.agenda.now + self.clock_off_s

    def restarted(self) -> None:
        """The process has started again: what it had learnt is lost."""
        self.signer.clock.ahead_s = 0.0

    def send(
        self,
        send: Send | Fetch,
        respond: Callable[[Answer], None],
        *,
        body: bytes = b"",
        hold_s: float = 0.0,
        gone: Callable[[], bool] = never,
        as_holder: Holder | None = None,
    ) -> None:
        """Sends one request. ``respond`` is called once, with the answer, or None where there is none. ``gone``:
        whether the sender has disconnected. ``as_holder``: a liar names this one's key."""
        request = SentRequest(send, self.signer, body, gone, as_holder=as_holder)

        def answered(answer: Answer) -> None:
            is_off = isinstance(answer, Problem) and answer.kind == "wrong-clock"
            if is_off and not gone() and self.signer.clock.learn(request.date):
                self._world.log(f"{self.holder.id} learns the time, and signs again: {request.event}")
                self._network.send(SentRequest(send, self.signer, body, gone, as_holder=as_holder), respond, hold_s)
            else:
                respond(answer)

        self._network.send(request, answered, hold_s)
