"""Repeats a draw from what the log has of the tree of who waited: its count, its sum of examples, its root, and that
part of it around those who were drawn. Written from ``docs/selection.md``: the tree and the draw are not the engine's.

The part is a leaf ``[device, examples]``, a subtree that is not shown ``[count, sum, hash]``, or a fork of two parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Leaf:
    device: str
    examples: int
    rank: int
    start: int
    """Where it begins in the sum of examples."""

    @property
    def weight(self) -> int:
        return max(1, self.examples)


@dataclass(frozen=True, slots=True)
class Part:
    """Of a tree: its devices and their sum, its hash, and the leaves that are shown."""

    count: int
    total: int
    hash: bytes
    leaves: list[Leaf]


def part_of(shown: Any, rank: int = 0, start: int = 0) -> Part:
    """What a part proves. ``rank``, ``start``: of its first device. ValueError, TypeError where it is none."""
    if not isinstance(shown, list):
        raise TypeError("a part of a tree is a list")
    if len(shown) == 3:
        count, total, hashed = int(shown[0]), int(shown[1]), bytes.fromhex(shown[2])
        if not 0 < count <= total < 2**64 or len(hashed) != 32:
            raise ValueError("a subtree has devices, each weighs at least 1, and a hash; a sum has 8 bytes")
        return Part(count, total, hashed, [])
    if isinstance(shown[0], str):
        device, examples = shown[0], int(shown[1])
        leaf = Leaf(device, examples, rank, start)
        return Part(1, leaf.weight, _hash(0, examples, tail=device.encode()), [leaf])
    left = part_of(shown[0], rank, start)
    right = part_of(shown[1], rank + left.count, start + left.total)
    count, total = left.count + right.count, left.total + right.total
    return Part(count, total, _hash(1, count, total, tail=left.hash + right.hash), left.leaves + right.leaves)


def against_tree(part: Part, select: int, choose: str, seed: int, round: int) -> Iterator[str]:
    """Yields what speaks against the leaves that are shown: they are those that are drawn."""
    names = [leaf.device for leaf in part.leaves]
    if names != sorted(set(names)):
        yield "the tree of who waited is not in order of id"
    words = _words(f"quorate selection{' by examples' * (choose == 'by_examples')} v1\n{seed}\n{round}\n")
    most = min(select, part.count)
    if choose == "uniform":
        ranks = _ranks(words, most, part.count)
        wrong = [leaf.device for leaf in part.leaves if leaf.rank not in ranks]
        lacks = len(ranks) > len(names) - len(wrong)
    else:
        drawn = _by_examples(words, most, part)
        wrong = [leaf.device for leaf in part.leaves if leaf.device not in drawn]
        lacks = len(drawn) < most
    if wrong or lacks:
        who = f": {', '.join(wrong[:3])} would not have been selected" if wrong else ""
        yield f"the draw from the tree of who waited gives another cohort than the log{who}"


def _ranks(words: Iterator[int], select: int, count: int) -> set[int]:
    """Floyd's sampling (Bentley and Floyd 1987, doi 10.1145/30401.315746)."""
    found = set[int]()
    for top in range(count - select, count):
        rank = _below(words, top + 1)
        found.add(top if rank in found else rank)
    return found


def _by_examples(words: Iterator[int], select: int, part: Part) -> set[str]:
    """The shown leaves that are drawn, up to a draw of a device that is not shown.

    Of what is left of the sum each draw takes a place. Before it lie ``passed`` of the parts that are taken: the most
    for which the next leaf would begin behind that place. The sums of taken weights stand in a Fenwick tree.
    """
    leaves, found = part.leaves, set[str]()
    sums = [0] * (len(leaves) + 1)
    left = part.total
    for _ in range(select):
        place, passed, taken = _below(words, left), 0, 0
        for step in (1 << bit for bit in reversed(range(len(leaves).bit_length()))):
            until = passed + step
            if until <= len(leaves) and leaves[until - 1].start - _before(sums, until - 1) <= place:
                passed, taken = until, taken + sums[until]
        leaf = leaves[passed - 1] if passed else None
        if leaf is None or place + taken >= leaf.start + leaf.weight or leaf.device in found:
            return found
        found.add(leaf.device)
        left -= leaf.weight
        while passed < len(sums):
            sums[passed] += leaf.weight
            passed += passed & -passed
    return found


def _before(sums: list[int], count: int) -> int:
    """What is taken of the first leaves."""
    total = 0
    while count:
        total += sums[count]
        count &= count - 1
    return total


def _below(words: Iterator[int], bound: int) -> int:
    return next(word for word in words if word < 2**64 - 2**64 % bound) % bound


def _words(text: str) -> Iterator[int]:
    counter = 0
    while True:
        block = hashlib.sha256(f"{text}{counter}".encode()).digest()
        yield from (int.from_bytes(block[at : at + 8], "big") for at in range(0, 32, 8))
        counter += 1


def _hash(kind: int, *numbers: int, tail: bytes) -> bytes:
    return hashlib.sha256(b"".join((bytes([kind]), *(n.to_bytes(8, "big") for n in numbers), tail))).digest()
