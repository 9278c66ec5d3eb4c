"""A simulated device in secure rounds that are only quantized: what it would do in the exchanges, without the masks.

It checks in, agrees to the terms and trains as a masking device does, and advertises the nonce that it would have. Its
messages of the five exchanges are events without bytes, at the same times and of the same sizes, so that the
coordinator's engine decides alike. ``Outbox`` sends those of many devices together. ``UnmaskedRounds`` then adds up the
lanes that the devices would have masked: masks cancel, so the sum has the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from client_sdk.device.actions import Action, MemoryKept
from client_sdk.device.policy import refuses_partial, secure_policy
from client_sdk.protocol.devices import CheckIn, Withdrawal
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.secure import SecureRefusal, Stage
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.consent import Expected, require_consent
from client_sdk.secagg.errors import Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.roster import RosterEntry
from client_sdk.secagg.statement import SIGNATURE_BYTES
from coordinator.engine import events as ev
from coordinator.engine.state import RunState
from coordinator.requests import TABLE, Direct, Request
from coordinator.secure.blob_formats import entry_bytes
from coordinator.store.port import DeviceRow
from simulation.virtual.device import Device
from simulation.virtual.masking_device import SecureSurroundings
from simulation.virtual.unmasked import UnmaskedRounds, parsed

_EVENTS: dict[Stage, Callable[..., ev.Event]] = {
    "advertise": ev.Advertised,
    "share": ev.Shared,
    "mask": ev.Masked,
    "survivors": ev.Signed,
    "unmask": ev.Revealed,
}


class SentTogether(Protocol):
    """Devices whose messages are sent together."""

    def __len__(self) -> int:
        """Return the number of devices that wait here."""

    def add(self, device: QuantizingDevice, at: float) -> None:
        """The device has its turn at this time: what is its ``message`` then is sent."""

    def send(self) -> None:
        """Send the messages."""


class UnmaskedSurroundings(SecureSurroundings, Protocol):
    """The part of the world that such a device needs."""

    unmasked: UnmaskedRounds
    advertised: dict[str, RosterEntry]
    """What devices have advertised in the attempt under way."""

    @property
    def outbox(self) -> SentTogether: ...


class QuantizingDevice(Device):
    """As ``MaskingDevice``: after ``contributed`` it takes ``turn``s, until it is ``over``."""

    __slots__ = (
        "_advertised", "_attempts", "_header", "_last", "_tensors", "memory", "vanishes_before",
    )  # fmt: skip

    _world: UnmaskedSurroundings

    def __init__(
        self,
        world: UnmaskedSurroundings,
        number: int,
        row: DeviceRow,
        offer: CheckIn,
        memory: Memory,
    ) -> None:
        self.memory = memory
        self.vanishes_before: Stage | None = None
        self._tensors = b""
        self._attempts = 0
        """For which it has advertised in this round."""
        self._advertised = 0
        """The bytes of what it advertises."""
        self._header: AttemptHeader | None = None
        """Under which it advertises."""
        self._last: Stage | None = None
        """The last message of this turn."""
        super().__init__(world, number, row, offer)

    def contributed(self, *, complete: bool) -> None:
        """Its training has ended."""
        if self.assignment is not None and not complete and refuses_partial(self.assignment):
            self.trained(None, complete=False)  # the session withdraws
            return
        self._session.close()
        self._tensors = bytes.fromhex(self._world.trained_from)
        self.turn()

    def turn(self) -> None:
        """Sends all messages whose turn it is, together with those of other devices: ``message``."""
        stage = None if self.over else self._next(self._world.state)
        if self.over or (stage is None and not self._world.outbox):
            return
        if stage != "advertise" or stage == self.vanishes_before or self._may_advertise():
            self._last = None
            self._world.outbox.add(self, self._world.now)

    def message(self, state: RunState, at: float) -> ev.Event | None:
        """The message that is due in this state of the run, unless the device has sent it in this turn."""
        stage = None if self.over else self._next(state)
        if stage is None or stage == self._last or state.secure is None:
            return None
        self._last = stage
        if stage == "survivors":  # it stores that it signs, then sends
            self.memory = self.memory.signed_on(self._tensors)
        if stage == self.vanishes_before:
            self.over = True
            return None
        if stage == "advertise":
            size = self._advertised
        else:
            size = self._world.unmasked.size_of(stage, state.secure, self.row.device)
        current, name = state.current, self.row.device
        what = f"{state.run}/{current.number}/{current.attempt}/{name}/{stage}: not masked"
        return _EVENTS[stage](
            at=at,
            round=current.number,
            attempt=current.attempt,
            device=name,
            digest=hashlib.sha256(what.encode()).hexdigest(),
            bytes=size,
        )

    def accepted(self, event: ev.Event) -> None:
        """This message of the device counts."""
        if isinstance(event, ev.Advertised) and self._header is not None:
            self.memory = self.memory.begun(self._header, self._tensors, event.at)

    # ------------------------------------------------------------ inside

    def _performed(self, action: Action) -> Any:
        if isinstance(action, Keep):  # before any exchange: a device that withdraws forgets what it has not begun
            self.memory = action.change(self.memory)
            return MemoryKept(self.memory, self._world.now)
        return super()._performed(action)

    def _next(self, state: RunState) -> Stage | None:
        """The exchange in which the device's message is due now."""
        assignment, secure, name = self.assignment, state.secure, self.row.device
        if assignment is None or state.round_number != assignment.round or secure is None or state.phase == "idle":
            self.over = True
            return None
        if name in state.current.excluded:
            self.over = True
            return None
        match state.phase:
            case "collecting" if secure.header and name not in secure.advertised:
                return "advertise"
            case "sharing" if name in secure.order and name not in secure.shared:
                return "share"
            case "masking" if name in secure.shared and name not in secure.masked:
                return "mask"
            case "agreeing" | "unmasking" if name in secure.masked and name not in secure.signed:
                return "survivors"
            case "unmasking" if name in secure.signed and name not in secure.revealed:
                return "unmask"
            case _:
                return None

    def _may_advertise(self) -> bool:
        """Whether the device may advertise now, and is ready to; else it rests, or takes no further part."""
        state, assignment = self._world.state, self.assignment
        if state.secure is None or assignment is None:
            return False
        header = parsed(state.secure.header)
        try:
            require_consent(
                header, self._expected(header), secure_policy(self.offer.policy), self.memory, self._world.now
            )
        except Refusal as refused:
            if self._world.outbox:  # those before it may have closed the roster
                self._world.outbox.send()
                self.turn()
                return False
            if refused.retry_s is not None:
                self._world.rests(self, refused.retry_s + 1)
                return False
            said: Message = Withdrawal(attempt=header.attempt, reason=str(refused))
            route = Route.WITHDRAWN
            if refused.final:
                spent = isinstance(refused, SpentOnCheckpoint)
                said, route = SecureRefusal(spent=spent, reason=str(refused)), Route.SECURE_REFUSAL
            self._asks(route, said, header)
            self.over = True
            return False
        authority, name = self._world.authority, self.row.device
        nonce = authority.nonce(name, header.round, self._attempts)
        self._attempts += 1
        entry = RosterEntry(_shown(name, nonce), bytes(SIGNATURE_BYTES), authority.identity(name).certificate)
        self._world.advertised[name] = entry
        self._header = header
        self._advertised = len(entry_bytes(entry.advertisement.encoded, entry.signature, entry.certificate))
        return True

    def _asks(self, route: Route, message: Message, header: AttemptHeader) -> None:
        entry = TABLE.find("POST", route)
        path = _place(header)
        if route is Route.WITHDRAWN:
            del path["attempt"]
        if isinstance(entry.shape, Direct):
            Request(entry, self.row, message, path).call(entry.shape.call, self._world.coordinator)

    def _expected(self, header: AttemptHeader) -> Expected:
        """What the coordinator's own header says, which in a simulation is what was agreed to."""
        return Expected(
            run=header.run,
            round=header.round,
            model=header.model,
            tensors=self._tensors,
            plan=header.plan,
            terms=header.terms,
            learner="",
            dimension=header.dimension,
            codec=header.codec,
            codec_version=header.codec_version,
            codec_seed=header.codec_seed,
            roles=header.roles,
            revocations=self._world.authority.revocations,
        )


def _shown(device: str, nonce: bytes) -> Advertisement:
    """What a device advertises. Nobody uses its keys: they are hashes, of the right length and used once."""
    one, other, commitment = (hashlib.sha256(what + nonce).digest() for what in (b"share", b"mask", b"commitment"))
    return Advertisement(device, one[:31] + b"\0", other[:31] + b"\0", commitment, nonce)


def _place(header: AttemptHeader) -> dict[str, str | int]:
    return {"run": header.run, "round": header.round, "attempt": header.attempt}
