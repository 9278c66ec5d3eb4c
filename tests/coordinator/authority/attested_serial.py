"""An example of an enrolment proof: serial numbers that a manufacturer has attested."""

from __future__ import annotations

import binascii
from base64 import b64decode

from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import require_signed
from coordinator.authority.proofs import ProofRefused


class AttestedSerial:
    """The manufacturer has signed each device's serial number together with the device's key.

    ``who`` is ``serial:base64``: the Ed25519 signature of the manufacturer over ``attested_bytes(serial, key)``."""

    def __init__(self, manufacturer: bytes) -> None:
        self._manufacturer = manufacturer

    def subject(self, who: str, public_key: bytes, at: float) -> str:
        serial, _, encoded = who.partition(":")
        if not (serial.isascii() and serial.isalnum() and len(serial) <= 40):
            raise ProofRefused("The device did not say its serial number.")
        try:
            signature = b64decode(encoded, validate=True)
            require_signed(self._manufacturer, attested_bytes(serial, public_key), signature, "the manufacturer")
        except (BadCredential, binascii.Error) as error:
            raise ProofRefused(f"The manufacturer has not attested this key of device {serial}.") from error
        return serial


def attested_bytes(serial: str, public_key: bytes) -> bytes:
    """What a manufacturer signs for ``AttestedSerial``."""
    return b"quorate example attestation 1\x00" + public_key + serial.encode("ascii")
