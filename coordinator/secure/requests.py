"""What devices of a secure round ask of the coordinator: a header, a place for each message, and the answer to it.

::

    header      the attempt that may be joined, or nothing yet
    receive     advertise | share | mask | survivors | unmask: taken once, durably, or refused with the reason
    complain    dealers whose shares do not open
    spent       the device has signed on this checkpoint before
    answer      to each of the five: roster | delivered shares | survivors | proof | over, or nothing yet

Whoever calls has authenticated the device, waits, and asks again. Whether a message fits the moment is the engine's to
say, before anything is read or stored, and again under the run's lock. Raises ``ProblemError`` for what a device did
wrong, and lets BlobError pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

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
"""The answer to *unmask*, once the round has ended: the device deletes all that is secret."""


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
    """With *mask*: the packed lanes and nothing else, as they were spooled, with room for 64 bytes more. Committed here
    if they are taken."""


class SecureRequests:
    """The secure rounds of one run. Safe from several threads."""

    def __init__(
        self,
        run: SecureRun,
        blobs: Blobs,
        authority: Callable[[], Authority],
        attempts: Attempts,
    ) -> None:
        """``authority``: asked whenever somebody is to be vouched for."""
        self._run, self._blobs, self._authority, self._attempts = run, blobs, authority, attempts

    def header(self, device: str, round: int) -> bytes | None:
        """The header of the attempt that this device may join, or go on with; None: not yet. ProblemError where the
        round is none of its business any more."""
        state = self._run.state
        secure = self._under_way(state, device, round)
        if not secure.header or (state.phase != "collecting" and device not in secure.advertised):
            return None
        return bytes.fromhex(secure.header)

    def receive(self, arrived: ArrivedMessage) -> None:
        """Takes a message: when this returns it is durable, and counts. The same again is taken again."""
        kept = _Kept.of(arrived)
        digest = kept.digest

        def event(at: float) -> ev.Event:
            return _EVENTS[arrived.stage](
                at=at,
                round=arrived.round,
                attempt=arrived.attempt,
                device=arrived.device,
                digest=digest,
                bytes=kept.size,
            )

        state = self._run.state
        following, effects = rounds.step(state, event(0.0))
        if _refused(effects):
            self._refuse(event)
        if following is state:
            return  # it is there already
        self._verify(state, arrived, kept)
        self._store(arrived, kept)
        answers = self._run.submit(lambda _, at: event(at) if self._there(digest) else None)
        if _refused(answers):
            drop(self._run, self._blobs, digest)
        _raise_refused(answers)

    def complain(self, device: str, round: int, attempt: int, dealers: tuple[str, ...]) -> None:
        """A device could not open what these dealers sealed for it."""
        _raise_refused(
            self._run.submit(
                lambda _, at: ev.Complained(at=at, round=round, attempt=attempt, device=device, dealers=dealers)
            )
        )

    def spent(self, device: str, round: int, attempt: int) -> None:
        """A device has signed on this checkpoint before, and says so instead of advertising."""
        _raise_refused(self._run.submit(lambda _, at: ev.Spent(at=at, round=round, attempt=attempt, device=device)))

    def answer(self, device: str, round: int, attempt: int, stage: Stage) -> bytes | None:
        """The answer to the device's message of this stage; None: not yet. ProblemError where there will be no
        answer: the attempt or the round is over."""
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
            case "mask" if state.phase in ("agreeing", "unmasking"):
                return self._read(secure).survivors(secure).encoded
            case "survivors" if state.phase == "unmasking":
                self._read(secure)
                return self._attempts.proof(secure)
        return None

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

    def _verify(self, state: RunState, arrived: ArrivedMessage, kept: _Kept) -> None:
        secure = state.secure
        if secure is None:
            raise problem("stale", f"round {arrived.round} is not a secure one")
        try:
            self._look_at(secure, arrived, kept)
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

    def _look_at(self, secure: SecureRound, arrived: ArrivedMessage, kept: _Kept) -> None:
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
                validation.masked(cohort, place, body, signature, digest=kept.vector, size=kept.length, last=kept.last)
            case "survivors":
                validation.agreed(cohort, place, body, signature, attempt.survivors(secure))
            case "unmask":
                sharers = attempt.sharers(secure)
                validation.revealed(cohort, place, body, signature, attempt.survivors(secure), sharers)

    def _store(self, arrived: ArrivedMessage, kept: _Kept) -> None:
        if arrived.vector is not None:
            arrived.vector.commit()
        else:
            self._blobs.put(kept.data)

    def _there(self, digest: str) -> bool:
        """Asked under the lock: the same bytes under another request may have been refused, and removed, meanwhile."""
        if not self._blobs.has(digest):
            raise problem("busy", "the message's bytes were removed again: send them once more", retry_after_s=1)
        return True

    def _refuse(self, event: Callable[[float], ev.Event]) -> NoReturn:
        """Refuses what the engine refuses, and has it leave the reason behind, without its bytes."""
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
        except SecaggError as error:  # somebody of the roster was revoked, and this process has not read it before
            raise problem("conflict", f"the attempt cannot go on: {error}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class _Kept:
    """A message as it is kept, see ``kept``."""

    digest: str
    size: int
    data: bytes = b""
    """But for a vector, which is in its spool."""
    vector: str = ""
    """Of a vector alone: its digest, its length, and its last byte."""
    length: int = 0
    last: int = 0

    @classmethod
    def of(cls, arrived: ArrivedMessage) -> _Kept:
        """A vector's signature is written behind it."""
        if arrived.stage == "mask":
            return cls._with_vector(arrived.vector, arrived.signature)
        try:
            match arrived.stage:
                case "advertise":
                    data = entry_bytes(arrived.body, arrived.signature, arrived.certificate)
                case "survivors":
                    data = arrived.signature
                case _:
                    data = message_bytes(arrived.body, arrived.signature)
        except SecaggError as error:
            raise problem("invalid-update", str(error)) from None
        return cls(digest=hashlib.sha256(data).hexdigest(), size=len(data), data=data)

    @classmethod
    def _with_vector(cls, spool: Spool | None, signature: bytes) -> _Kept:
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
