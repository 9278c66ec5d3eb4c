"""One schedule: the whole world of it, from its seed to its end. Single-threaded, and the same at every repetition.

::

    calm start      the store, the replicas, the run, the devices
    storm           ``storm_s`` virtual seconds in which faults strike
    healing         every process that can come back does, nothing is paused, no fault strikes any more
    end             when a round commits after the healing, or the runs are over; a world that gets nowhere has stalled

After every step the ``Watch`` holds what is durable against the invariants.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from client_sdk.device.record import Record
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Enrolled
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, EventRow, WorkerRow
from simulation.explorer import invariants
from simulation.explorer.baton import Baton
from simulation.explorer.chance import Chance
from simulation.explorer.coverage import Coverage
from simulation.explorer.device import URL, Device
from simulation.explorer.durable import Durable, opened
from simulation.explorer.endings import Broken
from simulation.explorer.holds import Held
from simulation.explorer.liar import Liar
from simulation.explorer.marks import Made
from simulation.explorer.network import Network
from simulation.explorer.operator import Operator
from simulation.explorer.replica import Replica
from simulation.explorer.shape import OF_WORK, Shape
from simulation.explorer.watch import Watch
from simulation.explorer.worker import Worker
from simulation.virtual.agenda import Agenda

if TYPE_CHECKING:
    from simulation.explorer.follow import Followed

TOKEN = "let-me-in-please"  # noqa: S105 - of a world that does not exist
BEGINNING = 1_000_000.0
"""Unix seconds at which each schedule begins."""
STEPS_MOST = 200_000
SETTLE_S = 3.0
IDLE_S = 12.0
"""How long a storm goes on when every run is over: what comes late must not hurt them."""
FOCUS_RATE = 0.25


@dataclass(slots=True)
class Tally:
    """What one or more schedules amounted to."""

    schedules: int = 0
    steps: int = 0
    events: int = 0
    crashes: int = 0
    lost: int = 0
    duplicated: int = 0
    commits: int = 0
    abandoned: int = 0

    def __iadd__(self, other: Tally) -> Tally:
        for name in Tally.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class World:
    """``play`` runs the schedule of ``shape``; raises ``Broken`` where an invariant does not hold."""

    def __init__(self, shape: Shape, *, without: frozenset[str] = frozenset(), story: list[str] | None = None) -> None:
        self.shape = shape
        self.story = story
        self.chance = Chance(shape.seed, without)
        self.agenda = Agenda(BEGINNING)
        self.tally = Tally(schedules=1)
        self.coverage = Coverage()
        self.settings = _settings()
        self.token = TOKEN
        self.made: dict[str, Made] = {}
        self.results: dict[str, set[tuple[str, int, int]]] = {}
        """What workers made: digest -> (run, round, fence) of every lease that it was made under."""
        self.bodies: dict[tuple[str, int], list[bytes]] = {}
        """What was made for each round: a liar may copy it."""
        self.fences: dict[str, int] = {}
        """The newest fence of each run."""
        self.possible = {fault for fault, rate in shape.rates.items() if rate} | {shape.focus[0]}
        self.stormy = False
        self.interruptions = 0
        self.lost_replicas = shape.lost_replicas
        self.watch = Watch(self)
        self.network = Network(self)
        self.operator = Operator(self)
        self.replicas = [Replica(self, f"r{number}") for number in range(shape.replicas)]
        self.devices: list[Device] = []
        self.workers: list[Worker] = []
        self.lost_workers = shape.lost_workers
        self.baton: Baton
        self.durable: Durable
        self._healed = False
        self._patience = 200
        self._over_at = BEGINNING
        self._wanted: dict[str, int] = {}
        self._give_up_at = float("inf")

    def play(self) -> None:
        with opened(self) as self.durable:
            self.baton = Baton(self._loop)
            self.agenda.after(0.0, self._begin)
            self.baton.run()
            self._settle()
            self.watch.finish()

    # ------------------------------------------------------------ what others ask of the world

    def strikes(self, fault: str, where: str) -> bool:
        """Whether a fault happens here and now. Only in a storm."""
        if not self.stormy or fault not in self.possible:
            return False
        rate = self.shape.rates.get(fault, 0.0)
        phase = self.watch.phase
        if self.shape.focus == (fault, phase):
            rate = max(rate, 0.9 if fault in OF_WORK else FOCUS_RATE)
        if not self.chance.strikes(fault, where, rate):
            return False
        self.coverage.fault(fault, phase)
        return True

    def met(self, event: str) -> None:
        """An event has met a phase."""
        self.coverage.event(event, self.watch.phase)

    def tell(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.agenda.now - BEGINNING:9.3f}  {what}")

    def tell_event(self, run: Followed, event: EventRow) -> None:
        if self.story is not None:
            about = {
                name: event.body[name]
                for name in ("round", "device", "worker", "fence", "cohort", "digest", "reason", "by_s")
                if event.body.get(name) is not None
            }
            shown = ", ".join(f"{name} {value}" for name, value in about.items())
            self.tell(
                f"    {run.run} #{event.seq} {event.kind}: {shown} -> round {run.round}, {run.phase}, {run.status}"
            )

    def device_of(self, token: str | None) -> str:
        row = self.durable.store.device_by_token(hashlib.sha256((token or "").encode()).hexdigest())
        return row.device if row is not None else ""

    def worker_of(self, token: str | None) -> str:
        row = self.durable.store.worker_by_token(hashlib.sha256((token or "").encode()).hexdigest())
        return row.worker if row is not None else ""

    def expect_wake_ups(self, run: Followed) -> None:
        """A cohort was drawn. In calm weather the devices that wait at the only replica there is hear of it at once."""
        if not self.stormy and len(self.replicas) == 1:
            held = [self.replicas[0].holds.of(device) for device in run.cohort]
            waiting = [one for one in held if one is not None]
            self.agenda.after(1.0, self._require_heard, run, run.round, waiting)

    def _require_heard(self, run: Followed, round: int, waiting: list[Held]) -> None:
        for held in waiting:
            if run.round == round and run.phase == "collecting" and self.replicas[0].holds.of(held.peer) is held:
                raise Broken("liveness", f"{held.peer} waits for work, has been selected, and is not told")

    # ------------------------------------------------------------ the schedule

    def _begin(self) -> None:
        for number in range(self.shape.devices):
            self.devices.append(Device(self, number, _key(number)))
        for device in self.devices[self.shape.enrolments :]:
            self._enrol(device)
        for number in range(self.shape.workers):
            self._register(number)
        for replica in self.replicas:
            replica.boot()
        self.stormy = bool(self.shape.rates)
        self.operator.create()
        if self.shape.two_runs:
            self.agenda.after(self.chance.between("second run", 0.5, 6.0), self.operator.create)
        for device in self.devices:
            self.agenda.after(self.chance.between("start", 0.0, 5.0), device.start)
        for worker in self.workers:
            self.agenda.after(self.chance.between("worker start", 0.0, 3.0), worker.start)
        if self.stormy:
            self.operator.plan_storm()
            for worker in self.workers:
                worker.plan_storm()
            if "fleet-away" in self.possible:
                for _ in range(max(2, int(self.shape.storm_s / 12))):
                    self.agenda.after(self.chance.between("away-at", 0.0, self.shape.storm_s), self._fleet_away)
            for device in self.devices[self.shape.devices - self.shape.liars :]:
                Liar(self, device).plan_storm()
            for device in self.devices[: self.shape.dead]:
                self.agenda.after(self.chance.between("death", 1.0, self.shape.storm_s), device.vanish, None)
        self.agenda.after(self.shape.storm_s if self.stormy else 0.0, self._heal)

    def _enrol(self, device: Device) -> None:
        """As if it had enrolled long ago."""
        name, token = f"device-{device.number}", f"token {device.number}"
        row = DeviceRow(
            device=name,
            public_key=device.key.public_hex,
            token_hash=hashlib.sha256(token.encode()).hexdigest(),
            label=device.name,
            examples_cap=max(1, device.examples - device.number % 3),
            enrolled_at=BEGINNING,
        )
        with self.durable.store.transaction() as tx:
            tx.insert_device(row)
        enrolled = Enrolled(device=name, token=token, examples_cap=row.examples_cap)
        device.storage.save(Record(coordinator=URL, enrolled=enrolled))

    def _register(self, number: int) -> None:
        """As if an operator had done it long ago."""
        name, token = f"worker-{number}", f"worker token {number}"
        hashed = hashlib.sha256(token.encode()).hexdigest()
        with self.durable.store.transaction() as tx:
            tx.insert_worker(WorkerRow(worker=name, token_hash=hashed, label="explorer", created_at=BEGINNING))
        self.workers.append(Worker(self, name, token))

    def _fleet_away(self) -> None:
        if not self.strikes("fleet-away", "fleet"):
            return
        self.tell("most devices vanish")
        for device in self.devices:
            if self.chance.unit("goes") < 0.85:
                device.vanish(self.chance.between("away-s", 5.0, 45.0))

    def _heal(self) -> None:
        self.stormy = False
        if self.baton.standing:
            self.agenda.after(0.5, self._heal)
            return
        self.tell("the storm is over")
        for replica in self.replicas:
            replica.clock_offset_s = self.replicas[0].clock_offset_s  # wrong perhaps, but the same
            replica.boot()
        self.agenda.after(1.0, self._resume)
        for device in self.devices:
            self.agenda.after(1.0, device.start)
        for worker in self.workers:
            self.agenda.after(1.0, worker.start)

    def _resume(self) -> None:
        self.watch.discover()
        self.operator.resume_all()
        self.watch.step()
        if any(run.status == "paused" for run in self.watch.runs.values()) or not self.watch.runs:
            self._patience -= 1
            if not self._patience:
                raise Broken("liveness", f"after the storm {list(self.watch.runs) or 'no run'} could not be started")
            self.agenda.after(1.0, self._resume)
            return
        self._healed = True
        self._wanted = {name: run.version + 1 for name, run in self.watch.runs.items()}
        cohort = self.shape.plan["cohort"]
        rounds_s = 4 * (cohort["select_s"] + cohort["collect_s"] + 10.0) * len(self.watch.runs)
        self._give_up_at = self.agenda.now + 330.0 + rounds_s

    def _done(self) -> bool:
        runs = self.watch.runs.values()
        if not self._healed:
            if not runs or not all(run.over for run in runs):
                self._over_at = self.agenda.now
            return self.agenda.now > self._over_at + IDLE_S and not self.baton.standing
        return all(run.over for run in runs) or any(
            run.version >= self._wanted.get(run.run, 1) for run in runs if not run.over
        )

    def _settle(self) -> None:
        """Where one process has the disk to itself: what is left after it was started once more is what is kept."""
        if len(self.replicas) > 1:
            return
        self.stormy = False
        if self.shape.rates:
            self.replicas[0].stop()
            self.replicas[0].boot()
        ended = {run.run: run.round - (run.phase != "idle") for run in self.watch.runs.values()}
        until = self.agenda.now + SETTLE_S
        while self.agenda.next_at <= until:
            self._step()
        for run in self.watch.runs.values():
            invariants.kept(self, run, ended.get(run.run, 0))

    def _loop(self) -> None:
        while not self._done():
            self._step()

    def _step(self) -> None:
        self.tally.steps += 1
        if self.agenda.next_at > self._give_up_at or self.tally.steps > STEPS_MOST:
            told = ", ".join(f"{run.run} is {run.phase} round {run.round}" for run in self.watch.runs.values())
            raise Broken("liveness", f"no round was committed after the storm: {told}")
        do, arguments = self.agenda.take()
        do(*arguments)
        self.watch.step()


@cache
def _settings() -> Settings:
    return Settings(enrolment_token=TOKEN)


@cache
def _key(number: int) -> DeviceKey:
    return DeviceKey(hashlib.sha256(f"explorer device {number}".encode()).digest())
