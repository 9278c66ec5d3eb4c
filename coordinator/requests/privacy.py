"""The requests about privacy ledgers: create one, allow what two have spent, show them and what a run has cost."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from client_sdk.protocol.names import Route, RunId
from client_sdk.protocol.privacy import AllowSpending, CreateLedger, LedgerId, LedgerView, RunPrivacy
from coordinator.access import Operator
from coordinator.requests.entry import About, Audited, Direct, Entry, Limit, Permission
from coordinator.runtime.coordinator import Coordinator

AfterLedger = Annotated[LedgerId | Literal[""], About("ledgers that come after this one, for paging")]


def create_ledger(to: Coordinator, operator: Operator, message: CreateLedger) -> LedgerView:
    """Makes a privacy ledger that plans may name, with a budget that stays."""
    return to.ledgers.create(message, operator.id)


def allow_spending(to: Coordinator, operator: Operator, message: AllowSpending, *, ledger: LedgerId) -> LedgerView:
    """Lets devices that have lost something by another ledger take part in runs of this one. It stands in the ledger
    and in the audit."""
    return to.ledgers.allow(ledger, message, operator.id)


def ledgers(to: Coordinator, operator: Operator, *, after: AfterLedger = "", limit: Limit = 1000) -> list[LedgerView]:
    """All privacy ledgers: those with a name, then those of runs that have one of their own."""
    return to.ledgers.listed(after, limit)


def one_ledger(to: Coordinator, operator: Operator, *, ledger: LedgerId) -> LedgerView:
    """One privacy ledger: its budget, what has been used of it, in which runs."""
    return to.ledgers.show(ledger)


def run_privacy(to: Coordinator, operator: Operator, *, run: RunId) -> RunPrivacy:
    """What a run's rounds have cost its devices, round by round, and the ledger that they are debited to. Who does not
    see everything sees the ledger's runs that are in scope, and no owners' words."""
    found = to.ledgers.of_run(run)
    if operator.sees_everything:
        return found
    mine = [one for one in found.ledger.runs if operator.sees(one.run)]
    return found.changed(ledger=found.ledger.changed(runs=mine, allowed=[]))


_owner = partial(Entry, permission=Permission.OWNER, group="runs")
_viewer = partial(Entry, permission=Permission.VIEWER, group="runs")

CREATE_LEDGER = _owner(
    "POST",
    Route.LEDGERS,
    Direct(create_ledger),
    "Create a privacy ledger",
    audited=Audited("ledger.create", asks=("ledger", "epsilon", "delta")),
    created=True,
    location=Route.LEDGER,
)
ALLOW_SPENDING = _owner(
    "POST",
    Route.ALLOW_SPENDING,
    Direct(allow_spending),
    "Allow devices that have spent in another ledger",
    audited=Audited("ledger.allow", asks=("spent_in", "because")),
)
LEDGERS = _viewer("GET", Route.LEDGERS, Direct(ledgers), "List privacy ledgers")
LEDGER = _viewer("GET", Route.LEDGER, Direct(one_ledger), "Show a privacy ledger")
RUN_PRIVACY = _viewer("GET", Route.RUN_PRIVACY, Direct(run_privacy), "Show what a run has cost")
ENTRIES = (CREATE_LEDGER, LEDGERS, ALLOW_SPENDING, LEDGER, RUN_PRIVACY)
