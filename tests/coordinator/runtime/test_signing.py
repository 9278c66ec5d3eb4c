"""Which signatures are accepted, in which sequence they are checked, and that strangers cannot use memory up."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from client_sdk.credentials.errors import BadCredential
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from coordinator.runtime.identities import SignedRequests
from tests.coordinator.certified import Certifier, key_id, key_of, signature
from tests.coordinator.world import World

URI = "https://fl.example/v1/checkins"
BODY = b'{"examples": 7}'
SHA256 = hashlib.sha256(BODY).digest()
KEY = key_of("a new device")


def made(world: World, **more: Any) -> RequestSignature:
    return signature(more.pop("key", world.keys[0]), **{"at": world.clock.at, "uri": URI, "body": BODY, **more})


def check(world: World, one: RequestSignature, **more: Any) -> Any:
    usual = {"method": "POST", "uri": URI, "at": world.clock.at, "sha256": SHA256}
    return world.coordinator.signed.check(one, **{**usual, **more})


def test_a_signature_names_the_key_and_the_time_of_arrival(world: World) -> None:
    found = check(world, made(world), at=world.clock.at - 0.5)
    assert (found.key_id, found.at) == (key_id(world.keys[0]).hex(), world.clock.at - 0.5)
    assert len(world.coordinator.signed.nonces) == 1


@pytest.mark.parametrize(
    ("sent", "found", "kind"),
    [
        ({}, {"method": "PUT"}, "bad-signature"),
        ({}, {"uri": "https://fl.example/v1/checkins?x"}, "bad-signature"),
        ({}, {"uri": "https://other.example/v1/checkins"}, "bad-signature"),
        ({}, {"sha256": hashlib.sha256(b"").digest()}, "bad-signature"),
        ({}, {"result": "{}"}, "bad-signature"),
        ({"result": "{}"}, {}, "bad-signature"),
        ({"result": "{}"}, {"result": '{"fence":2}'}, "bad-signature"),
        ({"key": KEY}, {}, "unregistered"),
    ],
)
def test_what_was_not_signed_so_is_refused_and_takes_no_nonce(
    world: World, sent: dict[str, Any], found: dict[str, Any], kind: str
) -> None:
    with world.refuses(kind):
        check(world, made(world, **sent), **found)
    assert len(world.coordinator.signed.nonces) == 0


@pytest.mark.parametrize(("apart", "good"), [(-60, True), (-61, False), (10, True), (11, False), (-9e5, False)])
def test_a_request_is_signed_around_the_time_of_its_arrival(world: World, apart: float, good: bool) -> None:
    one = made(world, at=world.clock.at + apart)
    if good:
        assert check(world, one)
        return
    with world.refuses("wrong-clock", "Sign it by the time of this answer"):
        check(world, one)


def test_another_registered_key_signs_for_itself_only(world: World) -> None:
    one, other = made(world), made(world, key=world.keys[1])
    mixed = RequestSignature(
        one.created, one.expires, one.nonce, one.key_id, one.with_result, one.parameters, one.digest, other.signature
    )
    with world.refuses("bad-signature"):
        check(world, mixed)
    assert check(world, other).key_id == key_id(world.keys[1]).hex()


def test_a_request_is_accepted_once_in_a_process(world: World) -> None:
    one = made(world)
    check(world, one)
    with world.refuses("replayed-request", "signed afresh"):
        check(world, one)
    check(world, made(world))


def test_repro_a_body_held_back_until_the_nonce_is_forgotten_does_not_replay_a_request(world: World) -> None:
    """Its head arrives in time, and its body when the window has forgotten the nonce."""
    one, head_at = made(world), world.clock.at + 59
    check(world, one)
    world.clock.at += 62
    check(world, made(world))
    with world.refuses("wrong-clock", "complete only after"):
        check(world, one, at=head_at)


def test_repro_no_request_is_taken_twice_because_another_arrived_before_the_clock_was_set_back(world: World) -> None:
    """The other one's head had arrived by the old time, and by that time all nonces since had expired."""
    world.clock.at += 90_000
    other, at = made(world), world.clock.at
    world.clock.at -= 90_000
    one = made(world)
    check(world, one)
    world.clock.at += 2
    check(world, other, at=at)
    with world.refuses("replayed-request", "signed afresh"):
        check(world, one)


def test_a_registration_is_signed_by_the_key_that_its_certificate_names(world: World) -> None:
    certificate = world.authority.certificate(KEY, at=world.clock.at)

    def register(one: RequestSignature, given: Any = certificate, holder: Any = "device") -> Any:
        return world.coordinator.signed.check_registration(
            one, given, holder, method="POST", uri=URI, at=world.clock.at, sha256=SHA256
        )

    assert register(made(world, key=KEY)).key_id == key_id(KEY).hex()
    before = len(world.coordinator.signed.nonces)
    with world.refuses("bad-signature", "another key"):
        register(made(world))
    with world.refuses("not-certified", "not of a worker"):
        register(made(world, key=KEY), holder="worker")
    with world.refuses("not-certified", "another authority"):
        register(made(world, key=KEY), Certifier("another").certificate(KEY, at=world.clock.at))
    with world.refuses("expired-certificate"):
        register(made(world, key=KEY), world.authority.certificate(KEY, at=world.clock.at + 9_999))
    with world.refuses("wrong-clock"):
        register(made(world, key=KEY, at=world.clock.at - 99))
    assert len(world.coordinator.signed.nonces) == before
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, KEY))
    with world.refuses("revoked-key"):
        register(made(world, key=KEY))


def test_strangers_cannot_fill_the_window(world: World) -> None:
    """Neither with registrations of keys that nobody certified, nor in the name of a registered key."""
    signed = SignedRequests(world.coordinator.identities, world.clock.now, NonceWindow(most=3))
    forged = Certifier("forged")
    for number in range(5):
        key = key_of(f"stranger {number}")
        with world.refuses("unregistered"):
            signed.check(made(world, key=key), method="POST", uri=URI, at=world.clock.at)
        with world.refuses("not-certified"):
            signed.check_registration(
                made(world, key=key),
                forged.certificate(key, at=world.clock.at),
                "device",
                method="POST",
                uri=URI,
                at=world.clock.at,
            )
        with world.refuses("bad-signature"):
            signed.check(made(world), method="PUT", uri=URI, at=world.clock.at)
    assert len(signed.nonces) == 0
    for _ in range(3):
        signed.check(made(world), method="POST", uri=URI, at=world.clock.at)
    with world.refuses("busy", "within a minute"):
        signed.check(made(world), method="POST", uri=URI, at=world.clock.at)


def test_repro_a_key_that_is_revoked_or_expired_takes_no_room(world: World) -> None:
    """Its requests were verified and took nonces, and were refused only afterwards."""
    signed = SignedRequests(world.coordinator.identities, world.clock.now, NonceWindow(most=1))
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, world.keys[0]))
    with world.refuses("revoked-key"):
        signed.check(made(world), method="POST", uri=URI, at=world.clock.at)
    worker = world.worker()
    world.coordinator.workers.revoke(worker.worker)
    with world.refuses("revoked-key", "by an operator of this coordinator"):
        signed.check(made(world, key=world.worker_keys[0]), method="POST", uri=URI, at=world.clock.at)
    assert len(signed.nonces) == 0
    assert signed.check(made(world, key=world.keys[1]), method="POST", uri=URI, at=world.clock.at)
    world.clock.at += 90 * 86_400
    signed = SignedRequests(world.coordinator.identities, world.clock.now, NonceWindow(most=1))
    with world.refuses("expired-certificate"):
        signed.check(made(world, key=world.keys[1]), method="POST", uri=URI, at=world.clock.at)
    assert len(signed.nonces) == 0


def test_the_verification_can_be_another_one_and_all_else_stays(world: World) -> None:
    """As the fault explorer does it, which plays thousands of requests."""
    asked: list[tuple[str, bytes, str, str]] = []

    def verify(one: RequestSignature, public_key: bytes, *, method: str, uri: str, result: str | None = None) -> None:
        asked.append((one.key_id, public_key, method, uri))
        if uri != URI:
            raise BadCredential("It was for another.")

    signed = SignedRequests(world.coordinator.identities, world.clock.now, NonceWindow(), verify)
    one = made(world)
    signed.check(one, method="POST", uri=URI, at=world.clock.at)
    assert asked == [(one.key_id, bytes.fromhex(world.keys[0].public_hex), "POST", URI)]
    with world.refuses("bad-signature", "for another"):
        signed.check(made(world), method="POST", uri="https://x.example/", at=world.clock.at)
    with world.refuses("replayed-request"):
        signed.check(one, method="POST", uri=URI, at=world.clock.at)
