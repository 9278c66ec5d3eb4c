"""The canonical encoding (``client_sdk.protocol.wire``) of credentials. Errors: BadCredential."""

from __future__ import annotations

from client_sdk.credentials.errors import BadCredential
from client_sdk.protocol.wire import CanonicalReader, CanonicalWriter

SIGNATURE_BYTES = 64
TIME_BYTES = 8
"""Whole Unix seconds, UTC."""


class CredentialWriter(CanonicalWriter):
    """Writes a credential. BadCredential."""

    error = BadCredential


class CredentialReader(CanonicalReader):
    """Reads a credential. BadCredential."""

    error = BadCredential


# ------------------------------------------------------------ domains
# What each signed byte string begins with. No prefix begins another one, so none is taken for another.
#
# Those of this file are for everything that the authority, the holders of keys and coordinators sign; messages of
# secure rounds begin with ``secagg.statement.DOMAIN``. A signed request has no prefix of ours: RFC 9421 fixes how it
# begins.


CERTIFICATE = b"quorate certificate 1\x00"
REVOCATIONS = b"quorate revocation list 1\x00"
ENROLMENT = b"quorate enrolment proof 1\x00"
ROTATION = b"quorate rotation proof 1\x00"
AUDIT_HEAD = b"quorate audit head 1\x00"
PRIVACY_REPORT = b"quorate privacy report 1\x00"
REQUEST = b'"@method": '
"""How every signature base of ``request_signature`` begins."""
