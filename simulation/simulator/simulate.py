"""``simulate``: a federated run on one machine, by the engine, the sessions and the learning code of deployment.

::

    history = simulate(plan, learner, clients=partition(dataset, 1000, by="dirichlet", alpha=0.3))

It runs a ``Simulation`` round by round. Its arguments are checked in ``checks``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, TextIO, Unpack, cast, overload

from client_sdk.device.contribution import private_seed
from client_sdk.extensions import provided
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import RoundView, rounding_words
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Layout, Manifest, TensorError, Tensors, canonical_digest, from_bytes, to_bytes
from client_sdk.tensors.manifest import StatisticRole
from client_sdk.terminal import span
from client_sdk.update import Update
from coordinator.blobs import BlobError, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, FolderError, database_url
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.named_tensors import Small
from coordinator.engine.phases.lifecycle import failures_in_a_row
from coordinator.engine.plan import Finish, Plan, algorithm
from coordinator.engine.state import RunState
from coordinator.runtime.extensions import installed
from coordinator.store import StoreError, open_store
from simulation.clients import Clients
from simulation.clients.holdings import as_given
from simulation.engines import CannotTrain, EngineName, Job, MakeEngine, engine_called
from simulation.engines.kernel import Kernel
from simulation.engines.steps import asked
from simulation.errors import ClientFailed, SimulationError, SimulationWarning, Stalled
from simulation.history import History
from simulation.history.rounds import state_in
from simulation.simulator import checks
from simulation.simulator.checks import (
    AllSimulateOptions,
    BehaviourLike,
    ClassesLike,
    ClientsLike,
    InitLike,
    Keep,
    PlanLike,
    SecureWay,
    foreseen,
    require_whole,
)
from simulation.simulator.first_model import first_model, first_roles
from simulation.simulator.scoring import CENTRAL, CLIENTS, Inputs, score_devices, score_version, shown_scores
from simulation.virtual.behaviour import work_done
from simulation.virtual.parts import changes
from simulation.virtual.secure_world import SimulatedAuthority
from simulation.virtual.simulation import Simulation, UpdateSizes

# ------------------------------------------------------------ progress
# Shows the progress of a simulation: one line for each round, with the estimated time that is left.
#
# On a terminal and in a notebook the line of the current round is updated in place. In a log nothing is shown, unless
# the caller wants lines.


_OFTEN_S = 0.1
_NOTEBOOK_OFTEN_S = 0.5
_CLEAR = "\r\x1b[2K"


class RoundProgress:
    """``wanted``: True: a line for each round in any case; False: nothing; None: live lines on a terminal or in a
    notebook, nothing in a log."""

    def __init__(self, rounds: int, wanted: bool | None, stream: TextIO | None = None) -> None:
        """``rounds``: how many rounds the run shall commit."""
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        terminal, notebook = _is_terminal(self._stream), _is_notebook(self._stream)
        self._shown = self._stream is not None and (terminal or notebook if wanted is None else wanted)
        self._live = self._shown and (terminal or notebook)
        self._clears = terminal
        self._often_s = _OFTEN_S if terminal else _NOTEBOOK_OFTEN_S
        self._width = 0
        self._rounds = rounds
        self._began = self._looked = time.monotonic()
        self._committed = 0

    def training(self, round: int, done: int, of: int) -> None:
        """``done`` clients of the round have trained."""
        now = time.monotonic()
        if self._live and now - self._looked >= self._often_s:
            self._looked = now
            self._line(f"round {round}: {done} of {of} clients trained{self._left(done / max(1, of))}")

    def ended(self, round: RoundView, scores: Mapping[str, float]) -> None:
        """A round has ended; its model has these scores."""
        committed = round.status == "committed"
        self._committed += committed
        if not self._shown:
            return
        if committed:
            seconds = (round.closed_at or 0.0) - round.opened_at
            text = f"{round.funnel.reported} of {round.funnel.selected} clients in {span(seconds)} (virtual)"
            text += "".join(f", {name} {value:.4g}" for name, value in scores.items())
            text += self._left(0.0)
        else:
            text = f"{'missed its selection' if round.status == 'open' else 'abandoned'}: {round.reason}"
        self._line(f"round {round.round}: {text}", end="\n")

    def close(self, last: str = "") -> None:
        """Clears the live line, and prints ``last`` where it is not empty."""
        if self._live:
            self._line("")
        if self._shown and last:
            self._line(last, end="\n")

    def _left(self, share: float) -> str:
        done = self._committed + share
        left = self._rounds - done
        if done <= 0 or left <= 0:
            return ""
        return f", {span((time.monotonic() - self._began) / done * left)} left"

    def _line(self, text: str, end: str = "") -> None:
        """Prints in place of the live line. A notebook can clear a line only by overwriting it."""
        if self._stream is None:
            return
        if self._live:
            begin = _CLEAR if self._clears else "\r" + " " * self._width + "\r" if self._width else ""
            self._width = 0 if end else len(text)
            text = begin + text
        self._stream.write(text + end)
        self._stream.flush()


def _is_terminal(stream: Any) -> bool:
    """Whether the stream is a terminal. A replacement of ``sys.stderr`` may lack ``isatty``, or be None."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _is_notebook(stream: Any) -> bool:
    """Whether output on the stream appears below a notebook's cell."""
    return type(stream).__module__.split(".")[0] == "ipykernel"


# ------------------------------------------------------------ simulate


_DAY_S = 86_400.0
ABANDONED_MOST = 25
"""Number of rounds abandoned in a row after which a simulation stops, where the plan has no ``finish.abandoned``: a
simulated fleet does not change by itself. Where its behaviour depends on the hour, selections that find too few
devices do not stop it within a day."""


@overload
def simulate(
    plan: PlanLike, learner: Any, clients: ClientsLike, *, only: str, round: int, **options: Unpack[AllSimulateOptions]
) -> Update: ...
@overload
def simulate(
    plan: PlanLike,
    learner: Any,
    clients: ClientsLike,
    *,
    only: None = None,
    round: None = None,
    **options: Unpack[AllSimulateOptions],
) -> History: ...
def simulate(
    plan: PlanLike,
    learner: Any,
    clients: ClientsLike,
    *,
    test: Any = None,
    score_clients: int | Literal["all"] = 0,
    score_every: int = 1,
    behaviour: BehaviourLike = None,
    classes: ClassesLike = None,
    datacenter: Mapping[str, Any] | None = None,
    strategy: Any = None,
    rule: Any = None,
    server_optimizer: Any = None,
    selection: Any = None,
    codec: Any = None,
    engine: EngineName | MakeEngine = "serial",
    workers: int | None = None,
    steps: str = "exact",
    init: InitLike = None,
    statistics: Mapping[str, StatisticRole] | None = None,
    secure: SecureWay = "masked",
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    keep_checkpoints: Keep = None,
    rounds: int | None = None,
    progress: bool | None = None,
    only: str | None = None,
    round: int | None = None,
) -> History | Update:
    """Runs ``plan`` over simulated ``clients`` until it is finished, and returns its history.

    - ``plan``: a ``Plan``, the same as a dict, or the path of its TOML file. ``task.learner`` may be left out.
    - ``learner``: a ``Learner``, or any other trainer of a device (``client_sdk.learners``).
    - ``clients``: id -> data, a sequence of data, or the ``Clients`` that ``partition`` makes. Data: ``(x, y)``, an
      object with ``.x`` and ``.y``, a torch Dataset, a list of pairs, or an object with parts ``.train`` and ``.test``.
    - ``test``: central test data; each ``score_every``-th checkpoint, the first and the last are scored on it (source
      ``evaluator``). ``score_clients``: on how many clients' own held-out examples they are scored too, drawn once by
      ``seed`` (sources ``clients``, ``clients.p10``, ``clients.p90``
      and ``class.<name>``).
    - ``behaviour``: which devices vanish or are slow, and when they are available, for all devices or by class; or a
      ``Recording`` of a run; None: an ideal fleet. ``classes``: the class of each client.
    - ``datacenter``: name -> data that the datacenter holds, where the plan has a section ``[datacenter]``; its rounds
      are trained in this process, as by one rank.
    - ``strategy``, ``rule``, ``server_optimizer``, ``selection``, ``codec``: objects of your own, without a package
      (docs/extending.md). The plan then names ``notebook:half-way`` for an object of the class ``HalfWay``, in its
      ``version``; a codec has its own name, ``notebook:coarse@1``. A coordinator that opens the folder does not have
      them, and says so.
    - ``engine``: ``serial``, ``processes`` (``workers`` of them; None: one for each core), ``ray`` (``workers`` actors
      on Ray's cluster; None: one for each GPU, or for each core), or a function from a ``Kernel`` to an ``Engine``. All
      give the same bits.
    - ``steps``: how clients make their local steps: ``exact``, in the bits of deployment; ``fast``, by what takes the
      least time here of ``traced``, ``channels_last`` and ``stacked-<clients at once>``, which can be named too. Their
      updates differ by the order of roundings (``simulation.engines.steps``), and the history says which it was.
    - ``init``: the first checkpoint, as arrays, a torch ``state_dict()`` (tied weights under all their names or one)
      or a safetensors file; None: the learner's, from ``seed``.
    - ``statistics``: which tensors are statistics, by name or shell pattern: ``{"*.mean": "statistic", "*.var":
      "non-negative"}``. None: the learner knows (a ``Learner`` does), else names tell, as PyTorch and Keras name them.
    - ``secure``: of a plan with a section ``[secure]``: *masked*: every device really keys, shares and masks;
      *quantized*: only their quantized updates are summed, for the same bits at much less cost.
    - ``seed``: of the first weights, of the order in which devices arrive, of the selection and of the behaviour.
      Batches are shuffled by the plan's ``task.seed``.
    - ``folder``: a coordinator's data folder, in which the run is stored after each round: ``quorate serve --data``
      opens it. A run of the same plan that the folder has already is continued. None: a temporary folder, which
      exists as long as the history.
    - ``keep_checkpoints``: without a folder, how many of the newest checkpoints stay, besides the first and the best
      one, or ``"all"``; None: as many as fit in 1 GiB. Of the others the history has digests, sizes and scores. A
      folder keeps all.
    - ``rounds``: the most rounds to play in this call, with abandoned ones; None: until the plan's ``finish``.
    - ``progress``: True: a line for each round; False: none; None: live lines on a terminal and in a
      notebook.

    - ``only`` and ``round``: train just this client, as in that round, in this process, and return its ``Update``;
      errors of its code pass through. It starts from ``init``, from the ``folder``'s checkpoint of that round, or, in
      round 1, from the learner's first weights. Nothing is stored.

    Ctrl-C ends it between two steps and returns the history so far (``history.interrupted``). Raises PlanError and
    ValueError for wrong arguments, ClientFailed when the user's own code fails on a client, Stalled when many rounds
    in a row are abandoned (``finish.abandoned`` of the plan, or 25), another SimulationError for a folder that cannot
    be used, a full disk or a worker that
    died; all but the first two have the history so far in ``.history``.
    """
    if (only is None) != (round is None):
        raise ValueError("only= and round= go together: which client, and as in which round")
    checks.require_learner(learner)
    checks.require_whole("seed", seed, 0)
    asked(steps)
    if round is not None:
        checks.require_whole("round", round, 1)
    given = {"strategy": strategy, "rule": rule, "server_optimizer": server_optimizer, "selection": selection}
    given["codec"] = codec
    plan, objects = checks.with_objects(plan, {part: made for part, made in given.items() if made is not None})
    if only is not None and round is not None:
        with provided(objects):
            return rerun(
                checks.plan_of(plan), learner, Clients.of(clients), only, round,
                behaviour=behaviour, classes=classes, init=init, seed=seed, folder=folder,
            )  # fmt: skip
    inputs = _checked(plan, clients, test, score_clients, score_every, behaviour, classes, seed)
    if rounds is not None:
        checks.require_whole("rounds", rounds, 1)
    checks.require_trainable(inputs.plan, learner)
    checks.require_addable(inputs.plan, learner, inputs.scored)
    checks.require_datacenter(inputs.plan, datacenter or {}, learner)
    checks.require_secure(inputs.plan, inputs.clients, secure)
    newest_to_keep(keep_checkpoints, folder is not None, 1)
    first, origin = first_model(init, learner, seed)
    failing = _Failing(folder)
    try:
        simulation = Simulation(
            inputs.plan,
            learner,
            inputs.clients,
            inputs.habits,
            class_of=inputs.class_of,
            make_engine=engine_called(engine, workers),
            init=first,
            origin=origin,
            said=first_roles(
                learner, statistics, (lambda text: None) if progress is False else partial(print, file=sys.stderr)
            ),
            folder=None if folder is None else Path(folder),
            seed=seed,
            failed=failing,
            datacenter=datacenter or {},
            masked=secure == "masked",
            objects=objects,
            steps=steps,
        )
    except (StoreError, BlobError) as error:
        raise SimulationError(f"the run cannot be stored in {folder or 'a temporary folder'}: {error}") from error
    except FolderError as error:
        raise SimulationError(str(error)) from error
    except (ProblemError, TensorError) as error:
        raise ValueError(f"the run cannot begin: {error}") from error
    with simulation:
        failing.model = simulation.model
        if not simulation.resumed:
            for sentence in foreseen(inputs.plan, inputs.clients, inputs.habits, stops_early=hasattr(learner, "train")):
                warnings.warn(sentence, SimulationWarning, stacklevel=2)
        left = inputs.plan.finish.rounds - simulation.state.version
        shown = RoundProgress(left if rounds is None else min(left, rounds), progress)
        size = simulation.blobs.size(simulation.state.checkpoint)
        retained = Retained(newest_to_keep(keep_checkpoints, folder is not None, size), inputs.plan.finish)
        return _played(simulation, learner, inputs, rounds, shown, retained)


def _checked(
    plan: PlanLike,
    clients: ClientsLike,
    test: Any,
    score_clients: int | Literal["all"],
    score_every: int,
    behaviour: BehaviourLike,
    classes: ClassesLike,
    seed: int,
) -> Inputs:
    checks.require_whole("score_every", score_every, 1)
    whole, known = checks.plan_of(plan), Clients.of(clients)
    checks.require_enough(whole, known)
    checks.require_choice(whole, known)
    of = checks.class_of(classes, known)
    habits = checks.habits_of(behaviour, of, known, seed)
    checks.require_playable(whole, known, habits)
    scored = checks.scored_clients(score_clients, known, seed)
    checks.require_scores(whole, test, scored)
    return Inputs(whole, known, as_given(test), scored, score_every, of, habits)


def _warned(view: RoundView, before: bool) -> bool:
    """Says once, as a SimulationWarning, that rounding was a large part of what a secure round has committed. Returns
    whether it was said, now or ``before``."""
    done = view.treatment
    if before or view.kind != "secure" or done is None or not (done.rounding or done.zero_sum):
        return before
    words = rounding_words(done.rounding, masked=True) if done.rounding else "the sum of the updates was zero"
    warnings.warn(f"secure round {view.round}: {words}", SimulationWarning, stacklevel=4)
    return True


def _played(
    simulation: Simulation,
    learner: Any,
    inputs: Inputs,
    rounds: int | None,
    shown: RoundProgress,
    retained: Retained,
) -> History:
    """Plays rounds until the run is over or ``rounds`` have been played."""
    wall: dict[int, float] = {}
    interrupted, noisy, played, waited = False, False, 0, 0
    hopeful_until = simulation.world.now + _DAY_S
    try:
        if not simulation.resumed:
            retained.added(simulation.state.checkpoint, score_version(simulation, learner, inputs))
            checks.require_watched(inputs.plan, simulation.history(wall).curves)
            simulation.keep()
        while not simulation.state.over and (rounds is None or played < rounds):
            began, before = time.monotonic(), simulation.state
            state = simulation.play_round(shown.training)
            scores: dict[str, Score] = {}
            if state.version != before.version:
                score_devices(simulation, learner, before.round_number)
            if state.version != before.version and (state.over or state.version % inputs.score_every == 0):
                scores = score_version(simulation, learner, inputs)
            if state.version != before.version:
                hopeful_until = simulation.world.now + _DAY_S
                simulation.drop(retained.added(state.checkpoint, scores))
            if simulation.state.over:
                simulation.settle()
            simulation.keep()
            wall[before.round_number] = wall.get(before.round_number, 0.0) + time.monotonic() - began
            played += 1
            view = simulation.ended(before.round_number)
            noisy = _warned(view, noisy)
            shown.ended(view, shown_scores(scores))
            if state.round is None and state.status == "running":
                raise Stalled(simulation.coordinator.operators.run(simulation.run).stalled)
            waited = waited + 1 if state.waits else 0
            stalled = state.status == "paused" or waited >= ABANDONED_MOST
            if inputs.plan.finish.abandoned is None:
                stalled = stalled or state.abandoned >= ABANDONED_MOST
            if inputs.habits.by_day and state.status == "running" and not view.funnel.selected:
                stalled = stalled and simulation.world.now >= hopeful_until  # others are available at another hour
            if stalled:
                gone = [one for one in simulation.history(wall).withdrawals if one.round == before.round_number]
                why = f" ({gone[0].device}: {gone[0].reason.rstrip('.')})" if gone else ""
                last = view
                place = "datacenter" if last.kind == "datacenter" else "task" if gone else "cohort"
                raise Stalled(
                    f"{failures_in_a_row(state.abandoned, last.missed)}, the last one because "
                    f"{last.reason.rstrip('.')}{why}. "
                    "A simulated fleet does not change by itself: "
                    f"change the plan's {place}, or the behaviour"
                )
    except KeyboardInterrupt:
        interrupted = True
    except SimulationError as error:
        error.history = simulation.history(wall, interrupted=True)
        raise
    except (StoreError, BlobError) as error:
        broken = SimulationError(f"round {simulation.state.round_number} could not be stored: {error}")
        broken.history = simulation.history(wall, interrupted=True)
        raise broken from error
    finally:
        shown.close()
    return simulation.history(wall, interrupted=interrupted)


class _Failing:
    """Called when the user's own code failed on a client. Raises ClientFailed with the command that runs it again."""

    def __init__(self, folder: str | PathLike[str] | None) -> None:
        self._folder = folder
        self.model: Callable[[], Tensors] | None = None

    def __call__(self, job: Job, failed: CannotTrain) -> None:
        where, init = f"folder={str(self._folder)!r}", None
        if self._folder is None and self.model is not None:
            path = Path(mkdtemp(prefix="quorate-failed-")) / f"round-{job.round}.safetensors"
            path.write_bytes(to_bytes(self.model()))
            init = str(path)
            where = f"init={init!r}"
        words = (
            f"client {job.device!r} failed in round {job.round}: {failed.reason}\n\n"
            + (f"{failed.trace}\n\n" if failed.trace else "")
            + f"To run just this client again: simulate(..., only={job.device!r}, round={job.round}, {where})"
        )
        raise ClientFailed(job.device, job.round, words, init) from failed.error


MOST_BYTES = 2**30
"""Bytes of the newest checkpoints in a temporary folder, where the user names no number."""
_FEWEST = 2
"""Newest checkpoints that stay, however large they are: the model of the round under way is one of them."""


def newest_to_keep(keep: Keep, in_folder: bool, model_bytes: int) -> int | None:
    """How many of the newest checkpoints stay; None: all. ValueError for a bad ``keep``."""
    if keep == "all" or (keep is None and in_folder):
        return None
    if keep is None:
        return max(_FEWEST, MOST_BYTES // max(1, model_bytes))
    require_whole("keep_checkpoints", keep, 1)
    if in_folder:
        raise ValueError(
            f"keep_checkpoints={keep} is for a simulation without folder=: a data folder keeps all checkpoints of a run"
        )
    return keep


class Retained:
    """Which checkpoints of a simulation without a folder stay: the first, the best and the newest. ``added`` for each
    new one, in order.

    A run in a data folder keeps its whole line, which ``quorate verify`` checks and a coordinator serves. A run in a
    temporary folder would fill the disk: a large model, once for each round."""

    def __init__(self, newest: int | None, finish: Finish) -> None:
        """``finish``: of the plan; the metric that it watches decides which checkpoint is the best. Without one it is
        the accuracy, or the loss where there is no accuracy, of the central scores or those of clients."""
        self._most = newest
        self._finish = finish
        self._first: str | None = None
        self._newest: deque[str] = deque()
        self._best: tuple[float, str] | None = None

    def added(self, digest: str, scores: Mapping[str, Score]) -> set[str]:
        """Adds a checkpoint with its scores by source; returns the digests of those that need not stay any longer."""
        if self._most is None:
            return set()
        going = set()
        value = self._goodness(scores)
        if value is not None and (self._best is None or value > self._best[0]):
            if self._best is not None:
                going.add(self._best[1])
            self._best = value, digest
        self._first = self._first or digest
        self._newest.append(digest)
        while len(self._newest) > self._most:
            going.add(self._newest.popleft())
        return going - {self._first, *self._newest, *((self._best[1],) if self._best else ())}

    def _goodness(self, scores: Mapping[str, Score]) -> float | None:
        """A value that is higher for a better model; None where there is no score."""
        finish = self._finish
        if finish.metric is not None:
            found = scores.get(finish.source)
            value = None if found is None else found.metrics.get(finish.metric)
            return value if value is None or finish.better == "higher" else -value
        for source in (CENTRAL, CLIENTS):
            metrics = scores[source].metrics if source in scores else {}
            if "accuracy" in metrics:
                return metrics["accuracy"]
            if "loss" in metrics:
                return -metrics["loss"]
        return None


def rerun(
    plan: Plan,
    learner: Any,
    clients: Clients,
    client: str,
    round: int,
    *,
    behaviour: BehaviourLike,
    classes: ClassesLike,
    init: InitLike,
    seed: int,
    folder: str | PathLike[str] | None,
) -> Update:
    """Trains one client of one round again, alone, to debug a learner or a client's data, and returns the client's
    update as in that round, with the same number of steps. ValueError where the round's model is not
    known; errors of the learner pass through."""
    if client not in clients:
        raise ValueError(f"there is no client {client!r}; the first is {clients.id(0)!r}")
    of_class = checks.class_of(classes, clients)
    habits = checks.habits_of(behaviour, of_class, clients, seed)
    cohort: Sequence[str] = [client]
    version, small = round - 1, cast("Small", {})
    if folder is None and habits.by_share:
        raise ValueError("straggler_share depends on who else was selected in the round: give folder=")
    if init is None and folder is not None:
        model, state, cohort = _of_folder(Path(folder), plan, round)
        run, version, small = state.run, state.version, state.small
        cohort = [*cohort, *(() if client in cohort else (client,))]
    elif init is None and round > 1:
        raise ValueError(f"which model did round {round} start from? Give init= or folder=")
    else:
        model, run = first_model(init, learner, seed)[0](), plan.name
    layout = Layout.of(Manifest.of(model), plan.task.averaged, {})  # an update that is returned as it is
    habits.carry(len(to_bytes(model)), UpdateSizes(layout, plan.task.codec)(""))
    conduct = habits.conducts(cohort, round)[client]
    try:
        task = algorithm(plan, installed(plan)).task(plan, version, small, of_class(client))
    except ExtensionError as error:
        raise ValueError(f"round {round} has no task for {client!r}: {error}") from None
    planned = task.planned_steps(clients.examples(client))
    steps, _ = work_done(conduct, planned, plan.cohort.collect_s, task.time_budget_s)
    job = Job(
        run=run,
        round=round,
        attempt=0,
        device=client,
        changes=changes(plan.task, task),
        cost=steps,
        steps=None if steps == planned else max(1, steps),
    )
    if plan.secure is not None:
        secret, tensors = SimulatedAuthority(seed).secret(client), canonical_digest(to_bytes(model))
        job = replace(job, changes={**job.changes, "seed": private_seed(secret, run, round, tensors)})
    kernel = Kernel(plan, learner, clients, layout)
    if kernel.keeps != "nothing" and round > 1:
        raise ValueError(f"what {client!r} kept before round {round} is gone: its strategy keeps a state on devices")
    return kernel.update(model, job)


def _of_folder(folder: Path, plan: Plan, round: int) -> tuple[Tensors, RunState, Sequence[str]]:
    """(the model from which this round of the folder's newest run of the plan started, the run's state when it was
    opened, the round's cohort)."""
    if not (folder / BLOBS_FOLDER).is_dir():
        raise ValueError(f"{folder} is no data folder of a coordinator or a simulation")
    store = open_store(database_url(folder))
    try:
        run = store.newest_run(plan.digest)
        if run is None:
            raise ValueError(f"{folder} has no run of this plan")
        row = next((row for row in store.rounds(run.run, round - 1) if row.round == round), None)
        if row is None:
            raise ValueError(f"round {round} of run {run.run} in {folder} has not begun")
        state = state_in(store, run, round)
        with FileBlobs(folder / BLOBS_FOLDER).open(state.checkpoint) as file:
            return from_bytes(file.read()), state, cast("list[str]", row.body.get("cohort", []))
    finally:
        store.close()
