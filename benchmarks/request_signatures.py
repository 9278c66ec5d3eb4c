"""Measures what a signed request costs the server's CPU beyond one bare Ed25519 verification.

``python -m benchmarks.request_signatures [--quick] [--json]``. CPU seconds of one process, in interleaved pairs of some
hundred verifications each.

    signed_request_beyond_bare_ms   all that the server does for who has sent a check-in, less one bare verification of
                                    the same bytes with the same key, in milliseconds. Aim: at most 0.05
    signed_request_ms               all of it
    bare_verification_ms            the bare verification

All of it: the headers are found and parsed, the public URL of the request is put together, the body is hashed, times
and key are looked up, the signature, the body and the nonce are checked, and the row of the device is found, whose
certificate is valid and not on the revocation list. It runs through the functions of the service, over a coordinator
with registered devices. What a request costs whoever has signed it is not in it: HTTP, JSON, routing.

The requests of one sample are all different: other nonces, signatures and devices.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import Request

from benchmarks.harness import Row, Spread, interleaved, main
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature, sign_request, signature_base
from client_sdk.identity import DeviceKey
from coordinator.authority.issuer import AuthorityPolicy, Issuer
from coordinator.blobs.port import MemoryBlobs
from coordinator.network_settings import PublicUrl
from coordinator.requests import Permission
from coordinator.requests.entry import check_credentials, identify
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.identities import PinnedAuthority
from coordinator.service.edge import Hosts
from coordinator.service.route import arrived, note_arrival, note_body
from coordinator.store.memory import MemoryStore
from coordinator.store.port import DeviceRow

AIM_MS = 0.05
ORIGIN, PATH = "https://train.example:8470", "/quorate/v1/checkins"
BODY = b'{"runs": ["mnist"], "learners": ["quorate:mnist-mlp@0.2.0.dev0"], "hold_s": 30.0, "examples": 600}'
OTHERS = [(b"host", b"train.example:8470"), (b"user-agent", b"quorate"), (b"content-type", b"application/json")]
DEVICES = 50


class Requests:
    """Signed requests of several registered devices, and what is needed to check them."""

    def __init__(self, count: int) -> None:
        now = time.time()
        keys = [DeviceKey(hashlib.sha256(bytes([number])).digest()) for number in range(DEVICES)]
        publics = [bytes.fromhex(key.public_hex) for key in keys]
        digest = hashlib.sha256(BODY).digest()
        self.coordinator = _coordinator(publics, now)
        service = SimpleNamespace(hosts=Hosts(PublicUrl.parse(f"{ORIGIN}/quorate")), coordinator=self.coordinator)
        self._app = SimpleNamespace(state=SimpleNamespace(service=service))
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.bare: list[tuple[Ed25519PublicKey, bytes, bytes]] = []
        for number in range(count):
            nonce, uri = number.to_bytes(16, "big"), ORIGIN + PATH
            sent = sign_request(keys[number % DEVICES], method="POST", uri=uri, sha256=digest, at=now, nonce=nonce)
            headers = OTHERS + [(name.lower().encode(), value.encode()) for name, value in sent.items()]
            self.headers.append(headers)
            read = RequestSignature.parse(headers)
            key = Ed25519PublicKey.from_public_bytes(publics[number % DEVICES])
            self.bare.append((key, read.signature, signature_base("POST", uri, read.digest, read.parameters, None)))

    def verify_all(self) -> None:
        """Each request as the service checks it. Raises ProblemError where one is not accepted."""
        self.coordinator.signed.nonces = NonceWindow()
        for headers in self.headers:
            request = Request(self._scope(headers))
            note_arrival(request, Permission.DEVICE)
            note_body(request, BODY)
            checked = check_credentials(self.coordinator, Permission.DEVICE, arrived(request), None)
            if not isinstance(identify(self.coordinator, Permission.DEVICE, checked), DeviceRow):
                raise AssertionError("a device was not found")

    def verify_bare(self) -> None:
        """The Ed25519 verification of each request alone."""
        for key, signature, message in self.bare:
            key.verify(signature, message)

    def _scope(self, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        return {
            "type": "http",
            "method": "POST",
            "scheme": "https",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": headers,
            "app": self._app,
        }


def _coordinator(publics: list[bytes], now: float) -> Coordinator:
    """A coordinator in memory, with devices of these keys and a list on which none of them is."""
    issuer = Issuer(DeviceKey.create(), AuthorityPolicy(url="https://authority.example"))
    pinned = PinnedAuthority(issuer.trusted, "https://authority.example")
    coordinator = Coordinator(Core(MemoryStore(), MemoryBlobs()), authority=pinned)
    revoked = [hashlib.sha256(bytes(2) + bytes([number])).digest()[:16] for number in range(200)]
    coordinator.identities.take_list(issuer.revocations(None, revoked, now).encoded)
    for number, public in enumerate(publics):
        certificate = issuer.certificate(id=f"d{number}", holder="device", public_key=public, at=now)
        coordinator.identities.register_device(certificate)()
    return coordinator


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
