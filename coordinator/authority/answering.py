"""The requests of the holders of keys: who signed each one, and what the holder gets. No HTTP, no clock.

::

    request -> signature's form and times -> key in the ledger -> signature, body -> nonce -> one transaction
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from client_sdk.credentials.errors import CredentialError, refusal_of
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from client_sdk.protocol.authority import (
    AuthorityKey,
    AuthorityRoute,
    CertificateAnswer,
    CertificateRequest,
    RotationRequest,
)
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.quiet import QuietCounter, with_more
from coordinator.authority import issuing
from coordinator.authority.issuer import Issuer
from coordinator.authority.ledger import AuditEntry, KeyRow, Ledger
from coordinator.authority.proofs import LONGEST_SUBJECT, EnrolmentProof, NoProof, ProofRefused
from coordinator.authority.revoking import leave, served_list


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What was received on a route whose requests are signed."""

    path: AuthorityRoute
    headers: Iterable[tuple[bytes, bytes]]
    """Names in lower case."""
    body: bytes
    at: float
    """When its head arrived, in Unix seconds."""
    query: bytes = b""
    """The bytes after the question mark; they are signed too."""
    complete_at: float = 0.0
    """When its body was complete: later than its expiry it may be a replay whose nonce is forgotten."""

    @property
    def target(self) -> str:
        """Path and query, as they were sent."""
        return self.path + (f"?{self.query.decode('latin-1')}" if self.query else "")


@dataclass
class AuthorityAnswers:
    """Answers every request that an authority serves. ProblemError, and what ``Ledger`` raises."""

    issuer: Issuer
    ledger: Ledger
    proof: EnrolmentProof = field(default_factory=NoProof)
    nonces: NonceWindow = field(default_factory=NonceWindow)
    refusals: QuietCounter = field(default_factory=QuietCounter)

    def key(self) -> AuthorityKey:
        """Who this authority is."""
        trusted = self.issuer.trusted
        return AuthorityKey(public_key=trusted.public_key.hex(), id=trusted.id.hex())

    def enrol(self, request: CertificateRequest, at: float) -> CertificateAnswer:
        """The first certificate of a key, for who has a token and, where that is asked for, a proof of who it is. The
        audit has who was refused: the first at once, then one entry a minute, so that nobody can fill the disk."""
        try:
            return self._enrol(request, at)
        except ProblemError as error:
            more = self.refusals.more((), at) if error.kind == "enrolment-refused" else None
            if more is not None:
                what = with_more(error.problem.detail, more)
                with self.ledger.writing() as rows:
                    rows.note(AuditEntry(at=int(at), who="somebody", event="refused", what=what))
            raise

    def _enrol(self, request: CertificateRequest, at: float) -> CertificateAnswer:
        with self.ledger.reading() as rows:
            issuing.require_enrollable(rows, self.issuer, request, at)
        try:
            subject = self.proof.subject(request.who, bytes.fromhex(request.public_key), at)
        except ProofRefused as error:
            raise problem("enrolment-refused", str(error)) from None
        if not (len(subject) <= LONGEST_SUBJECT and (subject.isprintable())):
            raise ValueError("an enrolment proof gave a subject that is not up to 200 printable characters")
        with self.ledger.writing() as rows:
            certificate = issuing.enrol(rows, self.issuer, request, subject=subject, at=at)
        return self.issuer.certified(certificate)

    def renew(self, request: SignedRequest) -> CertificateAnswer:
        """The certificate of the key that signed, for longer."""
        key_id = self._signed_by(request)
        with self.ledger.writing() as rows:
            certificate = issuing.renew(rows, self.issuer, _known(rows.key(key_id)), at=request.at)
        return self.issuer.certified(certificate)

    def rotate(self, request: SignedRequest) -> CertificateAnswer:
        """The certificate of another key, under the id of the key that signed."""
        key_id = self._signed_by(request)
        asked = RotationRequest.model_validate_json(request.body)
        with self.ledger.writing() as rows:
            certificate = issuing.rotate(rows, self.issuer, _known(rows.key(key_id)), asked, at=request.at)
        return self.issuer.certified(certificate)

    def leave(self, request: SignedRequest) -> None:
        """Revokes the key that signed, and forgets its holder."""
        key_id = self._signed_by(request)
        with self.ledger.writing() as rows:
            key = _known(rows.key(key_id))
            if key.revoked_at is not None:
                raise problem("revoked-key", issuing.REVOKED)
            leave(rows, self.issuer, key, at=request.at)

    def revocations(self, at: float) -> bytes:
        """The bytes of the current revocation list."""
        return served_list(self.ledger, self.issuer, at).encoded

    def _signed_by(self, request: SignedRequest) -> bytes:
        """The id of the key that signed this request, which the ledger knows; revoked or not."""
        try:
            signature = RequestSignature.parse(request.headers)
            signature.require_current(request.at)
            with self.ledger.reading() as rows:
                key = _known(rows.key(bytes.fromhex(signature.key_id)))
            if key.public_key is None:
                raise problem("revoked-key", issuing.REVOKED)
            signature.require_signed(key.public_key, method="POST", uri=self.issuer.policy.url + request.target)
            signature.require_body(hashlib.sha256(request.body).digest())
            if key.revoked_at is not None and (request.path != AuthorityRoute.ROTATED or key.replaced_by is None):
                raise problem("revoked-key", issuing.REVOKED)
            if request.complete_at > signature.expires:
                raise problem("wrong-clock", "This request was complete only after its signature had expired.")
            self.nonces.take(signature, max(request.at, request.complete_at))
        except CredentialError as error:
            raise refusal_of(error) from None
        return key.key_id


def _known(key: KeyRow | None) -> KeyRow:
    if key is None:
        raise problem("unauthenticated", "The authority has certified no such key.")
    return key
