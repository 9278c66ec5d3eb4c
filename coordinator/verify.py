"""Checks a database against the invariants and yields every violation. Reads only.

It reads the rows and the log without the engine's ``step``, so a bug of the engine cannot hide itself. Rows of rounds
are read before the log, and only rounds that had ended by then are checked, so a coordinator may run meanwhile.

======  ==========================================================================================================
1       a device counts at most once per round and per version, and no update counts in two rounds
2       the checkpoints of a run form a line
3       a commit names exactly the updates in the log; each update of an abandoned round, or attempt, has its
        refusal recorded; a round without any was advanced by its owner, and the audit says so
4       a round ended once: its row, its checkpoint and the log agree
5       every checkpoint has its complete blob, and so has the newest state of the server optimizer
8       the log has no gap, and the snapshot lies within it
10      updates that are still stored give the committed checkpoint, and the server optimizer's state, again
quorum  a round was committed with at least its quorum, of devices that were selected
claims  a device has an assignment only in a round that is open
lease   fences only rise, and a datacenter round was committed under the last one that was granted, with its bytes
======  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from client_sdk import codecs
from coordinator.blobs import BlobError
from coordinator.engine.effects import Contribution
from coordinator.engine.plan import Plan, chosen
from coordinator.engine.plan_file import PlanError
from coordinator.folding.aggregator import NewCheckpoint
from coordinator.folding.refold import Readable, differences, hashed, short
from coordinator.logged_round import LoggedRound
from coordinator.runtime.extensions import FindExtensions, installed
from coordinator.store.port import CheckpointRow, ContributionRow, EventRow, Reader, RoundRow, RunRow

_PAGE = 5000
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of an invariant."""

    invariant: str
    """Its number in docs/architecture.md, or ``quorum``, ``claims`` or ``lease``."""
    run: str
    round: int | None
    what: str


class CannotVerify(Exception):
    """A run's plan names what is not installed here: its updates cannot be folded again. One sentence."""


def verify(store: Reader, blobs: Readable | None = None, extensions: FindExtensions = installed) -> Iterator[Violation]:
    """Yields all violations, run by run. Without ``blobs`` invariants 5 and 10 are not checked. CannotVerify, before
    the first violation, where a rule, a server optimizer or a codec is not installed."""
    if blobs is not None:
        for row in store.runs():
            _require_extensions(row, extensions)
    for row in store.runs():
        yield from _Run(store, blobs, row, extensions).check()
    for claim in store.claims():
        found = store.round(claim.run, claim.round)
        if (found is None or found.status != "open") and claim in store.claims(claim.run):
            status = found.status if found is not None else "missing"
            yield Violation(
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

    def check(self) -> Iterator[Violation]:
        rounds = list(self._rounds())
        line = self._store.checkpoints(self._row.run)
        log: dict[int, LoggedRound] = {}
        yield from self._read_log(log)
        yield from self._check_line(line)
        made = {row.round: row for row in line if row.round is not None}
        for row in rounds:
            yield from self._check_round(row, log.get(row.round, LoggedRound()), made, line)
        if self._blobs is not None:
            for checkpoint in line:
                yield from self._check_blob(self._blobs, checkpoint)
            yield from self._check_state(self._blobs, line)

    def _violation(self, invariant: str, round: int | None, what: str) -> Violation:
        return Violation(invariant, self._row.run, round, what)

    # ------------------------------------------------------------ the log and the line

    def _read_log(self, log: dict[int, LoggedRound]) -> Iterator[Violation]:
        last, fence = 0, 0
        for event in self._events():
            if event.seq != last + 1:
                yield self._violation("8", None, f"the log goes from event {last} to event {event.seq}")
            last = event.seq
            body: dict[str, Any] = event.body
            if event.kind == "Leased":
                if body["fence"] <= fence:
                    yield self._violation("lease", body["round"], f"its fence {body['fence']} was issued before")
                fence = body["fence"]
            log.setdefault(body.get("round", 0), LoggedRound()).add(event)
        if last < self._row.seq:
            yield self._violation("8", None, f"the log ends at event {last}, the run at {self._row.seq}")
        if self._row.snapshot_seq > self._row.seq:
            yield self._violation("8", None, f"the snapshot is of event {self._row.snapshot_seq}, after the last one")

    def _check_line(self, line: list[CheckpointRow]) -> Iterator[Violation]:
        before = 0
        for version, row in enumerate(line):
            parent = version - 1 if version else None
            if (row.version, row.parent_version) != (version, parent):
                named = f"version {row.version} names {row.parent_version} as its parent"
                yield self._violation("2", row.round, f"{named}, where version {version} should name {parent}")
            if row.round is not None and row.round <= before:
                yield self._violation(
                    "2", row.round, f"version {row.version} is of round {row.round}, after round {before}"
                )
            before = row.round or before

    # ------------------------------------------------------------ one round

    def _check_round(
        self, row: RoundRow, logged: LoggedRound, made: dict[int, CheckpointRow], line: list[CheckpointRow]
    ) -> Iterator[Violation]:
        counted = self._store.contributions(self._row.run, row.round)
        if row.status == "open":
            return
        if row.status == "abandoned":
            yield from self._check_abandoned(row.round, logged, made, counted)
            return
        if row.status != "committed":
            yield self._violation("4", row.round, f"its row says {row.status!r}")
            return
        checkpoint = made.get(row.round)
        if checkpoint is None:
            yield self._violation("4", row.round, "it was committed, and no checkpoint is of this round")
            return
        if logged.commits != 1:
            yield self._violation("4", row.round, f"the log commits it {logged.commits} times")
        if (row.body.get("version"), row.body.get("digest")) != (checkpoint.version, checkpoint.digest):
            yield self._violation("4", row.round, f"its row names another checkpoint than version {checkpoint.version}")
        yield from self._check_carried(row, logged, checkpoint, line)
        if row.kind == "datacenter":
            yield from self._check_delivered(row.round, logged, counted, checkpoint)
            return
        if logged.advanced:
            if counted:
                yield self._violation(
                    "3", row.round, f"{len(counted)} updates count in a round that the owner advanced"
                )
            if not any(item.action == "advance" for item in self._store.audit(self._row.run)):
                yield self._violation("3", row.round, "the owner advanced it, and the audit does not say so")
            return
        yield from self._check_counted(row.round, logged, counted, checkpoint)
        yield from self._check_settled(row.round, logged.given_up)
        if row.kind == "secure":
            return
        if self._blobs is not None and all(self._blobs.has(item.digest) for item in counted):
            yield from self._refold(self._blobs, row.round, counted, checkpoint, line)

    def _check_carried(
        self, row: RoundRow, logged: LoggedRound, checkpoint: CheckpointRow, line: list[CheckpointRow]
    ) -> Iterator[Violation]:
        """The server optimizer's state is the one in the log; a round without training carries it over."""
        if checkpoint.optimizer != logged.optimizer:
            took, names = short(logged.optimizer), short(checkpoint.optimizer)
            yield self._violation("4", row.round, f"the log names the optimizer's state {took}, its checkpoint {names}")
        parent = next((item for item in line if item.version == checkpoint.version - 1), None)
        learned = row.kind != "datacenter" and not logged.advanced
        if parent is not None and not learned and checkpoint.optimizer != parent.optimizer:
            yield self._violation("4", row.round, "it trained nothing, and the server optimizer's state is another")

    def _check_abandoned(
        self, round: int, logged: LoggedRound, made: dict[int, CheckpointRow], counted: list[ContributionRow]
    ) -> Iterator[Violation]:
        if round in made or logged.commits:
            yield self._violation("4", round, "it was abandoned, and committed too")
        if counted:
            yield self._violation("4", round, f"it was abandoned, and {len(counted)} updates count in it")
        yield from self._check_settled(round, logged.given_up | set(logged.reported.items()))

    def _check_settled(self, round: int, acknowledged: set[tuple[str, str]]) -> Iterator[Violation]:
        """Each of these acknowledged updates, which do not count, must have a refusal with its reason."""
        refused = {(item.device, item.digest) for item in self._store.refusals(self._row.run, round)}
        for device, digest in sorted(acknowledged):
            if (device, digest) not in refused:
                yield self._violation(
                    "3", round, f"{device}'s update was acknowledged, does not count, and has no refusal with a reason"
                )

    def _check_delivered(
        self, round: int, logged: LoggedRound, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[Violation]:
        if counted:
            yield self._violation("3", round, f"{len(counted)} updates count in a datacenter round")
        if logged.taken is None or logged.taken[:2] != logged.holder:
            yield self._violation(
                "lease", round, f"the result came from {logged.taken}, the last lease was {logged.holder}"
            )
        elif logged.taken[2] != checkpoint.digest:
            took, names = short(logged.taken[2]), short(checkpoint.digest)
            yield self._violation("3", round, f"the log has {took}, the commit names {names}")

    def _check_counted(
        self, round: int, logged: LoggedRound, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[Violation]:
        named = {item.device: item.digest for item in counted}
        for device in sorted(logged.reported.keys() | named.keys()):
            if named.get(device) != logged.reported.get(device):
                took, names = short(logged.reported.get(device)), short(named.get(device))
                yield self._violation("3", round, f"of {device} the log has {took}, the commit names {names}")
        for item in counted:
            if item.version != checkpoint.version:
                versions = f"version {item.version}, and the round made version {checkpoint.version}"
                yield self._violation("1", round, f"{item.device}'s update counts in {versions}")
            other = self._counted_in.setdefault(item.digest, round)
            if other != round:
                yield self._violation(
                    "1", round, f"{item.device}'s update {short(item.digest)} counts in round {other} too"
                )
        strangers = sorted(named.keys() - logged.cohort)
        if strangers:
            yield self._violation("quorum", round, f"{', '.join(strangers)} count, and were not selected")
        quorum = Plan.parse(self._row.plan).cohort.quorum_count
        if len(counted) < quorum:
            yield self._violation(
                "quorum", round, f"it was committed with {len(counted)} updates; its quorum is {quorum}"
            )

    # ------------------------------------------------------------ blobs

    def _check_blob(self, blobs: Readable, row: CheckpointRow) -> Iterator[Violation]:
        try:
            found, size = hashed(blobs, row.digest)
        except BlobError as error:
            yield self._violation("5", row.round, f"the blob of version {row.version} cannot be read: {error}")
            return
        if found != row.digest or size != row.bytes:
            yield self._violation(
                "5", row.round, f"the blob of version {row.version} holds other bytes than were committed"
            )

    def _check_state(self, blobs: Readable, line: list[CheckpointRow]) -> Iterator[Violation]:
        """The newest state of the server optimizer: the next round reads it. Older ones are deleted with their
        rounds."""
        newest = line[-1] if line else None
        if newest is None or newest.optimizer is None:
            return
        try:
            found, _ = hashed(blobs, newest.optimizer)
        except BlobError as error:
            if self._store.checkpoint(self._row.run, newest.version + 1) is None:
                yield self._violation("5", newest.round, f"the server optimizer's state cannot be read: {error}")
            return
        if found != newest.optimizer:
            yield self._violation(
                "5", newest.round, "the server optimizer's state holds other bytes than were committed"
            )

    def _refold(
        self,
        blobs: Readable,
        round: int,
        counted: list[ContributionRow],
        checkpoint: CheckpointRow,
        line: list[CheckpointRow],
    ) -> Iterator[Violation]:
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
            yield self._violation("10", round, difference)

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
