"""Doctorings of events, of their order and of their links."""

from __future__ import annotations

import json

from coordinator.engine.plan import Plan
from tests.coordinator.verify.doctorings.table import doctoring, event_says, statement
from tests.coordinator.verify.history import Doctor

statement("last-event-deleted", 6, "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")


@doctoring
def last_event_deleted_and_the_run_says_so(d: Doctor) -> int:
    d.sql("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'Reported')")
    d.sql("UPDATE events SET seq = seq - 1 WHERE seq > (SELECT max(seq) - 2 FROM events)")
    d.sql("UPDATE runs SET seq = seq - 1")
    return 6


statement("event-in-the-middle-deleted", 4, "DELETE FROM events WHERE seq = ?", lambda d: d.event("Reported", 4))


@doctoring
def two_events_swapped(d: Doctor) -> int:
    """The commit before the last report of its round."""
    commit = d.event("Committed", 4)
    d.swap_events(commit - 1, commit)
    return 4


@doctoring
def reports_swapped(d: Doctor) -> int:
    """Two devices' reports, bodies and all: each counts as before."""
    first = d.event("Reported", 4)
    times = [d.one("SELECT at FROM events WHERE seq = ?", seq) for seq in (first, first + 1)]
    d.swap_events(first, first + 1)
    d.sql("UPDATE events SET at = ? WHERE seq = ?", times[0], first)
    d.sql("UPDATE events SET at = ? WHERE seq = ?", times[1], first + 1)
    return 4


statement(
    "event-of-another-time", 4, "UPDATE events SET at = at - 100 WHERE seq = ?", lambda d: d.event("Reported", 4) + 1
)


@doctoring
def newest_model_is_the_first_one_in_the_log_too(d: Doctor) -> int:
    """In the checkpoint, in the round's row and in the log's commit, size and state included."""
    digest, size, state = d.digest(1), d.one("SELECT bytes FROM checkpoints WHERE version = 1"), d.one(
        "SELECT named_tensors FROM checkpoints WHERE version = 1")  # fmt: skip
    d.sql("UPDATE checkpoints SET digest = ?, bytes = ?, named_tensors = ? WHERE version = 4", digest, size, state)
    d.set_in("rounds", "body", "digest", digest, "round = 5")
    for name, value in (("digest", digest), ("bytes", size), ("named_tensors", json.loads(state))):
        d.set_in("events", "body", name, value, "seq = ?", d.event("Committed", 5))
    return 5


event_says("device-that-withdrew-without-a-reason", 6, "Withdrew", "reason", "")
statement("link-changed", 4, "UPDATE events SET link = ? WHERE seq = ?", "0" * 64, lambda d: d.event("Reported", 4))


@doctoring
def plan_and_its_digest_of_a_lower_quorum(d: Doctor) -> int:
    """Also in the snapshot, so that the coordinator goes on with it."""
    plan = json.loads(d.one("SELECT plan FROM runs"))
    plan["cohort"]["quorum"] = 0.5
    d.sql("UPDATE runs SET plan = ?, plan_digest = ?", json.dumps(plan), Plan.parse(plan).digest)
    d.set_in("runs", "snapshot", "plan.cohort.quorum", 0.5, "TRUE")
    return 1


@doctoring
def two_rounds_swapped(d: Doctor) -> int:
    """All events of round 4 after those of round 5."""
    start, turn, end = d.event("Drawn", 4), d.event("Drawn", 5), d.event("Drawn", 6)
    d.sql("UPDATE events SET seq = -seq WHERE seq >= ? AND seq < ?", start, end)
    d.sql("UPDATE events SET seq = -seq + ? WHERE seq <= ? AND seq > ?", end - turn, -start, -turn)
    d.sql("UPDATE events SET seq = -seq - ? WHERE seq < 0", turn - start)
    return 4


@doctoring
def event_of_an_unknown_kind(d: Doctor) -> int:
    d.sql("INSERT INTO events (run, seq, at, kind, body) SELECT run, seq + 1, 1e6, 'Blessed', '{}' FROM runs")
    d.sql("UPDATE runs SET seq = seq + 1")
    return 6


statement("event-kind-changed", 6, "UPDATE events SET kind = 'Started' WHERE seq = ?", lambda d: d.event("Withdrew", 6))
statement("event-without-its-body", 4, "UPDATE events SET body = '{' WHERE seq = ?", lambda d: d.event("Reported", 4))


@doctoring
def late_report_put_into_the_log(d: Doctor) -> int:
    d.make_room(d.event("Drawn", 5))
    report = d.event("Reported", 4)
    body = d.body_of(report) | {"device": d.one("SELECT device FROM refusals WHERE round = 4"), "digest": "0" * 64}
    d.sql("INSERT INTO events (run, seq, at, kind, body) SELECT run, ?, at, kind, ? FROM events WHERE seq = ?",
          d.event("Drawn", 5) - 1, json.dumps(body), report)  # fmt: skip
    return 4


@doctoring
def last_event_doubled(d: Doctor) -> int:
    d.sql("INSERT INTO events (run, seq, at, kind, body) SELECT run, seq + 1, at, kind, body FROM events "
          "WHERE seq = (SELECT max(seq) FROM events)")  # fmt: skip
    d.sql("UPDATE runs SET seq = seq + 1")
    return 6


event_says("report-with-more-examples", 4, "Reported", "examples", 900)
event_says("report-with-other-metrics", 4, "Reported", "metrics", {"loss": 0.01})


@doctoring
def cohort_of_the_forgers_choice(d: Doctor) -> int:
    """In the log and in the round's row: a device that was not drawn, in place of one that has not reported."""
    seq = d.event("Drawn", 4)
    cohort = [device for device, _ in d.body_of(seq)["cohort"]]
    counted = d.all("SELECT device FROM contributions WHERE round = 4")
    late = d.all("SELECT device FROM refusals WHERE round = 4")
    out = next(device for device in cohort if device not in counted)
    other = next(device for device in d.all("SELECT device FROM devices") if device not in cohort)
    chosen = sorted({*cohort, other} - {out})
    d.set_in("events", "body", "cohort", [[device, 10] for device in chosen], "seq = ?", seq)
    d.set_in("rounds", "body", "cohort", chosen, "round = 4")
    if late:
        d.sql("UPDATE refusals SET device = ? WHERE round = 4", other)
    return 4


@doctoring
def fence_issued_twice(d: Doctor) -> int:
    d.set_in("events", "body", "fence", 1, "seq = ?", d.event("Leased", 3) + 1)
    return 3


event_says("result-by-another-worker", 3, "Delivered", "worker", "w0")
event_says("made-of-another-parent", 5, "Committed", "evidence.parent", lambda d: d.digest(1))
event_says(
    "made-with-another-state-of-the-optimizer",
    5,
    "Committed",
    "evidence.named_tensors.server-optimizer",
    lambda d: d.digest(1),
)
event_says("made-of-other-updates", 5, "Committed", "evidence.updates", lambda d: d.digest(1))
statement(
    "commit-without-evidence",
    5,
    "UPDATE events SET body = json_remove(body, '$.evidence') WHERE seq = ?",
    lambda d: d.event("Committed", 5),
)
event_says("result-of-another-parent", 3, "Delivered", "evidence.parent", "0" * 64)
statement(
    "result-without-evidence",
    3,
    "UPDATE events SET body = json_remove(body, '$.evidence') WHERE seq = ?",
    lambda d: d.event("Delivered", 3),
)

event_says("root-of-the-tree-of-who-waited", 4, "Drawn", "root", "ab" * 32)
event_says("examples-of-who-waited", 4, "Drawn", "examples", 81)
event_says("count-of-who-waited", 4, "Drawn", "waiting", 9)
