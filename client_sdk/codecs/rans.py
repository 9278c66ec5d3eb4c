"""An entropy coder: interleaved range asymmetric numeral systems (Duda 2013, arXiv:1311.2540; Giesen 2014,
arXiv:1402.3392), with a table of frequencies for each context.

Symbols are coded in *steps* of at most as many symbols as there are lanes, one a lane, so that NumPy works on all lanes
at a time. A lane is a state of 32 bits, and what flows out of it are words of 16. All words are in one stream, in the
order in which a decoder asks for them. All operations are of integers, so the words are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BITS = 12
"""Frequencies of a context add up to 2 ** BITS."""
LOWEST = 1 << 16
"""A state's lowest value: where an encoder begins, and so where a decoder ends."""

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint16]
Symbols = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tables:
    """Frequencies by context and symbol, and what follows from them."""

    frequency: Words
    """[contexts, symbols]; each row adds up to 2 ** BITS. A symbol of frequency 0 cannot be coded."""
    start: Words
    """[contexts, symbols]: the sum of the frequencies before."""
    symbol: Symbols
    """[contexts, 2 ** BITS]: the symbol whose part of a row each place is in."""

    @classmethod
    def of(cls, frequency: Words) -> Tables:
        symbols = np.arange(frequency.shape[1], dtype=np.uint8)
        symbol = np.stack([np.repeat(symbols, row) for row in frequency])
        start = np.cumsum(frequency, axis=1, dtype=np.int64) - frequency
        return cls(frequency, start.astype(np.uint16), symbol)


def encode(frequencies: Words, starts: Words, steps: Sequence[tuple[int, int]], lanes: int) -> Words:
    """The words of symbols with these frequencies and starts. Step i codes those from ``steps[i][0]`` to
    ``steps[i][1]``. The states come first, two words a lane."""
    states = np.full(lanes, LOWEST, np.int64)
    words = []
    for first, last in reversed(steps):
        state, frequency = states[: last - first], frequencies[first:last].astype(np.int64)
        full = state >= frequency << (32 - BITS)
        words.append(state[full].astype(np.uint16))
        whole, rest = np.divmod(np.where(full, state >> 16, state), frequency)
        states[: last - first] = (whole << BITS) + rest + starts[first:last]
    words.append(states.astype("<u4").view("<u2").astype(np.uint16))
    return np.concatenate(words[::-1])


class Decoder:
    """Reads symbols, step by step."""

    def __init__(self, tables: Tables, states: Words) -> None:
        """``states``: the first words of a stream, two a lane."""
        self._tables = tables
        self._states = states.astype("<u2").view("<u4").astype(np.int64)

    def step(self, contexts: Ints, words: Words) -> tuple[Symbols, int]:
        """The symbols of a step, and how many of ``words``, the next of the stream, were read. IndexError where they
        are too few."""
        tables, states = self._tables, self._states[: contexts.size]
        place = states & ((1 << BITS) - 1)
        symbols = tables.symbol[contexts, place]
        states = tables.frequency[contexts, symbols] * (states >> BITS) + place - tables.start[contexts, symbols]
        empty = np.flatnonzero(states < LOWEST)
        if empty.size > words.size:
            raise IndexError
        states[empty] = states[empty] << 16 | words[: empty.size]
        self._states[: contexts.size] = states
        return symbols, int(empty.size)

    @property
    def ended(self) -> bool:
        """Whether the states are those of a stream that was read to its end."""
        return bool((self._states == LOWEST).all())
