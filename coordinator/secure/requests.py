"""Devices' requests in a secure round: the header, their messages, and the answers to these.

::

    header      the attempt that may be joined, or nothing yet
    has_come    whether a vector is one that counts already: it is acknowledged again, and not read
    limit       how long the body of a message may be, before a byte of it is read
    receive     advertise | share | mask | survivors | unmask, complain | open: accepted once, durably, or refused with
                the reason; what is received meanwhile becomes durable in the same transaction
    refuse      the device takes part in no attempt on this checkpoint any more
    answer      to each of the five: roster | delivered shares | survivors | proof | over, or nothing yet; while others
                mask, also to complain and open: complaints of the device | how its own complaint was settled

The caller has authenticated the device, waits, and asks again. The engine decides whether a message is in time, before
anything is read or stored, and again under the run's lock. Raises ``ProblemError`` for a device's error; BlobError
passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from os import SEEK_END
from typing import Literal, TypeVar, assert_never

from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.complaints import (
    COMPLAINED_BYTES,
    PAIR_BYTES,
    Accusations,
    Complaint,
    OpenedPairs,
    Settlement,
)
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import DIGESTS_BYTES, SEALED_BYTES
from client_sdk.secagg.statement import SIGNATURE_BYTES
from coordinator.blobs import Blobs, Gone
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.event_fields import Group
from coordinator.engine.reasons import printable
from coordinator.engine.secure import complaints, messages
from coordinator.engine.secure.departures import is_declined_late
from coordinator.engine.secure.state import SecureRound
from coordinator.engine.state import RunState
from coordinator.secure import validation
from coordinator.secure.announcing import Authorities
from coordinator.secure.arrived import ArrivedMessage, StoredMessage
from coordinator.secure.attempt import Attempts
from coordinator.secure.blob_formats import body_of
from coordinator.secure.performing import SecureRun, drop

T = TypeVar("T")

_EVENTS: dict[Stage, type[messages.Message]] = {
    "advertise": ev.Advertised,
    "share": ev.Shared,
    "mask": ev.Masked,
    "survivors": ev.Signed,
    "unmask": ev.Revealed,
    "complain": ev.Complained,
    "open": ev.PairsOpened,
}
OVER = b""
"""The answer to *unmask*, once the round has ended: the device deletes all its secrets."""


class SecureRequests:
    """The secure rounds of one run. Safe from several threads."""

    def __init__(
        self,
        run: SecureRun,
        blobs: Blobs,
        authority: Authorities,
        attempts: Attempts,
    ) -> None:
        """``authority``: called whenever a certificate is to be checked."""
        self._run, self._blobs, self._authority, self._attempts = run, blobs, authority, attempts

    def header(self, device: str, round: int) -> bytes | None:
        """The header of the attempt that this device may join or continue; None: not yet. ProblemError where the device
        is not in the round any more."""

        def look(state: RunState) -> bytes | None:
            secure = self._under_way(state, device, round)
            if not secure.header or (state.phase != "collecting" and device not in secure.advertised):
                return None
            return bytes.fromhex(secure.header)

        return self._looked_up(look)

    def has_come(self, device: str, round: int, attempt: int, body: bytes, signature: bytes, digest: str) -> bool:
        """Whether this masked vector has come before and counts: known without a byte of it, by its SHA-256 ``digest``
        (hexadecimal) and by the description ``body`` that the device signed. ProblemError where it is refused."""

        def look(state: RunState) -> bool | None:
            secure = self._attempt(state, device, round, attempt)
            came = secure.masked.get(device)
            if came is None or not self._is_signed(came, signature):
                return None
            event = ev.Masked(at=0.0, round=round, attempt=attempt, device=device, digest=came, bytes=0)
            refused = messages.answered(state, event)
            if refused is not None:
                _raise_refused(refused[1])
            found = self._attempts.of(secure, device)
            return validation.is_description(found.cohort, found.places[device], body, signature, digest) or None

        return bool(self._looked_up(look))

    def limit(self, device: str, round: int, attempt: int, stage: Stage) -> int:
        """The longest body of this message in bytes; of *mask* the length of the packed vector, and a vector of another
        length is refused once it has come. ProblemError where the message is refused whatever its body: also for any
        vector beside the one that has come, which ``has_come`` knows."""

        def look(state: RunState) -> int:
            secure = self._attempt(state, device, round, attempt)
            came = "" if stage in ("mask", "open") else messages.sent(secure, _EVENTS[stage]).get(device, "")
            event = _EVENTS[stage](at=0.0, round=round, attempt=attempt, device=device, digest=came, bytes=0)
            refused = messages.answered(state, event)
            if refused is not None:
                _raise_refused(refused[1])
            return (
                most_advertised()
                if stage == "advertise"
                else most_bytes(stage, secure.group_of[device], self._attempts.header(secure))
            )

        found = self._looked_up(look)
        if found is None:
            raise AssertionError("a message has a limit, or is refused")
        return found

    def receive(self, arrived: ArrivedMessage) -> Callable[[], None]:
        """Checks a message and queues its event. When the function that it returns has returned, the message is durable
        and counts. A repeated message is accepted again. ProblemError from either where it is refused."""
        stored = StoredMessage.of(arrived)
        digest = stored.digest

        def event(state: RunState, at: float) -> messages.Message:
            return _EVENTS[arrived.stage](
                at=at,
                round=arrived.round,
                attempt=arrived.attempt,
                device=arrived.device,
                digest=digest,
                bytes=stored.size,
                **_named(state, arrived),
            )

        state = self._run.known
        answer = messages.answered(state, event(state, 0.0))
        if answer is not None:
            state = self._run.state
            answer = messages.answered(state, event(state, 0.0))
        if answer is not None:
            _raise_refused(answer[1])
            self._require_list(state, arrived)
            return lambda: None  # accepted before
        self._verify(state, arrived, stored)
        short = stored.short(arrived.round)
        if short is not None:
            entered = self._run.enter(event, short)
            return lambda: _raise_refused(entered())
        self._store(arrived, stored)
        stays = self._run.enter(lambda state, at: event(state, at) if self._require_stored(digest) else None)

        def settle() -> None:
            answers = stays()
            if _refused(answers):
                drop(self._run, self._blobs, digest)
            _raise_refused(answers)

        return settle

    def spent(self, device: str, round: int, attempt: int) -> None:
        """A device has signed on this checkpoint before, and reports that instead of advertising."""
        _raise_refused(self._run.submit(lambda _, at: ev.Spent(at=at, round=round, attempt=attempt, device=device)))

    def refuse(self, device: str, round: int, attempt: int, reason: str) -> None:
        """A device takes part in no attempt on this checkpoint any more, for another reason."""
        shown = printable(reason)
        _raise_refused(
            self._run.submit(
                lambda state, at: ev.Declined(
                    at=at,
                    round=round,
                    attempt=attempt,
                    device=device,
                    reason=shown,
                    late=is_declined_late(state, round),
                )
            )
        )

    def answer(self, device: str, round: int, attempt: int, stage: Stage) -> bytes | None:
        """The answer to the device's message of this stage; None: not yet. ProblemError where there will be none: the
        attempt or the round is over."""

        def look(state: RunState) -> bytes | None:
            if stage == "unmask" and (
                state.round_number > round or (state.round_number == round and state.phase == "idle")
            ):
                return OVER
            return self._answer(state, self._attempt(state, device, round, attempt), device, stage)

        return self._looked_up(look)

    # ------------------------------------------------------------ inside

    def _looked_up(self, look: Callable[[RunState], T | None]) -> T | None:
        """What the state that was read last has, and where it has nothing, what the newest has. Blobs that the former
        names may be gone, where another replica has ended the round."""
        known = self._run.known
        try:
            found = look(known)
            if found is None and (recent := self._run.recent) is not known:
                found = look(recent)
        except (ProblemError, Gone):
            return look(self._run.state)
        return found

    def _attempt(self, state: RunState, device: str, round: int, attempt: int) -> SecureRound:
        """This attempt of the round, where it is under way and has this device."""
        secure, now = self._under_way(state, device, round), state.current.attempt
        if attempt < now:
            raise problem("stale", f"attempt {attempt} of round {round} is over: it is at attempt {now}")
        if attempt > now:
            raise problem("stale", f"round {round} has no attempt {attempt} yet: it is at attempt {now}")
        return secure

    def _answer(self, state: RunState, secure: SecureRound, device: str, stage: Stage) -> bytes | None:
        if secure.roster and device not in secure.group_of:
            raise problem("late", "the roster was made without this device")
        match stage:
            case "advertise":
                return self._attempts.bytes_of(secure.roster) if secure.roster else None
            case "share":
                return self._delivery(state, secure, device)
            case "mask" | "complain" | "open":
                return self._while_masking(state, secure, device)
            case "survivors":
                if state.phase != "unmasking":
                    return None
                return self._attempts.proof(secure, self._attempts.of(secure, device))
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
        why = state.current.excluded.get(device)
        if why is not None:
            raise problem("withdrawn", f"the round goes on without this device: {why}")
        if device not in state.current.members:
            raise problem("not-selected", f"device {device} was not selected for round {round}")
        return state.secure

    def _verify(self, state: RunState, arrived: ArrivedMessage, stored: StoredMessage) -> None:
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

    def _validate(self, secure: SecureRound, arrived: ArrivedMessage, stored: StoredMessage) -> None:
        body, signature = arrived.body, arrived.signature
        if arrived.stage == "advertise":
            header = self._attempts.header(secure)
            vouched = self._authority(header.expires_at).vouched
            validation.advertised(header, vouched, arrived.device, body, signature, arrived.certificate)
            return
        attempt = self._attempts.of(secure, arrived.device)
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
                survivors, dealt = attempt.survivors(secure), self._attempts.dealt(secure, attempt)
                lacks = attempt.lacks(secure).get(place, ())
                validation.revealed(cohort, place, body, signature, survivors, dealt, lacks)
            case "complain":
                validation.complained(cohort, place, body, signature, self._attempts.dealt(secure, attempt))
            case "open":
                asked = [holder for holder, dealers in secure.complaints.items() if arrived.device in dealers]
                holders = [attempt.places[holder] for holder in asked]
                validation.pairs_opened(cohort, place, body, signature, holders, self._attempts.dealt(secure, attempt))
            case _:
                assert_never(arrived.stage)

    def _require_list(self, state: RunState, arrived: ArrivedMessage) -> None:
        """Of a list that was signed before only the signature is stored: what stands beside it must be that list."""
        if arrived.stage != "survivors" or state.secure is None:
            return
        if arrived.body != self._attempts.of(state.secure, arrived.device).survivors(state.secure).encoded:
            raise problem("duplicate", "another list than the one that this device has signed stands beside it")

    def _store(self, arrived: ArrivedMessage, stored: StoredMessage) -> None:
        if arrived.vector is not None:
            arrived.vector.commit()
        else:
            self._blobs.put(stored.data)

    def _require_stored(self, digest: str) -> bool:
        """Checked under the lock: another request with the same bytes may have been refused, and its blob deleted."""
        if not self._blobs.has(digest):
            raise problem("busy", "the message's bytes were removed again: send them once more", retry_after_s=1)
        return True

    def _is_signed(self, vector: str, signature: bytes) -> bool:
        """Whether this stored vector came with this signature: then the message is the same one again."""
        with self._blobs.open(vector) as file:
            file.seek(-SIGNATURE_BYTES, SEEK_END)
            return file.read() == signature

    def _delivery(self, state: RunState, secure: SecureRound, device: str) -> bytes | None:
        if state.phase in ("collecting", "sharing"):
            return None
        if state.phase != "masking":
            raise problem("late", "the masked vectors of this attempt are in")
        attempt = self._attempts.of(secure, device)
        return self._attempts.dealt(secure, attempt).to(attempt.places[device]).encoded

    def _while_masking(self, state: RunState, secure: SecureRound, device: str) -> bytes | None:
        """The list, once all have masked; before, complaints of this device, or how its own complaint was settled."""
        if state.phase in ("agreeing", "unmasking"):
            if device not in secure.masked:
                raise problem("late", "the masked vectors of this attempt are in")
            return self._attempts.of(secure, device).survivors(secure).encoded
        if state.phase != "masking":
            return None
        holders = complaints.accusing(state, device)
        if holders:
            shown = self._attempts.messages(secure.complained[holder] for holder in holders)
            return Accusations(tuple((body_of(one), one[-SIGNATURE_BYTES:]) for one in shown)).encoded
        if device in secure.masked or device not in secure.complaints or not complaints.is_settled(state, device):
            return None
        return self._settlement(secure, device)

    def _settlement(self, secure: SecureRound, holder: str) -> bytes:
        attempt = self._attempts.of(secure, holder)
        place, out = attempt.places[holder], attempt.lacks(secure).get(attempt.places[holder], frozenset())
        digests = {dealer: of[holder] for dealer, of in secure.opened.items() if holder in of}
        found = zip(digests, self._attempts.messages(digests.values()), strict=True)
        pairs = {
            attempt.places[dealer]: OpenedPairs.parse(body_of(one), attempt.cohort.n).pairs[place]
            for dealer, one in found
        }
        return Settlement(place, pairs, tuple(sorted(out))).encoded


def _named(state: RunState, arrived: ArrivedMessage) -> dict[str, tuple[str, ...]]:
    """The devices that a complaint or opened pairs name, sorted; none where the message is malformed: then it is
    refused when it is checked."""
    group = None if state.secure is None else state.secure.group_of.get(arrived.device)
    order = () if group is None else group.order
    with suppress(SecaggError):
        if arrived.stage == "complain":
            dealers = Complaint.parse(arrived.body, len(order)).rows
            return {"dealers": tuple(sorted(order[dealer] for dealer, _ in dealers))}
        if arrived.stage == "open":
            return {"holders": tuple(sorted(order[at] for at in OpenedPairs.parse(arrived.body, len(order)).pairs))}
    return {}


def _refused(effects: Sequence[fx.Effect]) -> bool:
    return any(isinstance(effect, fx.Refused) for effect in effects)


def _raise_refused(effects: Sequence[fx.Effect]) -> None:
    for effect in effects:
        if isinstance(effect, fx.Refused):
            raise problem(effect.kind, effect.reason)


# ------------------------------------------------------------ how long a message may be
# It is known from the roster before a byte of the message is read.
# Of *mask* the length is exact. The others have these as upper bounds, since their lengths vary with who shared.

_HEAD = 512
"""Bytes of a message without its rows."""
_ROW = 16
"""Bytes of a row beside what is named below."""


def most_advertised() -> int:
    """Bytes of an advertisement: keys, a commitment, a nonce and the device's id."""
    return _HEAD


def most_bytes(
    stage: Literal["share", "mask", "survivors", "unmask", "complain", "open"],
    group: Group,
    header: AttemptHeader,
) -> int:
    """Bytes of the longest body of this stage from a device of this group."""
    n = len(group.order)
    holders = group.neighbours or n
    match stage:
        case "share":
            return _HEAD + holders * (_ROW + SEALED_BYTES + DIGESTS_BYTES)
        case "mask":
            return packed_bytes(header.lanes, header.lane_bits(n))
        case "survivors":
            return _HEAD + n * _ROW
        case "unmask":
            return _HEAD + holders * (_ROW + SHARE_BYTES)
        case "complain":
            return _HEAD + holders * COMPLAINED_BYTES
        case "open":
            return _HEAD + holders * PAIR_BYTES
        case _:
            assert_never(stage)
