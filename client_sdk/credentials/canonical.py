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
