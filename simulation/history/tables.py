"""Makes tables of a history: pandas frames, a text table, and a line with the run, its status and its scores.

pandas is imported when a frame is made; everything else works without it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from client_sdk.protocol.insight import DeviceParticipation
from client_sdk.protocol.names import size_text
from client_sdk.protocol.operators import TREATED, rounding_words
from coordinator.engine.secure.plan import said_of_bits
from coordinator.pictures import Curve
from coordinator.runtime.insight.participation import lateness
from coordinator.store.port import Reader
from simulation.history.folder import HistoryError
from simulation.history.recorded_run import RecordedRun
from simulation.history.rounds import DeviceWithdrawal, RoundExchange, RoundSummary, read_events

if TYPE_CHECKING:
    import pandas as pd


Table = Literal["rounds", "exchanges", "metrics", "participation", "withdrawals", "events"]

_MOST_SCORES = 6
_Item = TypeVar("_Item")
COLUMNS = (
    "round", "status", "selected", "reported", "counted", "late", "dropped", "withdrawn",
    "bytes", "seconds", "training",
)  # fmt: skip
"""Columns of the text table."""


def frame(history: RecordedRun, store: Reader, what: Table) -> pd.DataFrame:
    """One of the tables. HistoryError when there is no such table, or no pandas."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise HistoryError("Tables need pandas: pip install 'quorate[simulation]'.") from None
    match what:
        case "rounds":
            return _rounds(history, pd)
        case "exchanges":
            found = [dataclasses.asdict(one) for one in history.exchanges]
            return pd.DataFrame(found, columns=[field.name for field in dataclasses.fields(RoundExchange)])
        case "metrics":
            return _metrics(history, pd)
        case "participation":
            columns = [name for name in DeviceParticipation.model_fields if name != "device_class"]
            columns.insert(1, "class")
            rows = [one.model_dump() for one in history.participants]
            named = [{"class": row.pop("device_class"), **row} for row in rows]
            return pd.DataFrame(named, columns=columns).astype({"device": "str", "speed_s": "float64"})
        case "withdrawals":
            gone = [dataclasses.asdict(one) for one in history.withdrawals]
            return pd.DataFrame(gone, columns=[field.name for field in dataclasses.fields(DeviceWithdrawal)])
        case "events":
            began = history.created_at
            rows = [
                {"seq": row.seq, "at_s": row.at - began, "kind": row.kind, "body": json.dumps(row.body)}
                for row in read_events(store, history.run)
            ]
            return pd.DataFrame(rows, columns=["seq", "at_s", "kind", "body"])
        case _:
            known = "'rounds', 'exchanges', 'metrics', 'participation', 'withdrawals' or 'events'"
            raise HistoryError(f"There is no table {what!r}: give {known}.")


def _rounds(history: RecordedRun, pd: Any) -> pd.DataFrame:
    """One row a round; its training metrics are columns ``training.<name>``."""
    began = history.created_at
    names = [
        field.name
        for field in dataclasses.fields(RoundSummary)
        if field.name not in ("opened_at", "closed_at", "metrics")
    ]
    rows = []
    for row in history.rounds:
        plain = {name: getattr(row, name) for name in names}
        plain["refused_for"] = "; ".join(f"{count} x {reason}" for reason, count in (row.refused_for or {}).items())
        closed_s = None if row.closed_at is None else row.closed_at - began
        times = {"opened_s": row.opened_at - began, "closed_s": closed_s}
        rows.append(plain | times | {f"training.{name}": value for name, value in row.metrics.items()})
    made = pd.DataFrame(rows, columns=None if rows else names)
    floats = {name: "float64" for name in ("seconds", "wall_s", "opened_s", "closed_s", "rounding") if name in made}
    counts = dict.fromkeys(("version", "downloaded", "clipped", "capped", "partial", "statistics_cut"), "Int64")
    made = made.astype(floats | counts)
    front = [*names[: names.index("seconds")], "opened_s", "closed_s"]
    return made[front + [name for name in made.columns if name not in front]] if rows else made


def _metrics(history: RecordedRun, pd: Any) -> pd.DataFrame:
    began = history.created_at
    rows = [
        {
            "version": score.version,
            "source": score.source,
            "name": score.name,
            "value": score.value,
            "examples": score.examples,
            "at_s": score.at - began,
        }
        for score in history.metrics
    ]
    return pd.DataFrame(rows, columns=["version", "source", "name", "value", "examples", "at_s"])


# ------------------------------------------------------------ for people


def headline(history: RecordedRun) -> str:
    """The run, its status and its newest scores, in one line."""
    return " · ".join([f"run {history.run}: {standing(history)}", *newest_scores(history.curves)])


def standing(history: RecordedRun) -> str:
    """The status of the run, as text."""
    rounds, committed, wanted = history.rounds, len(history), history.plan.finish.rounds
    abandoned, missed = sum(row.status == "abandoned" for row in rounds), sum(row.missed for row in rounds)
    shown = f"{committed} of {wanted} rounds committed" + (f", {abandoned} abandoned" if abandoned else "")
    shown += f", {missed} selections found too few clients" if missed else ""
    status = "interrupted" if history.interrupted and history.status == "running" else history.status
    masks = "; secure rounds, simulated without masks" if history.unmasked else ""
    masks += "" if history.deterministic else "; the learner is declared not deterministic"
    if history.steps != "exact" or history.steps_reason:
        masks += f"; local steps: {history.steps}"
        masks += f", since {history.steps_reason}" if history.steps_reason else ""
    return f"{shown}, {status}" + (f" ({history.reason})" if history.reason else "") + masks


def newest_scores(curves: Mapping[tuple[str, str], Curve]) -> list[str]:
    """``name value`` of a few metrics, the newest value of each: central scores first, device classes left out. A value
    of an older version than the others is marked with its version."""
    shown = [key for key in curves if key[0] != "training" and not key[0].startswith("class.")]
    shown.sort(key=lambda key: (key[0] != "evaluator", key))
    newest = max((curves[key].versions[-1] for key in shown), default=0)
    scores = []
    for source, name in shown[:_MOST_SCORES]:
        curve = curves[source, name]
        whose = "" if source == "evaluator" else f" ({source})"
        when = "" if curve.versions[-1] == newest else f" at version {curve.versions[-1]}"
        scores.append(f"{name}{whose} {curve.values[-1]:.4g}{when}")
    return scores


def cells(row: RoundSummary) -> list[str]:
    """A round as the texts under ``COLUMNS``."""
    training = ", ".join(f"{name} {value:.4g}" for name, value in sorted(row.metrics.items()))
    counts = (row.selected, row.reported, row.counted, row.late, row.dropped, row.withdrawn)
    seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
    return [str(row.round), row.status, *map(str, counts), size_text(row.bytes), seconds, training]


def summary(history: RecordedRun, last: int) -> str:
    """Headline, the last rounds in columns, what was done to updates, why rounds were abandoned and why devices
    withdrew."""
    rounds = history.rounds
    lines = [headline(history)]
    if rounds:
        lines += ["", *columns([COLUMNS, *(cells(row) for row in rounds[-max(last, 1) :])])]
    if late := lateness(history.participants):
        lines += ["", f"{late}: docs/selection.md says what helps."]
    for title, reasons in (*treatment_of(history), *reasons_of(history)):
        lines += ["", title, *(f"  {reason}: {numbers}" for reason, numbers in reasons)]
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the cells in columns; numbers to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    left = {1, len(widths) - 1}
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def treatment_of(history: RecordedRun) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, pairs (what, when)) of what was done to the updates of all rounds; empty where nothing was."""
    rounds, found = history.rounds, []
    for name, text in TREATED.items():
        done = [(getattr(row, name), row) for row in rounds if getattr(row, name)]
        if done:
            count, updates = sum(number for number, _ in done), sum(row.reported for _, row in done)
            found.append((f"{count} of {updates} updates {text}", _numbers([row.round for _, row in done])))
    for is_masked in (False, True):
        rounded = {row.round: row.rounding for row in rounds if row.rounding and (row.kind == "secure") == is_masked}
        if rounded:
            text = rounding_words(max(rounded.values()), masked=is_masked)
            found.append((text, _numbers(list(rounded))))
    secure = history.plan.secure
    masked = [row for row in rounds if row.kind == "secure" and row.status == "committed" and row.counted]
    if secure is not None and masked:
        usual = sum(row.weight for row in masked) / sum(row.counted for row in masked)
        few = said_of_bits(
            secure, history.plan.aggregation, usual, round(sum(row.counted for row in masked) / len(masked))
        )
        found += [(few, _numbers([row.round for row in masked]))] if few else []
    zero = [row.round for row in rounds if row.zero_sum]
    found += [("the sum of the updates was zero", _numbers(zero))] if zero else []
    second = [row for row in rounds if row.duplicates]
    twice = f"{sum(row.duplicates for row in second)} second updates of a device, which may be two"
    found += [(twice, _numbers([row.round for row in second]))] if second else []
    raised = [row for row in rounds if row.raised]
    below = f"{sum(row.raised for row in raised)} values of statistics would have been below 0"
    found += [(below, _numbers([row.round for row in raised]))] if raised else []
    shown = [("What was done to updates:", found)]
    refused = [(reason, row.round) for row in rounds for reason, n in (row.refused_for or {}).items() for _ in range(n)]
    told = [(reason, f"{len(numbers)} in {_numbers(sorted(set(numbers)))}") for reason, numbers in _together(refused)]
    return [(title, what) for title, what in (*shown, ("Updates that were refused:", told)) if what]


def reasons_of(history: RecordedRun) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, pairs (reason, when)) of abandoned rounds and withdrawals, the most frequent first; empty without any."""
    rounds = history.rounds
    abandoned = _together((row.reason, row.round) for row in rounds if row.status == "abandoned")
    shown = [("Abandoned rounds:", [(reason, _numbers(numbers)) for reason, numbers in abandoned])]
    if any(row.withdrawn for row in rounds):
        withdrew = _together((one.reason, f"{one.device} in round {one.round}") for one in history.withdrawals)
        shown.append(("Devices that withdrew:", [(reason, _some(whose)) for reason, whose in withdrew]))
    return [(title, reasons) for title, reasons in shown if reasons]


def _together(happened: Iterable[tuple[str, _Item]], most: int = 8) -> list[tuple[str, list[_Item]]]:
    """Groups items by reason, the most frequent first, at most ``most`` reasons."""
    found: dict[str, list[_Item]] = {}
    for reason, item in happened:
        found.setdefault(reason, []).append(item)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [(reason.rstrip("."), items) for reason, items in ordered[:most]]


def _some(whose: list[str], most: int = 3) -> str:
    rest = f" and {len(whose) - most} more" if len(whose) > most else ""
    return ", ".join(whose[:most]) + rest


def _numbers(numbers: list[int], most: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    rest = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"round{'' if len(numbers) == 1 else 's'} {shown}{rest}"
