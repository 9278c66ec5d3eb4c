"""Answers the requests of operators: runs, rounds, checkpoints, metrics, devices, the event log.

Raises ``ProblemError`` for a request that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import cast

from client_sdk.metrics import undefined
from client_sdk.protocol.names import Page, first_of
from client_sdk.protocol.operators import (
    CheckpointView,
    CreateRun,
    EventView,
    MetricReport,
    MetricView,
    RoundView,
    RunView,
)
from client_sdk.protocol.problems import problem
from coordinator.blobs import Spool
from coordinator.engine import events as ev
from coordinator.engine.rounds import kind_of
from coordinator.engine.state import RunState
from coordinator.runtime import run_creation, views
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.flower.flower_runs import FlowerRuns
from coordinator.runtime.standstill import Standstill
from coordinator.store.paging import page_of
from coordinator.store.port import AuthorityRow, RoundRow, RunRow


def _any(run: str) -> bool:
    return True


class OperatorRequests:
    def __init__(self, core: Core, standstill: Standstill, flower: FlowerRuns) -> None:
        self._core = core
        self._flower = flower
        self._standstill = standstill
        self._spendings: dict[str, CostlyValue[float]] = {}
        """By ledger."""

    def put_checkpoint(self, spool: Spool, digest: str) -> bool:
        """Stores an initial checkpoint. Its digest and its format are checked. Returns whether damaged bytes were
        replaced."""
        run_creation.check_checkpoint(spool.handle)
        spool.commit(digest)
        return spool.repaired

    def create_run(
        self,
        request: CreateRun,
        *,
        taken: Container[str] = (),
        permitted: Callable[[str], bool] = _any,
        sees: run_creation.Sees = None,
        usual: float | None = None,
    ) -> RunView:
        """Creates a run. ``taken``: ids that are in use beside those of this store. ``sees``: of which runs the caller
        may have the checkpoints; None: of all. ``usual``: what devices weigh on average, where that is known.
        ProblemError *not-permitted* where its id is not ``permitted``."""
        row = run_creation.create_run(request, self._core, taken, permitted, sees, usual)
        run_creation.begin_run(self._core, self._core.log(row.run))
        return self.run(row.run)

    def runs(
        self, sees: Callable[[str], bool] = _any, after: str = "", limit: int = 1 << 30, *, newest_first: bool = False
    ) -> Page[RunView]:
        """The views of the runs for which ``sees`` is true that were created after this one, oldest first; or before
        it, newest first. Runs whose own rows cannot be read are left out, which is noted."""

        def show(run: str) -> RunView | None:
            try:
                return self.run(run) if sees(run) else None
            except ValueError as error:
                self._core.process.run_errors.note(run, error)
                return None

        after = after if sees(after) else ""  # who does not see a run is not told when it was created
        read = self._core.store.runs_before if newest_first else self._core.store.runs_after
        return page_of(read, str, show, after, limit, hidden=True)

    def over(self, run: str) -> bool:
        """Whether the run has ended, as far as this process has read its log."""
        flower = None if self._core.has_log(run) else self._core.store.flower_run(run)
        return self._core.log(run).state.over if flower is None else flower.over

    def run_ids(self) -> list[str]:
        """The ids of the runs with a plan, then of Flower runs, each oldest first."""
        return [*self._core.store.run_ids(), *self._flower.views.runs()]

    def run(self, run: str) -> RunView:
        """The run's view; of a run whose log cannot be read, what its rows say, and why."""
        if self._is_flower(run):
            return self._flower.views.run(run)
        found = self._found(run)
        trouble = self._core.process.run_errors.of(run)
        if found is None:
            view = views.unreadable_run_view(self._core.store, self._row(run), trouble)
            return view.changed(clock=self._core.process.clocks.of(self._core.store, run))
        state, seq = found
        newest = self._core.store.round(run, state.round_number) if state.round_number else None
        latest = views.round_view(self._core.store, newest, state) if newest else None
        stalled = self._standstill.of_run(state)
        view = views.run_view(self._core.log(run).row, state, seq, latest, stalled=stalled, trouble=trouble)
        view = view.changed(
            clock=self._core.process.clocks.of(self._core.store, run),
            shared_identities=self._shared(run),
            damaged=self._of_run(state, self._core.blobs.damaged()),
            repaired=self._of_run(state, self._core.blobs.repaired()),
        )
        view = views.with_ledger(self._core.store, view, state, self._spent)
        return view if state.plan.secure is None else views.with_marks(self._core.store, view, state)

    def _spent(self, ledger: str) -> float:
        kept = self._spendings.setdefault(ledger, CostlyValue(self._core.clock))
        return kept.get(lambda: self._core.store.privacy_figure(ledger).rho)[0]

    def _shared(self, run: str) -> tuple[str, ...]:
        """The devices whose identity two processes use now, and that have worked, or work, for the run."""
        store = self._core.store
        found = self._standstill.fleet.shared_identities(store)
        claims = {claim.device for claim in store.claims(run)} if found else ()
        took_part = store.participation(found, [run]) if found else {}
        return tuple(device for device in found if device in claims or device in took_part)

    def _of_run(self, state: RunState, digests: list[str]) -> tuple[str, ...]:
        """The digests that are checkpoints of the run, updates of its round, or its newest named tensors."""
        if not digests:
            return ()
        items = () if state.round is None else kind_of(state.round).contributions(state.round)
        mine = {*state.named_tensors.values(), *(item.digest for item in items)}
        runs_with = self._core.store.runs_with_checkpoint
        return tuple(digest for digest in digests if digest in mine or state.run in runs_with(digest))

    def _is_flower(self, run: str) -> bool:
        """Whether it is a Flower run. Runs that this process has read have a log, and are none."""
        return not self._core.has_log(run) and self._flower.views.has(run)

    def _row(self, run: str) -> RunRow:
        row = self._core.store.run(run)
        if row is None:
            raise problem("unknown-run", f"there is no run {run!r}")
        return row

    def _require(self, run: str) -> None:
        """ProblemError where there is no such run. That its log can be read is not required."""
        with suppress(ValueError):
            self._core.log(run)

    def _found(self, run: str) -> tuple[RunState, int] | None:
        """The newest (state, seq) of a run; None where its log cannot be read, which is noted. ProblemError where there
        is no such run."""
        try:
            return self._core.log(run).caught_up()
        except ValueError as error:
            self._core.process.run_errors.note(run, error)
            return None

    def _readable(self, run: str) -> RunState:
        """The newest state of a run that shall be changed; ProblemError where its log cannot be read."""
        found = self._found(run)
        if found is None:
            raise problem(
                "conflict", f"this coordinator cannot handle run {run}: {self._core.process.run_errors.of(run)}"
            )
        return found[0]

    def pause(self, run: str) -> RunView:
        return self._change(run, lambda at: ev.Paused(at=at))

    def resume(self, run: str) -> RunView:
        return self._change(run, lambda at: ev.Resumed(at=at))

    def stop(self, run: str) -> RunView:
        if self._is_flower(run):
            self._flower.runs.stop(run)
            return self._flower.views.run(run)
        return self._change(run, lambda at: ev.Stopped(at=at))

    def rename(self, run: str, name: str) -> RunView:
        return self._change(run, lambda at: ev.Renamed(at=at, name=name))

    def _change(self, run: str, make: Callable[[float], ev.Event]) -> RunView:
        self._readable(run)
        self._core.submit(run, make)
        return self.run(run)

    def advance(self, run: str, by: str) -> RunView:
        """Continues an exhausted run for its owner: this round commits the model moved by one unit of the exact scale.
        ``by`` is written to the audit."""
        number = self._readable(run).round_number
        return self._change(run, lambda at: ev.Advanced(at=at, round=number, by=by))

    def unbar(self, run: str, device: str, by: str) -> RunView:
        """Lets a barred device take part in the run's secure rounds again, for its owner. ``by`` is written to the
        audit."""
        return self._change(run, lambda at: ev.Unbarred(at=at, device=device, by=by))

    def vouch(self, run: str, version: int, signature: str) -> RunView:
        """Gives devices the signature under this version of the run's model, its newest one."""
        return self._change(run, lambda at: ev.Vouched(at=at, version=version, signature=signature))

    def rounds(self, run: str, after: int = 0, limit: int = 1000) -> Page[RoundView]:
        if self._is_flower(run):
            return first_of(self._flower.views.rounds(run, after, limit + 1), limit, lambda view: view.round)
        state = self._shown_state(run)
        authorities = self._core.store.authorities()
        rows = first_of(self._core.store.rounds(run, after, limit + 1), limit, lambda row: row.round)
        return Page((self._round_view(row, state, authorities) for row in rows), rows.next)

    def ended_rounds(self, run: str, after: int, limit: int) -> list[RoundView]:
        """The rounds after this one up to the first that has not ended, ``limit`` at most. They are read from their
        rows alone, so also where the run's log cannot be read."""
        rows = takewhile(lambda row: row.status != "open", self._core.store.rounds(run, after, limit))
        authorities = self._core.store.authorities()
        return [views.round_view(self._core.store, row, None, authorities) for row in rows]

    def round(self, run: str, round: int) -> RoundView:
        if self._is_flower(run):
            return self._flower.views.round(run, round)
        state = self._shown_state(run)
        row = self._core.store.round(run, round) if state is None or round <= state.round_number else None
        if row is None:
            at = self.run(run).round
            raise problem("unknown-round", f"run {run} has no round {round}: it is at round {at}")
        view = self._round_view(row, state)
        states = row.body.get("states")
        return view.model_copy(update={"states": states}) if states else view

    def _shown_state(self, run: str) -> RunState | None:
        """The newest state; None where the log cannot be read, so that rows alone are shown."""
        found = self._found(run)
        return found[0] if found is not None else None

    def _round_view(
        self, row: RoundRow, state: RunState | None, authorities: Sequence[AuthorityRow] | None = None
    ) -> RoundView:
        """The view of a round; of the one under way with the reason why it does not go on."""
        view = views.round_view(self._core.store, row, state, authorities)
        if view.status != "open" or state is None or state.round is None or row.round != state.round.number:
            return view
        parts = (self._core.process.run_errors.of_actions(row.run), self._standstill.of_round(state))
        return view.model_copy(update={"reason": "; ".join(part for part in parts if part) or view.reason})

    def checkpoints(self, run: str, after: int = -1, limit: int = 1000) -> Page[CheckpointView]:
        self._require(run)
        store = self._core.store
        line = first_of(store.checkpoints(run, after, limit + 1), limit, lambda row: row.version)
        before = store.checkpoint(run, line[0].version - 1) if line else None  # the parent of the first
        digests = {row.version: row.digest for row in (*([before] if before is not None else []), *line)}
        return Page((views.checkpoint_view(row, digests) for row in line), line.next)

    def require_checkpoint(self, digest: str, sees: Callable[[str], bool] | None = None) -> None:
        """ProblemError unless the caller may have this checkpoint. Only checkpoints of runs are served: an update's
        digest is unknown here. With ``sees`` only those of runs for which it is true."""
        if sees is not None:
            if not any(sees(run) for run in self._core.store.runs_with_checkpoint(digest)):
                raise problem("unknown-checkpoint", f"no run in your scope has a checkpoint {digest}")
        elif digest not in self._core.process.checkpoints:
            if not self._core.store.runs_with_checkpoint(digest):
                raise problem("unknown-checkpoint", f"no run has a checkpoint {digest}")
            self._core.process.checkpoints.add(digest)

    def metrics(self, run: str, after: int = -1, limit: int = 1000) -> Page[MetricView]:
        """At most ``limit``, and the others of the last one's version."""
        self._require(run)
        rows = first_of(self._core.store.metrics(run, after, limit + 1), limit, lambda row: row.version)
        if rows.next:
            last = rows[-1].version
            whole = [row for row in rows if row.version != last] + self._core.store.metrics_of(run, last)
            rows = Page(whole, rows.next)
        return Page((views.metric_view(row) for row in rows), rows.next)

    def report_metrics(self, run: str, report: MetricReport) -> list[MetricView]:
        """Stores an evaluator's scores; they may finish the run. Of the source ``devices`` it takes the metrics of
        which the devices of a round sent states, since those have no value before somebody computes it."""
        state = self._readable(run)
        row = self._core.store.checkpoint(run, report.version) if report.version <= state.version else None
        if row is None:
            raise problem("unknown-checkpoint", f"run {run} has no version {report.version}")
        if row.digest != report.digest:
            raise problem(
                "conflict", f"version {report.version} of run {run} is {row.digest}, but {report.digest} was scored"
            )
        if report.source == "devices" and not self._computed(run, report):
            raise problem(
                "conflict", 'the source "devices" is reserved for the scores that devices report with their updates'
            )
        self._core.submit(
            run,
            lambda at: ev.Scored(
                at=at,
                version=report.version,
                source=report.source,
                examples=report.score.examples,
                metrics=dict(report.score.metrics),
            ),
        )
        rows = self._core.store.metrics_of(run, report.version)
        return [views.metric_view(row) for row in rows if row.source == report.source]

    def _computed(self, run: str, report: MetricReport) -> bool:
        """Whether the report has values of states, and of nothing else, that devices sent about this version."""
        following = self._core.store.checkpoint(run, report.version + 1)
        number = None if following is None else following.round
        row = None if number is None else self._core.store.round(run, number)
        sent = {} if row is None else cast("dict[str, object]", row.body.get("states") or {})
        return bool(sent) and report.score.metrics.keys() <= {*sent, *map(undefined, sent)}

    def events(self, run: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        """The log. Of a run with secure rounds it shows no number that a device gave of itself: how many examples it
        has, how long its messages are."""
        self._require(run)
        secure = self._row(run).plan.get("secure") is not None
        return [views.event_view(row, secure=secure) for row in self._core.store.events(run, after, limit)]
