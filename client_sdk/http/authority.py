"""Requests to the authority, from the holder of a key. Messages: ``protocol.authority``.

The authority is pinned by the SHA-256 of its public key, which the enrolment token carries: whoever answers with
another key is refused before anything secret is sent, and so is each certificate and list that this key has not signed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import TypeVar

import httpx2
from pydantic import ValidationError

from client_sdk.credentials.authority_key import TrustedAuthority
from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.enrolment_token import EnrolmentToken, require_token_url
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.possession import enrolment_statement, rotation_statement
from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.credentials.revocations import RevocationList, following
from client_sdk.http.exchange import headers, read_limited
from client_sdk.http.signing import LearntClock
from client_sdk.http.transport import open_http
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.authority import (
    AuthorityKey,
    AuthorityRoute,
    CertificateAnswer,
    CertificateRequest,
    RotationRequest,
)
from client_sdk.protocol.problems import ProblemError, parse_problem, problem

LIST_LIMIT = 64 << 20
"""Bytes of a revocation list that are read: four million keys."""

Answer = TypeVar("Answer", AuthorityKey, CertificateAnswer)


class AuthorityClient:
    """One authority. ProblemError for what it refuses, and *busy* where it cannot be reached; CredentialError for what
    is not signed by the pinned key. Each request may be repeated."""

    def __init__(
        self,
        url: str,
        digest: bytes,
        *,
        http: httpx2.Client | None = None,
        clock: Callable[[], float] = time.time,
        entropy: Entropy = os.urandom,
    ) -> None:
        """``digest``: SHA-256 of the authority's public key. ``clock``: Unix seconds."""
        require_token_url(url)
        self.url = url
        self.clock = LearntClock(clock)
        self._digest = digest
        self._entropy = entropy
        self._own_http = http is None
        self._http = http if http is not None else open_http(url)
        self._trusted: TrustedAuthority | None = None

    def trusted(self) -> TrustedAuthority:
        """The authority's public key, which has the digest that is pinned. BadCredential where another one answers."""
        if self._trusted is None:
            shown = self._message(self._send("GET", AuthorityRoute.AUTHORITY), AuthorityKey)
            self._trusted = TrustedAuthority.pinned(bytes.fromhex(shown.public_key), self._digest)
        return self._trusted

    def enrol(self, token: EnrolmentToken, signer: Signer, *, label: str = "", who: str = "") -> Certificate:
        """The certificate of this key. ``who``: see ``CertificateRequest``."""
        if (token.url, token.authority) != (self.url, self._digest):
            raise BadCredential("This enrolment token is for another authority.")
        statement = enrolment_statement(self.trusted().id, token.secret_digest, bytes.fromhex(signer.public_hex))
        asked = CertificateRequest(
            secret=token.secret.hex(),
            public_key=signer.public_hex,
            proof=signer.sign(statement).hex(),
            label=label,
            who=who,
        )
        return self._certificate(self._send("POST", AuthorityRoute.CERTIFICATES, asked.model_dump_json()), signer)

    def renew(self, signer: Signer) -> Certificate:
        """The certificate of this key for longer; the present one where that is too early."""
        return self._certificate(self._send("POST", AuthorityRoute.RENEWED, signer=signer), signer)

    def rotate(self, certificate: Certificate, old: Signer, new: Signer) -> Certificate:
        """The certificate of the ``new`` key under the id of ``certificate``. The caller stores the new key before it
        asks, and asks with the same one until it is answered: the old key is revoked when the authority has decided."""
        statement = rotation_statement(
            self.trusted().id, certificate.id, certificate.public_key, bytes.fromhex(new.public_hex)
        )
        asked = RotationRequest(new_key=new.public_hex, proof=new.sign(statement).hex())
        found = self._certificate(self._send("POST", AuthorityRoute.ROTATED, asked.model_dump_json(), old), new)
        if found.id != certificate.id:
            raise BadCredential("The authority has certified the new key under another id.")
        return found

    def leave(self, signer: Signer) -> None:
        """Have the key revoked and its holder forgotten. A key that left before is left."""
        try:
            self._send("POST", AuthorityRoute.LEFT, signer=signer)
        except ProblemError as error:
            if error.kind != "revoked-key":
                raise

    def revocations(self, held: RevocationList | None = None) -> RevocationList:
        """The authority's list, which may follow ``held``. RolledBackList."""
        return following(held, self._send("GET", AuthorityRoute.REVOCATIONS, limit=LIST_LIMIT), self.trusted())

    def close(self) -> None:
        if self._own_http:
            self._http.close()

    def __enter__(self) -> AuthorityClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _certificate(self, body: bytes, signer: Signer) -> Certificate:
        """The certificate in an answer: signed by the authority, for this key. When it is valid is not checked."""
        found = Certificate.parse(bytes.fromhex(self._message(body, CertificateAnswer).certificate))
        found.require_signed(self.trusted())
        if found.public_key.hex() != signer.public_hex:
            raise BadCredential("The authority has certified another key than was asked for.")
        return found

    def _message(self, body: bytes, kind: type[Answer]) -> Answer:
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            raise BadCredential(f"The answer of {self.url} was not understood: is it an authority?") from error

    def _send(
        self, method: str, path: AuthorityRoute, text: str = "", signer: Signer | None = None, limit: int = 1 << 20
    ) -> bytes:
        status, given, body = self._once(method, path, text.encode(), signer, limit)
        if status >= 400:
            refused = parse_problem(status, body, given)
            if signer is None or refused.kind != "wrong-clock" or not self.clock.learn(given.get("date")):
                raise ProblemError(refused)
            status, given, body = self._once(method, path, text.encode(), signer, limit)
            if status >= 400:
                raise ProblemError(parse_problem(status, body, given))
        return body

    def _once(
        self, method: str, path: AuthorityRoute, content: bytes, signer: Signer | None, limit: int
    ) -> tuple[int, httpx2.Headers, bytes]:
        sent = headers()
        if signer is not None:
            sent |= sign_request(
                signer,
                method=method,
                uri=self.url + path,
                sha256=hashlib.sha256(content).digest(),
                at=self.clock.now(),
                nonce=self._entropy(NONCE_BYTES),
            )
        if content:
            sent["Content-Type"] = "application/json"
        try:
            request = self._http.build_request(method, path, content=content, headers=sent)
            with closing(self._http.send(request, stream=True)) as response:
                return response.status_code, response.headers, read_limited(response, limit)
        except httpx2.HTTPError as error:
            why = "no answer in time" if isinstance(error, httpx2.TimeoutException) else str(error)
            raise problem("busy", f"No authority answers at {self.url} ({why or type(error).__name__}).") from error
