"""Requests to the authority, from the holder of a key, and leaving it. Messages: ``protocol.authority``.

The authority is pinned by the SHA-256 of its public key, which the enrolment token carries: whoever answers with
another key is refused before anything secret is sent, and so is each certificate and list that this key has not signed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar, assert_never

import httpx2
from pydantic import ValidationError

from client_sdk.credentials.certificate import Certificate, RevocationList, following
from client_sdk.credentials.enrolment_token import (
    EnrolmentToken,
    enrolment_statement,
    require_token_url,
    rotation_statement,
)
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.device.actions import (
    Answered,
    Certified,
    Certify,
    Failed,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Unreachable,
)
from client_sdk.device.enrolling import rotate_key
from client_sdk.device.record import Record, Storage
from client_sdk.http.exchange import Exchange, LearntClock, RequestSigner, exchanged, headers
from client_sdk.http.transport import in_short, open_http
from client_sdk.http.urls import check_url
from client_sdk.identity import Entropy, Signer, key_of
from client_sdk.protocol.authority import (
    AuthorityKey,
    AuthorityRoute,
    CertificateAnswer,
    CertificateRequest,
    RotationRequest,
)
from client_sdk.protocol.devices import Noted, Registered, Registration
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem, ProblemError, parse_problem, problem

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

    def __exit__(self, *_: object) -> None:
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
        for tries in (1, 2):
            response, body = self._once(method, path, text.encode(), signer, limit)
            if response.status_code < 400:
                return body
            refused = parse_problem(response.status_code, body, response.headers)
            if tries == 2 or signer is None or refused.kind != "wrong-clock":
                break
            if not self.clock.learn(response.headers.get("date")):
                break
        raise ProblemError(refused)

    def _once(
        self, method: str, path: AuthorityRoute, content: bytes, signer: Signer | None, limit: int
    ) -> tuple[httpx2.Response, bytes]:
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
            return exchanged(self._http, method, path, limit, content=content, headers=sent)
        except httpx2.HTTPError as error:
            raise problem("busy", f"No authority answers at {self.url} ({in_short(error)}).") from error


# ------------------------------------------------------------ certifying
# Performs ``Certify``: one request to the authority, and its result as a reply of the session.


LONGEST_PROOF = 16_384
"""Characters of a proof, as ``CertificateRequest.who`` has it."""

Who = Callable[[], str]
"""What proves who the device is, where its authority asks for that (``CertificateRequest.who``); called for each
enrolment that is sent."""


class Certifier:
    """Asks the authority that an action names. ``now``: Unix seconds by the machine's clock. A connection is made for
    each request, since months lie between two."""

    def __init__(self, now: Callable[[], float], who: Who | str = "", entropy: Entropy = os.urandom) -> None:
        self._now = now
        self._who = who
        self._entropy = entropy

    def perform(
        self, action: Certify, signer: Signer, *, certificate: str = "", following: Signer | None = None
    ) -> Certified | RequestRefused | Unreachable | Failed:
        """Ask once. ``certificate`` (hexadecimal) is the present one and ``following`` the next key: for *rotate*."""
        try:
            return self._ask(action, signer, certificate, following)
        except ProblemError as error:
            if isinstance(error.__cause__, httpx2.HTTPError):
                return Unreachable(str(error), self._now())
            return RequestRefused(error.problem, self._now())
        except _NoProof as error:
            return Failed(str(error), self._now())
        except ValueError as error:  # what is not the pinned authority's, or not a URL that keys may be used for
            return Failed(f"The authority at {action.authority.url} was not believed: {error}", self._now())

    def _ask(self, action: Certify, signer: Signer, certificate: str, following: Signer | None) -> Certified:
        authority = action.authority
        with AuthorityClient(
            authority.url, bytes.fromhex(authority.digest), clock=self._now, entropy=self._entropy
        ) as client:
            found = self._certificate(client, action, signer, certificate, following)
            return Certified(found, self._now(), client.trusted().public_key.hex())

    def _certificate(
        self, client: AuthorityClient, action: Certify, signer: Signer, certificate: str, following: Signer | None
    ) -> Certificate:
        match action.what:
            case "enrol":
                if action.token is None:
                    raise TypeError("an enrolment has no token")
                client.trusted()
                return client.enrol(action.token, signer, label=action.label, who=self._proof())
            case "renew":
                return client.renew(signer)
            case "rotate":
                if following is None:
                    raise TypeError("a rotation has no next key")
                return client.rotate(Certificate.parse(bytes.fromhex(certificate)), signer, following)
            case _:
                assert_never(action.what)

    def _proof(self) -> str:
        if isinstance(self._who, str):
            proof = self._who
        else:
            try:
                proof = self._who()
            except Exception as error:
                raise _NoProof(
                    f"What proves who this device is cannot be had: {str(error) or type(error).__name__}"
                ) from error
        if len(proof) > LONGEST_PROOF:
            raise _NoProof(f"What proves who this device is may have {LONGEST_PROOF} characters, not {len(proof)}.")
        return proof


class _NoProof(Exception):
    """There is nothing to send: one sentence."""


# ------------------------------------------------------------ rotating
# Drives ``enrolling.rotate_key`` over HTTP: a device's key is replaced by another one under the same id.


def rotate(storage: Storage, *, pause: Callable[[Sleep], None] = lambda sleep: time.sleep(sleep.max_s)) -> Record:
    """Replace the key of the device in ``storage``, and return its record. While the authority does not answer it is
    asked again, after ``pause``; whoever interrupts that calls this again, or starts the device.

    ProblemError and ValueError as ``rotate_key``."""
    certifier = Certifier(time.time)
    session = rotate_key(storage.load(), at=time.time())
    reply: Reply = None
    while True:
        try:
            action = session.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = None
        if isinstance(action, Save):
            storage.save(action.record, action.update, action.joined)
        elif isinstance(action, Certify):
            reply = _certify(certifier, action, storage.load())
        elif isinstance(action, Sleep):
            pause(action)
        else:
            raise TypeError(f"a rotation does not ask for {action!r}")


def _certify(certifier: Certifier, action: Certify, record: Record | None) -> Reply:
    key = key_of(record.key_seed) if record is not None else None
    if record is None or key is None:
        raise RuntimeError("the authority is asked before the key was saved")
    return certifier.perform(action, key, certificate=record.certificate, following=key_of(record.next_key_seed))


# ------------------------------------------------------------ leaving
# A device leaves and is forgotten: what is told to whom, and what is still kept afterwards.
#
# Told, in this sequence: the coordinator, the authority, the device's own folder. Each may be told again, so who is
# interrupted asks once more. What the device has signed in secure rounds is never deleted: a device that forgot it
# could be made to sign for two groups of survivors, which would open a single device's update.


TELL_COORDINATOR = Send(method="POST", route=Route.LEAVE, answers=(Noted,))


def registration(certificate: str) -> Send:
    """Of a certificate that the coordinator has not seen yet: it knows the device by an older one, and forgets it only
    at the request of who holds the newest."""
    message = Registration(certificate=certificate)
    return Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=message)


UNTOLD = frozenset({"expired-certificate", "not-certified", "revoked-key"})
"""Answers of a coordinator that does not let this key speak for the device any more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is still kept, in sentences for people."""

    here: str
    coordinator: str
    authority: str


def kept_of(told_coordinator: bool, told_authority: bool) -> Kept:
    """What is kept after leaving, at each place that was told or could not be."""
    return Kept(
        here="Here: the list of the rounds that this device joined, the ledger of what its data have lost, marks of "
        "what it has signed in secure rounds (no secret, no data), and the newest revocation list. Delete the folder "
        "only if no device works in it again.",
        coordinator=(
            "At the coordinator: the id, the most examples that it could claim, when it was first and last there, and "
            "the audit of when it registered and left; and the log of each round, with the id, what it reported "
            "(examples, metrics, times), and weight and digest of its update. What the model has learnt stays in it."
            if told_coordinator
            else "At the coordinator: all that it had, since it was not told. It takes no request of this key any more."
        ),
        authority=(
            "At the authority: the id, the revoked key's id until its last certificate has expired, and when the id "
            "was enrolled, renewed, rotated and left."
            if told_authority
            else "At the authority: nothing, since it has certified no key of this device."
        ),
    )


# ------------------------------------------------------------ leave


TRIES = 3
"""How often the coordinator is asked, a second apart, while it is busy."""


def leave(
    storage: Storage,
    *,
    without_coordinator: bool = False,
    signer: Signer | None = None,
) -> Kept:
    """Leave the coordinator of the record and the authority, and forget. Returns what is kept nevertheless.

    It may be repeated after whatever interrupted it. ``without_coordinator``: that one is gone, and is not told.
    ``signer`` holds the key where the record does not.

    ProblemError where the coordinator or the authority cannot be reached, or refuses: then nothing here is deleted.
    CredentialError where another authority answers."""
    record = storage.load()
    told_coordinator = told_authority = False
    if record is not None and record.next_key_seed:  # else the authority would revoke the old key only
        record = _finish_rotation(storage, record)
    key = signer or (key_of(record.key_seed) if record is not None else None)
    if record is not None and key is not None and record.certificate:
        if not without_coordinator and record.coordinator:
            told_coordinator = _tell_coordinator(storage, record, key)
        if record.authority is not None:
            digest = bytes.fromhex(record.authority.digest)
            with AuthorityClient(record.authority.url, digest) as authority:
                told_authority = _tell_authority(authority, key)
    storage.forget()
    return kept_of(told_coordinator, told_authority)


def _finish_rotation(storage: Storage, record: Record) -> Record:
    """The record with the key that the authority certifies now."""

    def give_up(sleep: Sleep) -> None:
        raise problem("busy", sleep.reason)

    try:
        return rotate(storage, pause=give_up)
    except ProblemError as error:
        if error.kind not in ("conflict", "enrolment-refused", "revoked-key"):
            raise
        return record  # the next key was not certified


def _tell_authority(authority: AuthorityClient, key: Signer) -> bool:
    """Whether the authority knew the device, and has forgotten it."""
    authority.trusted()
    try:
        authority.leave(key)
    except ProblemError as error:
        if error.kind != "unauthenticated":
            raise
        return False
    return True


def _tell_coordinator(storage: Storage, record: Record, key: Signer) -> bool:
    """Whether the coordinator has forgotten the device; also where it knows it no more."""
    url = check_url(record.coordinator)
    signing = RequestSigner(url, time.time)
    signing.signer = key
    with closing(open_http(url)) as http:
        exchange = Exchange(http, url, storage, time.time, signing)

        def ask(action: Send) -> Problem | None:
            for tries in range(1, TRIES + 1):
                reply = exchange.send(action)
                if isinstance(reply, Answered):
                    return None
                refused = reply.problem if isinstance(reply, RequestRefused) else problem("busy", reply.reason).problem
                if refused.is_ours and refused.advice != "retry":
                    return refused
                if tries < TRIES:
                    time.sleep(1.0)
            raise ProblemError(refused)

        refused = ask(registration(record.certificate)) if record.registered is None else None
        refused = refused or ask(TELL_COORDINATOR)
    if refused is None or refused.kind == "unregistered":
        return True
    if refused.kind in UNTOLD:
        return False
    raise ProblemError(refused)
