"""An authority for tests of the coordinator, the keys that it certifies, and requests that these sign."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList
from client_sdk.credentials.request_signature import NONCE_BYTES, RequestSignature, sign_request
from client_sdk.identity import DeviceKey
from coordinator.authority.issuer import AuthorityPolicy, Issuer
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import PinnedAuthority

AUTHORITY_URL = "https://authority.example"


def key_of(name: str) -> DeviceKey:
    """The key of this name: the same in every test."""
    return DeviceKey(hashlib.sha256(name.encode()).digest())


class Certifier:
    """An authority without a ledger: it certifies whatever a test asks for."""

    def __init__(self, name: str = "authority", *, days: int = 90) -> None:
        self.issuer = Issuer(key_of(name), AuthorityPolicy(url=AUTHORITY_URL, certificate_days=days))
        self.last: RevocationList | None = None
        self.revoked: list[bytes] = []

    def pinned(self, *, inside: bool = False) -> PinnedAuthority:
        return PinnedAuthority(self.issuer.trusted, AUTHORITY_URL, inside)

    def certificate(
        self, key: DeviceKey, *, at: float, holder: HolderClass = "device", id: str | None = None
    ) -> Certificate:
        """A certificate from ``at`` on. The id is drawn from the key where none is given."""
        public = bytes.fromhex(key.public_hex)
        name = id or holder[0] + hashlib.sha256(public).hexdigest()[:16]
        return self.issuer.certificate(id=name, holder=holder, public_key=public, at=at)

    def list(self, at: float, *revoked: DeviceKey) -> bytes:
        """The bytes of the next list: those that were revoked before stay on it."""
        self.revoked += [key_id(key) for key in revoked]
        self.last = self.issuer.revocations(self.last, self.revoked, at)
        return self.last.encoded

    def admit(self, coordinator: Coordinator, keys: Iterable[DeviceKey], *, at: float, examples: int = 1000) -> None:
        """Registers devices of these keys."""
        for key in keys:
            coordinator.identities.register_device(self.certificate(key, at=at), examples=examples)()


def key_id(key: DeviceKey) -> bytes:
    """16 bytes: how lists and signatures name the key."""
    return hashlib.sha256(bytes.fromhex(key.public_hex)).digest()[:16]


def signature(
    key: DeviceKey,
    *,
    at: float,
    method: str = "POST",
    uri: str = "https://fl.example/v1/checkins",
    body: bytes = b"",
    result: str | None = None,
    nonce: bytes | None = None,
    lifetime_s: int = 60,
) -> RequestSignature:
    """The signature of a request, as its receiver parses it."""
    sent = headers(key, at=at, method=method, uri=uri, body=body, result=result, nonce=nonce, lifetime_s=lifetime_s)
    return RequestSignature.parse([(name.lower().encode(), value.encode()) for name, value in sent.items()])


def headers(
    key: DeviceKey,
    *,
    at: float,
    method: str,
    uri: str,
    body: bytes = b"",
    result: str | None = None,
    nonce: bytes | None = None,
    lifetime_s: int = 60,
) -> dict[str, str]:
    """The three headers of a signed request."""
    return sign_request(
        key,
        method=method,
        uri=uri,
        sha256=hashlib.sha256(body).digest(),
        at=at,
        nonce=os.urandom(NONCE_BYTES) if nonce is None else nonce,
        result=result,
        lifetime_s=lifetime_s,
    )
