"""Enrolment: for whom a token is good, how often, until when, and what a lost answer costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.issuer import DAY_S
from coordinator.authority.ledger import Ledger
from tests.coordinator.authority.world import NOW, URL, AuthorityWorld, Holder, key_of, public


def refused(kind: str, match: str, call: object, *given: object, **named: object) -> None:
    with pytest.raises(ProblemError, match=match) as caught:
        call(*given, **named)  # type: ignore[operator]
    assert caught.value.kind == kind


def unknown_token(world: AuthorityWorld) -> EnrolmentToken:
    return EnrolmentToken(URL, world.issuer.trusted.digest, b"\7" * 16)


def test_a_device_with_a_token_gets_an_id_and_a_certificate_of_its_key() -> None:
    world = AuthorityWorld()
    token = world.token()
    assert (token.url, token.authority) == (URL, world.issuer.trusted.digest)
    made = Holder(world, "phone").enrol(token, label="a phone")
    assert made.public_key == public(key_of("phone"))
    assert (made.holder, made.not_before, made.not_after) == ("device", NOW - 600, NOW + 90 * DAY_S)
    assert made.id.startswith("d")
    worker = Holder(world, "cluster").enrol(world.token(holder="worker"))
    assert worker.holder == "worker"
    assert worker.id.startswith("w")


def test_a_token_enrols_as_many_as_it_says() -> None:
    world = AuthorityWorld()
    token = world.token(uses=2)
    ids = {Holder(world, name).enrol(token).id for name in ("a", "b")}
    assert len(ids) == 2
    refused("enrolment-refused", "used as often", Holder(world, "c").enrol, token)


def test_keys_that_enrol_together_share_a_transaction_and_each_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = AuthorityWorld()
    many, one = world.token(uses=20), world.token()
    begun, writing = [], world.answers.ledger.writing

    def counted() -> Any:
        begun.append(1)
        return writing()

    monkeypatch.setattr(world.answers.ledger, "writing", counted)
    asked = [(f"phone {number}", one if number in (3, 7) else many) for number in range(12)]
    requests = [Holder(world, name).enrolment(token) for name, token in asked]
    entered = [world.answers.enrol(request, world.at) for request in requests]
    assert begun == []
    certified = [entered[number]().id for number in range(12) if number != 7]
    assert begun == [1]
    refused("enrolment-refused", "used as often", entered[7])
    assert [(who, what) for who, event, what in world.audit() if event == "enrolled"] == [
        (f"device {name}", name) for name in certified
    ]
    with world.answers.ledger.reading() as rows:
        assert sorted(token.uses_left for token in rows.tokens()) == [0, 10]
        assert sorted(row.id for row in rows.holders()) == sorted(set(certified))


def test_where_their_transaction_is_not_stored_none_of_them_is_answered_and_no_token_is_used(tmp_path: Path) -> None:
    world = AuthorityWorld(Ledger(tmp_path / "ledger"))
    token, connection = world.token(uses=200), world.answers.ledger._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    holders = [Holder(world, f"phone {number}") for number in range(100)]
    entered = [world.answers.enrol(holder.enrolment(token), world.at) for holder in holders]
    for settle in entered:
        refused("disk-full", "nothing was stored", settle)
    with world.answers.ledger.reading() as rows:
        assert ([row.uses_left for row in rows.tokens()], rows.holders()) == ([200], [])
    connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert len({holder.enrol(token).id for holder in holders}) == 100


def test_a_lost_answer_costs_no_use_and_gives_the_same_certificate() -> None:
    world = AuthorityWorld()
    token = world.token(uses=2)
    phone = Holder(world, "phone")
    first = phone.enrol(token)
    world.at += 3 * DAY_S
    assert phone.enrol(token) == first, "also when the token has expired since"
    world.at = NOW
    Holder(world, "other").enrol(token)
    assert phone.enrol(token) == first, "also when it was used up since"


def test_a_repeated_enrolment_gives_the_newest_certificate() -> None:
    world = AuthorityWorld()
    token = world.token(lasts_s=80 * DAY_S)
    phone = Holder(world, "phone")
    phone.enrol(token)
    world.at += 60 * DAY_S
    renewed = phone.renew()
    assert phone.enrol(token) == renewed


def test_an_unknown_or_expired_token_enrols_nobody() -> None:
    world = AuthorityWorld()
    phone = Holder(world, "phone")
    refused("enrolment-refused", "not known", phone.enrol, unknown_token(world))
    token = world.token(lasts_s=3600)
    world.at += 3600
    refused("enrolment-refused", "expired", phone.enrol, token)
    world.at -= 1
    phone.enrol(token)


def test_a_key_is_certified_only_for_who_has_its_private_half() -> None:
    world = AuthorityWorld()
    token, other = world.token(), world.token()
    thief = Holder(world, "thief")
    refused("enrolment-refused", "signature of the new key", thief.enrol, token, public_key=key_of("a").public_hex)
    proof = thief.enrolment(other).proof
    refused("enrolment-refused", "signature of the new key", thief.enrol, token, proof=proof)
    elsewhere = AuthorityWorld()
    object.__setattr__(elsewhere.issuer, "signer", key_of("another authority"))
    proof = Holder(elsewhere, "thief").enrolment(token).proof
    refused("enrolment-refused", "signature of the new key", thief.enrol, token, proof=proof)
    thief.enrol(token)


def test_a_key_of_low_order_is_refused_whatever_its_proof() -> None:
    """With the neutral point as key and R, and S = 0, lenient verifiers accept any message."""
    world = AuthorityWorld()
    neutral = (1).to_bytes(32, "little")
    changes = {"public_key": neutral.hex(), "proof": (neutral + bytes(32)).hex()}
    refused("enrolment-refused", "low order", Holder(world, "x").enrol, world.token(), **changes)


def test_a_refused_enrolment_uses_no_token() -> None:
    world = AuthorityWorld()
    token = world.token()
    refused("enrolment-refused", "signature", Holder(world, "x").enrol, token, proof="00" * 64)
    Holder(world, "x").enrol(token)


def test_a_key_keeps_its_id_under_another_token_and_comes_back_after_its_certificate_expired() -> None:
    world = AuthorityWorld()
    token = world.token()
    phone = Holder(world, "phone")
    first = phone.enrol(token)
    world.at += 91 * DAY_S
    refused("enrolment-refused", "expired", phone.renew)
    refused("enrolment-refused", "expired, and this token was used", phone.enrol, token)
    second = world.token()
    again = phone.enrol(second)
    assert again.id == first.id
    assert again.not_after == world.at + 90 * DAY_S
    refused("enrolment-refused", "used as often", Holder(world, "other").enrol, second)


def test_a_rotation_after_the_certificate_expired_is_refused() -> None:
    world = AuthorityWorld()
    phone = Holder(world, "phone")
    phone.enrol(world.token())
    world.at += 90 * DAY_S
    refused("enrolment-refused", "expired", world.answers.rotate, phone.rotation(key_of("new")))


def test_a_devices_key_does_not_become_a_workers() -> None:
    world = AuthorityWorld()
    phone = Holder(world, "phone")
    phone.enrol(world.token())
    refused("conflict", "not that of a worker", phone.enrol, world.token(holder="worker"))


def test_no_id_is_given_twice() -> None:
    world = AuthorityWorld()
    drawn = iter([bytes(8), bytes(8), b"\1" * 8])
    first = Holder(world, "a")
    second = Holder(world, "b")
    tokens = [world.token(), world.token()]
    object.__setattr__(world.issuer, "entropy", lambda count: next(drawn))
    assert first.enrol(tokens[0]).id == "d" + "00" * 8
    first.leave()
    assert second.enrol(tokens[1]).id == "d" + "01" * 8, "nor that of a holder who left"


def test_who_has_no_token_leaves_one_entry_a_minute_in_the_audit() -> None:
    world = AuthorityWorld()
    made_up = EnrolmentToken(URL, world.issuer.trusted.digest, b"made up by them!")
    for second in range(121):
        with pytest.raises(ProblemError, match="not known here"):
            Holder(world, f"stranger {second}").enrol(made_up)
        world.at += 1
    assert [(who, event) for who, event, _ in world.audit()] == [("somebody", "refused")] * 3
    assert [what.partition(" (")[2] for _, _, what in world.audit()] == ["", "and 59 more)", "and 59 more)"]


def test_the_audit_says_who_and_what_and_no_secret() -> None:
    world = AuthorityWorld()
    token = world.token(uses=3)
    phone = Holder(world, "phone")
    phone.enrol(token)
    phone.enrol(token)
    world.revoke(phone.id)
    who = f"device {phone.id}"
    assert world.audit() == [
        ("operator uid 7", "token", "for 3 devices"),
        (who, "enrolled", phone.id),
        ("operator uid 7", "revoked", phone.id),
    ]
    with world.answers.ledger.reading() as rows:
        assert token.secret.hex() not in repr(rows.tokens())
        assert repr(token.secret) not in repr(rows.tokens())
