"""Intake, roster and routing: what is taken from a device, what is its fault, and what it is shown."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.errors import BadMessage, BadShare, BadSignature, SecaggError
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.roster import AttemptSecrets, Roster, RosterEntry, sign_advertisement
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import RevealedShares, Survivors
from coordinator.secure import validation
from coordinator.secure.blob_formats import entry_bytes, parse_entry
from coordinator.secure.performing import Spoiled, gather
from coordinator.secure.routing import DealtShares, proof
from coordinator.secure.validation import Faulty
from tests.client_sdk.secagg.attempt import Attempt, Authority, agree, entropy, header, opened, share
from tests.coordinator.secure.test_opening import played

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)


class Someone:
    """A device that has advertised."""

    def __init__(self, authority: Authority, name: str, seed: object = None, **same: Any) -> None:
        self.name, self.identity = name, DeviceKey.create(entropy((same.get("identity", name), "identity")))
        self.secrets = replace(AttemptSecrets.draw(entropy((name, seed))), **same.get("secrets", {}))
        self.shown = self.secrets.advertisement(name)
        self.certificate = authority.certify(name, self.identity)

    def entry(self, head: Any) -> RosterEntry:
        return RosterEntry(self.shown, sign_advertisement(self.shown, head.digest, self.identity), self.certificate)


def refused(cohort_stage: Any, *given: Any, match: str, kind: type[Exception] = BadMessage, **named: Any) -> None:
    with pytest.raises(kind, match=match) as caught:
        cohort_stage(*given, **named)
    assert isinstance(caught.value, Faulty) == (kind is Faulty)


# ------------------------------------------------------------ exchange 1


def test_an_advertisement_is_taken_from_its_device_alone() -> None:
    head, authority = header(), Authority()
    one = Someone(authority, "device-1")
    entry = one.entry(head)
    given = (one.shown.encoded, entry.signature, entry.certificate)
    assert validation.advertised(head, authority.vouch, "device-1", *given) == entry
    assert parse_entry(entry_bytes(*given)) == entry
    refused(validation.advertised, head, authority.vouch, "device-2", *given, match="device-2 sent it")
    other = header(attempt=1)
    refused(validation.advertised, other, authority.vouch, "device-1", *given, match="signature", kind=BadSignature)
    authority.revoked.add("device-1")
    refused(validation.advertised, head, authority.vouch, "device-1", *given, match="vouch")
    refused(validation.advertised, head, authority.vouch, "device-1", b"\x02rest", *given[1:], match="advertisement")


def test_who_would_spoil_a_roster_is_named() -> None:
    head, authority = header(), Authority()
    good = [Someone(authority, f"device-{number}") for number in range(6)]
    roster, (cohort,) = gather(head, [each.entry(head) for each in good], authority.vouch)
    assert [cohort.device(place) for place in range(6)] == [each.name for each in good]
    assert Roster.parse(roster.encoded) == roster == cohort.roster
    assert gather(head, [each.entry(head) for each in good[::-1]], authority.vouch)[1][0].h == cohort.h
    thief = Someone(authority, "device-7", secrets={"nonce": good[0].secrets.nonce})
    twin = Someone(authority, "device-8", identity="device-1")
    gone = Someone(authority, "device-9")
    authority.revoked.add("device-9")
    unsigned = replace(Someone(authority, "device-a").entry(head), signature=bytes(64))
    entries = [each.entry(head) for each in (*good, thief, twin, gone)]
    with pytest.raises(Spoiled, match="6 devices") as caught:
        gather(head, [*entries, unsigned], authority.vouch)
    found = caught.value.devices
    assert list(found) == [f"device-{mark}" for mark in "01789a"]
    assert all("same" in found[f"device-{mark}"] for mark in "0178")
    assert "vouch" in found["device-9"]
    assert "signature" in found["device-a"]
    with pytest.raises(SecaggError, match="not 2"):
        gather(head, [each.entry(head) for each in good[:2]], authority.vouch)


# ------------------------------------------------------------ exchanges 2 to 5


def message_of(attempt: Attempt, place: int, stage: Stage, body: bytes) -> tuple[int, bytes, bytes]:
    return place, body, signed(attempt.players[place].identity, attempt.cohort.h, stage, body)


def test_a_bundle_is_for_all_holders_or_a_fault() -> None:
    attempt = opened(5)
    share(attempt)
    cohort, bundle = attempt.cohort, attempt.bundles[1]
    validation.shared(cohort, *message_of(attempt, 1, "share", bundle.encoded))
    short = replace(bundle, rows=bundle.rows[:-1])
    refused(
        validation.shared,
        cohort,
        *message_of(attempt, 1, "share", short.encoded),
        match="3 peers, not for the 4",
        kind=Faulty,
    )
    refused(validation.shared, cohort, *message_of(attempt, 1, "share", b"\x04no"), match="share bundle", kind=Faulty)
    other = message_of(attempt, 2, "share", attempt.bundles[1].encoded)
    refused(validation.shared, cohort, *other, match="another device's place", kind=Faulty)
    without_own = message_of(attempt, 1, "share", replace(bundle, own=b"").encoded)
    refused(validation.shared, cohort, *without_own, match="own shares", kind=Faulty)
    place, body, signature = message_of(attempt, 1, "share", bundle.encoded)
    refused(validation.shared, cohort, 2, body, signature, match="signature", kind=BadSignature)
    refused(validation.shared, cohort, place, body[:-1] + b"\0", signature, match="signature", kind=BadSignature)


def test_in_a_ring_a_bundle_is_for_the_neighbours() -> None:
    attempt = opened(20, rule=RING, minimum_cohort=17)
    share(attempt)
    for place in range(20):
        validation.shared(attempt.cohort, *message_of(attempt, place, "share", attempt.bundles[place].encoded))
    moved = tuple((place + 1 if place + 1 < 20 else 0, *row) for place, *row in attempt.bundles[3].rows)
    wrong = Bundle(3, tuple(sorted(piece for piece in moved if piece[0] != 3)))
    refused(
        validation.shared, attempt.cohort, *message_of(attempt, 3, "share", wrong.encoded), match="bundle", kind=Faulty
    )
    own = replace(attempt.bundles[3], own=bytes(64))
    refused(validation.shared, attempt.cohort, *message_of(attempt, 3, "share", own.encoded), match="own", kind=Faulty)
    far = next(place for place in range(20) if place != 3 and place not in attempt.bundles[3].places)
    other = replace(attempt.bundles[3], owner=far)
    refused(
        validation.shared, attempt.cohort, *message_of(attempt, 3, "share", other.encoded), match="another", kind=Faulty
    )


def test_a_masked_vector_is_what_its_device_signed_for() -> None:
    attempt, _ = played(4)
    cohort, packed = attempt.cohort, attempt.players[2].packed
    bits = cohort.roster.lane_bits
    assert (39 * bits) % 8

    def arrived(
        place: int = 2, vector: bytes = packed, **changes: Any
    ) -> tuple[tuple[int, bytes, bytes], dict[str, Any]]:
        fields = {"place": place, "lanes": 39, "lane_bits": bits, "digest": hashlib.sha256(vector).digest(), **changes}
        body = MaskedInput(**fields).encoded
        return message_of(attempt, place, "mask", body), {
            "digest": hashlib.sha256(vector).hexdigest(),
            "size": len(vector),
            "last": vector[-1],
        }

    given, about = arrived()
    validation.masked(cohort, *given, **about)
    refused(
        validation.masked, cohort, *given, **{**about, "digest": "0" * 64}, match="not those that the device signed for"
    )
    refused(validation.masked, cohort, 1, *given[1:], **about, match="signature", kind=BadSignature)
    for changes, match in (
        ({"vector": packed + b"\0"}, "bytes, not"),
        ({"vector": packed[:-1] + b"\xff"}, "not zero"),
        ({"lanes": 40}, "40 lanes"),
        ({"lane_bits": bits + 1}, "lanes of"),
    ):
        given, about = arrived(**changes)
        refused(validation.masked, cohort, *given, **about, match=match, kind=Faulty)
    body = MaskedInput(1, 39, bits, hashlib.sha256(packed).digest()).encoded
    refused(
        validation.masked, cohort, *message_of(attempt, 2, "mask", body), **arrived()[1], match="place", kind=Faulty
    )
    refused(
        validation.masked,
        cohort,
        *message_of(attempt, 2, "mask", b"\x05"),
        **arrived()[1],
        match="masked input",
        kind=Faulty,
    )


def test_a_signature_stands_under_the_one_list() -> None:
    attempt, survivors = played(5, silent_masking=(4,))
    validation.agreed(attempt.cohort, *message_of(attempt, 0, "survivors", survivors.encoded), survivors)
    other = Survivors((0, 1, 2))
    refused(
        validation.agreed,
        attempt.cohort,
        *message_of(attempt, 0, "survivors", other.encoded),
        survivors,
        match="another survivor",
    )
    _, body, signature = message_of(attempt, 1, "survivors", survivors.encoded)
    refused(validation.agreed, attempt.cohort, 0, body, signature, survivors, match="signature", kind=BadSignature)


def test_one_share_of_each_dealer_is_owed() -> None:
    attempt, survivors = played(6, silent_masking=(5,))
    cohort, dealt = attempt.cohort, DealtShares(attempt.cohort.h, attempt.bundles.values())
    whole = RevealedShares.of(0, attempt.players[0].held, survivors)

    def take(revealed: RevealedShares | bytes, place: int = 0) -> None:
        body = revealed if isinstance(revealed, bytes) else revealed.encoded
        validation.revealed(cohort, *message_of(attempt, place, "unmask", body), survivors, dealt)

    take(whole)
    refused(take, replace(whole, shares=whole.shares[1:]), match="of each of 6")
    refused(take, replace(whole, place=1), match="another device's place")
    flipped = tuple((dealer, 1 - kind, piece) for dealer, kind, piece in whole.shares)
    refused(take, replace(whole, shares=flipped), match="wrong kind")
    refused(take, replace(whole, shares=((0, 0, b"\xff" * 33), *whole.shares[1:])), match="field", kind=BadShare)
    refused(take, b"\x08", match="ends too early")
    gone = RevealedShares.of(5, attempt.players[5].held, survivors)
    refused(take, gone, 5, match="not among the survivors")


@pytest.mark.parametrize(("n", "rule"), [(5, GraphRule(profile="strict")), (20, RING)])
def test_shares_reach_the_peers_that_they_are_for(n: int, rule: GraphRule) -> None:
    attempt = opened(n, rule=rule, minimum_cohort=3)
    share(attempt, silent=(2,))
    dealt = DealtShares(attempt.cohort.h, attempt.bundles.values())
    for place in range(n):
        found = Bundle.parse(dealt.to(place).encoded, n)
        wanted = {
            dealer: next(row[1:] for row in bundle.rows if row[0] == place)
            for dealer, bundle in attempt.bundles.items()
            if place in bundle.places
        }
        assert found.owner == place
        assert {dealer: tuple(row) for dealer, *row in found.rows} == wanted
        assert found.own == b""
        assert 2 not in wanted
        assert len(wanted) >= attempt.cohort.parameters.neighbours - 1


def test_a_proof_is_the_same_in_any_order() -> None:
    attempt, survivors = played(4)
    _, wanted = agree(attempt)
    assert proof(wanted.signatures[::-1]).encoded == wanted.encoded
    wanted.require(attempt.cohort, 0, survivors)


def test_every_refusal_is_one_of_ours() -> None:
    """What a peer sends never becomes a stack trace."""
    attempt, survivors = played(4)
    dealt = DealtShares(attempt.cohort.h, attempt.bundles.values())
    for size in (0, 1, 9, 40):
        junk = bytes(range(size))
        with pytest.raises(SecaggError):
            validation.shared(attempt.cohort, 0, junk, junk)
        with pytest.raises(SecaggError):
            validation.agreed(attempt.cohort, 0, junk, junk, survivors)
        with pytest.raises(SecaggError):
            validation.revealed(attempt.cohort, 0, junk, junk, survivors, dealt)
        with pytest.raises(SecaggError):
            parse_entry(junk)
