"""The messages of the five exchanges: one form each, every field counts, and whatever else is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.identity import DeviceKey
from client_sdk.secagg.errors import BadKey, BadMessage, BadParameters, BadShare, BadSignature, SecaggError
from client_sdk.secagg.header import AttemptHeader, GraphRule
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.quantize import StatisticRange
from client_sdk.secagg.roster import Advertisement, Roster, RosterEntry, join, sign_advertisement
from client_sdk.secagg.shamir import PRIME
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import WireReader, WireWriter, signed
from client_sdk.secagg.survivors import GONE, SURVIVED, Proof, RevealedShares, Survivors
from tests.client_sdk.secagg.attempt import Attempt, agree, changed, digest, entropy, header, mask, opened, share

GOLDEN = Path(__file__).with_name("golden.json")


def played() -> Attempt:
    """A strict attempt of 4, of whom the last vanishes after sharing."""
    attempt = opened(4, dimension=5)
    share(attempt)
    values = np.linspace(-0.9, 0.9, 20).reshape(4, 5)
    mask(attempt, values, [10, 20, 30, 40], silent=(3,))
    return attempt


def messages(attempt: Attempt) -> dict[str, bytes]:
    """Every message of the attempt, and what is signed or derived, by name."""
    cohort, first = attempt.cohort, attempt.players[0]
    survivors, proof = agree(attempt)
    bits = cohort.roster.lane_bits
    answer = MaskedInput.of(0, attempt.header.lanes, bits, first.packed)
    return {
        "header": attempt.header.encoded,
        "header digest": attempt.header.digest,
        "advertisement": cohort.roster.entries[0].advertisement.encoded,
        "advertisement signature": cohort.roster.entries[0].signature,
        "roster": cohort.roster.encoded,
        "h": cohort.h,
        "bundle": attempt.bundles[0].encoded,
        "bundle signature": signed(first.identity, cohort.h, "share", attempt.bundles[0].encoded),
        "vector": first.packed,
        "masked input": answer.encoded,
        "masked input signature": signed(first.identity, cohort.h, "mask", answer.encoded),
        "survivors": survivors.encoded,
        "proof": proof.encoded,
        "revealed": RevealedShares.of(0, first.held, survivors).encoded,
    }


def test_the_bytes_of_a_whole_attempt_are_frozen() -> None:
    """Devices of different versions of the SDK meet in one round: a change here is a new protocol name."""
    golden = {name: bytes.fromhex(value) for name, value in json.loads(GOLDEN.read_text()).items()}
    assert messages(played()) == golden


def parsers(attempt: Attempt) -> dict[str, Callable[[bytes], Any]]:
    survivors, _ = agree(attempt)
    n = attempt.cohort.n
    return {
        "header": AttemptHeader.parse,
        "advertisement": Advertisement.parse,
        "roster": Roster.parse,
        "bundle": lambda data: Bundle.parse(data, n),
        "masked input": MaskedInput.parse,
        "survivors": lambda data: Survivors.parse(data, n),
        "proof": lambda data: Proof.parse(data, n),
        "revealed": lambda data: RevealedShares.parse(data, survivors, n),
    }


PLAYED = played()
MESSAGES = messages(PLAYED)
PARSERS = parsers(PLAYED)


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_parsed_is_written_back(name: str) -> None:
    assert PARSERS[name](MESSAGES[name]).encoded == MESSAGES[name]


@pytest.mark.parametrize("name", PARSERS)
def test_too_short_and_too_long_are_refused(name: str) -> None:
    whole = MESSAGES[name]
    for length in {0, 1, len(whole) // 2, len(whole) - 1}:
        with pytest.raises(SecaggError):
            PARSERS[name](whole[:length])
    with pytest.raises(BadMessage, match=r"bytes too many|cannot hold|ends too early"):
        PARSERS[name](whole + b"\0")


@pytest.mark.parametrize("name", PARSERS)
def test_one_message_is_not_taken_for_another(name: str) -> None:
    for other, whole in MESSAGES.items():
        if other in PARSERS and other != name:
            with pytest.raises(BadMessage, match="this is no"):
                PARSERS[name](whole)


@given(name=st.sampled_from(sorted(PARSERS)), data=st.data())
def test_changed_bytes_are_refused_or_have_one_form(name: str, data: st.DataObject) -> None:
    """Whatever bytes a parser takes, it writes back: nothing has two forms. Anything else is one clear error."""
    raw = bytearray(MESSAGES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        found = PARSERS[name](bytes(raw))
    except SecaggError:
        return
    assert found.encoded == bytes(raw)


@given(data=st.binary(max_size=80))
def test_noise_is_refused(data: bytes) -> None:
    for name in PARSERS:
        try:
            assert PARSERS[name](data).encoded == data
        except SecaggError:
            continue


CHANGES: list[dict[str, Any]] = [
    {"run": "run-2", "run_digest": digest("run-1")},
    {"run_digest": digest("run-2")},
    {"round": 10},
    {"attempt": 1},
    {"model": digest("another")},
    {"plan": digest("another")},
    {"dimension": 38},
    {"codec": "rotate"},
    {"codec_version": 2},
    {"codec_seed": digest("seed")},
    {"q": 15},
    {"max_norm": 5.0},
    {"max_abs": 2.0},
    {"weight_cap": 999},
    {"rule": GraphRule(profile="fast", drop=1, corrupt_millionths=100_000, sigma=40, eta=40)},
    {"minimum_cohort": 4},
    {"groups": 3},
    {"noise": 0.5, "divisor": 3},
    {"noise": 0.5, "divisor": 3, "groups": 3},
    {"noise": 0.5, "divisor": 3, "lowest": 0.5, "highest": 8.0, "clip": 2.0},
    {"noise": 0.5, "divisor": 3, "lowest": 0.5, "highest": 8.0, "clip": 2.5, "groups": 3},
    {"revocations": 3},
    {"revocations_digest": digest("another")},
    {"expires_at": 1_800_000_001},
    {"roles": digest("roles"), "statistics": (StatisticRange(3, 2.0, True),)},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(changes))
def test_every_field_of_the_header_changes_digest_and_h(changes: dict[str, Any]) -> None:
    other = changed(header(), **changes)
    assert other.digest != header().digest
    assert PLAYED.cohort.roster.h(other) != PLAYED.cohort.roster.h(header())
    assert AttemptHeader.parse(other.encoded) == other
    assert set(CHANGES[0]) | {name for one in CHANGES for name in one} == set(AttemptHeader.__dataclass_fields__)


@pytest.mark.parametrize(
    "change",
    [{"drop": 2}, {"corrupt_millionths": 100_001}, {"sigma": 41}, {"eta": 41}],
    ids=lambda one: next(iter(one)),
)
def test_every_number_of_the_rule_changes_the_digest(change: dict[str, int]) -> None:
    rule = GraphRule(profile="fast", drop=1, corrupt_millionths=100_000, sigma=40, eta=40)
    assert header(rule=replace(rule, **change)).digest != header(rule=rule).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": 0},
        {"round": 0},
        {"minimum_cohort": 1},
        {"q": 0},
        {"weight_cap": 2**24},
        {"noise": -1.0, "divisor": 3},
        {"noise": float("nan"), "divisor": 3},
        {"noise": 1.0},
        {"divisor": 3},
        {"noise": 1.0, "divisor": 3, "q": 1},
        {"noise": 1.0, "divisor": 3, "roles": digest("roles"), "statistics": (StatisticRange(3, 2.0, True),)},
        {"max_norm": -1.0},
        {"max_abs": float("inf")},
    ],
    ids=str,
)
def test_headers_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(BadParameters):
        header(**changes)


def test_rules_that_make_no_sense() -> None:
    with pytest.raises(BadParameters):
        GraphRule(profile="loose")  # type: ignore[arg-type]
    with pytest.raises(BadParameters):
        GraphRule(profile="strict", sigma=40)
    with pytest.raises(BadParameters):
        GraphRule(profile="fast").parameters(300)


def test_a_header_with_another_cipher_is_refused() -> None:
    with pytest.raises(BadParameters, match="no cipher 'aes-128-ctr'"):
        AttemptHeader.parse(header().encoded.replace(b"aes-256-ctr", b"aes-128-ctr"))


def test_a_header_of_another_protocol_is_refused() -> None:
    other = header().encoded.replace(b"quorate-secagg-2", b"quorate-secagg-1")
    with pytest.raises(BadMessage, match="speaks quorate-secagg-2"):
        AttemptHeader.parse(other)


def test_a_header_that_names_no_noise_where_it_says_that_there_is_some() -> None:
    loud = header(noise=0.5, divisor=3).encoded
    assert AttemptHeader.parse(loud).noise == 0.5
    with pytest.raises(BadMessage, match="names a noise only where there is some"):
        AttemptHeader.parse(loud.replace(struct.pack(">d", 0.5) + bytes(3) + b"\3", bytes(11) + b"\3"))


def test_numbers_have_one_form() -> None:
    for wrong in (float("nan"), float("inf"), -0.0):
        with pytest.raises(BadMessage):
            WireWriter(1).float(wrong)
    with pytest.raises(BadMessage):
        WireReader(b"\1\x80" + bytes(7), 1, "test").float()
    for value in (-1, 256, True, 1.0):
        with pytest.raises(BadMessage):
            WireWriter(1).number(value, 1)  # type: ignore[arg-type]
    for text in ("", "é", "a\n", "x" * 256):
        with pytest.raises(BadMessage):
            WireWriter(1).text(text)
    for raw in (b"\1\0", b"\1\1\n", b"\1\1\x80"):
        with pytest.raises(BadMessage):
            WireReader(raw, 1, "test").text()


def test_fewest_survivors() -> None:
    assert header(minimum_cohort=3).fewest_survivors(300) == 201
    assert header(minimum_cohort=250).fewest_survivors(300) == 250
    fast = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)
    assert header(rule=fast).fewest_survivors(300) == 256
    assert header(rule=fast).rule.parameters(300).threshold == 71
    assert header().lane_bits(300) == 25


# The roster: what a device refuses to join.


def entries(attempt: Attempt = PLAYED) -> list[RosterEntry]:
    return list(attempt.cohort.roster.entries)


def encoded(roster: Roster) -> bytes:
    """The bytes of a roster however wrong it is."""
    return replace(roster).encoded


def with_advertisement(place: int, **changes: Any) -> bytes:
    found = entries()
    found[place] = replace(found[place], advertisement=replace(found[place].advertisement, **changes))
    return encoded(replace(PLAYED.cohort.roster, entries=tuple(found)))


def test_order_and_duplicates() -> None:
    found = entries()
    for wrong in (found[::-1], [found[0], *found], [found[0], found[2], found[1], found[3]]):
        with pytest.raises(BadMessage, match="ascending"):
            Roster.parse(encoded(replace(PLAYED.cohort.roster, entries=tuple(wrong))))
    with pytest.raises(BadMessage, match="entries"):
        Roster.parse(encoded(replace(PLAYED.cohort.roster, entries=tuple(found[:1]))))


@pytest.mark.parametrize(
    ("field", "other"), [("share_key", "share_key"), ("mask_key", "mask_key"), ("mask_key", "share_key")]
)
def test_a_key_used_twice(field: str, other: str) -> None:
    with pytest.raises(BadMessage, match="key stands in the roster twice"):
        Roster.parse(with_advertisement(1, **{field: getattr(entries()[0].advertisement, other)}))
    if field != other:
        with pytest.raises(BadMessage, match="key stands in the roster twice"):
            Roster.parse(with_advertisement(0, **{field: getattr(entries()[0].advertisement, other)}))


@pytest.mark.parametrize("field", ["commitment", "nonce"])
def test_a_commitment_or_nonce_used_twice(field: str) -> None:
    with pytest.raises(BadMessage, match=f"{field} stands in the roster twice"):
        Roster.parse(with_advertisement(1, **{field: getattr(entries()[0].advertisement, field)}))


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), b"\xff" * 32])
@pytest.mark.parametrize("field", ["share_key", "mask_key"])
def test_a_key_of_low_order_or_in_another_form(field: str, key: bytes) -> None:
    with pytest.raises(BadKey):
        Roster.parse(with_advertisement(2, **{field: key}))


def test_a_cohort_joins() -> None:
    cohort = PLAYED.cohort
    assert cohort.n == 4
    assert [cohort.place_of(f"device-{place:04d}") for place in range(4)] == [0, 1, 2, 3]
    assert cohort.identities == tuple(player.identity.public_hex for player in PLAYED.players)
    assert cohort.fewest_survivors == 3
    with pytest.raises(BadMessage, match="not in the roster"):
        cohort.place_of("device-9999")


def test_a_lowered_threshold_and_other_lanes_are_refused() -> None:
    roster, vouch = PLAYED.cohort.roster, PLAYED.authority.vouch
    with pytest.raises(BadMessage, match="threshold"):
        join(PLAYED.header, replace(roster, threshold=roster.threshold - 1), vouch)
    with pytest.raises(BadMessage, match="lanes"):
        join(PLAYED.header, replace(roster, lane_bits=roster.lane_bits - 1), vouch)


def test_a_cohort_below_the_minimum_is_refused() -> None:
    attempt = opened(4, minimum_cohort=4)
    fewer = Roster.of(attempt.header, list(attempt.cohort.roster.entries[:3]))
    with pytest.raises(BadMessage, match="no fewer than 4"):
        join(attempt.header, fewer, attempt.authority.vouch)


def test_strangers_revoked_and_forged_devices_are_refused() -> None:
    roster, authority = PLAYED.cohort.roster, PLAYED.authority
    stranger = replace(roster.entries[1], certificate=bytes(96))
    with pytest.raises(BadMessage, match="device-0001"):
        join(
            PLAYED.header, replace(roster, entries=(roster.entries[0], stranger, *roster.entries[2:])), authority.vouch
        )
    attempt = opened(4)
    attempt.authority.revoked.add("device-0002")
    with pytest.raises(BadMessage, match="device-0002"):
        join(attempt.header, attempt.cohort.roster, attempt.authority.vouch)


def test_signatures_for_another_header_or_key_are_refused() -> None:
    """An advertisement for another attempt, and one that another device signed."""
    attempt = opened(4, attempt=1)
    with pytest.raises(BadSignature, match="device-0000"):
        join(PLAYED.header, attempt.cohort.roster, PLAYED.authority.vouch)
    roster = PLAYED.cohort.roster
    forged = sign_advertisement(roster.entries[0].advertisement, PLAYED.header.digest, PLAYED.players[1].identity)
    wrong = replace(roster.entries[0], signature=forged)
    with pytest.raises(BadSignature):
        join(PLAYED.header, replace(roster, entries=(wrong, *roster.entries[1:])), PLAYED.authority.vouch)


def test_one_identity_under_two_names_is_refused() -> None:
    roster, authority = PLAYED.cohort.roster, PLAYED.authority
    double, twin = DeviceKey.create(entropy("double")), entropy("twin")
    found = list(roster.entries)
    for place in (0, 1):
        shown = replace(found[place].advertisement, nonce=twin(32))
        found[place] = RosterEntry(
            shown, sign_advertisement(shown, PLAYED.header.digest, double), authority.certify(shown.device, double)
        )
    with pytest.raises(BadMessage, match="one identity"):
        join(PLAYED.header, replace(roster, entries=tuple(found)), authority.vouch)


def test_another_roster_is_another_h() -> None:
    roster = PLAYED.cohort.roster
    hs = {roster.h(PLAYED.header), replace(roster, entries=roster.entries[:3]).h(PLAYED.header)}
    for place in range(4):
        found = list(roster.entries)
        found[place] = replace(found[place], certificate=found[place].certificate + b"\0")
        hs.add(replace(roster, entries=tuple(found)).h(PLAYED.header))
    assert len(hs) == 6


# Bundles, lists and responses.


def test_bundles_of_wrong_owners_and_orders() -> None:
    bundle = PLAYED.bundles[1]
    assert bundle.places == (0, 2, 3)
    bundle.require_for((0, 1, 2, 3))
    for holders in ((0, 1, 2), (0, 2, 3), (0, 1, 2, 3, 4)):
        with pytest.raises(BadMessage):
            bundle.require_for(holders)
    without = replace(bundle, own=b"")
    assert Bundle.parse(without.encoded, 4) == without
    without.require_for((0, 2, 3))
    with pytest.raises(BadMessage, match="own shares"):
        without.require_for((0, 1, 2, 3))
    flag = bytearray(without.encoded)
    assert flag[5] == 0
    flag[5] = 2
    with pytest.raises(BadMessage, match="flag"):
        Bundle.parse(bytes(flag), 4)
    for wrong in (
        replace(bundle, owner=0),
        replace(bundle, owner=4),
        replace(bundle, rows=bundle.rows[::-1]),
        replace(bundle, rows=(bundle.rows[0], *bundle.rows)),
        replace(bundle, rows=(*bundle.rows[:2], (4, *bundle.rows[2][1:]))),
    ):
        with pytest.raises(BadMessage):
            Bundle.parse(replace(wrong).encoded, 4)


@pytest.mark.parametrize("places", [(), (1, 0), (0, 0, 1), (0, 4)])
def test_lists_that_are_none(places: tuple[int, ...]) -> None:
    with pytest.raises(BadMessage):
        Survivors.parse(Survivors(places).encoded, 4)


def test_proofs_that_are_none() -> None:
    _, proof = agree(PLAYED)
    for wrong in (proof.signatures[::-1], (proof.signatures[0], *proof.signatures), ((4, bytes(64)),)):
        with pytest.raises(BadMessage):
            Proof.parse(Proof(wrong).encoded, 4)


def test_never_both_kinds_and_never_the_wrong_one() -> None:
    survivors, _ = agree(PLAYED)
    message = RevealedShares.of(0, PLAYED.players[0].held, survivors)
    assert [(dealer, kind) for dealer, kind, _ in message.shares] == [
        (0, SURVIVED),
        (1, SURVIVED),
        (2, SURVIVED),
        (3, GONE),
    ]
    shares = message.shares
    for wrong in (
        (*shares[:3], (3, SURVIVED, shares[3][2])),
        ((0, GONE, shares[0][2]), *shares[1:]),
        ((0, 2, shares[0][2]), *shares[1:]),
        (*shares[:3], (3, 2, shares[3][2])),
        (shares[0], (0, GONE, shares[0][2]), *shares[1:]),
        shares[::-1],
    ):
        with pytest.raises(BadMessage):
            RevealedShares.parse(RevealedShares(0, wrong).encoded, survivors, 4)
    with pytest.raises(BadMessage, match="not among the survivors"):
        RevealedShares.parse(RevealedShares(3, shares).encoded, survivors, 4)
    with pytest.raises(BadShare):
        RevealedShares.parse(RevealedShares(0, ((0, SURVIVED, PRIME.to_bytes(33, "big")),)).encoded, survivors, 4)


def test_a_masked_input_is_about_its_bytes() -> None:
    answer = MaskedInput.of(2, 7, 18, bytes(16))
    assert answer.digest != MaskedInput.of(2, 7, 18, b"\1" + bytes(15)).digest
    with pytest.raises(BadMessage):
        MaskedInput.of(2, 7, 18, bytes(15))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: value.hex() for name, value in messages(played()).items()}, indent=1) + "\n")
