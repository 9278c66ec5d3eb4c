"""Nothing that is signed can be taken for something else that is signed, and the bytes of each form are frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from client_sdk.credentials import canonical
from client_sdk.credentials.certificate import Certificate, RevocationList
from client_sdk.credentials.enrolment_token import EnrolmentToken, enrolment_statement, rotation_statement
from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.request_signature import RequestSignature, sign_request, signature_base
from client_sdk.protocol.privacy_report import ClipSince, PrivacyReport, ReportedLedger
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.roster import Roster
from client_sdk.secagg.statement import DOMAIN as SECURE_ROUNDS
from client_sdk.secagg.statement import statement
from coordinator.runtime.insight.privacy_report import signed_part
from coordinator.store.chain import AuditHead
from tests.client_sdk.credentials.world import (
    BODY,
    DEVICE,
    NOW,
    STRANGER,
    TRUSTED,
    URI,
    certificate,
    public,
    revocations,
    token,
)

GOLDEN = Path(__file__).with_name("golden.json")
CERTIFICATE, LIST, TOKEN = certificate(), revocations(7, DEVICE, STRANGER), token()
REQUEST = sign_request(
    DEVICE, method="POST", uri=URI, sha256=hashlib.sha256(BODY).digest(), at=NOW, nonce=bytes(range(16))
)
REPORT = PrivacyReport(
    run="mnist",
    name="mnist",
    status="finished",
    made_at=NOW + 0.25,
    simulated=False,
    log=f"mnist:9:{'5' * 64}",
    unit="device",
    adjacency="zero-out",
    mechanism="noise",
    clips=(ClipSince(round=1, clip=0.5),),
    noise=2.5,
    delta=1e-6,
    epsilon=1.25,
    rho=0.08,
    epsilon_planned=4.0,
    most_rounds=10,
    rounds_of_a_device={1: 20, 2: 3, 10: 1},
    least_apart=None,
    ledger=ReportedLedger(
        name="phones", budget=8.0, spent=2.5, devices=24, near=1, runs=2, words=1, said=("run:x: agreed",)
    ),
    trusted=("the coordinator",),
    not_covered=("“who”",),
    rounds=(),
    refusals={"late": 2},
    plan="1" * 64,
    code="2" * 64,
    version="1.0",
    first_model="3" * 64,
)


def signed() -> dict[str, bytes]:
    """What is signed, by what it begins with."""
    read = RequestSignature.parse([(name.lower().encode(), value.encode()) for name, value in REQUEST.items()])
    return {
        "certificate": canonical.CERTIFICATE + CERTIFICATE.body,
        "revocations": canonical.REVOCATIONS + LIST.body,
        "enrolment": enrolment_statement(TRUSTED.id, TOKEN.secret_digest, public(DEVICE)),
        "rotation": rotation_statement(TRUSTED.id, CERTIFICATE.id, public(DEVICE), public(STRANGER)),
        "request": signature_base("POST", URI, read.digest, read.parameters, None),
        "secure round": statement(bytes(32), "advertise", b"body"),
        "privacy report": signed_part(REPORT),
        "audit": AuditHead(7, "5" * 64, NOW + 0.25, public(DEVICE).hex(), "").statement(),
    }


PREFIXES = {
    "certificate": canonical.CERTIFICATE,
    "revocations": canonical.REVOCATIONS,
    "enrolment": canonical.ENROLMENT,
    "rotation": canonical.ROTATION,
    "request": canonical.REQUEST,
    "secure round": SECURE_ROUNDS,
    "privacy report": canonical.PRIVACY_REPORT,
    "audit": canonical.AUDIT_HEAD,
}


def test_no_prefix_begins_another() -> None:
    written = {name: value for name, value in vars(canonical).items() if name.isupper() and isinstance(value, bytes)}
    assert set(written.values()) <= set(PREFIXES.values()), "each domain is in this test"
    for one, other in permutations(PREFIXES.values(), 2):
        assert not one.startswith(other)


def test_what_is_signed_begins_with_its_own_prefix() -> None:
    for name, message in signed().items():
        assert [other for other, prefix in PREFIXES.items() if message.startswith(prefix)] == [name]


PARSERS: dict[str, Callable[[bytes], object]] = {
    "certificate": Certificate.parse,
    "revocations": RevocationList.parse,
    "token": lambda data: EnrolmentToken.parse(data.decode("latin-1")),
    "header": AttemptHeader.parse,
    "roster": Roster.parse,
    "memory": Memory.parse,
}


@pytest.mark.parametrize("name", PARSERS)
def test_no_form_is_a_valid_form_of_another(name: str) -> None:
    forms = {f"signed {other}": message for other, message in signed().items()}
    forms |= {"certificate": CERTIFICATE.encoded, "revocations": LIST.encoded, "token": TOKEN.text.encode()}
    forms |= {"memory": Memory().encoded}
    for other, data in forms.items():
        if other == name:
            PARSERS[name](data)
        else:
            with pytest.raises((BadCredential, SecaggError)):
                PARSERS[name](data)


def test_the_bytes_are_frozen() -> None:
    """Authorities, coordinators and devices of different versions meet: a change here is a new domain."""
    found = {name: message.hex() for name, message in signed().items()}
    found |= {"signed certificate": CERTIFICATE.encoded.hex(), "signed list": LIST.encoded.hex(), "token": TOKEN.text}
    assert found | {"headers": REQUEST} == json.loads(GOLDEN.read_text())
