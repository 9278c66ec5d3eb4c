"""Correlated noise: what it costs, against every pattern of few steps; what it is, against the matrices themselves."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.privacy.accounting import noise_for
from client_sdk.privacy.correlated import (
    MOST_PLACES,
    ROUNDING,
    Buffers,
    Independent,
    Integers,
    Pattern,
    Strategy,
    Stream,
    Tree,
    buffers_for,
    cost_of_a_step,
)

GOOGLES = Buffers(
    (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
    (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)
"""That of tests of Google's confidential federated compute."""


def drawn(step: int, level: int, size: int = 500) -> Integers:
    return np.random.default_rng([step, level]).integers(-(2**40), 2**40, size)


def patterns(of: Pattern) -> Iterator[list[int]]:
    """All sets of steps, from 0, that it permits."""
    for times in range(1, of.times + 1):
        for steps in itertools.combinations(range(of.steps), times):
            if all(after - before >= of.apart for before, after in itertools.pairwise(steps)):
                yield list(steps)


def matrix(strategy: Strategy, steps: int) -> NDArray[np.float64]:
    """C: of a tree a row for each node."""
    if isinstance(strategy, Buffers):
        column = strategy.coefficients(steps)
        return np.array(
            [[column[row - place] if row >= place else 0.0 for place in range(steps)] for row in range(steps)]
        )
    sizes = [1 << level for level in range(steps.bit_length())]
    if isinstance(strategy, Independent):
        return np.eye(steps)
    nodes = [(start, start + size) for size in sizes for start in range(0, steps - size + 1, size)]
    return np.array([[float(first <= step < end) for step in range(steps)] for first, end in nodes])


def outputs(strategy: Buffers, steps: int) -> list[Integers]:
    stream, found = Stream(strategy, 500), []
    for step in range(1, steps + 1):
        found.append(stream.noise(drawn(step, 0)))
        stream.end(found[-1])
    return found


FEW = [Pattern(*one) for one in itertools.product((1, 2, 5, 8, 12), (1, 2, 3, 5), (1, 2, 4, 12))]


@pytest.mark.parametrize("pattern", FEW, ids=str)
def test_the_sensitivity_is_that_of_the_worst_pattern(pattern: Pattern) -> None:
    for strategy in (buffers_for(pattern), GOOGLES, Tree(), Independent()):
        whole = matrix(strategy, pattern.steps)
        worst = max(np.linalg.norm(whole[:, steps].sum(axis=1)) for steps in patterns(pattern))
        claimed = math.sqrt(strategy.squares(pattern)[-1])
        if not isinstance(strategy, Tree):
            assert claimed == pytest.approx(worst, rel=1e-12)
        else:
            assert worst <= claimed * (1 + 1e-12)
            assert claimed <= 1.25 * worst


def test_it_is_that_of_vectors_too() -> None:
    """Whatever the directions of a device's updates, the same one in all steps is the worst."""
    pattern, rng = Pattern(12, 3, 4), np.random.default_rng(5)
    for strategy in (buffers_for(pattern), Tree()):
        whole = matrix(strategy, 12)
        for steps in itertools.islice(patterns(pattern), 0, None, 7):
            updates = rng.standard_normal((len(steps), 3))
            updates /= np.linalg.norm(updates, axis=1)[:, None]
            assert np.linalg.norm(whole[:, steps] @ updates) <= math.sqrt(strategy.squares(pattern)[-1]) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("steps", "apart", "rho"), [(4, 2, 4.0), (5, 2, 4.5), (7, 2, 5.5), (7, 3, 4.5)], ids=lambda value: str(value)
)
def test_trees_cost_what_google_has_published(steps: int, apart: int, rho: float) -> None:
    """Values solved by hand, of the tests of Google's confidential federated compute."""
    assert Tree().squares(Pattern(steps, apart, steps))[-1] / 2 == pytest.approx(rho)


def test_buffers_cost_what_google_has_published() -> None:
    assert GOOGLES.squares(Pattern(100, 50, 2))[-1] / 2 == pytest.approx(3.17226586, abs=1e-8)


def test_a_tree_of_many_steps_is_close_to_its_bound() -> None:
    """A device in each step: the bound is the sum of all squares."""
    steps = 64
    squares = sum((steps // size) * size * size for size in (1, 2, 4, 8, 16, 32, 64))
    assert Tree().squares(Pattern(steps, 1, steps))[-1] == squares


@pytest.mark.parametrize("steps", [1, 20, 1000])
def test_one_participation_has_the_noise_of_the_best_toeplitz_matrix(steps: int) -> None:
    """That of the coefficients of 1 / sqrt(1 - x): their sum of squares."""
    found = buffers_for(Pattern(steps, 1, 1))
    best = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, steps))])
    product = math.sqrt(found.squares(Pattern(steps, 1, 1))[-1]) * found.spread(steps)[-1]
    assert best @ best * 0.999 <= product <= best @ best * 1.002


def test_fewer_buffers_than_googles_have_no_more_noise() -> None:
    pattern = Pattern(100, 50, 2)
    ours = buffers_for(pattern)
    assert len(ours.decays) <= 5
    loss, googles = (one.squares(pattern)[-1] * one.spread(100)[-1] ** 2 for one in (ours, GOOGLES))
    assert loss < googles


def test_where_devices_are_in_each_step_noise_is_not_correlated() -> None:
    found = buffers_for(Pattern(100, 1, 100))
    assert found.squares(Pattern(100, 1, 100))[-1] == 100.0
    assert found.spread(100)[-1] == pytest.approx(10.0)


def test_noise_of_a_tree_is_that_of_the_nodes_of_each_sum() -> None:
    tree, sums = Tree(), np.zeros(500, np.int64)
    for step in range(1, 40):
        sums += tree.noise(step, drawn)
        nodes, end = np.zeros(500, np.int64), step
        while end:
            level = (end & -end).bit_length() - 1
            nodes += drawn(end, level)
            end -= 1 << level
        assert np.array_equal(sums, nodes)


def test_no_node_of_a_tree_has_the_noise_of_another() -> None:
    asked: set[tuple[int, int]] = set()
    for step in range(1, 65):
        Tree().noise(step, lambda step, level: asked.add((step, level)) or np.zeros(1, np.int64))  # type: ignore[func-returns-value]
    assert sorted(step for step, _ in asked) == list(range(1, 65))
    assert all(step % (1 << level) == 0 < step % (2 << level) or step == 64 for step, level in asked)


def test_the_noise_of_buffers_solves_their_matrix() -> None:
    strategy, steps = buffers_for(Pattern(60, 10, 3)), 60
    noise = np.array(outputs(strategy, steps), np.float64)
    independent = np.array([drawn(step, 0) for step in range(1, steps + 1)], np.float64)
    assert np.abs(matrix(strategy, steps) @ noise - independent).max() < 1.0, "less than a unit is rounded"
    for step in (1, 2, 17):
        assert np.array_equal(strategy.noise(step, drawn), noise[step - 1].astype(np.int64))


def test_the_buffers_of_a_long_run_are_found_at_once_and_no_damping_has_less_noise() -> None:
    pattern, began = Pattern(8_000, 100, 12), time.process_time()
    found = buffers_for.__wrapped__(pattern)
    assert time.process_time() - began < 2.0, "they were searched for step by step once, for seven seconds"

    def loss(one: Buffers) -> float:
        return one.squares(pattern)[-1] * float(one.spread(pattern.steps)[-1]) ** 2

    for more in (0.99997, 0.9999, 0.999):
        damped = Buffers(tuple(more * one for one in found.decays), tuple(more * one for one in found.scales))
        assert loss(found) < loss(damped)


BITS = "6acb3d4bea142b92e41bac13c7b9e7f2f13eb4c0066327e0fa7637554d24542f"


def bits() -> str:
    """A digest of the buffers of some patterns, of what a step costs, and of the noise that plans get from these."""
    found: list[float] = []
    for pattern in (Pattern(20, 3, 3), Pattern(60, 10, 3), Pattern(2000, 300, 6), Pattern(8000, 100, 12)):
        strategy = buffers_for(pattern)
        cost = cost_of_a_step(strategy, pattern)
        found += [*strategy.decays, *strategy.scales, cost, noise_for(8.0, 1e-6, cost * pattern.most())]
        found += [float(strategy.spread(pattern.steps)[-1]), strategy.largest(pattern.steps)]
    return hashlib.sha256(" ".join(map(float.hex, found)).encode()).hexdigest()


@pytest.mark.parametrize("processor", [{}, {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V4"}])
def test_buffers_and_their_noise_have_the_same_bits_on_every_machine(processor: dict[str, str]) -> None:
    """Replicas and verify compute them again, maybe with another NumPy, which adds up in another order, or on another
    processor."""
    code = "from tests.client_sdk.privacy.test_correlated import bits; print(bits())"
    told = subprocess.run([sys.executable, "-c", code], env=os.environ | processor, capture_output=True, check=True)
    assert told.stdout.decode().strip() == BITS


STRATEGIES = {"ours": buffers_for(Pattern(60, 10, 3)), "googles": GOOGLES, "tree": Tree(), "independent": Independent()}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_the_spread_is_that_of_sums_of_noise(strategy: Strategy) -> None:
    deviation, sums = 1000.0, np.zeros(20_000)
    told, largest = strategy.spread(33), strategy.largest(33)

    def normal(step: int, level: int) -> Integers:
        return np.rint(np.random.default_rng([step, level]).normal(0, deviation, 20_000)).astype(np.int64)

    for step in range(1, 34):
        noise = strategy.noise(step, normal)
        sums += noise
        assert noise.std() / deviation <= largest * 1.03
        if step in (1, 8, 15, 33):
            assert sums.std() / deviation == pytest.approx(told[step - 1], rel=0.03)


@pytest.mark.parametrize("strategy", [buffers_for(Pattern(50, 5, 4)), GOOGLES], ids=["ours", "googles"])
def test_what_the_same_outputs_take_of_other_sums_is_within_the_rounding(strategy: Buffers) -> None:
    """The proof in ``Buffers``: with other sums the same outputs come of other independent noise, off by C times the
    difference of the sums and less than 2 units in each place."""
    steps, size = 50, 500
    rng = np.random.default_rng(3)
    change = np.zeros((steps, size), np.int64)
    change[[4, 11, 30, 49]] = rng.integers(-(2**31), 2**31, (4, size))
    noise, other = outputs(strategy, steps), Stream(strategy, size)
    shift = np.zeros((steps, size))
    for step in range(steps):
        wanted = noise[step] - change[step]  # the output is the sum and this
        shift[step] = wanted - other.noise(np.zeros(size, np.int64)) - drawn(step + 1, 0)
        other.end(wanted)
    off = np.abs(shift + matrix(strategy, steps) @ change)
    assert 0 < off.max() < 2.0
    assert 2 * math.sqrt(MOST_PLACES) <= ROUNDING


def test_coefficients_that_increase_or_are_negative_are_refused() -> None:
    for bad in (Buffers((0.5,), (1.5,)), Buffers((0.5,), (-0.1,)), Buffers((1.1,), (0.1,))):
        with pytest.raises(ValueError, match="do not increase"):
            bad.squares(Pattern(10, 2, 2))


def test_a_pattern_has_at_least_one_step() -> None:
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="are 1 or more"):
            Pattern(*bad)


def test_floating_point_is_exact_up_to_a_bound() -> None:
    """What a buffer of Python's fractions gives differs by less than the bound says."""
    strategy = buffers_for(Pattern(40, 4, 4))
    sums = 2.0**47
    assert strategy.is_exact(40, sums)
    assert not strategy.is_exact(40, 2.0**53)
    exact = [Fraction(0)] * len(strategy.decays)
    rng, noise, stream = np.random.default_rng(1), np.zeros(1, np.int64), Stream(strategy, 1)
    for _ in range(40):
        drawn = rng.integers(-(2**44), 2**44, 1)
        noise = stream.noise(drawn)
        back = sum((Fraction(scale) * held for scale, held in zip(strategy.scales, exact, strict=True)), Fraction(0))
        assert abs(int(drawn[0]) - back - int(noise[0])) < 1
        stream.end(noise)
        exact = [Fraction(decay) * held + int(noise[0]) for decay, held in zip(strategy.decays, exact, strict=True)]
