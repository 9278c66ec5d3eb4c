"""A simulated device in secure rounds that are only quantized: what it would do in the exchanges, without the masks.

It checks in, agrees to the terms and trains as a masking device does, and advertises the keys that it would have. Its
messages of the five exchanges are events without bytes, at the same times and of the same sizes, so that the
coordinator's engine decides alike. ``UnmaskedRounds`` then adds up the lanes that the devices would
have masked: masks cancel, so the sum has the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from client_sdk.device.actions import Action, MemoryKept
from client_sdk.device.contribution import ClearContribution
from client_sdk.device.policy import secure_policy
from client_sdk.protocol.devices import CheckIn, Withdrawal
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.secure import SecureRefusal, Stage
from client_sdk.secagg.actions import Keep
from client_sdk.secagg.advertisement import AttemptSecrets
from client_sdk.secagg.consent import Expected, require_consent
from client_sdk.secagg.errors import Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Memory, Tries
from client_sdk.secagg.roster import RosterEntry
from client_sdk.secagg.statement import SIGNATURE_BYTES
from coordinator.engine import effects as fx
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


class UnmaskedSurroundings(SecureSurroundings, Protocol):
    """The part of the world that such a device needs."""

    unmasked: UnmaskedRounds
    advertised: dict[str, RosterEntry]
    """What devices have advertised in the attempt under way."""


class QuantizingDevice(Device):
    """As ``MaskingDevice``: after ``contributed`` it takes ``turn``s, until it is ``over``."""

    __slots__ = ("_draw", "_tensors", "memory", "vanishes_before")

    _world: UnmaskedSurroundings

    def __init__(
        self, world: UnmaskedSurroundings, number: int, row: DeviceRow, offer: CheckIn, memory: Memory
    ) -> None:
        self.memory = memory
        self.vanishes_before: Stage | None = None
        self._tensors = b""
        self._draw = world.authority.entropy(row.device, world.state.round_number)
        super().__init__(world, number, row, offer)

    def contributed(self, contribution: ClearContribution, *, complete: bool) -> None:
        """Its training has ended with this."""
        if self.assignment is not None and not complete and self.assignment.partial == "refuse":
            self.trained(None, complete=False)  # the session withdraws
            return
        self._session.close()
        self._tensors = bytes.fromhex(contribution.tensors)
        self.turn()

    def turn(self) -> None:
        """Sends all messages whose turn it is."""
        while not self.over and (stage := self._next(self._world.state)) is not None:
            if stage == "survivors":  # it stores that it signs, then sends
                spent = {**self.memory.spent, self._tensors: hashlib.sha256(self._tensors).digest()}
                self.memory = replace(self.memory, spent=spent)
            if stage == self.vanishes_before:
                self.over = True
            elif not (self._advertises() if stage == "advertise" else self._sends(stage)):
                return

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

    def _advertises(self) -> bool:
        """Whether the device has advertised; else it rests, or takes no further part."""
        state, assignment = self._world.state, self.assignment
        if state.secure is None or assignment is None:
            return False
        header = parsed(state.secure.header)
        try:
            require_consent(
                header, self._expected(header), secure_policy(self.offer.policy), self.memory, self._world.now
            )
        except Refusal as refused:
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
        name = self.row.device
        shown = AttemptSecrets.draw(self._draw).advertisement(name)
        entry = RosterEntry(shown, bytes(SIGNATURE_BYTES), self._world.authority.identity(name).certificate)
        self._world.advertised[name] = entry
        stored = entry_bytes(shown.encoded, entry.signature, entry.certificate)
        if not self._submits("advertise", len(stored)):
            return False
        before = self.memory.tries.get(self._tensors)
        tries = Tries(count=1 + (before.count if before else 0), last_at=self._world.now)
        self.memory = replace(
            self.memory,
            tries={**self.memory.tries, self._tensors: tries},
            order={**self.memory.order, header.run: (header.round, header.attempt)},
        )
        return True

    def _sends(self, stage: Stage) -> bool:
        secure = self._world.state.secure
        return secure is not None and self._submits(stage, self._world.unmasked.size_of(stage, secure, self.row.device))

    def _submits(self, stage: Stage, size: int) -> bool:
        """Whether the message of this size is accepted."""
        state, name = self._world.state, self.row.device
        current = state.current
        what = f"{state.run}/{current.number}/{current.attempt}/{name}/{stage}: not masked"
        event = _EVENTS[stage](
            at=self._world.now,
            round=current.number,
            attempt=current.attempt,
            device=name,
            digest=hashlib.sha256(what.encode()).hexdigest(),
            bytes=size,
        )
        effects = self._world.coordinator.core.log(state.run).submit(lambda tx, state, at: event)
        return not any(isinstance(effect, fx.Refused) for effect in effects)

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
            revocations=self._world.authority.revocations,
        )


def _place(header: AttemptHeader) -> dict[str, str | int]:
    return {"run": header.run, "round": header.round, "attempt": header.attempt}
