"""Who is who in all schedules: the keys of devices and workers, the certificates of the explorer's authority, and how
requests are signed.

A key, and a certificate that many schedules have, is made once in a process. A request is signed without Ed25519, since
a schedule has hundreds: the signature names the key that signed, and ``is_of_key`` compares it with the key that the
product has found for the request. Times, nonces, keys, certificates and lists are checked by the product's own code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache

from client_sdk.credentials.certificate import Certificate, HolderClass, RevocationList, certify, sign_revocations
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.identity_keys import TrustedAuthority, key_id
from client_sdk.credentials.request_signature import LIFETIME_S, RequestSignature
from client_sdk.device.record import AuthorityRef
from client_sdk.http.exchange import LearntClock
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import rounded_size
from client_sdk.secagg.origin import sign_model
from coordinator.store.port import AuditRow, DeviceRow

AUTHORITY_URL = "https://authority.explorer"
DAY_S = 86_400
VERIFIED_MOST = 10_000
"""Signatures of the authority that are remembered as verified."""


@dataclass(frozen=True, eq=False)
class Holder:
    """A device or a worker, as its authority knows it."""

    id: str
    holder: HolderClass
    key: DeviceKey
    public: bytes
    key_id: str
    """32 hexadecimal digits."""


@cache
def holder_of(id: str, holder: HolderClass = "device") -> Holder:
    """The device or worker of this id, with its key."""
    key = _key(f"{holder} {id}")
    public = bytes.fromhex(key.public_hex)
    return Holder(id, holder, key, public, key_id(public).hex())


@cache
def _key(name: str) -> DeviceKey:
    return DeviceKey(hashlib.sha256(f"explorer {name}".encode()).digest())


# ------------------------------------------------------------ the authority's key


@dataclass(frozen=True)
class RememberingAuthority(TrustedAuthority):
    """A trusted authority whose signatures are each verified once in this process."""

    def require_signed(self, authority: bytes, message: bytes, signature: bytes, what: str) -> None:
        known = (self.public_key, authority, message, signature)
        if known in _verified:
            return
        super().require_signed(authority, message, signature, what)
        if len(_verified) >= VERIFIED_MOST:
            _verified.clear()
        _verified.add(known)


_verified: set[tuple[bytes, bytes, bytes, bytes]] = set()


@cache
def trusted() -> TrustedAuthority:
    """The authority that the coordinators of all schedules trust."""
    return RememberingAuthority(bytes.fromhex(_key("authority").public_hex))


@cache
def authority_ref() -> AuthorityRef:
    """That authority, as a device's record names it once the device is certified."""
    return AuthorityRef(url=AUTHORITY_URL, digest=trusted().digest.hex(), public_key=trusted().public_key.hex())


@lru_cache(maxsize=4096)
def certificate_of(holder: Holder, not_before: int, not_after: int, authority: str = "authority") -> Certificate:
    """A certificate of this holder's key; of another ``authority`` it is one that nobody trusts."""
    return certify(
        _key(authority),
        id=holder.id,
        holder=holder.holder,
        public_key=holder.public,
        not_before=not_before,
        not_after=not_after,
    )


_READ = {
    Certificate: lru_cache(maxsize=4096)(Certificate.parse),
    RevocationList: lru_cache(maxsize=256)(RevocationList.parse),
}


@contextmanager
def parsed_once() -> Iterator[None]:
    """While the block runs, the bytes of a certificate or a list that were parsed before are not parsed again."""
    real = [(kind, vars(kind)["parse"]) for kind in _READ]
    for kind, read in _READ.items():
        kind.parse = read  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for kind, parse in real:
            kind.parse = parse  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def model_signed(model: bytes, run: str, version: int) -> bytes:
    """The signature of the authority under this version of the run's model. ``model``: its digest."""
    return sign_model(_key("authority"), model, run, version)


@lru_cache(maxsize=256)
def list_of(counter: int, issued: int, revoked: frozenset[str]) -> RevocationList:
    """A list of these keys (key ids in hexadecimal)."""
    keys = [bytes.fromhex(one) for one in revoked]
    return sign_revocations(
        _key("authority"), counter=counter, issued=issued, next_update=issued + 30 * DAY_S, revoked=keys
    )


@lru_cache(maxsize=256)
def counter_of(encoded: bytes) -> int:
    """The counter of an encoded list."""
    return RevocationList.parse(encoded).counter


@cache
def token_of(number: int) -> EnrolmentToken:
    """The enrolment token of this number."""
    secret = hashlib.sha256(f"explorer token {number}".encode()).digest()[:16]
    return EnrolmentToken(AUTHORITY_URL, trusted().digest, secret)


# ------------------------------------------------------------ signed requests


class QuickSigner:
    """Signs each request of one holder afresh, by a clock that learns. ``nonces``: of the whole schedule."""

    def __init__(self, holder: Holder, clock: Callable[[], float], nonces: Iterator[int]) -> None:
        self.holder = holder
        self.clock = LearntClock(clock)
        self._nonces = nonces

    def sign(self, *, as_holder: Holder | None = None) -> RequestSignature:
        """The signature of one request. ``as_holder``: a liar names this one's key, which it does not have."""
        created = int(self.clock.now())
        return RequestSignature(
            created=created,
            expires=created + LIFETIME_S,
            nonce=f"{next(self._nonces):032x}",
            key_id=(as_holder or self.holder).key_id,
            with_result=False,
            parameters="",
            digest="",
            signature=self.holder.public,
        )


def is_of_key(
    signature: RequestSignature, public_key: bytes, *, method: str, uri: str, result: str | None = None
) -> None:
    """In place of ``RequestSignature.require_signed``: BadCredential unless this key has signed."""
    if signature.signature != public_key or signature.key_id != _key_id(public_key):
        raise BadCredential("The signature of this request is not valid.")


@lru_cache(maxsize=4096)
def _key_id(public: bytes) -> str:
    return key_id(public).hex()


def audit_of(row: DeviceRow) -> AuditRow:
    """What the audit has of a device that was registered so."""
    detail = f"device={row.device} rounded_cap={rounded_size(row.examples_cap)}"
    return AuditRow(run=None, at=row.enrolled_at, by=row.device, action="device.register done", detail=detail)
