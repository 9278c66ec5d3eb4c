"""The mask graph: a complete graph, or a ring in random order in which each device has its k nearest neighbours.

The order is computed from all devices' nonces in integers, so every device builds the same graph and can check its own
place in it. A ring with k nearest neighbours (Harary 1962) stays connected until k devices are removed. In random order
(Bell et al. 2020, ePrint 2020/704) a device's neighbours are a random k of the others, which is all that
``parameters`` assumes. Nobody controls the order as long as one nonce is honest and unknown beforehand, except by the
choice of devices: 2^g tries of the membership cost g bits of sigma.

A ring, and not another random graph, since its connectivity is exactly k: what can disconnect it is known, and no
bound as sharp is known to us for others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from client_sdk.secagg.agreement import KeyStream
from client_sdk.secagg.errors import BadParameters
from client_sdk.secagg.statement import DOMAIN

NONCE_BYTES = 32


class MaskGraph:
    """The neighbours of each of n devices. The graph is symmetric and regular, and has no loops."""

    def __init__(self, n: int, neighbours: int, order: Sequence[int] | None = None) -> None:
        """``order``: the devices around the ring; None for a complete graph, where ``neighbours`` is n - 1."""
        if n < 2 or not 1 <= neighbours <= n - 1:
            raise BadParameters(f"{n} devices cannot have {neighbours} neighbours each")
        if order is None and neighbours != n - 1:
            raise BadParameters("only a complete graph needs no order")
        if order is not None and (neighbours % 2 or sorted(order) != list(range(n))):
            raise BadParameters("a ring is an order of all devices, and has an even number of neighbours")
        self.n = n
        self.degree = neighbours
        self._order = tuple(order) if order is not None else None
        self._place = {device: place for place, device in enumerate(order)} if order is not None else {}

    @classmethod
    def of(cls, neighbours: int, nonces: Sequence[bytes]) -> MaskGraph:
        """The graph of the devices that gave these ``nonces`` (32 bytes each, in roster order)."""
        n = len(nonces)
        if any(len(nonce) != NONCE_BYTES for nonce in nonces):
            raise BadParameters(f"a nonce is {NONCE_BYTES} bytes")
        return cls(n, neighbours, None if neighbours == n - 1 else ring_order(nonces))

    def neighbours(self, device: int) -> tuple[int, ...]:
        """The places in the roster of the neighbours of ``device``, in ascending order."""
        if not 0 <= device < self.n:
            raise BadParameters(f"there is no device {device} among {self.n}")
        if self._order is None:
            return tuple(other for other in range(self.n) if other != device)
        place = self._place[device]
        steps = range(1, self.degree // 2 + 1)
        return tuple(sorted(self._order[(place + sign * step) % self.n] for step in steps for sign in (1, -1)))

    def holders(self, device: int) -> tuple[int, ...]:
        """The places that hold shares of the secrets of ``device``: its neighbours, and in a complete graph its own."""
        return tuple(range(self.n)) if self._order is None else self.neighbours(device)


def groups_of(nonces: Sequence[bytes], groups: int) -> tuple[tuple[int, ...], ...]:
    """The places of each group's devices, ascending: a uniformly random division of all, computed from all nonces, as
    even as can be. The order of ``ring_order``, for another purpose, is dealt out in turn."""
    order = list(range(len(nonces))) if groups == 1 else ring_order(nonces, b"groups")
    return tuple(tuple(sorted(order[group::groups])) for group in range(groups))


def ring_order(nonces: Sequence[bytes], purpose: bytes = b"ring") -> list[int]:
    """A uniformly random order of the devices 0 ... n - 1, computed from all nonces.

    Fisher-Yates shuffle, from the last place down: place i is swapped with a place drawn from 0 ... i, by 32-bit
    big-endian words of AES-256-CTR under SHA-256(domain, purpose, n, nonces). Words that would cause bias are skipped.
    """
    key = hashlib.sha256(DOMAIN + purpose + len(nonces).to_bytes(4, "big") + b"".join(nonces)).digest()
    words = _words(key)
    order = list(range(len(nonces)))
    for place in range(len(nonces) - 1, 0, -1):
        bound = place + 1
        fair = (1 << 32) - (1 << 32) % bound
        word = next(words)
        while word >= fair:
            word = next(words)
        other = word % bound
        order[place], order[other] = order[other], order[place]
    return order


def _words(key: bytes) -> Iterator[int]:
    stream = KeyStream(4096)
    stream.start(key)
    while True:
        yield from stream.take(4096).view(">u4").tolist()
