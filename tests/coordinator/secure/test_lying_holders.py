"""Holders that reveal wrong shares, and dealers that deal them: who is refused, who is barred, and who never is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.protocol.problems import ProblemError
from client_sdk.secagg.device import Transmit
from client_sdk.secagg.shamir import PRIME, SHARE_BYTES
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.survivors import GONE, SURVIVED, RevealedShares
from coordinator.engine import events as ev
from tests.client_sdk.secagg.attempt import entropy
from tests.coordinator.secure.test_cheats import cheating, resigned, second_round, tools
from tests.coordinator.secure.test_rounds import assert_committed
from tests.coordinator.secure.world import Phone, World

Row = tuple[int, int, bytes]
Rows = tuple[Row, ...]


def revealing(phone: Phone, change: Callable[[Rows], Rows]) -> None:
    """The device reveals what ``change`` makes of its rows, rightly signed."""

    def bend(message: Transmit, world: World) -> Transmit:
        return resigned(phone, world, message, bent(message, world, change))

    cheating(phone, "unmask", bend)


def bent(message: Transmit, world: World, change: Callable[[Rows], Rows]) -> bytes:
    secure = world.state.secure
    assert secure is not None
    survivors = world.requests._attempts.groups(secure)[0].survivors(secure)
    revealed = RevealedShares.parse(message.body, survivors, world.n)
    return replace(revealed, shares=change(revealed.shares)).encoded


def dealing(phone: Phone, change: Callable[[Bundle], Bundle]) -> None:
    """The device deals what ``change`` makes of its bundle, rightly signed."""

    def bend(message: Transmit, world: World) -> Transmit:
        return resigned(phone, world, message, change(Bundle.parse(message.body, world.n)).encoded)

    cheating(phone, "share", bend)


def random_bytes(rows: Rows) -> Rows:
    return tuple(
        (dealer, kind, entropy((dealer, kind))(SHARE_BYTES - 1).rjust(SHARE_BYTES, b"\0")) for dealer, kind, _ in rows
    )


def one_bit(rows: Rows) -> Rows:
    """Of the last dealer's share alone."""
    dealer, kind, share = rows[-1]
    return (*rows[:-1], (dealer, kind, share[:-1] + bytes([share[-1] ^ 1])))


def two_swapped(rows: Rows) -> Rows:
    """The shares of the first two dealers."""
    (one, kind, first), (other, same, second), *rest = rows
    return ((one, kind, second), (other, same, first), *rest)


def refused(phone: Phone, words: str) -> bool:
    return any(f"invalid-update: {words}" in refusal for refusal in phone.refusals)


# ------------------------------------------------------------ holders


def test_repro_one_lying_holder_gets_nobody_barred() -> None:
    """Of nine, two vanish after masking and one reveals random bytes: all nine were barred."""
    world = World(9)
    for phone in world.phones[:2]:
        phone.stops = "survivors"
    liar = world.phones[4]
    revealing(liar, random_bytes)
    world.play(second_round)
    assert refused(liar, "9 of 9 revealed shares are not those that were dealt; the first is of device device-0000")
    assert world.happened(ev.OpeningFailed) == []
    assert "6 of 9 survivors revealed their shares" in world.reasons[0]
    assert world.state.barred == {}
    assert world.state.version == 0
    world.assert_clean()


def other_kind(phone: Phone) -> Callable[[Rows], Rows]:
    """The share of the other secret, under the name of the one that is owed."""

    def change(rows: Rows) -> Rows:
        pairs = {(pair.self_mask, pair.mask_key)[kind]: pair for pair in phone.pairs for kind in (SURVIVED, GONE)}
        return tuple(
            (dealer, kind, (pairs[share].mask_key, pairs[share].self_mask)[kind]) for dealer, kind, share in rows
        )

    return change


@pytest.mark.parametrize("place", [0, 4, 8])
@pytest.mark.parametrize("lie", ["random bytes", "one bit", "two dealers' shares swapped", "the other kind"])
def test_a_wrong_share_is_refused_on_arrival_and_costs_nobody_the_round(place: int, lie: str) -> None:
    world = World(9)
    liar = world.phones[place]
    changes = {
        "random bytes": random_bytes,
        "one bit": one_bit,
        "two dealers' shares swapped": two_swapped,
        "the other kind": other_kind(liar),
    }
    revealing(liar, changes[lie])
    world.play()
    count = {"one bit": 1, "two dealers' shares swapped": 2}.get(lie, 9)
    first = "device-0008" if lie == "one bit" else "device-0000"
    assert refused(liar, f"{count} of 9 revealed shares are not those that were dealt; the first is of device {first}")
    assert liar.name not in {event.device for event in world.happened(ev.Revealed)}
    assert world.state.barred == {}
    assert len(world.survivors()) == 9
    assert_committed(world)


def test_many_lying_holders_cost_nobody_the_round_while_t_are_left() -> None:
    """Of twelve, nine shares rebuild a secret, and three lie, each in its own way."""
    world = World(12)
    for place, change in ((0, random_bytes), (5, one_bit), (11, two_swapped)):
        revealing(world.phones[place], change)
    world.play()
    assert {event.device for event in world.happened(ev.Revealed)} <= {
        phone.name for place, phone in enumerate(world.phones) if place not in (0, 5, 11)
    }
    assert world.state.barred == {}
    assert_committed(world)


def test_a_device_whose_wrong_shares_were_refused_may_send_the_right_ones() -> None:
    """Of four, three shares rebuild a secret, and one device vanishes: the liar's are needed."""
    world = World(4)
    world.phones[3].stops = "unmask"
    phone = world.phones[1]
    tried: list[str] = []

    def bend(message: Transmit, w: World) -> Transmit:
        before, kept = w.state, set(w.blobs.digests())
        with pytest.raises(ProblemError, match="1 of 4 revealed shares") as caught:
            w.hear(phone, resigned(phone, w, message, bent(message, w, one_bit)))
        tried.append(caught.value.kind)
        assert w.state is before, "it is not counted"
        assert set(w.blobs.digests()) == kept, "and not stored"
        return message

    def hear_once(message: Transmit, w: World) -> Transmit:
        phone.bend = None
        return bend(message, w) if message.stage == "unmask" else message

    phone.bend = lambda message, w: hear_once(message, w) if message.stage == "unmask" else message
    world.play()
    assert tried == ["invalid-update"]
    assert_committed(world)


# ------------------------------------------------------------ dealers


def scattered() -> Callable[..., list[bytes]]:
    """Shares that are on no polynomial of the degree that they should have."""

    def split(secret: bytes, holders: Any, threshold: int, draw: Any) -> list[bytes]:
        return [(entropy(("scattered", x))(SHARE_BYTES - 1)).rjust(SHARE_BYTES, b"\0") for x in holders]

    return split


def not_through_the_secret(honest: Any) -> Callable[..., list[bytes]]:
    """Shares of one polynomial whose constant is another secret."""

    def split(secret: bytes, *given: Any) -> list[bytes]:
        found: list[bytes] = honest(hashlib.sha256(secret).digest(), *given)
        return found

    return split


def one_off(honest: Any) -> Callable[..., list[bytes]]:
    """Right shares, but for the first holder's."""

    def split(*given: Any) -> list[bytes]:
        first, *rest = honest(*given)
        return [((int.from_bytes(first, "big") + 1) % PRIME).to_bytes(SHARE_BYTES, "big"), *rest]

    return split


@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("lie", ["on no polynomial", "of another secret", "one share off"])
def test_a_dealer_is_barred_where_t_shares_that_match_its_digests_disprove_it(lie: str, vanishes: bool) -> None:
    """Of its self-mask secret where it survives, of its mask key where it vanishes."""
    world = World(6)
    cheat = world.phones[2]
    honest = cheat.member.device.primitives.split
    tools(
        cheat,
        split={
            "on no polynomial": scattered(),
            "of another secret": not_through_the_secret(honest),
            "one share off": one_off(honest),
        }[lie],
    )
    if vanishes:
        cheat.stops = "mask"
    world.play(second_round)
    assert world.happened(ev.Complained) == [], "what it sealed is what it signed the digests of"
    assert [event.lost for event in world.happened(ev.OpeningFailed)] == [(cheat.name,)]
    assert set(world.state.barred) == {cheat.name}
    assert cheat.name in world.reasons[0]
    assert world.state.version == 0
    world.assert_clean()


def with_digests(bundle: Bundle, holders: set[int]) -> Bundle:
    """The bundle with other digests for these holders."""
    return replace(
        bundle,
        rows=tuple((place, sealed, bytes(64) if place in holders else found) for place, sealed, found in bundle.rows),
    )


def test_a_dealer_whose_digests_do_not_match_what_it_sealed_to_many_is_left_out() -> None:
    world = World(6)
    cheat = world.phones[1]
    dealing(cheat, lambda bundle: with_digests(bundle, {0, 3, 4}))
    world.play()
    complaints = world.happened(ev.Complained)
    assert len(complaints) >= 2
    assert {event.dealers for event in complaints} == {(cheat.name,)}
    assert {event.device for event in complaints} <= {world.phones[place].name for place in (0, 3, 4)}
    assert world.state.barred == {}
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {cheat.name}
    assert_committed(world)


def test_a_dealer_whose_digests_do_not_match_what_it_sealed_to_one_is_out_and_that_one_is_not() -> None:
    """No pair that it can open has the digests that it signed."""
    world = World(8)
    dealer, victim = world.phones[1], world.phones[4]
    dealing(dealer, lambda bundle: with_digests(bundle, {4}))
    world.play()
    assert [(event.device, event.dealers) for event in world.happened(ev.Complained)] == [(victim.name, (dealer.name,))]
    assert len(world.happened(ev.Announced)) == 1
    assert set(world.survivors()) == {phone.name for phone in world.phones} - {dealer.name}
    assert world.state.barred == {}
    assert_committed(world)


def test_a_dealer_with_wrong_digests_of_its_own_shares_can_only_silence_itself() -> None:
    """Nobody but itself holds these shares, so nobody complains, and what it reveals is refused."""
    world = World(6)
    cheat = world.phones[1]
    dealing(cheat, lambda bundle: replace(bundle, own=bytes(64)))
    world.play()
    assert refused(cheat, "1 of 6 revealed shares are not those that were dealt; the first is of device device-0001")
    assert world.state.barred == {}
    assert_committed(world)


# ------------------------------------------------------------ honest devices


def test_dealers_and_holders_that_collude_disprove_no_honest_dealer() -> None:
    """All but one of six collude, and even know the honest device's shares: no other share passes for one of them, so
    whatever is counted gives its secret."""
    world = World(6)
    honest = world.phones[2]
    for phone in world.phones:
        if phone is not honest:
            revealing(phone, lambda rows: tuple(row if row[0] != 2 else (*row[:2], rows[0][2]) for row in rows))
    world.play(second_round)
    for phone in world.phones:
        assert phone is honest or refused(phone, "1 of 6 revealed shares are not those that were dealt")
    assert world.state.barred == {}
    assert "1 of 6 survivors revealed their shares" in world.reasons[0]
