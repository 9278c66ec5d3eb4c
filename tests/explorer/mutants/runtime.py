"""Bugs in the runtime: tasks that are lost, events that are not read, answers that come too early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import rounds
from coordinator.engine.state import RunState
from coordinator.runtime import records, timekeeping
from coordinator.runtime.core import Core
from coordinator.runtime.devices import DeviceRequests
from coordinator.runtime.operators import OperatorRequests
from coordinator.runtime.run_log import RunLog, _Proposal
from coordinator.runtime.timekeeping import Timekeeping
from coordinator.store.port import FenceLost, StoreError, Transaction
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("lost-wake-up", "liveness")
def _lost_wake_up() -> Patches:
    """A selected device that waits is not woken."""
    hint = Core.hint
    return [(Core, "hint", lambda self, action: None if isinstance(action, fx.Wake) else hint(self, action))]


@mutant(
    "bytes-not-looked-at-again",
    "ack-durable",
    focus=("interleave", "collecting"),
    rates={"lie": 0.9, "interleave": 0.4},
    liars=1,
    copied=True,
    storm_s=60.0,
)
def _bytes_not_looked_at_again() -> Patches:
    """An update counts though its bytes were deleted since: the same ones under another request were refused."""
    count = DeviceRequests.count
    return [(DeviceRequests, "count", lambda self, *which, still_there: count(self, *which))]


@mutant("ack-before-durable", "ack-durable", "receipt")
def _ack_before_durable() -> Patches:
    """A peer is answered as if the transaction had not failed."""
    commit = RunLog._commit

    def hopeful(self: RunLog, batch: Sequence[_Proposal]) -> Any:
        try:
            return commit(self, batch)
        except StoreError:
            answers: list[list[fx.Effect]] = []
            for proposal in batch:
                try:
                    event = proposal.make(None, self.state, self._clock.now())  # type: ignore[arg-type]
                except AttributeError:  # it wants to read the database
                    raise StoreError("failed as it should") from None
                answers.append([] if event is None else rounds.step(self.state, event)[1])
            return answers

    return [(RunLog, "_commit", hopeful)]


@mutant("fence-not-checked", "fence", focus=("pause", "committing"), replicas=3, storm_s=60.0)
def _fence_not_checked() -> Patches:
    """A coordinator that wakes with an old fence commits."""
    return [(RunLog, "_hold_fence", lambda self, tx, fence: None)]


@mutant("fence-checked-by-row-only", "fence", focus=("pause", "committing"), replicas=3, storm_s=60.0)
def _fence_checked_by_row_only() -> Patches:
    """An older fence than the run's newest still commits; only one that was never given is refused."""

    def hold(self: RunLog, tx: Transaction, fence: int | None) -> None:
        row = tx.run(self.run)
        if fence is not None and (row is None or row.fence < fence):
            raise FenceLost(f"the fence {fence} of run {self.run} was never given")

    return [(RunLog, "_hold_fence", hold)]


@mutant("no-catch-up", "log", "ack-durable", "late-report", "counts-once", "claims", "liveness", "one-end", "no-bug")
def _no_catch_up() -> Patches:
    """Events that other replicas appended are not read."""

    def skip(self: RunLog, tx: Transaction, actions: object) -> tuple[RunState, int]:
        return self.state, tx.head(self.run)

    return [(RunLog, "_caught_up", skip)]


@mutant("forgotten-tail", "log", "late-report", "counts-once", "claims", "one-end", "liveness", "ack-durable", "no-bug")
def _forgotten_tail() -> Patches:
    """Recovery ignores the events after the last snapshot."""
    init = RunLog.__init__

    def start(self: RunLog, row: Any, *more: Any) -> None:
        init(self, row, *more)
        self._cache = (self._cache[0], row.seq if row.snapshot is not None else self._cache[1])

    return [(RunLog, "__init__", start)]


@mutant("lost-contributions", "named")
def _lost_contributions() -> Patches:
    """A commit does not name its updates."""

    class Silent:
        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def __getattr__(self, name: str) -> Any:
            return (lambda rows: list(rows)) if name == "insert_contributions" else getattr(self._transaction, name)

    checkpoint = records._checkpoint
    return [(records, "_checkpoint", lambda tx, *more: checkpoint(Silent(tx), *more))]


@mutant("deadline-ignored", "liveness")
def _deadline_ignored() -> Patches:
    """A round waits for its goal for ever."""
    return [(rounds, "_tick", lambda state, event: (state, []))]


@mutant("clock-trusted", "liveness")
def _clock_trusted() -> Patches:
    """A deadline set by a clock that was ahead is not corrected."""
    return [(timekeeping, "_beyond_s", lambda state, now: 0.0)]


@mutant("no-takeover", "liveness", focus=("store-lost-ack", "collecting"))
def _no_takeover() -> Patches:
    """No other replica takes over a commit whose coordinator died or does not know that the round has closed."""
    return [(Timekeeping, "_retry_work", lambda self, run, state, now: None)]


@mutant("never-begun", "liveness", "ack-durable", focus=("store-lost-ack", "idle"))
def _never_begun() -> Patches:
    """A run whose creation was interrupted stays without its first event."""
    return [(Timekeeping, "_begun", lambda self, run: self._core.log(run))]


@mutant("expired-device", "log", "liveness")
def _expired_device() -> Patches:
    """The whole pool is drawn, whatever the plan's ``select``."""
    from coordinator.engine.selection import Choice

    return [(Choice, "draw", lambda self, rows, k, **more: sorted(row[0] for row in rows))]


@mutant("lost-pause", "ack-durable")
def _lost_pause() -> Patches:
    """An operator's pause is answered and not stored."""
    return [(OperatorRequests, "pause", lambda self, run: self.run(run))]
