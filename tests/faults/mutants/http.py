"""Bugs that only the HTTP side has: held requests that are not woken, disconnections that nobody notices."""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator.runtime.signals import Signals
from coordinator.service import holds
from tests.faults.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("held-check-in-not-woken", "liveness", http=True, rates={}, replicas=1)
def _held_check_in_not_woken() -> Patches:
    """A signal does not cross into the event loop: a held check-in is answered when it reads again by itself."""
    return [(Signals, "_arrive", lambda self, loop: None)]


@mutant("disconnection-not-noticed", "draw", http=True, focus=("device-crash", "selecting"), replicas=1)
def _disconnection_not_noticed() -> Patches:
    """A device that disconnects while its check-in is held stays in the pool."""

    async def never(receive: Any) -> None:
        await asyncio.Event().wait()

    return [(holds, "until_gone", never)]
