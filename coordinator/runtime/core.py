"""What the collaborators of a coordinator share: its ports, what the process keeps in memory, and the queue of pending
actions.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import assert_never, cast

from client_sdk.codecs import UnknownCodec
from client_sdk.codecs import get as get_codec
from client_sdk.protocol.devices import Task as DeviceTask
from client_sdk.protocol.devices import said_class
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.tensors import Roles
from coordinator.blobs import Blobs
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.kinds import Place
from coordinator.engine.plan import algorithm
from coordinator.engine.plan_file import PlanError
from coordinator.engine.rounds import KINDS
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator, MakeSums, SpooledSums
from coordinator.folding.noise import SEED_BYTES
from coordinator.runtime.clock import Clock, SystemClock
from coordinator.runtime.extensions import FindExtensions, installed, missing
from coordinator.runtime.process_state import ProcessState
from coordinator.runtime.run_errors import RunErrors
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.signals import Signals, secure_key
from coordinator.runtime.tracing import Traces
from coordinator.runtime.with_messages import WithMessages
from coordinator.settings import Settings
from coordinator.store.port import MessageRow, Store

Entropy = Callable[[int], bytes]
NoiseSeed = Callable[[str, int], bytes]
"""(run, round) -> a new seed of the round's noise."""
Task = tuple[str, fx.Action]
"""(run, action): a pending action."""
TASKS = ("tasks", "openings")
"""The keys that are woken when there may be actions to perform: any, and those that open a sum."""


class Core:
    """Safe from any thread."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        *,
        clock: Clock | None = None,
        signals: Signals | None = None,
        settings: Settings | None = None,
        entropy: Entropy = secrets.token_bytes,
        noise_seed: NoiseSeed = lambda run, number: secrets.token_bytes(SEED_BYTES),
        sums: MakeSums = SpooledSums,
        extensions: FindExtensions = installed,
        run_errors: RunErrors | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.clock = clock or SystemClock()
        self.signals = signals or Signals()
        self.settings = settings or Settings()
        self.entropy, self.noise_seed = entropy, noise_seed
        self._sums = sums
        self.extensions = extensions
        self.process = ProcessState(store, self.clock, self.signals, run_errors)
        self.traces = traces
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._openings: deque[Task] = deque()
        self._answer_wakes = AnswerWakes()

    # ------------------------------------------------------------ runs

    def log(self, run: str) -> RunLog:
        """The run's log; ProblemError where there is no such run."""
        log = self.process.logs.get(run)
        if log is not None:
            return log
        row = self.store.run(run)
        if row is None:
            raise no_plan(run, flower=self.store.flower_run(run) is not None)
        with self._lock:
            return self.process.kept(RunLog(row, self.store, self.clock, self.hand_out, self.traces))

    def has_log(self, run: str) -> bool:
        """Whether this process has read the log of the run."""
        return run in self.process.logs

    def logs(self) -> list[RunLog]:
        """The logs of all runs that this process has read."""
        return list(self.process.logs.values())

    def aggregator(self, run: str) -> Aggregator:
        aggregator = self.process.aggregators.get(run)
        if aggregator is not None:
            return aggregator
        log = self.log(run)
        with self._lock:
            if run not in self.process.aggregators:
                self.process.aggregators[run] = self._made_aggregator(log)
            return self.process.aggregators[run]

    def task(self, state: RunState, device: str, version: int | None = None) -> DeviceTask:
        """The device's part in the round under way. ``version``: that it trains; None: the newest. MissingExtension
        where the strategy decides none."""
        version = state.version if version is None else version
        if state.plan.strategy is None:
            return state.plan.task_at(version)
        row = self.store.device(device)
        try:
            return self.aggregator(state.run).algorithm.task(
                state.plan, version, state.small, "" if row is None else said_class(row.label)
            )
        except ExtensionError as error:
            raise missing(state.run, error) from None

    def require_extensions(self) -> None:
        """MissingExtension where a run is not over and its plan names an extension that is not installed here in that
        version. A run whose log cannot be read is noted."""
        for run in self.store.run_ids():
            try:
                state = self.log(run).catch_up()
            except ValueError as error:
                self.process.run_errors.note(run, error)
                continue
            if state.over:
                continue
            try:
                algorithm(state.plan, self.extensions(state.plan))
                get_codec(state.plan.task.codec)
            except (PlanError, UnknownCodec) as error:
                raise missing(run, error) from None

    def _made_aggregator(self, log: RunLog) -> Aggregator:
        """MissingExtension where another replica created a run that this one cannot fold. The roles are those of the
        row, which the log's first event repeats: the log may not have been read yet."""
        run, state = log.run, log.state
        roles = cast("Roles", log.row.roles)
        try:
            registry = self.extensions(state.plan)
            blobs = cast("Blobs", WithMessages(self.blobs, log.messages))
            return Aggregator(blobs, state.plan, state.checkpoint, self._sums, roles=roles, registry=registry, run=run)
        except (PlanError, UnknownCodec) as error:
            raise missing(run, error) from None

    def state(self, run: str) -> RunState:
        """The run's newest durable state."""
        return self.log(run).catch_up()

    def states(self) -> list[RunState]:
        """The states of the runs that have not ended, as far as this process has read them."""
        return [log.state for log in self.process.going()]

    def submit(self, run: str, make: Callable[[float], ev.Event]) -> list[fx.Effect]:
        """Applies the event and returns its effects once they are durable. ProblemError where the event is refused."""
        return self.enter(run, make)()

    def enter(
        self, run: str, make: Callable[[float], ev.Event], message: MessageRow | None = None
    ) -> Callable[[], list[fx.Effect]]:
        """Queues the event, with what is stored beside it where it is accepted. The function that it returns does the
        rest of ``submit``."""
        entered = self.log(run).enter(
            lambda tx, state, at: KINDS[state.plan.kind].addressed(state, make(at)), message=message
        )

        def settle() -> list[fx.Effect]:
            effects = entered()
            for effect in effects:
                if isinstance(effect, fx.Refused):
                    raise problem(effect.kind, effect.reason)
            return effects

        return settle

    # ------------------------------------------------------------ pending actions

    def hand_out(self, run: str, actions: Sequence[fx.Action]) -> None:
        """Puts the actions in the queue; hints among them are signalled at once. It is called after every change of the
        run's state in this process, also where there are no actions."""
        keys = {f"run:{run}"}
        for action in actions:
            if isinstance(action, fx.Wake | fx.Offer | fx.SendAnswers):
                self.hint(action)
            else:
                keys.add(self._queue(run, action))
        log = self.process.logs.get(run)
        answers = [] if log is None else self._answer_wakes.keys(log.state)
        self.signals.wake_many((*sorted(keys), *answers))

    def _queue(self, run: str, action: fx.Action) -> str:
        """Puts the action in its queue. Returns the key of those who perform it."""
        is_opening = isinstance(action, fx.Open)
        (self._openings if is_opening else self._tasks).append((run, action))
        return TASKS[is_opening]

    def hand_out_once(self, run: str, action: fx.Action) -> None:
        """Puts the action in the queue, unless it is there already."""
        if (run, action) not in self.tasks():
            self.hand_out(run, [action])

    def hint(self, action: fx.Wake | fx.Offer | fx.SendAnswers) -> None:
        """Wakes the devices and workers for whom there is work, or an answer."""
        match action:
            case fx.Offer():
                self.signals.wake("workers")
            case fx.Wake():
                self.signals.wake_many([f"device:{device}" for device in action.devices])
            case fx.SendAnswers():
                self.signals.wake_many([secure_key(device) for device in action.devices])
            case _:
                assert_never(action)

    def take_task(self, *, openings: bool | None = None) -> Task | None:
        """The next action to perform, or None. ``openings``: only those that open a sum, or only the others."""
        for queue, of_openings in ((self._tasks, False), (self._openings, True)):
            if openings is None or openings is of_openings:
                with suppress(IndexError):
                    return queue.popleft()
        return None

    def put_back(self, task: Task) -> None:
        """Returns a task that could not be performed to the queue."""
        self.signals.wake(self._queue(*task))

    def tasks(self) -> list[Task]:
        """The pending actions."""
        return [*self._tasks, *self._openings]


class AnswerWakes:
    """Which devices may have an answer of their round, or learn that there will be none. It remembers where the round
    of each run was. Safe from any thread: to be woken twice does no harm."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Place, tuple[str, ...]]] = {}

    def keys(self, state: RunState) -> list[str]:
        """The keys to wake: those of all devices of the round where it has got to another place (``RoundKind.place``);
        else none."""
        before, here = self._last.get(state.run), KINDS[state.plan.kind].place(state)
        if here is None or (before is not None and before[0] == here):
            return []
        members = () if state.round is None else tuple(state.round.members)
        self._last[state.run] = (here, members)
        return [secure_key(device) for device in sorted({*members, *(before[1] if before is not None else ())})]


def no_plan(run: str, *, flower: bool) -> ProblemError:
    """The refusal of what only a run with a plan has. ``flower``: there is a Flower run of this name."""
    if not flower:
        return problem("unknown-run", f"there is no run {run!r}")
    return problem(
        "conflict",
        f"run {run} is a Flower run: its ServerApp decides about rounds and models, so it has no plan, checkpoints, "
        "metrics, events or lanes here, and cannot be paused or advanced",
    )
