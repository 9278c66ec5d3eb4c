"""A signed HTTP request: one strict form of HTTP Message Signatures (RFC 9421) with Content-Digest (RFC 9530).

::

    Content-Digest:  sha-256=:<base64>:
    Signature-Input: quorate=("@method" "@target-uri" "content-digest");created=1790000000;expires=1790000060;
                     nonce="<32 hex digits>";keyid="<32 hex digits>";alg="ed25519";tag="quorate-request-1"
    Signature:       quorate=:<base64>:

One label, these components in this sequence (a worker's result has ``"quorate-result"`` as the fourth), these
parameters in this sequence, at most 60 s from *created* to *expires*, and a digest also of an empty body. Whatever else
RFC 9421 allows is refused. ``@target-uri`` is that of the public URL, whatever a proxy makes of it. ``keyid`` is
``identity_keys.key_id`` in hexadecimal.

The receiver calls, in this sequence: ``parse``, ``require_current``, ``require_signed`` with the key of ``key_id``,
``NonceWindow.take``, all before it reads the body, and ``require_body`` once it has read it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from client_sdk.credentials.errors import BadCredential, OutsideTime, ReplayedRequest, TooManyRequests
from client_sdk.credentials.identity_keys import key_id, require_signed
from client_sdk.identity import Signer
from client_sdk.protocol.names import content_digest

LIFETIME_S = 60
"""Longest time from *created* to *expires*: a nonce is remembered for that long."""
AHEAD_S = 10
"""How far *created* may be ahead of the receiver's clock. A sender that is further off learns the difference."""
NONCE_BYTES = 16
DIGEST_NAME, INPUT_NAME, SIGNATURE_NAME = b"content-digest", b"signature-input", b"signature"
RESULT_NAME = "quorate-result"
TAG = "quorate-request-1"

_DIGEST = re.compile(rb"sha-256=:[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=:")
_INPUT = re.compile(
    rb'quorate=(\("@method" "@target-uri" "content-digest"( "quorate-result")?\)'
    rb";created=([1-9][0-9]{0,10});expires=([1-9][0-9]{0,10})"
    rb';nonce="([0-9a-f]{32})";keyid="([0-9a-f]{32})";alg="ed25519";tag="quorate-request-1")'
)
_SIGNATURE = re.compile(rb"quorate=:([A-Za-z0-9+/]{85}[AQgw]==):")
_METHOD = re.compile(r"[A-Z]{1,16}")
_URI = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True, slots=True)
class RequestSignature:
    """The signature of one request, as it was sent; nothing is checked but its form."""

    created: int
    """Unix seconds by the sender's clock, corrected by what it has learnt."""
    expires: int
    nonce: str
    """32 hexadecimal digits, drawn for this request."""
    key_id: str
    """The sender's key: 32 hexadecimal digits."""
    with_result: bool
    """Whether the header ``Quorate-Result`` is signed too."""
    parameters: str
    """The value of ``@signature-params``: the header Signature-Input without its label."""
    digest: str
    """The value of the header Content-Digest."""
    signature: bytes

    @classmethod
    def parse(cls, headers: Iterable[tuple[bytes, bytes]]) -> RequestSignature:
        """Read the three headers among ``headers`` (names in lower case, as ASGI gives them). BadCredential where one
        is lacking, is there twice, or has another form."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in (DIGEST_NAME, INPUT_NAME, SIGNATURE_NAME):
                if name in found:
                    raise BadCredential(f"This request has two headers {name.decode()}.")
                found[name] = value
        if len(found) < 3:
            raise BadCredential("This request is not signed: Content-Digest, Signature-Input or Signature is missing.")
        asked, made = _INPUT.fullmatch(found[INPUT_NAME]), _SIGNATURE.fullmatch(found[SIGNATURE_NAME])
        if asked is None or made is None or not _DIGEST.fullmatch(found[DIGEST_NAME]):
            raise BadCredential("The signature of this request is not in the form that is read here.")
        created, expires = int(asked[3]), int(asked[4])
        if not 0 < expires - created <= LIFETIME_S:
            raise BadCredential(f"The signature of a request lasts at most {LIFETIME_S} s.")
        return cls(
            created,
            expires,
            asked[5].decode(),
            asked[6].decode(),
            asked[2] is not None,
            asked[1].decode(),
            found[DIGEST_NAME].decode(),
            b64decode(made[1]),
        )

    def require_current(self, now: float) -> None:
        """Raise OutsideTime unless ``now``, when the request arrived (Unix seconds), is within its times."""
        if not self.created - AHEAD_S <= now <= self.expires:
            apart = self.created - now
            where = "ahead of" if apart > 0 else "behind"
            raise OutsideTime(f"This request was signed {abs(apart):.0f} s {where} the time here.", apart)

    def require_signed(self, public_key: bytes, *, method: str, uri: str, result: str | None = None) -> None:
        """Raise BadCredential unless ``public_key`` (32 bytes) has signed this method, URI and, where ``result`` is
        not None, this value of ``Quorate-Result``. The key must be that of ``key_id``."""
        if self.with_result != (result is not None):
            raise BadCredential("The signature of this request does not cover what it must, or more than it may.")
        message = signature_base(method, uri, self.digest, self.parameters, result)
        if key_id(public_key).hex() != self.key_id:
            raise BadCredential("This request is signed by another key.")
        require_signed(public_key, message, self.signature, "this request")

    def require_body(self, sha256: bytes) -> None:
        """Raise BadCredential unless the body, of this SHA-256 (32 bytes), is the one that was signed."""
        if self.digest != content_digest(sha256.hex()):
            raise BadCredential("The body of this request is not the one that was signed.")


def signature_base(method: str, uri: str, digest: str, parameters: str, result: str | None) -> bytes:
    """The bytes that are signed (RFC 9421, section 2.5). BadCredential where a value could be read in two ways."""
    if not (_METHOD.fullmatch(method) and _URI.fullmatch(uri)):
        raise BadCredential("A request that is signed has a method in capitals and a URI of printable characters.")
    extra = ""
    if result is not None:
        if not _VALUE.fullmatch(result):
            raise BadCredential(f"The header {RESULT_NAME} has characters that cannot be signed.")
        extra = f'"{RESULT_NAME}": {result}\n'
    return (
        f'"@method": {method}\n"@target-uri": {uri}\n"content-digest": {digest}\n{extra}'
        f'"@signature-params": {parameters}'
    ).encode("ascii")


def sign_request(
    signer: Signer,
    *,
    method: str,
    uri: str,
    sha256: bytes,
    at: float,
    nonce: bytes,
    result: str | None = None,
    lifetime_s: int = LIFETIME_S,
) -> dict[str, str]:
    """The three headers of a request whose body has this SHA-256 (32 bytes). ``at``: Unix seconds by a clock that the
    receiver agrees with; ``nonce``: 16 random bytes, for each request and each retry its own."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"A nonce is {NONCE_BYTES} bytes, not {len(nonce)}.")
    created = int(at)
    covered = '"@method" "@target-uri" "content-digest"' + (f' "{RESULT_NAME}"' if result is not None else "")
    key = key_id(bytes.fromhex(signer.public_hex)).hex()
    parameters = (
        f"({covered});created={created};expires={created + lifetime_s};"
        f'nonce="{nonce.hex()}";keyid="{key}";alg="ed25519";tag="{TAG}"'
    )
    digest = content_digest(sha256.hex())
    signature = signer.sign(signature_base(method, uri, digest, parameters, result))
    headers = {
        "Content-Digest": digest,
        "Signature-Input": f"quorate={parameters}",
        "Signature": f"quorate=:{b64encode(signature).decode()}:",
    }
    RequestSignature.parse([(name.lower().encode(), value.encode()) for name, value in headers.items()])
    return headers


# ------------------------------------------------------------ nonces
# The nonces of requests that were accepted, for as long as such a request would still be accepted.
#
# Memory is bounded twice: by all keys together, and by key, so that one device cannot take the room of the others. A
# nonce is never forgotten before its request expires; where there is no room, a request is refused instead.


MOST = 200_000
"""Some 25 MB. A fleet that sends 2,500 requests a second needs 150,000."""
MOST_OF_A_KEY = 2_000


class NonceWindow:
    """Remembers nonces until they expire. For use by several threads."""

    def __init__(self, most: int = MOST, most_of_a_key: int = MOST_OF_A_KEY) -> None:
        self._most, self._most_of_a_key = most, most_of_a_key
        self._seen: dict[int, set[tuple[str, str]]] = {}
        """Second in which they expire -> (key id, nonce)."""
        self._of_key: Counter[str] = Counter()
        self._count = 0
        self._swept = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return self._count

    def take(self, signature: RequestSignature, now: float) -> None:
        """Remember the nonce of a request whose signature and times were checked at ``now`` (Unix seconds).

        Raises ReplayedRequest where it is known, TooManyRequests where there is no room."""
        entry = (signature.key_id, signature.nonce)
        with self._lock:
            self._forget(now)
            # The same nonce with another expiry is no replay, but another signature, which only the key's owner makes.
            if entry in self._seen.get(signature.expires, ()):
                raise ReplayedRequest("This request was received before.")
            if self._of_key[signature.key_id] >= self._most_of_a_key or self._count >= self._most:
                raise TooManyRequests("Too many requests were received within a minute.", self._first_gone(now))
            self._seen.setdefault(signature.expires, set()).add(entry)
            self._of_key[signature.key_id] += 1
            self._count += 1

    def _forget(self, now: float) -> None:
        if int(now) == self._swept:
            return
        self._swept = int(now)
        for second in [second for second in self._seen if second < now]:
            gone = self._seen.pop(second)
            self._count -= len(gone)
            for key, _ in gone:
                self._of_key[key] -= 1
                if not self._of_key[key]:
                    del self._of_key[key]

    def _first_gone(self, now: float) -> float:
        return max(1.0, min(self._seen, default=0) + 1 - now)
