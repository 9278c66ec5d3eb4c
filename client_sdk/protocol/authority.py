"""The messages between the holder of a key, a device or a worker, and the authority that certifies it.

::

    GET  /v1/authority                                          -> AuthorityKey        whose digest the token has
    POST /v1/certificates           CertificateRequest          -> CertificateAnswer   the first certificate
    POST /v1/certificates/renewed   (signed, no body)           -> CertificateAnswer   the same key for longer
    POST /v1/certificates/rotated   RotationRequest (signed)    -> CertificateAnswer   another key under the same id
    POST /v1/certificates/left      (signed, no body)           -> 204                 the holder is forgotten
    GET  /v1/revocations                                        -> the list's bytes    by anybody, also to serve it on

*Signed* requests have the signature of ``credentials.request_signature`` by the certified key, for the authority's
public URL. A request that was answered may be sent again: see each message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from client_sdk.protocol.names import Message

REVOCATIONS_MEDIA_TYPE = "application/vnd.quorate.revocations"

KeyHex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="an Ed25519 public key, 32 bytes in hexadecimal")]
SignatureHex = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$", description="an Ed25519 signature, 64 bytes")]


class AuthorityRoute(StrEnum):
    """Paths below the authority's public URL."""

    AUTHORITY = "/v1/authority"
    CERTIFICATES = "/v1/certificates"
    RENEWED = "/v1/certificates/renewed"
    ROTATED = "/v1/certificates/rotated"
    LEFT = "/v1/certificates/left"
    REVOCATIONS = "/v1/revocations"


class AuthorityKey(Message):
    """Who this authority says it is. A device compares it with its token's digest and trusts nothing else."""

    public_key: KeyHex
    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """The first 16 bytes of the SHA-256 of the key, in hexadecimal: how certificates and lists name the authority."""


class CertificateRequest(Message):
    """Asks for a certificate. Sent again with the same token and key it is answered with the same id, and costs no
    further use of the token."""

    secret: str = Field(pattern=r"^[0-9a-f]{32}$")
    """The secret of the enrolment token, 16 bytes in hexadecimal."""
    public_key: KeyHex
    proof: SignatureHex
    """The key's signature over ``possession.enrolment_statement``."""
    label: str = Field(default="", max_length=64)
    """A name for display. Not verified; forgotten when the holder leaves."""
    who: str = Field(default="", max_length=16_384)
    """What proves who the device is, where the authority asks for that: an attestation, an OIDC token. Not stored."""


class RotationRequest(Message):
    """Asks for a certificate of another key under the same id, in a request that the old key signs. The old key is
    revoked. Sent again, signed by the old key, it is answered with the same certificate."""

    new_key: KeyHex
    proof: SignatureHex
    """The new key's signature over ``possession.rotation_statement``."""


class CertificateAnswer(Message):
    """The holder's certificate. The holder saves it before its next request."""

    certificate: str = Field(pattern=r"^[0-9a-f]+$", max_length=400)
    """The bytes of ``credentials.certificate`` in hexadecimal."""
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    """The holder's id, which stays when its key is rotated."""
    holder: Literal["device", "worker"]
    not_after: int
    """Unix seconds from which the certificate is no longer valid."""
    renew_at: int
    """Unix seconds from which the authority issues a longer one; before, it sends this one again."""
