"""All random draws of a schedule: hashes of (seed, purpose, number of the draw), and the list of faults that struck.

A draw depends on its own name only. So when one fault is left out (``without``), all other draws stay the same, and a
failing schedule can be shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


def blake2b_unit(message: bytes) -> float:
    """BLAKE2b of 64 bits as a fraction of 2^64, rounded to the nearest float. It is 1.0 for the 2^10 highest words.

    In one call: a schedule of the fault explorer draws hundreds of them.
    """
    return int.from_bytes(blake2b(message, digest_size=8).digest(), "big") * 2.0**-64


def blake2b_bytes(message: bytes, count: int) -> bytes:
    """``count`` bytes, at most 256 * 64: BLAKE2b of 512 bits over the message and the number of the block, a byte."""
    blocks = range(1 + count // 64)
    return b"".join(blake2b(message + bytes([block]), digest_size=64).digest() for block in blocks)[:count]


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
