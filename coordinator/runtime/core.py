"""What the desks of a coordinator share: its ports, one log and one aggregator a run, and the queue of actions to
perform.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence

from client_sdk.codecs import UnknownCodec
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.protocol.problems import problem
from coordinator.blobs import Blobs
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.plan import PlanError
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator, MakeSums
from coordinator.folding.sums import SpooledSums
from coordinator.runtime.clock import Clock, SystemClock
from coordinator.runtime.extensions import FindExtensions, installed, missing
from coordinator.runtime.fleet import Entropy, Fleet
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.signals import Signals
from coordinator.settings import Settings
from coordinator.store.port import Store

Task = tuple[str, fx.Action]
"""(run, action) that waits to be performed."""


class Hub:
    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        *,
        clock: Clock | None = None,
        signals: Signals | None = None,
        settings: Settings | None = None,
        entropy: Entropy = secrets.token_bytes,
        sums: MakeSums = SpooledSums,
        extensions: FindExtensions = installed,
    ) -> None:
        self.store = store
        self.blobs = blobs
        self.clock = clock or SystemClock()
        self.signals = signals or Signals()
        self.settings = settings or Settings()
        self.fleet = Fleet(store, self.clock, self.signals, self.settings, entropy)
        self._entropy = entropy
        self._sums = sums
        self.extensions = extensions
        self._lock = threading.Lock()
        self._logs: dict[str, RunLog] = {}
        self._aggregators: dict[str, Aggregator] = {}
        self._offered: dict[str, CheckpointRef] = {}
        self._known: set[str] = set()
        self._todo: deque[Task] = deque()
        self._at_commit: set[str] = set()
        self._closed: dict[str, tuple[int, float, float]] = {}
        self._latest_now = self.clock.now()
        self._house_kept_at = self._latest_now

    def _log(self, run: str) -> RunLog:
        log = self._logs.get(run)
        if log is not None:
            return log
        row = self.store.run(run)
        if row is None:
            raise problem("unknown-run", f"there is no run {run!r}")
        with self._lock:
            return self._logs.setdefault(run, RunLog(row, self.store, self.clock, self._hand_out))

    def _aggregator(self, run: str) -> Aggregator:
        aggregator = self._aggregators.get(run)
        if aggregator is not None:
            return aggregator
        state = self._log(run).state
        with self._lock:
            if run not in self._aggregators:
                self._aggregators[run] = self._made_aggregator(run, state)
            return self._aggregators[run]

    def _made_aggregator(self, run: str, state: RunState) -> Aggregator:
        """MissingExtension where another replica took on a run that this one cannot fold."""
        try:
            registry = self.extensions(state.plan)
            return Aggregator(self.blobs, state.plan, state.checkpoint, self._sums, registry=registry, run=run)
        except (PlanError, UnknownCodec) as error:
            raise missing(run, error) from None

    def state(self, run: str) -> RunState:
        """The run's newest durable state."""
        return self._log(run).catch_up()

    def _states(self) -> list[RunState]:
        return [log.state for log in list(self._logs.values())]

    def _submit(self, run: str, make: Callable[[float], ev.Event]) -> list[fx.Effect]:
        effects = self._log(run).submit(lambda tx, state, at: make(at))
        for effect in effects:
            if isinstance(effect, fx.Refused):
                raise problem(effect.kind, effect.reason)
        return effects

    def _hand_out(self, run: str, actions: Sequence[fx.Action]) -> None:
        for action in actions:
            if isinstance(action, fx.Wake):
                self._wake(action)
            elif isinstance(action, fx.Offer):
                self.signals.wake("workers")
            else:
                self._todo.append((run, action))
        self.signals.wake_many(("tasks", f"run:{run}"))

    def _wake(self, action: fx.Wake) -> None:
        self.signals.wake_many([f"device:{device}" for device in action.devices])
