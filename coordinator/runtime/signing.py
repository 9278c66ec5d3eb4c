"""Checks the signatures of requests: of who is registered, and of who registers.

::

    a registered key     times -> the key of this id -> signature, body -> certificate valid and good -> nonce
    a registration       times -> the certificate, its class and its key -> signature, body -> nonce

The nonce is taken last: who has no certified key, or one that is revoked or expired, cannot fill the window, nor use up
a nonce of somebody else.
Everything runs in the thread that then handles the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.errors import BadCredential, CredentialError, refusal_of
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from client_sdk.protocol.problems import problem
from coordinator.runtime.identities import Identities, SignedBy


class Verify(Protocol):
    """``RequestSignature.require_signed``, or what takes its place where thousands of requests are played."""

    def __call__(
        self, signature: RequestSignature, /, public_key: bytes, *, method: str, uri: str, result: str | None = None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A signed request as it arrived: nothing is checked yet but the form of its signature."""

    signature: RequestSignature
    method: str
    uri: str
    """``@target-uri``: the public URL with the path and the query as they were sent."""
    at: float
    """When its head arrived, in Unix seconds."""
    result: str | None = None
    """The header ``Quorate-Result``; None where there is none."""
    sha256: bytes | None = None
    """Of the body, 32 bytes, where it was read; None: who reads it compares it with the signed digest."""


class SignedRequests:
    """The signatures of one process. ``now``: Unix seconds. Safe from any thread."""

    def __init__(
        self,
        identities: Identities,
        now: Callable[[], float],
        nonces: NonceWindow,
        verify: Verify = RequestSignature.require_signed,
    ) -> None:
        self._identities = identities
        self._now = now
        self.nonces = nonces
        self._verify = verify

    def check(
        self,
        signature: RequestSignature,
        *,
        method: str,
        uri: str,
        at: float,
        result: str | None = None,
        sha256: bytes | None = None,
    ) -> SignedBy:
        """Who has signed a request, among those who are registered. The parameters are those of ``Arrived``.

        ProblemError *wrong-clock*, *unregistered*, *bad-signature*, *replayed-request*, *busy*, and those of
        ``Identities.peer``: a held request asks for them again."""
        try:
            signature.require_current(at)
            key = self._identities.public_key(signature.key_id)
            self._require_signed(signature, key, method, uri, result, sha256)
            self._identities.peer(SignedBy(signature.key_id, at))
            return self._taken(signature, at)
        except CredentialError as error:
            raise refusal_of(error) from None

    def check_registration(
        self,
        signature: RequestSignature,
        certificate: Certificate,
        holder: HolderClass,
        *,
        method: str,
        uri: str,
        at: float,
        sha256: bytes | None = None,
    ) -> SignedBy:
        """Who has signed a request that registers this certificate, which the authority has given to a ``holder``.

        The same problems but *unregistered*, and those of ``Identities.require_certificate``."""
        try:
            signature.require_current(at)
            self._identities.require_certificate(certificate, holder)
            self._require_signed(signature, certificate.public_key, method, uri, None, sha256)
            return self._taken(signature, at)
        except CredentialError as error:
            raise refusal_of(error) from None

    def _require_signed(
        self,
        signature: RequestSignature,
        key: bytes,
        method: str,
        uri: str,
        result: str | None,
        sha256: bytes | None,
    ) -> None:
        try:
            self._verify(signature, key, method=method, uri=uri, result=result)
            if sha256 is not None:
                signature.require_body(sha256)
        except BadCredential as error:
            raise problem("bad-signature", f"{error} Here it is {method} {uri[:300]}.") from None

    def _taken(self, signature: RequestSignature, at: float) -> SignedBy:
        """Takes the nonce, unless its body took so long that the nonce may be forgotten already."""
        now = self._now()
        if max(at, now) > signature.expires:
            raise problem(
                "wrong-clock", "This request was complete only after its signature had expired; sign it afresh."
            )
        # By the clock as it is, which may have been set back since ``at``: what arrived after that is still known.
        self.nonces.take(signature, now)
        return SignedBy(signature.key_id, at)
