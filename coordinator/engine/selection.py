"""Who takes part in a round: a function of the selection seed, the round, and the sorted list of who waits.

Nothing here reads a clock or a random number generator, so the draw of any round can be repeated alone. The seed stays
on the coordinator: who knows it could foresee, and by checking in or not choose, who is selected.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal

Pool = Sequence[tuple[str, int]]
"""(device, examples), by device id."""


class CounterHash:
    """An endless stream of 64-bit integers: SHA-256 of (purpose, seed, round, counter), four integers a hash."""

    def __init__(self, purpose: str, seed: int, round: int) -> None:
        self._prefix = f"quorate {purpose} v1\n{seed}\n{round}\n".encode()
        self._words = self._stream()

    def _stream(self) -> Iterator[int]:
        counter = 0
        while True:
            block = hashlib.sha256(self._prefix + str(counter).encode()).digest()
            for start in range(0, 32, 8):
                yield int.from_bytes(block[start : start + 8], "big")
            counter += 1

    def below(self, bound: int) -> int:
        """Uniform on 0 .. bound-1, without bias: values beyond the last whole multiple of ``bound`` are drawn again."""
        limit = 2**64 - 2**64 % bound
        while True:
            word = next(self._words)
            if word < limit:
                return word % bound


def uniform(pool: Pool, k: int, *, seed: int, round: int) -> list[str]:
    """``k`` devices, each subset alike (Floyd's sampling: k draws, whatever the size of the pool). Sorted by id."""
    n = len(pool)
    draws = CounterHash("selection", seed, round)
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
        word = hashlib.sha256(f"quorate selection by examples v1\n{seed}\n{round}\n{device}".encode()).digest()
        uniform_draw = (int.from_bytes(word[:8], "big") + 0.5) / 2**64
        return -math.log(uniform_draw) / max(1, examples), device

    return sorted(device for device, _ in sorted(pool, key=key)[:k])


def draw(pool: Pool, k: int, *, choose: Literal["uniform", "by_examples"], seed: int, round: int) -> list[str]:
    """The cohort: at most ``k`` of the pool, sorted by id."""
    method = uniform if choose == "uniform" else by_examples
    return method(pool, k, seed=seed, round=round)
