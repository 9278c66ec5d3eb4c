"""The requests of devices: register, check in, report *started*, send an update, withdraw, read the outcome, leave."""

from __future__ import annotations

from functools import partial

from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    Noted,
    Outcome,
    Receipt,
    Registered,
    Registration,
    Started,
    Wait,
    Withdrawal,
)
from client_sdk.protocol.names import Route, RunId
from coordinator.blobs import Spool
from coordinator.group_commit import PendingCommit
from coordinator.requests.entry import (
    Attempt,
    Audited,
    Body,
    Direct,
    Entry,
    Held,
    NotYet,
    Permission,
    RoundNumber,
)
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.fleet import PoolPlace
from coordinator.runtime.identities import Registrant
from coordinator.store.port import DeviceRow


def register(to: Coordinator, holder: Registrant, message: Registration) -> PendingCommit[Registered]:
    """A device shows its certificate, in a request that the certified key signs; again with each new certificate.

    The same certificate again gets the same answer. An older one than the newest is refused (*not-certified*).
    """
    entered = to.identities.register_device(holder.certificate, examples=message.examples, label=message.label)

    def registered() -> Registered:
        row = entered()
        return Registered(device=row.device, examples_cap=row.examples_cap, authority_inside=to.identities.inside)

    return PendingCommit(to.identities.registrations, registered)


def leave_and_forget(to: Coordinator, device: DeviceRow) -> Noted:
    """The device is forgotten: its key, its certificate and its label. Its id, its times, and in which rounds it has
    counted are kept: they are what the runs' models and logs are made of.

    The key is not known here afterwards, so a second request is refused as *unregistered*: the device has left.
    """
    to.devices.abandon(device.device, "the device leaves")
    to.identities.leave(device)
    return Noted()


def check_in(to: Coordinator, device: DeviceRow, message: CheckIn) -> PendingCommit[Assignment | Wait | NotYet]:
    """The device is available for training. Held open until there is an assignment, or until `hold_s` has passed.

    A repeated check-in returns the same assignment, so a lost answer costs nothing.
    """
    checked_in = to.devices.check_in(device, message)

    def answered() -> Assignment | Wait | NotYet:
        found = checked_in()
        return NotYet(found) if isinstance(found, PoolPlace) else found

    return PendingCommit(to.fleet.arrivals, answered)


def waits_for(device: DeviceRow, message: CheckIn) -> str:
    return f"device:{device.device}"


def is_device(device: DeviceRow, message: object, **path: object) -> str:
    return device.device


def assignment(to: Coordinator, device: DeviceRow, message: CheckIn) -> Assignment | None:
    return to.devices.assignment(device.device)


def hold_over(to: Coordinator, device: DeviceRow, message: CheckIn) -> Wait:
    return to.devices.hold_over(device.device, message)


def leave(to: Coordinator, device: DeviceRow, message: CheckIn, hold: PoolPlace) -> None:
    to.fleet.stop_waiting(hold)


def started(
    to: Coordinator, device: DeviceRow, message: Started, *, run: RunId, round: RoundNumber
) -> PendingCommit[Noted]:
    """The device has the checkpoint and begins to train. It is shown to people only: losing this request loses
    nothing."""
    entered = to.devices.started(device.device, run, round, message.attempt)

    def noted() -> Noted:
        entered()
        return Noted()

    return PendingCommit(to.core.log(run).commits, noted)


def admit(to: Coordinator, device: DeviceRow, *, run: RunId, round: RoundNumber, attempt: Attempt) -> int:
    return to.devices.update_limit(device.device, run, round, attempt)


def update(
    to: Coordinator, device: DeviceRow, body: Spool, *, run: RunId, round: RoundNumber, attempt: Attempt
) -> PendingCommit[Receipt]:
    """The device's update: safetensors with an UpdateReport in its metadata. Streamed, never held in memory.

    An acknowledged update is durable. The same bytes again get the same receipt; other bytes are refused
    (*duplicate*): the first update counts. `Content-Digest` is checked where the request has it.
    """
    return PendingCommit(to.core.log(run).commits, to.devices.report(device, run, round, attempt, body))


def withdraw(to: Coordinator, device: DeviceRow, message: Withdrawal, *, run: RunId, round: RoundNumber) -> Noted:
    """The device will not send an update in this round. It may check in again at once."""
    to.devices.withdraw(device.device, run, round, message.attempt, message.reason)
    return Noted()


def outcome(to: Coordinator, device: DeviceRow, *, run: RunId, round: RoundNumber) -> Outcome:
    """The outcome of this device's part in a round: counted, refused, dropped, withdrawn, or still pending."""
    return to.devices.outcome(device.device, run, round)


_device = partial(Entry, permission=Permission.DEVICE, group="devices")

REGISTER = Entry(
    "POST",
    Route.REGISTER,
    Direct(register),
    "Register a device",
    permission=Permission.CERTIFIED,
    audited=Audited("device.register", within=True),
    group="devices",
    operation="register_device",
    created=True,
)
LEAVE = _device(
    "POST", Route.LEAVE, Direct(leave_and_forget), "Leave, and be forgotten", audited=Audited("device.leave")
)
CHECK_IN = _device(
    "POST",
    Route.CHECK_IN,
    Held(check_in, key=waits_for, peer=is_device, again=assignment, expired=hold_over, gone=leave),
    "Check in and wait for work",
)
STARTED = _device("POST", Route.STARTED, Direct(started), "Report that training begins")
UPDATE = _device("PUT", Route.UPDATE, Body(admit, update), "Send an update", operation="put_update")
WITHDRAWN = _device("POST", Route.WITHDRAWN, Direct(withdraw), "Withdraw from a round", operation="withdrawn")
OUTCOME = _device("GET", Route.OUTCOME, Direct(outcome), "Read the outcome of an update")
ENTRIES = (REGISTER, CHECK_IN, STARTED, UPDATE, WITHDRAWN, OUTCOME, LEAVE)
