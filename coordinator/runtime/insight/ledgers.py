"""Answers the requests about privacy ledgers. ``figures`` is what a report of a run says of its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

from client_sdk.privacy.accounting import epsilon_of, rho_for
from client_sdk.protocol.names import Page, copied
from client_sdk.protocol.privacy import (
    Allowance,
    AllowSpending,
    ClipSince,
    CreateLedger,
    ExpectedRound,
    LedgerRun,
    LedgerView,
    RunPrivacy,
    SpentRound,
)
from client_sdk.protocol.problems import ProblemError, problem
from coordinator.engine.plan import Plan
from coordinator.engine.privacy import Privacy, own_ledger
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.privacy_ledgers import ROUNDING
from coordinator.store.paging import page_of
from coordinator.store.port import Conflict, LedgerRow, Reader, RunRow, SpendingRow
from coordinator.store.rows import AllowanceRow

_POINTS = 40
"""The most points of a forecast, about."""
_NEAR = 0.9
"""Share of the budget from which on a device is near its limit."""


class PrivacyLedgers:
    """Answers requests about ledgers. ProblemError for one that is refused."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._views: dict[str, CostlyValue[LedgerView]] = {}
        """By ledger: what all of its devices have lost is added up anew."""

    def create(self, request: CreateLedger, by: str) -> LedgerView:
        row = LedgerRow(
            ledger=request.ledger,
            epsilon=request.epsilon,
            delta=request.delta,
            created_at=self._core.clock.now(),
            created_by=by,
        )
        try:
            with self._core.store.transaction() as tx:
                tx.insert_privacy_ledger(row)
        except Conflict:
            raise problem("conflict", f"there is a privacy ledger {request.ledger} already, and budgets stay") from None
        return self.show(request.ledger)

    def allow(self, ledger: str, request: AllowSpending, by: str) -> LedgerView:
        other = request.spent_in
        if ledger == other:
            raise problem("invalid-request", f"{ledger} is one ledger: its devices need no word for it")
        row = AllowanceRow(ledger=ledger, other=other, because=request.because, at=self._core.clock.now(), by=by)
        try:
            with self._core.store.transaction() as tx:
                for one in (ledger, other):
                    _budget(tx, one)
                tx.insert_privacy_allowance(row)
        except Conflict:
            raise problem("conflict", f"devices of {other} may lose more by {ledger} already") from None
        self._views.pop(ledger, None)
        return self.show(ledger)

    def listed(self, after: str = "", limit: int = 1000) -> Page[LedgerView]:
        """Those with a name, then those of runs that have one of their own, oldest first."""
        store, of_runs = self._core.store, own_ledger("")

        def read(after: str, limit: int) -> list[str]:
            named = [] if after.startswith(of_runs) else [row.ledger for row in store.privacy_ledgers(after, limit)]
            after = after.removeprefix(of_runs) if after.startswith(of_runs) else ""
            return [*named, *map(own_ledger, store.runs_after(after, limit - len(named)))]

        def show(ledger: str) -> LedgerView | None:
            try:
                return self.show(ledger)
            except ProblemError:  # the run has none of its own
                return None

        return page_of(read, str, show, after, limit)

    def show(self, ledger: str) -> LedgerView:
        kept = self._views.setdefault(ledger, CostlyValue(self._core.clock))
        try:
            return kept.get(partial(self._view, ledger))[0]
        except ProblemError:
            self._views.pop(ledger, None)
            raise

    def _view(self, ledger: str) -> LedgerView:
        with self._core.store.reading() as reader:
            return view_of(reader, ledger)

    def of_run(self, run: str) -> RunPrivacy:
        """What the run's rounds have cost, and its ledger."""
        plan = self._core.state(run).plan
        view = None if plan.privacy is None else self.show(plan.privacy.ledger_of(run))
        with self._core.store.reading() as reader:
            found = None if view is None else figures(reader, run, plan, view)
        if found is None:
            raise problem("conflict", f"the plan of run {run} has no [privacy], so nothing is counted")
        return found


def figures(reader: Reader, run: str, plan: Plan, view: LedgerView) -> RunPrivacy | None:
    """What the run's rounds have cost its devices, and its ledger. None: the plan is not private."""
    privacy = plan.privacy
    if privacy is None:
        return None
    debits = reader.privacy_debits(run)
    last, most = (debits[-1].round, debits[-1].most) if debits else (0, 0.0)
    step = most / last if last else 0.0
    left = view.budget * ROUNDING - view.rho - privacy.cost(plan)
    room = last if not step or left < 0 else last + 1 + int(left / step)
    limit = max(most, privacy.rho(plan))
    more = range(last + 1, plan.finish.rounds + 1) if step else range(0)
    return RunPrivacy(
        ledger=view,
        epsilon_planned=privacy.spent(plan),
        rounds_planned=plan.finish.rounds,
        cost=privacy.cost(plan),
        rounds=[copied(SpentRound, row, epsilon=epsilon_of(row.most, privacy.delta)) for row in debits],
        clips=list(clips_of(reader, run, privacy)),
        expected=[
            ExpectedRound(round=number, epsilon=epsilon_of(min(most + step * (number - last), limit), privacy.delta))
            for number in sorted({*more[:: max(1, len(more) // _POINTS)], *more[-1:]})
        ],
        no_room_from=room + 1 if room + 1 in more else None,
    )


def clips_of(reader: Reader, run: str, privacy: Privacy) -> Iterator[ClipSince]:
    """The clips of the run's rounds so far, each from the round on in which it held first."""
    yield ClipSince(round=1, clip=(clip := privacy.clip))
    after, following = 0, clip
    while privacy.adapt is not None and (page := reader.rounds(run, after)):
        after = page[-1].round
        for row in page:
            if following != clip:
                yield ClipSince(round=row.round, clip=(clip := following))
            found = row.body.get("clip_after")
            following = found if isinstance(found, float) else following


def view_of(reader: Reader, ledger: str) -> LedgerView:
    """A ledger in figures. ProblemError where there is none."""
    epsilon, delta, most = _budget(reader, ledger)
    totals, runs = reader.privacy_totals(ledger), dict[str, list[SpendingRow]]()
    for row in reader.privacy_spending_in(ledger):
        runs.setdefault(row.run, []).append(row)
    rho = max(totals.values(), default=0.0)
    return LedgerView(
        ledger=ledger,
        epsilon=epsilon,
        delta=delta,
        budget=most,
        rho=rho,
        spent=epsilon_of(rho, delta),
        devices=len(totals),
        near=sum(_NEAR * most <= total for total in totals.values()),
        tenths=_tenths(totals.values(), most),
        runs=[
            LedgerRun(
                run=run,
                devices=len(rows),
                rounds=max(row.times for row in rows),
                rho=(largest := max(row.rho for row in rows)),
                epsilon=epsilon_of(largest, delta),
            )
            for run, rows in sorted(runs.items())
        ],
        allowed=[
            Allowance(other=row.other, because=row.because, at=row.at, by=row.by)
            for row in reader.privacy_allowances(ledger)
        ],
    )


def _budget(reader: Reader, ledger: str) -> tuple[float, float, float]:
    """(epsilon, delta, zCDP) of the budget. ProblemError where there is no such ledger."""
    row = reader.privacy_ledger(ledger)
    if row is not None:
        return row.epsilon, row.delta, rho_for(row.epsilon, row.delta)
    of_run = reader.run(ledger.removeprefix("run:")) if ledger.startswith("run:") else None
    if of_run is not None and of_run.plan.get("privacy") and not _named(of_run):
        plan = Plan.parse(of_run.plan)
        privacy = cast("Privacy", plan.privacy)
        return privacy.spent(plan), privacy.delta, privacy.rho(plan)
    raise problem("unknown-ledger", f"there is no privacy ledger {ledger}")


def _named(row: RunRow) -> bool:
    return bool(cast("dict[str, Any]", row.plan["privacy"]).get("ledger"))


def _tenths(totals: Iterable[float], most: float) -> list[int]:
    """How many devices have used up to one tenth of the budget, up to two, and so on; what is above is in the last."""
    found = [0] * 10
    for total in totals:
        found[max(0, min(9, int(10 * total / most - 1e-9)))] += 1
    return found
