"""The requests of devices in a secure round: the header of the attempt, the messages of the five exchanges with their
answers, those of complaints, and the report of who cannot go on.

An answer is bytes of ``client_sdk.secagg``. It is waited for under the device's own key (``signals.secure_key``), which
is woken when the round gets to another phase, or when the engine says that there is an answer.

``Held.mark`` is where the round is, how many devices it goes on without and how many complaints were made and
answered, not the number of the newest event: with
300 devices each message of another one else causes a look that finds nothing. What another replica wrote is seen
within a second, by the thread that keeps time; no refusal is given by such a look.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated

from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Route, RunId
from client_sdk.protocol.secure import (
    OCTETS_MEDIA_TYPE,
    SECURE_HEADER,
    NotReady,
    Octets,
    SecureRefusal,
    SecureSigned,
    SecureWait,
    Stage,
)
from client_sdk.secagg.statement import SIGNATURE_BYTES
from coordinator.blobs import Spool
from coordinator.engine.kinds import Place
from coordinator.engine.rounds import KINDS
from coordinator.group_commit import PendingCommit
from coordinator.requests.devices import is_device
from coordinator.requests.entry import (
    About,
    Attempt,
    Beside,
    Body,
    Direct,
    Entry,
    Held,
    Permission,
    RoundNumber,
)
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.signals import secure_key
from coordinator.secure.arrived import ArrivedMessage
from coordinator.store.port import DeviceRow

ExchangeName = Annotated[
    Stage, About("what the device sends: the message of an exchange, a complaint, or opened shares")
]


def secure_header(
    to: Coordinator, device: DeviceRow, message: SecureWait, *, run: RunId, round: RoundNumber
) -> Octets | None:
    """The header of the attempt that this device may join or continue: everything that the attempt is bound to. Held
    open until there is one. Nothing in it is believed: the device compares it with what it has agreed to.

    204 where there is none yet: ask again.
    """
    return _octets(to.secure.of(run).requests.header(device.device, round))


def secure_message_again(
    to: Coordinator,
    device: DeviceRow,
    message: SecureSigned,
    digest: str | None,
    *,
    run: RunId,
    round: RoundNumber,
    attempt: Attempt,
    stage: ExchangeName,
) -> Noted | None:
    """Of small messages the bytes are read again, which tell whether they are the same."""
    if stage != "mask" or digest is None:
        return None
    body, signature = bytes.fromhex(message.body), bytes.fromhex(message.signature)
    with _late_vectors(to, device, run, round, stage):
        came = to.secure.of(run).requests.has_come(device.device, round, attempt, body, signature, digest)
    return Noted() if came else None


def secure_message_limit(
    to: Coordinator,
    device: DeviceRow,
    message: SecureSigned,
    *,
    run: RunId,
    round: RoundNumber,
    attempt: Attempt,
    stage: ExchangeName,
) -> int:
    with _late_vectors(to, device, run, round, stage):
        return to.secure.of(run).requests.limit(device.device, round, attempt, stage)


def secure_message(
    to: Coordinator,
    device: DeviceRow,
    message: SecureSigned,
    body: Spool,
    *,
    run: RunId,
    round: RoundNumber,
    attempt: Attempt,
    stage: ExchangeName,
) -> PendingCommit[Noted]:
    """The device's message of an exchange, with its signature in the header `Quorate-Secure`. The body is the message;
    of *mask* it is the packed vector, streamed, and the message is in the header.

    An acknowledged message is durable. The same bytes again are acknowledged again; others are refused (*duplicate*).
    A vector that counts is not read a second time: `Content-Digest` tells that it is the same one.
    """
    masked = stage == "mask"
    arrived = ArrivedMessage(
        device=device.device,
        round=round,
        attempt=attempt,
        stage=stage,
        body=bytes.fromhex(message.body) if masked else body.handle.read(),
        signature=bytes.fromhex(message.signature),
        certificate=bytes.fromhex(message.certificate),
        vector=body if masked else None,
    )
    with _late_vectors(to, device, run, round, stage):
        entered = to.secure.of(run).requests.receive(arrived)

    def noted() -> Noted:
        with _late_vectors(to, device, run, round, stage):
            entered()
        return Noted()

    return PendingCommit(to.core.log(run).commits, noted)


def secure_answer(
    to: Coordinator,
    device: DeviceRow,
    message: SecureWait,
    *,
    run: RunId,
    round: RoundNumber,
    attempt: Attempt,
    stage: ExchangeName,
) -> Octets | None:
    """The answer to a message: the roster, the shares for this device, the survivor list, the signatures under it, and
    at last nothing: the round is over. Where shares did not open, before the list: complaints of this device, to which
    it sends *open*, and how its own complaint was settled. Held open until it is there.

    204 where it is not there yet: ask again.
    """
    return _octets(to.secure.of(run).requests.answer(device.device, round, attempt, stage))


def waits_for(device: DeviceRow, message: SecureWait, **path: object) -> str:
    return secure_key(device.device)


def changes_of(to: Coordinator, *, run: RunId, **path: object) -> tuple[Place | None, int]:
    """Where the round is, how many devices it goes on without, and how many complaints and answers to them there are,
    by the newest state that this process has read: the clock's thread keeps it up to date within a second, whichever
    replica wrote it. No other message of another device changes it, unless that is the last one that an exchange
    needs."""
    state, secure = to.core.log(run).state, to.core.log(run).state.secure
    disputes = 0 if secure is None else len(secure.complaints) + sum(map(len, secure.opened.values()))
    return KINDS[state.plan.kind].place(state), (0 if state.round is None else len(state.round.excluded)) + disputes


def not_yet(to: Coordinator, device: DeviceRow, message: SecureWait, **path: object) -> NotReady:
    return NotReady()


def refuse(
    to: Coordinator, device: DeviceRow, message: SecureRefusal, *, run: RunId, round: RoundNumber, attempt: Attempt
) -> Noted:
    """The device takes part in no attempt on this checkpoint any more, in whichever run. It is selected for no other
    round on it. No proof is needed, since a false report harms only the device."""
    requests = to.secure.of(run).requests
    if message.spent:
        requests.spent(device.device, round, attempt)
    else:
        requests.refuse(device.device, round, attempt, message.reason)
    return Noted()


def _late_vectors(
    to: Coordinator, device: DeviceRow, run: str, round: int, stage: Stage
) -> AbstractContextManager[None]:
    """A vector that is refused in it as late is recorded, as a late update is; of other messages nothing is."""
    return to.devices.late_recorded(device.device, run, round) if stage == "mask" else nullcontext()


def _octets(content: bytes | None) -> Octets | None:
    return None if content is None else Octets(content=content)


_device = partial(Entry, permission=Permission.DEVICE, group="devices")

SECURE = _device(
    "POST",
    Route.SECURE,
    Held(secure_header, key=waits_for, peer=is_device, again=secure_header, expired=not_yet, mark=changes_of),
    "Wait for the header of a secure attempt",
)
SECURE_MESSAGE = _device(
    "PUT",
    Route.SECURE_MESSAGE,
    Body(
        secure_message_limit,
        secure_message,
        beside=Beside(
            SECURE_HEADER,
            about="The message SecureSigned as JSON: the signature of the message, which covers its attempt, and what "
            "belongs to it.",
            missing=f"the header {SECURE_HEADER} with the message's signature is missing",
            signed=False,
        ),
        media=OCTETS_MEDIA_TYPE,
        room=SIGNATURE_BYTES,
        again=secure_message_again,
    ),
    "Send a message of a secure round",
    operation="put_secure_message",
)
SECURE_ANSWER = _device(
    "POST",
    Route.SECURE_ANSWER,
    Held(secure_answer, key=waits_for, peer=is_device, again=secure_answer, expired=not_yet, mark=changes_of),
    "Wait for the answer to a message of a secure round",
)
SECURE_REFUSAL = _device(
    "POST",
    Route.SECURE_REFUSAL,
    Direct(refuse),
    "Report that no attempt on this checkpoint is joined any more",
    operation="secure_refusal",
)
ENTRIES = (SECURE, SECURE_MESSAGE, SECURE_ANSWER, SECURE_REFUSAL)
