"""The answers that differ from device to device, the sealed shares of its peers; and the proof of the survivor list."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.survivors import Proof


class Deliveries:
    """The bundles of all sharers, transposed: from each dealer's shares for its peers to each peer's shares.

    Memory: the bundles' own (7.4 MB for 300 devices), however many deliveries are made.
    """

    def __init__(self, cohort: MaskingCohort, bundles: Iterable[Bundle]) -> None:
        """``bundles``: one of each dealer, checked when it arrived (``validation.shared``)."""
        self._cohort = cohort
        self._sealed: dict[int, tuple[tuple[int, ...], np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]] = {}
        for bundle in bundles:
            pieces = np.frombuffer(b"".join(sealed for _, sealed in bundle.sealed), np.uint8)
            self._sealed[bundle.owner] = (bundle.places, pieces.reshape(-1, SEALED_BYTES))

    def to(self, place: int) -> Bundle:
        """The shares that the neighbours of the device at ``place`` sealed for it, of those that shared."""
        found = []
        for dealer in self._cohort.graph.neighbours(place):
            if dealer in self._sealed:
                places, pieces = self._sealed[dealer]
                found.append((dealer, pieces[bisect_left(places, place)].tobytes()))
        return Bundle(place, tuple(found))


def proof(signatures: Iterable[tuple[int, bytes]]) -> Proof:
    """The proof of these signatures (place, 64 bytes) of the survivor list, ascending by place."""
    return Proof(tuple(sorted(signatures)))
