"""All-reduce in the ways that the literature has, each on ``send`` and ``recv`` alone.

Each function takes a rank's port and its array, and returns the sum of all ranks' arrays, which has the same bits on
every rank. Sums are in the arrays' own type. README.md compares them, and ``counts.py`` has exact counts.

Sources: Thakur, Rabenseifner, Gropp 2005 (recursive doubling, halving-doubling); Patarasuk, Yuan 2009 (no all-reduce
sends fewer bytes than the ring); Sanders, Speck, Träff 2009 (two trees).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from examples.collectives.transport import Among, Array, Transport

Parent = Callable[[int, int], int]
"""The parent of a rank above 0, in a tree of so many ranks with root 0."""


def part(array: Array, i: int, k: int) -> Array:
    """The i-th of k parts, as a view: they differ by one element at most, and some are empty where there are few."""
    return array[len(array) * i // k : len(array) * (i + 1) // k]


# ---------------------------------------------------------------------------------------------------- trees


def flat(rank: int, size: int) -> int:
    """All are children of the root."""
    return 0


def binomial(rank: int, size: int) -> int:
    """The rank without its lowest bit."""
    return rank & (rank - 1)


def balanced(rank: int, size: int) -> int:
    """The lowest bit is cleared and the next one set, where there is such a rank: all odd ranks are leaves."""
    low = rank & -rank
    up = (rank ^ low) | low << 1
    return up if up < size else rank ^ low


def children(t: Transport, parent: Parent) -> list[int]:
    return [child for child in range(1, t.size) if parent(child, t.size) == t.rank]


def up(t: Transport, total: Array, parent: Parent) -> None:
    """Add the sums of the children to ``total``, and send it on."""
    for child in children(t, parent):
        total += t.recv(child)
    if t.rank:
        t.send(parent(t.rank, t.size), total)


def down(t: Transport, total: Array, parent: Parent) -> None:
    """Replace ``total`` by the root's."""
    if t.rank:
        total[:] = t.recv(parent(t.rank, t.size))
    for child in reversed(children(t, parent)):  # the largest subtree first
        t.send(child, total)


def star(t: Transport, mine: Array) -> Array:
    """A parameter server, rank 0: it gets every array, and gives every rank the sum."""
    total = mine.copy()
    up(t, total, flat)
    down(t, total, flat)
    return total


def tree(t: Transport, mine: Array) -> Array:
    """A reduction along a binomial tree, and a broadcast back."""
    total = mine.copy()
    up(t, total, binomial)
    down(t, total, binomial)
    return total


def two_trees(t: Transport, mine: Array) -> Array:
    """A tree for each half. The second is the first mirrored, or for odd sizes shifted by one: a rank that is inner in
    one is a leaf of the other (but for one rank where the size is odd), and all links are in use."""
    total = mine.copy()
    turned = range(t.size)[::-1] if t.size % 2 == 0 else [(rank - 1) % t.size for rank in range(t.size)]
    trees = [(t, part(total, 0, 2)), (Among(t, turned), part(total, 1, 2))]
    for view, half in trees:
        up(view, half, balanced)
    for view, half in trees:
        down(view, half, balanced)
    return total


# ---------------------------------------------------------------------------------------------------- parts


def direct(t: Transport, mine: Array) -> Array:
    """Each rank is the server of one part: it gets that part from all, and gives all the sum."""
    total = mine.copy()
    own = part(total, t.rank, t.size)
    after = [(t.rank + step) % t.size for step in range(1, t.size)]
    before = [(t.rank - step) % t.size for step in range(1, t.size)]
    for rank in after:
        t.send(rank, part(mine, rank, t.size))
    for rank in before:
        own += t.recv(rank)
    for rank in after:
        t.send(rank, own)
    for rank in before:
        part(total, rank, t.size)[:] = t.recv(rank)
    return total


def reduce_scatter(t: Transport, total: Array) -> Array:
    """Around the ring: each part collects the terms of all ranks, and ends at its own rank. Returns this rank's."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    for step in range(1, t.size):
        t.send(right, part(total, (t.rank - step) % t.size, t.size))
        part(total, (t.rank - step - 1) % t.size, t.size)[:] += t.recv(left)
    return part(total, t.rank, t.size)


def all_gather(t: Transport, total: Array) -> None:
    """Around the ring: each part passes all ranks."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    for step in range(t.size - 1):
        t.send(right, part(total, (t.rank - step) % t.size, t.size))
        part(total, (t.rank - step - 1) % t.size, t.size)[:] = t.recv(left)


def ring(t: Transport, mine: Array) -> Array:
    """A reduce-scatter and an all-gather around the ring."""
    total = mine.copy()
    reduce_scatter(t, total)
    all_gather(t, total)
    return total


# ---------------------------------------------------------------------------------------------------- powers of two


def core(t: Transport) -> tuple[int, int, list[int]]:
    """q, the largest power of two up to the size; r, the number of ranks above it; and the q ranks that go on after r
    pairs, of an even rank and the odd one after it, have become one each."""
    q = 1 << (t.size.bit_length() - 1)
    r = t.size - q
    return q, r, [2 * i if i < r else i + r for i in range(q)]


def butterfly(t: Transport, mine: Array) -> Array:
    """Recursive doubling: after step k, groups of 2^k ranks have the sums of their groups."""
    total = mine.copy()
    q, r, members = core(t)
    paired = t.rank < 2 * r
    if paired and t.rank % 2:
        t.send(t.rank - 1, total)
        return t.recv(t.rank - 1)
    if paired:
        total += t.recv(t.rank + 1)
    view, distance = Among(t, members), 1
    while distance < q:
        view.send(view.rank ^ distance, total)
        total += view.recv(view.rank ^ distance)
        distance *= 2
    if paired:
        t.send(t.rank + 1, total)
    return total


def halving_doubling(t: Transport, mine: Array) -> Array:
    """Rabenseifner's: a reduce-scatter in which what a rank sums is halved at each step, and the way back."""
    total = mine.copy()
    q, r, members = core(t)
    paired, other = t.rank < 2 * r, t.rank ^ 1
    if paired:  # each of a pair sums one half
        halves = [part(total, 0, 2), part(total, 1, 2)]
        keep, give = halves if t.rank % 2 == 0 else halves[::-1]
        t.send(other, give)
        keep += t.recv(other)
        if t.rank % 2:
            t.send(other, keep)
            return t.recv(other)
        give[:] = t.recv(other)
    view, steps = Among(t, members), []
    first, last = 0, q
    while last - first > 1:
        middle = (first + last) // 2
        lower, upper = slice(first, middle), slice(middle, last)
        peer = view.rank ^ (middle - first)
        kept, given = (lower, upper) if view.rank < peer else (upper, lower)
        view.send(peer, span(total, given, q))
        span(total, kept, q)[:] += view.recv(peer)
        steps.append((peer, kept, given))
        first, last = kept.start, kept.stop
    for peer, kept, given in reversed(steps):
        view.send(peer, span(total, kept, q))
        span(total, given, q)[:] = view.recv(peer)
    if paired:
        t.send(other, total)
    return total


def span(array: Array, parts: slice, k: int) -> Array:
    """Neighbouring ones of k parts, as a view."""
    return array[len(array) * parts.start // k : len(array) * parts.stop // k]


# ---------------------------------------------------------------------------------------------------- machines


def machines(t: Transport, local: int) -> tuple[Among, list[int]]:
    """The ranks of this rank's machine, where each has ``local`` (the last may have fewer), and the first of each."""
    first = t.rank - t.rank % local
    return Among(t, range(first, min(first + local, t.size))), list(range(0, t.size, local))


def hierarchical(t: Transport, mine: Array, local: int) -> Array:
    """A reduce-scatter within each machine, a ring for each part across them, an all-gather within each machine. Each
    of m machines sends 2 (m - 1)/m n over the slow links between them, as one rank of a ring of machines would."""
    if t.size % local:
        raise ValueError(f"{t.size} ranks do not fill machines of {local}: each part needs a rank on every machine.")
    total = mine.copy()
    inside, _ = machines(t, local)
    own = reduce_scatter(inside, total)
    own[:] = ring(Among(t, range(inside.rank, t.size, local)), own)
    all_gather(inside, total)
    return total


def ring_ring_broadcast(t: Transport, mine: Array, local: int) -> Array:
    """A ring within each machine, a ring of the first ranks of all, and a broadcast within each."""
    inside, leaders = machines(t, local)
    total = ring(inside, mine)
    if inside.rank == 0:
        total = ring(Among(t, leaders), total)
    down(inside, total, binomial)
    return total


def star_ring_broadcast(t: Transport, mine: Array, local: int) -> Array:
    """A star in each machine, a ring of the first ranks, which have the sums, and a broadcast in each machine."""
    inside, leaders = machines(t, local)
    total = mine.copy()
    up(inside, total, flat)
    if inside.rank == 0:
        total = ring(Among(t, leaders), total)
    down(inside, total, flat)
    return total


# ---------------------------------------------------------------------------------------------------- sparse

Sparse = tuple[Array, Array]
"""Places, and the values at them."""


def sparse(t: Transport, mine: Sparse) -> Sparse:
    """The sum of sparse arrays: all ranks' places and values go around the ring, and every rank adds them, in the order
    of ranks. A place that several ranks have is one in the result."""
    gathered: dict[int, Sequence[Array]] = {t.rank: mine}
    for step in range(t.size - 1):
        for array in gathered[(t.rank - step) % t.size]:
            t.send((t.rank + 1) % t.size, array)
        left = (t.rank - 1) % t.size
        gathered[(left - step) % t.size] = [t.recv(left), t.recv(left)]
    places, where = np.unique(np.concatenate([gathered[rank][0] for rank in range(t.size)]), return_inverse=True)
    values = np.concatenate([gathered[rank][1] for rank in range(t.size)])
    total = np.zeros(len(places), values.dtype)
    np.add.at(total, where, values)
    return places, total
