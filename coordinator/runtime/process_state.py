"""What one process of a coordinator keeps in memory between requests, though other replicas write to the same store."""

from __future__ import annotations

from collections import OrderedDict

from client_sdk.credentials.nonces import NonceWindow
from client_sdk.protocol.devices import CheckpointRef
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.clock import Clock
from coordinator.runtime.held_list import HeldList
from coordinator.runtime.registered_keys import RegisteredKeys
from coordinator.runtime.run_clocks import RunClocks
from coordinator.runtime.run_errors import RunErrors
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.shared_identities import Processes
from coordinator.runtime.signals import Signals
from coordinator.runtime.storage_errors import StorageErrors
from coordinator.store.port import Store


class ProcessState:
    """Each field says how it follows what other replicas write. Whatever else the runtime decides by is read from the
    store when it is needed.

    Other rooms keep caches that decide nothing about a round, and that this one cannot name: ``access`` the keys of a
    login's issuer, read again when they are old, and ``service`` the rates of addresses and callers
    (``limits/admission.py``; each replica allows them once more) and what it has counted of ended rounds, which it
    continues at each scrape. Views of the runtime (``insight``) keep the part of a log that they have read, and read
    the rest at each request. Secure attempts are loaded from the log (``Attempts``).
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
