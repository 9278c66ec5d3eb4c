"""One simulated device: the ``participate`` session that a real one runs, without a network between it and the
coordinator.

It exists for one round: it is registered, checks in, and is removed when its part has ended. It has no key and no
certificate, since no request leaves the process: each names the device's row. The world, which has the
virtual clock, performs what takes time: waiting and training.
"""

from __future__ import annotations

from typing import Any, Never, Protocol, assert_never

from client_sdk.device.actions import (
    Action,
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
    FetchList,
    Load,
    Reply,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Train,
    Trained,
)
from client_sdk.device.record import Record
from client_sdk.device.session import Session, participate
from client_sdk.protocol.devices import Assignment, CheckIn, Noted, Receipt, Registered, Wait
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import ProblemError
from client_sdk.secagg.actions import Keep
from coordinator.requests import TABLE, Body, Direct, Held, Request
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.devices import ArrivedUpdate
from coordinator.store.port import DeviceRow
from simulation.engines.port import Done, Result

URL = "simulation"


class _NoKey:
    """A simulated device signs nothing."""

    public_hex = ""

    def sign(self, message: bytes) -> Never:
        raise RuntimeError("a simulated device has nothing to sign")


_NO_KEY: Any = _NoKey()
_NOTED = Noted()


class Surroundings(Protocol):
    """The part of the world that a device needs."""

    coordinator: Coordinator

    @property
    def now(self) -> float: ...

    def size_of(self, report: str) -> int:
        """Return the bytes of an update with this report."""

    def begins_training(self, device: Device) -> None:
        """The device begins to train; ``trained`` ends the training."""


LATER = object()
"""The answer takes time, or never comes."""


class Device:
    """``arrive``, then what the world calls: ``answered``, ``started``, ``trained``, ``received``, ``vanish``. ``over``
    once its part has ended."""

    __slots__ = ("_made", "_session", "_world", "assignment", "number", "offer", "over", "row", "update")

    def __init__(self, world: Surroundings, number: int, row: DeviceRow, offer: CheckIn) -> None:
        self._world = world
        self.number = number
        self.row = row
        self.offer = offer
        self.assignment: Assignment | None = None
        self._made: tuple[Done, int] | None = None
        """The result of its training, and the bytes that its update would have."""
        self.update: ArrivedUpdate | None = None
        """The update that it has sent and that is not answered yet."""
        self.over = False
        self._session = self._begun()

    def _begun(self) -> Session:
        """The session of a device that is registered."""
        record = Record(coordinator=URL, registered=self._registered)
        return participate(
            record, coordinator=URL, offer=lambda: self.offer, rounds=1, signer=_NO_KEY, label=self.row.label
        )

    @property
    def _registered(self) -> Registered:
        return Registered(device=self.row.device, examples_cap=self.row.examples_cap)

    def arrive(self) -> None:
        """The device checks in with its ``offer``."""
        self._go_on(None, first=True)

    def answered(self, answer: Assignment | Wait) -> None:
        """The answer to its check-in: it has an assignment and is about to start, or its part has ended."""
        self.assignment = answer if isinstance(answer, Assignment) else None
        self._go_on(Answered(answer, self._world.now))

    def started(self) -> None:
        """The answer to its message *started*: it begins to train."""
        self._go_on(Answered(_NOTED, self._world.now))

    def trained(self, result: Result | None, *, complete: bool = True) -> None:
        """Its training has ended: it has sent its ``update``, or its part has ended. None: the training ended too late
        for an update to be read, and was not computed."""
        now = self._world.now
        if result is None:
            self._go_on(Trained(b"late", complete, now))
        elif isinstance(result, Done):
            text = result.report.model_dump_json()
            self._made = result, self._world.size_of(text)
            self._go_on(Trained(f"{self.row.device}\n{text}".encode(), result.report.work.complete, now))
        else:
            self._go_on(Failed(result.reason, now))

    def received(self, answer: Receipt | ProblemError) -> None:
        """The answer to its update."""
        now = self._world.now
        self._go_on(RequestRefused(answer.problem, now) if isinstance(answer, ProblemError) else Answered(answer, now))

    def vanish(self) -> None:
        """The device stops without a message."""
        self.over = True
        self._session.close()

    # ------------------------------------------------------------ the session

    def _go_on(self, reply: Reply, *, first: bool = False) -> None:
        """Advances the session until it waits for an answer that takes time."""
        try:
            action: Action = next(self._session) if first else self._session.send(reply)
            while (answer := self._performed(action)) is not LATER:
                action = self._session.send(answer)
        except StopIteration:
            self.over = True

    def _performed(self, action: Action) -> Any:
        match action:
            case Save():
                return None
            case Fetch():
                return Fetched(self._world.now)
            case Certify():
                raise TypeError("a simulated device has no authority to ask")
            case Keep() | Load() | FetchList():
                raise TypeError("this device takes part in plain rounds only")
            case Train():
                self._world.begins_training(self)
                return LATER
            case Send():
                return self._sent(action)
            case Sleep():
                self.vanish()
                return LATER
            case _:
                assert_never(action)

    def _sent(self, send: Send) -> Any:
        if send.route in (Route.CHECK_IN, Route.STARTED):
            return LATER  # the world sends the requests of all such devices together
        if send.route is Route.UPDATE and self._made is not None:
            done, size = self._made
            self.update = ArrivedUpdate(
                self.row, done.report, send.update or "", size, self._world.now, treated=done.treated
            )
            return LATER
        try:
            answer = self._answer_of(send)
        except ProblemError as error:
            return RequestRefused(error.problem, self._world.now)
        return LATER if answer is None else Answered(answer, self._world.now)

    def _answer_of(self, send: Send) -> Message | None:
        entry, coordinator = TABLE.find(send.method, send.route), self._world.coordinator
        request = Request(entry, self.row, send.message, send.path)
        match entry.shape:
            case Direct():
                answer: Message = request.call(entry.shape.call, coordinator)
                return answer
            case Body():
                request.call(entry.shape.limit, coordinator)
                raise RuntimeError("an update that was never made would have been read")
            case Held():
                raise TypeError(f"a simulated device waits for no answer of {send.route}")
            case _:
                assert_never(entry.shape)


def device_row(device: str, examples: int, label: str, at: float) -> DeviceRow:
    """Returns the row of a device that was registered before the run. Its own id stands for that of a key, and it has
    no certificate: no request can be signed for it, and ``verify`` knows it as simulated."""
    return DeviceRow(
        device=device,
        key_id=device,
        certificate="",
        label=label,
        examples_cap=max(1, examples),
        enrolled_at=at,
    )
