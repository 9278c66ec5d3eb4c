"""The network between devices and replicas: it loses, delays, reorders, and delivers again what it has delivered.

A request and its answer are two deliveries, and each may fail alone. A request arrives again because its sender sends
it again, signed afresh, or because the network repeats it as it was: a replay. Where the schedule's shape has it,
messages are converted to JSON and back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from client_sdk.device.actions import Send
from client_sdk.protocol.names import Message
from client_sdk.protocol.problems import Problem
from client_sdk.protocol.secure import Octets
from tests.explorer.replica import Replica
from tests.explorer.request import Answer, SentRequest
from tests.explorer.secure.lies import forged
from tests.explorer.serving import serve
from tests.explorer.world import World

M = TypeVar("M", Message, Problem)

TIMEOUT_S = 60.0
"""Seconds after which a sender stops waiting for an answer, beyond the hold of its request."""
REPLAYS_S = ((0.002, 0.1), (0.1, 5.0), (5.0, 60.0), (60.0, 200.0))
"""After how many seconds a request is replayed: at once, soon, within its time, and beyond it."""


class Network:
    def __init__(self, world: World, replicas: Sequence[Replica]) -> None:
        self._world = world
        self._replicas = replicas
        self.closed = False
        """Whether nothing arrives any more."""

    def send(self, request: SentRequest, respond: Callable[[Answer], None], hold_s: float = 0.0) -> None:
        """Delivers once, as a rule. ``respond`` is called at most once: with the answer, or None where there is
        none."""
        world, event = self._world, request.event
        answered_once = [False]

        def first(answer: Answer) -> None:
            if not answered_once[0]:
                answered_once[0] = True
                respond(answer)

        def ignore(_: Answer) -> None:
            """The answer to a copy is dropped."""

        if world.shape.wire and isinstance(request.send, Send) and request.send.message is not None:
            request.send = replace(request.send, message=_through_json(request.send.message))
        if world.strikes("lose-request", event):
            world.tally.lost += 1
            world.log(f"a request is lost: {event}")
            world.agenda.after(world.chance.pick("noticed", (0.01, TIMEOUT_S)), first, None)
            return
        world.agenda.after(self._delay(event), self._arrive, request, first)
        if world.strikes("duplicate", event):
            world.tally.duplicated += 1
            world.log(f"a request is sent twice: {event}")
            world.agenda.after(self._delay(event), self._arrive, replace(request), ignore)
        if world.strikes("redeliver-late", event):
            world.tally.duplicated += 1
            late_s = world.chance.between("late-s", 20.0, 200.0)
            world.log(f"a request will be sent again {late_s:.0f} s later: {event}")
            world.agenda.after(late_s, self._arrive_afresh, request, ignore)
        if world.strikes("replayed", event):
            world.tally.duplicated += 1
            low_s, high_s = world.chance.pick("replay", REPLAYS_S)
            after_s = world.chance.between("replay-s", low_s, high_s)
            world.log(f"a request will be replayed {after_s:.1f} s later: {event}")
            world.agenda.after(after_s, self._arrive, request, ignore)
        world.agenda.after(TIMEOUT_S + hold_s, first, None)

    def _arrive_afresh(self, request: SentRequest, respond: Callable[[Answer], None]) -> None:
        """Its sender sends it again, and signs it now."""
        self._arrive(replace(request), respond)

    def _delay(self, event: str) -> float:
        if self._world.strikes("delay", event):
            return self._world.chance.between("delay-s", 1.0, 30.0)
        return self._world.chance.between("way", 0.002, 0.1)

    def _arrive(self, request: SentRequest, respond: Callable[[Answer], None]) -> None:
        if self.closed:
            return
        world = self._world
        replica = self._choose()
        if replica is None:
            respond(None)
            return
        if replica.busy():
            world.agenda.after(0.7, self._arrive, request, respond)
            return

        def answered(answer: Answer) -> None:
            if answer is None:
                respond(None)
                return
            if world.strikes("lose-answer", request.event):
                world.tally.lost += 1
                world.log(f"an answer is lost: {request.event}")
                return
            if isinstance(answer, Octets):
                answer = forged(world, request, answer)
            if world.shape.wire and isinstance(answer, Message) and not isinstance(answer, Octets):
                answer = _through_json(answer)
            world.agenda.after(self._delay(request.event), respond, answer)

        serve(world, replica, request, answered)

    def _choose(self) -> Replica | None:
        """Returns a running replica, as a load balancer chooses one."""
        alive = [replica for replica in self._replicas if replica.up]
        return self._world.chance.pick("replica", alive) if alive else None


def _through_json(message: M) -> M:
    return type(message).model_validate_json(message.model_dump_json())
