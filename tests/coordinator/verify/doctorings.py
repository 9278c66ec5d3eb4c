"""What somebody with a shell could change in a data folder: a table of functions, each of which returns the round that
``verify`` must name.

Rounds and events are those of ``history``. ``DOCTORINGS`` has the names in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from coordinator.engine.plan import Plan
from tests.coordinator.verify.history import Doctor

Doctoring = Callable[[Doctor], int]
DOCTORINGS: dict[str, Doctoring] = {}
RETAINED_ONLY = {"retained-update-deleted", "retained-update-flipped"}
"""Those that need raw updates of rounds that were committed."""

A_DEVICE = "(SELECT min(device) FROM contributions WHERE round = 4)"


def doctoring(function: Doctoring) -> Doctoring:
    DOCTORINGS[function.__name__.replace("_", "-")] = function
    return function


# ---------------------------------------------------------------- contributions


@doctoring
def contribution_deleted(d: Doctor) -> int:
    d.sql(f"DELETE FROM contributions WHERE round = 4 AND device = {A_DEVICE}")
    return 4


@doctoring
def contributions_digests_swapped(d: Doctor) -> int:
    one, other, _ = d.all("SELECT device FROM contributions WHERE round = 4 ORDER BY device")
    digests = [d.one("SELECT digest FROM contributions WHERE round = 4 AND device = ?", x) for x in (one, other)]
    d.sql("UPDATE contributions SET digest = ? WHERE round = 4 AND device = ?", digests[1], one)
    d.sql("UPDATE contributions SET digest = ? WHERE round = 4 AND device = ?", digests[0], other)
    return 4


@doctoring
def contribution_moved_to_another_round(d: Doctor) -> int:
    d.sql(f"UPDATE contributions SET round = 2 WHERE round = 4 AND device = {A_DEVICE}")
    return 4


@doctoring
def contribution_reweighed(d: Doctor) -> int:
    d.sql(f"UPDATE contributions SET weight = weight + 1 WHERE round = 4 AND device = {A_DEVICE}")
    return 4


@doctoring
def contribution_counted_twice(d: Doctor) -> int:
    d.lift("contributions")
    d.sql(f"INSERT INTO contributions SELECT * FROM contributions WHERE round = 4 AND device = {A_DEVICE}")
    return 4


@doctoring
def contribution_to_a_round_that_never_was(d: Doctor) -> int:
    d.sql(f"INSERT INTO contributions SELECT run, 99, device, digest, weight, 1 FROM contributions "
          f"WHERE round = 4 AND device = {A_DEVICE}")  # fmt: skip
    return 99


@doctoring
def contribution_and_report_of_another_device(d: Doctor) -> int:
    """In the contributions and in the log alike; the cohort's list stays."""
    device = d.one(f"SELECT {A_DEVICE}")
    other = d.one("SELECT min(device) FROM devices WHERE device NOT IN "
                  "(SELECT value FROM rounds, json_each(body, '$.cohort') WHERE round = 4)")  # fmt: skip
    d.sql("UPDATE contributions SET device = ? WHERE round = 4 AND device = ?", other, device)
    where = "kind = 'Reported' AND json_extract(body, '$.round') = 4 AND json_extract(body, '$.device') = ?"
    d.set_in("events", "body", "device", other, where, device)
    return 4


# ---------------------------------------------------------------- checkpoints


@doctoring
def line_forked(d: Doctor) -> int:
    d.lift("checkpoints")
    d.sql("UPDATE checkpoints SET parent_version = 1 WHERE version = 3")
    return 4


@doctoring
def two_checkpoints_of_one_version(d: Doctor) -> int:
    d.lift("checkpoints")
    d.sql("INSERT INTO checkpoints SELECT * FROM checkpoints WHERE version = 3")
    return 4


@doctoring
def newest_model_is_the_first_one(d: Doctor) -> int:
    """In the checkpoint and in the round's row; both blobs are whole."""
    d.sql("UPDATE checkpoints SET (digest, bytes) = (SELECT digest, bytes FROM checkpoints WHERE version = 1) "
          "WHERE version = 4")  # fmt: skip
    d.set_in("rounds", "body", "digest", d.digest(1), "round = 5")
    return 5


@doctoring
def commit_names_another_digest(d: Doctor) -> int:
    d.set_in("events", "body", "digest", d.digest(1), "seq = ?", d.event("Committed", 5))
    return 5


@doctoring
def result_names_another_digest(d: Doctor) -> int:
    d.set_in("events", "body", "digest", d.digest(1), "seq = ?", d.event("Delivered", 3))
    return 3


@doctoring
def checkpoint_of_another_size(d: Doctor) -> int:
    d.sql("UPDATE checkpoints SET bytes = bytes + 1 WHERE version = 3")
    return 4


@doctoring
def first_checkpoint_of_another_size(d: Doctor) -> int:
    d.sql("UPDATE checkpoints SET bytes = bytes + 1 WHERE version = 0")
    return 1


@doctoring
def checkpoint_of_another_origin(d: Doctor) -> int:
    d.sql("UPDATE checkpoints SET origin = 'round 9' WHERE version = 3")
    return 4


@doctoring
def checkpoint_of_another_time(d: Doctor) -> int:
    d.sql("UPDATE checkpoints SET created_at = created_at - 1 WHERE version = 3")
    return 4


@doctoring
def checkpoint_names_an_older_optimizer_state(d: Doctor) -> int:
    d.sql("UPDATE checkpoints SET optimizer = (SELECT optimizer FROM checkpoints WHERE version = 1) WHERE version = 4")
    return 5


@doctoring
def newest_checkpoint_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM checkpoints WHERE version = 4")
    return 5


@doctoring
def checkpoint_after_the_last(d: Doctor) -> int:
    d.sql("INSERT INTO checkpoints SELECT run, 5, digest, 4, 6, origin, bytes, optimizer, created_at "
          "FROM checkpoints WHERE version = 4")  # fmt: skip
    return 6


# ---------------------------------------------------------------- the log


@doctoring
def last_event_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    return 6


@doctoring
def last_event_deleted_and_the_run_says_so(d: Doctor) -> int:
    d.sql("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'Reported')")
    d.sql("UPDATE events SET seq = seq - 1 WHERE seq > (SELECT max(seq) - 2 FROM events)")
    d.sql("UPDATE runs SET seq = seq - 1")
    return 6


@doctoring
def event_in_the_middle_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM events WHERE seq = ?", d.event("Reported", 4))
    return 4


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


@doctoring
def event_of_another_time(d: Doctor) -> int:
    d.sql("UPDATE events SET at = at - 100 WHERE seq = ?", d.event("Reported", 4) + 1)
    return 4


@doctoring
def newest_model_is_the_first_one_in_the_log_too(d: Doctor) -> int:
    """In the checkpoint, in the round's row and in the log's commit, size and state included."""
    digest, size, state = d.digest(1), d.one("SELECT bytes FROM checkpoints WHERE version = 1"), d.one(
        "SELECT optimizer FROM checkpoints WHERE version = 1")  # fmt: skip
    d.sql("UPDATE checkpoints SET digest = ?, bytes = ?, optimizer = ? WHERE version = 4", digest, size, state)
    d.set_in("rounds", "body", "digest", digest, "round = 5")
    for name, value in (("digest", digest), ("bytes", size), ("optimizer", state)):
        d.set_in("events", "body", name, value, "seq = ?", d.event("Committed", 5))
    return 5


@doctoring
def device_that_withdrew_without_a_reason(d: Doctor) -> int:
    d.set_in("events", "body", "reason", "", "seq = ?", d.event("Withdrew", 6))
    return 6


@doctoring
def link_changed(d: Doctor) -> int:
    d.sql("UPDATE events SET link = ? WHERE seq = ?", "0" * 64, d.event("Reported", 4))
    return 4


@doctoring
def chain_said_to_begin_later(d: Doctor) -> int:
    d.sql("UPDATE runs SET chained_from = 5")
    return 1


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


@doctoring
def event_kind_changed(d: Doctor) -> int:
    d.sql("UPDATE events SET kind = 'Started' WHERE seq = ?", d.event("Withdrew", 6))
    return 6


@doctoring
def event_without_its_body(d: Doctor) -> int:
    d.sql("UPDATE events SET body = '{' WHERE seq = ?", d.event("Reported", 4))
    return 4


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


@doctoring
def report_with_more_examples(d: Doctor) -> int:
    d.set_in("events", "body", "examples", 900, "seq = ?", d.event("Reported", 4))
    return 4


@doctoring
def report_with_other_metrics(d: Doctor) -> int:
    d.set_in("events", "body", "metrics", {"loss": 0.01}, "seq = ?", d.event("Reported", 4))
    return 4


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


@doctoring
def result_by_another_worker(d: Doctor) -> int:
    d.set_in("events", "body", "worker", "w0", "seq = ?", d.event("Delivered", 3))
    return 3


# ---------------------------------------------------------------- rounds


def _round_changed(name: str, number: int, change: str) -> None:
    def changed(d: Doctor) -> int:
        d.sql(f"UPDATE rounds SET {change} WHERE round = {number}")
        return number

    DOCTORINGS[f"round-{name}"] = changed


_round_changed("abandoned-is-committed", 2, "status = 'committed'")
_round_changed("committed-is-abandoned", 4, "status = 'abandoned'")
_round_changed("status-unknown", 4, "status = 'blessed'")
_round_changed("open-is-abandoned", 6, "status = 'abandoned'")
_round_changed("reason", 2, "reason = 'too few devices'")
_round_changed("kind", 4, "kind = 'datacenter'")
_round_changed("attempt", 3, "attempt = 1")
_round_changed("opened-at", 4, "opened_at = opened_at - 5")
_round_changed("collecting-at", 4, "collecting_at = collecting_at + 1")
_round_changed("closed-at", 4, "closed_at = NULL")
_round_changed("metrics", 4, "body = json_set(body, '$.metrics', json('{\"loss\": 0.01}'))")
_round_changed("funnel", 4, "body = json_set(body, '$.funnel.withdrawn', 1)")
_round_changed("bytes", 4, "body = json_set(body, '$.bytes_in', 1)")
_round_changed("body-is-no-json", 4, "body = '{'")
_round_changed("lease", 3, "body = json_set(body, '$.lease.worker', 'w0')")
_round_changed("cohort-of-the-open-one", 6, "body = json_set(body, '$.cohort', json('[]'))")


@doctoring
def committed_round_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM rounds WHERE round = 4")
    return 4


@doctoring
def abandoned_round_deleted_with_its_refusals(d: Doctor) -> int:
    d.sql("DELETE FROM rounds WHERE round = 2")
    d.sql("DELETE FROM refusals WHERE round = 2")
    return 2


@doctoring
def open_round_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM rounds WHERE round = 6")
    return 6


@doctoring
def round_that_never_was(d: Doctor) -> int:
    d.sql("INSERT INTO rounds SELECT run, 7, attempt, kind, status, reason, opened_at, collecting_at, closed_at, body "
          "FROM rounds WHERE round = 2")  # fmt: skip
    return 7


# ---------------------------------------------------------------- refusals, assignments, scores


@doctoring
def refusal_of_an_abandoned_update_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM refusals WHERE round = 2")
    return 2


@doctoring
def refusal_with_another_reason(d: Doctor) -> int:
    d.sql("UPDATE refusals SET reason = 'the update was invalid' WHERE round = 2")
    return 2


@doctoring
def refusal_of_another_kind(d: Doctor) -> int:
    d.sql("UPDATE refusals SET kind = 'late' WHERE round = 2")
    return 2


@doctoring
def refusal_of_a_device_that_counts_nowhere(d: Doctor) -> int:
    d.sql("UPDATE refusals SET device = 'd0' WHERE round = 4")
    return 4


@doctoring
def late_refusal_deleted(d: Doctor) -> int:
    """No event tells of it; the next refusal is of round 5."""
    d.sql("DELETE FROM refusals WHERE round = 4")
    return 5


@doctoring
def last_refusal_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM refusals WHERE number = (SELECT max(number) FROM refusals)")
    return 4


@doctoring
def late_refusal_with_another_reason(d: Doctor) -> int:
    d.sql("UPDATE refusals SET reason = 'too slow' WHERE round = 4")
    return 4


@doctoring
def refusals_swapped(d: Doctor) -> int:
    d.sql("UPDATE refusals SET number = -number WHERE round IN (4, 5)")
    d.sql("UPDATE refusals SET number = 9 WHERE round = 4")
    return 4


@doctoring
def action_added_to_the_audit(d: Doctor) -> int:
    d.sql("INSERT INTO audit (run, at, by, action, detail) VALUES ('marks', 1e6, 'olga', 'advance', '')")
    return 6


@doctoring
def assignment_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM claims WHERE device = (SELECT min(device) FROM claims)")
    return 6


@doctoring
def assignment_in_a_round_that_is_over(d: Doctor) -> int:
    d.sql("UPDATE claims SET round = 5 WHERE device = (SELECT min(device) FROM claims)")
    return 6


@doctoring
def assignment_of_a_device_that_was_not_drawn(d: Doctor) -> int:
    d.sql("INSERT INTO claims SELECT min(device), 'marks', 6, 0, 1e9 FROM devices WHERE device NOT IN "
          "(SELECT device FROM claims)")  # fmt: skip
    return 6


@doctoring
def assignment_with_another_deadline(d: Doctor) -> int:
    d.sql("UPDATE claims SET until = until + 60 WHERE device = (SELECT min(device) FROM claims)")
    return 6


@doctoring
def score_changed(d: Doctor) -> int:
    d.sql("UPDATE metrics SET value = 0.99 WHERE source = 'evaluator' AND name = 'accuracy'")
    return 5


@doctoring
def score_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM metrics WHERE source = 'evaluator' AND name = 'loss'")
    return 5


@doctoring
def score_invented(d: Doctor) -> int:
    d.sql("INSERT INTO metrics VALUES ('marks', 3, 'evaluator', 'f1', 0.9, 50, 1e6)")
    return 6


@doctoring
def score_of_devices_changed(d: Doctor) -> int:
    d.sql("UPDATE metrics SET examples = examples + 1 WHERE version = 0")
    return 1


# ---------------------------------------------------------------- the run's row and the fleet


@doctoring
def snapshot_of_an_earlier_round(d: Doctor) -> int:
    d.set_in("runs", "snapshot", "round_number", 3, "TRUE")
    return 6


@doctoring
def snapshot_with_another_model(d: Doctor) -> int:
    d.set_in("runs", "snapshot", "checkpoint", d.digest(1), "TRUE")
    return 6


@doctoring
def snapshot_deleted(d: Doctor) -> int:
    d.sql("UPDATE runs SET snapshot = NULL, snapshot_seq = 0")
    return 6


@doctoring
def quorum_lowered_in_the_plan(d: Doctor) -> int:
    d.set_in("runs", "plan", "cohort.quorum", 0.1, "TRUE")
    return 6


@doctoring
def plan_of_no_sense(d: Doctor) -> int:
    d.set_in("runs", "plan", "cohort.goal", -1, "TRUE")
    return 6


@doctoring
def digest_of_another_plan(d: Doctor) -> int:
    d.sql("UPDATE runs SET plan_digest = ?", "0" * 64)
    return 6


@doctoring
def selection_seed_changed(d: Doctor) -> int:
    d.sql("UPDATE runs SET selection_seed = selection_seed + 1")
    return 1


@doctoring
def run_begins_with_another_model(d: Doctor) -> int:
    d.sql("UPDATE runs SET init = ?", d.digest(1))
    return 1


@doctoring
def run_renamed(d: Doctor) -> int:
    d.sql("UPDATE runs SET name = 'other'")
    return 6


@doctoring
def run_of_another_origin(d: Doctor) -> int:
    d.sql("UPDATE runs SET origin = 'nobody'")
    return 1


@doctoring
def run_of_another_time(d: Doctor) -> int:
    d.sql("UPDATE runs SET created_at = created_at - 1")
    return 1


@doctoring
def run_ends_at_another_event(d: Doctor) -> int:
    d.sql("UPDATE runs SET seq = seq - 1")
    return 6


@doctoring
def fence_lowered(d: Doctor) -> int:
    d.sql("UPDATE runs SET fence = 0")
    return 6


@doctoring
def run_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM runs")
    return 6


@doctoring
def counted_device_deleted(d: Doctor) -> int:
    d.sql(f"DELETE FROM devices WHERE device = {A_DEVICE}")
    return 2


@doctoring
def cap_of_a_device_lowered(d: Doctor) -> int:
    d.sql(f"UPDATE devices SET examples_cap = 5 WHERE device = {A_DEVICE}")
    return 4


@doctoring
def worker_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM workers")
    return 3


# ---------------------------------------------------------------- blobs


@doctoring
def checkpoint_flipped(d: Doctor) -> int:
    d.flip(d.digest(3))
    return 4


@doctoring
def checkpoint_truncated(d: Doctor) -> int:
    path = d.blob(d.digest(3))
    path.write_bytes(path.read_bytes()[:5])
    return 4


@doctoring
def checkpoint_deleted(d: Doctor) -> int:
    d.blob(d.digest(0)).unlink()
    return 1


@doctoring
def update_of_the_open_round_deleted(d: Doctor) -> int:
    d.blob(d.reported(6)).unlink()
    return 6


@doctoring
def update_of_the_open_round_flipped(d: Doctor) -> int:
    d.flip(d.reported(6))
    return 6


@doctoring
def retained_update_deleted(d: Doctor) -> int:
    d.blob(d.reported(4)).unlink()
    return 4


@doctoring
def retained_update_flipped(d: Doctor) -> int:
    d.flip(d.reported(4))
    return 4


@doctoring
def list_of_who_waited_deleted(d: Doctor) -> int:
    d.blob(d.body_of(d.event("Drawn", 4))["pool"]).unlink()
    return 4


@doctoring
def list_of_who_waited_changed(d: Doctor) -> int:
    d.flip(d.body_of(d.event("Drawn", 4))["pool"])
    return 4


@doctoring
def optimizer_state_deleted(d: Doctor) -> int:
    d.blob(d.one("SELECT optimizer FROM checkpoints WHERE version = 4")).unlink()
    return 5


@doctoring
def optimizer_state_flipped(d: Doctor) -> int:
    d.flip(d.one("SELECT optimizer FROM checkpoints WHERE version = 4"))
    return 5
