"""What the server of this process says of itself in ``/v1/system``, and the task that notes that it is alive."""

from __future__ import annotations

import asyncio

import structlog

from client_sdk.protocol.insight import GroupRequests
from coordinator.runtime.insight.insight import Insight
from coordinator.service.observe import Meters
from coordinator.store.port import StoreError

NOTE_S = 30.0
"""Seconds between two notes."""

log = structlog.get_logger("coordinator.service")


class MeterReport:
    """The ``ProcessReport`` of a service, from its meters."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def requests(self) -> list[GroupRequests]:
        return self._meters.times.view()

    def streams(self) -> int:
        return self._meters.open_streams

    def viewers(self) -> int:
        return self._meters.viewers


async def keep_noting(insight: Insight) -> None:
    """Notes what is counted by time, until it is cancelled. A database that does not answer stops nothing."""
    failed = False
    while True:
        try:
            await asyncio.to_thread(insight.note)
            failed = False
        except StoreError as error:
            if not failed:
                log.warning("what is counted by time was not noted; trying on", reason=str(error))
            failed = True
        await asyncio.sleep(NOTE_S)
