"""The secure rounds of a run: the requests of devices, the actions of the engine, and the commit path of all rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import assert_never

from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.masks import Masker
from coordinator.blobs import Blobs
from coordinator.engine import effects as fx
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.clock import Clock
from coordinator.runtime.commits import Commits
from coordinator.runtime.core import Core
from coordinator.runtime.identities import Identities
from coordinator.runtime.run_log import RunLog
from coordinator.secure.announcing import Authorities, Authority, run_digest
from coordinator.secure.arrived import ShortMessage
from coordinator.secure.attempt import Attempts
from coordinator.secure.opening import WORKERS, MakeMasker
from coordinator.secure.performing import Make, SecureRun, SecureWork
from coordinator.secure.requests import SecureRequests
from coordinator.store.rows import MessageRow

_CACHED_S = 10
"""Seconds for which times are not compared again."""
_RETRY_S = 5.0


class PresentAuthority:
    """The pinned authority as secure rounds need it, with a revocation list that is in date: ``Authorities`` of one
    coordinator. Safe from any thread."""

    def __init__(self, identities: Identities, clock: Clock) -> None:
        self._identities = identities
        self._clock = clock
        self._last: tuple[tuple[bytes, float | None, int], Authority] | None = None

    def __call__(self, until: float | None = None) -> Authority:
        """The authority that vouches for certificates that are valid now and ``until``. ProblemError *busy*.

        Without ``until``, a header is announced: its list is the newest of all replicas, so that no device has begun
        an earlier round by a newer one."""
        trusted, held = self._identities.trusted(read=until is None)
        now = self._clock.now()
        key, last = (held.digest, until, int(now // _CACHED_S)), self._last
        if last is not None and last[0] == key:
            return last[1]
        try:
            found = Authority.of(trusted, held, now, until=until)
        except SecaggError as error:
            raise problem("busy", str(error), retry_after_s=_RETRY_S) from None
        self._last = (key, found)
        return found


SecureAction = fx.Announce | fx.Gather | fx.Open | fx.CommitSum | fx.Advance | fx.Discard


class SecureRoundsWait(Exception):
    """There is no authority, or its revocation list is out of date. The action is performed again later; the round's
    deadline applies meanwhile."""


class SecureLog:
    """A run's log as the port that secure rounds use."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        row = log.row
        self.digest = run_digest(row.run, created_at=row.created_at, init=row.init, plan_digest=row.plan_digest)

    @property
    def state(self) -> RunState:
        return self._log.catch_up()

    @property
    def known(self) -> RunState:
        return self._log.state

    @property
    def recent(self) -> RunState:
        return self._log.recent()

    def submit(self, make: Make) -> Sequence[fx.Effect]:
        return self.enter(make)()

    def enter(self, make: Make, short: ShortMessage | None = None) -> Callable[[], Sequence[fx.Effect]]:
        row = None if short is None else MessageRow(run=self._log.run, **short._asdict())
        return self._log.enter(lambda tx, state, at: make(state, at), message=row)

    def short_messages(self, digests: Collection[str]) -> Mapping[str, bytes]:
        return self._log.messages(digests)


class SecureRounds:
    """``requests`` answers devices; ``perform`` performs actions. Safe from several threads."""

    def __init__(
        self,
        run: str,
        log: SecureRun,
        blobs: Blobs,
        aggregator: Callable[[], Aggregator],
        authority: Authorities,
        commits: Commits,
        workers: int = WORKERS,
        masker: MakeMasker = Masker,
    ) -> None:
        """``aggregator``: reads the checkpoint's header when it is first called; ``authority``: certifies devices;
        ``workers``: number of threads that unmask; ``masker``: what they unmask with."""
        self._attempts = Attempts(blobs, log.short_messages)
        self.requests = SecureRequests(log, blobs, authority, self._attempts)
        self._run, self._log, self._commits = run, log, commits
        self._work = SecureWork(log, blobs, aggregator, authority, self._attempts, workers, masker)

    def perform(self, action: SecureAction) -> None:
        """Performs one action. StoreError or BlobError where the database or the disk failed, SecureRoundsWait where
        the authority cannot be asked: it may then be performed again."""
        match action:
            case fx.CommitSum() | fx.Advance():
                self._commits.commit(self._run, action, partial(self._work.checkpoint, action))
            case fx.Discard():
                self._work.forget()
                self._commits.discard(self._run, action)
            case fx.Announce() | fx.Gather() | fx.Open():
                try:
                    self._work.perform(action)
                except ProblemError as error:
                    raise SecureRoundsWait(str(error)) from None
            case _:
                assert_never(action)

    def free(self) -> None:
        """Frees the memory of what is over, also where another replica has ended it."""
        self._attempts.free(self._log.known)


class SecureRuns:
    """The secure rounds of all runs of a coordinator. Safe from any thread."""

    def __init__(self, core: Core, authority: Authorities, commits: Commits, masker: MakeMasker = Masker) -> None:
        self._core, self._authority, self._commits, self._masker = core, authority, commits, masker
        self._lock = threading.Lock()
        self._runs: dict[str, SecureRounds] = {}

    def free(self) -> None:
        """Frees the memory of all that is over."""
        for rounds in list(self._runs.values()):
            rounds.free()

    def of(self, run: str) -> SecureRounds:
        """The secure rounds of this run. ProblemError where there is no such run, or its rounds are plain."""
        found = self._runs.get(run)
        if found is not None:
            return found
        core, log = self._core, self._core.log(run)
        if log.state.plan.secure is None:
            raise problem("conflict", f"the rounds of run {run} are not secure")
        aggregator = partial(core.aggregator, run)
        made = SecureRounds(
            run, SecureLog(log), core.blobs, aggregator, self._authority, self._commits, masker=self._masker
        )
        with self._lock:
            return self._runs.setdefault(run, made)
