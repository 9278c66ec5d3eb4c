"""What one process of a coordinator keeps in memory between requests, though other replicas write to the same store."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, cast

from client_sdk.credentials.request_signature import NonceWindow
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.protocol.operators import RunClock
from coordinator.blobs.port import BlobError, DigestMismatch, Missing, TooLarge
from coordinator.engine.reasons import printable
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.clock import Clock
from coordinator.runtime.extensions import MissingExtension
from coordinator.runtime.held_list import HeldList
from coordinator.runtime.registered_keys import RegisteredKeys
from coordinator.runtime.run_errors import RunErrors
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.shared_identities import Processes
from coordinator.runtime.signals import Signals
from coordinator.store.port import Reader, RoundRow, Store, StoreError

_ROUNDS = 16
"""A run in whose first rounds nobody took part counts as one of real devices."""


class RunClocks:
    """By which clock a run's times are: that of the world, or that of the simulation that played it. It follows from
    the rows of who took part: a simulation's devices and worker have no certificate. Remembers what it has found: a
    run's clock never changes. Safe from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, RunClock] = {}

    def of(self, reader: Reader, run: str) -> RunClock:
        """*wall* as long as nobody has taken part."""
        known = self._known.get(run)
        if known is not None:
            return known
        rows = reader.rounds(run, 0, _ROUNDS)
        for row in rows:
            simulated = _was_simulated(reader, row)
            if simulated is not None:
                self._known[run] = "virtual" if simulated else "wall"
                return self._known[run]
        if len(rows) == _ROUNDS and rows[-1].status != "open":
            self._known[run] = "wall"
        return "wall"


def _was_simulated(reader: Reader, row: RoundRow) -> bool | None:
    """None: nobody is known to have taken part in the round."""
    body = cast("dict[str, Any]", row.body)
    devices = [device for name in body.get("cohort") or () if (device := reader.device(name)) is not None]
    if devices:
        return devices[0].simulated
    worker = reader.worker(body["lease"]["worker"]) if body.get("lease") else None
    return None if worker is None else worker.simulated


_LOG = logging.getLogger("quorate.storage")

_RECENT_S = 60.0
"""Seconds for which a failure is shown. Tasks are tried again every two seconds, devices every thirty at most."""
_OF_PEERS = (DigestMismatch, Missing, TooLarge)
"""Errors of blobs that say nothing about this machine."""


class StorageErrors:
    """The last failure of this process that the machine caused (a full disk, a locked database): for people, it decides
    nothing. The log has each when it begins. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, str] | None = None
        self._shown: dict[str, float] = {}

    def note(self, error: BaseException) -> None:
        """Notes an error, where it is one of the machine or of the installation. The log has it when it begins."""
        machine = isinstance(error, BlobError | OSError) and not isinstance(error, _OF_PEERS)
        if machine or isinstance(error, StoreError | MissingExtension):
            why, now = printable(str(error)) or type(error).__name__, self._clock.now()
            self._last = now, why
            shown = {text: at for text, at in self._shown.items() if 0 <= now - at <= _RECENT_S}
            if why not in shown:
                _LOG.warning("this coordinator could not store data, and goes on trying: %s", why)
            self._shown = shown | {why: now}

    def recent(self, since: float | None = None) -> str:
        """The last failure, where it is recent, and not older than ``since``; else empty."""
        last = self._last
        if last is None or not 0 <= self._clock.now() - last[0] <= _RECENT_S:
            return ""
        return last[1] if since is None or last[0] >= since else ""


class ProcessState:
    """What the answers of a process to its peers depend on beside the store. Each field says how it follows what other
    replicas write.

    What else is in memory between requests stands with its only user: the parsed messages of a secure attempt, by the
    digests that the state names (``Attempts``), and the authority that vouches for them (``PresentAuthority``); what
    this process waits for or will delete (``Timekeeping``, ``UncertainUpdates``, ``flower``); parts of a log that a
    view has read, which reads the rest at each request (``insight``). Other rooms keep what this one cannot name:
    ``access`` the keys of an issuer, read again when they are old, and ``service`` the rates of addresses and
    callers, which each replica allows once more, and counts of ended rounds, which it continues at each scrape.
    """

    def __init__(self, store: Store, clock: Clock, signals: Signals, run_errors: RunErrors | None = None) -> None:
        self.logs: dict[str, RunLog] = {}
        """The state of each run, by id. Each transaction of the run begins with the events that it lacks; ``catch_up``
        asks the store for them, ``recent`` at most once a second."""
        self.aggregators: dict[str, Aggregator] = {}
        """The sums of the round under way, by run. A commit names the updates, and adds those that are not in them."""
        self.keys = RegisteredKeys(store, clock)
        """Rows and certificates of devices and workers. Read again after 5 s; here at once, where they change here."""
        self.revocations = HeldList(store, clock, signals)
        """The newest revocation list. Read again after 5 s, and before a secure attempt is opened."""
        self.processes: OrderedDict[str, Processes] = OrderedDict()
        """By which processes devices check in, for the answers to them. Each check-in reads its row, and replaces
        this."""
        self.clocks = RunClocks()
        """By which clock a run's times are. Never changes once it is known."""
        self.checkpoints: set[str] = set()
        """Digests that were found to be checkpoints of runs. They stay so: no checkpoint is taken from its run."""
        self.offered: dict[str, CheckpointRef] = {}
        """The newest checkpoint and its size, by run. Compared with the state at each use."""
        self.nonces = NonceWindow()
        """Of requests that were accepted here, until they expire. Never shared: who replays a request at another
        replica gets the first answer again, or a refusal, and changes nothing."""
        self.run_errors = run_errors or RunErrors()
        """Runs that this process cannot handle. Cleared when it handles them; never shared."""
        self.storage_errors = StorageErrors(clock)
        """The last failure of this machine. Shown for a minute; never shared."""

    def forget(self) -> None:
        """Reads anew what is read again after some time: the clock went back, and shows no more how old it is."""
        self.keys.forget()
        self.revocations.forget()
