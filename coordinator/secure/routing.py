"""What each device is shown in each exchange: its peers' sealed shares, the survivors, their signatures.

Knows places and messages. What is shown to one device is what is shown to all, but for the shares, which are for its
eyes alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.survivors import Proof


class Deliveries:
    """The bundles of all who shared, turned around: from each dealer's shares for its peers to each peer's shares.

    Memory: the bundles' own (7.4 MB for 300 devices), however many deliveries are made.
    """

    def __init__(self, cohort: MaskingCohort, bundles: Iterable[Bundle]) -> None:
        """``bundles``: checked when they came (``intake.shared``), each dealer's once."""
        self._cohort = cohort
        self._sealed: dict[int, tuple[tuple[int, ...], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
        for bundle in bundles:
            pieces = np.frombuffer(b"".join(sealed for _, sealed in bundle.sealed), np.uint8)
            self._sealed[bundle.owner] = (bundle.places, pieces.reshape(-1, SEALED_BYTES))

    def to(self, place: int) -> Bundle:
        """What its neighbours sealed for the device at ``place``, for those of them that shared."""
        found = []
        for dealer in self._cohort.graph.neighbours(place):
            if dealer in self._sealed:
                places, pieces = self._sealed[dealer]
                found.append((dealer, pieces[bisect_left(places, place)].tobytes()))
        return Bundle(place, tuple(found))


def proof(signatures: Iterable[tuple[int, bytes]]) -> Proof:
    """The signatures (place, 64 bytes) under the survivor list, in the order in which they are shown."""
    return Proof(tuple(sorted(signatures)))
