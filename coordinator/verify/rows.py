"""Holds the stored rows of a run against those that its log gives, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from typing import Any, TypeVar

from pydantic import ValidationError

from coordinator.engine import state as states
from coordinator.engine.state import RunState
from coordinator.store.bodies import from_text, to_text
from coordinator.store.port import TERMINAL, CheckpointRow, ContributionRow, Json, Reader, RefusalRow, RoundRow, RunRow
from coordinator.verify.replay import Replay
from coordinator.verify.violation import RunViolation

R = TypeVar("R")

_UNLOGGED = ("late", "stale", "duplicate", "withdrawn", "invalid-update", "not-selected", "lease-lost")
"""Kinds of refusals that change no state, so that no event shows them. Those of acknowledged updates are
*abandoned*."""
_LOGGED = ("advance", "unbar")
"""Actions of the audit that the log gives too. The others are requests of operators."""
_SHOWN = 60
_HIGHEST_FENCE = 1 << 40
"""Each commit raises the fence by one, and so does each attempt that failed."""


def differing_rows(
    reader: Reader, row: RunRow, replay: Replay, stored_rounds: Sequence[RoundRow], line: Sequence[CheckpointRow]
) -> Iterator[RunViolation]:
    """What differs. Of a log that could not be followed to its end only the rounds that had ended by then are held
    against it."""
    yield from _rounds(replay, stored_rounds)
    yield from _per_round(reader, row.run, replay, stored_rounds)
    if not replay.whole:
        return
    yield from _line(replay, line)
    yield from compared(
        list(replay.expected.claims.values()),
        reader.claims(row.run),
        key=lambda claim: claim.device,
        round=lambda claim: claim.round,
        what=lambda claim: f"the assignment of {claim.device}",
        invariant="claims",
    )
    yield from _audit(reader, row.run, replay)
    scored = {key: number for key, (number, _) in replay.expected.metrics.items()}
    yield from compared(
        [item for _, item in replay.expected.metrics.values()],
        reader.metrics(row.run),
        key=lambda item: (item.version, item.source, item.name),
        round=lambda item: scored.get((item.version, item.source, item.name), replay.round_number),
        what=lambda item: f"the score {item.name} of version {item.version} by {item.source}",
    )
    yield from compared(
        [mark for _, mark in sorted(replay.expected.marks.items())],
        reader.marks_of_run(row.run),
        key=lambda mark: (mark.tensors, mark.device),
        round=lambda mark: mark.round,
        what=lambda mark: f"the mark of {mark.device} on the model {mark.tensors[:12]}",
    )
    yield from _run_row(row, replay)


def compared(
    expected: Sequence[R],
    stored: Sequence[R],
    *,
    key: Callable[[R], Hashable],
    round: Callable[[R], object],
    what: Callable[[R], str],
    invariant: str = "rows",
) -> Iterator[RunViolation]:
    """Findings for rows that are missing, in excess, doubled, or that differ in a field."""
    wanted = {key(row): row for row in expected}
    seen: set[Hashable] = set()
    for row in stored:
        name, number = key(row), _int(round(row))
        if name in seen:
            yield RunViolation(invariant, number, f"{what(row)} is stored twice")
        elif name not in wanted:
            yield RunViolation(invariant, number, f"{what(row)} is stored, and the log does not give it")
        elif wanted[name] != row:
            yield RunViolation(invariant, _int(round(wanted[name])), f"{what(row)}: {_difference(wanted[name], row)}")
        seen.add(name)
    for row in expected:
        if key(row) not in seen:
            yield RunViolation(invariant, _int(round(row)), f"{what(row)} is not stored, and the log gives it")


def _audit(reader: Reader, run: str, replay: Replay) -> Iterator[RunViolation]:
    logged = [row for row in reader.audit(run) if row.action in _LOGGED]
    for item, stored in zip_longest(replay.expected.audit, logged):
        if item is None:
            what = f"the audit has an action that the log does not give: {stored.action} by {stored.by}"
            yield RunViolation("rows", replay.round_number, what)
        elif stored is None:
            yield RunViolation("rows", item[0], f"the audit lacks an action that the log gives: {item[1].action}")
        elif item[1] != stored:
            yield RunViolation("rows", item[0], f"the audit's {item[1].action}: {_difference(item[1], stored)}")


def _rounds(replay: Replay, stored: Sequence[RoundRow]) -> Iterator[RunViolation]:
    expected = replay.expected.rounds
    if not replay.whole:
        expected = {number: row for number, row in expected.items() if row.status in TERMINAL}
        stored = [row for row in stored if row.round in expected]
    wanted = {number: replace(row, body=from_text(to_text(row.body))) for number, row in expected.items()}
    yield from compared(
        list(wanted.values()),
        stored,
        key=lambda row: row.round,
        round=lambda row: row.round,
        what=lambda row: "its row",
    )
    for row in stored:
        if wanted.get(row.round) == row and _sorted(wanted[row.round].body) != _sorted(row.body):
            yield RunViolation("rows", row.round, "its row holds a number as another kind of value")


def _per_round(reader: Reader, run: str, replay: Replay, stored: Sequence[RoundRow]) -> Iterator[RunViolation]:
    """The contributions and refusals of each round."""
    expected, counts = replay.expected, reader.rows_by_round(run)
    kinds = {row.round: row.kind for row in stored}
    numbers = {*counts["contributions"], *counts["refusals"], *expected.contributions, *expected.refusals}
    if not replay.whole:
        numbers &= {number for number, row in expected.rounds.items() if row.status in TERMINAL}
    for number in sorted(numbers, key=_int):
        yield from compared(
            expected.contributions.get(number, []),
            reader.contributions(run, number),
            key=lambda item: item.device,
            round=lambda item: item.round,
            what=lambda item: f"the contribution of {item.device}",
        )
        opened = expected.rounds.get(number)
        cohort = set() if opened is None else set(_list(opened.body.get("cohort")))
        cohort |= {worker for leased, worker in replay.leases if leased == number}  # an owner may have advanced it
        refusals = reader.refusals(run, number)
        yield from _refusals(number, expected.refusals.get(number, []), refusals, cohort, kinds.get(number))
        yield from _refused_and_counted(number, refusals, reader.contributions(run, number))


def _refusals(
    number: int, expected: Sequence[RefusalRow], stored: Sequence[RefusalRow], cohort: set[object], kind: str | None
) -> Iterator[RunViolation]:
    left = list(stored)
    for row in expected:
        if row in left:
            left.remove(row)
        else:
            yield RunViolation(
                "rows", number, f"the refusal of {row.device}'s update, as the log gives it, is not stored"
            )
    for row in left:
        if row.kind not in _UNLOGGED:
            yield RunViolation(
                "rows", number, f"a refusal of {row.device} as {row.kind!r} is stored that the log does not give"
            )
        elif kind is None:
            yield RunViolation("rows", number, f"a refusal of {row.device} is stored, and the log has no such round")
        elif kind != "datacenter" and row.device not in cohort:
            yield RunViolation("rows", number, f"a refusal of {row.device} is stored, which was not selected")


def _refused_and_counted(
    number: int, refusals: Sequence[RefusalRow], counted: Sequence[ContributionRow]
) -> Iterator[RunViolation]:
    """An update that counts was not refused: its device got a receipt, also when it sent the same bytes again."""
    counts = {(row.device, row.digest) for row in counted}
    for row in refusals:
        if (row.device, row.digest) in counts:
            yield RunViolation("3", number, f"the update of {row.device} counts, and a refusal of it is stored")


def _line(replay: Replay, line: Sequence[CheckpointRow]) -> Iterator[RunViolation]:
    first = line[0].bytes if line else 0
    expected = [replace(row, bytes=first) if row.version == 0 else row for row in replay.expected.checkpoints]
    yield from compared(
        expected,
        line,
        key=lambda row: row.version,
        round=lambda row: row.round or 1,
        what=lambda row: f"version {row.version}",
    )


def _run_row(row: RunRow, replay: Replay) -> Iterator[RunViolation]:
    """The run's own row: its name, its fence, its snapshot."""
    state, now = replay.state, replay.round_number
    if row.name != state.plan.name:
        yield RunViolation("rows", now, f"the run's name is {row.name!r}, its plan's {state.plan.name!r}")
    if not isinstance(row.fence, int) or row.fence < replay.fences:
        yield RunViolation("rows", now, f"the run's fence is {row.fence}, and {replay.fences} commits each raised it")
    elif row.fence > _HIGHEST_FENCE:
        yield RunViolation("rows", now, f"the run's fence is {row.fence}, which no coordinator reaches by steps of one")
    yield from _snapshot(row, replay, state)


def _snapshot(row: RunRow, replay: Replay, state: RunState) -> Iterator[RunViolation]:
    """The snapshot is the state after its event, and of the round under way: each round that opens writes one."""
    now = replay.round_number
    if row.snapshot is None:
        if row.snapshot_seq or now:
            yield RunViolation("snapshot", now, f"the snapshot of event {row.snapshot_seq} is missing")
        return
    try:
        stored = states.from_json(row.snapshot)
    except (ValidationError, TypeError, ValueError):
        yield RunViolation("snapshot", now, "the snapshot cannot be read")
        return
    if stored is None:
        yield RunViolation("snapshot", now, "the snapshot is of another format than this version writes")
        return
    found = replay.at_snapshot
    if found is None:
        yield RunViolation("snapshot", now, f"the snapshot is of event {row.snapshot_seq}, which the log does not have")
    elif stored != found:
        names = ", ".join(_names_that_differ(found, stored))
        yield RunViolation("snapshot", now, f"the snapshot is not the state after event {row.snapshot_seq}: {names}")
    elif (found.round_number, found.round is None) != (state.round_number, state.round is None):
        yield RunViolation(
            "snapshot", now, f"the snapshot is of round {found.round_number}, and the run at round {now}"
        )


def _sorted(body: Json) -> str:
    """The body as text: 1, 1.0 and true differ."""
    return json.dumps(body, sort_keys=True)


def _difference(expected: object, stored: object) -> str:
    return "; ".join(
        f"{name} is {_shown(getattr(stored, name))}, the log gives {_shown(getattr(expected, name))}"
        for name in _names_that_differ(expected, stored)
    )


def _names_that_differ(one: Any, other: Any) -> list[str]:
    return [item.name for item in fields(one) if getattr(one, item.name) != getattr(other, item.name)]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _list(value: object) -> list[object]:
    return value if isinstance(value, list | tuple) else []  # type: ignore[return-value]


def _int(value: object) -> int:
    """The number of a round, whatever is stored in its place."""
    return value if isinstance(value, int) else 0
