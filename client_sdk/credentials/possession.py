"""What a new key signs, so that the authority certifies a key only for who has its private half.

An enrolment's statement is bound to the authority and to the token's secret: another authority, or somebody with
another token, has no use for it. A rotation's is bound to the authority, the holder's id, and the key that it replaces.
"""

from __future__ import annotations

from client_sdk.credentials.authority_key import AUTHORITY_ID_BYTES
from client_sdk.credentials.canonical import CredentialWriter
from client_sdk.credentials.domains import ENROLMENT, ROTATION
from client_sdk.credentials.enrolment_token import DIGEST_BYTES
from client_sdk.credentials.identity_keys import KEY_BYTES

_KIND_ENROLMENT = 131
_KIND_ROTATION = 132


def enrolment_statement(authority: bytes, secret_digest: bytes, public_key: bytes) -> bytes:
    """The bytes that a key signs when it enrols: authority (16 bytes), SHA-256 of the token's secret, the key."""
    out = CredentialWriter(_KIND_ENROLMENT).fixed(authority, AUTHORITY_ID_BYTES).fixed(secret_digest, DIGEST_BYTES)
    return ENROLMENT + out.fixed(public_key, KEY_BYTES).done()


def rotation_statement(authority: bytes, id: str, old_key: bytes, new_key: bytes) -> bytes:
    """The bytes that a new key signs when it takes the place of ``old_key`` under the holder's ``id``."""
    out = CredentialWriter(_KIND_ROTATION).fixed(authority, AUTHORITY_ID_BYTES).text(id)
    return ROTATION + out.fixed(old_key, KEY_BYTES).fixed(new_key, KEY_BYTES).done()
