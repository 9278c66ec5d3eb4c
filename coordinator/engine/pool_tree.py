"""The devices from which a cohort is drawn, as an ordered tree of counts, sums of examples and hashes.

A draw asks for the device of a rank, or for the device at a place in the sum of all examples, and its log has the
tree's root: who was drawn is proven by the part of the tree around them, whoever else waits. Each costs O(log n), and
so does a device that comes or leaves; hashes are computed when they are asked for, once for all that has changed.

The tree's shape depends on the ids alone, so that whoever has the list makes the same root, in any language::

    tree    of one device a leaf; of more a fork: over the tree of those that have 0, and the tree of those that have 1,
            in the first bit in which their ids differ
    hash    of a leaf SHA-256(0x00, examples, id); of a fork SHA-256(0x01, count, sum, hash of 0, hash of 1)

Bits are those of the id in UTF-8, the highest of a byte first, and 0 beyond its end, so devices stand in order of id
(Morrison 1968, *Patricia*, doi 10.1145/321479.321481). Numbers are 8 bytes, the highest first. ``examples`` of 0, where
a device tells no size, weigh 1 in sums. As a fork's hash has its count and sum, the hashes beside the way to a leaf
prove its rank, and where in the sum it begins (Merkle 1987, doi 10.1007/3-540-48184-2_32).

Subtrees of few devices are kept as two lists, and not as forks: a million devices take some 100 MB.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, TypeVar

T = TypeVar("T")
Shown = list[Any]
"""Part of a tree: ``[device, examples]`` of a leaf that is shown, ``[count, sum, hash]`` of a subtree that is not, and
``[0, 1]`` of a fork."""
_LEAF, _FORK = Struct(">BQ"), Struct(">BQQ")
_MOST, _FEW = 16, 6
"""At more devices a list becomes a fork; at fewer, two lists become one."""


def weight_of(examples: int) -> int:
    """What a device weighs in sums of examples."""
    return max(1, examples)


class _Leaves:
    __slots__ = ("devices", "examples", "hash", "total")

    def __init__(self, devices: list[str], examples: list[int]) -> None:
        self.devices, self.examples = devices, examples
        self.total = sum(map(weight_of, examples))
        self.hash: bytes | None = None

    @property
    def count(self) -> int:
        return len(self.devices)


class _Fork:
    __slots__ = ("at", "count", "hash", "sides", "total")

    def __init__(self, at: int, left: _Node, right: _Node) -> None:
        self.at, self.sides = at, [left, right]
        self.count: int = left.count + right.count
        self.total: int = left.total + right.total
        self.hash: bytes | None = None


_Node = _Leaves | _Fork
_Hashed = tuple[int, int, bytes]
"""(count, sum, hash) of a subtree."""
_Part = tuple[_Hashed, Shown | None]
"""A subtree, and what is shown of it; None: nothing."""


class PoolTree:
    """Not safe from several threads."""

    def __init__(self, pool: Iterable[tuple[str, int]] = ()) -> None:
        """``pool``: (device, examples), by device id."""
        rows = [*pool]
        self._top: _Node = _tree([device for device, _ in rows], [examples for _, examples in rows])

    def __len__(self) -> int:
        return self._top.count

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(device, examples) of each, by id."""
        return map(self.__getitem__, range(len(self)))

    @property
    def total(self) -> int:
        """The sum of all examples, in which each device weighs at least 1."""
        return self._top.total

    @property
    def root(self) -> str:
        """The hash of the whole, in hexadecimal; empty where there is no device."""
        return _hash(self._top).hex() if len(self) else ""

    def __getitem__(self, rank: int) -> tuple[str, int]:
        """(device, examples) of the device before which as many are, by id. IndexError."""
        if not 0 <= rank < len(self):
            raise IndexError(f"{rank} of {len(self)} devices")
        node = self._top
        while isinstance(node, _Fork):
            left, right = node.sides
            if rank >= left.count:
                rank, node = rank - left.count, right
            else:
                node = left
        return node.devices[rank], node.examples[rank]

    def at(self, place: int) -> tuple[int, int]:
        """(rank, place at which it begins) of the device that has this place in the sum of examples, from 0."""
        node, rank, start = self._top, 0, 0
        while isinstance(node, _Fork):
            left, right = node.sides
            if place >= start + left.total:
                rank, start, node = rank + left.count, start + left.total, right
            else:
                node = left
        for examples in node.examples:
            if place < start + weight_of(examples):
                break
            rank, start = rank + 1, start + weight_of(examples)
        return rank, start

    def rank(self, device: str) -> int:
        """How many devices are before this one, which is in the tree. LookupError."""
        key, node, rank = device.encode(), self._top, 0
        while isinstance(node, _Fork):
            side = _bit(key, node.at)
            rank += node.sides[0].count * side
            node = node.sides[side]
        place = bisect_left(node.devices, device)
        if node.devices[place : place + 1] != [device]:
            raise LookupError(device)
        return rank + place

    def put(self, device: str, examples: int) -> None:
        """Adds the device, or changes its examples."""
        if not len(self):
            self._top = _alone(device, examples)
            return
        key = device.encode()
        way, leaves = self._way_to(key)
        place = bisect_left(leaves.devices, device)
        if leaves.devices[place : place + 1] == [device]:
            if leaves.examples[place] != examples:
                self._changed(way, leaves, 0, weight_of(examples) - weight_of(leaves.examples[place]))
                leaves.examples[place] = examples
            return
        at = _first_difference(key, leaves.devices[0].encode())
        above = next((number for number, fork in enumerate(way) if fork.at > at), None)
        if above is not None:
            other, one = way[above], _alone(device, examples)
            pair = (other, one) if _bit(key, at) else (one, other)
            self._changed(way[:above], None, 1, weight_of(examples))
            self._replace(way[:above], other, _Fork(at, *pair))
            return
        self._changed(way, leaves, 1, weight_of(examples))
        leaves.devices.insert(place, device)
        leaves.examples.insert(place, examples)
        if leaves.count > _MOST:
            self._replace(way, leaves, _tree(leaves.devices, leaves.examples))

    def drop(self, device: str) -> None:
        """Removes the device, where it is there."""
        way, leaves = self._way_to(device.encode())
        place = bisect_left(leaves.devices, device)
        if leaves.devices[place : place + 1] != [device]:
            return
        self._changed(way, leaves, -1, -weight_of(leaves.examples[place]))
        del leaves.devices[place], leaves.examples[place]
        if not way:
            return
        *before, fork = way
        left, right = fork.sides
        if not leaves.devices:
            self._replace(before, fork, right if leaves is left else left)
        elif isinstance(left, _Leaves) and isinstance(right, _Leaves) and fork.count <= _FEW:
            self._replace(before, fork, _Leaves(left.devices + right.devices, left.examples + right.examples))

    def shown(self, ranks: Collection[int]) -> Shown:
        """The tree as far as it proves who has these ranks, at least one: see ``Shown``."""
        return _shown(self._top, sorted(ranks), 0)

    def _way_to(self, key: bytes) -> tuple[list[_Fork], _Leaves]:
        """The forks from the top to the leaves where a device of this id is, or would be if it had their beginning."""
        way, node = list[_Fork](), self._top
        while isinstance(node, _Fork):
            way.append(node)
            node = node.sides[_bit(key, node.at)]
        return way, node

    def _changed(self, way: Sequence[_Fork], leaves: _Leaves | None, count: int, total: int) -> None:
        for fork in way:
            fork.count, fork.total, fork.hash = fork.count + count, fork.total + total, None
        if leaves is not None:
            leaves.total, leaves.hash = leaves.total + total, None

    def _replace(self, way: Sequence[_Fork], old: _Node, new: _Node) -> None:
        """Puts another subtree in the place of one. ``way``: the forks above it."""
        if way:
            sides = way[-1].sides
            sides[sides[1] is old] = new
        else:
            self._top = new


def _bit(key: bytes, at: int) -> int:
    byte = at >> 3
    return key[byte] >> (7 - (at & 7)) & 1 if byte < len(key) else 0


def _first_difference(one: bytes, other: bytes) -> int:
    """The first bit in which two ids differ."""
    size = max(len(one), len(other))
    left, right = one.ljust(size, b"\0"), other.ljust(size, b"\0")
    return 8 * size - (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).bit_length()


def _folded(pool: Iterable[tuple[str, int]], leaf: Callable[[str, int], T], fork: Callable[[int, T, T], T]) -> T:
    """The tree of these devices, at least one and in order of id, from its leaves up; ``fork`` gets the bit too."""
    open_: list[tuple[int, T]] = []  # subtrees from the left, each with the bit in which it differs from the one before
    before = b""

    def join() -> None:
        at, right = open_.pop()
        first, left = open_.pop()
        open_.append((first, fork(at, left, right)))

    for device, examples in pool:
        key = device.encode()
        at = _first_difference(before, key) if open_ else -1
        while open_ and open_[-1][0] > at:
            join()
        open_.append((at, leaf(device, examples)))
        before = key
    while len(open_) > 1:
        join()
    return open_[0][1]


def _alone(device: str, examples: int) -> _Node:
    return _Leaves([device], [examples])


def _tree(devices: list[str], examples: list[int]) -> _Node:
    """The tree of these devices, which are in order of id, with their examples."""
    if len(devices) <= _MOST:
        return _Leaves(devices, examples)
    at = _first_difference(devices[0].encode(), devices[-1].encode())
    middle = bisect_left(devices, 1, key=lambda device: _bit(device.encode(), at))
    return _Fork(at, _tree(devices[:middle], examples[:middle]), _tree(devices[middle:], examples[middle:]))


def _hashed_leaf(device: str, examples: int) -> _Hashed:
    return 1, weight_of(examples), hashlib.sha256(_LEAF.pack(0, examples) + device.encode()).digest()


def _hashed_fork(at: int, left: _Hashed, right: _Hashed) -> _Hashed:
    count, total = left[0] + right[0], left[1] + right[1]
    return count, total, hashlib.sha256(_FORK.pack(1, count, total) + left[2] + right[2]).digest()


def _hash(node: _Node) -> bytes:
    if node.hash is None:
        if isinstance(node, _Leaves):
            node.hash = _folded(zip(node.devices, node.examples, strict=True), _hashed_leaf, _hashed_fork)[2]
        else:
            left, right = ((side.count, side.total, _hash(side)) for side in node.sides)
            node.hash = _hashed_fork(node.at, left, right)[2]
    return node.hash


def _shown(node: _Node, ranks: Sequence[int], start: int) -> Shown:
    """``ranks``: sorted, those of this subtree; ``start``: the rank of its first device."""
    if not ranks:
        return [node.count, node.total, _hash(node).hex()]
    if isinstance(node, _Fork):
        left, right = node.sides
        middle = start + left.count
        parted = bisect_left(ranks, middle)
        return [_shown(left, ranks[:parted], start), _shown(right, ranks[parted:], middle)]
    drawn = {node.devices[rank - start] for rank in ranks}
    return _part(node, drawn)


def _part(leaves: _Leaves, drawn: Collection[str]) -> Shown:
    def leaf(device: str, examples: int) -> _Part:
        return _hashed_leaf(device, examples), [device, examples] if device in drawn else None

    def fork(at: int, left: _Part, right: _Part) -> _Part:
        whole = _hashed_fork(at, left[0], right[0])
        return whole, None if left[1] is None is right[1] else [_stub(left), _stub(right)]

    return _stub(_folded(zip(leaves.devices, leaves.examples, strict=True), leaf, fork))


def _stub(part: _Part) -> Shown:
    (count, total, hashed), shown = part
    return [count, total, hashed.hex()] if shown is None else shown
