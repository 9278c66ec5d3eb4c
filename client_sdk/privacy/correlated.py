"""Noise that is correlated over the steps of a run (DP-FTRL): for the same privacy each model has less of it than by
independent noise in each step, and nothing is assumed of who is sampled.

A strategy is a lower triangular matrix C. With g_t the sum of step t, C g + z is released, z of independent discrete
Gaussian noise; what the steps are made of follows from that. In terms of noise, step t gets g_t + w_t with C w = z.
A device that takes part in steps T adds to C g a vector of norm at most

    sensitivity = max over T of |C u_T|,    u_T the indicator of T,

times the norm of an update, where C is not negative (Choquette-Choo et al. 2023, arXiv:2211.06530, corollary 2.1). T
has at most so many steps, and so many steps from one to the next. Steps may be chosen after what was released before:
each row of C g + z is a Gaussian release whose cost is bounded, and the bounds of all rows are, together, that of the
worst T (Whitehouse et al. 2023, arXiv:2203.05481, theorem 1). So a run is sensitivity^2 / 2 z^2-zCDP, z the noise
multiplier.

Two strategies: *tree* (Kairouz et al. 2021, arXiv:2103.00039), and *blt*, a buffered linear Toeplitz matrix
(Dvijotham et al. 2024, arXiv:2404.16706; McMahan, Xu, Zhang 2024, arXiv:2408.08868).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Draw = Callable[[int, int], Integers]
"""(step, level) -> the independent noise of that step and level: the same whenever it is asked for."""

ROUNDING = 1 << 20
"""Units of the sum that are added to the norm of an update for what *blt* rounds: see ``Buffers``."""
MOST_PLACES = 1 << 38
"""The most steps times values with which ``ROUNDING`` is enough."""
MOST_STEPS = 100_000
"""For which buffers are looked for within some seconds."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """In which of a run's steps a device may take part. ``ValueError`` where a number is below 1."""

    steps: int
    apart: int
    """At least so many steps from one in which it counts to the next: 1 is in each."""
    times: int
    """At most so often."""

    def __post_init__(self) -> None:
        if min(self.steps, self.apart, self.times) < 1:
            raise ValueError(f"steps, apart and times are 1 or more, not {self.steps}, {self.apart}, {self.times}")

    def most(self) -> int:
        """How often it takes part at most."""
        return min(self.times, -(-self.steps // self.apart))


class Strategy(Protocol):
    """A matrix C, and the noise w of which C w = z."""

    def __hash__(self) -> int: ...

    def squares(self, pattern: Pattern) -> Floats:
        """At least the largest |C u_T|^2, of all T that the pattern permits with at most 1, 2, ..., ``pattern.most()``
        steps."""

    def spread(self, steps: int) -> Floats:
        """The deviation of the noise in the sum of the first t sums, over that of z, for t = 1 to ``steps``."""

    def largest(self, steps: int) -> float:
        """The largest deviation of the noise of one step, over that of z."""

    def noise(self, step: int, draw: Draw) -> Integers:
        """w of this step, from 1."""


@dataclass(frozen=True, slots=True)
class Independent:
    """C is the identity."""

    def squares(self, pattern: Pattern) -> Floats:
        found: Floats = np.arange(1.0, pattern.most() + 1)
        return found

    def spread(self, steps: int) -> Floats:
        found: Floats = np.sqrt(np.arange(1.0, steps + 1))
        return found

    def largest(self, steps: int) -> float:
        return 1.0

    def noise(self, step: int, draw: Draw) -> Integers:
        return draw(step, 0)


@dataclass(frozen=True, slots=True)
class Tree:
    """Each node of a binary tree over the steps is released: the sum of its steps, with noise of its own. The sum of
    the first t sums is made of the nodes that t in binary has, so noise in it grows with the logarithm of t alone.
    Nodes that no such sum needs are accounted for, and never drawn."""

    def squares(self, pattern: Pattern) -> Floats:
        """By levels. A node of 2^l steps has at most ceil(2^l / apart) steps of a device, and all whole nodes of a
        level together as many as fit into their steps: the sum of squares is largest where nodes are full."""
        times = np.arange(1, pattern.most() + 1)
        squares = np.zeros(times.size)
        for level in range(pattern.steps.bit_length()):
            size = 1 << level
            most = np.minimum(times, -(-size // pattern.apart))
            full, left = np.divmod(np.minimum(times, -(-(pattern.steps // size * size) // pattern.apart)), most)
            squares += full * most * most + left * left
        return squares

    def spread(self, steps: int) -> Floats:
        return np.sqrt([float(step.bit_count()) for step in range(1, steps + 1)])

    def largest(self, steps: int) -> float:
        return math.sqrt(steps.bit_length())

    def noise(self, step: int, draw: Draw) -> Integers:
        """The noise of the nodes that end with this step and begin as the sum of the first t sums needs them, less that
        of those in the sum before which it no longer has."""
        level = (step & -step).bit_length() - 1
        found = draw(step, level)
        for below in range(level):
            found = found - draw(step - (1 << below), below)
        return found


@dataclass(frozen=True, slots=True)
class Buffers:
    """The Toeplitz matrix with 1 on its diagonal, and sum_j scales_j decays_j^(i-1) at i below it. Its noise takes a
    buffer of the size of the model for each j:

        w_t = z_t - round(sum_j scales_j B_j),    then B_j := decays_j B_j + w_t.

    Rounding, and the buffers' floating point, make that differ by less than 1 unit from what is linear in w, as long as
    ``is_exact``. So what a device adds to z for the same output is C u and less than 2 units more in each place: at
    most 2 sqrt(steps values), which is ``ROUNDING``.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def coefficients(self, steps: int) -> Floats:
        """The first column of C."""
        found = np.zeros(steps)
        for decay, scale in zip(self.decays, self.scales, strict=True):
            found[1:] += scale * _powers(decay, steps - 1)
        found[0] = 1.0
        return found

    def inverse(self, steps: int) -> Floats:
        """The first column of the inverse of C."""
        buffers, found = [0.0] * len(self.decays), np.zeros(steps)
        for step in range(steps):
            value = float(step == 0)
            for scale, buffer in zip(self.scales, buffers, strict=True):
                value -= scale * buffer
            buffers = [decay * buffer + value for decay, buffer in zip(self.decays, buffers, strict=True)]
            found[step] = value
        return found

    def squares(self, pattern: Pattern) -> Floats:
        """Those of a device which takes part as early and as often as it may: the worst, where coefficients are not
        negative and do not increase (Kalinin, Lampert 2024, arXiv:2405.13763, theorem 2). ValueError where they do."""
        column, found = self.coefficients(pattern.steps), np.empty(pattern.most())
        if column.min() < 0 or np.diff(column).max(initial=0.0) > 0:
            raise ValueError("the coefficients of a strategy are not negative and do not increase")
        image = np.zeros(pattern.steps)
        for time in range(found.size):
            image[time * pattern.apart :] += column[: pattern.steps - time * pattern.apart]
            found[time] = _sum(image * image)
        return found

    def spread(self, steps: int) -> Floats:
        return np.sqrt(np.cumsum(np.cumsum(self.inverse(steps)) ** 2))

    def largest(self, steps: int) -> float:
        return math.sqrt(_sum(self.inverse(steps) ** 2))

    def is_exact(self, steps: int, sums: float) -> bool:
        """Whether floating point changes what is rounded by less than half a unit, where no sum of noise of successive
        steps is beyond ``sums`` units: a buffer is at most twice that, and each step adds an error of 2^-52 of it,
        which decays as the buffer does. A buffer that does not decay holds whole numbers, and has none."""
        kept = (min(steps, 1 / (1 - decay)) if decay < 1 else 0.0 for decay in self.decays)
        lost = sum(scale * (times + len(self.scales)) for scale, times in zip(self.scales, kept, strict=True))
        return 2 * sums < 2.0**53 and lost * 2 * sums * 2.0**-52 < 0.5

    def noise(self, step: int, draw: Draw) -> Integers:
        """Draws the noise of all steps before again: ``Stream`` does not."""
        found = draw(1, 0)
        stream = Stream(self, found.size)
        for later in range(2, step + 1):
            stream.end(found)
            found = stream.noise(draw(later, 0))
        return found


def _early_and_often(column: Floats, pattern: Pattern) -> float:
    """|C u|^2 of the Toeplitz matrix with this first column, u that of the earliest steps."""
    steps, apart = pattern.steps, pattern.apart
    rows = np.concatenate([column, np.zeros(-steps % apart)]).reshape(-1, apart)
    image = rows.cumsum(axis=0).ravel()[:steps]  # of a device that goes on for ever
    over = min(steps, pattern.most() * apart)
    image[over:] -= image[: steps - over].copy()
    return _sum(image * image)


def _powers(base: float, count: int) -> Floats:
    """Those from 0 on."""
    found = np.full(count, base)
    found[:1] = 1.0
    return found.cumprod()


def _sum(values: Floats) -> float:
    """In an order that is written here. That of a sum or a product of NumPy is the processor's."""
    rows = np.concatenate([values, np.zeros(-values.size % _COLUMNS)]).reshape(-1, _COLUMNS)
    return math.fsum(rows.cumsum(axis=0)[-1].tolist())


class Stream:
    """The noise of a buffered strategy, step by step."""

    def __init__(self, strategy: Buffers, size: int) -> None:
        self._strategy = strategy
        self._buffers = np.zeros((len(strategy.decays), size))

    def noise(self, drawn: Integers) -> Integers:
        """w of the step under way, of its independent noise."""
        back = np.zeros(drawn.size)
        for scale, buffer in zip(self._strategy.scales, self._buffers, strict=True):
            back += scale * buffer
        return drawn - np.rint(back).astype(np.int64)

    def end(self, noise: Integers) -> None:
        """Ends the step, whose noise is w."""
        for decay, buffer in zip(self._strategy.decays, self._buffers, strict=True):
            buffer *= decay
            buffer += noise


_APART = 2
"""Between the logarithms of two rates of decay."""
_SLOWEST = Decimal("0.25")
"""Over the number of steps: slower rates are one buffer that does not decay."""
_FASTEST = 4
_DAMPING = (*(1 - power for power in _powers(math.sqrt(math.sqrt(0.5)), 61).tolist()), 1.0)
_DIGITS = Context(prec=40)
_COLUMNS = 1024


@lru_cache(maxsize=64)
def buffers_for(pattern: Pattern) -> Buffers:
    """Few buffers, of which the noise in the sum of all steps is near the least for this pattern: the same bits on
    every machine, since replicas and ``quorate verify`` make the noise of a run from them. So logarithms and
    exponentials are those of ``decimal``, which rounds correctly, and all else is additions, products and roots.

    The matrix with the coefficients r_i of 1 / sqrt(1 - x) is the best Toeplitz matrix for one participation, but for a
    factor that goes to 1 (Fichtenberger, Henzinger, Upadhyay 2023, arXiv:2202.11205). They are moments,

        r_i = 1/pi int_0^1 s^(i - 1/2) (1 - s)^(-1/2) ds,

    so with s = exp(-exp(v)) the trapezoidal rule in v gives few positive scales. Where devices take part again, steps
    should lean less on those long before: the coefficients are a^i r_i, with the a, of 62, that has the least noise.
    Those of the inverse are then a^i times the inverse's too. With a = 0 there is no correlation."""
    with localcontext(_DIGITS):
        width = _APART / Decimal(math.pi)
        slowest = _SLOWEST / pattern.steps
        count = max(1, math.ceil((_FASTEST / slowest).ln() / _APART))
        rates = [slowest * Decimal(_APART * (2 * part + 1) / 2).exp() for part in range(count)]
        exact = [(Decimal(1), width * slowest.sqrt())]
        exact += [((-rate).exp(), width * rate * (rate * -3 / 2).exp() / (1 - (-rate).exp()).sqrt()) for rate in rates]
    decays, scales = (tuple(map(float, several)) for several in zip(*exact, strict=True))
    alone = Buffers(decays, scales)
    column, inverse = alone.coefficients(pattern.steps), alone.inverse(pattern.steps)

    def loss(damping: float) -> float:
        powers = _powers(damping, pattern.steps)
        return _early_and_often(powers * column, pattern) * _sum(np.cumsum(powers * inverse) ** 2)

    best = min(_DAMPING, key=loss)
    return Buffers(tuple(best * decay for decay in decays), tuple(best * scale for scale in scales))


@lru_cache(maxsize=256)
def cost_of_a_step(strategy: Strategy, pattern: Pattern) -> float:
    """By how much each step of a device counts, so that its steps together count at least as their sensitivity squared,
    however many of those that the pattern permits it takes part in: the largest average."""
    squares = strategy.squares(pattern)
    return float((squares / np.arange(1, squares.size + 1)).max())
