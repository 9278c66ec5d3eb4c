"""The sum of the survivors' lanes, out of masked vectors and revealed shares: the server's costly minute.

Knows a cohort, packed vectors and shares, each taken once and in any order. Has never heard of blobs or events. Secrets
are rebuilt and checked before any vector is touched. Then the masked vectors are added up, still masked, and every mask
comes off the sum: no unmasked vector of one device ever exists, and the rebuilt secrets are gone when this returns or
raises.

Memory: one vector of lanes for each worker (they are added up at the end), one packed vector, and blocks: at most 4
models with 3 workers, besides the shares while secrets are rebuilt. Threads help, since key streams and additions leave
the interpreter free. Errors: ``Lost``; BadShare where shares are lacking; BadVector for a sum that no honest survivors
can have; BadMessage.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import numpy as np

from client_sdk.secagg.errors import BadMessage, SecaggError
from client_sdk.secagg.lanes import Lanes, cut, lane_dtype, packed_bytes, unpack
from client_sdk.secagg.masks import Masker, Sign
from client_sdk.secagg.opening import Opened, Opening, unmask
from client_sdk.secagg.roster import Cohort
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.unmask import Revealed

WORKERS = 2
MOST_WORKERS = 3
"""More would hold more than 4 models."""

_BLOCK = 1 << 17
"""Lanes unpacked at once; a multiple of 8, so that a block begins with a whole byte."""

T = TypeVar("T")


class Lost(SecaggError):
    """Secrets that no shares rebuild: their dealers, or too many of their holders, lied."""

    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__(f"the secrets of {len(places)} devices cannot be rebuilt")
        self.places = places


@dataclass(frozen=True)
class Sum:
    """What the round learns, and what was seen on the way."""

    lanes: Lanes
    """The survivors' lanes added up, modulo 2^bits: weight and canary are the last two."""
    weight: int
    set_aside: tuple[tuple[int, tuple[int, ...]], ...]
    """(dealer, holders whose shares of its secret were wrong), by place."""


def open_sum(
    cohort: Cohort,
    survivors: Survivors,
    sharers: Collection[int],
    vectors: Iterable[bytes | memoryview],
    revealed: Iterable[Revealed],
    workers: int = WORKERS,
) -> Sum:
    """The sum of the survivors' ``vectors`` (packed, one each), unmasked with what was ``revealed``.

    ``sharers``: the places whose shares were delivered. ``workers``: threads, 1 to 3.
    """
    opened = _rebuilt(cohort, survivors, sharers, revealed)
    try:
        if opened.lost:
            raise Lost(opened.lost)
        total = _added(cohort, survivors, vectors)
        # An opening of its own, without the shares: they are not needed any more.
        masks = Opening(cohort, survivors, sharers).masks(opened.secrets)
        _unmask(cohort, total, masks, max(1, min(workers, MOST_WORKERS)))
    finally:
        opened.secrets.clear()
    cut(total, cohort.roster.lane_bits)
    weight = cohort.header.quantizer.require_possible(total, len(survivors))
    return Sum(total, weight, tuple(sorted(opened.wrong.items())))


def _rebuilt(cohort: Cohort, survivors: Survivors, sharers: Collection[int], revealed: Iterable[Revealed]) -> Opened:
    opening = Opening(cohort, survivors, sharers)
    for said in revealed:
        opening.take(said)
    return opening.open()


def _added(cohort: Cohort, survivors: Survivors, vectors: Iterable[bytes | memoryview]) -> Lanes:
    """The masked vectors' sum, by blocks: what wraps is a multiple of 2^bits, and cut at the end."""
    count, bits = cohort.header.lanes, cohort.roster.lane_bits
    total = np.zeros(count, lane_dtype(bits))
    added = 0
    for packed in vectors:
        if len(packed) != packed_bytes(count, bits):
            raise BadMessage(f"a masked vector has {len(packed)} bytes, not {packed_bytes(count, bits)}")
        view = memoryview(packed)
        for start in range(0, count, _BLOCK):
            here = min(_BLOCK, count - start)
            first = start // 8 * bits
            total[start : start + here] += unpack(view[first : first + packed_bytes(here, bits)], here, bits)
        added += 1
    if added != len(survivors):
        raise BadMessage(f"{added} masked vectors are there of {len(survivors)} survivors")
    return cast("Lanes", total)


def _unmask(cohort: Cohort, total: Lanes, masks: Iterator[tuple[bytes, Sign]], workers: int) -> None:
    """Takes every mask off ``total``, in place. Each worker but the first adds up on its own and is added at the
    end."""
    shared = _Shared(masks)

    def work(part: Lanes) -> Lanes:
        unmask(part, shared, Masker(cohort.header.cipher, cohort.roster.lane_bits))
        return part

    if workers == 1:
        work(total)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="unmask") as pool:
        parts = [total, *(np.zeros_like(total) for _ in range(workers - 1))]
        for done in list(pool.map(work, parts))[1:]:
            total += done


class _Shared(Generic[T]):
    """An iterator that several threads empty together."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)
