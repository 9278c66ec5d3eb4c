"""Performs the actions that follow from events: draws cohorts, folds updates, commits checkpoints, deletes blobs."""

from __future__ import annotations

from contextlib import suppress
from typing import assert_never

from coordinator.blobs import BlobError, Gone
from coordinator.engine import effects as fx
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import LostUpdate, NewCheckpoint
from coordinator.runtime.cohort_selection import draw_cohort, return_to_fleet
from coordinator.runtime.commits import Commits, ask_again
from coordinator.runtime.core import Core, Task
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.secure_rounds import SecureRuns


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
                draw_cohort(core.log(run), self._fleet, core)
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
        if not wanted(log.state):
            return
        try:
            self._core.aggregator(run).fold(action.round, action.contribution)
        except (LostUpdate, Gone) as error:
            if not wanted(log.catch_up()):
                return  # another replica has committed, and deleted what it added; or the device was asked again
            if isinstance(error, Gone) or not ask_again(log, action.round, error):
                raise BlobError(str(error)) from error

    def _commit(self, run: str, action: fx.Commit) -> None:
        def made() -> NewCheckpoint:
            """Reads the parent's header first where this process has not: it may be damaged."""
            aggregator = self._core.aggregator(run)
            kept = action.named_tensors, action.small, action.settings
            return aggregator.commit(action.round, action.parent, action.contributions, *kept)

        if self._commits.commit(run, action, made):
            with suppress(Gone):
                self._core.aggregator(run).forget(action.round)
