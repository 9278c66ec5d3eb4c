"""Checks a database against the invariants, and yields every violation. Reads only.

It uses the rows and the log without the engine's ``step``, so a bug of the engine cannot hide itself. Rows of rounds
are read before the log, and only rounds that had ended by then are checked, so a coordinator may run meanwhile.

======  ==========================================================================================================
1       a device counts at most once per round and per version, and no update counts in two rounds
2       the checkpoints of a run form a line
3       a commit names exactly the updates that the log took in; of an abandoned round, or attempt, each has its
        refusal recorded; a round without any was advanced by its owner, and the audit says so
4       a round ended once: its row, its checkpoint and the log agree
5       every checkpoint's blob is there, whole, and the newest state of the server optimizer
8       the log has no gap, and the snapshot lies within it
10      updates that are still kept give the committed checkpoint, and the server optimizer's state, again
quorum  a round was committed with at least its quorum, of devices that were selected
claims  a device has an assignment only in a round that is open
lease   fences only rise, and a datacenter round was committed under the last one that was granted, of its bytes
======  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from client_sdk import codecs
from coordinator.blobs import BlobError
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan, PlanError, chosen
from coordinator.folding.aggregator import NewCheckpoint
from coordinator.folding.refold import Readable, differences, hashed, short
from coordinator.runtime.extensions import FindExtensions, installed
from coordinator.store.port import CheckpointRow, ContributionRow, EventRow, Reader, RoundRow, RunRow

_PAGE = 5000
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Wrong:
    """One violation of an invariant."""

    invariant: str
    """Its number in docs/architecture.md, or ``quorum``, ``claims`` or ``lease``."""
    run: str
    round: int | None
    what: str


@dataclass(slots=True)
class _Told:
    """The events of one round, as the log has them."""

    cohort: set[str] = field(default_factory=set)
    reported: dict[str, str] = field(default_factory=dict)
    """Acknowledged updates by device: of a secure round the masked vectors of its last attempt."""
    given_up: set[tuple[str, str]] = field(default_factory=set)
    """(device, digest) of masked vectors of devices that were left out, and of attempts that failed."""
    attempt: int = 0
    advanced: bool = False
    """Whether the owner let the round commit the model moved by one unit, without contributions."""
    commits: int = 0
    optimizer: str | None = None
    """Digest of the server optimizer's state, as the commit names it."""
    holder: tuple[str, int] | None = None
    """(worker, fence) of a datacenter round's last lease."""
    taken: tuple[str, int, str] | None = None
    """(worker, fence, digest) of its result."""


class CannotVerify(Exception):
    """A run's plan names what is not installed here: its updates cannot be folded again. One sentence."""


def verify(store: Reader, blobs: Readable | None = None, extensions: FindExtensions = installed) -> Iterator[Wrong]:
    """Everything that is wrong, run by run. Without ``blobs`` invariants 5 and 10 are left out. CannotVerify, before
    anything else, where a rule, a server optimizer or a codec is wanting."""
    if blobs is not None:
        for row in store.runs():
            _require_extensions(row, extensions)
    for row in store.runs():
        yield from _Run(store, blobs, row, extensions).check()
    for claim in store.claims():
        found = store.round(claim.run, claim.round)
        if (found is None or found.status != "open") and claim in store.claims(claim.run):
            status = found.status if found is not None else "missing"
            yield Wrong(
                "claims", claim.run, claim.round, f"{claim.device} has an assignment in a round that is {status}"
            )


def _require_extensions(row: RunRow, extensions: FindExtensions) -> None:
    plan = Plan.parse(row.plan)
    try:
        chosen(plan, extensions(plan))
        codecs.get(plan.task.codec)
    except (PlanError, codecs.UnknownCodec) as error:
        raise CannotVerify(f"the updates of run {row.run} cannot be folded again here: {error}") from None


class _Run:
    def __init__(self, store: Reader, blobs: Readable | None, row: RunRow, extensions: FindExtensions) -> None:
        self._store = store
        self._blobs = blobs
        self._row = row
        self._extensions = extensions
        self._counted_in: dict[str, int] = {}
        self._fence = 0

    def check(self) -> Iterator[Wrong]:
        rounds = list(self._rounds())
        line = self._store.checkpoints(self._row.run)
        log: dict[int, _Told] = {}
        yield from self._read_log(log)
        yield from self._check_line(line)
        made = {row.round: row for row in line if row.round is not None}
        for row in rounds:
            yield from self._check_round(row, log.get(row.round, _Told()), made, line)
        if self._blobs is not None:
            for checkpoint in line:
                yield from self._check_blob(self._blobs, checkpoint)
            yield from self._check_state(self._blobs, line)

    def _wrong(self, invariant: str, round: int | None, what: str) -> Wrong:
        return Wrong(invariant, self._row.run, round, what)

    # ------------------------------------------------------------ the log and the line

    def _read_log(self, log: dict[int, _Told]) -> Iterator[Wrong]:
        last = 0
        for event in self._events():
            if event.seq != last + 1:
                yield self._wrong("8", None, f"the log goes from event {last} to event {event.seq}")
            last = event.seq
            yield from self._note(event, log)
        if last < self._row.seq:
            yield self._wrong("8", None, f"the log ends at event {last}, the run at {self._row.seq}")
        if self._row.snapshot_seq > self._row.seq:
            yield self._wrong("8", None, f"the snapshot is of event {self._row.snapshot_seq}, after the last one")

    def _note(self, event: EventRow, log: dict[int, _Told]) -> Iterator[Wrong]:
        body: dict[str, Any] = event.body
        told = log.setdefault(body.get("round", 0), _Told())
        match event.kind:
            case "Drawn":
                told.cohort = {device for device, _ in body["cohort"]}
            case "Reported":
                told.reported.setdefault(body["device"], body["digest"])
            case "Announced" if body["attempt"] > told.attempt:
                told.attempt = body["attempt"]
                told.given_up |= set(told.reported.items())
                told.reported = {}
            case "Masked":
                told.reported.setdefault(body["device"], body["digest"])
            case "Faulted" if body["device"] in told.reported:
                told.given_up.add((body["device"], told.reported.pop(body["device"])))
            case "Advanced":
                told.advanced = True
            case "Committed":
                told.commits += 1
                told.optimizer = body.get("optimizer")
            case "Leased":
                if body["fence"] <= self._fence:
                    yield self._wrong("lease", body["round"], f"its fence {body['fence']} was given out before")
                self._fence = body["fence"]
                told.holder = (body["worker"], body["fence"])
            case "Delivered":
                told.commits += 1
                told.taken = (body["worker"], body["fence"], body["digest"])
                told.optimizer = body.get("optimizer")

    def _check_line(self, line: list[CheckpointRow]) -> Iterator[Wrong]:
        before = 0
        for version, row in enumerate(line):
            parent = version - 1 if version else None
            if (row.version, row.parent_version) != (version, parent):
                told = f"version {row.version} names {row.parent_version} as its parent"
                yield self._wrong("2", row.round, f"{told}, where version {version} should name {parent}")
            if row.round is not None and row.round <= before:
                yield self._wrong(
                    "2", row.round, f"version {row.version} is of round {row.round}, after round {before}"
                )
            before = row.round or before

    # ------------------------------------------------------------ one round

    def _check_round(
        self, row: RoundRow, told: _Told, made: dict[int, CheckpointRow], line: list[CheckpointRow]
    ) -> Iterator[Wrong]:
        counted = self._store.contributions(self._row.run, row.round)
        if row.status == "open":
            return
        if row.status == "abandoned":
            yield from self._check_abandoned(row.round, told, made, counted)
            return
        if row.status != "committed":
            yield self._wrong("4", row.round, f"its row says {row.status!r}")
            return
        checkpoint = made.get(row.round)
        if checkpoint is None:
            yield self._wrong("4", row.round, "it was committed, and no checkpoint is of this round")
            return
        if told.commits != 1:
            yield self._wrong("4", row.round, f"the log commits it {told.commits} times")
        if (row.body.get("version"), row.body.get("digest")) != (checkpoint.version, checkpoint.digest):
            yield self._wrong("4", row.round, f"its row names another checkpoint than version {checkpoint.version}")
        yield from self._check_carried(row, told, checkpoint, line)
        if row.kind == "datacenter":
            yield from self._check_delivered(row.round, told, counted, checkpoint)
            return
        if told.advanced:
            if counted:
                yield self._wrong("3", row.round, f"{len(counted)} updates count in a round that the owner advanced")
            if not any(item.action == "advance" for item in self._store.audit(self._row.run)):
                yield self._wrong("3", row.round, "the owner advanced it, and the audit does not say so")
            return
        yield from self._check_counted(row.round, told, counted, checkpoint)
        yield from self._check_settled(row.round, told.given_up)
        if row.kind == "secure":
            return
        if self._blobs is not None and all(self._blobs.has(item.digest) for item in counted):
            yield from self._refold(self._blobs, row.round, counted, checkpoint, line)

    def _check_carried(
        self, row: RoundRow, told: _Told, checkpoint: CheckpointRow, line: list[CheckpointRow]
    ) -> Iterator[Wrong]:
        """The server optimizer's state is the one that the log names; a round that learned nothing carries it over."""
        if checkpoint.optimizer != told.optimizer:
            took, names = short(told.optimizer), short(checkpoint.optimizer)
            yield self._wrong("4", row.round, f"the log names the optimizer's state {took}, its checkpoint {names}")
        parent = next((item for item in line if item.version == checkpoint.version - 1), None)
        learned = row.kind != "datacenter" and not told.advanced
        if parent is not None and not learned and checkpoint.optimizer != parent.optimizer:
            yield self._wrong("4", row.round, "it learned nothing, and the server optimizer's state is another")

    def _check_abandoned(
        self, round: int, told: _Told, made: dict[int, CheckpointRow], counted: list[ContributionRow]
    ) -> Iterator[Wrong]:
        if round in made or told.commits:
            yield self._wrong("4", round, "it was abandoned, and committed too")
        if counted:
            yield self._wrong("4", round, f"it was abandoned, and {len(counted)} updates count in it")
        yield from self._check_settled(round, told.given_up | set(told.reported.items()))

    def _check_settled(self, round: int, acknowledged: set[tuple[str, str]]) -> Iterator[Wrong]:
        """Each of these acknowledged updates, which do not count, must have a refusal with its reason."""
        refused = {(item.device, item.digest) for item in self._store.refusals(self._row.run, round)}
        for device, digest in sorted(acknowledged):
            if (device, digest) not in refused:
                yield self._wrong(
                    "3", round, f"{device}'s update was acknowledged, does not count, and nothing says why"
                )

    def _check_delivered(
        self, round: int, told: _Told, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[Wrong]:
        if counted:
            yield self._wrong("3", round, f"{len(counted)} updates count in a datacenter round")
        if told.taken is None or told.taken[:2] != told.holder:
            yield self._wrong("lease", round, f"the result came from {told.taken}, the last lease was {told.holder}")
        elif told.taken[2] != checkpoint.digest:
            took, names = short(told.taken[2]), short(checkpoint.digest)
            yield self._wrong("3", round, f"the log took in {took}, the commit names {names}")

    def _check_counted(
        self, round: int, told: _Told, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[Wrong]:
        named = {item.device: item.digest for item in counted}
        for device in sorted(told.reported.keys() | named.keys()):
            if named.get(device) != told.reported.get(device):
                took, names = short(told.reported.get(device)), short(named.get(device))
                yield self._wrong("3", round, f"of {device} the log took in {took}, the commit names {names}")
        for item in counted:
            if item.version != checkpoint.version:
                told_of = f"version {item.version}, and the round made version {checkpoint.version}"
                yield self._wrong("1", round, f"{item.device}'s update counts in {told_of}")
            other = self._counted_in.setdefault(item.digest, round)
            if other != round:
                yield self._wrong(
                    "1", round, f"{item.device}'s update {short(item.digest)} counts in round {other} too"
                )
        strangers = sorted(named.keys() - told.cohort)
        if strangers:
            yield self._wrong("quorum", round, f"{', '.join(strangers)} count, and were not selected")
        quorum = Plan.parse(self._row.plan).cohort.quorum_count
        if len(counted) < quorum:
            yield self._wrong("quorum", round, f"it was committed with {len(counted)} updates; its quorum is {quorum}")

    # ------------------------------------------------------------ blobs

    def _check_blob(self, blobs: Readable, row: CheckpointRow) -> Iterator[Wrong]:
        try:
            found, size = hashed(blobs, row.digest)
        except BlobError as error:
            yield self._wrong("5", row.round, f"the blob of version {row.version} cannot be read: {error}")
            return
        if found != row.digest or size != row.bytes:
            yield self._wrong(
                "5", row.round, f"the blob of version {row.version} holds other bytes than were committed"
            )

    def _check_state(self, blobs: Readable, line: list[CheckpointRow]) -> Iterator[Wrong]:
        """The newest state of the server optimizer: the next round reads it. Older ones go with their rounds."""
        newest = line[-1] if line else None
        if newest is None or newest.optimizer is None:
            return
        try:
            found, _ = hashed(blobs, newest.optimizer)
        except BlobError as error:
            if self._store.checkpoint(self._row.run, newest.version + 1) is None:
                yield self._wrong("5", newest.round, f"the server optimizer's state cannot be read: {error}")
            return
        if found != newest.optimizer:
            yield self._wrong("5", newest.round, "the server optimizer's state holds other bytes than were committed")

    def _refold(
        self,
        blobs: Readable,
        round: int,
        counted: list[ContributionRow],
        checkpoint: CheckpointRow,
        line: list[CheckpointRow],
    ) -> Iterator[Wrong]:
        parent = next((row for row in line if row.version == checkpoint.version - 1), None)
        if parent is None or not counted or not blobs.has(parent.digest):
            return
        items = tuple(Contribution(device=item.device, digest=item.digest, weight=item.weight) for item in counted)
        plan = Plan.parse(self._row.plan)
        for difference in differences(
            blobs,
            plan,
            self._extensions(plan),
            run=self._row.run,
            round=round,
            parent=NewCheckpoint(parent.digest, parent.bytes, parent.optimizer),
            items=items,
            committed=NewCheckpoint(checkpoint.digest, checkpoint.bytes, checkpoint.optimizer),
        ):
            yield self._wrong("10", round, difference)

    # ------------------------------------------------------------ pages

    def _rounds(self) -> Iterator[RoundRow]:
        after = 0
        while page := self._store.rounds(self._row.run, after):
            yield from page
            after = page[-1].round

    def _events(self) -> Iterator[EventRow]:
        after = 0
        while page := self._store.events(self._row.run, after, _PAGE):
            yield from page
            after = page[-1].seq
