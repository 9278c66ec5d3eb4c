"""What devices and workers ask of the explorer's authority, and how a session may end for want of a certificate."""

from __future__ import annotations

from collections.abc import Callable

from client_sdk.device.actions import Certified, Certify, RequestRefused, Unreachable
from client_sdk.protocol.problems import Problem
from tests.explorer.holders import authority_ref
from tests.explorer.sender import RequestSender
from tests.explorer.world import World

UNCERTIFIED = ("enrolment-refused", "expired-certificate", "not-certified")
"""With which problems a session ends whose certificate was not renewed in time."""
PERSON_S = 5.0
"""Seconds until a person brings a new enrolment token."""

Respond = Callable[[Certified | RequestRefused | Unreachable], None]


def certify(world: World, sender: RequestSender, action: Certify, name: str, respond: Respond) -> None:
    """Asks the authority for ``name``, which may be silent until the present certificate has expired."""
    if action.what == "renew" and world.strikes("certificate-expires", name):
        world.authority.is_silenced_for(sender.holder)
        world.log(f"the authority is silent until {name}'s certificate has expired")

    def ask() -> None:
        answer, at = world.authority.ask(action.what, sender.holder, action.token), sender.now()
        if answer is None:
            respond(Unreachable("The authority does not answer.", at))
        elif isinstance(answer, Problem):
            respond(RequestRefused(answer, at))
        else:
            world.log(f"{name} has a certificate until {answer.not_after - int(world.agenda.now)} s from now")
            respond(Certified(answer, at, authority_ref().public_key))

    world.agenda.after(world.chance.between("certify-s", 0.01, 0.2), ask)
