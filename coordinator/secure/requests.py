"""Devices' requests in a secure round: the header, their messages, and the answers to these.

::

    header      the attempt that may be joined, or nothing yet
    receive     advertise | share | mask | survivors | unmask: accepted once, durably, or refused with the reason
    complain    dealers whose shares do not open
    spent       the device has signed on this checkpoint before
    answer      to each of the five: roster | delivered shares | survivors | proof | over, or nothing yet

The caller has authenticated the device, waits, and asks again. The engine decides whether a message is in time, before
anything is read or stored, and again under the run's lock. Raises ``ProblemError`` for a device's error; BlobError
passes through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, assert_never

from client_sdk.protocol.problems import problem
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.statement import Stage
from coordinator.blobs import Blobs, Spool
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState
from coordinator.secure import validation
from coordinator.secure.announcing import Authority
from coordinator.secure.attempt import Attempt, Attempts
from coordinator.secure.blob_formats import entry_bytes, message_bytes
from coordinator.secure.performing import SecureRun, drop

_EVENTS: dict[Stage, Callable[..., ev.Event]] = {
    "advertise": ev.Advertised,
    "share": ev.Shared,
    "mask": ev.Masked,
    "survivors": ev.Signed,
    "unmask": ev.Revealed,
}
OVER = b""
"""The answer to *unmask*, once the round has ended: the device deletes all its secrets."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ArrivedMessage:
    """One message, from a device whose request was authenticated. Its ``repr`` shows nothing: it may hold shares."""

    device: str
    round: int
    attempt: int
    stage: Stage
    body: bytes
    signature: bytes
    certificate: bytes = b""
    """With *advertise*."""
    vector: Spool | None = None
    """With *mask*: the spool of the packed lanes and nothing else, with room for 64 more bytes. Committed here if they
    are accepted."""


class SecureRequests:
    """The secure rounds of one run. Safe from several threads."""

    def __init__(
        self,
        run: SecureRun,
        blobs: Blobs,
        authority: Callable[[], Authority],
        attempts: Attempts,
    ) -> None:
        """``authority``: called whenever a certificate is to be checked."""
        self._run, self._blobs, self._authority, self._attempts = run, blobs, authority, attempts

    def header(self, device: str, round: int) -> bytes | None:
        """The header of the attempt that this device may join or continue; None: not yet. ProblemError where the device
        is not in the round any more."""
        state = self._run.state
        secure = self._under_way(state, device, round)
        if not secure.header or (state.phase != "collecting" and device not in secure.advertised):
            return None
        return bytes.fromhex(secure.header)

    def receive(self, arrived: ArrivedMessage) -> None:
        """Accept a message: when this returns, it is durable and counts. A repeated message is accepted again."""
        stored = _StoredMessage.of(arrived)
        digest = stored.digest

        def event(at: float) -> ev.Event:
            return _EVENTS[arrived.stage](
                at=at,
                round=arrived.round,
                attempt=arrived.attempt,
                device=arrived.device,
                digest=digest,
                bytes=stored.size,
            )

        state = self._run.state
        following, effects = rounds.step(state, event(0.0))
        if _refused(effects):
            self._refuse(event)
        if following is state:
            return  # accepted before
        self._verify(state, arrived, stored)
        self._store(arrived, stored)
        answers = self._run.submit(lambda _, at: event(at) if self._require_stored(digest) else None)
        if _refused(answers):
            drop(self._run, self._blobs, digest)
        _raise_refused(answers)

    def complain(self, device: str, round: int, attempt: int, dealers: tuple[str, ...]) -> None:
        """A device could not open the shares that these dealers sealed for it."""
        _raise_refused(
            self._run.submit(
                lambda _, at: ev.Complained(at=at, round=round, attempt=attempt, device=device, dealers=dealers)
            )
        )

    def spent(self, device: str, round: int, attempt: int) -> None:
        """A device has signed on this checkpoint before, and reports that instead of advertising."""
        _raise_refused(self._run.submit(lambda _, at: ev.Spent(at=at, round=round, attempt=attempt, device=device)))

    def answer(self, device: str, round: int, attempt: int, stage: Stage) -> bytes | None:
        """The answer to the device's message of this stage; None: not yet. ProblemError where there will be none: the
        attempt or the round is over."""
        state = self._run.state
        if stage == "unmask" and (
            state.round_number > round or (state.round_number == round and state.phase == "idle")
        ):
            return OVER
        secure = self._under_way(state, device, round)
        now = state.current.attempt
        if attempt != now:
            raise problem("stale", f"attempt {attempt} of round {round} is over: it is at attempt {now}")
        return self._answer(state, secure, device, stage)

    # ------------------------------------------------------------ inside

    def _answer(self, state: RunState, secure: SecureRound, device: str, stage: Stage) -> bytes | None:
        match stage:
            case "advertise":
                return self._roster(secure, device)
            case "share":
                return self._delivery(state, secure, device)
            case "mask":
                if state.phase not in ("agreeing", "unmasking"):
                    return None
                return self._read(secure).survivors(secure).encoded
            case "survivors":
                if state.phase != "unmasking":
                    return None
                self._read(secure)
                return self._attempts.proof(secure)
            case "unmask":
                return None
            case _:
                assert_never(stage)

    def _under_way(self, state: RunState, device: str, round: int) -> SecureRound:
        if round < state.round_number or (round == state.round_number and state.phase == "idle"):
            raise problem("late", f"round {round} is over")
        if round > state.round_number:
            raise problem("stale", f"round {round} has not been opened: the run is at round {state.round_number}")
        if state.secure is None:
            raise problem("conflict", f"round {round} is not a secure one, or has no cohort yet")
        for why in (state.barred.get(device), state.current.excluded.get(device)):
            if why is not None:
                raise problem("withdrawn", f"the round goes on without this device: {why}")
        if device not in state.current.members:
            raise problem("not-selected", f"device {device} was not selected for round {round}")
        return state.secure

    def _verify(self, state: RunState, arrived: ArrivedMessage, stored: _StoredMessage) -> None:
        secure = state.secure
        if secure is None:
            raise problem("stale", f"round {arrived.round} is not a secure one")
        try:
            self._validate(secure, arrived, stored)
        except validation.Faulty as fault:
            reason = str(fault)
            self._run.submit(
                lambda _, at: ev.Faulted(
                    at=at, round=arrived.round, attempt=arrived.attempt, device=arrived.device, reason=reason
                )
            )
            raise problem("invalid-update", reason) from None
        except SecaggError as error:
            raise problem("invalid-update", str(error)) from None

    def _validate(self, secure: SecureRound, arrived: ArrivedMessage, stored: _StoredMessage) -> None:
        body, signature = arrived.body, arrived.signature
        if arrived.stage == "advertise":
            header, vouched = self._attempts.header(secure), self._authority().vouched
            validation.advertised(header, vouched, arrived.device, body, signature, arrived.certificate)
            return
        attempt = self._read(secure)
        cohort, place = attempt.cohort, attempt.places[arrived.device]
        match arrived.stage:
            case "share":
                validation.shared(cohort, place, body, signature)
            case "mask":
                validation.masked(
                    cohort, place, body, signature, digest=stored.vector, size=stored.length, last=stored.last
                )
            case "survivors":
                validation.agreed(cohort, place, body, signature, attempt.survivors(secure))
            case "unmask":
                sharers = attempt.sharers(secure)
                validation.revealed(cohort, place, body, signature, attempt.survivors(secure), sharers)
            case _:
                assert_never(arrived.stage)

    def _store(self, arrived: ArrivedMessage, stored: _StoredMessage) -> None:
        if arrived.vector is not None:
            arrived.vector.commit()
        else:
            self._blobs.put(stored.data)

    def _require_stored(self, digest: str) -> bool:
        """Checked under the lock: another request with the same bytes may have been refused, and its blob deleted."""
        if not self._blobs.has(digest):
            raise problem("busy", "the message's bytes were removed again: send them once more", retry_after_s=1)
        return True

    def _refuse(self, event: Callable[[float], ev.Event]) -> NoReturn:
        """Submit a message that the engine refuses, without its bytes, so that the reason is recorded; raise it."""
        _raise_refused(
            self._run.submit(lambda state, at: event(at) if _refused(rounds.step(state, event(at))[1]) else None)
        )
        raise problem("busy", "the round has moved on meanwhile: send the message once more", retry_after_s=1)

    def _roster(self, secure: SecureRound, device: str) -> bytes | None:
        if not secure.roster:
            return None
        if device not in secure.order:
            raise problem("late", "the roster was made without this device")
        return self._attempts.bytes_of(secure.roster)

    def _delivery(self, state: RunState, secure: SecureRound, device: str) -> bytes | None:
        if state.phase in ("collecting", "sharing"):
            return None
        if state.phase != "masking":
            raise problem("late", "the masked vectors of this attempt are in")
        place = self._read(secure).places[device]
        return self._attempts.deliveries(secure).to(place).encoded

    def _read(self, secure: SecureRound) -> Attempt:
        try:
            return self._attempts.read(secure)
        except SecaggError as error:  # a device was revoked before this process read the roster
            raise problem("conflict", f"the attempt cannot go on: {error}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class _StoredMessage:
    """A message as it is stored, see ``blob_formats``."""

    digest: str
    size: int
    data: bytes = b""
    """Empty for a vector, which is in its spool."""
    vector: str = ""
    """For a vector only: its digest, its length, and its last byte."""
    length: int = 0
    last: int = 0

    @classmethod
    def of(cls, arrived: ArrivedMessage) -> _StoredMessage:
        """The stored form of a message. Appends a vector's signature to its spool."""
        if arrived.stage == "mask":
            return cls._with_vector(arrived.vector, arrived.signature)
        try:
            match arrived.stage:
                case "advertise":
                    data = entry_bytes(arrived.body, arrived.signature, arrived.certificate)
                case "survivors":
                    data = arrived.signature
                case "share" | "unmask":
                    data = message_bytes(arrived.body, arrived.signature)
                case _:
                    assert_never(arrived.stage)
        except SecaggError as error:
            raise problem("invalid-update", str(error)) from None
        return cls(digest=hashlib.sha256(data).hexdigest(), size=len(data), data=data)

    @classmethod
    def _with_vector(cls, spool: Spool | None, signature: bytes) -> _StoredMessage:
        if spool is None or not spool.size:
            raise problem("invalid-request", "a masked input comes with its vector")
        vector, length = spool.digest, spool.size
        spool.handle.seek(length - 1)
        last = spool.handle.read(1)[0]
        spool.write(signature)
        return cls(digest=spool.digest, size=spool.size, vector=vector, length=length, last=last)


def _refused(effects: Sequence[fx.Effect]) -> bool:
    return any(isinstance(effect, fx.Refused) for effect in effects)


def _raise_refused(effects: Sequence[fx.Effect]) -> None:
    for effect in effects:
        if isinstance(effect, fx.Refused):
            raise problem(effect.kind, effect.reason)
