"""An authority in memory with a clock of its own, and holders of keys that ask it as real ones do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList
from client_sdk.credentials.enrolment_token import EnrolmentToken, enrolment_statement, rotation_statement
from client_sdk.credentials.identity_keys import key_id
from client_sdk.credentials.request_signature import sign_request
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import AuthorityRoute, CertificateAnswer, CertificateRequest, RotationRequest
from coordinator.authority.answering import AuthorityAnswers, SignedRequest
from coordinator.authority.issuer import DAY_S, AuthorityPolicy, Issuer, make_token, revoke
from coordinator.authority.ledger import Ledger
from coordinator.authority.proofs import EnrolmentProof, NoProof

NOW = 1_790_000_000
URL = "https://authority.example:8471/quorate"


def entropy(seed: str) -> Callable[[int], bytes]:
    state = {"calls": 0}

    def draw(length: int) -> bytes:
        state["calls"] += 1
        return hashlib.shake_256(f"{seed} {state['calls']}".encode()).digest(length)

    return draw


def key_of(name: str) -> DeviceKey:
    return DeviceKey(hashlib.sha256(name.encode()).digest())


def public(key: DeviceKey) -> bytes:
    return bytes.fromhex(key.public_hex)


class AuthorityWorld:
    """One authority; ``at`` is its clock."""

    def __init__(self, ledger: Ledger | None = None, proof: EnrolmentProof | None = None, **policy: Any) -> None:
        self.at = NOW
        issuer = Issuer(key_of("authority"), AuthorityPolicy(url=URL, **policy), entropy("authority"))
        self.answers = AuthorityAnswers(issuer, ledger or Ledger(":memory:"), proof or NoProof())

    @property
    def issuer(self) -> Issuer:
        return self.answers.issuer

    def token(self, *, holder: HolderClass = "device", uses: int = 1, lasts_s: int = DAY_S) -> EnrolmentToken:
        with self.answers.ledger.writing() as rows:
            return make_token(
                rows, self.issuer, holder=holder, uses=uses, lasts_s=lasts_s, who="operator uid 7", at=self.at
            )

    def revoke(self, id: str) -> RevocationList:
        with self.answers.ledger.writing() as rows:
            return revoke(rows, self.issuer, id, who="operator uid 7", at=self.at)

    def served(self) -> RevocationList:
        """The list that is served, checked as a device checks it."""
        found = RevocationList.parse(self.answers.revocations(self.at))
        found.require_signed(self.issuer.trusted)
        found.require_current(self.at)
        return found

    def audit(self) -> list[tuple[str, str, str]]:
        with self.answers.ledger.reading() as rows:
            return [(entry.who, entry.event, entry.what) for entry in rows.audit(1000)]


class Holder:
    """A device or worker with its key and what it was given."""

    def __init__(self, world: AuthorityWorld, name: str, key: DeviceKey | None = None) -> None:
        self.world = world
        self.key = key or key_of(name)
        self.certificate: Certificate | None = None
        self._nonce = entropy(f"nonce {name}")

    @property
    def id(self) -> str:
        assert self.certificate is not None
        return self.certificate.id

    @property
    def key_id(self) -> bytes:
        return key_id(public(self.key))

    def enrolment(self, token: EnrolmentToken, **changes: Any) -> CertificateRequest:
        statement = enrolment_statement(self.world.issuer.trusted.id, token.secret_digest, public(self.key))
        given = {"secret": token.secret.hex(), "public_key": self.key.public_hex}
        return CertificateRequest(**{**given, "proof": self.key.sign(statement).hex(), **changes})

    def enrol(self, token: EnrolmentToken, **changes: Any) -> Certificate:
        return self._keep(self.world.answers.enrol(self.enrolment(token, **changes), self.world.at)())

    def signed(self, path: AuthorityRoute, body: bytes = b"", at: float | None = None) -> SignedRequest:
        """A request signed now by the device's clock, ``at``; the authority's where that is None."""
        headers = sign_request(
            self.key,
            method="POST",
            uri=URL + path,
            sha256=hashlib.sha256(body).digest(),
            at=self.world.at if at is None else at,
            nonce=self._nonce(16),
        )
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        return SignedRequest(path, raw, body, self.world.at)

    def renew(self) -> Certificate:
        return self._keep(self.world.answers.renew(self.signed(AuthorityRoute.RENEWED)))

    def rotation(self, new: DeviceKey) -> SignedRequest:
        statement = rotation_statement(self.world.issuer.trusted.id, self.id, public(self.key), public(new))
        asked = RotationRequest(new_key=new.public_hex, proof=new.sign(statement).hex())
        return self.signed(AuthorityRoute.ROTATED, asked.model_dump_json().encode())

    def leave(self) -> None:
        self.world.answers.leave(self.signed(AuthorityRoute.LEFT))

    def _keep(self, answer: CertificateAnswer) -> Certificate:
        found = Certificate.parse(bytes.fromhex(answer.certificate))
        found.require(self.world.issuer.trusted, self.world.at)
        assert (answer.id, answer.holder, answer.not_after) == (found.id, found.holder, found.not_after)
        self.certificate = found
        return found
