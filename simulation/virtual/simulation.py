"""Assembles one simulated run: a coordinator on a store in memory, an engine, a world, and a data folder that follows
it.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import codecs
from client_sdk.chance import labelled, shake_bytes
from client_sdk.device.states import Candidate, belongs
from client_sdk.extensions import Provided, provided
from client_sdk.protocol.devices import Score, Task
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.protocol.operators import CreateRun, MetricReport, RoundView
from client_sdk.secagg.actions import Primitives
from client_sdk.tensors import (
    Array,
    Layout,
    Manifest,
    Roles,
    Tensors,
    TensorSpec,
    digest,
    from_bytes,
    numpy_dtype,
    to_bytes,
)
from client_sdk.tensors.exact_sum import ExactSum
from client_sdk.tensors.manifest import digest_of, of_model, with_shared
from coordinator.blobs import Blobs
from coordinator.datafolder import BLOBS_FOLDER, FolderError, database_url, locked
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import MakeSums
from coordinator.folding.noise import SEED_BYTES
from coordinator.folding.validation import Measures
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import installed
from coordinator.runtime.insight.fleet_views import class_of as class_in
from coordinator.runtime.privacy_ledgers import simulated as simulated_ledger
from coordinator.runtime.process_state import list_row
from coordinator.runtime.run_errors import RaisedRunErrors
from coordinator.settings import Settings
from coordinator.store import MemoryStore, RunRow, Store, open_store
from coordinator.store.memory import Layer
from coordinator.store.port import AuditRow
from simulation.clients import Clients
from simulation.engines import CannotTrain, Job, Kernel, MakeEngine
from simulation.engines.checked import CheckedEngine, is_deterministic, note, noted
from simulation.engines.kernel import state_key
from simulation.engines.port import Engine
from simulation.engines.steps import Stepper, asked, chosen
from simulation.errors import SimulationWarning
from simulation.history import History
from simulation.history.ledger import copy_run, follow
from simulation.history.local_steps import Steps
from simulation.history.recorded_run import NOT_DETERMINISTIC, PROTECTS_NOBODY, RESUMED_UNCHECKED, UNMASKED
from simulation.history.rounds import current_state, state_in
from simulation.virtual.agenda import Agenda, VirtualClock
from simulation.virtual.behaviour import Habits
from simulation.virtual.blobs import PatientBlobs, TemporaryBlobs
from simulation.virtual.buffered_world import BufferedWorld, StoredUpdates
from simulation.virtual.datacenter import SimulatedDatacenter
from simulation.virtual.device import label_of
from simulation.virtual.null_primitives import NULL
from simulation.virtual.parts import unfinished
from simulation.virtual.secure_world import EPOCH, SecureWorld, SimulatedAuthority
from simulation.virtual.temporary import TemporaryFolder
from simulation.virtual.world import SimulatedWorld

_LISTED = 100_000
STATES_FOLDER = "states"
"""In a folder: what clients keep for strategies."""
_YOUNG = 5000
"""How many new objects start a collection of garbage. Python's own 700 are those of six clients."""
_OLD = 100
"""How many collections of the middle generation start one of all that a round has made: a tenth of a large round's
cost, and Python does not wait for more of it where the rest of the process is frozen."""
_SETTINGS = Settings(max_hold_s=0.0, waiting_s=3600.0)


class Simulation:
    """A context. ``play_round`` plays one round, ``score`` stores scores of the newest checkpoint."""

    def __init__(
        self,
        plan: Plan,
        learner: Any,
        clients: Clients,
        habits: Habits,
        *,
        class_of: Callable[[str], str],
        make_engine: MakeEngine,
        init: Callable[[], Tensors],
        origin: str,
        said: Callable[[Manifest], Roles],
        folder: Path | None,
        seed: int,
        failed: Callable[[Job, CannotTrain], None],
        datacenter: Mapping[str, Any],
        masked: bool = True,
        objects: Mapping[str, Mapping[str, Provided]] = MappingProxyType({}),
        steps: str = "exact",
    ) -> None:
        """``init`` makes the first checkpoint, unless the ``folder`` has a run of this plan already: that one is
        resumed. ``said``: the roles of its tensors. ``masked``: whether devices really mask in secure rounds.
        ``objects``: what the plan names without a package (``client_sdk.extensions``). ``steps``: how clients make
        their local steps (``simulation.engines.steps``); a run that is resumed goes on as it was begun.

        FolderError, StoreError, ProblemError where it cannot begin.
        """
        self._exits = ExitStack()
        self._exits.enter_context(garbage_frozen())
        self._exits.enter_context(provided(objects))
        try:
            self._folder: Store | None = None
            self._path = folder
            if folder is None:
                self.blobs: PatientBlobs = TemporaryBlobs()
            else:
                self._exits.enter_context(locked(folder))
                self._folder = open_store(database_url(folder))
                self._exits.callback(self._folder.close)
                self.blobs = PatientBlobs(folder / BLOBS_FOLDER)
            self.store = MemoryStore()
            before = None if self._folder is None else self._folder.newest_run(plan.digest)
            authority = SimulatedAuthority(seed) if plan.secure is not None else None
            agenda = self._agenda = Agenda(EPOCH if authority is not None or habits.by_day else time.time())
            origin += "" if is_deterministic(learner) else NOT_DETERMINISTIC
            origin += "" if plan.privacy is None else PROTECTS_NOBODY
            shared = algorithm(plan, installed(plan)).shared
            said = _with_roles_of_shared(said, plan, shared)
            if before is not None:
                _require_same(before, plan, masked, steps)
                stepper = Stepper(learner, Steps.of(before.origin))
                copy_run(self._store_of_folder, self.store, before.run)
                agenda.now = max((event.at for event in self.store.events(before.run, before.seq - 1)), default=0.0)
                manifest = Manifest.of(self._tensors(before.init))
                body = b""
                begun = current_state(self.store, before)
                unit, roles = begun.weight_unit, begun.roles
                _require_roles(begun, manifest, said)
            else:
                tensors = init()
                whole, _ = with_shared(Manifest.of(tensors), plan.task.averaged, said(Manifest.of(tensors)), shared)
                tensors = {name: tensors.get(name, _zeros(spec)) for name, spec in whole.items()}
                manifest, body = Manifest.of(tensors), to_bytes(tensors)
                stepper = chosen(steps, learner, plan, clients, tensors)
                unit, roles = plan.weight_unit, said(manifest)
            origin += stepper.steps.said + ("" if masked or authority is None else UNMASKED)
            self.resumed = before is not None
            self._changes: Layer = self.store.follow() if folder is not None else {}
            self._clients, self._class_of = clients, class_of
            self._listed: dict[str, str] | None = None
            layout = Layout.of(manifest, plan.task.averaged, roles)
            kept = folder or Path(self._exits.enter_context(TemporaryFolder("quorate-states-")))
            states = kept / STATES_FOLDER / plan.digest[:32]
            self.kernel = Kernel(plan, learner, clients, layout, weight_unit=unit, states=states, stepper=stepper)
            self.engine = CheckedEngine(make_engine(self.kernel), self.kernel)
            self._exits.callback(self.engine.close)
            self._parent = ""
            primitives, updates = Primitives() if masked else NULL, StoredUpdates(layout)
            self.coordinator = Coordinator(
                Core(
                    self.store,
                    self.blobs,
                    clock=VirtualClock(agenda),
                    settings=_SETTINGS,
                    entropy=_entropy(seed),
                    noise_seed=lambda run, number: shake_bytes(
                        labelled("simulated noise", seed, plan.digest, number), SEED_BYTES
                    ),
                    sums=sums_of(self.engine) if plan.buffered is None else lambda *_: updates,
                    run_errors=RaisedRunErrors(),
                ),
                authority=None if authority is None else authority.pinned,
                masker=primitives.masker,
            )
            if authority is not None:
                with self.store.transaction() as tx:
                    tx.put_revocations(list_row(authority.revocations))
            self.run = self._begun(before, plan, body, origin, roles, clients)
            size_of = UpdateSizes(self.kernel.layout, plan.task.codec)
            habits.carry(self.blobs.size(self.state.checkpoint), size_of(""))
            make_world: Callable[..., SimulatedWorld] = SimulatedWorld
            if plan.buffered is not None:
                make_world = partial(BufferedWorld, kernel=self.kernel, updates=updates, model=self._tensors)
            if authority is not None:
                make_world = partial(SecureWorld, authority=authority, primitives=primitives, layout=self.kernel.layout)
            self.world = make_world(
                self.coordinator,
                self.run,
                clients,
                habits,
                self.engine,
                agenda,
                seed=seed,
                size_of=size_of,
                begin=self._begin,
                failed=failed,
                class_of=class_of,
                settle_states=self.settle_states,
                datacenter=SimulatedDatacenter(self.coordinator, agenda, learner, datacenter) if datacenter else None,
            )
            self._exits.callback(self.world.close)
            if before is not None:
                self._require_as_before(is_deterministic(learner))
                self.world.resume(unfinished(self.store, self.run, plan, clients, habits, self._task_before))
        except BaseException:
            self._exits.close()
            raise

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @property
    def state(self) -> RunState:
        return self.coordinator.core.state(self.run)

    @property
    def _store_of_folder(self) -> Store:
        if self._folder is None:
            raise RuntimeError("this simulation has no folder")
        return self._folder

    def play_round(self, trained: Callable[[int, int, int], None]) -> RunState:
        """Plays the round under way to its end. See ``SimulatedWorld.play_round``."""
        return self.world.play_round(trained)

    def settle(self) -> None:
        """After the end of the run: devices that still train send their updates, which come late."""
        self._agenda.run_out()

    def settle_states(self, clients: Sequence[str], round: int) -> None:
        """Settles what these clients keep for the plan's strategy, as a device does before it trains: by the outcome of
        the round in which each has trained last. ``round``: in which they train next, again where they have."""
        states = self.kernel.states
        for key, found, counts in self._candidates(clients, round):
            if states is not None and (counts is not None or found.round >= round):
                states.settle(key, keep=bool(counts))

    def mark_states(self, clients: Sequence[str]) -> None:
        """Before they are scored: what these clients keep by now."""
        for key, _, counts in self._candidates(clients, None):
            if counts and self.kernel.states is not None:
                self.kernel.states.mark(key)

    def _candidates(self, clients: Sequence[str], round: int | None) -> Iterator[tuple[str, Candidate, bool | None]]:
        """(key, candidate, whether its update counts; None: not known yet) of the clients that have one. One of
        ``round``, or a later one, was lost with its round."""
        states, masked = self.kernel.states, self.state.plan.secure is not None
        for client in clients if states is not None else ():
            key = state_key(client)
            found = states.candidate(key) if states is not None else None
            if found is None:
                continue
            if round is not None and found.round >= round:
                yield key, found, None
                continue
            outcome = self.coordinator.devices.outcome(client, self.run, found.round)
            kept = self.kernel.keeps == "trained" or belongs(outcome, found, masked=masked)
            yield key, found, None if outcome.result == "pending" else kept

    def ended(self, round: int) -> RoundView:
        """Returns the view of a round that has ended."""
        return self.coordinator.operators.round(self.run, round)

    def history(self, wall: Mapping[int, float], *, interrupted: bool = False) -> History:
        """Returns the history so far, which outlives this simulation. ``wall``: seconds by round."""
        return History(self.store, self.blobs, self.run, wall=wall, interrupted=interrupted, clients=self._classes())

    def _classes(self) -> dict[str, str]:
        """Every client -> its class; none where they are too many to list."""
        if self._listed is None:
            names = self._clients if len(self._clients) <= _LISTED else ()
            self._listed = {name: class_in(label_of(name, self._class_of(name))) for name in names}
        return self._listed

    def drop(self, checkpoints: Collection[str]) -> None:
        """Deletes the bytes of these checkpoints, by digest, of a run without a folder."""
        for name in checkpoints:
            self.blobs.delete(name)

    def keep(self) -> None:
        """Writes the state of the run to the folder in one transaction; then deletes blobs that its rows name no
        more."""
        if self._folder is not None:
            self.blobs.keep()
            follow(self._folder, self.store, self.run, self._changes)
            if self.engine.noted is not None and self._path is not None:
                note(self._path, self.run, self._parent, *self.engine.noted)
        self.blobs.delete_marked()

    def model(self) -> Tensors:
        """The newest checkpoint, with a strategy's shared tensors."""
        return self._tensors(self.state.checkpoint)

    def score(self, source: str, score: Score, version: int | None = None) -> None:
        """Stores a score of a version, None: the newest one, as an evaluator's report; it may finish the run."""
        row = self.store.checkpoint(self.run, self.state.version if version is None else version)
        if row is None:
            raise ValueError(f"there is no version {version} to score")
        plain = Score(examples=score.examples, metrics=score.metrics)
        report = MetricReport(version=row.version, digest=row.digest, source=source, score=plain)
        self.coordinator.operators.report_metrics(self.run, report)

    # ------------------------------------------------------------ inside

    def _begun(
        self, before: RunRow | None, plan: Plan, body: bytes, origin: str, roles: Roles, clients: Clients
    ) -> str:
        if before is not None:
            self.coordinator.recover()
            if self.coordinator.core.state(before.run).status == "paused":
                self.coordinator.operators.resume(before.run)
            return before.run
        simulated_ledger(self.coordinator.core, plan)
        name = digest(body)
        with self.blobs.spool() as spool:
            spool.write(body)
            self.coordinator.operators.put_checkpoint(spool, name)
        taken = self._folder.run_ids() if self._folder is not None else []
        request = CreateRun(plan=plan.written_out, init=name, origin=origin, roles=dict(roles))
        return self.coordinator.operators.create_run(request, taken=taken, usual=_usual(plan, clients)).run

    def _task_before(self, round: int, device: str) -> Task:
        """The task that the device had in a round before this call: its work, not its rates."""
        row, plan = self.store.run(self.run), self.state.plan
        if plan.strategy is None or row is None:
            return plan.task
        return self.coordinator.core.task(state_in(self.store, row, round), device)

    def _require_as_before(self, deterministic: bool) -> None:
        """SimulationError where a client gives other bits now than in an earlier call: see ``CheckedEngine``. A learner
        that is declared not deterministic is not checked, and the history shows that."""
        state, found = self.state, None if self._path is None else noted(self._path, self.run)
        if state.over:
            return
        if not deterministic:
            row = AuditRow(run=self.run, at=self._agenda.now, by="", action=RESUMED_UNCHECKED, detail="")
            with self.store.transaction() as tx:
                tx.insert_audit([row])
        elif found is not None and not self._may_train_again(found[1]):
            pass
        elif found is not None and self.blobs.has(found[0]):
            self.engine.require_as_before(self._tensors(found[0]), *found[1:])
        elif state.version:
            what = "whether the learner keeps state that a resumed run forgets"
            warnings.warn(
                f"{what} is not checked: the folder notes no training of this run", SimulationWarning, stacklevel=4
            )

    def _may_train_again(self, job: Job) -> bool:
        """Whether the client still keeps what it kept before this training: it is gone once its outcome is settled."""
        states = self.kernel.states
        found = None if states is None else states.candidate(state_key(job.device))
        return states is None or (found is not None and found.round == job.round)

    def _tensors(self, name: str) -> Tensors:
        with self.blobs.open(name) as file:
            return from_bytes(file.read())

    def _begin(self, state: RunState) -> None:
        self._parent = state.checkpoint
        self.engine.begin(state.round_number, self._tensors(state.checkpoint))


def _zeros(spec: TensorSpec) -> Array:
    return np.zeros(spec.shape, numpy_dtype(spec.dtype))


def _with_roles_of_shared(
    said: Callable[[Manifest], Roles], plan: Plan, shared: Sequence[str]
) -> Callable[[Manifest], Roles]:
    """``said``, which knows the learner's model alone, of checkpoints with a strategy's shared tensors."""

    def of(model: Manifest) -> Roles:
        own = said(Manifest(of_model(model)))
        return with_shared(model, plan.task.averaged, own, shared)[1] if shared else own

    return of


def _usual(plan: Plan, clients: Clients) -> float | None:
    """What a client weighs on average in secure rounds; None where that is not at hand."""
    if plan.secure is None or plan.weighting != "examples" or not clients.holdings.at_hand:
        return None
    return float(np.minimum(clients.sizes, plan.secure.cap(plan.aggregation)).mean())


def _require_same(before: RunRow, plan: Plan, masked: bool, steps: str) -> None:
    """FolderError where a run was begun with other local steps, or its secure rounds in the other way: its history
    would not tell the truth."""
    begun, (kind, lanes) = Steps.of(before.origin), asked(steps)
    if kind != "fast" and not begun.reason and (kind != begun.kind or (lanes and lanes != begun.lanes)):
        raise FolderError(f'run {before.run} was begun with steps="{begun.name}": continue it with the same')
    if plan.secure is not None and before.origin.endswith(UNMASKED) == masked:
        way = "quantized" if masked else "masked"
        raise FolderError(f'run {before.run} was begun with secure="{way}": continue it in that way')


class UpdateSizes:
    """Bytes of an update on the wire, from its report: the length of ``encode_update``, without encoding."""

    def __init__(self, layout: Layout, codec: str) -> None:
        wire = codecs.beside(codec, layout.statistics).wire(layout.whole)
        zeros = {name: np.zeros(spec.shape, numpy_dtype(spec.dtype)) for name, spec in wire.items()}
        empty = to_bytes(zeros, {REPORT_KEY: ""})
        length = int.from_bytes(empty[:8], "little")
        self._header = len(empty[8 : 8 + length].rstrip(b" "))
        self._data = len(empty) - 8 - length

    def __call__(self, report: str) -> int:
        """``report``: its JSON, which stands in the header as a JSON text: quotes and backslashes are doubled there."""
        header = self._header + len(report.encode()) + report.count('"') + report.count("\\")
        return 8 + -(-header // 8) * 8 + self._data


def _require_roles(begun: RunState, model: Manifest, said: Callable[[Manifest], Roles]) -> None:
    """FolderError where a run was begun with other roles of its tensors than it would go on with."""
    averaged = Layout.of(model, begun.plan.task.averaged, said(model)).roles
    if digest_of(model, averaged) != begun.roles_digest:
        raise FolderError(
            f"run {begun.run} was begun with other tensors as statistics ({', '.join(sorted(begun.roles)) or 'none'}): "
            "continue it with the same, or in another folder"
        )


def _entropy(seed: int) -> Callable[[int], bytes]:
    """Returns the coordinator's source of secrets; in a simulation it is the same at each repetition."""
    reads = 0

    def read(count: int) -> bytes:
        nonlocal reads
        reads += 1
        return shake_bytes(labelled("simulation", seed, reads), count)

    return read


class EngineSums:
    """The coordinator's ``Sums`` over updates in an engine, which adds each one when it has trained it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def remember(self, digest: str, measures: Measures) -> None:
        pass

    def fold(self, round: int, item: Contribution, clip: float = 0.0) -> None:
        pass

    def total(self, round: int, items: tuple[Contribution, ...], clip: float = 0.0) -> ExactSum:
        return self._engine.total({item.device: item.weight for item in items})

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        return self._engine.columns([item.device for item in items])

    def forget(self, round: int) -> None:
        pass


def sums_of(engine: Engine) -> MakeSums:
    """Returns the function with which a coordinator makes its sums."""

    def make(engine: Engine, blobs: Blobs, plan: Plan, layout: Layout) -> EngineSums:
        return EngineSums(engine)

    return partial(make, engine)


_frozen_for = 0
"""How many blocks of ``garbage_frozen`` are running."""
_thresholds: tuple[int, int, int] = gc.get_threshold()
"""The thresholds of the collector before the first of these blocks."""
_frozen_by_user = False
"""Whether the user was seen to have frozen objects. They are not counted again: a million take a tenth of a second."""


@contextmanager
def garbage_frozen() -> Iterator[None]:
    """While the block runs, Python's garbage collector skips the objects that existed before.

    A round makes hundreds of small records, and Python collects garbage whenever enough have been made: it scans the
    modules, the user's data and all other objects of the process, which takes longer than the records themselves (a
    fifth of the work of a simulation besides training). It also waits for more new objects, most of which are gone by
    then. The last block that ends sets the collector back. Does nothing where the user has frozen objects
    (``gc.freeze``): they would be unfrozen with ours.
    """
    global _frozen_for, _thresholds, _frozen_by_user
    _frozen_by_user = _frozen_by_user or (not _frozen_for and gc.get_freeze_count() > 0)
    if _frozen_by_user:
        yield
        return
    if not _frozen_for:
        gc.freeze()
        _thresholds = gc.get_threshold()
        often, seldom = max(_thresholds[0], _YOUNG), max(_thresholds[2], _OLD)
        gc.set_threshold(_thresholds[0] and often, _thresholds[1], seldom)
    _frozen_for += 1
    try:
        yield
    finally:
        _frozen_for -= 1
        if not _frozen_for:
            gc.unfreeze()
            gc.set_threshold(*_thresholds)
