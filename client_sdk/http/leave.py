"""Tells the coordinator and the authority that a device leaves, then deletes what its folder need not keep."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing

from client_sdk.device.actions import Answered, RequestRefused, Send, Sleep
from client_sdk.device.leaving import TELL_COORDINATOR, UNTOLD, Kept, kept_of, registration
from client_sdk.device.record import Record, Storage
from client_sdk.http.authority import AuthorityClient
from client_sdk.http.exchange import Exchange
from client_sdk.http.rotating import rotate
from client_sdk.http.signing import RequestSigner
from client_sdk.http.transport import open_http
from client_sdk.http.urls import check_url
from client_sdk.identity import Entropy, Signer, key_of
from client_sdk.protocol.problems import Problem, ProblemError, problem

TRIES = 3
"""How often the coordinator is asked, a second apart, while it is busy."""


def leave(
    storage: Storage,
    *,
    without_coordinator: bool = False,
    signer: Signer | None = None,
    clock: Callable[[], float] = time.time,
    entropy: Entropy = os.urandom,
    pause: Callable[[float], None] = time.sleep,
) -> Kept:
    """Leave the coordinator of the record and the authority, and forget. Returns what is kept nevertheless.

    It may be repeated after whatever interrupted it. ``without_coordinator``: that one is gone, and is not told.
    ``signer`` holds the key where the record does not.

    ProblemError where the coordinator or the authority cannot be reached, or refuses: then nothing here is deleted.
    CredentialError where another authority answers."""
    record = storage.load()
    told_coordinator = told_authority = False
    if record is not None and record.next_key_seed:  # else the authority would revoke the old key only
        record = _finish_rotation(storage, record, clock, entropy)
    key = signer or (key_of(record.key_seed) if record is not None else None)
    if record is not None and key is not None and record.certificate:
        if not without_coordinator and record.coordinator:
            told_coordinator = _tell_coordinator(storage, record, key, clock, entropy, pause)
        if record.authority is not None:
            digest = bytes.fromhex(record.authority.digest)
            with AuthorityClient(record.authority.url, digest, clock=clock, entropy=entropy) as authority:
                told_authority = _tell_authority(authority, key)
    storage.forget()
    return kept_of(told_coordinator, told_authority)


def _finish_rotation(storage: Storage, record: Record, clock: Callable[[], float], entropy: Entropy) -> Record:
    """The record with the key that the authority certifies now."""

    def give_up(sleep: Sleep) -> None:
        raise problem("busy", sleep.reason)

    try:
        return rotate(storage, clock=clock, entropy=entropy, pause=give_up)
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


def _tell_coordinator(
    storage: Storage,
    record: Record,
    key: Signer,
    clock: Callable[[], float],
    entropy: Entropy,
    pause: Callable[[float], None],
) -> bool:
    """Whether the coordinator has forgotten the device; also where it knows it no more."""
    url = check_url(record.coordinator)
    signing = RequestSigner(url, clock, entropy)
    signing.signer = key
    with closing(open_http(url)) as http:
        exchange = Exchange(http, url, storage, clock, signing)

        def ask(action: Send) -> Problem | None:
            for tries in range(1, TRIES + 1):
                reply = exchange.send(action)
                if isinstance(reply, Answered):
                    return None
                refused = reply.problem if isinstance(reply, RequestRefused) else problem("busy", reply.reason).problem
                if refused.is_ours and refused.advice != "retry":
                    return refused
                if tries < TRIES:
                    pause(1.0)
            raise ProblemError(refused)

        refused = ask(registration(record.certificate)) if record.registered is None else None
        refused = refused or ask(TELL_COORDINATOR)
    if refused is None or refused.kind == "unregistered":
        return True
    if refused.kind in UNTOLD:
        return False
    raise ProblemError(refused)
