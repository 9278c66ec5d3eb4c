"""Our signed requests are those of a maintained library (`http-message-signatures`): each verifies the other's."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    PreparedSignature,
    SigningKey,
    VerificationKey,
)
from http_message_signatures.algorithms import ED25519

from client_sdk.credentials.identity_keys import key_id
from client_sdk.credentials.request_signature import TAG, RequestSignature, sign_request, signature_base
from tests.client_sdk.credentials.world import BODY, DEVICE, URI, public

SHA256 = hashlib.sha256(BODY).digest()
COVERED = ("@method", "@target-uri", "content-digest")
RESULT = "Quorate-Result"


@dataclass
class Sent:
    """A request, as the library reads it."""

    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    url: str = URI


class OneKey(HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> VerificationKey:
        assert key_id == key_of_device()
        return Ed25519PublicKey.from_public_bytes(public(DEVICE))

    def resolve_private_key(self, key_id: str) -> SigningKey:
        return Ed25519PrivateKey.from_private_bytes(DEVICE.seed)


def key_of_device() -> str:
    return key_id(public(DEVICE)).hex()


def ours(result: str | None = None, body: bytes = BODY) -> Sent:
    headers = sign_request(
        DEVICE,
        method="POST",
        uri=URI,
        sha256=hashlib.sha256(body).digest(),
        at=time.time(),
        nonce=bytes(range(16)),
        result=result,
    )
    return Sent(headers if result is None else {**headers, RESULT: result})


def verified_by_library(sent: Sent, body: bytes, *components: str) -> None:
    verifier = HTTPMessageVerifier(signature_algorithm=ED25519, key_resolver=OneKey())
    (found,) = verifier.verify(
        sent, expect_tag=TAG, expect_label="quorate", require_components=(*COVERED, *components), body=body
    )
    assert found.body == body
    assert found.nonce == bytes(range(16)).hex()


@pytest.mark.parametrize("body", [BODY, b""])
def test_the_library_accepts_what_we_sign(body: bytes) -> None:
    verified_by_library(ours(body=body), body)
    verified_by_library(ours("lease=4; digest=abc", body), body, "quorate-result")


def test_the_library_refuses_what_was_changed_after_we_signed() -> None:
    for changed in (Sent(ours().headers, method="PUT"), Sent(ours().headers, url=URI + "0")):
        with pytest.raises(InvalidSignature):
            verified_by_library(changed, BODY)
    with pytest.raises(InvalidSignature):
        verified_by_library(ours(), BODY + b" ")


@pytest.mark.parametrize("result", [None, "lease=4; digest=abc"])
def test_we_accept_what_the_library_signs_in_our_sequence_of_parameters(result: str | None) -> None:
    """``apply`` builds the library's own signature base from the request and refuses another one."""
    template = ours(result)
    read = RequestSignature.parse([(name.lower().encode(), value.encode()) for name, value in template.headers.items()])
    prepared = PreparedSignature(
        signature_base("POST", URI, read.digest, read.parameters, result), read.parameters, "quorate", "ed25519"
    )
    key = ED25519(private_key=Ed25519PrivateKey.from_private_bytes(DEVICE.seed))  # type: ignore[no-untyped-call]
    kept = {name: value for name, value in template.headers.items() if not name.startswith("Signature")}
    sent = Sent(dict(kept))
    signer = HTTPMessageSigner(signature_algorithm=ED25519)
    signer.apply(sent, prepared, key.sign(prepared.signature_base))
    found = RequestSignature.parse([(name.lower().encode(), value.encode()) for name, value in sent.headers.items()])
    found.require_signed(public(DEVICE), method="POST", uri=URI, result=result)
    found.require_body(SHA256)
    assert found == read, "Ed25519 signatures are deterministic"
    other = PreparedSignature(prepared.signature_base + b" ", read.parameters, "quorate", "ed25519")
    with pytest.raises(HTTPMessageSignaturesException, match="changed"):
        signer.apply(Sent(dict(kept)), other, read.signature)
