"""A device's key is replaced by another one under the same id: at the owner's wish, as a generator of actions.

::

    Save(next key) -> Certify(rotate) -> Save(the next key is the key, its certificate)

A crash in between loses nothing: this, or the next session, asks again with the same next key. The memory of secure
rounds stays: the device is the same one, and has signed what it has signed.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from client_sdk.device.actions import Action, Reply
from client_sdk.device.enrolling import NEW, Enrolling
from client_sdk.device.record import Record
from client_sdk.device.requests import Pacing
from client_sdk.identity import DeviceKey, Entropy
from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.problems import problem


def rotate_key(
    record: Record | None, *, entropy: Entropy = os.urandom, pacing: Pacing | None = None, at: float = 0.0
) -> Generator[Action, Reply, Record]:
    """Returns the record with the new key. The coordinator learns of it when the device registers the new certificate.

    ProblemError: there is no certificate, or the authority refuses; the old key then stays, unless it is revoked.
    ValueError where the key is kept outside the record: whoever keeps it has to replace it."""
    if record is None or not record.certificate:
        raise problem("enrolment-refused", NEW)
    if not record.key_seed:
        raise ValueError("This device's key is stored outside its record: rotate it where it is stored.")
    rotation = Enrolling(record, CheckIn, None, "", pacing or Pacing(), at)
    if not record.next_key_seed:
        yield from rotation.save(next_key_seed=DeviceKey.create(entropy).seed.hex())
    yield from rotation.rotate()
    return rotation.record
