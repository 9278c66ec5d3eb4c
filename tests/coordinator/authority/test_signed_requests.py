"""Requests of holders are answered only where the certified key has signed this very request, now, once."""

from __future__ import annotations

from dataclasses import replace

from client_sdk.credentials.request_signature import NonceWindow
from client_sdk.protocol.authority import AuthorityRoute
from tests.coordinator.authority.test_enrolling import refused
from tests.coordinator.authority.test_renewing import enrolled
from tests.coordinator.authority.world import AuthorityWorld, Holder


def test_a_request_is_answered_once() -> None:
    world = AuthorityWorld()
    asked = enrolled(world).signed(AuthorityRoute.RENEWED)
    world.answers.renew(asked)
    refused("replayed-request", "received before", world.answers.renew, asked)


def test_a_request_is_answered_around_its_time() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    for at, words in [(world.at + 3600, "3600 s ahead"), (world.at - 3600, "3600 s behind")]:
        refused("wrong-clock", words, world.answers.renew, phone.signed(AuthorityRoute.RENEWED, at=at))
    asked = phone.signed(AuthorityRoute.RENEWED)
    refused("wrong-clock", "61 s behind", world.answers.renew, replace(asked, at=world.at + 61))
    world.answers.renew(asked)


def test_a_request_for_one_route_is_none_for_another() -> None:
    world = AuthorityWorld()
    asked = enrolled(world).signed(AuthorityRoute.RENEWED)
    refused("unauthenticated", "not valid", world.answers.leave, replace(asked, path=AuthorityRoute.LEFT))


def test_a_stranger_or_nobody_is_refused() -> None:
    world = AuthorityWorld()
    stranger = Holder(world, "stranger")
    refused("unauthenticated", "no such key", world.answers.renew, stranger.signed(AuthorityRoute.RENEWED))
    asked = enrolled(world).signed(AuthorityRoute.RENEWED)
    refused("unauthenticated", "not signed", world.answers.renew, replace(asked, headers=[]))


def test_too_many_requests_of_one_key_wait() -> None:
    world = AuthorityWorld()
    world.answers.nonces = NonceWindow(most_of_a_key=1)
    phone = enrolled(world)
    phone.renew()
    refused("busy", "Too many", phone.renew)
    world.at += 62
    phone.renew()


def test_repro_a_body_that_was_not_signed_does_not_use_up_the_nonce() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    asked = phone.signed(AuthorityRoute.RENEWED)
    refused("unauthenticated", "not the one that was signed", world.answers.renew, replace(asked, body=b"{}"))
    world.answers.renew(asked)


def test_repro_a_body_held_back_until_the_nonce_is_forgotten_does_not_replay_a_request() -> None:
    """Its head arrives in time, and its body when the window has forgotten the nonce."""
    world = AuthorityWorld()
    phone = enrolled(world)
    asked = phone.signed(AuthorityRoute.RENEWED)
    world.answers.renew(asked)
    late = replace(asked, at=world.at + 59, complete_at=world.at + 62)
    world.at += 62
    phone.renew()
    refused("wrong-clock", "complete only after", world.answers.renew, late)


def test_repro_a_revoked_key_or_another_body_takes_no_room() -> None:
    world = AuthorityWorld()
    phone, other = enrolled(world), enrolled(world, "other")
    asked = phone.signed(AuthorityRoute.RENEWED)
    refused("unauthenticated", "not the one that was signed", world.answers.renew, replace(asked, body=b"{}"))
    world.revoke(phone.id)
    for ask, path in [(world.answers.renew, AuthorityRoute.RENEWED), (world.answers.rotate, AuthorityRoute.ROTATED)]:
        refused("revoked-key", "revoked", ask, phone.signed(path))
    assert len(world.answers.nonces) == 0
    other.renew()
    assert len(world.answers.nonces) == 1


def test_repro_a_query_that_was_not_signed_is_refused() -> None:
    world = AuthorityWorld()
    asked = enrolled(world).signed(AuthorityRoute.RENEWED)
    refused("unauthenticated", "not valid", world.answers.renew, replace(asked, query=b"x"))
    world.answers.renew(asked)
