"""The server's arithmetic: every secret checked, masks off in any order."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.lanes import cut, lane_dtype, unpack
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.opening import Opening, unmask
from client_sdk.secagg.survivors import RevealedShares, Survivors
from tests.client_sdk.secagg.attempt import Attempt, agree, lying, mask, opened, share


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
    assert opened_.lost == ()
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
        unmask(total, order, Masker(bits))
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


def test_a_dealer_whose_shares_do_not_fit_is_lost_and_nobody_else() -> None:
    """Device 4 shared something else than it committed to: only its secret is lost, whichever kind it is."""
    for gone in ((), (4,)):
        attempt, survivors = played(gone=gone)
        found = Opening(attempt.cohort, survivors, attempt.bundles)
        for place in survivors.places:
            found.take(lying(revealed_by(attempt, place, survivors), about=4))
        opened_ = found.open()
        assert not opened_.complete
        assert opened_.lost == (4,)
        assert set(opened_.secrets) == set(range(9)) - {4}


def test_the_first_t_shares_decide() -> None:
    """A share beyond the first t, by place, is not looked at."""
    attempt, survivors = played(gone=())
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places[::-1]:
        message = revealed_by(attempt, place, survivors)
        found.take(lying(message, about=4) if place > 6 else message)
    assert found.open().lost == ()
    found = Opening(attempt.cohort, survivors, attempt.bundles)
    for place in survivors.places[::-1]:
        message = revealed_by(attempt, place, survivors)
        found.take(lying(message, about=4) if place == 6 else message)
    assert found.open().lost == (4,)


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
