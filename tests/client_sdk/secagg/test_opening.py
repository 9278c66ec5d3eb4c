"""The server's arithmetic: every secret checked, liars named where the commitment allows, masks off in any order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.lanes import cut, lane_dtype, unpack
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.opening import Opening, unmask
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.unmask import RevealedShares
from tests.client_sdk.secagg.attempt import Attempt, agree, entropy, lying, mask, opened, share


def played(n: int = 9, gone: tuple[int, ...] = (8,)) -> tuple[Attempt, Survivors]:
    attempt = opened(n, dimension=4)
    share(attempt)
    mask(attempt, np.full((n, 4), 0.25), list(range(10, 10 + n)), silent=gone)
    survivors, _ = agree(attempt)
    return attempt, survivors


def revealed_by(attempt: Attempt, place: int, survivors: Survivors) -> RevealedShares:
    return RevealedShares.of(place, attempt.players[place].held, survivors)


def opening(attempt: Attempt, survivors: Survivors, places: tuple[int, ...] | None = None) -> Opening:
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places if places is None else places:
        found.take(revealed_by(attempt, place, survivors))
    return found


def test_one_secret_of_each_and_of_the_right_kind() -> None:
    attempt, survivors = played()
    opened_ = opening(attempt, survivors).open()
    assert opened_.complete
    assert opened_.wrong == {}
    for place, player in enumerate(attempt.players):
        wanted = player.secrets.self_mask if place in survivors.members else player.secrets.mask_key.private
        assert opened_.secrets[place] == wanted
    assert opened_.secrets[0].hex() not in repr(opened_)


def test_masks_come_off_in_any_order() -> None:
    attempt, survivors = played()
    found = opening(attempt, survivors)
    masks = list(found.masks(found.open().secrets))
    assert len(masks) == 8 + 8  # eight survivors' own, and the gone one's with each of them
    bits = attempt.cohort.roster.lane_bits
    totals = []
    for order in (masks, masks[::-1]):
        total = np.zeros(6, lane_dtype(bits))
        for place in survivors.places:
            total += unpack(attempt.players[place].packed, 6, bits)
        unmask(total, order, Masker("aes-256-ctr", bits))
        cut(total, bits)
        totals.append(total)
    assert np.array_equal(*totals)
    lanes = [player.lanes for player in attempt.players if player.lanes is not None]
    assert np.array_equal(totals[0], np.sum(lanes, axis=0))


def test_shares_are_lacking_until_t_have_answered() -> None:
    attempt, survivors = played()
    assert attempt.cohort.parameters.threshold == 7
    found = opening(attempt, survivors, places=(0, 1, 2, 3, 4, 5))
    assert found.lacking == tuple(range(9))
    with pytest.raises(BadShare, match="9 devices lack"):
        found.open()
    found.take(revealed_by(attempt, 7, survivors))
    assert found.lacking == ()
    assert found.open().complete


def test_a_holder_that_lies_is_named_and_set_aside() -> None:
    attempt, survivors = played(12, gone=())
    threshold = attempt.cohort.parameters.threshold
    assert threshold == 9
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places:
        message = revealed_by(attempt, place, survivors)
        found.take(lying(message, about=3) if place == 2 else message)
    opened_ = found.open()
    assert opened_.complete
    assert opened_.wrong == {3: (2,)}
    assert opened_.secrets[3] == attempt.players[3].secrets.self_mask


def all_wrong(message: RevealedShares, kind: str) -> RevealedShares:
    """Every share that a holder reveals, changed."""

    def other(dealer: int, piece: bytes) -> bytes:
        match kind:
            case "any":
                return entropy((message.place, dealer))(32).rjust(33, b"\0")
            case "a bit":
                return piece[:-1] + bytes([piece[-1] ^ 1])
            case "zeros":
                return bytes(33)
            case _:
                return b"\xff" * 33

    return replace(
        message, shares=tuple((dealer, what, other(dealer, piece)) for dealer, what, piece in message.shares)
    )


@pytest.mark.parametrize("kind", ["any", "a bit", "zeros", "no number"])
@pytest.mark.parametrize(
    ("n", "liars"),
    [
        pytest.param(5, (1,), id="one more than t"),
        pytest.param(9, (0, 6), id="exactly t are right"),
        pytest.param(12, (0, 3, 8), id="exactly t are right of twelve"),
        pytest.param(30, (0, 1, 2, 3, 4, 5, 6, 7), id="t and one are right of thirty"),
    ],
)
def test_holders_that_lie_about_everybody_are_set_aside_while_t_right_shares_are_there(
    n: int, liars: tuple[int, ...], kind: str
) -> None:
    """Alone, a dealer's shares would be lost: half as many wrong ones can be found as there are beyond t."""
    attempt, survivors = played(n, gone=())
    assert 2 * len(liars) > n - attempt.cohort.parameters.threshold
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places:
        message = revealed_by(attempt, place, survivors)
        found.take(all_wrong(message, kind) if place in liars else message)
    opened_ = found.open()
    assert opened_.lost == ()
    assert opened_.secrets == {place: player.secrets.self_mask for place, player in enumerate(attempt.players)}
    assert set(opened_.wrong.values()) == {liars}
    assert kind == "a bit" or set(opened_.wrong) == set(range(n))


def test_a_dealer_that_lied_is_distinguished_from_holders_that_did() -> None:
    attempt, survivors = played(30, gone=())
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places:
        message = revealed_by(attempt, place, survivors)
        found.take(lying(all_wrong(message, "any") if place < 7 else message, about=20))
    opened_ = found.open()
    assert opened_.lost == (20,)
    assert opened_.wrong == {place: tuple(range(7)) for place in range(30) if place != 20}


def test_the_search_for_liars_comes_to_an_end() -> None:
    """As many lie as there are shares beyond t, of thirty: no sum, and no minutes spent."""
    attempt, survivors = played(30, gone=())
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places:
        message = revealed_by(attempt, place, survivors)
        found.take(all_wrong(message, "any") if place < 9 else message)
    assert found.open().lost == tuple(range(30))


def test_a_dealer_that_cannot_be_rebuilt_is_named() -> None:
    """Device 4 shared something else than it committed to: only its secret is lost."""
    attempt, survivors = played()
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places:
        found.take(lying(revealed_by(attempt, place, survivors), about=4))
    opened_ = found.open()
    assert not opened_.complete
    assert opened_.lost == (4,)
    assert set(opened_.secrets) == set(range(9)) - {4}


def test_responses_that_are_not_taken() -> None:
    attempt, survivors = played()
    found = opening(attempt, survivors, places=(0,))
    with pytest.raises(BadMessage, match="before"):
        found.take(revealed_by(attempt, 0, survivors))
    with pytest.raises(BadMessage, match="never shared"):
        Opening(attempt.cohort, survivors, range(1, 9))
    without = Opening(attempt.cohort, survivors, [place for place in range(9) if place != 8])
    with pytest.raises(BadMessage, match="does not hold"):
        without.take(revealed_by(attempt, 0, survivors))
    assert not without._revealed
