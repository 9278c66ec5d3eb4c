"""Who takes part in a round: a function of the selection seed, the round, and the sorted list of waiting devices.

Nothing here reads a clock or a random number generator, so the draw of any round can be repeated alone. The seed stays
on the coordinator: a device that knew it could predict the selection, and influence it by checking in or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from client_sdk.chance import WordStream, above_zero, labelled, sha256_word

Pool = Sequence[tuple[str, int]]
"""(device, examples), by device id."""


def uniform(pool: Pool, k: int, *, seed: int, round: int) -> list[str]:
    """``k`` devices, each subset alike (Floyd's sampling: k draws, whatever the size of the pool). Sorted by id."""
    n = len(pool)
    draws = WordStream(labelled("selection", seed, round, ""))
    chosen: set[int] = set()
    for top in range(n - min(k, n), n):
        index = draws.below(top + 1)
        chosen.add(top if index in chosen else index)
    return sorted(pool[index][0] for index in chosen)


def by_examples(pool: Pool, k: int, *, seed: int, round: int) -> list[str]:
    """``k`` devices without replacement, the next one always proportional to its examples. Sorted by id.

    Exponential keys: device i gets E_i = -ln(U_i) / n_i and the k smallest are taken, which is successive sampling
    proportional to n_i (Efraimidis and Spirakis 2006, doi 10.1016/j.ipl.2005.11.003). U_i is a hash of (seed, round,
    device), so a device's key does not depend on who else waits. Inclusion probabilities are below k n_i / sum n for
    large devices, hence the unweighted mean of the cohort keeps a bias towards small devices, which vanishes as k / n
    does: see docs/selection.md.
    """

    def key(entry: tuple[str, int]) -> tuple[float, str]:
        device, examples = entry
        word = sha256_word(labelled("selection by examples", seed, round, device))
        return -math.log(above_zero(word)) / max(1, examples), device

    return sorted(device for device, _ in sorted(pool, key=key)[:k])


def draw(pool: Pool, k: int, *, choose: Literal["uniform", "by_examples"], seed: int, round: int) -> list[str]:
    """The cohort: at most ``k`` of the pool, sorted by id."""
    method = uniform if choose == "uniform" else by_examples
    return method(pool, k, seed=seed, round=round)
