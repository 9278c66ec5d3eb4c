"""Chance made of a hash: which bytes are hashed, what is made of the hash, and that no number is favoured."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import islice
from statistics import fmean, pstdev

import pytest

from client_sdk import chance
from client_sdk.chance import WordStream, labelled
from coordinator.engine.selection import by_examples
from simulation.fleet.trainer import FleetHabits
from simulation.virtual.behaviour import Behaviour, Habits
from tests.explorer.chance import Chance, blake2b_bytes, blake2b_unit

MOST = 2**64 - 1


def chi_square(counts: Counter[int], cells: int, draws: int) -> float:
    expected = draws / cells
    return sum((counts[cell] - expected) ** 2 for cell in range(cells)) / expected


# ---------------------------------------------------------------- what is hashed


def test_a_label_and_its_parts_stand_one_a_line() -> None:
    assert labelled("selection", 7, 3, "d1") == b"quorate selection v1\n7\n3\nd1"
    assert labelled("selection", 7, 3, "") == b"quorate selection v1\n7\n3\n"
    assert labelled("Größe") == "quorate Größe v1".encode()


# ---------------------------------------------------------------- the hash


def test_known_words() -> None:
    """From sha256sum and b2sum of the same bytes."""
    assert chance.sha256_word(b"abc") == 0xBA7816BF8F01CFEA
    assert chance.sha256_bytes(b"abc", 9).hex() == "ba7816bf8f01cfea41"
    assert chance.blake2b_word(b"abc") == 0xD8BB14D833D59559
    assert blake2b_unit(b"abc") == 0xD8BB14D833D59559 * 2.0**-64
    assert chance.shake_bytes(b"", 8).hex() == "46b9dd2b0ba88d13"
    assert chance.derive_seed("shuffle", 5, 3, "d7") == chance.sha256_word(b"quorate shuffle v1\n5\n3\nd7") // 2


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 200])
def test_bytes_come_block_by_block(count: int) -> None:
    blocks = [hashlib.blake2b(b"key" + bytes([number])).digest() for number in range(4)]
    assert blake2b_bytes(b"key", count) == b"".join(blocks)[:count]


def test_a_stream_has_four_words_a_hash() -> None:
    blocks = b"".join(hashlib.sha256(b"key\n" + counter).digest() for counter in (b"0", b"1", b"2"))
    words = [int.from_bytes(blocks[at : at + 8], "big") for at in range(0, len(blocks), 8)]
    assert list(islice(WordStream(b"key\n"), 12)) == words
    stream = WordStream(b"key\n")
    assert [stream.below(2**64) for _ in range(12)] == words


# ---------------------------------------------------------------- whole numbers without bias


def test_words_beyond_the_last_whole_multiple_are_drawn_again() -> None:
    words = WordStream(b"")
    words._words = iter([MOST, MOST - 1, 5])
    assert words.below(3) == (MOST - 1) % 3 == 2
    words._words = iter([MOST, 3 * 2**62, 7])
    assert words.below(3 * 2**62) == 7


def test_a_bound_that_rejects_a_quarter_of_all_words_stays_uniform() -> None:
    """A remainder alone would give the lowest third twice as often. 13.82: 99.9 % of chi-square with 2 degrees."""
    words = WordStream(labelled("test", 1, 1, ""))
    thirds = Counter(words.below(3 * 2**62) // 2**62 for _ in range(6000))
    assert chi_square(thirds, 3, 6000) < 13.82


def test_every_number_below_a_bound_is_as_likely() -> None:
    """34.53: 99.9 % of chi-square with 13 degrees of freedom."""
    words = WordStream(labelled("test", 2, 1, ""))
    assert chi_square(Counter(words.below(14) for _ in range(7000)), 14, 7000) < 34.53


# ---------------------------------------------------------------- fractions and deviates


def test_the_ends_of_each_scale() -> None:
    assert (chance.unit(0), chance.unit(MOST)) == (0.0, 1 - 2.0**-53)
    assert chance.unit(2**63) == 0.5
    assert (chance.above_zero(0), chance.above_zero(MOST)) == (2.0**-65, 1.0)
    assert chance.normal_of(0.5) == 0.0
    assert math.isfinite(chance.normal_of(0.0))
    assert chance.normal_of(0.0) < -8 < 8 < chance.normal_of(1 - 2.0**-53)


@pytest.mark.parametrize("scale", [chance.unit, chance.above_zero])
@pytest.mark.parametrize("hashed", [chance.sha256_word, chance.blake2b_word])
def test_fractions_are_uniform_and_deviates_normal(scale: object, hashed: object) -> None:
    """43.82: 99.9 % of chi-square with 19 degrees of freedom. The labels are fixed: this never fails by chance."""
    count = 5000
    drawn = [scale(hashed(labelled("test", number))) for number in range(count)]  # type: ignore[operator]
    assert chi_square(Counter(int(value * 20) for value in drawn), 20, count) < 43.82
    normal = [chance.normal_of(value) for value in drawn]
    assert abs(fmean(normal)) < 4 / count**0.5
    assert abs(pstdev(normal) - 1) < 4 / (2 * count) ** 0.5


# ---------------------------------------------------------------- users: the bytes that each of them hashes


def test_each_user_hashes_the_bytes_that_it_always_has() -> None:
    """Other bytes would be other draws: recorded runs, seeds of found faults and figures in papers stand on these."""
    word = int.from_bytes(hashlib.sha256(b"quorate habits v1\nvanish\n5\n41\n7").digest()[:8], "big")
    assert FleetHabits(seed=5)._draw("vanish", 41, 7) == (word >> 11) / 2.0**53
    word = int.from_bytes(hashlib.blake2b(b"quorate behaviour v1\nshare\n5\nd41\n7", digest_size=8).digest(), "big")
    assert Habits(Behaviour(), str, 5).unit("share", "d41", 7) == (word >> 11) / 2.0**53
    word = int.from_bytes(hashlib.blake2b(b"9/crash@r0#1", digest_size=8).digest(), "big")
    schedule = Chance(9)
    schedule.unit("crash@r0")
    assert schedule.unit("crash@r0") == word * 2.0**-64
    assert (
        Chance(9).entropy("ids")(70)
        == b"".join(hashlib.blake2b(b"9/ids#0" + block).digest() for block in (b"\0", b"\1"))[:70]
    )
    place = int.from_bytes(hashlib.sha256(b"quorate selection by examples v1\n3\n4\n0").digest()[:8], "big") % 4350
    pool = [(f"d{number:02}", 10 * number) for number in range(1, 30)]
    assert by_examples(pool, 1, seed=3, round=4) == [
        next(name for number, (name, _) in enumerate(pool, 1) if place < 5 * number * (number + 1))
    ]
