"""One run: reads its rows once, in one transaction, then its blobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from coordinator.engine import events as ev
from coordinator.engine.effects import Contribution
from coordinator.engine.named_tensors import CLIP, WITHIN, Small
from coordinator.engine.plan import Plan, selection_of
from coordinator.engine.plan_file import PlanError
from coordinator.folding.aggregator import NewCheckpoint
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.folding.refold import differences
from coordinator.runtime.extensions import FindExtensions
from coordinator.runtime.with_messages import WithMessages
from coordinator.store.port import (
    RUN_ROUND,
    STEP_BYTES,
    CheckpointRow,
    ContributionRow,
    DeviceRow,
    EventRow,
    Reader,
    RoundRow,
    RunRow,
    StoreError,
    WorkerRow,
)
from coordinator.verify.buffered import InFlight
from coordinator.verify.chains import EventChain, Head, RefusalChain, against_head
from coordinator.verify.deadlines import Deadlines
from coordinator.verify.draws import against_draw
from coordinator.verify.files import (
    HashedBlobs,
    WantedBlob,
    against_blob,
    against_manifests,
    forgotten_rounds,
    wanted_blobs,
)
from coordinator.verify.kinds import every_device, fields_of_wrong_kind, latest_round, shown
from coordinator.verify.ledger import against_ledger
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.public_rows import RoundTimes
from coordinator.verify.replay import Replay, differing_tables
from coordinator.verify.rounds import CountedIn, RoundChecks, against_line
from coordinator.verify.secure import LoggedSecure, against_leftovers, against_messages
from coordinator.verify.violation import RunViolation

_PAGE = 5000
_TOLD_EVERY = 500
"""Events between two words of progress."""
_HIGHEST_FENCE = 1 << 40
"""Each commit raises the fence by one, and so does each attempt that failed."""

OnProgress = Callable[[str, int, int], None]
"""Takes what is checked now, how much of it is, and how much there is of it."""


def no_progress(what: str, done: int, of: int) -> None:
    """Nobody wants to know."""


class RunChecks:
    """``rows`` reads all rows; ``files`` may follow, after the transaction in which they were read."""

    def __init__(self, row: RunRow, heads: Sequence[Head], counted_in: CountedIn, progress: OnProgress) -> None:
        """``heads``: links of the run's events and refusals that were written down outside; ``counted_in``: where each
        update counts in the runs before; ``progress`` gets how far it is, as (what, done, of)."""
        self.row = row
        self._progress = progress
        self._counted_in = counted_in
        self.heads: list[Head] = []
        """Where the log ends, and the refusals, once they have been read."""
        self._heads = [head for head in heads if not head.refusals]
        self._refusal_heads = [head for head in heads if head.refusals]
        self.plan: Plan | None = None
        self.replay: Replay | None = None
        self._line: list[CheckpointRow] = []
        self._wanted: list[WantedBlob] = []
        self._summed: dict[int, list[ContributionRow]] = {}
        self._reports: dict[int, Mapping[str, Mapping[str, Any]]] = {}
        """Round -> the reports of its devices, of a plan whose strategy may read them."""
        self._small: dict[int, Small] = {}
        """Version -> the small state that goes with it, as the log has it."""
        self._seeds: dict[int, bytes | None] = {}
        """Private round -> the seed of its noise; None: it is not stored."""
        self._noise_keys: list[bytes] | None = None
        """Of all committed rounds, where noise is correlated over them and the run goes on."""
        self._noise: Noise | None = None
        """Of the last round whose sum was repeated: noise that is correlated is drawn on from there."""
        self._over: dict[int, LoggedSecure] = {}
        """Secure rounds whose messages are deleted, as the log says."""

    def rows(self, reader: Reader) -> Iterator[RunViolation]:
        row = self.row
        counts = reader.rows_by_round(row.run)
        latest = latest_round(reader, row.run)
        try:
            self.plan = Plan.parse(row.plan)
        except PlanError as error:
            yield RunViolation("plan", latest, f"its plan cannot be read: {error}")
            return
        if self.plan.digest != row.plan_digest:
            yield RunViolation("plan", latest, "its plan is another one than the digest to which its devices agreed")
        self._line = reader.checkpoints(row.run)
        try:
            replay = self.replay = Replay(row, self.plan, self._line[0].bytes if self._line else 0)
        except StoreError as error:
            yield RunViolation("rows", latest, f"its row cannot be stored: {error}")
            return
        rounds: list[RoundRow] = []
        for number in sorted(counts["rounds"]):
            if counts["rounds"][number] > 1:
                yield RunViolation("rows", number, "its row is stored twice")
            yield from self._stored_round(reader, number, rounds)
        deadlines: Deadlines | InFlight = Deadlines(self.plan, {item.round: item.opened_at for item in rounds})
        if self.plan.buffered is not None:
            deadlines = InFlight(self.plan, self.plan.buffered)
        log: dict[int, LoggedRound] = {}
        times = RoundTimes()
        yield from self._log(reader, replay, log, deadlines, times)
        if replay.whole and replay.state.round_number and replay.state.roles != row.roles:
            yield RunViolation("log", latest, "its row names other statistics of its model than its first event")
        if isinstance(deadlines, InFlight):
            deadlines.complete(log, {item.round for item in rounds})
        refusals = RefusalChain(row)
        yield from refusals.findings(reader, replay.round_number, self._refusal_heads)
        self.heads += [refusals.head] if refusals.head is not None else []
        yield from against_line(self._line)
        left = {*replay.state.leftovers, *([replay.state.round.number] if replay.state.round is not None else ())}
        self._over = {number: item.secure for number, item in log.items() if item.secure.blobs and number not in left}
        logged = {number: item.secure for number, item in log.items()}
        seeds = {number: item.seed for number, item in log.items() if item.seed}
        stored_seeds = reader.messages(row.run, list(seeds.values()))
        self._seeds = {number: stored_seeds.get(digest) for number, digest in seeds.items()}
        messages = reader.message_rounds(row.run)
        yield from self._against_noise(reader, replay, log, messages)
        short = [(number, digest) for number, item in log.items() for digest in item.reported.values()]
        for number, digest in [*seeds.items(), *short]:
            if messages.get(digest) == number:  # also of a round that is over: it is deleted after its end
                del messages[digest]
        yield from against_messages(messages, logged, left)
        small: Small = {}
        for made in self._line:
            found = log.get(made.round or 0)
            small = self._small[made.version] = (
                found.commit.get("small", {}) if found is not None and found.learned else small
            )
        yield from self._against_clips(self.plan, log)
        checks = RoundChecks(reader, row.run, self.plan, log, self._line, self._counted_in)
        for item in rounds:
            yield from checks.check(item)
        stored = {item.round: item for item in rounds}
        for number in sorted(log.keys() - counts["rounds"] - {0}):
            yield RunViolation("4", number, "the log names it, and its row is missing")
        yield from times.findings(stored)
        yield from checks.refusals(stored)
        if isinstance(deadlines, InFlight):
            is_open = any(item.status == "open" for item in rounds)
            yield from deadlines.claims(reader.claims(row.run), is_open)
        else:
            yield from checks.claims(stored)
            yield from deadlines.claims(reader.claims(row.run))
            yield from deadlines.snapshot(row.snapshot)
        yield from checks.scores_marks_and_acts(replay.round_number, row.init)
        self._summed = checks.summed
        yield from against_ledger(reader, row.run, self.plan, checks.summed)
        self._reports = {number: item.reports for number, item in log.items() if self.plan.strategy is not None}
        yield from differing_tables(reader, replay, rounds)
        if replay.whole:
            yield from self._against_state(replay)
        devices = devices_of(reader, replay)
        yield from against_fleet(reader, replay, devices)
        self._wanted = list(wanted_blobs(row, replay, self._line, devices))

    def _against_noise(
        self, reader: Reader, replay: Replay, log: Mapping[int, LoggedRound], messages: dict[str, int]
    ) -> Iterator[RunViolation]:
        """Findings for the keys of noise that later rounds need, which are taken out of ``messages``."""
        named = {item.commit["noise"]: number for number, item in log.items() if item.commit.get("noise")}
        if replay.state.over:
            return
        stored = reader.messages(self.row.run, list(named))
        for digest, number in named.items():
            if messages.pop(digest, None) != RUN_ROUND or sha256(stored[digest]).hexdigest() != digest:
                yield RunViolation("noise", number, "the key of its noise, which later rounds need, is not stored")
        self._noise_keys = [stored[digest][STEP_BYTES:] for digest in named if digest in stored]

    def _against_clips(self, plan: Plan, log: Mapping[int, LoggedRound]) -> Iterator[RunViolation]:
        """Findings for clips that adapt: each follows from the one before and from a round's noised bits alone."""
        privacy = plan.privacy
        if privacy is None or privacy.adapt is None:
            return
        for parent, made in pairwise(self._line):
            found, before, after = log.get(made.round or 0), self._small[parent.version], self._small[made.version]
            if found is None or not found.learned:
                continue
            within = after.get(WITHIN)
            wanted = privacy.after(before, within) if isinstance(within, float) else {}
            if after.get(CLIP) != wanted.get(CLIP, ""):
                what = f"the clip after it is {after.get(CLIP)}, and its noised bits give {wanted.get(CLIP)}"
                yield RunViolation("noise", made.round or 0, what)
            if found.secure.header:
                clip, own = _clip_in(found.secure.header), privacy.clip_after(before)
                if clip != own:
                    yield RunViolation("noise", made.round or 0, f"its header has the clip {clip}, and it is {own}")

    def files(self, blobs: HashedBlobs, newest: Reader, extensions: FindExtensions) -> Iterator[RunViolation]:
        """``newest``: reads of what is committed now."""
        if self.plan is None or self.replay is None:
            return
        blobs = HashedBlobs(WithMessages(blobs.blobs, partial(newest.messages, self.row.run)))
        for number, wanted in enumerate(self._wanted, 1):
            self._progress(f"{self.row.run}: files", number, len(self._wanted))
            yield from against_blob(blobs, wanted, newest)
        yield from against_manifests(blobs, self._line, self.replay.state)
        yield from against_leftovers(blobs.blobs, self._over, {wanted.digest for wanted in self._wanted})
        choice = selection_of(self.plan, extensions(self.plan))
        buffered, seed = self.plan.buffered is not None, self.row.selection_seed
        named = set(self.plan.cohort.devices)
        for drawn, known, moved in self.replay.draws.with_known(choice.window):
            for stranger in sorted({device for device, _ in drawn.cohort} - named) if named else ():
                yield RunViolation("draw", drawn.round, f"{stranger} was drawn, and the plan names others")
            if drawn.pool is None or blobs.whole(drawn.pool):
                select = len(drawn.cohort) if buffered else self.plan.cohort.select  # how many are free: see InFlight
                for against in against_draw(blobs.blobs, select, choice, seed + drawn.before, drawn, known, moved):
                    yield RunViolation("draw", drawn.round, against)
        for number, (parent, committed) in enumerate(pairwise(self._line), 1):
            self._progress(f"{self.row.run}: sums", number, len(self._line) - 1)
            for difference in self._differences(blobs, extensions, parent, committed):
                yield RunViolation("10", committed.round or 0, difference)

    def _differences(
        self, blobs: HashedBlobs, extensions: FindExtensions, parent: CheckpointRow, committed: CheckpointRow
    ) -> Iterator[str]:
        """Adds a round's stored updates up again, where all are there."""
        number, plan = committed.round or 0, self.plan
        counted = self._summed.get(number, [])
        if plan is None or not counted:
            return
        needed = {parent.digest, *(item.digest for item in counted), *parent.named_tensors.values()}
        if not all(blobs.whole(digest) for digest in needed):
            return
        seed = self._seeds.get(number)
        if plan.privacy is not None and seed is None:
            yield "the seed of its noise is not stored, and its updates are: its sum cannot be repeated"
            return
        before = (self._noise_keys or [])[: parent.version]
        if plan.privacy is not None and plan.privacy.correlated and len(before) < parent.version:
            return  # the run is over, and said in the notes; or they were named where the rows are read
        if plan.privacy is not None and self._noise is None:
            self._noise = Noise(plan, plan.privacy)
        yield from differences(
            blobs.blobs,
            plan,
            extensions(plan),
            run=self.row.run,
            roles=self.replay.state.roles if self.replay is not None else {},
            round=number,
            parent=NewCheckpoint(parent.digest, parent.bytes, parent.named_tensors, self._small[parent.version]),
            items=tuple(self._contribution(number, item) for item in counted),
            committed=NewCheckpoint(
                committed.digest, committed.bytes, committed.named_tensors, self._small[committed.version]
            ),
            settings=plan.settings_at(parent.version),
            seed=None if seed is None else RoundSeed(self.row.run, number, seed, before),
            noise=self._noise,
        )

    def _contribution(self, round: int, item: ContributionRow) -> Contribution:
        said = self._reports.get(round, {}).get(item.device, {})
        steps, metrics = int(said.get("steps", 0)), said.get("metrics", {})
        return Contribution(device=item.device, digest=item.digest, weight=item.weight, steps=steps, metrics=metrics)

    def took_part(self) -> Iterator[str]:
        """Devices and workers that the log names."""
        if self.replay is not None:
            yield from (device for _, device, _ in self.replay.examples)
            yield from (worker for _, worker in self.replay.leases)

    def notes(self) -> Iterator[str]:
        """What could not be checked, for people."""
        last = 0 if self.replay is None else forgotten_rounds(self.replay)
        if last:
            over = f"the plan's retention of updates is over up to round {last}"
            yield f"run {self.row.run}: {over}: those sums are not repeated"
        privacy = None if self.plan is None else self.plan.privacy
        if self._noise_keys is None and privacy is not None and privacy.correlated:
            yield f"run {self.row.run}: it has ended, and with it the keys of its noise: sums are not repeated"

    def _log(
        self,
        reader: Reader,
        replay: Replay,
        log: dict[int, LoggedRound],
        deadlines: Deadlines | InFlight,
        times: RoundTimes,
    ) -> Iterator[RunViolation]:
        last, fence, number, chain = 0, 0, 0, EventChain(self.row)
        named: dict[int, tuple[EventRow, int]] = {}
        wanted = {head.seq for head in self._heads}
        for seq, event in _events(reader, self.row.run):
            if seq != last + 1:
                yield RunViolation("8", number or 1, f"the log goes from event {last} to event {seq}")
            last = seq
            if seq % _TOLD_EVERY == 0:
                self._progress(f"{self.row.run}: events", seq, self.row.seq)
            happened = None if event is None else _read(event)
            if event is None or happened is None:
                yield RunViolation("log", replay.round_number or 1, f"event {seq} cannot be read")
                replay.whole = False
                chain.skip()
                continue
            body: dict[str, Any] = event.body
            number = body.get("round", replay.round_number) or 1
            if not chain.add(event):
                yield RunViolation("chain", number, f"event {seq}, {event.kind}, does not continue the chain of links")
            if seq in wanted:
                named[seq] = (event, number)
            yield from replay.add(event, happened)
            if event.kind == "Leased":
                if body["fence"] <= fence:
                    yield RunViolation("lease", body["round"], f"its fence {body['fence']} was issued before")
                fence = body["fence"]
            logged = log.setdefault(body.get("round", 0), LoggedRound())
            logged.add(event, replay.state.plan)
            times.add(event)
            yield from deadlines.add(event, logged)
        now = replay.round_number
        self.heads += [Head(self.row.run, last, chain.link)] if last else []
        if last != self.row.seq:
            yield RunViolation("8", now, f"the log ends at event {last}, the run at {self.row.seq}")
        if self.row.snapshot_seq > self.row.seq:
            yield RunViolation("8", now, f"the snapshot is of event {self.row.snapshot_seq}, after the last one")
        for head in self._heads:
            event, number = named.get(head.seq, (None, now))
            yield from against_head(head, event, number, last)

    def _against_state(self, replay: Replay) -> Iterator[RunViolation]:
        """What of the run's row has bounds: commits that failed raise its fence too, and a round that opens writes a
        snapshot."""
        row, now = self.row, replay.round_number
        if row.fence < replay.fences:
            yield RunViolation(
                "rows", now, f"the run's fence is {row.fence}, and {replay.fences} commits each raised it"
            )
        elif row.fence > _HIGHEST_FENCE:
            yield RunViolation("rows", now, f"the run's fence is {row.fence}, which no coordinator reaches")
        found = replay.at_snapshot
        if (found.round_number, found.round is None) != (now, replay.state.round is None):
            yield RunViolation("snapshot", now, f"the snapshot is of round {found.round_number}, and the run at {now}")

    def _stored_round(self, reader: Reader, number: int, rounds: list[RoundRow]) -> Iterator[RunViolation]:
        try:
            rounds += reader.rounds(self.row.run, number - 1, 1)
        except (ValueError, OverflowError):
            yield RunViolation("rows", number, "its row cannot be read")


def _clip_in(header: str) -> float | None:
    """The clip that a header names; None where it cannot be read."""
    try:
        return AttemptHeader.parse(bytes.fromhex(header)).clip
    except (SecaggError, ValueError):
        return None


def _events(reader: Reader, run: str) -> Iterator[tuple[int, EventRow | None]]:
    """(sequence number, event) of the log; None for one whose body is not JSON."""
    after, limit = 0, _PAGE
    while True:
        try:
            page = reader.events(run, after, limit)
        except ValueError:
            if limit > 1:
                limit = 1
                continue
            after += 1
            limit = _PAGE
            yield after, None
            continue
        if not page:
            return
        for event in page:
            yield event.seq, event
        after, limit = page[-1].seq, limit


def _read(row: EventRow) -> ev.Event | None:
    try:
        return ev.from_json(row.kind, row.at, row.body)
    except (ValueError, TypeError):
        return None


def devices_of(reader: Reader, replay: Replay) -> dict[str, DeviceRow]:
    """The rows of the devices that the log names."""
    named = {device for _, device, _ in replay.examples}
    return {row.device: row for row in every_device(reader) if row.device in named}


def against_fleet(reader: Reader, replay: Replay, devices: dict[str, DeviceRow]) -> Iterator[RunViolation]:
    """Each device of a cohort is registered, with no more examples than its cap; each worker of a lease is registered;
    and their rows hold values of their columns' kinds."""
    missing: set[str] = set()
    for number, device, examples in replay.examples:
        row = devices.get(device)
        if row is None and device not in missing:
            missing.add(device)
            yield RunViolation("fleet", number, f"{device} was selected, and is not registered")
        elif row is not None and examples > row.examples_cap:
            cap = f"its registration allows {row.examples_cap}"
            yield RunViolation("fleet", number, f"{device} counts with {examples} examples, and {cap}")
    selected = {device: number for number, device, _ in reversed(replay.examples)}
    for device, row in devices.items():
        yield from _kinds("devices", row, selected[device])
    workers = {row.worker: row for row in reader.workers()}
    leased = {worker: number for number, worker in reversed(replay.leases)}
    for worker in workers.keys() & leased.keys():
        yield from _kinds("workers", workers[worker], leased[worker])
    for number, worker in replay.leases:
        if worker not in workers:
            yield RunViolation("fleet", number, f"worker {worker} had a lease, and is not registered")


def _kinds(table: str, row: DeviceRow | WorkerRow, number: int) -> Iterator[RunViolation]:
    """The fields that hold a value of another kind. ``number``: the first round that needs the row."""
    for name, value in fields_of_wrong_kind(row):
        yield RunViolation("fleet", number, f"{table}.{name} holds {shown(value)}")
