"""The rows of rounds as people see them, by the account of the log that is made without ``step``: when each round
opened and ended, its attempt, its reason and its numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from client_sdk.metrics import Tally, added
from coordinator.engine.aggregation.section import is_capped
from coordinator.engine.named_tensors import CLIP, WITHIN
from coordinator.engine.plan import Plan
from coordinator.store.port import TERMINAL, CheckpointRow, EventRow, RoundRow
from coordinator.verify.kinds import UNREADABLE, in_bodies
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.violation import RunViolation

_TEXTS = ("because", "departures", "exhausted", "excluded")
"""What a row says in words of the engine, and of whom: the replay alone has them."""
PLAIN = ("federated", "buffered")
"""The kinds of rounds whose updates come in the clear."""
_OPENING = ("Created", "Resumed", "Tick")
"""By which a round opens, if not by the end of the one before."""


class RoundTimes:
    """A round ends, and the next one opens, by one of the events from the last that names it to the first of a later
    one. ``add`` takes the next event."""

    def __init__(self) -> None:
        self._round = 0
        self._last: dict[int, list[EventRow]] = {0: []}

    def add(self, event: EventRow) -> None:
        number: Any = event.body.get("round", 0)
        later = event.kind == "Discarded" or bool(event.body.get("late"))  # of a round that was over before
        if not later and 0 < number >= self._round:
            self._round = number
            self._last[number] = []
        self._last[self._round].append(event)

    def findings(self, rounds: Mapping[int, RoundRow]) -> Iterator[RunViolation]:
        for number, row in rounds.items():
            if row.status in TERMINAL and row.closed_at not in {event.at for event in self._until(number)}:
                yield RunViolation("4", number, f"it ended at {row.closed_at}, when nothing happened in its log")
            before = rounds.get(number - 1)
            times = {event.at for event in self._until(number - 1) if event.kind in _OPENING}
            if row.opened_at not in times | ({before.closed_at} if before is not None else set()):
                yield RunViolation("4", number, f"it opened at {row.opened_at}, when no other round ended")

    def _until(self, number: int) -> list[EventRow]:
        return self._last[max((named for named in self._last if named <= number), default=0)]


def against_row(
    row: RoundRow, logged: LoggedRound, plan: Plan, checkpoint: CheckpointRow | None, weights: Mapping[str, int]
) -> Iterator[RunViolation]:
    """What speaks against the row of a round that is over. ``weights``: of the updates that count in it."""
    starts = (logged.attempt, logged.attempt + (row.kind == "secure" and checkpoint is None))  # before it is announced
    if row.attempt not in starts:
        yield RunViolation("4", row.round, f"it ended in attempt {row.attempt}, and the log in {logged.attempt}")
    if bool(row.reason) != (checkpoint is None):
        yield RunViolation("4", row.round, f"it is {row.status}, and the reason is {row.reason!r}")
    try:
        gives = _body(row.kind, logged, plan, checkpoint, weights)
    except UNREADABLE as error:
        yield RunViolation("4", row.round, f"its reports cannot be added: {error}")
        return
    has = {name: value for name, value in row.body.items() if name not in _TEXTS}
    if checkpoint is None:  # weights of updates that do not count, and how far a round was, are in no log
        unknown = ("weight", "metrics", "lease", "secure", *(("funnel", "bytes_in") if row.kind not in PLAIN else ()))
        gives, has = ({key: one[key] for key in one if key not in unknown} for one in (gives, has))
    elif isinstance(secure := has.get("secure"), dict):
        has["secure"] = {name: secure.get(name) for name in gives.get("secure", ())}
    for what in in_bodies("its row's body", gives, has):
        yield RunViolation("4", row.round, what)


def _body(
    kind: str, logged: LoggedRound, plan: Plan, checkpoint: CheckpointRow | None, weights: Mapping[str, int]
) -> dict[str, Any]:
    reports = [(device, body) for device, body in logged.reports.items() if device in logged.reported]
    secure, commit, lease = logged.secure, logged.commit, logged.lease
    gone = logged.withdrawn - logged.reported.keys()
    body: dict[str, Any] = {
        "funnel": {
            "waiting": logged.draw.get("waiting", 0),
            "selected": len(logged.cohort),
            "training": len(logged.begun - gone - logged.expired),
            "reported": len(logged.reported),
            "withdrawn": len(gone),
        },
        "bytes_in": sum(logged.sent[device] for device in logged.reported),
        "weight": sum(weights.values()),
        "partial": sum("complete" not in report for _, report in reports),
        "metrics": Tally.total((one.get("metrics", {}), weights.get(device, 0), {}) for device, one in reports).means(),
        "version": None if checkpoint is None else checkpoint.version,
        "digest": None if checkpoint is None else checkpoint.digest,
        "pool": logged.draw.get("pool"),
        "cohort": sorted(logged.cohort),
        **{name: commit[name] for name in ("zero_sum", "raised", "rounding") if commit.get(name)},
    }
    if plan.privacy is not None and plan.privacy.adapt is not None and logged.learned:
        small = commit.get("small", {})
        body |= {"clip_after": small.get(CLIP), "within": small.get(WITHIN)}
    if kind == "buffered":
        late = Counter(logged.staleness[device] for device in logged.reported)
        body["staleness"] = [late[behind] for behind in range(max(late, default=-1) + 1)]
        body |= {"pools": logged.pools} if logged.pools else {}
        body |= {"since": dict(sorted(logged.since.items()))} if logged.since else {}
    if logged.missed:
        body |= {"missed": len(logged.missed), "missed_at": logged.missed[-1]}
    states = [one.get("held_out_states", {}) for _, one in reports if "held_out_examples" in one]
    if checkpoint is not None and (names := {name for one in states for name in one}):
        body["states"] = {name: added([one[name] for one in states if name in one]) for name in sorted(names)}
    treated = [
        {**one["treated"], "capped": is_capped(plan.aggregation, one.get("examples", 0), one["treated"]["capped"])}
        for _, one in reports
    ]
    if any(any(one.values()) for one in treated):
        counts = ("clipped", "capped", "statistics_cut")
        body["treatment"] = {name: sum(one[name] for one in treated) for name in counts}
        body["treatment"]["rounding"] = max(one["rounding"] for one in treated)
    if kind == "secure" and logged.drawn_at is not None:
        body["weight"] = secure.weight
        body["secure"] = {
            "attempts": logged.attempt + 1,
            "roster": len(secure.roster),
            "threshold": max((group["threshold"] for group in secure.groups), default=0),
            "signers": max((group["signers"] for group in secure.groups), default=0),
            **({"groups": len(secure.groups)} if len(secure.groups) > 1 else {}),
            "opened": bool(secure.opened),
        }
    if logged.taken is not None:
        body |= {"bytes_in": commit["bytes"], "metrics": commit["metrics"]}
        body["lease"] = {name: lease[name] for name in ("worker", "attempt", "fence")}
        body["lease"] |= {"since_at": lease["at"], "seen_at": logged.committed_at}
        body["lease"] |= {"step": commit["steps"], "metrics": commit["metrics"]}
    return body
