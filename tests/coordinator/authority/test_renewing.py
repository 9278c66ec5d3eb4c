"""Renewal, rotation, leaving and revocation: one id has one valid key, and the list never goes back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from client_sdk.credentials.certificate import CLOCKS_APART_S, following
from client_sdk.credentials.errors import NotValidNow, RevokedKey
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.answering import MOST_ROTATIONS
from coordinator.authority.issuer import DAY_S, HOUR_S, AuthorityPolicy
from coordinator.authority.ledger import Ledger
from tests.coordinator.authority.test_enrolling import refused, unknown_token
from tests.coordinator.authority.world import NOW, URL, AuthorityWorld, Holder, key_of, public


def enrolled(world: AuthorityWorld, name: str = "phone") -> Holder:
    holder = Holder(world, name)
    holder.enrol(world.token(), label=f"label of {name}")
    return holder


def test_a_certificate_is_renewed_in_its_second_half() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    first = phone.certificate
    world.at += 45 * DAY_S - 1
    assert phone.renew() == first
    world.at += 1
    second = phone.renew()
    assert (second.id, second.public_key) == (phone.id, public(phone.key))
    assert second.not_after == world.at + 90 * DAY_S
    assert phone.renew() == second, "a lost answer costs nothing"


def test_rotation_keeps_the_id_and_revokes_the_old_key() -> None:
    world = AuthorityWorld()
    phone, new = enrolled(world), key_of("new")
    device, old = phone.id, phone.key_id
    before = world.served().counter
    asked = phone.rotation(new)
    answer = world.answers.rotate(asked)
    again = Holder(world, "again", new)
    found = again._keep(answer)
    assert (found.id, found.public_key) == (device, public(new))
    assert old in world.served().revoked
    assert world.served().counter > before
    refused("revoked-key", "revoked", phone.renew)
    again.renew()


def test_a_rotation_whose_answer_was_lost_is_repeated_by_the_old_key() -> None:
    world = AuthorityWorld()
    phone, new = enrolled(world), key_of("new")
    first = world.answers.rotate(phone.rotation(new))
    counter = world.served().counter
    assert world.answers.rotate(phone.rotation(new)) == first
    assert world.served().counter == counter
    refused("revoked-key", "revoked", world.answers.rotate, phone.rotation(key_of("third")))
    other = enrolled(world, "other")
    refused("revoked-key", "revoked", world.answers.rotate, phone.rotation(other.key))
    world.revoke(phone.id)
    refused("revoked-key", "revoked", world.answers.rotate, phone.rotation(new))


def test_nobody_rotates_to_a_key_that_is_not_the_senders() -> None:
    world = AuthorityWorld()
    phone, other = enrolled(world), enrolled(world, "other")
    forged = phone.rotation(key_of("new"))
    body = forged.body.replace(key_of("new").public_hex.encode(), key_of("victim").public_hex.encode())
    refused("enrolment-refused", "signature of the new key", world.answers.rotate, phone.signed(forged.path, body))
    refused("conflict", "certified before", world.answers.rotate, phone.rotation(other.key))
    refused("unauthenticated", "body", world.answers.rotate, replace(forged, body=body))


def test_one_id_has_one_valid_key() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    for name in ("second", "third"):
        new = key_of(name)
        world.answers.rotate(phone.rotation(new))
        phone.key = new
    with world.answers.ledger.reading() as rows:
        valid = rows.key_of(phone.id)
        assert valid is not None
        assert valid.public_key == public(key_of("third"))
        assert len(rows.revoked_keys()) == 2


def test_one_holder_cannot_make_the_list_long() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    for number in range(MOST_ROTATIONS):
        new = key_of(f"key {number}")
        world.answers.rotate(phone.rotation(new))
        phone.key = new
    refused("conflict", "16 keys", world.answers.rotate, phone.rotation(key_of("one more")))
    phone.renew()
    world.at += 50 * DAY_S
    phone.renew()
    world.at += 41 * DAY_S
    world.served()
    world.answers.rotate(phone.rotation(key_of("one more")))


def test_who_leaves_is_forgotten_but_for_the_key_ids_on_the_list_and_that_the_id_was_given() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    world.answers.rotate(phone.rotation(key_of("new")))
    old, phone.key = phone.key_id, key_of("new")
    phone.leave()
    assert set(world.served().revoked) == {old, phone.key_id}
    refused("revoked-key", "revoked", phone.leave)
    refused("revoked-key", "revoked", phone.renew)
    with world.answers.ledger.reading() as rows:
        left = rows.holder(phone.id)
        assert left is not None
        assert (left.state, left.label, left.subject, left.enrolled_at) == ("left", "", "", 0)
        for key_id in (old, phone.key_id):
            key = rows.key(key_id)
            assert key is not None
            assert (key.id, key.public_key, key.certificate, key.replaced_by) == (None, None, None, None)
    world.at += 90 * DAY_S + CLOCKS_APART_S
    assert world.served().revoked == ()
    with world.answers.ledger.reading() as rows:
        assert rows.key(phone.key_id) is None
        assert rows.holder(phone.id) is not None


def test_a_key_that_left_or_was_revoked_does_not_come_back_while_it_is_on_the_list() -> None:
    world = AuthorityWorld()
    for name in ("left", "revoked"):
        phone = enrolled(world, name)
        if name == "left":
            phone.leave()
        else:
            world.revoke(phone.id)
        token = world.token()
        refused("revoked-key", "revoked", phone.enrol, token)
        first = phone.id
        world.at += 91 * DAY_S
        world.served()
        assert phone.enrol(world.token()).id != first


def test_an_operator_revokes_by_id() -> None:
    world = AuthorityWorld()
    phone, other = enrolled(world), enrolled(world, "other")
    found = world.revoke(phone.id)
    assert found == world.served()
    with pytest.raises(RevokedKey):
        found.require_good(public(phone.key))
    found.require_good(public(other.key))
    refused("revoked-key", "revoked", phone.renew)
    refused("conflict", "No valid key", world.revoke, phone.id)
    refused("conflict", "No valid key", world.revoke, "d0")


def test_a_revoked_key_is_on_the_list_until_its_last_certificate_has_expired() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    world.at += 50 * DAY_S
    phone.renew()
    world.revoke(phone.id)
    world.at = NOW + 90 * DAY_S
    assert world.served().revoked == (phone.key_id,)
    world.at = NOW + 140 * DAY_S - 1
    assert world.served().revoked == (phone.key_id,)
    world.at += 12 * HOUR_S
    assert world.served().revoked == ()


def test_a_key_is_listed_for_its_longest_certificate_also_where_later_ones_are_shorter() -> None:
    world = AuthorityWorld(certificate_days=90)
    phone = enrolled(world)
    world.answers.issuer = replace(world.issuer, policy=AuthorityPolicy(url=URL, certificate_days=1))
    phone.enrol(world.token())
    world.revoke(phone.id)
    world.at += 89 * DAY_S
    assert world.served().revoked == (phone.key_id,)


def test_a_revoked_key_stays_on_lists_that_a_clock_takes_by_which_its_certificate_is_valid() -> None:
    world = AuthorityWorld(certificate_days=1)
    phone = enrolled(world)
    assert phone.certificate is not None
    world.revoke(phone.id)
    world.at = phone.certificate.not_after + CLOCKS_APART_S - 1
    made = world.served()
    slow = phone.certificate.not_after - 1
    phone.certificate.require_valid(slow)
    made.require_current(slow)
    assert made.revoked == (phone.key_id,)
    world.at += 1
    made = world.revoke(enrolled(world, "other").id)
    with pytest.raises(NotValidNow, match="clock is behind"):
        made.require_current(slow)
    assert phone.key_id not in made.revoked


def test_the_list_is_signed_anew_in_good_time_and_not_more_often() -> None:
    world = AuthorityWorld()
    first = world.served()
    world.at += 12 * HOUR_S - 1
    assert world.served() == first
    world.at += 1
    second = world.served()
    assert second.next_update == world.at + 24 * HOUR_S
    assert following(first, second.encoded, world.issuer.trusted) == second


def test_no_counter_goes_back_where_the_clock_does() -> None:
    world = AuthorityWorld()
    lists = [world.served()]
    for step in (-DAY_S, 5, -3 * DAY_S, 0, 10 * DAY_S):
        phone = enrolled(world, f"phone {step}")
        lists.append(world.revoke(phone.id))
        world.at += step
    for before, after in pairwise(lists):
        assert after.counter > before.counter
        assert after.issued >= before.issued


def test_an_authority_restored_from_a_backup_signs_no_number_again() -> None:
    world, backup = AuthorityWorld(), Ledger(":memory:")
    held = world.served()
    world.answers.ledger._connection.backup(backup._connection)  # type: ignore[attr-defined]
    for name in ("a", "b", "c"):
        world.at += 1
        held = following(held, world.revoke(enrolled(world, name).id).encoded, world.issuer.trusted)
    world.answers.ledger = backup
    world.at += 10
    following(held, world.revoke(enrolled(world, "d").id).encoded, world.issuer.trusted)


def test_rows_are_as_they_were_where_an_answer_is_refused() -> None:
    world = AuthorityWorld()
    phone = enrolled(world)
    audit, counter = world.audit(), world.served().counter
    for ask in (lambda: phone.enrol(unknown_token(world)), lambda: world.revoke("d0")):
        with pytest.raises(ProblemError):
            ask()
    refused = (
        "somebody",
        "refused",
        "This enrolment token is not known here; ask an operator of the authority for a new token.",
    )
    assert (world.audit(), world.served().counter) == ([*audit, refused], counter)
