"""What a simulated coordinator does in secure rounds that are only quantized: it makes the roster, and adds up the
survivors' lanes.

The lanes are those that the devices would have masked, by the same ``Quantizer`` and the same rounding secrets. Masks
cancel in a sum, so this is the sum that an opening gives, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from client_sdk.protocol.secure import Stage
from client_sdk.secagg.actions import DeviceContribution
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import cut, lane_dtype, pack, packed_bytes
from client_sdk.secagg.quantize import rounding_key
from client_sdk.secagg.roster import MaskingCohort, Roster, RosterEntry, rejoin
from client_sdk.secagg.shamir import SHARE_BYTES
from client_sdk.secagg.share_digests import DIGESTS_BYTES
from client_sdk.secagg.shares import SEALED_BYTES, Bundle
from client_sdk.secagg.statement import SIGNATURE_BYTES
from client_sdk.secagg.unmask import RevealedShares
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.secure.state import SecureRound
from coordinator.runtime.coordinator import Coordinator
from coordinator.secure.blob_formats import sum_bytes
from coordinator.secure.performing import numbers_of, wanted


class UnmaskedRounds:
    """Opens sums in the coordinator's place. ``put_in``: what a device would have masked, by its id."""

    def __init__(self, coordinator: Coordinator, run: str, put_in: Callable[[str], DeviceContribution]) -> None:
        self._coordinator = coordinator
        self._run = run
        self._put_in = put_in
        self._cohort: tuple[str, MaskingCohort] | None = None

    def gather(self, action: fx.Gather, advertised: Mapping[str, RosterEntry]) -> None:
        """Performs the action: the roster is made of these entries, by device. Nobody checks their signatures."""
        log, blobs = self._coordinator.core.log(self._run), self._coordinator.core.blobs
        secure = log.state.secure
        if secure is None or not wanted(log.state, action):
            return
        header = parsed(secure.header)
        roster = Roster.of(header, [advertised[device] for device, _ in action.advertised])
        cohort, digest = rejoin(header, roster), blobs.put(roster.encoded)
        self._cohort = digest, cohort
        numbers: dict[str, Any] = numbers_of(cohort)
        log.submit(
            lambda tx, state, at: ev.Rostered(
                at=at, round=action.round, attempt=action.attempt, digest=digest, **numbers
            )
        )

    def open(self, action: fx.Open) -> None:
        """Performs the action: the round goes on with the sum, or is abandoned where it is no possible one."""
        log, blobs = self._coordinator.core.log(self._run), self._coordinator.core.blobs
        secure = log.state.secure
        if secure is None or not wanted(log.state, action):
            return
        cohort = self.cohort(secure)
        attempt = {"round": action.round, "attempt": action.attempt}
        try:
            packed, weight = self._added(cohort, secure)
        except SecaggError as error:
            reason = str(error)
            log.submit(lambda tx, state, at: ev.OpeningFailed(at=at, lost=(), reason=reason, **attempt))
            return
        stored = sum_bytes(packed, cohort.h)
        digest = blobs.put(stored)
        log.submit(lambda tx, state, at: ev.Opened(at=at, digest=digest, bytes=len(stored), weight=weight, **attempt))

    def cohort(self, secure: SecureRound) -> MaskingCohort:
        """The cohort of the attempt under way, once it has a roster."""
        if self._cohort is None or self._cohort[0] != secure.roster:
            with self._coordinator.core.blobs.open(secure.roster) as file:
                self._cohort = secure.roster, rejoin(parsed(secure.header), Roster.parse(file.read()))
        return self._cohort[1]

    def size_of(self, stage: Stage, secure: SecureRound, device: str) -> int:
        """The bytes of a device's message of this exchange, as a coordinator stores it: with its signature."""
        cohort = self.cohort(secure)
        complete = cohort.parameters.complete
        match stage:
            case "share":
                return SIGNATURE_BYTES + _bundle_bytes(cohort.parameters.holders - complete, own=complete)
            case "mask":
                return SIGNATURE_BYTES + packed_bytes(cohort.header.lanes, cohort.roster.lane_bits)
            case "unmask":
                dealers = len(secure.shared)
                if not complete:
                    near = cohort.graph.neighbours(secure.order.index(device))
                    dealers = sum(secure.order[one] in secure.shared for one in near)
                return SIGNATURE_BYTES + _revealed_bytes(dealers)
            case _:
                return SIGNATURE_BYTES

    def _added(self, cohort: MaskingCohort, secure: SecureRound) -> tuple[bytes, int]:
        """The packed sum of the survivors' lanes, and their weight. SecaggError where it is not possible."""
        header, bits = cohort.header, cohort.roster.lane_bits
        total = np.zeros(header.lanes, lane_dtype(bits))
        for device in secure.masked:
            one = self._put_in(device)
            rounding = rounding_key(one.rounding_secret, header.digest)
            total += header.quantizer.lanes(one.values, one.weight, bits, rounding, one.statistics)
        cut(total, bits)
        return pack(total, bits), header.quantizer.require_possible(total, len(secure.masked))


@lru_cache(maxsize=4)
def parsed(header: str) -> AttemptHeader:
    """The header of an attempt, from the state's hexadecimal digits."""
    return AttemptHeader.parse(bytes.fromhex(header))


@lru_cache
def _bundle_bytes(others: int, *, own: bool) -> int:
    rows = tuple((place, bytes(SEALED_BYTES), bytes(DIGESTS_BYTES)) for place in range(1, others + 1))
    return len(Bundle(0, rows, bytes(DIGESTS_BYTES) if own else b"").encoded)


@lru_cache
def _revealed_bytes(dealers: int) -> int:
    return len(RevealedShares(0, tuple((dealer, 0, bytes(SHARE_BYTES)) for dealer in range(dealers))).encoded)
