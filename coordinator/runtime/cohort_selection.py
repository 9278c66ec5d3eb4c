"""Counts the waiting devices in one transaction under the run's lock: to draw a cohort (the list is logged, drawn from
and claimed), or to end a datacenter round that no worker has. Devices that contribute to the run's checkpoint no
more (``marks.unspendable``), in whichever run that came to be, are not drawn and are counted apart.

The list of who waits is a blob, and to make one durable takes up to three syncs of the disk (the file, its folder, the
folder above where the former is new). So it is written before the transaction, from a first look at the pool, while
others write. The transaction looks again: where the pool is another one by then, it draws nothing, and the list is
written anew. The next start of the coordinator deletes a list from which nothing was drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coordinator.blobs import Blobs
from coordinator.engine import events as ev
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.plan import selection_of
from coordinator.engine.plan_file import PlanError
from coordinator.engine.rounds import kind_of
from coordinator.engine.selection import Choice, Pool, Row
from coordinator.engine.state import RunState
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import missing
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.marks import Why, unspendable
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import Transaction, WaitingRow

_TRIES = 3
"""Lists that are written before a transaction. A pool that changes faster than that is written inside one."""


def draw_cohort(log: RunLog, fleet: Fleet, core: Core) -> None:
    """Draws a cohort if the run is selecting and its pool is full or its time is over, or devices for the free places
    of a buffered round; otherwise does nothing, so a wrong hint does no harm. MissingExtension where the plan's
    selection or strategy is not installed here; ExtensionError where the selection fails, or the strategy decides no
    task for devices without a class: a cohort would wait for it until the round's deadline."""
    state = log.state
    plan = state.plan
    if plan.strategy is not None and state.phase == "selecting":
        core.aggregator(log.run).algorithm.task(plan, state.version, state.small)
    try:
        choice = selection_of(plan, core.extensions(plan))
    except PlanError as error:
        raise missing(log.run, error) from None
    for _ in range(_TRIES):
        draw = _Draw(log, fleet, choice, _written(log.state, fleet, choice, core, core.clock.now()))
        log.submit(draw.make)
        if draw.done:
            return
    log.submit(_Draw(log, fleet, choice, None, core.blobs).make)


def return_to_fleet(log: RunLog, fleet: Fleet) -> None:
    """Ends a datacenter round that no worker has, if enough eligible devices wait; otherwise does nothing."""

    def make(tx: Transaction, state: RunState, now: float) -> ev.FleetReturned | None:
        if state.phase != "leasing":
            return None
        waiting, no_more = fleet.that_may_return(tx, state, now)
        if not fleet_is_back(state, now, waiting, no_more):
            return None
        enough = fleet_is_back(state, now, waiting)
        counted = 0 if enough else no_more
        return ev.FleetReturned(at=now, round=state.round_number, waiting=waiting, left_out=counted)

    log.submit(make)


class _Draw:
    """One attempt. ``made`` is the (list, digest) that has been written; ``done``: False where another list is needed.
    With ``blobs`` the list is written inside the transaction."""

    def __init__(
        self,
        log: RunLog,
        fleet: Fleet,
        choice: Choice,
        made: tuple[Sequence[Row], str] | None,
        blobs: Blobs | None = None,
    ) -> None:
        self._log = log
        self._fleet = fleet
        self._choice = choice
        self._made = made
        self._blobs = blobs
        self.done = True

    def make(self, tx: Transaction, state: RunState, now: float) -> ev.Drawn | None:
        if state.round is None or not (free := kind_of(state.round).free(state)):
            return None
        waiting = tx.waiting(now)
        without = unspendable(tx, state)
        pool = _drawable(state, self._fleet.eligible(state, waiting, without))
        if not _is_due(state, pool, now):
            return None
        drawn = self._with_counts(
            ev.Drawn(at=now, round=state.round_number, cohort=(), waiting=len(pool)), state, waiting, without
        )
        if len(pool) < state.plan.fewest_devices:
            return replace(drawn, others=self._fleet.reasons_of_ineligible(tx, state, waiting, now))
        rows = self._choice.rows(pool, state.known)
        digest = self._digest_of(rows)
        if digest is None:
            self.done = False
            return None
        seed, number = self._log.row.selection_seed + len(state.round.pools), state.round_number
        chosen = self._choice.draw(rows, free, seed=seed, round=number)
        sizes = dict(pool)
        return replace(drawn, cohort=tuple((device, sizes[device]) for device in chosen), pool=digest)

    def _with_counts(
        self, drawn: ev.Drawn, state: RunState, rows: Sequence[WaitingRow], without: Mapping[str, Why]
    ) -> ev.Drawn:
        """The event with how many eligible devices that wait are unspendable, and for which reason."""
        if not without:
            return drawn
        counts = Counter(without[device] for device, _ in self._fleet.eligible(state, rows, ()) if device in without)
        return replace(drawn, unspendable=counts.total(), declined=counts["declined"], barred=counts["barred"])

    def _digest_of(self, rows: Sequence[Row]) -> str | None:
        """Digest of the stored list, None where this list is another one."""
        if self._blobs is not None:
            return self._blobs.put(_listed(rows))
        return self._made[1] if self._made is not None and self._made[0] == rows else None


def _written(state: RunState, fleet: Fleet, choice: Choice, core: Core, now: float) -> tuple[Sequence[Row], str] | None:
    """The list of who waits, and its digest once it is durable; None where no cohort would be drawn from it."""
    if state.round is None or not kind_of(state.round).free(state):
        return None
    pool = _drawable(state, fleet.waiting(core.store, state, now))
    if not _is_due(state, pool, now) or len(pool) < state.plan.fewest_devices:
        return None
    rows = choice.rows(pool, state.known)
    return rows, core.blobs.put(_listed(rows))


def _is_due(state: RunState, pool: Pool, now: float) -> bool:
    over = state.phase == "selecting" and (state.deadline is None or now >= state.deadline)
    return over or len(pool) >= state.plan.pool_count


def _drawable(state: RunState, pool: Pool) -> Pool:
    """Those who wait and may be drawn for the round under way."""
    current, kind = state.current, kind_of(state.current)
    return [one for one in pool if kind.drawable(current, one[0])] if current.members else pool


def _listed(rows: Sequence[Row]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()
