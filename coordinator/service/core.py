"""What the routes of a coordinator share: the coordinator itself, its signals, and what any service has.

Held check-ins and event streams need no thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive

from coordinator.runtime.signals import Signals
from coordinator.service.observe import Meters
from coordinator.service.serving import Serving
from coordinator.settings import Settings

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator


class Service(Serving):
    """One process's HTTP side of a coordinator. Lives as ``app.state.service``."""

    def __init__(self, coordinator: Coordinator, settings: Settings, signals: Signals) -> None:
        super().__init__(settings, Meters(coordinator))
        self.coordinator = coordinator
        self.signals = signals

    def stop(self) -> None:
        super().stop()
        self.signals.wake_all()


async def until_gone(receive: Receive) -> None:
    """Returns when the peer has closed its connection. Drops what the peer still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
