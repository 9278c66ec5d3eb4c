"""Primitives of secure rounds that hide nothing, for simulations whose rounds are only quantized.

A masking device that is given them plays its whole session: it agrees, trains, draws its keys and its nonce, signs, and
sends messages of the same sizes. But no secret is agreed on, every holder gets the secret itself as its share, nothing
is sealed, vectors have no masks, and what the coordinator has checked, or a dealer of this process has dealt, is not
checked once more by each device. So the sum has the same bits, at a cost that no longer grows with the square of the
cohort's cryptography.

An import contract keeps this module from devices, coordinators and fleets, and no plan, header, environment variable or
option names it: ``Simulation`` alone gives these to its devices and to its coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.roster import MaskingCohort, Roster, rejoin_all
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.shares import TAG_BYTES, SharePair


class NoMasks(Masker):
    """Adds nothing to a vector."""

    def __init__(self, bits: int) -> None:
        pass

    def apply(self, *given: Any) -> None:
        pass

    def wipe(self) -> None:
        pass


def _split(secret: bytes, holders: Sequence[int], threshold: int, source: object) -> list[bytes]:
    """The values of the polynomial that is constant: any t of them rebuild the secret."""
    return [secret.rjust(SHARE_BYTES, b"\0")] * len(holders)


def _seal(agreed: bytes, h: bytes, dealer: object, holder: object, pair: SharePair) -> bytes:
    return pair.self_mask + pair.mask_key + bytes(TAG_BYTES)


class _AsDealt(SharePair):
    """A pair that nobody has changed on its way. The coordinator still compares what is revealed of it."""

    def require_dealt(self, h: bytes, dealer: int, holder: int, digests: bytes) -> None:
        pass


def _unseal(agreed: bytes, h: bytes, dealer: object, holder: object, sealed: bytes) -> SharePair:
    return _AsDealt(sealed[:SHARE_BYTES], sealed[SHARE_BYTES : 2 * SHARE_BYTES])


@lru_cache(maxsize=2)
def _cohorts(header: bytes, roster: bytes) -> dict[str, MaskingCohort]:
    """Device -> the cohort of its group, which all devices of the group share."""
    groups = rejoin_all(AttemptHeader.parse(header), Roster.parse(roster))
    return {cohort.device(place): cohort for cohort in groups for place in range(cohort.n)}


NULL = Primitives(
    split=_split,
    seal=_seal,
    unseal=_unseal,
    masker=NoMasks,
    agree=lambda key, public: b"",
    pair_seed=lambda agreed, h, one, other: b"",
    roster=lru_cache(maxsize=2)(Roster.parse),
    join=lambda header, roster, vouched, near: _cohorts(header.encoded, roster.encoded)[near],
    prove=lambda proof, cohort, place, survivors: None,
)
