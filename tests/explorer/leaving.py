"""How a device leaves the coordinator, and what somebody tries with the identity that it had."""

from __future__ import annotations

from collections.abc import Callable

from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Assignment, CheckIn, Noted, Registered, Registration, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from tests.explorer.request import Answer
from tests.explorer.sender import RequestSender
from tests.explorer.world import World

AGAIN_S = 2.0
TRIES = 3
"""How often somebody tries the identity of a device that has left,"""
TRIES_S = 40.0
"""within so many seconds."""


def leaving(world: World, sender: RequestSender, left: Callable[[], None]) -> None:
    """Asks until the coordinator has forgotten the device, or knows it no more; then calls ``left``."""
    send = Send(method="POST", route=Route.LEAVE, answers=(Noted,))

    def answered(answer: Answer) -> None:
        if isinstance(answer, Noted) or (isinstance(answer, Problem) and answer.kind == "unregistered"):
            left()
        elif not isinstance(answer, Problem) or answer.advice == "retry":
            world.agenda.after(AGAIN_S, leaving, world, sender, left)

    sender.send(send, answered)


def try_again(world: World, sender: RequestSender, certificate: str) -> None:
    """Registers with the certificate of a device that has left, or whose key is revoked, and checks in. What may come
    of it: ``admission``. Nothing where the device was never certified."""
    if not certificate:
        return
    asked = Registration(certificate=certificate, label="has left")
    register = Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=asked)
    check_in = Send(method="POST", route=Route.CHECK_IN, answers=(Assignment, Wait), message=CheckIn(hold_s=0))

    def ignore(_: Answer) -> None:
        """The answer is of no interest."""

    for _ in range(TRIES):
        after_s = world.chance.between("tries-again", 0.0, TRIES_S)
        world.agenda.after(after_s, sender.send, register, ignore)
        world.agenda.after(after_s + 0.5, sender.send, check_in, ignore)
