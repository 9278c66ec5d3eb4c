"""What an all-reduce costs over a link, by algorithm, and which algorithm is the cheapest from which size on.

A message of x bytes takes alpha + beta x seconds, and adding x bytes takes gamma x. A rank sends one message and
receives one at a time. With n bytes on p ranks, L = ceil(log2 p), q the largest power of two up to p, r = p - q:

================== =============================================================== =========================
algorithm          seconds                                                         source
================== =============================================================== =========================
star               2(p-1)(alpha + n beta) + (p-1) n gamma                          one parameter server
ring               2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma                Patarasuk and Yuan 2009
tree               2L(alpha + n beta) + L n gamma                                  binomial, there and back
two-tree           2L(alpha + n/2 beta) + L n gamma                                Sanders, Speck, Traeff 2009
doubling           (log2 q + [2 if r])(alpha + n beta) + (log2 q + [1 if r]) n     recursive doubling; Thakur,
                   gamma                                                           Rabenseifner, Gropp 2005
halving-doubling   2 log2 q alpha + 2(q-1)/q n beta + (q-1)/q n gamma              Rabenseifner; as *doubling*
                   [+ 3 alpha + 2 n beta + n/2 gamma if r]
hierarchical       ring's reduce-scatter inside a machine, a ring across for each  sum of its parts
                   shard, ring's all-gather inside
leaders            star inside a machine, ring of one rank a machine               sum of its parts
================== =============================================================== =========================

Two-tree is the form without pipelining, in which a rank serves two children at once. Sending directly to all, as p
sharded servers do, costs as much as the ring where a rank has one port. All are straight lines in n, so the sizes at
which another algorithm becomes the cheapest are computed, not tabulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Link(NamedTuple):
    """What a message costs: ``alpha_s`` seconds, and ``beta_s`` more for each byte."""

    alpha_s: float
    beta_s: float

    def shared(self, flows: float) -> Link:
        """The link of one of so many messages that pass it at the same time."""
        return Link(self.alpha_s, self.beta_s * max(1.0, flows))


LINKS = {
    "nvlink": Link(2e-6, 1 / 300e9),
    "nvlink2": Link(2e-6, 1 / 150e9),
    "pcie": Link(5e-6, 1 / 16e9),
    "rdma": Link(5e-6, 1 / 42e9),
    "ethernet100": Link(30e-6, 1 / 12.5e9),
    "ethernet25": Link(30e-6, 1 / 3.1e9),
}
"""Bytes a second in each direction are what vendors and the literature give: NVLink 3 and 2 of one GPU, PCIe 4 with 16
lanes, 42 GB/s measured over four cards of 100 Gb/s with RDMA, Ethernet's bits over eight. The seconds of a message are
assumptions of their order of size."""


class Line(NamedTuple):
    """Seconds as a function of bytes: ``fixed_s`` and ``per_byte_s`` for each."""

    fixed_s: float
    per_byte_s: float

    def seconds(self, size: float) -> float:
        return self.fixed_s + size * self.per_byte_s

    def __add__(self, other: Line) -> Line:  # type: ignore[override]
        return Line(self.fixed_s + other.fixed_s, self.per_byte_s + other.per_byte_s)


def flat(p: int, link: Link, gamma_s: float = 0.0) -> dict[str, Line]:
    """The algorithms that treat all of ``p`` ranks alike, over one link; ``gamma_s``: seconds to add a byte."""
    a, b, g = link.alpha_s, link.beta_s, gamma_s
    if p == 1:
        return {"none": Line(0.0, 0.0)}
    levels, log = (p - 1).bit_length(), p.bit_length() - 1
    q, rest = 2**log, p > 2**log
    return {
        "ring": Line(2 * (p - 1) * a, (p - 1) / p * (2 * b + g)),
        "halving-doubling": Line((2 * log + 3 * rest) * a, (q - 1) / q * (2 * b + g) + rest * (2 * b + g / 2)),
        "doubling": Line((log + 2 * rest) * a, (log + 2 * rest) * b + (log + rest) * g),
        "two-tree": Line(2 * levels * a, levels * (b + g)),
        "tree": Line(2 * levels * a, levels * (2 * b + g)),
        "star": Line(2 * (p - 1) * a, (p - 1) * (2 * b + g)),
    }


def hierarchical(inside: int, machines: int, near: Link, far: Link, gamma_s: float = 0.0) -> Line:
    """Rings inside machines and across: each rank sends its shard, 1/``inside`` of the bytes, over ``far``."""
    across = flat(machines, far, gamma_s)["ring"]
    return flat(inside, near, gamma_s)["ring"] + Line(across.fixed_s, across.per_byte_s / inside)


def leaders(inside: int, machines: int, near: Link, far: Link, gamma_s: float = 0.0) -> Line:
    """A star inside machines, and a ring of their leaders."""
    return flat(inside, near, gamma_s)["star"] + flat(machines, far, gamma_s)["ring"]


def cheapest(lines: Mapping[str, Line], size: float) -> str:
    """The algorithm that takes the fewest seconds for ``size`` bytes; of equal ones the first."""
    return min(lines, key=lambda name: lines[name].seconds(size))


def crossings(lines: Mapping[str, Line]) -> list[tuple[float, str]]:
    """(bytes, algorithm): from so many bytes on this one is the cheapest. The first begins at 0 bytes."""
    best = min(lines, key=lambda name: lines[name])
    found = [(0.0, best)]
    while steps := [
        ((line.fixed_s - lines[best].fixed_s) / (lines[best].per_byte_s - line.per_byte_s), line.per_byte_s, name)
        for name, line in lines.items()
        if line.per_byte_s < lines[best].per_byte_s
    ]:
        size, _, best = min(steps)
        found.append((size, best))
    return found
