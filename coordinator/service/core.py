"""What the routes of a coordinator share: the coordinator itself, its signals, and what any service has.

Held check-ins and event streams need no thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from starlette.types import Receive

from coordinator.access import Operator
from coordinator.requests import Caller
from coordinator.runtime import log_context
from coordinator.runtime.identities import Registrant
from coordinator.runtime.signals import Signals
from coordinator.service.limits.admission import LOCAL, Sender
from coordinator.service.observe import Meters
from coordinator.service.serving import Serving
from coordinator.service.stream_slots import stream_slots
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, WorkerRow

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator


class Service(Serving):
    """One process's HTTP side of a coordinator. Lives as ``app.state.service``."""

    def __init__(self, coordinator: Coordinator, settings: Settings, signals: Signals) -> None:
        super().__init__(settings, Meters(coordinator))
        self.coordinator = coordinator
        self.signals = signals
        self.stream_slots = stream_slots(settings.streams, "event streams")
        self.viewer_slots = stream_slots(settings.viewers, "viewers")
        self.meters.streams.set_function(lambda: self.stream_slots.amount)
        self.meters.viewers.set_function(lambda: self.viewer_slots.amount)

    def stop(self) -> None:
        super().stop()
        self.signals.wake_all()

    def count(self, caller: Caller, sender: Sender = LOCAL) -> Caller:
        """Counts a request of this caller, whom the log names from now on, and returns the caller. Operators are
        counted where their address is. ProblemError *too-many-requests*."""
        name = caller_name(caller)
        if name is not None:
            kind, _, own = name.partition(":")
            log_context.known(**{kind: own})
            if sender.key or not isinstance(caller, Operator):
                self.admission.caller(name)
        return caller


def caller_name(caller: Caller) -> str | None:
    """The name under which a caller is counted: ``device:d-1``; None: it is nobody."""
    match caller:
        case DeviceRow():
            return f"device:{caller.device}"
        case WorkerRow():
            return f"worker:{caller.worker}"
        case Operator():
            return f"operator:{caller.id}"
        case Registrant():
            return f"{caller.certificate.holder}:{caller.certificate.id}"
        case None:
            return None
        case _:
            assert_never(caller)


async def until_gone(receive: Receive) -> None:
    """Returns when the peer has closed its connection. Drops what the peer still sends."""
    while (await receive())["type"] != "http.disconnect":
        pass
