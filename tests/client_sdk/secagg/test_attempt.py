"""Whole attempts step by step: whatever devices vanish, the unmasked sum is the integer sum of the survivors' lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.lanes import cut, lane_dtype, unpack
from client_sdk.secagg.quantize import WEIGHT_LIMIT
from client_sdk.secagg.shares import unseal_pair
from client_sdk.secagg.survivors import Survivors
from tests.client_sdk.secagg.attempt import agree, digest, integer_sum, mask, opened, share, unmask

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)


def marked(n: int, dimension: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Each device's update: a one-hot mark of its place, on noise."""
    values = np.random.default_rng(n).normal(0, 0.05, (n, dimension))
    values[np.arange(n), np.arange(n) % dimension] += 0.7
    return values


@settings(max_examples=25)
@given(
    n=st.integers(3, 9),
    q=st.integers(1, 22),
    dimension=st.integers(1, 40),
    data=st.data(),
)
def test_the_unmasked_sum_is_the_integer_sum(n: int, q: int, dimension: int, data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 2**q - 1) | st.integers(1, WEIGHT_LIMIT))
    attempt = opened(n, q=q, dimension=dimension, weight_cap=cap)
    threshold = attempt.cohort.parameters.threshold
    gone = data.draw(st.permutations(range(n)))[: data.draw(st.integers(0, n - threshold))]
    cuts = sorted(data.draw(st.integers(0, len(gone))) for _ in range(2))
    before_sharing, before_masking, before_unmasking = gone[: cuts[0]], gone[cuts[0] : cuts[1]], gone[cuts[1] :]
    share(attempt, silent=before_sharing)
    weights = [data.draw(st.integers(0, cap)) for _ in range(n)]
    mask(attempt, marked(n, dimension), weights, silent=before_masking)
    survivors, proof = agree(attempt)
    for place in survivors.places:
        proof.require(attempt.cohort, place, survivors)
    total = unmask(attempt, survivors, silent=before_unmasking)
    assert np.array_equal(total, integer_sum(attempt, survivors))
    assert total[-1] == len(survivors) == n - len(before_sharing) - len(before_masking)
    total_weight = attempt.cohort.header.quantizer.require_possible(total, len(survivors))
    assert total_weight == sum(weights[place] for place in survivors.places)


@pytest.mark.parametrize("gone", [(), (4,), (4, 11, 17)])
def test_a_ring_of_twenty(gone: tuple[int, ...]) -> None:
    attempt = opened(20, rule=RING, minimum_cohort=17)
    assert not attempt.cohort.parameters.complete
    assert len(attempt.cohort.graph.neighbours(0)) == attempt.cohort.parameters.neighbours < 19
    share(attempt)
    mask(attempt, marked(20, 37), [500] * 20, silent=gone)
    survivors, proof = agree(attempt)
    survivors.require_enough(attempt.cohort)
    for place in survivors.places:
        proof.require(attempt.cohort, place, survivors)
    assert np.array_equal(unmask(attempt, survivors), integer_sum(attempt, survivors))


def test_a_masked_vector_looks_like_nothing_of_what_it_hides() -> None:
    """Equal inputs give unrelated vectors, and without one survivor's shares no sum comes out."""
    attempt = opened(4)
    share(attempt)
    mask(attempt, np.zeros((4, 37)), [10] * 4)
    vectors = [unpack(player.packed, 39, attempt.cohort.roster.lane_bits) for player in attempt.players]
    assert len({vector.tobytes() for vector in vectors}) == 4
    total = np.zeros(39, lane_dtype(attempt.cohort.roster.lane_bits))
    for vector in vectors:
        total += vector
    cut(total, attempt.cohort.roster.lane_bits)
    survivors, _ = agree(attempt)
    assert not np.array_equal(total, integer_sum(attempt, survivors))


def test_fewer_than_t_devices_cannot_unmask() -> None:
    attempt = opened(5)
    share(attempt)
    mask(attempt, marked(5, 37), [10] * 5)
    survivors, _ = agree(attempt)
    assert attempt.cohort.parameters.threshold == 4
    with pytest.raises(BadShare, match="too few"):
        unmask(attempt, survivors, silent=(0, 1))


def test_another_h_keeps_masks_from_cancelling() -> None:
    """One device was shown another model: what it masks under its own h does not go away."""
    attempt, other = opened(4), opened(4, model=digest("another model"))
    assert attempt.cohort.h != other.cohort.h
    for one in (attempt, other):
        share(one)
        mask(one, marked(4, 37), [10] * 4)
    attempt.players[2].packed = other.players[2].packed
    survivors, _ = agree(attempt)
    total = unmask(attempt, survivors)
    assert total[-1] != 4


def test_a_share_opens_for_its_holder_alone() -> None:
    attempt = opened(4)
    share(attempt)
    cohort = attempt.cohort
    bundle = {place: sealed for place, sealed, _ in attempt.bundles[0].rows}
    dealer = (0, cohort.device(0))

    def opens(reader: int, holder: tuple[int, str], sender: tuple[int, str], h: bytes, sealed: bytes) -> bool:
        agreed = attempt.players[reader].secrets.share_key.agree(cohort.roster.entries[0].advertisement.share_key)
        try:
            unseal_pair(agreed, h, sender, holder, sealed)
        except BadShare:
            return False
        return True

    two, three = (2, cohort.device(2)), (3, cohort.device(3))
    assert opens(2, two, dealer, cohort.h, bundle[2])
    assert not opens(3, three, dealer, cohort.h, bundle[2])
    assert not opens(2, two, dealer, cohort.h, bundle[3])
    assert not opens(2, (1, two[1]), dealer, cohort.h, bundle[2])
    assert not opens(2, (2, "device-9"), dealer, cohort.h, bundle[2])
    assert not opens(2, two, (1, dealer[1]), cohort.h, bundle[2])
    assert not opens(2, two, (0, "device-9"), cohort.h, bundle[2])
    assert not opens(2, two, dealer, digest("another h"), bundle[2])
    for place in range(len(bundle[2])):
        changed = bytearray(bundle[2])
        changed[place] ^= 0x40
        assert not opens(2, two, dealer, cohort.h, bytes(changed))


def test_a_proof_counts_holders_that_survived_and_signed_this_list() -> None:
    attempt = opened(6)
    share(attempt)
    mask(attempt, marked(6, 37), [10] * 6, silent=(5,))
    survivors, proof = agree(attempt)
    cohort = attempt.cohort
    assert cohort.parameters.threshold == 5
    proof.require(cohort, 0, survivors)
    less = type(proof)(proof.signatures[:-1])
    with pytest.raises(BadMessage, match="4 of this device's share holders"):
        less.require(cohort, 0, survivors)
    wrong = type(proof)((*proof.signatures[:-1], (4, proof.signatures[0][1])))
    with pytest.raises(BadMessage, match="4 of"):
        wrong.require(cohort, 0, survivors)
    with pytest.raises(BadMessage, match="0 of"):
        proof.require(cohort, 0, Survivors((0, 1, 2, 3, 5)))
    with pytest.raises(BadMessage, match="too few"):
        Survivors((0, 1, 2, 3)).require_enough(cohort)


def test_in_a_ring_ones_own_neighbours_and_the_whole_roster_count() -> None:
    attempt = opened(20, rule=RING, minimum_cohort=17)
    share(attempt)
    mask(attempt, marked(20, 37), [10] * 20)
    survivors, proof = agree(attempt)
    near = set(attempt.cohort.graph.neighbours(7))
    strangers = type(proof)(tuple(item for item in proof.signatures if item[0] not in near))
    with pytest.raises(BadMessage, match="0 of"):
        strangers.require(attempt.cohort, 7, survivors)
    threshold, signers = attempt.cohort.parameters.threshold, attempt.cohort.parameters.signers
    own = tuple(item for item in proof.signatures if item[0] in near)
    others = tuple(item for item in proof.signatures if item[0] not in near)

    def enough(chosen: tuple[tuple[int, bytes], ...]) -> None:
        type(proof)(tuple(sorted(chosen))).require(attempt.cohort, 7, survivors)

    assert threshold < len(own) < signers
    enough((*own, *others[: signers - len(own)]))
    enough((*own[:threshold], *others[: signers - threshold]))
    with pytest.raises(BadMessage, match=f"{threshold - 1} of this device's share holders"):
        enough((*own[: threshold - 1], *others))
    with pytest.raises(BadMessage, match=f"{signers - 1} of the roster"):
        enough((*own, *others[: signers - len(own) - 1]))
