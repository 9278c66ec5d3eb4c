"""Every bug that the fault explorer found, as a short test that failed before the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from client_sdk.device.actions import Answered, Reply, RequestRefused, Send
from client_sdk.device.record import Record
from client_sdk.device.session import participate
from client_sdk.protocol.devices import CheckIn, Registered, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from coordinator.blobs import MemoryBlobs
from coordinator.runtime import devices
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.store.memory import MemoryStore
from coordinator.store.port import StoreError, Transaction
from tests.coordinator.world import World
from tests.explorer.holders import DAY_S, authority_ref, certificate_of, holder_of


class ForgetfulStore(MemoryStore):
    """Loses the acknowledgement of the next commit on request: the commit is done, and its caller gets an error."""

    lose_next = False

    @contextmanager
    def transaction(self, run: str | None = None) -> Iterator[Any]:
        with super().transaction(run) as tx:
            transaction: Transaction = tx
            yield transaction
        if self.lose_next:
            self.lose_next = False
            raise StoreError("the connection was lost while the transaction was committed")


def test_repro_commit_stalls_when_the_closing_report_loses_its_acknowledgement() -> None:
    """Seed 237: the round had closed, its commit task was never given to a replica, and no replica looked again."""
    store = ForgetfulStore()
    world = World(5, store=store)
    world.create()
    world.check_in()
    first, second, third = world.cohort()[:3]
    world.report(first, second)
    store.lose_next = True
    with pytest.raises(StoreError):
        world.report(third)
    world.pass_time(1)
    world.pass_time(20)
    world.require({1: [first, second, third]})


def test_repro_commit_stalls_when_the_replica_that_closed_the_round_dies() -> None:
    """Seed 148: the other replica saw that the round was closed, and waited for the dead one to commit it."""
    world = World(5)
    world.create()
    other = world.replica()
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        device, body = world.rows[number], world.body(number)
        with world.blobs.spool() as spool:
            spool.write(body)
            world.coordinator.devices.report(device, "marks", 1, 0, spool)()
    world.coordinator = other
    world.settle()
    world.pass_time(20)
    world.require({1: counted})


def test_repro_run_never_begins_when_its_first_event_is_cut_off() -> None:
    """Seed 232: the run existed without its first event, and only a restart would have appended it."""
    store = ForgetfulStore()
    world = World(5, store=store)
    store.lose_next = True
    with pytest.raises(StoreError):
        world.create()
    world.pass_time(40)
    assert world.coordinator.operators.run("marks").phase == "selecting"


def test_repro_deadline_stays_days_away_when_the_clock_falls_during_a_restart() -> None:
    """Seed 31: a deadline set by a clock that was a day ahead; the next process did not see the clock go back."""
    world = World(5)
    world.clock.at += 90_000
    world.create()
    world.clock.at -= 90_000
    world.boot()
    world.settle()
    world.pass_time(11)
    assert world.coordinator.operators.round("marks", 1).missed == 1, (
        "the selection was missed at its deadline, for want of devices"
    )


def test_repro_clock_spins_while_a_draw_waits() -> None:
    """A draw that waited for the disk was requested a thousand times a second, each time in a transaction."""
    world = World(5)
    world.create()
    world.clock.at += 11
    for _ in range(10):
        again = world.coordinator.tick()
        assert again is not None
        assert again > world.clock.now(), "the clock's thread may sleep"
    tasks = []
    while (task := world.coordinator.core.take_task()) is not None:
        tasks.append(task)
    assert len(tasks) == 1


class SlowBlobs(MemoryBlobs):
    """Runs a function once, between the commit of a blob and the caller's next step."""

    meanwhile: Callable[[], object] | None = None

    def add(self, digest: str, data: bytes) -> None:
        super().add(digest, data)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


@pytest.fixture
def updates_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are blobs however short they are."""
    monkeypatch.setattr(devices, "SHORT_BYTES", 0)


@pytest.mark.usefixtures("updates_as_files")
def test_repro_same_bytes_are_called_late_when_they_overtake_themselves() -> None:
    """Seed 137: a request paused, its repetition was counted and the round committed; then the first continued."""
    blobs = SlowBlobs()
    world = World(5, blobs=blobs)
    world.create(cohort={"select": 3, "goal": 1, "quorum": 1.0})
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    blobs.meanwhile = lambda: world.send(number, body)
    receipt = world.send(number, body)
    world.require({1: [number]})
    assert receipt == world.send(number, body)
    assert not blobs.has(receipt.digest), "raw updates are kept only until their round has ended"


@pytest.mark.usefixtures("updates_as_files")
def test_repro_refused_copy_deletes_what_is_about_to_be_acknowledged() -> None:
    """Between the file and its event, a copy of the same bytes was refused, and the file deleted with it."""
    blobs = SlowBlobs()
    world = World(5, blobs=blobs)
    world.create()
    world.check_in()
    honest, liar, third = world.cohort()[:3]
    world.report(liar)
    body = world.body(honest)

    def copy() -> None:
        with world.refuses("duplicate"):
            world.send(liar, body)

    blobs.meanwhile = copy
    with world.refuses("busy"):
        world.send(honest, body)
    world.send(honest, body)
    world.report(third)
    world.require({1: [honest, liar, third]})


def test_repro_device_that_is_unknown_again_and_again_stops_for_good() -> None:
    """Seed 5059: late copies of an enrolment made the coordinator forget the device's token; the second time the device
    gave up."""
    holder = holder_of("device-1")
    certificate = certificate_of(holder, 0, 90 * DAY_S).encoded.hex()
    registered = Registered(device=holder.id, examples_cap=1)
    record = Record(coordinator="http://c", authority=authority_ref(), certificate=certificate, registered=registered)
    session = participate(record, coordinator="http://c", offer=CheckIn, signer=holder.key)
    sends: list[Route] = []
    reply: Reply = None
    action = next(session)
    for _ in range(30):
        if isinstance(action, Send):
            sends.append(action.route)
            unknown = sends.count(Route.CHECK_IN) < 4
            refusal = RequestRefused(problem("unregistered", "This key is not known here.").problem, 1.0)
            wait = Answered(Wait(reason="no run", min_s=5, max_s=5), 1.0)
            answer = Answered(registered, 1.0)
            reply = answer if action.route is Route.REGISTER else refusal if unknown else wait
        else:
            reply = None
        action = session.send(reply)
    assert sends.count(Route.REGISTER) == 3
    assert sends[-1] is Route.CHECK_IN, "the device goes on as soon as it is known"


def test_repro_device_is_given_a_day_when_the_clock_has_fallen() -> None:
    """Seed 503483: the deadline had been set by a clock that was ahead; a slow device used all of that time."""
    world = World(5)
    world.clock.at += 90_000
    world.create()
    world.check_in()
    number = world.cohort()[0]
    world.clock.at -= 90_000
    assignment = world.assignment(number)
    assert assignment is not None
    assert assignment.report_within_s == 60


class WakingClock:
    """The clock of a machine that is a second behind, and whose next reading may be an old one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.stood_s = 0.0

    def now(self) -> float:
        stood_s, self.stood_s = self.stood_s, 0.0
        return self._world.clock.now() - 1.0 - stood_s

    def elapsed(self) -> float:
        return self._world.clock.elapsed()


def test_repro_replica_that_stood_still_moves_a_deadline_by_the_difference_of_clocks() -> None:
    """Seed 30001421: it had read the time, stood still while another replica drew a cohort, and then took the cohort's
    deadline for one of a clock that had fallen."""
    world = World(5)
    world.create()
    clock = WakingClock(world)
    other = Coordinator(Core(world.store, world.blobs, clock=clock, settings=world.settings, entropy=world.entropy))
    other.recover()
    world.clock.at += 40
    world.check_in()
    world.cohort()
    clock.stood_s = 30.0
    other.tick()
    assert "ClockFell" not in [event.kind for event in world.store.events("marks", 0)]
