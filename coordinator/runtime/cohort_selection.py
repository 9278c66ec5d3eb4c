"""Counts the waiting devices in one transaction under the run's lock: to draw a cohort (the list is logged, drawn from
and claimed), or to end a datacenter round that no worker has. Devices that may not train on the run's checkpoint any
more, or that are barred from the run, are not drawn and are counted apart.
"""

from __future__ import annotations

import json
from dataclasses import replace

from coordinator.blobs import Blobs
from coordinator.engine import events as ev
from coordinator.engine import selection
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.state import RunState
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import Transaction


def draw_cohort(log: RunLog, fleet: Fleet, blobs: Blobs) -> None:
    """Draws a cohort if the run is selecting and its pool is full or its time is over; otherwise does nothing, so a
    wrong hint does no harm.
    """

    def make(tx: Transaction, state: RunState, now: float) -> ev.Drawn | None:
        if state.phase != "selecting" or state.deadline is None:
            return None
        cohort = state.plan.cohort
        rows = tx.waiting(now)
        pool = fleet.eligible(state, rows)
        least = cohort.quorum_count
        if state.plan.secure is not None:
            least = state.plan.secure.fewest_advertisers(cohort)
        if len(pool) < cohort.pool_count and now < state.deadline:
            return None
        unspendable = 0
        if state.spent or state.barred:
            unspendable = len(fleet.eligible(replace(state, spent=(), barred={}), rows)) - len(pool)
        if len(pool) < least:
            others = fleet.reasons_of_ineligible(state, rows, now)
            return ev.Drawn(
                at=now, round=state.round_number, cohort=(), waiting=len(pool), others=others, unspendable=unspendable
            )
        chosen = selection.draw(
            pool, cohort.select, choose=cohort.choose, seed=log.row.selection_seed, round=state.round_number
        )
        sizes = dict(pool)
        return ev.Drawn(
            at=now,
            round=state.round_number,
            cohort=tuple((device, sizes[device]) for device in chosen),
            waiting=len(pool),
            pool=blobs.put(json.dumps(pool, separators=(",", ":")).encode()),
            unspendable=unspendable,
        )

    log.submit(make)


def return_to_fleet(log: RunLog, fleet: Fleet) -> None:
    """Ends a datacenter round that no worker has, if enough eligible devices wait; otherwise does nothing."""

    def make(tx: Transaction, state: RunState, now: float) -> ev.FleetReturned | None:
        if state.phase != "leasing":
            return None
        waiting = len(fleet.eligible(state, tx.waiting(now)))
        if not fleet_is_back(state, now, waiting):
            return None
        return ev.FleetReturned(at=now, round=state.round_number, waiting=waiting)

    log.submit(make)
