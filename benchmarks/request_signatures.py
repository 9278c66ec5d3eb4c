"""Measures what a signed request costs the server's CPU beyond one bare Ed25519 verification.

``python -m benchmarks.request_signatures [--quick] [--json]``. CPU seconds of one process, in interleaved pairs of some
hundred verifications each.

    signed_request_beyond_bare_ms   headers found and parsed, times, key, signature, nonce, and the digest of the body
                                    of a check-in, less one bare verification of the same bytes with the same key, in
                                    milliseconds. Aim: at most 0.05
    signed_request_ms               all of it
    bare_verification_ms            the bare verification

The requests of one sample are all different: other nonces, signatures and devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from benchmarks.harness import Row, Spread, interleaved, main
from client_sdk.credentials.identity_keys import key_id
from client_sdk.credentials.nonces import NonceWindow
from client_sdk.credentials.request_signature import RequestSignature, sign_request, signature_base
from client_sdk.identity import DeviceKey

AIM_MS = 0.05
NOW = 1_790_000_000.0
URI = "https://train.example:8470/quorate/v1/checkins"
BODY = b'{"runs": ["mnist"], "learners": ["quorate:mnist-mlp@0.1.0"], "hold_s": 30.0, "examples": 600}'
OTHERS = [(b"host", b"train.example:8470"), (b"user-agent", b"quorate"), (b"content-type", b"application/json")]
DEVICES = 50


class Requests:
    """Signed requests of several devices, and what is needed to check them."""

    def __init__(self, count: int) -> None:
        keys = [DeviceKey(hashlib.sha256(bytes([number])).digest()) for number in range(DEVICES)]
        publics = [bytes.fromhex(key.public_hex) for key in keys]
        digest = hashlib.sha256(BODY).digest()
        self.keys = {key_id(public).hex(): public for public in publics}
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.bare: list[tuple[Ed25519PublicKey, bytes, bytes]] = []
        for number in range(count):
            nonce = number.to_bytes(16, "big")
            sent = sign_request(keys[number % DEVICES], method="POST", uri=URI, sha256=digest, at=NOW, nonce=nonce)
            headers = OTHERS + [(name.lower().encode(), value.encode()) for name, value in sent.items()]
            self.headers.append(headers)
            read = RequestSignature.parse(headers)
            key = Ed25519PublicKey.from_public_bytes(publics[number % DEVICES])
            self.bare.append((key, read.signature, signature_base("POST", URI, read.digest, read.parameters, None)))

    def verify_all(self) -> None:
        """Each request as a server checks it. Raises where one is not accepted."""
        nonces = NonceWindow()
        for headers in self.headers:
            found = RequestSignature.parse(headers)
            found.require_current(NOW)
            found.require_signed(self.keys[found.key_id], method="POST", uri=URI)
            nonces.take(found, NOW)
            found.require_body(hashlib.sha256(BODY).digest())

    def verify_bare(self) -> None:
        """The Ed25519 verification of each request alone."""
        for key, signature, message in self.bare:
            key.verify(signature, message)


def measure(quick: bool, requests: Callable[[int], Requests] = Requests) -> Iterator[Row]:
    """The rows of the report."""
    count = 100 if quick else 500
    crowd = requests(count)
    found = interleaved(crowd.verify_all, crowd.verify_bare, 7 if quick else 21)
    ours, bare = ([1000 * cost / count for cost in costs] for costs in (found.ours, found.other))
    beyond = Spread.of([mine - other for mine, other in zip(ours, bare, strict=True)])
    yield Row(name="signed_request_beyond_bare_ms", value=beyond.median, unit="ms", aim=AIM_MS, met=beyond.met(AIM_MS))
    yield Row(name="signed_request_beyond_bare_ms_low", value=beyond.low, unit="ms")
    yield Row(name="signed_request_beyond_bare_ms_high", value=beyond.high, unit="ms")
    yield Row(name="signed_request_ms", value=Spread.of(ours).median, unit="ms")
    yield Row(name="bare_verification_ms", value=Spread.of(bare).median, unit="ms")


if __name__ == "__main__":
    main("request_signatures", measure)
