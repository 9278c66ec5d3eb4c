"""Drives ``device.rotating`` over HTTP: a device's key is replaced by another one under the same id."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from client_sdk.device.actions import Certify, Reply, Save, Sleep
from client_sdk.device.record import Record, Storage
from client_sdk.device.requests import Pacing
from client_sdk.device.rotating import rotate_key
from client_sdk.http.certifying import Certifier
from client_sdk.identity import Entropy, key_of


def rotate(
    storage: Storage,
    *,
    clock: Callable[[], float] = time.time,
    entropy: Entropy = os.urandom,
    pacing: Pacing | None = None,
    pause: Callable[[Sleep], None] = lambda sleep: time.sleep(sleep.max_s),
) -> Record:
    """Replace the key of the device in ``storage``, and return its record. While the authority does not answer it is
    asked again, after ``pause``; whoever interrupts that calls this again, or starts the device.

    ProblemError and ValueError as ``rotate_key``."""
    certifier = Certifier(clock, entropy=entropy)
    session = rotate_key(storage.load(), entropy=entropy, pacing=pacing, at=clock())
    reply: Reply = None
    while True:
        try:
            action = session.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = None
        if isinstance(action, Save):
            storage.save(action.record, action.update, action.joined)
        elif isinstance(action, Certify):
            reply = _certify(certifier, action, storage.load())
        elif isinstance(action, Sleep):
            pause(action)
        else:
            raise TypeError(f"a rotation does not ask for {action!r}")


def _certify(certifier: Certifier, action: Certify, record: Record | None) -> Reply:
    key = key_of(record.key_seed) if record is not None else None
    if record is None or key is None:
        raise RuntimeError("the authority is asked before the key was saved")
    return certifier.perform(action, key, certificate=record.certificate, following=key_of(record.next_key_seed))
