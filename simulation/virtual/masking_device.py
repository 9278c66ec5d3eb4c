"""A simulated device in secure rounds: its whole session, with the primitives of its world. Those are the real ones, or
those that hide nothing (``null_primitives``).

Its messages go through the coordinator's table of requests. Where an answer is not there yet, the device waits until
the world gives it another ``turn``.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol, assert_never

from client_sdk.device.actions import (
    Action,
    FetchList,
    ListFetched,
    Load,
    Save,
    Send,
    Sleep,
    Trained,
    perform_stored,
)
from client_sdk.device.contribution import ClearContribution
from client_sdk.device.session import Session, participate
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import problem
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import Keep, Primitives
from client_sdk.secagg.memory import Memory
from coordinator.engine.state import RunState
from coordinator.requests import TABLE, Body, Direct, Held, Request
from coordinator.store.port import DeviceRow
from simulation.virtual.authority import SimulatedAuthority
from simulation.virtual.device import LATER, URL, Device, Surroundings


class SecureSurroundings(Surroundings, Protocol):
    """The part of the world that a device needs in secure rounds."""

    authority: SimulatedAuthority
    primitives: Primitives

    @property
    def state(self) -> RunState:
        """The run's newest state."""

    @property
    def trained_from(self) -> str:
        """Digest of the tensors from which the devices of this round train."""

    def contribution(self, device: str) -> ClearContribution:
        """What a device has trained in this round."""

    def rests(self, device: Device, seconds: float) -> None:
        """The device waits for so long before its next turn."""


class MaskingDevice(Device):
    """After ``contributed`` it takes ``turn``s, until it is ``over``. ``memory``: of secure rounds, before and after
    this one."""

    __slots__ = ("_asked", "_storage", "vanishes_before")

    _world: SecureSurroundings

    def __init__(
        self,
        world: SecureSurroundings,
        number: int,
        row: DeviceRow,
        offer: CheckIn,
        memory: Memory,
    ) -> None:
        self._storage = MemoryStorage()
        self._storage.keep(lambda _: memory)
        self._asked: Action | None = None
        self.vanishes_before: Stage | None = None
        """The exchange before which it vanishes, in this round; None: it stays."""
        super().__init__(world, number, row, offer)

    def contributed(self, *, complete: bool) -> None:
        """Its training has ended."""
        contribution = self._world.contribution(self.row.device)
        self._go_on(Trained(contribution.encoded, complete, self._world.now))

    def turn(self) -> None:
        """Asks again for the answer that was not there, or goes on after a rest."""
        asked, self._asked = self._asked, None
        if self.over or asked is None:
            return
        reply = None if isinstance(asked, Sleep) else self._performed(asked)
        if reply is not LATER:
            self._go_on(reply)

    @property
    def memory(self) -> Memory:
        """What it remembers of secure rounds. Nothing of this one is left to be sent."""
        return self._storage.load_secure().marks

    # ------------------------------------------------------------ the session

    def _begun(self) -> Session:
        authority, name = self._world.authority, self.row.device
        return participate(
            authority.identity(name).record(authority.trusted, URL, self._registered),
            coordinator=URL,
            offer=lambda: self.offer,
            rounds=1,
            label=self.row.label,
            entropy=authority.entropy(name, self._world.state.round_number),
            primitives=self._world.primitives,
            at=self._world.now,
        )

    def _performed(self, action: Action) -> Any:
        if isinstance(action, Save | Keep | Load):
            return perform_stored(self._storage, action, self._world.now)
        if isinstance(action, FetchList):
            return ListFetched(self._world.authority.revocations, self._world.now)
        if isinstance(action, Sleep) and self.assignment is not None:
            self._asked = action
            self._world.rests(self, action.max_s)
            return LATER
        return super()._performed(action)

    def _sent(self, send: Send) -> Any:
        if send.route in (Route.CHECK_IN, Route.STARTED):
            return super()._sent(send)
        if send.method == "PUT" and send.path.get("stage") == self.vanishes_before is not None:
            self.vanish()
            return LATER
        answer = super()._sent(send)
        if answer is LATER:
            self._asked = send
        return answer

    def _answer_of(self, send: Send) -> Message | None:
        entry, coordinator = TABLE.find(send.method, send.route), self._world.coordinator
        request = Request(entry, self.row, send.message, send.path)
        answer: Message | None
        match entry.shape:
            case Held():
                answer = request.call(entry.shape.again, coordinator)
            case Body():
                answer = delivered(request, entry.shape, coordinator, send.octets or b"")
            case Direct():
                answer = request.call(entry.shape.call, coordinator)
            case _:
                assert_never(entry.shape)
        return answer


def delivered(request: Request, body: Body, coordinator: Any, octets: bytes) -> Any:
    """The answer to a request with this body, which is stored as it would be. ProblemError."""
    known = None if body.again is None else request.call(body.again, coordinator, sha256(octets).hexdigest())
    if known is not None:
        return known
    most = request.call(body.limit, coordinator)
    if len(octets) > most:
        raise problem("too-large", f"the body has {len(octets)} bytes; at most {most} are read")
    with coordinator.core.blobs.spool(most + body.room) as spool:
        spool.write(octets)
        return request.call(body.stored, coordinator, spool)
