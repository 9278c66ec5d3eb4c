"""Who a device is: the contract of that port, its example, and what the authority makes of it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from client_sdk.extensions import CannotLoad
from client_sdk.protocol.authority import CertificateRequest
from coordinator.authority.proofs import EnrolmentProof, NoProof, proof_named
from quorate.testing import EnrolmentProofContract
from tests.coordinator.authority.attested_serial import AttestedSerial, attested_bytes
from tests.coordinator.authority.test_enrolling import refused
from tests.coordinator.authority.world import AuthorityWorld, Holder, key_of, public

MANUFACTURER = key_of("manufacturer")


def attested(serial: str, public_key: bytes) -> str:
    return f"{serial}:{b64encode(MANUFACTURER.sign(attested_bytes(serial, public_key))).decode()}"


class TestAttestedSerial(EnrolmentProofContract):
    def proof(self) -> EnrolmentProof:
        return AttestedSerial(public(MANUFACTURER))

    def good(self, public_key: bytes) -> str:
        return attested("A113", public_key)


def test_who_a_device_is_is_asked_and_shown_to_operators() -> None:
    world = AuthorityWorld(proof=AttestedSerial(public(MANUFACTURER)))
    token = world.token()
    phone = Holder(world, "phone")
    refused("enrolment-refused", "serial number", phone.enrol, token)
    refused("enrolment-refused", "not attested", phone.enrol, token, who=attested("A113", public(key_of("other"))))
    phone.enrol(token, who=attested("A113", public(phone.key)))
    with world.answers.ledger.reading() as rows:
        (holder,) = rows.holders()
    assert holder.subject == "A113"


def test_nobody_is_asked_who_has_no_token() -> None:
    """A proof may ask another service: only who has a token may make it do so."""

    class Asked:
        def subject(self, who: str, public_key: bytes, at: float) -> str:
            raise AssertionError("was asked")

    world = AuthorityWorld(proof=Asked())
    phone = Holder(world, "phone")
    spent = world.token(lasts_s=1)
    world.at += 2
    refused("enrolment-refused", "expired", phone.enrol, spent)


def test_repro_nobody_is_asked_about_a_key_whose_private_half_was_not_shown() -> None:
    """The port promises so. A proof that may be used once would be spent by whoever has seen it."""
    asked: list[bytes] = []

    class Asked:
        def subject(self, who: str, public_key: bytes, at: float) -> str:
            asked.append(public_key)
            return who

    world = AuthorityWorld(proof=Asked())
    token, phone = world.token(), Holder(world, "phone")
    request = CertificateRequest(
        secret=token.secret.hex(), public_key=public(phone.key).hex(), proof="00" * 64, who="A113"
    )
    refused("enrolment-refused", "not valid", world.answers.enrol, request, world.at)
    assert asked == []
    phone.enrol(token, who="A113")
    assert asked == [public(phone.key)]


@pytest.mark.parametrize("subject", ["x" * 201, "two\nlines"])
def test_a_subject_that_cannot_be_shown_is_a_bug_and_enrols_nobody(subject: str) -> None:
    class Strange:
        def subject(self, who: str, public_key: bytes, at: float) -> str:
            return subject

    world = AuthorityWorld(proof=Strange())
    with pytest.raises(ValueError, match="200 printable"):
        Holder(world, "phone").enrol(world.token())
    with world.answers.ledger.reading() as rows:
        assert rows.holders() == []


def test_a_proof_is_found_by_name() -> None:
    assert isinstance(proof_named(None), NoProof)
    with pytest.raises(CannotLoad, match="No installed package has the enrolment proof clinic:oidc"):
        proof_named("clinic:oidc")
