"""What one process of a coordinator keeps in memory between requests, though other replicas write to the same store.

``RegisteredKeys`` has the rows and certificates of the keys that make requests, cached for some seconds. A round has
dozens of requests of each of its devices, some seconds apart. So rows that have become too old are read again together,
those of all devices that have made requests lately, in one statement. More than 5 seconds would let a device speak at
another replica after it has left. A counter of changes would be one row that every registration writes. Read together,
a secure round of 100 devices costs the server 2.43 CPU seconds instead of 2.64. What is read while a row changes in
this process is not cached: ``forget`` raises a number that the reader compares.

``HeldList`` has the newest revocation list that the coordinator, or a replica over the same store, has seen. Older ones
stay in the store until they are out of date, since the header of a secure attempt names one of them by its digest, and
devices begin the attempt by that one alone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from itertools import islice, takewhile
from typing import Any, cast

from client_sdk.credentials.certificate import CLOCKS_APART_S, Certificate, RevocationList, following
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.credentials.request_signature import NonceWindow
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.protocol.operators import RunClock
from client_sdk.protocol.problems import problem
from coordinator.access.audit import Audit
from coordinator.blobs.port import BlobError, DigestMismatch, Missing, TooLarge
from coordinator.engine.reasons import printable
from coordinator.folding.aggregator import Aggregator
from coordinator.runtime.clock import Clock
from coordinator.runtime.extensions import MissingExtension
from coordinator.runtime.run_errors import RunErrors
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.shared_identities import Processes
from coordinator.runtime.signals import Signals, secure_key
from coordinator.runtime.waiting_pool import WaitingPool
from coordinator.store.port import DeviceRow, ListRow, Reader, RoundRow, Store, StoreError, WorkerRow

ROW_S = 5.0
"""Seconds for which a row is cached after it was read. What another replica changes is seen after this time at the
latest."""
LATELY_S = 30.0
"""Seconds since a device's last request in which its row is read again with others': as long as a device waits for one
answer (25 s), and a little more."""
TOGETHER = 500
"""The most rows in one statement."""
_ROWS = 20_000
"""The most cached rows."""


class RegisteredKey:
    """A key that is registered: its row, its newest certificate, and when both were read, by ``Clock.elapsed``."""

    __slots__ = ("asked_at", "certificate", "read_at", "row")

    def __init__(self, row: DeviceRow | WorkerRow, certificate: Certificate, at: float) -> None:
        self.row, self.certificate = row, certificate
        self.read_at = self.asked_at = at

    def is_recent(self, now: float) -> bool:
        """Whether the row counts as it was read."""
        return now - self.read_at <= ROW_S


class RegisteredKeys:
    """The keys of one coordinator's devices and workers. Safe from any thread; no thread waits for another one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._keys: dict[str, RegisteredKey] = {}
        """By id of the key, the one that was read first in front."""
        self._forgotten = 0
        """How often the cached rows were forgotten: what was read before that is not cached after it."""
        self._storing = threading.Lock()
        self._refreshing = threading.Lock()

    def of(self, key_id: str) -> RegisteredKey:
        """The key of this id (32 hexadecimal digits). ProblemError *unregistered*."""
        now = self._clock.elapsed()
        known = self._keys.get(key_id)
        if known is None:
            return self._read(key_id, now)
        known.asked_at = now
        return known if known.is_recent(now) else self._read_again(key_id, now)

    def forget(self) -> None:
        """Reads every row anew from now on: one was changed."""
        with self._storing:
            self._forgotten += 1
            self._keys.clear()

    def _read(self, key_id: str, now: float) -> RegisteredKey:
        forgotten = self._forgotten
        row = self._store.device_by_key(key_id) or self._store.worker_by_key(key_id)
        if row is None or not row.certificate:
            raise problem("unregistered", "no certificate of this key is registered here; register again")
        known = _made(row, self._keys.get(key_id), now)
        self._store_all({key_id: known}, forgotten)
        return known

    def _read_again(self, key_id: str, now: float) -> RegisteredKey:
        """Reads this row, and with it those that are as old; where another thread does that now, this row alone."""
        if self._refreshing.acquire(blocking=False):
            try:
                self._refresh(now)
            finally:
                self._refreshing.release()
            known = self._keys.get(key_id)
            if known is not None and known.is_recent(now):
                return known
        return self._read(key_id, now)

    def _refresh(self, now: float) -> None:
        """Reads the oldest rows again, of devices that have made requests lately. The others are forgotten."""
        forgotten = self._forgotten
        with self._storing:
            old = takewhile(lambda item: not item[1].is_recent(now), self._keys.items())
            oldest = dict(islice(old, TOGETHER))
            for key_id in oldest:
                del self._keys[key_id]
        wanted = [
            key_id
            for key_id, known in oldest.items()
            if isinstance(known.row, DeviceRow) and now - known.asked_at <= LATELY_S
        ]
        rows = self._store.devices_by_keys(wanted) if wanted else []
        read = {
            row.key_id: _made(row, oldest[row.key_id], now)
            for row in rows
            if row.key_id is not None and row.certificate
        }
        self._store_all(read, forgotten)

    def _store_all(self, read: dict[str, RegisteredKey], forgotten: int) -> None:
        with self._storing:
            if forgotten != self._forgotten:
                return
            if len(self._keys) + len(read) > _ROWS:
                self._keys.clear()
            for key_id, known in read.items():
                self._keys.pop(key_id, None)
                self._keys[key_id] = known


def _made(row: DeviceRow | WorkerRow, before: RegisteredKey | None, now: float) -> RegisteredKey:
    """The key with the row that was read now. Its certificate is parsed where it is another one than ``before``."""
    if before is None or before.row.certificate != row.certificate:
        return RegisteredKey(row, Certificate.parse(bytes.fromhex(row.certificate)), now)
    made = RegisteredKey(row, before.certificate, now)
    made.asked_at = before.asked_at
    return made


READ_S = 5.0
"""Seconds for which the stored list is not read again: what another replica took is seen after this time at the
latest."""


def list_row(found: RevocationList) -> ListRow:
    """The row that stores this list."""
    return ListRow(
        authority=found.authority.hex(),
        counter=found.counter,
        digest=found.digest.hex(),
        next_update=found.next_update,
        encoded=found.encoded,
    )


class HeldList:
    """The list of one authority. Safe from any thread."""

    def __init__(self, store: Store, clock: Clock, signals: Signals) -> None:
        self._store = store
        self._clock = clock
        self._signals = signals
        self._held: RevocationList | None = None
        self._read_at: float | None = None
        self._taking, self._setting = threading.Lock(), threading.Lock()

    def forget(self) -> None:
        """Reads the stored list anew when it is asked for next."""
        self._read_at = None

    def newest(self, authority: str, *, read: bool = False) -> RevocationList | None:
        """The newest list of the authority of this id; None: none was seen. ``read``: the stored one is read now, so
        that no replica has a newer one."""
        now = self._clock.elapsed()
        if read or self._read_at is None or now - self._read_at >= READ_S:
            stored = self._store.revocations(authority)
            if stored is not None and (self._held is None or stored != self._held.encoded):
                found = RevocationList.parse(stored)
                if self._held is None or found.counter > self._held.counter:
                    self._replace(found)
            self._read_at = now
        return self._held

    def named(self, digest: str) -> bytes | None:
        """The list of this digest: the newest, or one that it has replaced and that is still in date."""
        held = self._held
        if held is not None and held.digest.hex() == digest:
            return held.encoded
        return self._store.revocation_list(digest)

    def take(self, encoded: bytes, trusted: TrustedAuthority, audit: Audit) -> RevocationList:
        """Stores a list that follows the one that is held, and returns the newest. CredentialError."""
        with self._taking:
            authority = trusted.id.hex()
            held = self.newest(authority)
            found = following(held, encoded, trusted)
            if found is held:
                return found
            self._replace(found, is_stored=False)
        audit.record("authority", "revocations.taken", f"counter={found.counter} keys={len(found.revoked)}")
        return found

    def _replace(self, found: RevocationList, *, is_stored: bool = True) -> None:
        """Holds the list from now on, and stores it before. Devices whose keys are new on it leave the pool: this
        process may have let them in after another one had taken the list. What is held open for them is woken."""
        devices, first = self._devices_new_on(found), self._held is None
        if devices or not is_stored:
            with self._store.transaction() as tx:
                if not is_stored:
                    tx.put_revocations(list_row(found))
                    before = self._clock.now() - CLOCKS_APART_S
                    tx.drop_revocations(found.authority.hex(), found.counter, before)
                tx.drop_waiting(devices)
        with self._setting:  # another thread may hold a newer one by now
            if self._held is None or found.counter > self._held.counter:
                self._held = found
        if not first and found.revoked:
            keys = [key for device in devices for key in (f"device:{device}", secure_key(device))]
            self._signals.wake_many([*keys, "workers"])

    def _devices_new_on(self, found: RevocationList) -> list[str]:
        """The registered devices whose keys are on this list, and not on the one that is held."""
        known = () if self._held is None else self._held.revoked
        new = sorted(key.hex() for key in set(found.revoked).difference(known))
        parts = (new[start : start + TOGETHER] for start in range(0, len(new), TOGETHER))
        return sorted(row.device for part in parts for row in self._store.devices_by_keys(part))


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


class UnfitWorkers:
    """Workers that asked this process for a round and cannot take it, with the reason: for people, it decides nothing.
    Safe from any thread."""

    _MOST, _RECENT_S = 64, 120.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: OrderedDict[str, tuple[float, dict[str, str]]] = OrderedDict()

    def note(self, worker: str, reasons: dict[str, str]) -> None:
        """``reasons``: by run; of those that the worker can serve, none."""
        last = OrderedDict(self._last)
        last.pop(worker, None)
        if reasons:
            last[worker] = self._clock.now(), reasons
        while len(last) > self._MOST:
            last.popitem(last=False)
        self._last = last

    def recent(self, run: str) -> str:
        """Why workers that asked lately cannot take the run's rounds; empty where there are none."""
        now = self._clock.now()
        found = Counter(
            reasons[run] for at, reasons in self._last.values() if run in reasons and 0 <= now - at <= self._RECENT_S
        )
        return "; ".join(f"{count} worker{'s' * (count > 1)} asked: {why}" for why, count in found.most_common(3))


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
        self._going: dict[str, RunLog] = {}
        """Those of runs that may go on: a run that has ended never does again."""
        self.aggregators: dict[str, Aggregator] = {}
        """The sums of the round under way, by run. A commit names the updates, and adds those that are not in them."""
        self.keys = RegisteredKeys(store, clock)
        """Rows and certificates of devices and workers. Read again after 5 s; here at once, where they change here."""
        self.revocations = HeldList(store, clock, signals)
        """The newest revocation list. Read again after 5 s, and before a secure attempt is opened."""
        self.processes: OrderedDict[str, Processes] = OrderedDict()
        """By which processes devices check in, for the answers to them. Each check-in reads its row, and replaces
        this."""
        self.pool = WaitingPool()
        """Who waits, and the trees from which cohorts are drawn. Each draw reads in its transaction what is new."""
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
        self.unfit_workers = UnfitWorkers(clock)
        """Why workers cannot take the rounds that they asked for. Shown for two minutes; never shared."""

    def kept(self, log: RunLog) -> RunLog:
        """The log of its run: this one, unless there is one already."""
        found = self.logs.setdefault(log.run, log)
        if found is log:
            self._going[log.run] = log
        return found

    def going(self) -> list[RunLog]:
        """The logs of the runs that have not ended, as far as they have been read. What is done for each request costs
        no more where a thousand runs have ended."""
        logs = [*self._going.values()]
        for log in logs:
            if log.state.over:
                self._going.pop(log.run, None)
        return [log for log in logs if not log.state.over]

    def forget(self) -> None:
        """Reads anew what is read again after some time: the clock went back, and shows no more how old it is."""
        self.keys.forget()
        self.revocations.forget()
