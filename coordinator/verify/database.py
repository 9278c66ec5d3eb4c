"""All runs of a database, with and without a plan, and its audit: the rows in one transaction, then the blobs of
runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

from client_sdk import codecs
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.flower.work import node_id
from client_sdk.protocol.devices import said_class
from coordinator.blobs import BlobError
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from coordinator.folding.refold import Readable, short
from coordinator.runtime.extensions import FindExtensions, installed
from coordinator.runtime.flower.retention import ENDED_S
from coordinator.store.chain import AuditHead
from coordinator.store.flower_rows import FlowerMessageRow, FlowerRunRow
from coordinator.store.port import Reader, RunRow, Store
from coordinator.store.rows import ALL_CLASSES, ClassRow, RunNameRow
from coordinator.verify.audit import AuditChecks, AuditWitness
from coordinator.verify.chains import FlowerChain, Head
from coordinator.verify.files import HashedBlobs
from coordinator.verify.identities import IdentityChecks
from coordinator.verify.kinds import (
    UNREADABLE,
    every_device,
    fields_of_wrong_kind,
    is_text,
    latest_round,
    shown,
    wrong_kinds,
)
from coordinator.verify.ledger import against_audit
from coordinator.verify.rounds import CountedIn
from coordinator.verify.run import OnProgress, RunChecks, no_progress
from coordinator.verify.violation import CannotVerify, RunViolation, Violation, printable

# ------------------------------------------------------------ Flower runs
# Holds Flower runs against what they promise: messages, replies and the end continue their chain, a message is to the
# node of its device, a reply came in its time and counts once, the contents that rows name are there with their bytes,
# and nothing came after the end of its run.
#
# Retention deletes contents, which no link holds: those that nothing needs, and a day after the end of a run all of
# them, which the run's row says then.


_NAME = "flower"
_FLOWER_PAGE = 1000


def flower_runs(reader: Reader) -> list[FlowerRunRow]:
    """The Flower runs whose rows can be read."""
    return [row for run in reader.flower_run_ids() if (row := _row(reader, run)) is not None]


def _row(reader: Reader, run: str) -> FlowerRunRow | None:
    try:
        return reader.flower_run(run)
    except UNREADABLE:
        return None


def flower_rows(
    reader: Reader, heads: Sequence[Head] = (), reached: Callable[[Head], None] | None = None
) -> Iterator[Violation]:
    """What is wrong in the rows of Flower runs. ``heads``: links of their chains that were written down outside;
    ``reached`` gets those at which they end now."""
    planned = set(reader.run_ids())
    for run in reader.flower_run_ids():
        row = _row(reader, run)
        if row is None:
            yield Violation(_NAME, run, 0, "the run's row holds what is not JSON")
            continue
        if run in planned:
            yield RunViolation(_NAME, row.rounds, "a run with a plan has its name too").of(row.run)
        try:
            for finding in _of_run(reader, row, [head for head in heads if head.run == row.run]):
                yield finding.of(row.run)
        except UNREADABLE:
            yield Violation(_NAME, row.run, 0, "a row of the run holds a value of another kind, and cannot be read")
        if reached is not None and row.seq:
            reached(Head(row.run, row.seq, row.link))


def flower_files(newest: Reader, blobs: HashedBlobs) -> Iterator[Violation]:
    """Contents whose bytes are missing, or are others. ``newest``: rows that are not of one moment, since a coordinator
    may delete a content while blobs are read."""
    for row in flower_runs(newest):
        after = ""
        while page := newest.flower_contents(row.run, after, _FLOWER_PAGE):
            for content in page:
                try:
                    digest, size = blobs.found(content.digest)
                except BlobError as error:
                    if newest.flower_content(row.run, content.digest) is not None:
                        what = f"the content {short(content.digest)} cannot be read: {error}"
                        yield RunViolation(_NAME, row.rounds, what).of(row.run)
                    continue
                if (digest, size) != (content.digest, content.bytes):
                    what = (
                        f"the content {short(content.digest)} of {content.bytes} bytes has {size} bytes of the digest "
                        f"{short(digest)}"
                    )
                    yield RunViolation(_NAME, row.rounds, what).of(row.run)
            after = page[-1].digest


def _of_run(reader: Reader, row: FlowerRunRow, heads: Sequence[Head]) -> Iterator[RunViolation]:
    if row.over != (row.ended_at is not None):
        yield RunViolation(_NAME, row.rounds, f"it is {row.status}, and its end is {row.ended_at}")
    if row.dropped_at is not None:
        if row.ended_at is None:
            yield RunViolation(_NAME, row.rounds, "its contents were dropped, and it has not ended")
        elif row.dropped_at < row.ended_at + ENDED_S:
            yield RunViolation(_NAME, row.rounds, "its contents were dropped earlier than retention does it")
        if reader.flower_contents(row.run, "", 1):
            yield RunViolation(_NAME, row.rounds, "it has contents after they were dropped")
    elif row.state is not None and reader.flower_content(row.run, row.state) is None:
        yield RunViolation(_NAME, row.rounds, f"it has no content {short(row.state)}, which is the ServerApp's state")
    chain, counts = FlowerChain(row, heads), {"messages": 0, "rounds": 0, "replies": 0, "errors": 0}
    after, latest_at = 0, 0.0
    while page := reader.flower_messages(row.run, after, _FLOWER_PAGE):
        named = {message.content for message in page} | {one.reply for one in page if one.reply is not None}
        sizes = None if row.dropped_at is not None else reader.flower_contents_among(row.run, named)
        for place, message in enumerate(page, counts["messages"] + 1):
            if message.position != place:
                yield RunViolation(_NAME, message.round, f"a message has the place {message.position}, not {place}")
            for what in _message(row, message, sizes):
                yield RunViolation(_NAME, message.round, f"message {short(message.message)} {what}")
            yield from chain.add(message)
            counts["rounds"] = max(counts["rounds"], message.round)
            counts["replies"] += message.reply is not None
            counts["errors"] += message.code is not None
            latest_at = max(latest_at, message.created_at, message.replied_at or 0.0)
        after, counts["messages"] = page[-1].position, counts["messages"] + len(page)
    yield from chain.end()
    for what, count in counts.items():
        if getattr(row, what) != count:
            yield RunViolation(_NAME, row.rounds, f"it has counted {getattr(row, what)} {what}, and has {count}")
    if row.latest_at != latest_at:
        what = f"its last message or reply came at {latest_at}, and its row has {row.latest_at}"
        yield RunViolation(_NAME, row.rounds, what)


def _message(row: FlowerRunRow, message: FlowerMessageRow, sizes: Mapping[str, int] | None) -> Iterator[str]:
    """What speaks against a message or its reply. ``sizes``: of the contents that are there; None: they were
    dropped."""
    if message.node != node_id(message.device):
        yield f"is to node {message.node}, which is not {message.device}"
    if row.ended_at is not None and message.created_at > row.ended_at:
        yield "was pushed after the end of the run"
    if message.replied_at is None:
        named = (message.reply, message.reply_bytes, message.code, message.reason)
        if named != (None, 0, None, "") or (message.reply_seq, message.reply_link) != (0, ""):
            yield "has a reply that came at no time"
        if sizes is not None and message.content not in sizes:
            yield f"waits, and its content {short(message.content)} is not there"
        return
    if (message.reply is None) == (message.code is None):
        yield "has both a content and an error as its reply, or neither"
    if row.ended_at is not None and message.replied_at > row.ended_at:
        yield "has a reply that came after the end of the run"
    if message.replied_at >= message.expires_at:
        yield "has a reply that came after its time"
    if sizes is None or message.reply is None:
        return
    if message.reply not in sizes:
        yield f"has the reply {short(message.reply)}, which is not there"
    elif sizes[message.reply] != message.reply_bytes:
        yield f"counts {message.reply_bytes} bytes of its reply, whose content has {sizes[message.reply]}"


# ------------------------------------------------------------ database


_NOTHING_KNOWN = AuditWitness()
_PAGE, _ALL = 5000, 1 << 30


def verify(
    store: Store,
    blobs: Readable | None = None,
    extensions: FindExtensions = installed,
    note: Callable[[str], None] | None = None,
    heads: Sequence[Head] = (),
    reached: Callable[[Head | AuditHead], None] | None = None,
    audit: AuditWitness = _NOTHING_KNOWN,
    progress: OnProgress = no_progress,
    authorities: Collection[TrustedAuthority] = (),
) -> Iterator[Violation]:
    """Yields all violations, run by run. Without ``blobs`` invariants 5 and 10 and the draws are not checked.

    ``note`` gets a sentence for what could not be checked. ``heads``: links that were written down outside, which the
    logs must have; ``audit``: the keys that sign the audit, and its heads; ``reached`` gets the links and the head at
    which the logs, the refusals and the audit end now; ``progress`` how far it is; ``authorities``: those whose
    signatures are checked. CannotVerify, before the first
    violation, where a rule, a server optimizer or a codec is not installed."""
    found: list[Violation] = []
    checked: list[RunChecks] = []
    counted: CountedIn = {}
    of_audit, identities = AuditChecks(audit), IdentityChecks(authorities)
    for text in store.damage():
        yield Violation("rows", "", 0, printable(f"the database's file is damaged: {text}"))
    with store.reading() as reader:
        found += of_audit.findings(reader)
        found += _identities(identities, reader)
        found += _budgets(reader)
        ends: list[Head] = []
        found += flower_rows(reader, heads, ends.append)
        runs = reader.runs_named()
        of_flower = {row.run: row for row in flower_runs(reader)}
        found += [_gone(head) for head in heads if head.run not in runs and head.run not in of_flower]
        for run in runs:
            if not is_text(run):
                found.append(RunViolation("orphan", 0, "rows name a run by what is no UTF-8").of(printable(run)))
                continue
            row = _run_row(reader, run, found)
            if row is None:
                continue
            if not reader.of_run(RunNameRow, run):
                found.append(Violation("orphan", run, 0, "its name is not taken: another run could be given it"))
            if blobs is not None:
                _require_extensions(row, extensions)
            checks = RunChecks(row, [head for head in heads if head.run == run], counted, progress)
            found += _readable(checks.rows(reader), reader, run)
            checked.append(checks)
        found += identities.without_certificate([set(checks.took_part()) for checks in checked])
        if not found:  # or these rows are not what was counted
            found += _classes(reader)
    yield from found
    if blobs is not None:
        yield from flower_files(store, HashedBlobs(blobs))
    if note is not None:
        dropped = [f"run {row.run}: retention has deleted its contents" for row in of_flower.values() if row.dropped_at]
        for text in (*of_audit.notes(), *identities.notes(), *dropped):
            note(text)
    for checks in checked:
        if blobs is not None:
            yield from _readable(checks.files(HashedBlobs(blobs), store, extensions), store, checks.row.run)
        if note is not None:
            for text in checks.notes():
                note(text)
        if reached is not None:
            for head in checks.heads:
                reached(head)
    if reached is not None:
        for end in ends:
            reached(end)
        if of_audit.head is not None:
            reached(of_audit.head)


def _readable(findings: Iterator[RunViolation], reader: Reader, run: str) -> Iterator[Violation]:
    """The findings of a run's checks. Where a check cannot go on because of values that are not of their columns'
    kinds, these values; an error without such a value passes through."""
    try:
        for finding in findings:
            yield finding.of(run)
    except UNREADABLE:
        wrong = list(wrong_kinds(reader, run))
        if not wrong:
            raise
        for finding in wrong:
            yield finding.of(run)


def _identities(checks: IdentityChecks, reader: Reader) -> Iterator[Violation]:
    """Its findings, up to a row that cannot be read."""
    try:
        yield from checks.findings(reader)
    except UNREADABLE:
        yield Violation("identity", "", 0, "a row of a device, worker, list, key or the audit cannot be read")


def _budgets(reader: Reader) -> Iterator[Violation]:
    try:
        yield from against_audit(reader)
    except UNREADABLE:
        yield Violation("ledger", "", 0, "a row of a privacy ledger or the audit cannot be read")


def _classes(reader: Reader) -> Iterator[Violation]:
    """The numbers of classes that are not those of their devices."""
    counted: dict[str, Counter[str]] = {}
    try:
        devices = every_device(reader)
        while page := list(islice(devices, _PAGE)):
            took_part = reader.participation([row.device for row in page if row.left_at is None])
            for row in page:
                rounds = took_part[row.device].rounds if row.device in took_part else 0
                here = {"devices": 1, "heard": min(rounds, 1), "rounds": rounds}
                for name in (ALL_CLASSES, *([said_class(row.label)] if row.left_at is None else [])):
                    counted.setdefault(name, Counter()).update({"left": 1} if row.left_at is not None else here)
        stored = {row.device_class: row for row in (*reader.device_classes(_ALL), reader.all_classes())}
    except UNREADABLE:
        yield Violation("rows", "", 0, "a row of a device, or of a class of them, cannot be read")
        return
    for name in sorted(counted.keys() | stored.keys()):
        has, gives = stored.get(name, ClassRow(device_class=name)), counted.get(name, Counter())
        for number in ("devices", "heard", "rounds", *(("left",) if name == ALL_CLASSES else ())):
            if getattr(has, number) != gives[number]:
                which = "all devices" if name == ALL_CLASSES else f"class {printable(name)!r}"
                text = f"{number} of {which} is {getattr(has, number)!r}, and the rows of devices give {gives[number]}"
                yield Violation("rows", "", 0, text)


def _gone(head: Head) -> Violation:
    return Violation("chain", head.run, head.update[0] if head.update else 0, "the run is gone")


def _run_row(reader: Reader, run: str, found: list[Violation]) -> RunRow | None:
    """The run's row; a violation where it is missing or cannot be read."""
    latest = latest_round(reader, run)
    try:
        row = reader.run(run)
    except ValueError:
        found.append(Violation("rows", run, latest, "the run's row holds what is not JSON"))
        return None
    if row is None:
        found.append(Violation("orphan", run, latest, "rows name this run, and its own row is missing"))
        return None
    wrong = dict(fields_of_wrong_kind(row))
    for name, value in wrong.items():
        found.append(RunViolation("rows", latest, f"runs.{name} holds {shown(value)}").of(run))
    return None if wrong else row


def _require_extensions(row: RunRow, extensions: FindExtensions) -> None:
    try:
        plan = Plan.parse(row.plan)
    except PlanError:
        return  # a violation, named where the rows are checked
    try:
        algorithm(plan, extensions(plan))
        codecs.get(plan.task.codec)
    except (PlanError, codecs.UnknownCodec) as error:
        raise CannotVerify(f"the updates of run {row.run} cannot be folded again here: {error}") from None
