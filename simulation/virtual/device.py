"""One simulated device: the ``participate`` session that a real one runs, without a network between it and the
coordinator.

It exists for one round: it is registered, checks in, and is removed when its part has ended. It has no key and no
certificate, since no request leaves the process: each names the device's row. The world, which has the
virtual clock, performs what takes time: waiting and training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Never, assert_never

from client_sdk.device.actions import (
    Action,
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
    FetchList,
    Load,
    Recall,
    Recalled,
    Reply,
    RequestRefused,
    Save,
    Send,
    Settle,
    Sketch,
    Sketched,
    Sleep,
    Spend,
    Spent,
    Train,
    Trained,
)
from client_sdk.device.record import Record
from client_sdk.device.session import Session, participate
from client_sdk.protocol.devices import Assignment, CheckIn, Noted, Policy, Receipt, Registered, SecureBounds, Wait
from client_sdk.protocol.names import Message, Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import SECURE_VERSION
from client_sdk.secagg.actions import Keep
from coordinator.requests import TABLE, Body, Direct, Held, Request
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.devices import ArrivedUpdate
from coordinator.store.port import DeviceRow
from simulation.clients import Clients
from simulation.engines.port import Done, Result

if TYPE_CHECKING:
    from simulation.virtual.world import SimulatedWorld

URL = "simulation"


LATER = object()
"""The answer takes time, or never comes."""


class _NoKey:
    """A simulated device signs nothing."""

    public_hex = ""

    def sign(self, message: bytes) -> Never:
        raise RuntimeError("a simulated device has nothing to sign")


_NO_KEY: Any = _NoKey()
_NOTED = Noted()


class Device:
    """``arrive``, then what the world calls: ``answered``, ``started``, ``trained``, ``received``, ``vanish``. ``over``
    once its part has ended."""

    __slots__ = ("_made", "_session", "_world", "assignment", "number", "offer", "over", "row", "update")

    def __init__(self, world: SimulatedWorld, number: int, row: DeviceRow, offer: CheckIn) -> None:
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
            case Spend():
                return Spent(None, self._world.now)
            case Recall():
                return Recalled(None, self._world.now)  # the world has settled what the client keeps
            case Keep() | Load() | FetchList() | Settle():
                raise TypeError("this device takes part in plain rounds only")
            case Sketch():
                return Sketched(b"", b"", self._world.now)
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
        """The coordinator's answer, None where it is not there yet. ProblemError."""
        entry, coordinator = TABLE.find(send.method, send.route), self._world.coordinator
        request = Request(entry, self.row, send.message, send.path)
        answer: Message | None
        match entry.shape:
            case Direct():
                answer = request.call(entry.shape.call, coordinator)
            case Held():
                answer = request.call(entry.shape.again, coordinator)
            case Body():
                answer = _delivered(request, entry.shape, coordinator, send.octets or b"")
            case _:
                assert_never(entry.shape)
        return answer


def _delivered(request: Request, body: Body, coordinator: Coordinator, octets: bytes) -> Any:
    """The answer to a request with this body, which is stored as it would be. ProblemError."""
    known = None if body.again is None else request.call(body.again, coordinator, sha256(octets).hexdigest())
    if known is not None:
        return known
    most = request.call(body.limit, coordinator)
    if len(octets) > most:
        raise problem("too-large", f"the body has {len(octets)} bytes; at most {most} are read")
    with coordinator.core.blobs.spool(most + body.room) as spool:
        spool.write(octets)
        return request.call(body.stored, coordinator, spool)


NO_FLOORS = SecureBounds(
    fewest_examples=1,
    whole_passes=False,
    fewest_steps=1,
    largest_batch=1.0,
    sums_a_day=None,
    nearest_model=0.0,
    smallest_norm=0.0,
    origins="any",
    largest_move=None,
)
"""Owners of simulated devices let any work into a sum."""


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


# ------------------------------------------------------------ enrolment
# Clients as the coordinator knows them: their rows, as if each had registered before the run, and what each offers.


_LONGEST = 64
"""Letters of a label."""


def label_of(name: str, device_class: str) -> str:
    """``class/id``, as real devices say their class; empty where there are no classes."""
    return f"{device_class}/{name}"[:_LONGEST] if device_class else ""


class SimulatedEnrolment:
    """``enrol`` writes the rows of new devices to the coordinator's store. ``class_of``: device -> its class."""

    def __init__(self, coordinator: Coordinator, run: str, clients: Clients, class_of: Callable[[str], str]) -> None:
        self._coordinator = coordinator
        self._clients = clients
        self._class_of = class_of
        plan = coordinator.core.state(run).plan
        task, self._secure = plan.task, plan.secure
        self._learners = {task.learner: task.learner_version or "simulated"}
        self._strategies = {} if plan.half is None else dict([plan.half])
        self._rows: dict[int, DeviceRow] = {}

    def row(self, number: int, now: float) -> DeviceRow:
        """The row of this client's device, which it gets at ``now`` where it has none yet."""
        name = self._clients.id(number)
        examples = self._clients.holdings.examples(number)
        return self._rows.get(number) or device_row(name, examples, label_of(name, self._class_of(name)), now)

    def offer(self, number: int) -> CheckIn:
        """What the device sends when it checks in. Its owner allows secure rounds as the plan asks for them, but for
        what no owner can allow."""
        examples = self._clients.holdings.examples(number)
        if self._secure is None:
            return CheckIn(examples=examples, learners=self._learners, strategies=self._strategies, hold_s=0)
        bounds = NO_FLOORS.changed(
            smallest_cohort=self._secure.minimum_cohort, smallest_sigma=self._secure.rule.sigma or 1
        )
        policy = Policy(secure=bounds)
        return CheckIn(
            examples=examples,
            learners=self._learners,
            strategies=self._strategies,
            policy=policy,
            secure=SECURE_VERSION,
            hold_s=0,
        )

    def enrol(self, devices: Sequence[Device]) -> None:
        """Writes the rows of those devices that the coordinator does not know yet."""
        new = [device for device in devices if device.number not in self._rows]
        if not new:
            return
        with self._coordinator.core.store.transaction() as tx:
            for device in new:
                if tx.device(device.row.device) is None:
                    tx.insert_device(device.row)
        self._rows |= {device.number: device.row for device in new}
