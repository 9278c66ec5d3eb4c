"""A device leaves and is forgotten: what is told to whom, and what is still kept afterwards.

Told, in this sequence: the coordinator, the authority, the device's own folder. Each may be told again, so who is
interrupted asks once more. What the device has signed in secure rounds is never deleted: a device that forgot it could
be made to sign for two groups of survivors, which would open a single device's update.
"""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Noted, Registered, Registration
from client_sdk.protocol.names import Route

TELL_COORDINATOR = Send(method="POST", route=Route.LEAVE, answers=(Noted,))


def registration(certificate: str) -> Send:
    """Of a certificate that the coordinator has not seen yet: it knows the device by an older one, and forgets it only
    at the request of who holds the newest."""
    message = Registration(certificate=certificate)
    return Send(method="POST", route=Route.REGISTER, answers=(Registered,), message=message)


UNTOLD = frozenset({"expired-certificate", "not-certified", "revoked-key"})
"""Answers of a coordinator that does not let this key speak for the device any more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is still kept, in sentences for people."""

    here: str
    coordinator: str
    authority: str


def kept_of(told_coordinator: bool, told_authority: bool) -> Kept:
    """What is kept after leaving, at each place that was told or could not be."""
    return Kept(
        here="Here: the list of the rounds that this device joined, the marks of what it has signed in secure rounds "
        "(no secret, no data), and the newest revocation list. Delete the folder only if no device works in it again.",
        coordinator=(
            "At the coordinator: the id, the most examples that it could claim, when it was first and last there, and "
            "the audit of when it registered and left; and the log of each round, with the id, what it reported "
            "(examples, metrics, times), and weight and digest of its update. What the model has learnt stays in it."
            if told_coordinator
            else "At the coordinator: all that it had, since it was not told. It takes no request of this key any more."
        ),
        authority=(
            "At the authority: the id, the revoked key's id until its last certificate has expired, and when the id "
            "was enrolled, renewed, rotated and left."
            if told_authority
            else "At the authority: nothing, since it has certified no key of this device."
        ),
    )
