"""All runs of a database and its audit: the rows in one transaction, then the blobs of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from client_sdk import codecs
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.protocol.devices import said_class
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from coordinator.folding.refold import Readable
from coordinator.runtime.extensions import FindExtensions, installed
from coordinator.store.chain import AuditHead
from coordinator.store.port import Reader, RunRow, Store
from coordinator.store.rows import ALL_CLASSES, ClassRow, RunNameRow
from coordinator.verify.audit import AuditChecks, AuditWitness
from coordinator.verify.chains import Head
from coordinator.verify.files import HashedBlobs
from coordinator.verify.flower import flower_files, flower_rows, flower_runs
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
