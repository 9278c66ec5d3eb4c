"""Bugs in what is written beside the log: refusals, scores, public records, batches, fences, pages, transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.kinds import RoundKind
from coordinator.engine.phases import collecting, committing, public_record, refusing
from coordinator.engine.state import Round, RunState
from coordinator.runtime.devices import Outcomes
from coordinator.runtime.run_log import RunLog, _Proposal
from coordinator.store.port import Transaction
from coordinator.store.sql import SqlStore
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
_refuse = refusing.refuse
_advance = committing.advance
_fleet_body = public_record.fleet_body


@mutant("late-refusal-unrecorded", "named", focus=("lie", "committing"), liars=3)
def _late_refusal_unrecorded() -> Patches:
    """A late, second or invalid update is refused, and no row says so."""

    def refuse(state: RunState, kind: str, reason: str, report: Any = None) -> Any:
        return _refuse(state, kind, reason)

    return [(collecting, "refuse", refuse), (Outcomes, "record_late", lambda self, *late: None)]


@mutant("scores-of-the-new-version", "public")
def _scores_of_the_new_version() -> Patches:
    """The scores of devices are recorded for the version that they made, not for the one that they scored."""

    def advance(state: RunState, at: float, **made: Any) -> Any:
        following, effects = _advance(state, at, **made)
        return following, [
            replace(effect, version=effect.version + 1) if isinstance(effect, fx.RecordMetrics) else effect
            for effect in effects
        ]

    return [(committing, "advance", advance)]


@mutant("public-record-wrong", "public")
def _public_record_wrong() -> Patches:
    """The public record of a round has the weights of another count."""

    def body(round: Round, *masked: Any) -> dict[str, object]:
        found = _fleet_body(round, *masked)
        return {**found, "weight": len(round.members), "bytes_in": 0}

    return [(public_record, "fleet_body", body)]


@mutant("retention-one-too-short", "retention", plan={"retention": {"rounds": 2}})
def _retention_one_too_short() -> Patches:
    """The updates of a retained round are deleted one round early."""

    def forget(self: RoundKind[Any], state: RunState) -> list[fx.Effect]:
        ended = state.current.number - max(0, state.plan.retention.rounds - 1)
        return [fx.Discard(round=ended)] if ended >= 1 else []

    return [(RoundKind, "forget", forget)]


@mutant(
    "refusal-ends-the-batch", "receipt", "named", "left-once", "ack-durable", focus=("queued", "collecting"), liars=3
)
def _refusal_ends_the_batch() -> Patches:
    """One proposer's refusal is the answer to every proposal of its batch, and the others are appended."""
    commit = RunLog._commit

    def ended(self: RunLog, batch: Sequence[_Proposal]) -> Any:
        results = commit(self, batch)
        effects = [effect for result in results if isinstance(result, list) for effect in result]
        refused = next((effect for effect in effects if isinstance(effect, fx.Refused)), None)
        return results if refused is None else [[refused]] * len(results)

    return [(RunLog, "_commit", ended)]


@mutant("handed-out-before-durable", "ack-durable")
def _handed_out_before_durable() -> Patches:
    """The actions of a batch are handed out before its transaction has ended, and stay so when it fails."""
    commit = RunLog._commit

    def early(self: RunLog, batch: Sequence[_Proposal]) -> Any:
        real = self._store

        class Hasty:
            def __getattr__(inner, name: str) -> Any:
                return getattr(real, name)

            @contextmanager
            def transaction(inner, run: str | None = None) -> Iterator[Any]:
                with real.transaction(run) as tx:
                    yield tx
                    self._hand_out(self.run, [])

        self._store = Hasty()
        try:
            return commit(self, batch)
        finally:
            self._store = real

    return [(RunLog, "_commit", early)]


@mutant(
    "one-page-of-the-log",
    "log",
    "ack-durable",
    "claims",
    "liveness",
    "one-end",
    "no-bug",
    "offer",
    "draw",
    "public",
    replicas=3,
)
def _one_page_of_the_log() -> Patches:
    """A replica that catches up reads one page of the log only."""

    def caught_up(self: RunLog, tx: Transaction, actions: object) -> tuple[RunState, int]:
        from coordinator.runtime import run_log

        state, seq = self._cache
        for row in tx.events(self.run, seq, run_log._PAGE):
            state, _ = rounds.step(state, ev.from_json(row.kind, row.at, row.body))
            seq = row.seq
        return state, seq

    return [(RunLog, "_caught_up", caught_up)]


@mutant("commit-under-no-new-fence", "fence")
def _commit_under_no_new_fence() -> Patches:
    """A replica that takes a commit does not raise the fence."""

    def take_fence(self: RunLog, wanted: Any) -> int | None:
        if not wanted(self.catch_up()):
            return None
        row = self._store.run(self.run)
        return None if row is None else row.fence

    return [(RunLog, "take_fence", take_fence)]


@mutant(
    "sql-commits-on-error",
    "log",
    "ack-durable",
    "one-end",
    "claims",
    "no-bug",
    "line",
    "named",
    "draw",
    store="sqlite",
    focus=("store-torn", "collecting"),
)
def _sql_commits_on_error() -> Patches:
    """A transaction that ends with an error is committed as far as it came."""

    transaction = SqlStore.transaction

    @contextmanager
    def committing_store(self: SqlStore, run: str | None = None) -> Iterator[Any]:
        error: BaseException | None = None
        with transaction(self, run) as tx:
            try:
                yield tx
            except Exception as failed:
                error = failed
        if error is not None:
            raise error

    return [(SqlStore, "transaction", committing_store)]
