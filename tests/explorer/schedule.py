"""One schedule, from its seed to its end. One thread runs at a time, and every repetition is the same.

::

    calm start      the store, the replicas, the run, the devices
    storm           ``storm_s`` virtual seconds in which faults strike
    healing         every process that can restart does, no run is paused, no fault strikes any more
    end             when a round commits after the healing, or the runs are over; a world without progress has stalled

After every step the ``InvariantWatch`` checks the durable state against the invariants.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from client_sdk.device.record import Record
from client_sdk.protocol.devices import Registered
from coordinator.blobs import blocks, files
from coordinator.runtime import run_log
from coordinator.runtime.process_state import list_row
from coordinator.store.port import AuthorityRow, DeviceRow, Transaction, WorkerRow
from tests.explorer import invariants
from tests.explorer.credentials import Credentials
from tests.explorer.device import URL, ExplorerDevice
from tests.explorer.durable import Durable, opened
from tests.explorer.faults import FAULTS, Broken
from tests.explorer.flower.part import FlowerPart
from tests.explorer.follow import TrackedRun
from tests.explorer.holders import audit_of, authority_ref, holder_of, parsed_once
from tests.explorer.liar import Liar
from tests.explorer.network import Network
from tests.explorer.operator import ExplorerOperator
from tests.explorer.plans import DATA, LEARNER
from tests.explorer.private import shared_ledger
from tests.explorer.replica import Replica
from tests.explorer.secure import checks as secure_checks
from tests.explorer.secure.quick_crypto import quick_crypto
from tests.explorer.set_back import FolderCopy
from tests.explorer.shape import Shape
from tests.explorer.stacks import Stacks
from tests.explorer.wakeup_checks import CALM_S, WakeupChecks
from tests.explorer.watch import InvariantWatch
from tests.explorer.worker import ExplorerWorker
from tests.explorer.world import BEGINNING, World

STRANGE = "explorer:other"
"""The learner of a device that the plans do not ask for."""
STEPS_MOST = 200_000
CALM_COMMITS = 2
"""In a world without faults each run must commit so many rounds; after a storm some run must commit one."""
SETTLE_S = 3.0
SHORT = 2
"""How many devices have short certificates, where certificates may expire."""
VERIFIED = 12
"""One of so many schedules ends with ``quorate verify``, and so do all over SQLite."""
STAYS_UP = 12
"""In one of so many schedules a process whose transactions may have failed stays up,"""
HOUSEKEEPING_S = 45.0
"""and has so many seconds to look for what they have left."""
SKEW_S = 2.0
"""The clocks of two replicas differ by twice as much at most, for ever: less than the product allows."""
RESUME_S = 5.0
"""Seconds between two looks of the operator after the storm."""
PAGE = 3
"""Events of a page of the log."""
AGAIN = 0.3
"""How often the coordinator's folder is set back to where there was no run, for once to where there was one."""
SECOND_ROUNDS = 2
"""As long as so many rounds the coordinator goes on after that."""
BLOCK = 96
"""Bytes of a block of a blob, where bits flip."""
IDLE_S = 12.0
"""Seconds for which a storm goes on when every run is over: late requests must not change them."""


class Schedule:
    """``play`` runs the schedule of ``shape``; raises ``Broken`` where an invariant does not hold."""

    def __init__(self, shape: Shape, *, without: frozenset[str] = frozenset(), trace: list[str] | None = None) -> None:
        self.shape = shape
        self.world = World(shape, without=without, trace=trace)
        self.devices: list[ExplorerDevice] = []
        self.workers: list[ExplorerWorker] = []
        self.replicas: list[Replica] = []
        self.durable: Durable
        self.wakes: WakeupChecks
        self.watch: InvariantWatch
        self.network: Network
        self.operator: ExplorerOperator
        self.stacks: Stacks
        self.flower: FlowerPart | None = None
        self._copy: FolderCopy | None = None
        """To which the coordinator's folder is set back in the end."""
        self._healed = False
        self._looked_at = -1
        """How many changes of the runs there were when they were looked at last,"""
        self._all_over = self._all_went_on = False
        """and whether all of them were over then, or had gone on as wanted after the storm."""
        self._patience = 200
        self._over_at = BEGINNING
        self._wanted: dict[str, int] = {}
        self._give_up_at = float("inf")

    def play(self) -> None:
        world, shape = self.world, self.shape
        with (
            opened(world) as self.durable,
            small_pages(small_blocks="bit-flip" in world.possible),
            quiet_failures(),
            log_read(world.wrote) if shape.secure else nullcontext(),
            parsed_once(),
            world.streams.watched(),
            self._over_http(),
            crypto_of(shape),
        ):
            self.stacks = Stacks(self._loop)
            self.wakes = WakeupChecks(world, self.durable, self.replicas)
            self.watch = InvariantWatch(world, self.durable, self.wakes)
            for number in range(shape.replicas):
                replica = Replica(world, self.durable, self.watch, self.stacks, number)
                if shape.replicas > 1:
                    replica.skew_s = world.chance.between("skew", -SKEW_S, SKEW_S)
                replica.clock_offset_s = replica.skew_s
                self.replicas.append(replica)
            self.network = Network(world, self.replicas)
            self.operator = ExplorerOperator(world, self.durable, self.watch, self.replicas)
            if shape.flower:
                self.flower = FlowerPart(world, self.network, self.durable, self.replicas)
            world.agenda.after(0.0, self._begin)
            self.stacks.run()
            self._settle()
            self._check_everything()
            if self._copy is not None:
                self._set_back(self._copy)

    @contextmanager
    def _over_http(self) -> Iterator[None]:
        """Where the schedule goes over the real application: watches its log, and ends its loops."""
        if not self.shape.http:
            yield
            return
        from tests.explorer.http.app import watched_log  # the service's packages take a second to import

        with watched_log():
            try:
                yield
            finally:
                for replica in self.replicas:
                    replica.end_app()

    # ------------------------------------------------------------ the schedule

    def _begin(self) -> None:
        for number in range(self.shape.devices):
            stranger = self.shape.devices - self.shape.strangers <= number
            learner = STRANGE if stranger else LEARNER
            holder = holder_of(f"device-{number}")
            self.devices.append(ExplorerDevice(self.world, self.network, number, holder, learner))
        authority = self.world.authority
        if self.shape.rates and "certificate-expires" in self.world.possible:
            authority.short = {f"device-{number}" for number in range(SHORT)} | {"worker-0"}
        with self.durable.store.transaction() as tx:
            tx.put_revocations(list_row(authority.newest_list))
            tx.insert_authority(AuthorityRow(authority=authority.id, inside=False, since=BEGINNING))
            if (ledger := shared_ledger(self.shape.plan)) is not None:
                tx.insert_privacy_ledger(ledger)
            for device in self.devices[self.shape.enrolments :]:
                self._register_device(tx, device)
            for number in range(self.shape.workers):
                self._register_worker(tx, number)
            if self.flower is not None:
                self.flower.register(tx)
        for replica in self.replicas:
            replica.boot()
        self.world.stormy = bool(self.shape.rates)
        if self.shape.set_back:
            at_s = self.world.chance.between("copied-at", -AGAIN * self.shape.storm_s, self.shape.storm_s)
            self._copy = FolderCopy(self.world, self.durable, self.watch)
            if at_s > 0:
                self.world.agenda.after(at_s, self._copy_folder)
        self.operator.create()
        if self.shape.two_runs:
            self.world.agenda.after(self.world.chance.between("second run", 0.5, 6.0), self.operator.create)
        for device in self.devices:
            self.world.agenda.after(self.world.chance.between("start", 0.0, 5.0), device.start)
        if self.shape.control == "twins":
            for device in self.devices:
                self.world.agenda.after(6.0, self._run_twice, device)
        if self.flower is not None:
            self.flower.start()
        for worker in self.workers:
            self.world.agenda.after(self.world.chance.between("worker start", 0.0, 3.0), worker.start)
        if self.world.stormy:
            self.operator.plan_storm()
            if "bit-flip" in self.world.possible and self.durable.flips is not None:
                self.durable.flips.put = self.operator.store_again
                self.durable.flips.plan_storm()
            for worker in self.workers:
                worker.plan_storm()
            Credentials(self.world, self.replicas, self.devices, self.workers).plan_storm()
            if "fleet-away" in self.world.possible:
                for _ in range(max(2, int(self.shape.storm_s / 12))):
                    self.world.agenda.after(
                        self.world.chance.between("away-at", 0.0, self.shape.storm_s), self._fleet_away
                    )
            for device in self.devices[self.shape.devices - self.shape.liars :]:
                self.world.dishonest.add(device.holder.id)
                Liar(self.world, self.watch, device).plan_storm()
            for device in self.devices[self.shape.dead :][: self.shape.leavers]:
                self.world.agenda.after(self.world.chance.between("leaves-at", 1.0, self.shape.storm_s), device.leave)
            for device in self.devices[: self.shape.dead]:
                self.world.agenda.after(
                    self.world.chance.between("death", 1.0, self.shape.storm_s), device.vanish, None
                )
        self.world.agenda.after(self.shape.storm_s if self.world.stormy else 0.0, self._heal)

    def _copy_folder(self) -> None:
        if self.stacks.suspended:  # perhaps in the middle of what belongs together
            self.world.agenda.after(0.5, self._copy_folder)
            return
        self.world.log("the coordinator's folder is copied")
        self._copy = FolderCopy(self.world, self.durable, self.watch)

    def _set_back(self, to: FolderCopy) -> None:
        """The folder is set back, and rounds end otherwise than before."""
        self._give_up_at, self.network.closed = float("inf"), False
        to.set_back(self.world, self.durable, self.watch, self.replicas, self.devices)
        if not self.watch.runs:
            self.operator.create()
        self.operator.resume_all()
        cohort = self.shape.plan["cohort"]
        until = self.world.agenda.now + SECOND_ROUNDS * (cohort["select_s"] + cohort["collect_s"])
        while self.world.agenda.next_at <= until:
            self._step()
        self.watch.finish()
        invariants.verified(self.durable)

    def _run_twice(self, device: ExplorerDevice) -> None:
        twin = device.twin()
        self.devices.append(twin)
        twin.start()

    def _register_device(self, tx: Transaction, device: ExplorerDevice) -> None:
        """Writes the rows of a device that was registered before."""
        name, certificate = device.holder.id, self.world.authority.issue(device.holder).encoded.hex()
        row = DeviceRow(
            device=name,
            key_id=device.holder.key_id,
            certificate=certificate,
            label=device.name,
            examples_cap=max(1, device.examples - device.number % 3),
            enrolled_at=BEGINNING,
        )
        tx.insert_device(row)
        tx.insert_audit([audit_of(row)])
        self.world.caps[name] = row.examples_cap
        registered = Registered(device=name, examples_cap=row.examples_cap)
        device.storage.save(
            Record(coordinator=URL, authority=authority_ref(), certificate=certificate, registered=registered)
        )

    def _register_worker(self, tx: Transaction, number: int) -> None:
        """Writes the row of a worker that was registered before."""
        holder = holder_of(f"worker-{number}", "worker")
        certificate = self.world.authority.issue(holder).encoded.hex()
        row = WorkerRow(
            worker=holder.id, key_id=holder.key_id, certificate=certificate, label="explorer", created_at=BEGINNING
        )
        tx.insert_worker(row)
        data = () if self.shape.idle_worker and number == self.shape.workers - 1 else (DATA,)
        registered = Registered(device=holder.id, examples_cap=0)
        record = Record(coordinator=URL, authority=authority_ref(), certificate=certificate, registered=registered)
        self.workers.append(ExplorerWorker(self.world, self.network, self.watch, holder, record, data))

    def _fleet_away(self) -> None:
        if not self.world.strikes("fleet-away", "fleet"):
            return
        self.world.log("most devices vanish")
        for device in self.devices:
            if self.world.chance.unit("goes") < 0.85:
                device.vanish(self.world.chance.between("away-s", 5.0, 45.0))

    def _heal(self) -> None:
        self.world.stormy = False
        self.world.calm_since = max(self.world.calm_since, self.world.agenda.now)
        if self.stacks.suspended:
            self.world.agenda.after(0.5, self._heal)
            return
        self.world.log("the storm is over")
        if self.durable.flips is not None:
            self.durable.flips.heal()
        first = self.replicas[0]  # its clock is wrong perhaps; the others differ from it as at the beginning
        right = bool(self.world.authority.short) or self.shape.secure  # validity and expiry are compared with it
        wrong_s = 0.0 if right else first.clock_offset_s - first.skew_s
        for replica in self.replicas:
            replica.clock_offset_s = wrong_s + replica.skew_s
            replica.admitted.forget()
            replica.boot()
        self.world.agenda.after(1.0, self._resume)
        for device in self.devices:
            if self.shape.secure:
                device.sender.clock_off_s = 0.0
            self.world.agenda.after(1.0, device.start)
        for worker in self.workers:
            self.world.agenda.after(1.0, worker.start)

    def _resume(self) -> None:
        self.watch.discover()
        self.operator.resume_all()
        self.watch.step()
        if any(run.status == "paused" for run in self.watch.runs.values()) or not self.watch.runs:
            self._patience -= 1
            if not self._patience:
                raise Broken("liveness", f"after the storm {list(self.watch.runs) or 'no run'} could not be started")
            self.world.agenda.after(1.0, self._resume)
            return
        self._healed, self._looked_at = True, -1
        commits = 1 if self.shape.rates else CALM_COMMITS
        self._wanted = {name: run.version - run.advances + commits for name, run in self.watch.runs.items()}
        cohort = self.shape.plan["cohort"]
        rounds_s = 4 * (cohort["select_s"] + cohort["collect_s"] + 10.0) * len(self.watch.runs)
        self._give_up_at = self.world.agenda.now + 330.0 + rounds_s * commits
        self.world.agenda.after(CALM_S, self.wakes.calmed, list(self.watch.runs.values()))
        self.world.agenda.after(RESUME_S, self._look_after_runs)

    def _look_after_runs(self) -> None:
        """A run that paused itself after the storm (``finish.abandoned``) is resumed by its operator."""
        self.operator.resume_all()
        if self.shape.private:
            self._looked_at = -1
        self.world.agenda.after(RESUME_S, self._look_after_runs)

    def _done(self) -> bool:
        if self._looked_at != self.watch.changes:
            self._look_at_runs()
        if self.flower is not None and not self.flower.done:
            return False
        if self._healed:
            return self._all_over or self._all_went_on
        now = self.world.agenda.now
        if not self._all_over:
            self._over_at = now
        return now > self._over_at + IDLE_S and not self.stacks.suspended

    def _look_at_runs(self) -> None:
        self._looked_at = self.watch.changes
        going = [run for run in self.watch.runs.values() if not run.over and not (self._healed and self._stands(run))]
        self._all_over = bool(self.watch.runs) and not going
        went_on = [run.version - run.advances >= self._wanted.get(run.run, 1) for run in going]
        self._all_went_on = any(went_on) if self.shape.rates else all(went_on)

    def _stands(self, run: TrackedRun) -> bool:
        """Whether a run with noise waits for devices that have something left to lose: too few are there."""
        revoked = self.world.authority.revoked
        able = (device for device in self.devices if device.holder.key_id not in revoked)
        return run.private is not None and sum(device.may_take_part(run) for device in able) < run.fewest

    def _settle(self) -> None:
        """Where one process has the disk to itself: what it should delete is deleted. Where a fault of the process, the
        store or the disk may have lost a deletion, it is started once more, so that it sweeps the disk. In some
        schedules it stays up, and has to find by itself what a failed transaction has left there."""
        if len(self.replicas) > 1:
            return
        self.world.stormy, self.network.closed = False, True
        faults = {name.partition("@")[0] for name in self.world.chance.struck}
        struck = {FAULTS[name].family for name in faults}
        housekeeps = "store" in struck or "lazy" in faults
        stays_up = self.shape.seed % (STAYS_UP if housekeeps else 2) == 0 and "blobs" not in struck
        if struck & {"coordinator", "store", "blobs"} and not stays_up:
            self.replicas[0].stop()
        self.replicas[0].boot()  # also where it died, and everything was over before it was started again
        ended = {run.run: run.round - (run.phase != "idle") for run in self.watch.runs.values()}
        until = self.world.agenda.now + (HOUSEKEEPING_S if stays_up and housekeeps else SETTLE_S)
        while self.world.agenda.next_at <= until:
            self._step()
        for run in self.watch.runs.values():
            invariants.retained(self.world.register, self.durable, run, ended.get(run.run, 0))
            secure_checks.deleted(self.durable, run, ended.get(run.run, 0))
            invariants.optimizer_states(self.durable, run, ended.get(run.run, 0))
            invariants.still_retained(self.durable, run)

    def _check_everything(self) -> None:
        """At the end: checks every run, and the records of devices and workers."""
        self.watch.finish()
        for replica in self.replicas:
            if self.durable.flips is not None and replica.up:
                self.durable.flips.settled(replica.coordinator.core.blobs)
        if self.flower is not None:
            self.flower.account.finish()
        for place, device in enumerate(self.devices):
            lies = place >= self.shape.devices - self.shape.liars
            if not lies:
                invariants.kept(device.name, device.trained_from, self.watch.run)
            for storage in (*device.former, device.storage):
                invariants.record(device.name, storage.history(), self.watch.run, lies=lies)
        for worker in self.workers:
            invariants.leases(worker.name, worker.history, worker.delivered, self.watch.run)
        damaged = any(run.lost_digests for run in self.watch.runs.values())  # which verify names too
        if (self.shape.seed % VERIFIED == 0 and not damaged) or self.shape.store != "memory":
            invariants.verified(self.durable)
            for run in self.watch.runs.values():
                invariants.linked(self.durable, run)

    def _loop(self) -> None:
        while not self._done():
            self._step()

    def _step(self) -> None:
        self.world.tally.steps += 1
        do, arguments = self.world.agenda.take()
        if self.world.agenda.now > self._give_up_at or self.world.tally.steps > STEPS_MOST:
            standing = ", ".join(f"{run.run} is {run.phase} round {run.round}" for run in self.watch.runs.values())
            going = "" if self.flower is None or self.flower.done else "; the Flower run has not ended"
            raise Broken("liveness", f"no round was committed after the storm: {standing}{going}")
        do(*arguments)
        if self.watch.written:
            self.watch.step()


def crypto_of(shape: Shape) -> AbstractContextManager[None]:
    """Secure rounds have real cryptography in some schedules only."""
    return quick_crypto() if shape.secure and not shape.real_crypto else nullcontext()


@contextmanager
def small_pages(*, small_blocks: bool) -> Iterator[None]:
    """Replicas catch up with the log page by page, and a schedule's log is shorter than a page of the product. Nor
    does a blob of a schedule have several blocks."""
    small = [(run_log, "_PAGE", PAGE)] + ([(blocks, "BLOCK", BLOCK), (files, "BLOCK", BLOCK)] if small_blocks else [])
    real = [(module, name, vars(module)[name]) for module, name, _ in small]
    for module, name, value in small:
        vars(module)[name] = value
    try:
        yield
    finally:
        for module, name, value in real:
            vars(module)[name] = value


@contextmanager
def quiet_failures() -> Iterator[None]:
    """The log does not have the failures of store and blobs that are faults of the schedule, nor the runs that are
    exhausted by them."""
    quiet = [logging.getLogger(f"quorate.{name}") for name in ("storage", "actions")]
    before = [logger.disabled for logger in quiet]
    for logger in quiet:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(quiet, before, strict=True):
            logger.disabled = was


class _Lines(logging.Handler):
    def __init__(self, wrote: Callable[[str], None]) -> None:
        super().__init__()
        self._wrote = wrote

    def emit(self, record: logging.LogRecord) -> None:
        self._wrote(f"{record.getMessage()} {record.exc_text or record.exc_info or ''} {record.__dict__}")


@contextmanager
def log_read(wrote: Callable[[str], None]) -> Iterator[None]:
    """``wrote`` is called with each line of the coordinator's log, with all that the record has."""
    logger, handler = logging.getLogger("quorate"), _Lines(wrote)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
