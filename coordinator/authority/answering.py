"""The requests of the holders of keys: who signed each one, and what the holder gets. No HTTP, no clock.

::

    request -> signature's form and times -> key in the ledger -> signature, body -> nonce -> one transaction

Keys are enrolled, renewed and rotated by plain functions over the rows of one transaction, which check everything
first. Each may be repeated after an answer was lost. ProblemError: *enrolment-refused*, *revoked-key*, *conflict*.
Enrolments that come together share a transaction: a fleet comes in a crowd, and each transaction is synced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from client_sdk.credentials.enrolment_token import enrolment_statement, rotation_statement
from client_sdk.credentials.errors import BadCredential, CredentialError, refusal_of
from client_sdk.credentials.identity_keys import key_id, require_identity_key, require_signed
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
from coordinator.authority.issuer import Issuer, current_list, leave, served_list
from coordinator.authority.ledger import AuditEntry, AuditEvent, HolderRow, KeyRow, Ledger, LedgerRows, TokenRow
from coordinator.authority.proofs import LONGEST_SUBJECT, EnrolmentProof, NoProof, ProofRefused
from coordinator.group_commit import GroupCommit


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


@dataclass(frozen=True, slots=True)
class _Enrolment:
    """A request of who has the private half of its key."""

    request: CertificateRequest
    subject: str
    """Who asks, where that was proven."""
    at: float


@dataclass
class AuthorityAnswers:
    """Answers every request that an authority serves. ProblemError, and what ``Ledger`` raises."""

    issuer: Issuer
    ledger: Ledger
    proof: EnrolmentProof = field(default_factory=NoProof)
    nonces: NonceWindow = field(default_factory=NonceWindow)
    refusals: QuietCounter = field(default_factory=QuietCounter)

    def __post_init__(self) -> None:
        self.enrolments: GroupCommit[_Enrolment, bytes] = GroupCommit(self._enrol_all, pauses=0)

    def key(self) -> AuthorityKey:
        """Who this authority is."""
        trusted = self.issuer.trusted
        return AuthorityKey(public_key=trusted.public_key.hex(), id=trusted.id.hex())

    def enrol(self, request: CertificateRequest, at: float) -> Callable[[], CertificateAnswer]:
        """Queues the enrolment of a key, for who has a token and, where that is asked for, a proof of who it is. The
        function that it returns makes it durable and returns the key's first certificate. The audit has who was
        refused: the first at once, then one entry a minute, so that nobody can fill the disk."""
        with self._refusing(at):
            entered = self.enrolments.enter(self._proven(request, at))

        def enrolled() -> CertificateAnswer:
            with self._refusing(at):
                return self.issuer.certified(entered())

        return enrolled

    @contextmanager
    def _refusing(self, at: float) -> Iterator[None]:
        try:
            yield
        except ProblemError as error:
            more = self.refusals.more((), at) if error.kind == "enrolment-refused" else None
            if more is not None:
                what = with_more(error.problem.detail, more)
                with self.ledger.writing() as rows:
                    rows.note(AuditEntry(at=int(at), who="somebody", event="refused", what=what))
            raise

    def _proven(self, request: CertificateRequest, at: float) -> _Enrolment:
        """The request of who has a usable token, the private key, and the proof."""
        public = bytes.fromhex(request.public_key)
        with self.ledger.reading() as rows:
            token = _usable_token(rows, request, at)
        statement = enrolment_statement(self.issuer.trusted.id, token.secret_digest, public)
        _require_possession(public, statement, request.proof)
        try:
            subject = self.proof.subject(request.who, public, at)
        except ProofRefused as error:
            raise problem("enrolment-refused", str(error)) from None
        if not (len(subject) <= LONGEST_SUBJECT and (subject.isprintable())):
            raise ValueError("an enrolment proof gave a subject that is not up to 200 printable characters")
        return _Enrolment(request, subject, at)

    def _enrol_all(self, batch: Sequence[_Enrolment]) -> list[bytes | BaseException]:
        """Enrols them one after the other in one transaction; one that is refused changes nothing."""
        found: list[bytes | BaseException] = []
        with self.ledger.writing() as rows:
            for one in batch:
                try:
                    found.append(enrol(rows, self.issuer, one.request, subject=one.subject, at=one.at))
                except ProblemError as error:
                    found.append(error)
        return found

    def renew(self, request: SignedRequest) -> CertificateAnswer:
        """The certificate of the key that signed, for longer."""
        key_id = self._signed_by(request)
        with self.ledger.writing() as rows:
            certificate = renew(rows, self.issuer, _known(rows.key(key_id)), at=request.at)
        return self.issuer.certified(certificate)

    def rotate(self, request: SignedRequest) -> CertificateAnswer:
        """The certificate of another key, under the id of the key that signed."""
        key_id = self._signed_by(request)
        asked = RotationRequest.model_validate_json(request.body)
        with self.ledger.writing() as rows:
            certificate = rotate(rows, self.issuer, _known(rows.key(key_id)), asked, at=request.at)
        return self.issuer.certified(certificate)

    def leave(self, request: SignedRequest) -> None:
        """Revokes the key that signed, and forgets its holder."""
        key_id = self._signed_by(request)
        with self.ledger.writing() as rows:
            key = _known(rows.key(key_id))
            if key.revoked_at is not None:
                raise problem("revoked-key", REVOKED)
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
                raise problem("revoked-key", REVOKED)
            signature.require_signed(key.public_key, method="POST", uri=self.issuer.policy.url + request.target)
            signature.require_body(hashlib.sha256(request.body).digest())
            if key.revoked_at is not None and (request.path != AuthorityRoute.ROTATED or key.replaced_by is None):
                raise problem("revoked-key", REVOKED)
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


MOST_ROTATIONS = 16
"""Most revoked keys of one id at the same time: the list goes to everybody, and one device must not make it long."""
REVOKED = "The authority has revoked this key: an operator of the authority can say why."


def _usable_token(rows: LedgerRows, request: CertificateRequest, at: float) -> TokenRow:
    """The token of the request, which may still enrol this key at ``at`` (Unix seconds)."""
    token = rows.token(_digest(request))
    if token is None:
        raise _refused("This enrolment token is not known here")
    if not rows.enrolled_by(token.secret_digest, key_id(bytes.fromhex(request.public_key))):
        if at >= token.expires_at:
            raise _refused("This enrolment token has expired")
        if token.uses_left < 1:
            raise _refused("This enrolment token was used as often as it may be")
    return token


def enrol(rows: LedgerRows, issuer: Issuer, request: CertificateRequest, *, subject: str = "", at: float) -> bytes:
    """The certificate of the key in ``request``, encoded: who asks is known to have its private half. ``subject``: who
    its holder is, where that was proven.

    The same token and key get the id that they got before, and use the token once. A valid key keeps its id under a
    further token too, which is how a holder whose certificate has expired comes back."""
    token = _usable_token(rows, request, at)
    public = bytes.fromhex(request.public_key)
    key = rows.key(key_id(public))
    if key is not None and (key.revoked_at is not None or key.id is None or key.certificate is None):
        raise problem("revoked-key", REVOKED)
    if rows.enrolled_by(token.secret_digest, key_id(public)):
        if key is None or key.certificate is None:
            raise problem("revoked-key", REVOKED)
        if at >= key.expires_at:
            raise _refused("The certificate has expired, and this token was used for this key already")
        return key.certificate
    holder = _holder_of(rows, issuer, key, token, request.label, subject, at)
    rows.use_token(token.secret_digest, key_id(public))
    return _certify(rows, issuer, holder, public, "enrolled", at)


def renew(rows: LedgerRows, issuer: Issuer, key: KeyRow, *, at: float) -> bytes:
    """A certificate of the same key for longer; the present one while less than half of its time is over."""
    holder, public, certificate = _certified(rows, key)
    _require_in_time(key, at)
    if at < key.expires_at - issuer.policy.certificate_s // 2:
        return certificate
    return _certify(rows, issuer, holder, public, "renewed", at)


def rotate(rows: LedgerRows, issuer: Issuer, key: KeyRow, request: RotationRequest, *, at: float) -> bytes:
    """A certificate of another key under the same id. The old key is revoked; ``key`` may be revoked already, where it
    was by this very rotation."""
    new = bytes.fromhex(request.new_key)
    if key.revoked_at is not None:
        following = rows.key(key_id(new))
        if key.replaced_by != key_id(new) or following is None or following.revoked_at is not None:
            raise problem("revoked-key", REVOKED)
        return _certified(rows, following)[2]
    holder, old, _ = _certified(rows, key)
    _require_in_time(key, at)
    _require_possession(new, rotation_statement(issuer.trusted.id, holder.id, old, new), request.proof)
    if rows.key(key_id(new)) is not None:
        raise problem("conflict", "This key was certified before; draw a new one.")
    if rows.revoked_of(holder.id) >= MOST_ROTATIONS:
        raise problem("conflict", f"{MOST_ROTATIONS} keys of this id are on the revocation list; rotate again later.")
    rows.put_key(replace(key, revoked_at=int(at), replaced_by=key_id(new)))
    certificate = _certify(rows, issuer, holder, new, "rotated", at)
    current_list(rows, issuer, at, changed=True)
    return certificate


def _holder_of(
    rows: LedgerRows, issuer: Issuer, key: KeyRow | None, token: TokenRow, label: str, subject: str, at: float
) -> HolderRow:
    """The holder of this key, or a new one."""
    if key is not None and key.id is not None:
        holder = rows.holder(key.id)
        if holder is not None and holder.holder == token.holder:
            return replace(holder, label=label or holder.label, subject=subject or holder.subject)
        raise problem("conflict", f"This key is not that of a {token.holder}, for which the token is.")
    fresh = issuer.new_id(token.holder)
    while rows.holder(fresh) is not None:
        fresh = issuer.new_id(token.holder)
    return HolderRow(id=fresh, holder=token.holder, enrolled_at=int(at), label=label, subject=subject)


def _certify(rows: LedgerRows, issuer: Issuer, holder: HolderRow, public: bytes, event: AuditEvent, at: float) -> bytes:
    before = rows.key(key_id(public))
    made = issuer.certificate(id=holder.id, holder=holder.holder, public_key=public, at=at)
    rows.put_holder(holder)
    rows.put_key(
        KeyRow(
            key_id=key_id(public),
            id=holder.id,
            public_key=public,
            certificate=made.encoded,
            expires_at=max(made.not_after, before.expires_at if before is not None else 0),
        )
    )
    rows.note(AuditEntry(at=int(at), who=f"{holder.holder} {holder.id}", event=event, what=holder.id))
    return made.encoded


def _certified(rows: LedgerRows, key: KeyRow) -> tuple[HolderRow, bytes, bytes]:
    """Holder, public key and certificate of a key. ProblemError *revoked-key* where its holder has left."""
    holder = rows.holder(key.id) if key.id is not None else None
    if holder is None or key.public_key is None or key.certificate is None or key.revoked_at is not None:
        raise problem("revoked-key", REVOKED)
    return holder, key.public_key, key.certificate


def _require_in_time(key: KeyRow, at: float) -> None:
    if at >= key.expires_at:
        raise _refused("The certificate has expired, so its key alone proves nothing; the same key can enrol again")


def _require_possession(public: bytes, statement: bytes, proof: str) -> None:
    try:
        require_identity_key(public)
        require_signed(public, statement, bytes.fromhex(proof), "the new key")
    except BadCredential as error:
        raise problem("enrolment-refused", str(error)) from None


def _digest(request: CertificateRequest) -> bytes:
    return hashlib.sha256(bytes.fromhex(request.secret)).digest()


def _refused(why: str) -> ProblemError:
    return problem("enrolment-refused", f"{why}; ask an operator of the authority for a new token.")
