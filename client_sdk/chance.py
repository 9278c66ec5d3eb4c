"""Random draws from a hash: every draw is a function of labelled parts alone.

A draw that is named (by its purpose, a seed, a round, a device) can be repeated by itself and does not depend on other
draws or on the order of events. There are three steps, each a small pure function.

======================= ===============================================================================================
what is hashed          ``labelled``: ``quorate PURPOSE v1``, then the parts, one a line. Or any bytes of the caller
the hash                ``sha256_word``, ``blake2b_word``: 64 bits; ``WordStream``: as many words as are asked for;
                        ``derive_seed``: 63 bits, for generators that take a seed; ``sha256_bytes``,
                        ``shake_bytes``: a number of bytes
the number              ``unit``: a number from [0, 1); ``above_zero``: one from (0, 1];
                        ``normal_of``: a normal deviate; ``WordStream.below``: a whole number without bias
======================= ===============================================================================================

The formats never change, since other bytes give other draws and recorded runs could not be repeated. Devices, the
engine and simulations use this module. Secure aggregation does not: its derivations are part of its protocol
(``client_sdk.secagg``). A draw is secret only if one of its parts is.

The users differ in hash, width and separators, and keep that: another format is another draw, so cohorts could not be
drawn again from their logs, and seeds of found faults would find nothing. A new user takes ``labelled``,
``sha256_word`` and ``unit`` or ``WordStream.below``.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b, sha256, shake_256
from statistics import NormalDist

_NORMAL = NormalDist()
_WORDS = 2**64
_LOWEST = 2.0**-54
"""Stands for 0 where a logarithm or a quantile is taken: half of the smallest step of ``unit``."""


# ------------------------------------------------------------ what is hashed


def labelled(purpose: str, *parts: object) -> bytes:
    """``quorate PURPOSE v1`` and the parts, one a line. Parts must hold no line feed, or two lists may be equal."""
    return "\n".join([f"quorate {purpose} v1", *map(str, parts)]).encode()


# ------------------------------------------------------------ the hash


def sha256_word(message: bytes) -> int:
    """The first 64 bits of SHA-256, most significant byte first."""
    return int.from_bytes(sha256_bytes(message, 8), "big")


def sha256_bytes(message: bytes, count: int) -> bytes:
    """The first ``count`` bytes of SHA-256, at most 32."""
    return sha256(message).digest()[:count]


def blake2b_word(message: bytes) -> int:
    """BLAKE2b of 64 bits, most significant byte first."""
    return int.from_bytes(blake2b(message, digest_size=8).digest(), "big")


def shake_bytes(message: bytes, count: int) -> bytes:
    """``count`` bytes of SHAKE256."""
    return shake_256(message).digest(count)


def derive_seed(purpose: str, seed: int, round: int, device: str) -> int:
    """A seed for a generator: the first 63 bits of SHA-256 of the labelled (seed, round, device). Another purpose gives
    another stream."""
    return sha256_word(labelled(purpose, seed, round, device)) >> 1


class WordStream:
    """An endless stream of 64-bit words: SHA-256 of a message with a counter behind it, four words a hash."""

    def __init__(self, message: bytes) -> None:
        self._words = _counted(message)

    def __iter__(self) -> Iterator[int]:
        return self._words

    def below(self, bound: int) -> int:
        """Uniform on 0 .. bound - 1, without bias: words beyond the last whole multiple of ``bound`` are drawn
        again. ``bound`` is 1 to 2^64."""
        limit = _WORDS - _WORDS % bound
        return next(word for word in self._words if word < limit) % bound


def _counted(message: bytes) -> Iterator[int]:
    counter = 0
    while True:
        block = sha256(message + str(counter).encode()).digest()
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "big")
        counter += 1


# ------------------------------------------------------------ the number


def unit(word: int) -> float:
    """Uniform on [0, 1): the first 53 bits of a word, which a float holds exactly."""
    return (word >> 11) / 2.0**53


def above_zero(word: int) -> float:
    """Uniform on (0, 1], for logarithms: the middle of a word's step, rounded to the nearest float."""
    return (word + 0.5) / _WORDS


def normal_of(uniform: float) -> float:
    """The standard normal deviate with this probability below it; ``uniform`` is from [0, 1)."""
    return _NORMAL.inv_cdf(uniform or _LOWEST)
