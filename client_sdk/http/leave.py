"""Tells the coordinator and the authority that a device leaves, then deletes what its folder need not keep."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from client_sdk.device.actions import Answered, RequestRefused, Send, Sleep
from client_sdk.device.record import Record, Storage
from client_sdk.http.authority import AuthorityClient, rotate
from client_sdk.http.exchange import Exchange, RequestSigner
from client_sdk.http.transport import open_http
from client_sdk.http.urls import check_url
from client_sdk.identity import Signer, key_of
from client_sdk.protocol.devices import Noted, Registered, Registration
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError, problem

# ------------------------------------------------------------ leaving
# A device leaves and is forgotten: what is told to whom, and what is still kept afterwards.
#
# Told, in this sequence: the coordinator, the authority, the device's own folder. Each may be told again, so who is
# interrupted asks once more. What the device has signed in secure rounds is never deleted: a device that forgot it
# could be made to sign for two groups of survivors, which would open a single device's update.


TELL_COORDINATOR = Send(method="POST", route=Route.LEAVE, answers=(Noted,))


def registration(certificate: str) -> Send:
    """Of a certificate that the coordinator has not seen yet: it knows the device by an older one, and forgets it only
    at the request of who holds the newest."""
    message = Registration(certificate=certificate)
    return Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=message)


UNTOLD = frozenset({"expired-certificate", "not-certified", "revoked-key"})
"""Answers of a coordinator that does not let this key speak for the device any more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is still kept, in sentences for people."""

    here: str
    coordinator: str
    authority: str


def kept_of(told_coordinator: bool, told_authority: bool) -> Kept:
    """What is kept after leaving, at each place that was told or could not be."""
    return Kept(
        here="Here: the list of the rounds that this device joined, the ledger of what its data have lost, marks of "
        "what it has signed in secure rounds (no secret, no data), and the newest revocation list. Delete the folder "
        "only if no device works in it again.",
        coordinator=(
            "At the coordinator: the id, the most examples that it could claim, when it was first and last there, and "
            "the audit of when it registered and left; and the log of each round, with the id, what it reported "
            "(examples, metrics, times), and weight and digest of its update. What the model has learnt stays in it."
            if told_coordinator
            else "At the coordinator: all that it had, since it was not told. It takes no request of this key any more."
        ),
        authority=(
            "At the authority: the id, the revoked key's id until its last certificate has expired, and when the id "
            "was enrolled, renewed, rotated and left."
            if told_authority
            else "At the authority: nothing, since it has certified no key of this device."
        ),
    )


# ------------------------------------------------------------ leave


TRIES = 3
"""How often the coordinator is asked, a second apart, while it is busy."""


def leave(
    storage: Storage,
    *,
    without_coordinator: bool = False,
    signer: Signer | None = None,
) -> Kept:
    """Leave the coordinator of the record and the authority, and forget. Returns what is kept nevertheless.

    It may be repeated after whatever interrupted it. ``without_coordinator``: that one is gone, and is not told.
    ``signer`` holds the key where the record does not.

    ProblemError where the coordinator or the authority cannot be reached, or refuses: then nothing here is deleted.
    CredentialError where another authority answers."""
    record = storage.load()
    told_coordinator = told_authority = False
    if record is not None and record.next_key_seed:  # else the authority would revoke the old key only
        record = _finish_rotation(storage, record)
    key = signer or (key_of(record.key_seed) if record is not None else None)
    if record is not None and key is not None and record.certificate:
        if not without_coordinator and record.coordinator:
            told_coordinator = _tell_coordinator(storage, record, key)
        if record.authority is not None:
            digest = bytes.fromhex(record.authority.digest)
            with AuthorityClient(record.authority.url, digest) as authority:
                told_authority = _tell_authority(authority, key)
    storage.forget()
    return kept_of(told_coordinator, told_authority)


def _finish_rotation(storage: Storage, record: Record) -> Record:
    """The record with the key that the authority certifies now."""

    def give_up(sleep: Sleep) -> None:
        raise problem("busy", sleep.reason)

    try:
        return rotate(storage, pause=give_up)
    except ProblemError as error:
        if error.kind not in ("conflict", "enrolment-refused", "revoked-key"):
            raise
        return record  # the next key was not certified


def _tell_authority(authority: AuthorityClient, key: Signer) -> bool:
    """Whether the authority knew the device, and has forgotten it."""
    authority.trusted()
    try:
        authority.leave(key)
    except ProblemError as error:
        if error.kind != "unauthenticated":
            raise
        return False
    return True


def _tell_coordinator(storage: Storage, record: Record, key: Signer) -> bool:
    """Whether the coordinator has forgotten the device; also where it knows it no more."""
    url = check_url(record.coordinator)
    signing = RequestSigner(url, time.time)
    signing.signer = key
    with closing(open_http(url)) as http:
        exchange = Exchange(http, url, storage, time.time, signing)

        def ask(action: Send) -> Problem | None:
            for tries in range(1, TRIES + 1):
                reply = exchange.send(action)
                if isinstance(reply, Answered):
                    return None
                refused = reply.problem if isinstance(reply, RequestRefused) else problem("busy", reply.reason).problem
                if refused.is_ours and refused.advice != "retry":
                    return refused
                if tries < TRIES:
                    time.sleep(1.0)
            raise ProblemError(refused)

        refused = ask(registration(record.certificate)) if record.registered is None else None
        refused = refused or ask(TELL_COORDINATOR)
    if refused is None or refused.kind == "unregistered":
        return True
    if refused.kind in UNTOLD:
        return False
    raise ProblemError(refused)
