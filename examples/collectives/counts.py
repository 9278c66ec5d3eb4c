"""What each all-reduce sends, exactly: messages, bytes and rounds, for any number of ranks and any length.

p is the number of ranks; n the bytes of one array, whose elements have w each; q the largest power of two up to p, and
r = p - q. In a round each rank sends one message at most, of any length, and receives one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from examples.collectives import all_reduce as ways
from examples.collectives.transport import Array, Transport

AllReduce = Callable[[Transport, Array], Array]


class Count(NamedTuple):
    messages: int
    bytes: int
    rounds: int | None
    """None where no formula is known."""


def log2(number: int) -> int:
    """Rounded up."""
    return (number - 1).bit_length()


def star(p: int, n: int, w: int) -> Count:
    return Count(2 * (p - 1), 2 * (p - 1) * n, 2 * (p - 1))


def tree(p: int, n: int, w: int) -> Count:
    return Count(2 * (p - 1), 2 * (p - 1) * n, 2 * log2(p))


def two_trees(p: int, n: int, w: int) -> Count:
    return Count(4 * (p - 1), 2 * (p - 1) * n, None)


def ring(p: int, n: int, w: int) -> Count:
    return Count(2 * p * (p - 1), 2 * (p - 1) * n, 2 * (p - 1))


def butterfly(p: int, n: int, w: int) -> Count:
    levels = p.bit_length() - 1
    q, r = 1 << levels, p - (1 << levels)
    return Count(q * levels + 2 * r, (q * levels + 2 * r) * n, levels + 2 * (r > 0))


def halving_doubling(p: int, n: int, w: int) -> Count:
    """Each of r pairs sends n to sum half each, the larger or equal second half back, and n in the end."""
    levels = p.bit_length() - 1
    q, r = 1 << levels, p - (1 << levels)
    second = (n // w - n // w // 2) * w
    return Count(2 * q * levels + 4 * r, 2 * (q - 1) * n + r * (2 * n + second), 2 * levels + 3 * (r > 0))


def hierarchical(p: int, n: int, w: int, *, local: int) -> Count:
    rounds = local - 1 + p // local - 1
    return Count(2 * p * rounds, 2 * (p - 1) * n, 2 * rounds)


def ring_ring_broadcast(p: int, n: int, w: int, *, local: int) -> Count:
    sizes = [min(local, p - first) for first in range(0, p, local)]
    inside, across = [ring(g, n, w) for g in sizes], ring(len(sizes), n, w)
    messages = sum(count.messages for count in inside) + across.messages + p - len(sizes)
    rounds = inside[0].rounds + across.rounds + log2(sizes[0]) if len(set(sizes)) == 1 else None
    return Count(messages, sum(count.bytes for count in inside) + across.bytes + (p - len(sizes)) * n, rounds)


def star_ring_broadcast(p: int, n: int, w: int, *, local: int) -> Count:
    m = -(-p // local)
    rounds = 2 * (local - 1) + 2 * (m - 1) if p % local == 0 else None
    return Count(2 * (p - m) + 2 * m * (m - 1), 2 * (p - m) * n + 2 * (m - 1) * n, rounds)


def sparse(p: int, entries: int, w: int) -> Count:
    """``entries``: how many all ranks have together. A place has eight bytes."""
    return Count(2 * p * (p - 1), (p - 1) * entries * (8 + w), 2 * (p - 1))


def everything(p: int) -> dict[str, tuple[AllReduce, Callable[[int, int, int], Count]]]:
    """Each way to sum p dense arrays, and its count: those over machines for each number of ranks, but 1 and all,
    that a machine may have."""
    found: dict[str, tuple[AllReduce, Callable[[int, int, int], Count]]] = {
        "star": (ways.star, star),
        "direct": (ways.direct, ring),
        "ring": (ways.ring, ring),
        "tree": (ways.tree, tree),
        "two trees": (ways.two_trees, two_trees),
        "butterfly": (ways.butterfly, butterfly),
        "halving-doubling": (ways.halving_doubling, halving_doubling),
    }
    for local in range(2, p):
        for way, count in (
            (ways.hierarchical, hierarchical),
            (ways.ring_ring_broadcast, ring_ring_broadcast),
            (ways.star_ring_broadcast, star_ring_broadcast),
        ):
            if p % local == 0 or way is not ways.hierarchical:
                found[f"{way.__name__}, {local} a machine"] = (partial(way, local=local), partial(count, local=local))
    return found
