"""Entries that no coordinator ships, one of each shape: what serves the table serves them without further code."""

from __future__ import annotations

from client_sdk.protocol.devices import Noted, Wait
from client_sdk.protocol.names import Message, RunId
from coordinator.blobs import Spool
from coordinator.requests import TABLE, Body, Direct, Entry, Held, Permission, Table
from coordinator.requests.entry import RoundNumber
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow


class Question(Message):
    hold_s: float = 0.0
    word: str = ""


class Echo(Message):
    device: str
    text: str


def echo(to: Coordinator, device: DeviceRow, message: Question, *, run: RunId, round: RoundNumber) -> Echo:
    """Says the word again."""
    return Echo(device=device.device, text=f"{run} {round} {message.word}")


def look(to: Coordinator, device: DeviceRow, message: Question) -> Echo | None:
    """Waits for a run of this name."""
    row = to.core.store.run(message.word)
    return Echo(device=device.device, text=row.run) if row is not None else None


def look_again(to: Coordinator, device: DeviceRow, message: Question) -> Echo | None:
    return look(to, device, message)


def woken_by(device: DeviceRow, message: Question) -> str:
    return f"run:{message.word}"


def who(device: DeviceRow, message: Question) -> str:
    return device.device


def waited(to: Coordinator, device: DeviceRow, message: Question) -> Wait:
    return Wait(reason=f"there is no {message.word}", min_s=0, max_s=1)


def most(to: Coordinator, device: DeviceRow, *, run: RunId) -> int:
    return 8


def kept(to: Coordinator, device: DeviceRow, body: Spool, *, run: RunId) -> Noted:
    """Keeps eight bytes at most."""
    body.commit()
    return Noted()


DIRECT = Entry(
    method="POST",
    route="/v1/tests/{run}/{round}",
    permission=Permission.DEVICE,
    shape=Direct(echo),
    summary="Echo",
    group="devices",
)
HELD = Entry(
    method="POST",
    route="/v1/tests",
    permission=Permission.DEVICE,
    shape=Held(look, key=woken_by, peer=who, again=look_again, expired=waited),
    summary="Wait for a run",
    group="devices",
)
BODY = Entry(
    method="PUT",
    route="/v1/tests/{run}",
    permission=Permission.DEVICE,
    shape=Body(most, kept),
    summary="Keep",
    group="devices",
)
EXTENDED = Table([*TABLE, DIRECT, HELD, BODY])
