"""Computes the sum of the survivors' lanes from masked vectors and revealed shares.

Secrets are rebuilt and checked before any vector is read. Then the masked vectors are added, still masked, and every
mask is removed from the sum: no device's own vector is ever unmasked, and the rebuilt secrets are deleted when this
returns or raises.

Memory: two vectors of lanes, or one and a packed one, and a block of key stream for each worker: about 2 models,
besides the shares while secrets are rebuilt and the masks' seeds. Threads help where there are cores, since key streams
and additions release the interpreter lock; each has a part of the lanes, so they share one sum. Errors: ``Lost``;
BadShare where shares are missing; BadVector for a sum that honest survivors cannot have; BadMessage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from client_sdk.secagg.errors import BadMessage, SecaggError
from client_sdk.secagg.lanes import Lanes, LaneSum, cut, packed_bytes
from client_sdk.secagg.masks import Masker, Sign
from client_sdk.secagg.noise import signed
from client_sdk.secagg.opening import OpenedSum, Opening, unmask
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.survivors import RevealedShares, Survivors

MakeMasker = Callable[[int], Masker]
"""Makes what adds the masks of lanes of so many bits, or takes them away."""

WORKERS = 2
MOST_WORKERS = 16
"""Each holds a block of key stream, half a mebibyte."""

_WHOLE = 1 << 16
"""A worker's part of the lanes is a multiple of this: whole blocks of key stream."""


class Lost(SecaggError):
    """Secrets that the shares do not rebuild. Each share matches the digest that its dealer signed, so the dealers
    cheated."""

    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__(f"the shares that {len(places)} devices dealt do not give the secrets they committed to")
        self.places = places


@dataclass(frozen=True)
class Sum:
    """The sum that the round learns."""

    lanes: Lanes
    """The sum of the survivors' lanes, modulo 2^bits: the digits of the weight and the canary are the last."""
    weight: int


def open_sum(
    cohort: MaskingCohort,
    survivors: Survivors,
    sharers: Collection[int],
    vectors: Iterable[bytes | memoryview],
    revealed: Iterable[RevealedShares],
    workers: int = WORKERS,
    masker: MakeMasker = Masker,
    lacks: Mapping[int, Collection[int]] | None = None,
) -> Sum:
    """The sum of the survivors' ``vectors`` (packed, one each), unmasked with what was ``revealed``: shares that were
    compared with their digests when they arrived (``validation.revealed``).

    ``sharers``: the places whose shares were delivered. ``workers``: threads, 1 to 16. ``masker``: removes masks.
    ``lacks``: see ``Opening``.
    """
    opened = _rebuilt(cohort, survivors, sharers, revealed)
    try:
        if opened.lost:
            raise Lost(opened.lost)
        total = _added(cohort, survivors, vectors)
        # A new Opening without the shares, so that they can be freed.
        masks = Opening(cohort, survivors, sharers, lacks).masks(opened.secrets)
        _unmask(cohort, total, masks, max(1, min(workers, MOST_WORKERS)), masker)
    finally:
        opened.secrets.clear()
    cut(total, cohort.roster.lane_bits)
    spread = cohort.header.spread(cohort.n)
    found = signed(total, cohort.roster.lane_bits, spread)
    weight = cohort.header.quantizer.require_possible(found, len(survivors), spread)
    return Sum(total, weight)


def _rebuilt(
    cohort: MaskingCohort, survivors: Survivors, sharers: Collection[int], revealed: Iterable[RevealedShares]
) -> OpenedSum:
    opening = Opening(cohort, survivors, sharers)
    for shares in revealed:
        opening.take(shares)
    return opening.open()


def _added(cohort: MaskingCohort, survivors: Survivors, vectors: Iterable[bytes | memoryview]) -> Lanes:
    """The masked vectors' sum."""
    count, bits = cohort.header.lanes, cohort.roster.lane_bits
    total, added = LaneSum(count, bits), 0
    for packed in vectors:
        if len(packed) != packed_bytes(count, bits):
            raise BadMessage(f"a masked vector has {len(packed)} bytes, not {packed_bytes(count, bits)}")
        total.add(packed)
        added += 1
    if added != len(survivors):
        raise BadMessage(f"{added} masked vectors are there of {len(survivors)} survivors")
    return total.total()


def _unmask(
    cohort: MaskingCohort, total: Lanes, masks: Iterable[tuple[bytes, Sign]], workers: int, masker: MakeMasker
) -> None:
    """Remove every mask from ``total``, in place. Each worker removes all masks from its part of the lanes."""
    bits = cohort.roster.lane_bits
    if workers == 1:
        unmask(total, masks, masker(bits))
        return
    seeds = list(masks)
    part = -(-total.size // (workers * _WHOLE)) * _WHOLE

    def work(first: int) -> None:
        unmask(total[first : first + part], seeds, masker(bits), first)

    with ThreadPoolExecutor(workers, thread_name_prefix="unmask") as pool:
        list(pool.map(work, range(0, total.size, part)))
