"""Performs the actions that follow from events: draws cohorts, folds updates, commits checkpoints, deletes blobs.

A datacenter round that no worker has ends in one transaction, in which the devices that wait are counted. How a cohort
is drawn: ``drawing``.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import assert_never

from coordinator.blobs import BlobError, Gone
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.leasing import fleet_is_back
from coordinator.engine.rounds import pending
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import CannotAggregate, LostUpdate, NewCheckpoint
from coordinator.folding.noise import RoundSeed
from coordinator.runtime.commits import Commits, ask_again
from coordinator.runtime.core import Core, Task
from coordinator.runtime.drawing import draw_cohort
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.privacy_ledgers import is_debited, reason_against_list
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.secure_rounds import SecureRuns
from coordinator.store.port import MessageRow, Transaction

_LOG = logging.getLogger("quorate.actions")


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
        try:
            if wanted(state):
                self._core.aggregator(run).fold(action.round, action.contribution, state.small)
        except (LostUpdate, Gone) as error:
            if not wanted(log.catch_up()):
                return  # another replica has committed, and deleted what it added; or the device was asked again
            if isinstance(error, Gone) or not ask_again(log, action.round, error):
                raise BlobError(str(error)) from error
        finally:
            log.folded(action.contribution.digest)

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
