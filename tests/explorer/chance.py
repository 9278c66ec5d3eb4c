"""All random draws of a schedule: hashes of (seed, purpose, number of the draw), and the list of faults that struck.

A draw depends on its own name only. So when one fault is left out (``without``), all other draws stay the same, and a
failing schedule can be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from client_sdk.chance import blake2b_bytes, blake2b_unit

T = TypeVar("T")


class Chance:
    """``struck`` lists the faults that happened, by name (``crash@r0.commit#3``), in order."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self._prefix = f"{seed}/".encode()
        self._without = without
        self._draws: dict[str, int] = {}
        self.struck: list[str] = []

    def unit(self, purpose: str) -> float:
        """Uniform on [0, 1)."""
        count = self._draws[purpose] = self._draws.get(purpose, -1) + 1
        return blake2b_unit(self._prefix + f"{purpose}#{count}".encode())

    def between(self, purpose: str, low: float, high: float) -> float:
        return low + (high - low) * self.unit(purpose)

    def below(self, purpose: str, bound: int) -> int:
        """An integer from 0 to bound - 1."""
        return int(self.unit(purpose) * bound)

    def pick(self, purpose: str, options: Sequence[T]) -> T:
        return options[self.below(purpose, len(options))]

    def strikes(self, fault: str, where: str, probability: float) -> bool:
        """Whether this fault happens here and now."""
        place, draws = f"{fault}@{where}", self._draws
        count = draws[place] = draws.get(place, -1) + 1
        if probability <= 0.0:
            return False
        name = f"{place}#{count}"
        if blake2b_unit(self._prefix + name.encode()) >= probability or name in self._without:
            return False
        self.struck.append(name)
        return True

    def entropy(self, purpose: str) -> Callable[[int], bytes]:
        """A stream of bytes in place of ``os.urandom``."""

        def read(count: int) -> bytes:
            number = self._draws[purpose] = self._draws.get(purpose, -1) + 1
            return blake2b_bytes(self._prefix + f"{purpose}#{number}".encode(), count)

        return read
