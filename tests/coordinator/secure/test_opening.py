"""The server's costly minute: the sum and nothing else, whatever the order and the number of threads."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.secagg.errors import BadMessage, BadShare, BadVector, SecaggError
from client_sdk.secagg.header import GraphRule
from client_sdk.secagg.lanes import cut, lane_dtype, pack, unpack
from client_sdk.secagg.quantize import WEIGHT_LIMIT
from client_sdk.secagg.survivors import RevealedShares, Survivors
from coordinator.secure import opening as subject
from coordinator.secure.opening import Lost, Sum, open_sum
from tests.client_sdk.secagg.attempt import Attempt, agree, integer_sum, lying, mask, opened, share

RING = GraphRule(profile="fast", drop=3, corrupt_millionths=100_000, sigma=20, eta=20)


def played(
    n: int = 6,
    silent_sharing: tuple[int, ...] = (),
    silent_masking: tuple[int, ...] = (),
    dimension: int = 37,
    weights: list[int] | None = None,
    **changes: Any,
) -> tuple[Attempt, Survivors]:
    attempt = opened(n, dimension=dimension, **changes)
    share(attempt, silent=silent_sharing)
    values = np.random.default_rng(n).normal(0, 0.05, (n, dimension))
    values[np.arange(n), np.arange(n) % dimension] += 0.7
    mask(attempt, values, weights or list(range(1, n + 1)), silent=silent_masking)
    survivors, _ = agree(attempt)
    return attempt, survivors


def revealed(attempt: Attempt, survivors: Survivors, places: tuple[int, ...] | None = None) -> list[RevealedShares]:
    chosen = survivors.places if places is None else places
    return [RevealedShares.of(place, attempt.players[place].held, survivors) for place in chosen]


def summed(
    attempt: Attempt,
    survivors: Survivors,
    messages: list[RevealedShares] | None = None,
    vectors: Any = None,
    workers: int = 1,
) -> Sum:
    packed = [attempt.players[place].packed for place in survivors.places]
    return open_sum(
        attempt.cohort,
        survivors,
        frozenset(attempt.bundles),
        packed if vectors is None else vectors,
        revealed(attempt, survivors) if messages is None else messages,
        workers,
    )


@settings(max_examples=40)
@given(
    q=st.integers(1, 24),
    n=st.integers(3, 8),
    workers=st.integers(1, 3),
    data=st.data(),
)
def test_the_sum_is_the_integer_sum_at_every_q(n: int, q: int, workers: int, data: st.DataObject) -> None:
    cap = data.draw(st.integers(1, 2**q - 1) | st.integers(1, WEIGHT_LIMIT))
    weights = [data.draw(st.integers(0, cap)) for _ in range(n)]
    spare = n - (2 * n // 3 + 1)
    gone = data.draw(st.permutations(range(n)))[: data.draw(st.integers(0, spare))]
    middle = data.draw(st.integers(0, len(gone)))
    attempt, survivors = played(
        n,
        tuple(gone[:middle]),
        tuple(gone[middle:]),
        dimension=data.draw(st.integers(1, 30)),
        weights=weights,
        q=q,
        weight_cap=cap,
    )
    found = summed(attempt, survivors, workers=workers)
    assert np.array_equal(found.lanes, integer_sum(attempt, survivors))
    assert found.weight == sum(weights[place] for place in survivors.places)


@pytest.mark.parametrize("gone", [(), (4,), (4, 11, 17)])
def test_a_ring_of_twenty(gone: tuple[int, ...]) -> None:
    attempt, survivors = played(20, silent_masking=gone, rule=RING, minimum_cohort=17)
    assert not attempt.cohort.parameters.complete
    found = summed(attempt, survivors, workers=2)
    assert np.array_equal(found.lanes, integer_sum(attempt, survivors))


def test_order_and_threads_change_no_bit() -> None:
    attempt, survivors = played(7, silent_masking=(2, 5))
    wanted = summed(attempt, survivors).lanes.tobytes()
    packed = [attempt.players[place].packed for place in survivors.places]
    for workers in (1, 2, 3, 9):
        again = summed(attempt, survivors, revealed(attempt, survivors)[::-1], packed[::-1], workers)
        assert again.lanes.tobytes() == wanted


def test_workers_parts_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_WHOLE", 16)
    for dimension in (14, 15, 40, 61, 62, 63, 64):
        attempt, survivors = played(4, silent_masking=(3,), dimension=dimension)
        for workers in (2, 3):
            found = summed(attempt, survivors, workers=workers)
            assert np.array_equal(found.lanes, integer_sum(attempt, survivors))


def test_masks_are_removed_by_as_many_threads_as_there_are_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, parts = subject.unmask, []

    def noted(total: Any, masks: Any, *more: Any) -> None:
        parts.append((threading.current_thread().name.partition("_")[0], total.size))
        genuine(total, masks, *more)

    monkeypatch.setattr(subject, "_WHOLE", 16)
    monkeypatch.setattr(subject, "unmask", noted)
    attempt, survivors = played(4, dimension=62)
    lanes = summed(attempt, survivors).lanes.size
    assert parts == [("MainThread", lanes)]
    parts.clear()
    summed(attempt, survivors, workers=2)
    assert sorted(parts) == [("unmask", lanes - 32), ("unmask", 32)]


def test_a_dealer_that_cannot_be_rebuilt_is_named_before_any_vector_is_read() -> None:
    attempt, survivors = played(6, silent_masking=(5,))
    messages = [lying(one, about=5) for one in revealed(attempt, survivors)]

    def never() -> Iterator[bytes]:
        raise AssertionError("a vector was read")
        yield b""

    with pytest.raises(Lost, match="that 1 devices dealt") as caught:
        summed(attempt, survivors, messages, never())
    assert caught.value.places == (5,)


def test_too_few_shares_open_nothing() -> None:
    attempt, survivors = played(6)
    assert attempt.cohort.parameters.threshold == 5
    with pytest.raises(BadShare, match="lack shares"):
        summed(attempt, survivors, revealed(attempt, survivors, (0, 1, 2, 3)))
    assert np.array_equal(
        summed(attempt, survivors, revealed(attempt, survivors, (0, 2, 3, 4, 5))).lanes, integer_sum(attempt, survivors)
    )


@pytest.mark.parametrize("lane", [-1, -2, 0])
def test_an_impossible_sum_is_refused(lane: int) -> None:
    """A device masked a vector with a wrong canary, too much weight, or values out of range."""
    attempt, survivors = played(4, q=4, weight_cap=15)
    bits = attempt.cohort.roster.lane_bits
    assert bits == 6
    vector = np.zeros(39, lane_dtype(bits))
    vector[lane] = 7 if lane == -1 else 63 - int(integer_sum(attempt, survivors)[lane])  # 4 devices reach 60
    spoiled = [attempt.players[place].packed for place in survivors.places]
    spoiled[0] = pack(_plus(spoiled[0], vector, bits), bits)
    with pytest.raises(BadVector):
        summed(attempt, survivors, vectors=spoiled)


def _plus(packed: bytes, more: Any, bits: int) -> Any:
    total = unpack(packed, more.size, bits) + more
    cut(total, bits)
    return total


def test_vectors_that_are_not_the_survivors_are_refused() -> None:
    attempt, survivors = played(4)
    packed = [attempt.players[place].packed for place in survivors.places]
    with pytest.raises(BadMessage, match="3 masked vectors are there of 4"):
        summed(attempt, survivors, vectors=packed[:3])
    with pytest.raises(SecaggError, match="bytes"):
        summed(attempt, survivors, vectors=[*packed[:3], packed[3] + b"\0"])


@pytest.mark.parametrize("fails", [False, True])
def test_rebuilt_secrets_are_gone_afterwards(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, survivors = played(4)
    kept: list[dict[int, bytes]] = []
    honest = subject._rebuilt

    def watched(*given: Any) -> Any:
        opened_ = honest(*given)
        assert len(opened_.secrets) == 4
        kept.append(opened_.secrets)
        return opened_

    monkeypatch.setattr(subject, "_rebuilt", watched)
    if fails:
        with pytest.raises(BadMessage):
            summed(attempt, survivors, vectors=[])
    else:
        summed(attempt, survivors)
    assert kept == [{}]


@pytest.mark.slow
def test_memory_stays_below_four_models() -> None:
    """A million parameters: the sum, one packed vector, a worker's part, and blocks."""
    dimension = 1_000_000
    attempt, survivors = played(3, dimension=dimension)
    message = revealed(attempt, survivors)

    def vectors() -> Iterator[bytes]:
        for place in survivors.places:
            yield bytes(bytearray(attempt.players[place].packed))  # a copy, as when it is read from a file

    for workers in (2, 3):
        tracemalloc.start()
        try:
            summed(attempt, survivors, message, vectors(), workers)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * 4 * dimension, f"{peak / 4 / dimension:.2f} models with {workers} workers"
