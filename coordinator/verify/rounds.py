"""The invariants of rounds and of the line of checkpoints, by an account of the log that is made without ``step``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coordinator.engine.event_fields import sum_digest, updates_digest
from coordinator.engine.named_tensors import called, changes
from coordinator.engine.plan import Plan
from coordinator.engine.reasons import printable
from coordinator.folding.refold import short
from coordinator.store.port import CheckpointRow, ContributionRow, Reader, RefusalRow, RoundRow
from coordinator.verify.kinds import UNREADABLE
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.public_rows import PLAIN, against_row
from coordinator.verify.secure import against_secure
from coordinator.verify.violation import RunViolation

CountedIn = dict[str, tuple[str, int]]
"""Digest of an update -> (run, round) in which it counts. Its bytes name both, so that there is only one."""


def against_line(line: Sequence[CheckpointRow]) -> Iterator[RunViolation]:
    before = 0
    for version, row in enumerate(line):
        parent = version - 1 if version else None
        if (row.version, row.parent_version) != (version, parent):
            named = f"version {row.version} names {row.parent_version} as its parent"
            yield RunViolation("2", row.round or 1, f"{named}, where version {version} should name {parent}")
        if row.round is not None and row.round <= before:
            yield RunViolation("2", row.round, f"version {row.version} is of round {row.round}, after round {before}")
        before = row.round or before


class RoundChecks:
    """Checks rounds that have ended; ``check`` takes the next one."""

    def __init__(
        self,
        reader: Reader,
        run: str,
        plan: Plan,
        log: Mapping[int, LoggedRound],
        line: Sequence[CheckpointRow],
        counted_in: CountedIn,
    ) -> None:
        self._store = reader
        self._run = run
        self._plan = plan
        self._quorum = plan.cohort.quorum_count
        self._log = log
        self._line = line
        self._made = {row.round: row for row in line if row.round is not None}
        self._counted_in = counted_in
        self.summed: dict[int, list[ContributionRow]] = {}
        """The contributions of each federated round whose updates were added up."""

    def check(self, row: RoundRow) -> Iterator[RunViolation]:
        logged = self._log.get(row.round, LoggedRound())
        if row.status == "open":
            if logged.commits or row.round < max(self._log):
                yield RunViolation("4", row.round, "it is over, and its row says that it is open")
            return
        counted = self._store.contributions(self._run, row.round)
        if row.status == "abandoned":
            yield from against_row(row, logged, self._plan, None, {})
            yield from self._check_abandoned(row.round, logged, counted)
            return
        if row.status != "committed":
            yield RunViolation("4", row.round, f"its row says {row.status!r}")
            return
        checkpoint = self._made.get(row.round)
        if checkpoint is None:
            yield RunViolation("4", row.round, "it was committed, and no checkpoint is of this round")
            return
        weights = {item.device: item.weight for item in counted}
        yield from against_row(row, logged, self._plan, checkpoint, weights)
        if logged.commits != 1:
            yield RunViolation("4", row.round, f"the log commits it {logged.commits} times")
        elif logged.commit["digest"] != checkpoint.digest:
            took, names = short(logged.commit["digest"]), short(checkpoint.digest)
            yield RunViolation("4", row.round, f"the log commits {took}, and version {checkpoint.version} is {names}")
        if {row.closed_at, checkpoint.created_at} != {logged.committed_at}:
            made = f"it ended at {row.closed_at} with version {checkpoint.version} of {checkpoint.created_at}"
            yield RunViolation("4", row.round, f"{made}, and the log commits it at {logged.committed_at}")
        collecting_at = row.opened_at if row.kind == "buffered" else logged.drawn_at
        if row.kind != "datacenter" and not logged.advanced and row.collecting_at != collecting_at:
            drawn = f"its cohort was drawn at {collecting_at}"
            yield RunViolation("4", row.round, f"{drawn}, and its row says {row.collecting_at}")
        if checkpoint.origin != (origin := logged.origin(row.round)):
            yield RunViolation("4", row.round, f"it is of {checkpoint.origin!r}, and the log says {origin!r}")
        yield from self._check_carried(row, logged, checkpoint)
        yield from self._check_evidence(row, logged, counted, checkpoint)
        if row.kind == "datacenter":
            yield from self._check_delivered(row.round, logged, counted, checkpoint)
            return
        if logged.advanced:
            if counted:
                yield RunViolation("3", row.round, f"{len(counted)} updates count in a round that the owner advanced")
            moved = f"round {row.round} moves version {checkpoint.version - 1} by one unit, without contributions: "
            act = (logged.advanced_at, logged.advanced_by, "advance", f"{moved}{row.body.get('exhausted')}")
            if act not in self._acts():
                yield RunViolation("3", row.round, "the owner advanced it, and the audit does not say so")
            return
        yield from self._check_counted(row.round, logged, counted, checkpoint)
        yield from self._check_settled(row.round, logged.given_up)
        if row.kind == "secure":
            if any(weights.values()):
                yield RunViolation("secure", row.round, "it has weights of single devices, which nobody knows")
            yield from against_secure(row.round, logged.secure, {item.device for item in counted})
        if row.kind in PLAIN:
            self.summed[row.round] = counted

    def claims(self, rounds: Mapping[int, RoundRow]) -> Iterator[RunViolation]:
        """An assignment is of a selected device, in a round that is open; and of a round that waits for updates each
        device has one that has neither sent its update nor left. ``rounds``: those that are stored. Those of a buffered
        run are its places, see ``verify.buffered``."""
        claimed: dict[int, set[str]] = {}
        for claim in self._store.claims(self._run):
            row, logged = rounds.get(claim.round), self._log.get(claim.round, LoggedRound())
            claimed.setdefault(claim.round, set()).add(claim.device)
            name = f"{claim.device} has an assignment"
            if row is None or row.status != "open":
                yield RunViolation("claims", claim.round, f"{name}, and the round is not open")
            elif claim.device not in logged.cohort:
                yield RunViolation("claims", claim.round, f"{name}, and was not selected")
            elif claim.attempt != row.attempt:
                yield RunViolation("claims", claim.round, f"{name} in attempt {claim.attempt}, of {row.attempt}")
        for number, row in rounds.items():
            if (row.kind, row.status, row.closed_at) != ("federated", "open", None) or row.collecting_at is None:
                continue
            logged = self._log.get(number, LoggedRound())
            for device in sorted(logged.cohort - logged.reported.keys() - logged.left - claimed.get(number, set())):
                yield RunViolation("claims", number, f"{device} was selected, and has no assignment")

    def refusals(self, rounds: Mapping[int, RoundRow]) -> Iterator[RunViolation]:
        """Each refusal is of somebody who took part in its round, and none of an update that counts: its device got a
        receipt, also when it sent the same bytes again. ``rounds``: those that are stored."""
        by_round: dict[int, list[RefusalRow]] = {}
        for refusal in self._store.refusals_in_order(self._run):
            by_round.setdefault(refusal.round, []).append(refusal)
        for number, refused in by_round.items():
            logged = self._log.get(number, LoggedRound())
            ended = rounds[number].closed_at if number in rounds and rounds[number].kind in PLAIN else None
            for row in refused:
                if row.kind == "abandoned" and ended is not None and row.at != ended:
                    said = f"the refusal of {row.device} is of {row.at}"
                    yield RunViolation("3", number, f"{said}, and its round ended at {ended}")
                for wrong in _against_refusal(row, logged, rounds.get(number)):
                    yield RunViolation("3", number, f"the refusal of {row.device} says {row.reason!r}, and {wrong}")
            counts = {(item.device, item.digest) for item in self._store.contributions(self._run, number)}
            for row in refused:
                if (row.device, row.digest) in counts:
                    yield RunViolation("3", number, f"the update of {row.device} counts, and a refusal of it is stored")
                if number not in rounds:
                    yield RunViolation("3", number, f"a refusal of {row.device} is stored, and there is no such round")
                elif rounds[number].kind != "datacenter" and row.device not in logged.cohort | logged.workers:
                    yield RunViolation("3", number, f"a refusal of {row.device} is stored, which was not selected")

    def scores_marks_and_acts(self, now: int, init: str) -> Iterator[RunViolation]:
        """The scores are those that devices and evaluators sent last, who can contribute to a model no more is marked
        on its tensors, and the audit has what owners did. ``now``: the latest round; ``init``: the digest of the
        first model."""
        begun = self._log.get(0, LoggedRound())
        scores, version, tensors = dict(begun.scores), 0, begun.tensors or init
        marks: dict[tuple[str, str], int] = {}
        for number, logged in sorted(self._log.items()):
            for device in logged.spent:
                marks.setdefault((tensors, device), number)
            if logged.commits:
                tensors = logged.commit.get("tensors") or logged.commit["digest"]
                try:
                    examples, means = logged.held_out()
                except UNREADABLE as error:
                    yield RunViolation("score", number, f"the scores of its devices cannot be added: {error}")
                    examples, means = 0, {}
                for name, value in means.items():
                    scores[version, "devices", name] = (value, examples, logged.committed_at or 0.0)
                version += 1
        rows = self._store.metrics(self._run)
        found = {(row.version, row.source, row.name): (row.value, row.examples, row.at) for row in rows}
        for key in sorted(scores.keys() | found.keys()):
            if found.get(key) != scores.get(key):
                of, source, name = key
                what = f"the score {name} of version {of} is {found.get(key)}, and {source} sent {scores.get(key)}"
                yield RunViolation("score", now, what)
        marked = {(row.tensors, row.device): row.round for row in self._store.marks_of_run(self._run)}
        for on, device in sorted(marks.keys() | marked.keys()):
            is_, should = marked.get((on, device)), marks.get((on, device))
            if is_ != should:
                said = f"{device} is marked on {short(on)} by round {is_}, and the log gives {should}"
                yield RunViolation("secure", should or is_ or now, said)
        bars = 0 if self._plan.secure is None else self._plan.secure.barred_rounds
        for at_, device, by in begun.unbarred:
            details = {
                f"device {device} was barred until round {number + bars + 1}: "
                f"its secret could not be rebuilt in round {number}"
                for number, logged in self._log.items()
                if device in logged.barred
            }
            if not any((at_, by, "unbar", detail) in self._acts() for detail in details):
                yield RunViolation("3", now, f"{by} let {device} take part again, and the audit does not say so")

    def _acts(self) -> set[tuple[float | None, str, str, str]]:
        return {(row.at, row.by, row.action, row.detail) for row in self._store.audit(self._run)}

    def _check_carried(self, row: RoundRow, logged: LoggedRound, checkpoint: CheckpointRow) -> Iterator[RunViolation]:
        """The named tensors are those of the log; a round in which no device learned carries them over."""
        if row.kind != "datacenter" and not logged.advanced:
            for name, took, names in changes(logged.commit.get("named_tensors", {}), checkpoint.named_tensors):
                what = f"the log names {called(name)} {short(took)}, its checkpoint {short(names)}"
                yield RunViolation("4", row.round, what)
            return
        parent = next((item for item in self._line if item.version == checkpoint.version - 1), None)
        for name, _, _ in changes(checkpoint.named_tensors, parent.named_tensors) if parent is not None else ():
            yield RunViolation("4", row.round, f"it trained nothing, and {called(name)} is another")

    def _check_evidence(
        self, row: RoundRow, logged: LoggedRound, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[RunViolation]:
        """The bytes of which the checkpoint was made are those of the line and of the counted updates."""
        parent = next((item for item in self._line if item.version == checkpoint.version - 1), None)
        if parent is None:
            return  # named with the line
        updates = ""
        learned = row.kind != "datacenter" and not logged.advanced
        if row.kind == "secure" and learned:
            survivors = ((item.device, item.digest) for item in counted)
            updates = sum_digest(logged.secure.header, survivors, logged.secure.opened.values())
        elif row.kind in PLAIN and learned:
            updates = updates_digest((item.device, item.digest, item.weight) for item in counted)
        said = logged.commit.get("evidence", {})
        compared: list[tuple[str, str | None, str | None]] = [
            (f"version {parent.version}", said.get("parent"), parent.digest),
            ("the list of counted updates", said.get("updates"), updates),
        ]
        for name, read, stands in changes(said.get("named_tensors", {}), parent.named_tensors if learned else {}):
            compared.append((f"{called(name)} of version {parent.version}", read, stands))
        for what, read, stands in compared:
            if (read or None) != (stands or None):
                made = f"version {checkpoint.version} was made from {short(read or None)}"
                yield RunViolation("evidence", row.round, f"{made}, and {what} here is {short(stands or None)}")

    def _check_abandoned(
        self, round: int, logged: LoggedRound, counted: list[ContributionRow]
    ) -> Iterator[RunViolation]:
        if round in self._made or logged.commits:
            yield RunViolation("4", round, "it was abandoned, and committed too")
        if counted:
            yield RunViolation("4", round, f"it was abandoned, and {len(counted)} updates count in it")
        yield from self._check_settled(round, logged.given_up | set(logged.reported.items()))

    def _check_settled(self, round: int, acknowledged: set[tuple[str, str]]) -> Iterator[RunViolation]:
        """Each of these acknowledged updates, which do not count, must have a refusal with its reason."""
        refused = {
            (item.device, item.digest)
            for item in self._store.refusals(self._run, round)
            if item.reason and item.kind in ("abandoned", "invalid-update")
        }
        for device, digest in sorted(acknowledged):
            if (device, digest) not in refused:
                yield RunViolation(
                    "3", round, f"{device}'s update was acknowledged, does not count, and has no refusal with a reason"
                )

    def _check_delivered(
        self, round: int, logged: LoggedRound, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[RunViolation]:
        if counted:
            yield RunViolation("3", round, f"{len(counted)} updates count in a datacenter round")
        if logged.taken is None or logged.taken[:2] != logged.holder:
            yield RunViolation(
                "lease", round, f"the result came from {logged.taken}, the last lease was {logged.holder}"
            )
        elif logged.taken[2] != checkpoint.digest:
            took, names = short(logged.taken[2]), short(checkpoint.digest)
            yield RunViolation("3", round, f"the log has {took}, the commit names {names}")

    def _check_counted(
        self, round: int, logged: LoggedRound, counted: list[ContributionRow], checkpoint: CheckpointRow
    ) -> Iterator[RunViolation]:
        named = {item.device: item.digest for item in counted}
        for device in sorted(logged.reported.keys() | named.keys()):
            if named.get(device) != logged.reported.get(device):
                took, names = short(logged.reported.get(device)), short(named.get(device))
                yield RunViolation("3", round, f"of {device} the log has {took}, the commit names {names}")
        for item in counted:
            if logged.weights.get(item.device, item.weight) != item.weight:
                weighs = f"weighs {item.weight}, and {logged.weights[item.device]} by its work and staleness"
                yield RunViolation("3", round, f"the update of {item.device} {weighs}")
            if item.version != checkpoint.version:
                versions = f"version {item.version}, and the round made version {checkpoint.version}"
                yield RunViolation("1", round, f"{item.device}'s update counts in {versions}")
            run, other = self._counted_in.setdefault(item.digest, (self._run, round))
            if (run, other) != (self._run, round):
                where = f"round {other}" if run == self._run else f"round {other} of run {run}"
                yield RunViolation("1", round, f"{item.device}'s update {short(item.digest)} counts in {where} too")
        strangers = sorted(named.keys() - logged.cohort)
        if strangers:
            yield RunViolation("quorum", round, f"{', '.join(strangers)} count, and were not selected")
        if len(counted) < self._quorum:
            yield RunViolation(
                "quorum", round, f"it was committed with {len(counted)} updates; its quorum is {self._quorum}"
            )


def _against_refusal(row: RefusalRow, logged: LoggedRound, round: RoundRow | None) -> Iterator[str]:
    """What of a refusal the log shows to be wrong."""
    if not row.reason:
        yield "has no reason"
    ended = round is not None and round.kind in PLAIN and round.status == "abandoned"
    if row.kind == "abandoned" and ended and row.reason != f"the round was abandoned: {round.reason}":  # type: ignore[union-attr]
        yield f"its round was abandoned because {round.reason}"  # type: ignore[union-attr]
    if row.kind == "invalid-update" and row.reason != printable(logged.refused.get(row.device, row.reason)):
        yield f"the log says {logged.refused[row.device]!r}"
    if row.kind == "duplicate" and row.device not in logged.reported.keys() | {one for one, _ in logged.given_up}:
        yield "the log has no other update of it"
    if row.kind == "withdrawn" and row.device not in logged.withdrawn:
        yield "it has not withdrawn"
