"""The secure rounds of one run: the requests of devices, the actions of the engine, and the commit path of all rounds.

A Coordinator has none yet: its ``perform`` raises for their actions until their requests are served over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

from coordinator.blobs import Blobs
from coordinator.engine import effects as fx
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.commits import Commits
from coordinator.runtime.run_log import RunLog
from coordinator.secure.announcing import Authority
from coordinator.secure.attempt import Attempts
from coordinator.secure.opening import WORKERS
from coordinator.secure.performing import Make, SecureRun, SecureWork
from coordinator.secure.requests import SecureRequests

SecureAction = fx.Announce | fx.Gather | fx.Open | fx.CommitSum | fx.Advance | fx.Discard


class SecureLog:
    """A run's log as the port that secure rounds use."""

    def __init__(self, log: RunLog) -> None:
        self._log = log

    @property
    def state(self) -> RunState:
        return self._log.catch_up()

    def submit(self, make: Make) -> Sequence[fx.Effect]:
        return self._log.submit(lambda tx, state, at: make(state, at))


class SecureRounds:
    """``requests`` answers devices; ``perform`` performs actions. Safe from several threads."""

    def __init__(
        self,
        run: str,
        log: SecureRun,
        blobs: Blobs,
        aggregator: Aggregator,
        authority: Callable[[], Authority],
        commits: Commits,
        workers: int = WORKERS,
    ) -> None:
        """``authority``: certifies devices; ``workers``: number of threads that unmask."""
        attempts = Attempts(blobs, lambda device, certificate: authority().vouched(device, certificate))
        self.requests = SecureRequests(log, blobs, authority, attempts)
        self._run, self._commits = run, commits
        self._work = SecureWork(log, blobs, aggregator, authority, attempts, workers)

    def perform(self, action: SecureAction) -> None:
        """Performs one action. StoreError or BlobError where the database or the disk failed: it may then be performed
        again."""
        match action:
            case fx.CommitSum() | fx.Advance():
                self._commits.commit(self._run, action.round, partial(self._work.checkpoint, action))
            case fx.Discard():
                self._work.forget()
                self._commits.discard(self._run, action)
            case fx.Announce() | fx.Gather() | fx.Open():
                self._work.perform(action)
            case _:
                assert_never(action)
