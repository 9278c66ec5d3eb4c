"""The cheating coordinator, cheat by cheat: honest devices refuse in a clear sentence, and nobody's vector comes out.

The second half is the oracles' word (``oracle``): they hold all that left honest devices and all that colluders know,
count shares, solve for vectors, and check signatures. Their own controls are in ``test_controls``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.credentials.certificate import certify
from client_sdk.device.policy import refusal
from client_sdk.device.storage import MemoryStorage
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Assignment, CheckIn, CheckpointRef, Policy, Task
from client_sdk.protocol.secure import Stage
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.complaints import Accusations, Complaint, row_digest
from client_sdk.secagg.consent import plain_refusal
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.roster import AttemptSecrets, Roster, RosterEntry, sign_advertisement
from client_sdk.secagg.shares import Bundle, SharePair, seal_pair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, Survivors
from tests.client_sdk.secagg import plans
from tests.client_sdk.secagg.attempt import FOREVER, changed, digest, entropy, numbered_list
from tests.client_sdk.secagg.cheats import Cheat, revealing
from tests.client_sdk.secagg.fleet import LEARNER, POLICY, expected
from tests.client_sdk.secagg.oracle import View, view


def safe(cheat: Cheat) -> bool:
    """Nothing is broken by all that was said so far."""
    assert cheat.verdict() == {}
    return True


# Alive and dead, rosters and lists.


def test_one_peer_called_alive_to_some_and_dead_to_others() -> None:
    """Nobody reveals anything, since no list is signed by enough."""
    cheat = Cheat(7, (5, 6))
    where = cheat.until_masked()
    for listed, found in (((0, 1, 2, 3, 4, 5, 6), (0, 1, 2)), ((1, 2, 3, 4, 5, 6), (3, 4))):
        cheat.revealed(where, cheat.signed(where, listed, found), found)
    assert cheat.refused("share holders signed the list; it takes 5", (3, 4))
    assert revealing(cheat.members[3:5]) == set()
    assert safe(cheat)


def test_one_peer_called_alive_and_then_dead_to_the_same_device() -> None:
    """Asked again, for whichever list, it says the one that it signed."""
    cheat = Cheat(5, (4,))
    plans.play_two_lists(cheat)
    for number in (1, 2, 3):
        assert len({message.body for message in cheat.members[number].log if message.stage == "survivors"}) == 1
        assert len({message.body for message in cheat.members[number].log if message.stage == "unmask"}) == 1
    assert safe(cheat)


def test_many_lists_of_which_each_is_long_enough() -> None:
    cheat = Cheat(7, (5, 6))
    plans.play_many_lists(cheat)
    assert cheat.refused("share holders signed the list", range(5))
    assert revealing(cheat.members) == set()
    assert safe(cheat)


def test_survivors_that_it_never_named_before() -> None:
    """A device that shared with nobody here, one that is not in the roster, and the victim left out of its own list."""
    cheat = Cheat(6)
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    cheat.shared(where)
    cheat.masked(where, range(5), without=(5,))
    for listed, words in (
        (range(6), "a neighbour that never shared with this device"),
        ((1, 2, 3, 4, 5), "lacks this device"),
    ):
        cheat.start(0, cheat.head)
        cheat.tell(0, "mask", cheat.listing(where, list(listed)))
        assert cheat.refused(words, (0,))
    cheat.start(0, cheat.head)
    cheat.tell(0, "mask", Survivors((0, 1, 2, 3, 4, 6)).encoded)
    assert cheat.refused("a place is not in the roster", (0,))
    assert not cheat.members[0].memory.spent
    assert safe(cheat)


def test_two_rosters_to_two_devices() -> None:
    """Their h differ: they cannot open each other's shares, and no mask would cancel."""
    cheat = Cheat(5)
    cheat.advertised(cheat.head)
    one, other = cheat.roster(cheat.head, (0, 1, 2, 3)), cheat.roster(cheat.head, (0, 1, 2, 4))
    cheat.shared(one, (1, 2, 3))
    cheat.shared(other, (0,))
    cheat.bundles[one.h][0] = cheat.bundles[other.h][0]
    cheat.masked(one, (1, 2, 3))
    assert all(cheat.stages(number)[-1] == "complain" for number in (1, 2))
    assert safe(cheat)


def test_two_rosters_to_one_device_for_one_advertisement() -> None:
    """Alive under one, dead under the other: it shares under the first for ever, and takes a second for no answer."""
    cheat = Cheat(6, (5,))
    first, second = plans.play_two_rosters(cheat)
    assert list(cheat.bundles[second.h]) == [3, 4, 5]
    assert len({message.body for message in cheat.members[0].log if message.stage == "share"}) == 1
    cheat.tell(0, "mask", second.roster.encoded)
    assert cheat.refused("this is no survivor list", (0,))
    assert cheat.members[0].live(cheat.head).roster == first.roster.encoded
    assert safe(cheat)


def test_two_lists_across_attempts_aborted_masked_again_then_both_signed() -> None:
    cheat = Cheat(6, (4, 5))
    older = cheat.until_masked()
    newer = cheat.until_masked(changed(cheat.head, attempt=1))
    cheat.completed(newer, range(6))
    for number in cheat.honest:
        cheat.start(number, older.header)
    cheat.completed(older, range(1, 6))
    assert cheat.refused("is spent there", range(4))
    assert safe(cheat)


def test_two_lists_across_attempts_with_half_of_the_devices_in_each() -> None:
    """Some are left in the older attempt, so that they can sign there, and the others in the newer: of two lists one
    lacks signatures."""
    cheat = Cheat(8, (6, 7))
    older = cheat.until_masked()
    head = changed(cheat.head, attempt=1)
    cheat.advertised(head, (0, 1, 2, 6, 7))
    newer = cheat.roster(head)
    cheat.shared(newer)
    cheat.masked(newer)
    cheat.completed(newer, (0, 1, 2, 6, 7))
    cheat.completed(older, range(8))
    assert cheat.refused("share holders signed the list", (3, 4, 5))
    assert safe(cheat)


def test_a_completed_sum_is_kept_secret_called_aborted_and_asked_for_with_one_device_less() -> None:
    cheat = Cheat(5, (4,))
    plans.play_another_attempt(cheat)
    assert cheat.refused("is spent there", (1, 2, 3))
    assert safe(cheat)


def test_the_same_where_devices_crashed_between_signing_and_sending() -> None:
    """A device is spent when it has stored its signature, not when the coordinator has received it."""
    cheat = Cheat(5, (4,))
    where = cheat.until_masked()
    for number in cheat.honest:
        cheat.members[number].crash = True
    cheat.signed(where, range(5))
    assert cheat.signatures == {}
    cheat.advertised(changed(cheat.head, attempt=1))
    assert cheat.refused("is spent there", range(4))
    cheat.advertised(cheat.head, range(4))
    cheat.signed(where, range(1, 5))
    assert [cheat.stages(number)[-1] for number in range(4)] == ["survivors"] * 4
    assert {message.body for member in cheat.members[:4] for message in member.log if message.stage == "survivors"} == {
        cheat.listing(where, range(5))
    }
    assert safe(cheat)


def test_unmasking_asked_again_with_another_list() -> None:
    cheat = Cheat(5, (4,))
    where = cheat.until_masked()
    cheat.completed(where, range(5), over=False)
    fewer = cheat.listing(where, range(1, 5))
    forged = {
        cheat.place(where, number): signed(cheat.members[number].device.signer, where.h, "survivors", fewer)
        for number in range(1, 5)  # the coordinator has got hold of all their identities
    }
    for number in (1, 2, 3):
        cheat.start(number, cheat.head)
        cheat.tell(number, "survivors", Proof(tuple(sorted(forged.items()))).encoded)
    assert cheat.refused("0 of this device's share holders signed the list", (1, 2, 3))
    plans.play_both_kinds(again := Cheat(5, (4,)))
    assert all(again.stages(number).count("unmask") == 1 for number in range(4))
    assert safe(cheat)
    assert safe(again)


def test_signatures_of_devices_that_the_list_calls_dead() -> None:
    """They stand under the list, and count for nothing."""
    cheat = Cheat(7, (5, 6))
    where = cheat.until_masked()
    body = cheat.signed(where, range(5), range(4))
    for number in (5, 6):
        signature = signed(cheat.members[number].device.signer, where.h, "survivors", body)
        cheat.signatures[where.h, body][cheat.place(where, number)] = signature
    cheat.revealed(where, body, range(4))
    assert cheat.refused("4 of this device's share holders signed the list; it takes 5", range(4))
    assert revealing(cheat.members) == set()
    assert safe(cheat)


# Rosters of the wrong devices.


def shown(changes: Callable[[Cheat, list[RosterEntry]], list[RosterEntry]], **header: Any) -> Cheat:
    """All have advertised, and device 0 is shown these entries instead."""
    cheat = Cheat(5, (4,), header)
    cheat.advertised(cheat.head)
    entries = changes(cheat, list(cheat.entries[cheat.head.digest].values()))
    ordered = tuple(sorted(entries, key=lambda entry: entry.advertisement.device))
    parameters = cheat.head.rule.parameters(len(ordered))
    roster = Roster(parameters.threshold, cheat.head.lane_bits(len(ordered)), ordered)
    cheat.tell(0, "advertise", roster.encoded)
    return cheat


def forged(cheat: Cheat, name: str, signer: DeviceKey | None = None, **advertised: bytes) -> RosterEntry:
    """An entry that the coordinator makes up, under a certificate that it writes itself."""
    key = signer if signer is not None else DeviceKey.create(entropy(name))
    made = replace(AttemptSecrets.draw(entropy((name, "keys"))).advertisement(name), **advertised)
    certificate = certify(
        DeviceKey.create(entropy("not the authority")),
        id=name,
        holder="device",
        public_key=bytes.fromhex(key.public_hex),
        not_before=0,
        not_after=FOREVER,
    ).encoded
    return RosterEntry(made, sign_advertisement(made, cheat.head.digest, key), certificate)


def colluder(cheat: Cheat, **advertised: bytes) -> RosterEntry:
    """The colluder's entry with other keys, rightly signed and certified."""
    member = cheat.members[4].device
    made = replace(cheat.entries[cheat.head.digest][4].advertisement, **advertised)
    return RosterEntry(made, sign_advertisement(made, cheat.head.digest, member.signer), member.certificate)


def twin(cheat: Cheat) -> RosterEntry:
    """The colluder once more, under another id that the authority gave it."""
    member = cheat.members[4].device
    made = AttemptSecrets.draw(entropy("twin")).advertisement("device-0005")
    certificate = cheat.authority.certify("device-0005", cast("DeviceKey", member.signer))
    return RosterEntry(made, sign_advertisement(made, cheat.head.digest, member.signer), certificate)


LOW_ORDER = (1).to_bytes(32, "little")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            lambda cheat, entries: [*entries, forged(cheat, "device-9999")],
            "does not vouch for device device-9999",
            id="a stranger",
        ),
        pytest.param(
            lambda cheat, entries: [entries[0], *(forged(cheat, f"device-{n:04d}") for n in range(1, 5))],
            "does not vouch for device device-0001",
            id="forged peers without the authority's key",
        ),
        pytest.param(
            lambda cheat, entries: [*entries, entries[3]], "not in ascending order, each once", id="a duplicate"
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], replace(entries[4], certificate=entries[3].certificate)],
            "does not vouch for device device-0004",
            id="another device's certificate",
        ),
        pytest.param(
            lambda cheat, entries: [*entries, twin(cheat)],
            "two devices of the roster have one identity",
            id="one identity under two ids",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, mask_key=LOW_ORDER)],
            "a point of low order",
            id="a mask key of low order",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, share_key=LOW_ORDER)],
            "a point of low order",
            id="a share key of low order",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, mask_key=entries[1].advertisement.mask_key)],
            "a key stands in the roster twice",
            id="another device's key",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, mask_key=entries[4].advertisement.share_key)],
            "a key stands in the roster twice",
            id="one key for both uses",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, commitment=entries[1].advertisement.commitment)],
            "a commitment stands in the roster twice",
            id="another device's commitment",
        ),
        pytest.param(
            lambda cheat, entries: [*entries[:4], colluder(cheat, nonce=entries[1].advertisement.nonce)],
            "a nonce stands in the roster twice",
            id="another device's nonce",
        ),
        pytest.param(
            lambda cheat, entries: [
                *entries[:3],
                replace(
                    entries[3],
                    advertisement=replace(entries[3].advertisement, mask_key=AgreementKey(digest("a key")).public),
                ),
                entries[4],
            ],
            "the signature of device device-0003 does not stand under what it sent",
            id="a key that its device never showed",
        ),
        pytest.param(lambda cheat, entries: entries[1:], "this device is not in the roster", id="without the device"),
        pytest.param(lambda cheat, entries: entries[:3], "takes no fewer than 4", id="a cohort below the floor"),
    ],
)
def test_a_roster_of_the_wrong_devices(
    changes: Callable[[Cheat, list[RosterEntry]], list[RosterEntry]], words: str
) -> None:
    cheat = shown(lambda cheat, entries: changes(cheat, entries), minimum_cohort=4)
    assert cheat.refused(words, (0,))
    assert cheat.stages(0) == ["advertise"]
    assert safe(cheat)


def test_a_revoked_certificate() -> None:
    """Whom the header's list names is in no roster. Who is revoked later stays in those that were accepted."""
    cheat = Cheat(4)
    cheat.authority.revoked.add("device-0003")
    newer = numbered_list(3, cheat.authority.revocations.revoked)
    head = changed(cheat.head, revocations=3, revocations_digest=newer.digest)
    cheat.advertised(head)
    cheat.shared(cheat.roster(head), (0,))
    assert cheat.refused("does not vouch for device device-0003", (0,))
    assert cheat.stages(0) == ["advertise"]
    assert safe(cheat)


def test_repro_a_device_that_is_revoked_in_the_middle_stays_in_the_attempt_also_after_a_restart() -> None:
    """Else the devices that restart leave, and those that do not restart go on."""
    cheat = Cheat(4)
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    cheat.shared(where)
    cheat.authority.revoked.add("device-0003")
    newest = replace(expected(cheat.head), revocations=numbered_list(3, cheat.authority.revocations.revoked))
    for number in range(4):
        again = cheat.start(number, cheat.head, newest)
        assert again is not None
        assert again.stage == "share"
    cheat.masked(where)
    cheat.completed(where, range(4))
    assert cheat.refusals == []
    assert cheat.stages(0)[-1] == "unmask"
    assert safe(cheat)


def test_a_header_under_an_older_or_a_forged_revocation_list() -> None:
    """Under the older list the revoked device would still be vouched for."""
    cheat = Cheat(4)
    known = expected(cheat.head)
    for changes in ({"revocations": 1}, {"revocations_digest": digest("a forged list")}):
        cheat.start(0, changed(cheat.head, **changes), known)
    cheat.start(1, cheat.head)
    cheat.at += 20
    older = changed(cheat.head, attempt=1, revocations=1)
    cheat.start(1, older)
    assert cheat.refused("another revocation list, number 1", (0,))
    assert cheat.refused("another revocation list, number 2", (0,))
    assert cheat.refused("older than number 2", (1,))
    assert cheat.stages(0) == []
    assert safe(cheat)


def test_a_lowered_threshold() -> None:
    cheat = Cheat(6, (5,))
    cheat.advertised(cheat.head)
    lowered = replace(cheat.roster(cheat.head).roster, threshold=4)
    cheat.shared(view(cheat.head, lowered.encoded))
    assert cheat.refused("the roster says threshold 4; the rule says 5", range(5))
    assert [cheat.stages(number) for number in range(5)] == [["advertise"]] * 5
    assert safe(cheat)


def test_lanes_too_narrow_for_the_sum() -> None:
    cheat = Cheat(4)
    cheat.advertised(cheat.head)
    narrowed = replace(cheat.roster(cheat.head).roster, lane_bits=17)
    cheat.shared(view(cheat.head, narrowed.encoded))
    assert cheat.refused("lanes of 17 bits; the rule says 18", range(4))
    assert safe(cheat)


def test_a_lowered_minimum_cohort() -> None:
    """Below the plan's, in a later attempt; below the owner's, in the plan itself."""
    cheat = Cheat(6, (5,), {"minimum_cohort": 5})
    known = expected(cheat.head)
    cheat.advertised(cheat.head)
    cheat.at += 20
    for number in cheat.honest:
        cheat.start(number, changed(cheat.head, attempt=1, minimum_cohort=3), known)
    assert cheat.refused("other terms than the plan", range(5))
    members = cheat.members
    members[0].device = replace(members[0].device, policy=POLICY.changed(smallest_cohort=64))
    cheat.start(0, cheat.head)
    assert cheat.refused("hides among 64 or more; the plan asks for 5", (0,))
    assert safe(cheat)


def test_a_rule_under_which_nobody_is_counted_as_colluding() -> None:
    rule = GraphRule(profile="fast", drop=1, corrupt_millionths=0, sigma=80, eta=20)
    cheat = Cheat(10, (9,), {"rule": rule, "minimum_cohort": 9})
    cheat.advertised(cheat.head)
    assert cheat.refused("against 10 % who collude; the plan counts on 0 %", range(9))
    assert safe(cheat)


# Other models, plans and rounds.


def test_a_different_model_or_plan_to_one_device() -> None:
    """The device that trained from another checkpoint, or agreed to another plan, signs another header: the others
    refuse its entry, as it refuses theirs, and none masks with it."""
    for changes in ({"model": digest("marked for device 0")}, {"plan": digest("for device 0")}):
        cheat = Cheat(5, (4,))
        other = changed(cheat.head, **changes)
        cheat.advertised(cheat.head, (1, 2, 3, 4))
        cheat.advertised(other, (0,))
        cheat.entries[cheat.head.digest][0] = cheat.entries[other.digest][0]
        cheat.entries[other.digest] = cheat.entries[cheat.head.digest]
        cheat.shared(cheat.roster(cheat.head), (1, 2, 3))
        cheat.shared(cheat.roster(other), (0,))
        assert cheat.refused("the signature of device device-0000", (1, 2, 3))
        assert cheat.refused("the signature of device device-0001", (0,))
        assert all(cheat.stages(number) == ["advertise"] for number in range(4))
        assert safe(cheat)


def test_a_header_of_another_model_or_plan_than_the_device_has() -> None:
    cheat = Cheat(4)
    for number, (what, changes) in enumerate(
        {
            "checkpoint": {"model": digest("other")},
            "plan or task": {"plan": digest("other")},
            "run": {"run": "run-2"},
        }.items()
    ):
        cheat.start(number, changed(cheat.head, **changes), expected(cheat.head))
        assert cheat.refused(f"another {what} than this device trained for", (number,))
    assert all(cheat.stages(number) == [] for number in range(4))


def test_a_replayed_round() -> None:
    """The same header after its end, an older attempt, an older round on the same checkpoint; and answers of an older
    attempt in a newer."""
    cheat = Cheat(4)
    older = cheat.until_masked()
    listed = cheat.listing(older, range(4))
    head = changed(cheat.head, attempt=1)
    cheat.advertised(head)
    newer = cheat.roster(head)
    cheat.shared(newer, (1, 2, 3))
    cheat.tell(0, "advertise", older.roster.encoded)
    assert cheat.refused("the signature of device device-0000 does not stand under what it sent", (0,))
    for number in (1, 2, 3):
        cheat.tell(number, "share", cheat.delivery(older, number))
    assert all(cheat.stages(number)[-1] == "complain" for number in (1, 2, 3))
    cheat.advertised(cheat.head)
    cheat.advertised(changed(cheat.head, round=8, attempt=5))
    assert cheat.refused("no newer than the one that this device last advertised for: a replay", range(4))
    for number in (1, 2, 3):
        cheat.start(number, head)
    cheat.masked(newer, (1, 2, 3))
    for number in (1, 2, 3):
        cheat.tell(number, "mask", listed)
    assert cheat.refused("a neighbour that never shared with this device", (1, 2, 3))
    assert safe(cheat)


def test_an_expired_round() -> None:
    """Before it began, and between signing and unmasking."""
    cheat = Cheat(5, (4,), {"expires_at": 1000})
    where = cheat.until_masked()
    body = cheat.signed(where, range(5))
    cheat.at = 1000.5
    cheat.revealed(where, body)
    assert cheat.refused("This attempt has expired", range(4))
    assert all(member.memory.live == {} for member in cheat.members[:4])
    cheat.advertised(changed(cheat.head, attempt=1, model=digest("next")))
    assert sum("expired" in message for _, message in cheat.refusals) == 8
    assert revealing(cheat.members) == set()
    assert safe(cheat)


# Shares and vectors.


Given = dict[int, tuple[bytes, bytes]]
"""Place of the dealer -> sealed pair, digests."""


def delivered(changes: Callable[[Cheat, View, Given], Given], owner: int = 0) -> Cheat:
    """All have shared, and device 0 is given these instead."""
    cheat = Cheat(5, (4,))
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    cheat.shared(where)
    given = changes(cheat, where, rows_of(Bundle.parse(cheat.delivery(where, 0), 5)))
    cheat.tell(0, "share", bundle_of(owner, given).encoded)
    return cheat


def rows_of(bundle: Bundle) -> Given:
    return {place: (sealed, digests) for place, sealed, digests in bundle.rows}


def bundle_of(owner: int, given: Given) -> Bundle:
    return Bundle(owner, tuple((place, *given[place]) for place in sorted(given)))


def resealed(cheat: Cheat, where: View, h: bytes, place: int) -> tuple[bytes, bytes]:
    """The colluder's pair, sealed for device 0 under another h, or as if device 0 stood at another place."""
    secrets, pair = cheat.members[4].drawn[where.shown[4].encoded], SharePair(bytes(33), bytes(33))
    agreed = secrets.share_key.agree(where.shown[0].share_key)
    sealed = seal_pair(agreed, h, (4, "device-0004"), (place, "device-0000"), pair)
    return sealed, pair.digests(where.h, 4, 0)


def flipped(row: tuple[bytes, bytes], which: int = 0) -> tuple[bytes, bytes]:
    """One bit changed, of the sealed pair or of the digests."""
    wrong = row[which][:40] + bytes([row[which][40] ^ 1]) + row[which][41:]
    return (row[0], wrong) if which else (wrong, row[1])


def dealt_under(cheat: Cheat, where: View, given: Given, h: bytes, dealer: int, holder: int, swap: bool) -> Given:
    """The colluder's row with digests of the same shares for another h, dealer or holder, or of the other kinds."""
    digests = SharePair(bytes(33), bytes(33)).digests(h, dealer, holder)
    return given | {4: (given[4][0], digests[32:] + digests[:32] if swap else digests)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            lambda cheat, where, given: given | {1: flipped(given[1])},
            id="a tampered ciphertext",
        ),
        pytest.param(
            lambda cheat, where, given: given | {1: rows_of(cheat.bundles[where.h][1])[2]},
            id="a share for the wrong peer",
        ),
        pytest.param(
            lambda cheat, where, given: given | {1: given[2], 2: given[1]},
            id="two dealers' shares exchanged",
        ),
        pytest.param(
            lambda cheat, where, given: given | {4: resealed(cheat, where, where.h, 1)},
            id="a share for the wrong index",
        ),
        pytest.param(
            lambda cheat, where, given: given | {4: resealed(cheat, where, digest("another h"), 0)},
            id="a share of another attempt",
        ),
        pytest.param(lambda cheat, where, given: given | {1: flipped(given[1], 1)}, id="a digest altered on the way"),
        pytest.param(
            lambda cheat, where, given: given | {1: (given[1][0], given[2][1]), 2: (given[2][0], given[1][1])},
            id="two dealers' digests exchanged",
        ),
        pytest.param(
            lambda cheat, where, given: given | {1: (given[1][0], rows_of(cheat.bundles[where.h][1])[2][1])},
            id="digests for another holder",
        ),
        pytest.param(
            lambda cheat, where, given: given | {1: (given[1][0], given[1][1][32:] + given[1][1][:32])},
            id="digests of the two kinds exchanged",
        ),
        pytest.param(
            lambda cheat, where, given: dealt_under(cheat, where, given, digest("another h"), 4, 0, swap=False),
            id="digests of the same shares under another h",
        ),
        pytest.param(
            lambda cheat, where, given: dealt_under(cheat, where, given, where.h, 3, 0, swap=False),
            id="digests of the same shares by another dealer",
        ),
        pytest.param(
            lambda cheat, where, given: dealt_under(cheat, where, given, where.h, 4, 1, swap=False),
            id="digests of the same shares for another holder",
        ),
        pytest.param(
            lambda cheat, where, given: dealt_under(cheat, where, given, where.h, 4, 0, swap=True),
            id="digests of equal shares as the other kinds",
        ),
    ],
)
def test_of_shares_that_are_not_for_this_device_it_complains_and_masks_nothing(
    changes: Callable[[Cheat, View, Given], Given],
) -> None:
    """It names all of these rows and no other. No answer of a dealer that dealt another row can follow."""
    cheat = delivered(changes)
    where = view(cheat.head, cheat.members[0].live(cheat.head).roster)
    given = rows_of(Bundle.parse(cheat.delivery(where, 0), 5))
    wrong = changes(cheat, where, given)
    said = cheat.members[0].outgoing
    assert said is not None
    assert cheat.stages(0) == ["advertise", "share", "complain"]
    complaint = Complaint.parse(said.body, 5)
    assert dict(complaint.rows) == {
        dealer: row_digest(where.h, dealer, 0, *row) for dealer, row in wrong.items() if row != given[dealer]
    }
    for dealer, _ in complaint.rows:
        cheat.tell(dealer, "share", cheat.delivery(where, dealer))
        cheat.tell(dealer, "mask", Accusations(((said.body, said.signature),)).encoded)
        assert dealer in cheat.colluding or cheat.refused("they were altered on the way", (dealer,))
        assert "open" not in cheat.stages(dealer)
    assert safe(cheat)


def test_a_device_that_fewer_than_the_threshold_have_dealt_to_refuses() -> None:
    cheat = delivered(lambda cheat, where, given: {1: given[1], 2: given[2]})
    assert cheat.refused("3 devices shared with this one; it takes 4", (0,))
    assert cheat.stages(0) == ["advertise", "share"]
    assert safe(cheat)


def test_a_delivery_that_is_for_another_device() -> None:
    cheat = delivered(lambda cheat, where, given: {2: given[2], 3: given[3], 4: given[4]}, owner=1)
    assert cheat.refused("not for this device, or not of its neighbours", (0,))
    assert safe(cheat)


def test_a_delivery_with_digests_of_the_receivers_own_shares() -> None:
    """A delivery has one form: what stands in a dealer's bundle alone is refused."""
    cheat = Cheat(5, (4,))
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    cheat.shared(where)
    whole = Bundle.parse(cheat.delivery(where, 0), 5)
    cheat.tell(0, "share", replace(whole, own=bytes(64)).encoded)
    assert cheat.refused("not for this device, or not of its neighbours", (0,))
    assert safe(cheat)


def test_a_second_masked_input_for_the_same_header() -> None:
    """Asked again, and after it was trained anew: the bytes are those that were kept."""
    cheat = Cheat(4)
    plans.play_many_vectors(cheat)
    assert len({message.blob for message in cheat.members[0].log if message.stage == "mask"}) == 1
    assert cheat.stages(0).count("mask") == 4
    cheat.members[0].values = -cheat.members[0].values
    cheat.start(0, cheat.head)
    assert len({message.blob for message in cheat.members[0].log if message.stage == "mask"}) == 1
    assert safe(cheat)


def test_a_dead_peer_that_never_shared() -> None:
    """Nobody holds anything of it, and nobody can be made to give anything."""
    cheat = Cheat(6, (5,))
    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    cheat.shared(where, range(4))
    cheat.masked(where, range(4))
    cheat.completed(where, (0, 1, 2, 3, 5))
    oracle = cheat.oracle()
    assert revealing(cheat.members) == {f"device-{number:04d}" for number in range(4)}
    assert where.shown[4].encoded not in oracle.by_holder
    assert safe(cheat)


def test_a_cohort_that_shrank_below_the_floor() -> None:
    """Fewer survivors than the plan's minimum, though more than the threshold."""
    cheat = Cheat(9, (7, 8), {"minimum_cohort": 8})
    where = cheat.until_masked()
    cheat.completed(where, range(2, 9))
    assert cheat.refused("7 survivors are too few: it takes 8", range(2, 7))
    assert revealing(cheat.members) == set()
    assert safe(cheat)


def test_in_a_fast_round_a_list_that_lacks_more_than_may_vanish() -> None:
    rule = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)
    cheat = Cheat(20, (18, 19), {"rule": rule, "minimum_cohort": 3})
    where = cheat.until_masked()
    assert where.graph.degree < 19
    cheat.completed(where, range(4, 20))
    assert cheat.refused("16 survivors are too few: it takes 17", range(4, 18))
    assert safe(cheat)


# No way back to plain.


def test_a_plain_plan_offered_to_a_device_that_has_joined_secure_rounds_of_any_learner() -> None:
    """Also where the secure round was aborted before anything was sent, and also by another coordinator."""
    cheat = Cheat(4)
    cheat.advertised(cheat.head, (0,))
    storage = MemoryStorage()
    storage.keep(lambda _: cheat.members[0].memory)
    plain = storage.load_secure().plain
    assert plain_refusal(plain, LEARNER) is not None
    offer = CheckIn(learners={LEARNER: "1", "other:net": "1"}, policy=Policy(plain=tuple(plain or ())))

    def work(learner: str) -> Assignment:
        return Assignment(
            run="run-2",
            round=1,
            device="device-0000",
            checkpoint=CheckpointRef(version=0, digest=hashlib.sha256(b"").hexdigest(), bytes=0),
            plan_digest="ab" * 32,
            task=Task(learner=learner),
            report_within_s=60,
            max_update_bytes=100,
        )

    for name in (LEARNER, "other:net"):
        assert refusal(work(name), offer) == (
            f"This device has joined secure rounds; its owner alone can let its data go in clear for {name}."
        )


def test_bytes_that_are_no_message_at_all() -> None:
    """In every exchange, and where a message of another exchange is the answer: one sentence, and nothing said."""
    for rubbish in (b"", b"\0", bytes(100), b"\x03" + b"\xff" * 60, digest("noise") * 40):
        cheat = Cheat(4)
        cheat.advertised(cheat.head)
        cheat.tell(0, "advertise", rubbish)
        where = cheat.roster(cheat.head)
        cheat.start(0, cheat.head)
        cheat.shared(where)
        cheat.tell(0, "share", rubbish)
        cheat.start(0, cheat.head)
        cheat.masked(where)
        cheat.tell(0, "mask", rubbish)
        cheat.start(0, cheat.head)
        body = cheat.signed(where, range(4))
        cheat.tell(0, "survivors", rubbish)
        assert [number for number, _ in cheat.refusals] == [0, 0, 0, 0]
        assert all(message and "Traceback" not in message and "\n" not in message for _, message in cheat.refusals)
        cheat.start(0, cheat.head)
        cheat.revealed(where, body)
        assert cheat.stages(0)[-1] == "unmask"
        assert safe(cheat)


@pytest.mark.slow
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_no_changed_bit_of_an_answer_is_taken(at: float, bit: int, cut: bool) -> None:
    """In each exchange one device is answered with one bit changed, or with the end cut off: it refuses, or (a list
    that is a list, a signature too few) it goes on by its rules, or complains of a row; the right answer is taken after
    that."""
    cheat = Cheat(4, (3,))
    complaints: list[bool] = []

    def wrong(body: bytes) -> bytes:
        place = int(at * len(body))
        return body[:place] if cut else body[:place] + bytes([body[place] ^ (1 << bit)]) + body[place + 1 :]

    def tried(stage: Stage, body: bytes) -> None:
        said = cheat.tell(0, stage, wrong(body))
        complaints.append(said is not None)
        assert said is None or (stage, said.stage) == ("share", "complain")
        cheat.start(0, cheat.head)

    cheat.advertised(cheat.head)
    where = cheat.roster(cheat.head)
    tried("advertise", where.roster.encoded)
    cheat.shared(where)
    tried("share", cheat.delivery(where, 0))
    cheat.masked(where)
    tried("mask", cheat.listing(where, range(4)))
    body = cheat.signed(where, range(4))
    proof = Proof(tuple(sorted(cheat.signatures[where.h, body].items()))).encoded
    tried("survivors", proof)
    assert len(cheat.refusals) + sum(complaints) == 4
    cheat.revealed(where, body)
    assert cheat.stages(0)[-1] == "unmask"
    assert safe(cheat)
