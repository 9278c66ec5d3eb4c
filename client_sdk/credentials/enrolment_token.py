"""The enrolment token: one line of text that an operator of the authority hands to a device or a worker.

It names the authority by its URL and by the SHA-256 of its public key, which is all that the device trusts, and holds
the secret that permits the enrolment. A checksum refuses what was not copied whole. The text is ``qe1_`` and the
canonical bytes in base64url without padding: URL, digest (32), secret (16), first 8 bytes of the SHA-256 of these.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field

from client_sdk.credentials.canonical import ENROLMENT, ROTATION, CredentialReader, CredentialWriter
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import AUTHORITY_ID_BYTES, KEY_BYTES

KIND = 130
PREFIX = "qe1_"
SECRET_BYTES = 16
"""128 random bits: nobody finds one by trying, so a plain SHA-256 of it is stored safely."""
DIGEST_BYTES = 32
_CHECK_BYTES = 8
_MOST_TEXT = 480
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[1-9][0-9]{0,4})?"
    r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*"
)
"""A URL without user, query and fragment (RFC 3986); its path has no empty segment."""


@dataclass(frozen=True)
class EnrolmentToken:
    """What an operator hands out. Its ``repr`` does not show the secret."""

    url: str
    """The authority's public URL, without a slash at its end: https, or http on loopback."""
    authority: bytes
    """SHA-256 of the authority's public key."""
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        require_token_url(self.url)

    @property
    def text(self) -> str:
        """The line to hand out."""
        out = CredentialWriter(KIND).text(self.url).fixed(self.authority, DIGEST_BYTES).fixed(self.secret, SECRET_BYTES)
        body = out.done()
        whole = body + hashlib.sha256(body).digest()[:_CHECK_BYTES]
        return PREFIX + base64.urlsafe_b64encode(whole).decode().rstrip("=")

    @property
    def secret_digest(self) -> bytes:
        """SHA-256 of the secret: what the authority stores, and what the proof of possession is bound to."""
        return hashlib.sha256(self.secret).digest()

    @classmethod
    def parse(cls, text: str) -> EnrolmentToken:
        """Decode a token, of which ``text`` is ``text`` again. BadCredential."""
        if not (text.startswith(PREFIX) and text.isascii() and len(text) <= _MOST_TEXT):
            raise BadCredential(f"This is no enrolment token: one begins with {PREFIX}.")
        encoded = text.removeprefix(PREFIX)
        try:
            whole = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise BadCredential("This enrolment token was not copied whole.") from None
        body, check = whole[:-_CHECK_BYTES], whole[-_CHECK_BYTES:]
        if hashlib.sha256(body).digest()[:_CHECK_BYTES] != check:
            raise BadCredential("This enrolment token was not copied whole.")
        read = CredentialReader(body, KIND, "enrolment token")
        found = cls(read.text(), read.fixed(DIGEST_BYTES), read.fixed(SECRET_BYTES))
        read.end()
        if found.text != text:
            raise BadCredential("This enrolment token is not in its one form.")
        return found


def require_token_url(url: str) -> None:
    """Raise BadCredential unless a token may name this URL: https, or http on loopback; no user, query or fragment, no
    slash at its end."""
    found = _URL.fullmatch(url)
    if found is None:
        raise BadCredential(
            f"{url[:100]!r} is no URL of an authority, such as https://authority.example:8471/quorate: "
            "no user, query or fragment, and no slash at its end."
        )
    if found["scheme"] == "http" and not _is_loopback(found["host"].strip("[]").lower()):
        raise BadCredential(f"Tokens and keys are sent to {found['host']} by https only; http is for this machine.")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ------------------------------------------------------------ possession
# What a new key signs, so that the authority certifies a key only for who has its private half.
#
# An enrolment's statement is bound to the authority and to the token's secret: another authority, or somebody with
# another token, has no use for it. A rotation's is bound to the authority, the holder's id, and the key that it
# replaces.


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
