"""Performs the actions that follow from events: draws cohorts, folds updates, commits checkpoints, deletes blobs.

A cohort is drawn in one transaction under the run's lock: the waiting devices are counted, listed, drawn from and
claimed. So they are to end a datacenter round that no worker has. Devices that contribute to the run's checkpoint no
more (``marks.unspendable``), in whichever run that came to be, are not drawn and are counted apart.

The list of who waits is a blob, and to make one durable takes up to three syncs of the disk (the file, its folder, the
folder above where the former is new). So it is written before the transaction, from a first look at the pool, while
others write. The transaction looks again: where the pool is another one by then, it draws nothing, and the list is
written anew. The next start of the coordinator deletes a list from which nothing was drawn.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import assert_never

from coordinator.blobs import BlobError, Blobs, Gone
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.plan import selection_of
from coordinator.engine.plan_file import PlanError
from coordinator.engine.rounds import kind_of, pending
from coordinator.engine.selection import Choice, Pool, Row
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import CannotAggregate, LostUpdate, NewCheckpoint
from coordinator.folding.noise import RoundSeed
from coordinator.runtime.commits import Commits, ask_again
from coordinator.runtime.core import Core, Task
from coordinator.runtime.extensions import missing
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.marks import Why, unspendable
from coordinator.runtime.privacy_ledgers import is_debited, reason_against_list
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.secure_rounds import SecureRuns
from coordinator.store.port import MessageRow, Transaction, WaitingRow

_LOG = logging.getLogger("quorate.actions")
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
        fleet.count_again()
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
        return ev.FleetReturned(at=now, round=state.round_number, waiting=waiting, unspendable=counted)

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
        pool = _drawable(state, self._fleet.eligible(state, waiting, self._fleet.left_out(tx, state, waiting)))
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
        chosen = self._choice.draw(
            rows, free, seed=seed, round=number, moved=state.pace.moved, suspicion=state.suspicion
        )
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
    over = state.phase == "selecting" and state.deadline is not None and now >= state.deadline
    return over or len(pool) >= state.drawn_from


def _drawable(state: RunState, pool: Pool) -> Pool:
    """The devices that wait and may be drawn for the round under way."""
    current, kind = state.current, kind_of(state.current)
    return [one for one in pool if kind.drawable(current, one[0])] if current.members else pool


def _listed(rows: Sequence[Row]) -> bytes:
    return json.dumps(rows, separators=(",", ":")).encode()


class Actions:
    """Safe from any thread. An action may be performed more than once: after a crash, or by another replica."""

    def __init__(self, core: Core, fleet: Fleet, commits: Commits, secure: SecureRuns) -> None:
        self._core = core
        self._fleet = fleet
        self._commits = commits
        self._secure = secure

    def perform(self, task: Task) -> None:
        """Performs one action. StoreError or BlobError where the database or the disk failed; SecureRoundsWait where an
        action of a secure round needs the authority."""
        run, action = task
        core = self._core
        match action:
            case fx.Draw():
                if not core.blobs.has(core.log(run).state.checkpoint):
                    return  # the clock says so, and draws once the model is back
                log, before = core.log(run), core.log(run).state.exhausted
                draw_cohort(log, self._fleet, core)
                if log.state.exhausted and not before:
                    _LOG.warning("%s", log.state.exhausted)
            case fx.Return():
                return_to_fleet(core.log(run), self._fleet)
            case fx.Wake() | fx.Offer() | fx.SendAnswers():
                core.hint(action)
            case fx.Fold():
                self._fold(run, action)
            case fx.Commit():
                self._commit(run, action)
            case fx.Discard() if not action.blobs:
                self._commits.discard(run, action)
            case fx.Announce() | fx.Gather() | fx.Open() | fx.CommitSum() | fx.Advance() | fx.Discard():
                self._secure.of(run).perform(action)
            case _:
                assert_never(action)

    def _fold(self, run: str, action: fx.Fold) -> None:
        def wanted(state: RunState) -> bool:
            open_ = state.round_number == action.round and state.phase in ("collecting", "committing")
            return open_ and state.current.members[action.contribution.device].digest == action.contribution.digest

        log = self._core.log(run)
        state = log.state
        if not wanted(state):
            return
        try:
            self._core.aggregator(run).fold(action.round, action.contribution, state.small)
        except (LostUpdate, Gone) as error:
            if not wanted(log.catch_up()):
                return  # another replica has committed, and deleted what it added; or the device was asked again
            if isinstance(error, Gone) or not ask_again(log, action.round, error):
                raise BlobError(str(error)) from error

    def _seed(self, run: str, action: fx.Commit) -> RoundSeed:
        """The seed of the round's noise, durable before anything is made of it, with what the round costs its devices.
        CannotAggregate where one of them has no room for it in the ledger: it was drawn while another run's round, that
        used the last of it, was committed."""
        log = self._core.log(run)
        fresh = self._core.noise_seed(run, action.round)
        row = MessageRow(run=run, digest=hashlib.sha256(fresh).hexdigest(), round=action.round, content=fresh)

        def make(tx: Transaction, state: RunState, at: float) -> ev.Seeded | None:
            if action not in pending(state):
                return None
            tx.hold_privacy_ledgers()
            if is_debited(tx, state, action.contributions):
                return None
            if against := reason_against_list(tx, state, action.contributions):
                raise CannotAggregate(against)
            if state.current.seed:  # an update was lost since, and another list is counted
                return ev.Seeded(at=at, round=action.round, digest=state.current.seed)
            tx.insert_messages([row])
            return ev.Seeded(at=at, round=action.round, digest=row.digest)

        log.submit(make)
        digest = log.state.current.seed if log.state.round is not None else ""
        seed = self._core.store.messages(run, [digest]).get(digest)
        if seed is None:
            raise CannotAggregate(f"the seed of the noise of round {action.round} is not stored")
        privacy = log.state.plan.privacy
        if privacy is None or not privacy.correlated:
            return RoundSeed(run, action.round, seed)
        before = self._core.store.noise_keys(run)
        if len(before) != log.state.version:
            raise CannotAggregate(f"of the noise of {log.state.version} rounds before, {len(before)} keys are stored")
        return RoundSeed(run, action.round, seed, before)

    def _commit(self, run: str, action: fx.Commit) -> None:
        def made() -> NewCheckpoint:
            """Reads the parent's header first where this process has not: it may be damaged."""
            aggregator = self._core.aggregator(run)
            kept = action.named_tensors, action.small, action.settings, lambda: self._seed(run, action)
            return aggregator.commit(action.round, action.parent, action.contributions, *kept)

        if self._commits.commit(run, action, made):
            with suppress(Gone):
                self._core.aggregator(run).forget(action.round)
