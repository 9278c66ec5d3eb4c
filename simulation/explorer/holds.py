"""Check-ins that a replica holds open until there is work, as ``service.polls`` does with connections.

A held check-in looks again when its device's signal rings, and on a timer; ends when its time is up, when a newer one
of the same device comes, or when its device has gone. Knows nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_sdk.protocol import CheckIn

if TYPE_CHECKING:
    from simulation.explorer.replica import Replica

BUSY_S = 0.5
"""When a process that stands still is asked again."""


@dataclass(eq=False, slots=True)
class Held:
    """One check-in that is held open."""

    device: str
    message: CheckIn
    gone: Callable[[], bool]
    respond: Callable[[Any], None]


class Holds:
    """Those of one replica, the latest of each device."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._held: dict[str, Held] = {}

    def of(self, device: str) -> Held | None:
        return self._held.get(device)

    def cut(self) -> None:
        """The process is gone, and with it every connection."""
        held, self._held = self._held, {}
        for one in held.values():
            one.respond(None)

    def hold(self, held: Held) -> None:
        older = self._held.pop(held.device, None)
        if older is not None:
            self._end(older)
        self._held[held.device] = held
        world = self._replica.world
        world.agenda.after(min(held.message.hold_s, world.settings.max_hold_s), self._over, held)
        world.agenda.after(world.settings.reread_s, self._reread, held)

    def rung(self, device: str) -> None:
        """The device's signal: it may have work."""
        held = self._held.get(device)
        if held is not None:
            self._replica.world.agenda.after(0.001, self._look, held)

    def _reread(self, held: Held) -> None:
        if self._held.get(held.device) is held:
            self._look(held)
            self._replica.world.agenda.after(self._replica.world.settings.reread_s, self._reread, held)

    def _look(self, held: Held) -> None:
        if not self._is_served(held, self._look):
            return
        if held.gone():
            del self._held[held.device]
            self._replica.attempt("leave", lambda coordinator: coordinator.leave(held.device))
            return
        answer = self._replica.attempt("assignment", lambda coordinator: coordinator.assignment(held.device))
        if answer is not None and self._held.get(held.device) is held:
            del self._held[held.device]
            held.respond(answer)

    def _over(self, held: Held) -> None:
        if self._is_served(held, self._over):
            del self._held[held.device]
            self._end(held)

    def _is_served(self, held: Held, again: Callable[[Held], None]) -> bool:
        """Whether it is still held, by a process that goes on; one that stands still is asked ``again`` later."""
        if self._held.get(held.device) is not held:
            return False
        if self._replica.busy():
            self._replica.world.agenda.after(BUSY_S, again, held)
            return False
        return True

    def _end(self, held: Held) -> None:
        answer = self._replica.attempt(
            "hold-over", lambda coordinator: coordinator.hold_over(held.device, held.message)
        )
        held.respond(answer)
