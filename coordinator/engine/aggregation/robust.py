"""Rules over whole updates that withstand a minority of wrong ones: Krum, the geometric median, centered clipping.

All three look at the updates by their Gram matrix alone (``combining.gram``), which has the same bits on every machine.
What is added here in float64 is rounded once (``_sums``), so the order of the updates changes no bit. None takes
weights: the papers' bounds count devices, and sizes are self-reported.

Distances are over parameters. Statistics get the mean with the weights that a rule gives to their updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from client_sdk.tensors.exact_sum import RANGE, TOTAL_LIMIT
from client_sdk.tensors.floats import Float32
from coordinator.engine.aggregation.combining import Float64, Needs, Updates, dots, gram, norm
from coordinator.engine.aggregation.parameters import Parameter, Settings

_LARGEST = TOTAL_LIMIT / 2.0**33
"""The most that the weighted magnitudes of an exact sum add up to: half of what it holds, for the rounding of weights.
"""
_FINEST = 28
"""Weights are whole multiples of at least 2^-_FINEST of their sum."""


class Krum:
    """Krum, and with ``keep`` above 1 multi-Krum (Blanchard et al. 2017, arXiv:1703.02757): the mean of the ``keep``
    updates that have the least sum of squared distances to their n - ``wrong`` - 2 nearest neighbours.

    It withstands ``wrong`` of n >= 2 ``wrong`` + 3 updates, whatever they are. Updates of equal scores are kept alike,
    so more than ``keep`` may be.
    """

    needs: Needs = "whole"
    takes_weights = False
    holds = 0
    parameters: Mapping[str, Parameter] = {
        "wrong": Parameter(meaning="f: how many updates may be wrong", least=0, below=10_000, whole=True),
        "keep": Parameter(meaning="m: of how many the mean is taken", default=1, least=1, below=10_000, whole=True),
    }

    def fewest(self, settings: Settings) -> int:
        return int(settings["wrong"] + max(settings["wrong"] + 3, settings["keep"]))

    def withstands(self, settings: Settings, count: int) -> int:
        return int(settings["wrong"])

    def delta(self, updates: Updates, settings: Settings) -> Float32:
        products = gram(updates)
        squares = products.diagonal()
        distances = np.sort(np.maximum(squares[:, None] + squares - 2 * products, 0), axis=1)
        scores = _sums(distances[:, 1 : len(squares) - int(settings["wrong"]) - 1])  # the nearest is the update itself
        kept = scores <= np.sort(scores)[int(settings["keep"]) - 1]
        return updates.sum(kept).read(0, updates.elements)


class GeometricMedian:
    """The geometric median (RFA: Pillutla et al. 2022, arXiv:1912.13445), by the smoothed Weiszfeld algorithm.

    It begins with the mean v and repeats, ``iterations`` times::

        beta_k = 1 / max(nu, |v - x_k|)
        v = sum_k beta_k x_k / sum_k beta_k

    While fewer than half of the updates are wrong, v stays within a multiple of the spread of the others, however far
    off the wrong ones are. The paper makes few iterations, since each is a round with the devices; here each takes n^2
    products. nu is ``smoothing``.

    v is kept as its weights, and |v - x_k|^2 comes from the Gram matrix: a distance is off by at most about 2^-18 of
    |x_k| plus the weighted mean of all norms, where it is near 0, and far less elsewhere. The last weights become whole
    numbers (``_mean``).
    """

    needs: Needs = "whole"
    takes_weights = False
    holds = 0
    parameters: Mapping[str, Parameter] = {
        "iterations": Parameter(meaning="how often the weights are made", default=32, least=1, below=1001, whole=True),
        "smoothing": Parameter(
            meaning="nu: a distance that is less counts as this", default=1e-6, least=1e-12, below=1e6
        ),
    }

    def fewest(self, settings: Settings) -> int:
        """Of two updates neither is the minority."""
        return 3

    def withstands(self, settings: Settings, count: int) -> int:
        return (count - 1) // 2

    def delta(self, updates: Updates, settings: Settings) -> Float32:
        products = gram(updates)
        shares = np.full(len(products), 1 / len(products))
        for _ in range(int(settings["iterations"])):
            beta = 1 / np.maximum(settings["smoothing"], _distances(products, shares))
            shares = beta / math.fsum(beta)
        return _mean(updates, shares, products)


class CenteredClipping:
    """Centered clipping (Karimireddy et al. 2021, arXiv:2012.10333, equation 3). From v = 0, or with ``remember`` from
    the last round's aggregate as in the paper, ``iterations`` times::

        v <- v + 1/n sum_k (x_k - v) min(1, radius / |x_k - v|)

    Each update moves v by at most ``radius`` / n an iteration, whatever it is, so f wrong ones move it by at most
    ``radius`` f / n. From zero, ``iterations`` moves of at most ``radius`` must reach to the updates; from the last
    aggregate only to what has changed, so ``radius`` may be that of the updates' spread. Against errors that are small
    and the same in each round (ALIE) the paper has the devices' momentum too, which they do not keep.

    v is kept as weights, whose sum is below 1 where something is clipped, and as the part that is left of what it began
    with; statistics get the mean with these weights. Errors are those of ``GeometricMedian``.
    """

    needs: Needs = "whole"
    takes_weights = False
    holds = 0
    parameters: Mapping[str, Parameter] = {
        "radius": Parameter(
            meaning="tau: how far from the centre an update may be, by L2 norm, before it is clipped",
            least=1e-9,
            below=1e9,
        ),
        "iterations": Parameter(meaning="how often updates are clipped", default=5, least=1, below=1001, whole=True),
        "remember": Parameter(
            meaning="1: v begins with the last round's aggregate", default=0, least=0, below=2, whole=True
        ),
    }

    def fewest(self, settings: Settings) -> int:
        """Of two updates neither is the minority."""
        return 3

    def remembers(self, settings: Settings) -> bool:
        return settings["remember"] == 1

    def delta(self, updates: Updates, settings: Settings, before: Float32 | None = None) -> Float32:
        products = gram(updates)
        weights, count, left = np.zeros(len(products)), len(products), 1.0
        along, length = (weights, 0.0) if before is None else (dots(updates, before), norm(before))
        for _ in range(int(settings["iterations"])):
            distances = _distances(products, weights, left * along, (left * length) * (left * length))
            clipped = settings["radius"] / np.maximum(settings["radius"], distances) / count
            rest = 1 - math.fsum(clipped)
            weights, left = weights * rest + clipped, left * rest
        total = math.fsum(weights)
        found = _mean(updates, weights / total, products)
        found[: updates.parameters] *= np.float32(total)
        if before is not None:
            found[: updates.parameters] += np.float32(left) * before
        return found


def _sums(rows: Float64) -> Float64:
    """[n]: the sum of each row, rounded once: the same bits in any order."""
    return np.array([math.fsum(row) for row in rows.tolist()])


def _distances(products: Float64, weights: Float64, along: Float64 | None = None, square: float = 0.0) -> Float64:
    """[n]: the distance of each update from their sum with these weights, to which a vector is added where ``along``
    has its dot products with the updates, and ``square`` that with itself."""
    with_sum = _sums(products * weights)
    square += math.fsum(weights * with_sum)
    if along is not None:
        square += 2 * math.fsum(weights * along)
        with_sum += along
    distances: Float64 = np.sqrt(np.maximum(products.diagonal() - 2 * with_sum + square, 0))
    return distances


def _mean(updates: Updates, shares: Float64, products: Float64) -> Float32:
    """[elements]: the mean with the weights ``shares``, of sum 1, by the exact sum.

    They become whole multiples of 2^-28, or of a larger power of two where that sum could overflow: of parameters where
    the weighted mean of norms is above 4. For statistics, whose norms nobody has, of 2^-14, which holds any update. A
    weight is off by at most half of that."""
    of_parameters = whole_weights(shares, math.fsum(shares * np.sqrt(products.diagonal())))
    return updates.sum(of_parameters, whole_weights(shares, RANGE)).read(0, updates.elements)


def whole_weights(shares: Float64, magnitude: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """``shares`` in whole units, of updates of which ``magnitude`` bounds the weighted mean of their largest values."""
    bits = min(_FINEST, math.frexp(_LARGEST / max(magnitude, 1.0))[1] - 1)
    return np.rint(np.ldexp(shares, bits)).astype(np.int64)
