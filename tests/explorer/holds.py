"""Requests that a replica holds open until there is an answer, as ``service.routes.Holds`` does with connections.

A held request is called again when its signal is woken, on a timer, and when its sender's certificate expires. It ends
when its hold has expired, when its sender is served no more, when a newer request of the same peer arrives, or when the
peer has disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from client_sdk.protocol.problems import Problem
from coordinator.runtime.coordinator import Coordinator
from tests.explorer.process import Process

BUSY_S = 0.5
"""Seconds until a process that stands still is called again."""

UNCERTIFIED = (401, 403)
"""With which status a held request ends whose sender is not certified, or not registered, any more."""

Call = tuple[str, Callable[[Coordinator], Any]]
"""A call of the coordinator, with its name in the explorer."""


@dataclass(eq=False, slots=True)
class HeldRequest:
    """One request that is held open."""

    peer: str
    key: str
    """The key of the signal that it waits for."""
    message: Any
    """What the peer has sent: which runs may use it."""
    hold_s: float
    valid_s: float
    """How long its sender's certificate is valid, in seconds."""
    is_gone: Callable[[], bool]
    respond: Callable[[Any], None]
    look: Call
    """Returns its answer, or None where there is none yet."""
    over: Call
    """Returns its answer when the hold has expired."""
    on_gone: Call | None = None
    """Called when the peer has disconnected, or is served no more."""


class HeldRequests:
    """The held requests of one replica, the latest of each peer."""

    def __init__(self, replica: Process) -> None:
        self._replica = replica
        self._held: dict[str, HeldRequest] = {}

    def of(self, peer: str) -> HeldRequest | None:
        return self._held.get(peer)

    def waiting_for(self, key: str) -> list[HeldRequest]:
        """The held requests that the signal of this key wakes."""
        return [held for held in self._held.values() if held.key == key]

    def cut(self) -> None:
        """Closes every connection: the process has ended."""
        held, self._held = self._held, {}
        for one in held.values():
            one.respond(None)

    def hold(self, held: HeldRequest) -> None:
        older = self._held.pop(held.peer, None)
        if older is not None:
            self._end(older)
        self._held[held.peer] = held
        world = self._replica.world
        world.agenda.after(min(held.hold_s, world.settings.max_hold_s), self._over, held)
        world.agenda.after(world.settings.reread_s, self._reread, held)
        if held.valid_s < held.hold_s:
            world.agenda.after(held.valid_s + 0.001, self._look, held)

    def woken(self, key: str) -> None:
        """Calls the requests again that wait for this key."""
        for held in self.waiting_for(key):
            self._replica.world.agenda.after(0.001, self._look, held)

    def _reread(self, held: HeldRequest) -> None:
        if self._held.get(held.peer) is held:
            self._look(held)
            self._replica.world.agenda.after(self._replica.world.settings.reread_s, self._reread, held)

    def _look(self, held: HeldRequest) -> None:
        if not self._is_served(held, self._look):
            return
        if held.is_gone():
            del self._held[held.peer]
            if held.on_gone is not None:
                self._replica.attempt(*held.on_gone)
            return
        answer = self._replica.attempt(*held.look)
        if answer is not None and self._held.get(held.peer) is held:
            del self._held[held.peer]
            if isinstance(answer, Problem) and answer.status in UNCERTIFIED and held.on_gone is not None:
                self._replica.attempt(*held.on_gone)
            held.respond(answer)

    def _over(self, held: HeldRequest) -> None:
        if self._is_served(held, self._over):
            del self._held[held.peer]
            self._end(held)

    def _is_served(self, held: HeldRequest, again: Callable[[HeldRequest], None]) -> bool:
        """Whether it is still held by a running process; a process that stands still is called ``again`` later."""
        if self._held.get(held.peer) is not held:
            return False
        if self._replica.busy():
            self._replica.world.agenda.after(BUSY_S, again, held)
            return False
        return True

    def _end(self, held: HeldRequest) -> None:
        held.respond(self._replica.attempt(*held.over))
