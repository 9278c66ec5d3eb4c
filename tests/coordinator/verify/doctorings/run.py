"""Doctorings of a run's own row, and of devices and workers."""

from __future__ import annotations

import json

from tests.coordinator.verify.doctorings.table import doctoring, statement
from tests.coordinator.verify.history import Doctor

A_DEVICE = "(SELECT min(device) FROM contributions WHERE round = 4)"


@doctoring
def snapshot_of_an_earlier_round(d: Doctor) -> int:
    d.set_in("runs", "snapshot", "round_number", 3, "TRUE")
    return 6


@doctoring
def snapshot_with_another_model(d: Doctor) -> int:
    d.set_in("runs", "snapshot", "checkpoint", d.digest(1), "TRUE")
    return 6


statement("snapshot-deleted", 6, "UPDATE runs SET snapshot = NULL, snapshot_seq = 0")


@doctoring
def quorum_lowered_in_the_plan(d: Doctor) -> int:
    d.set_in("runs", "plan", "cohort.quorum", 0.1, "TRUE")
    return 6


@doctoring
def plan_of_no_sense(d: Doctor) -> int:
    d.set_in("runs", "plan", "cohort.goal", -1, "TRUE")
    return 6


statement("digest-of-another-plan", 6, "UPDATE runs SET plan_digest = ?", "0" * 64)
statement("selection-seed-changed", 1, "UPDATE runs SET selection_seed = selection_seed + 1")
statement("run-begins-with-another-model", 1, "UPDATE runs SET init = ?", lambda d: d.digest(1))
statement("run-renamed", 6, "UPDATE runs SET name = 'other'")
statement("run-of-another-origin", 1, "UPDATE runs SET origin = 'nobody'")
statement("run-of-another-time", 1, "UPDATE runs SET created_at = created_at - 1")
statement("run-ends-at-another-event", 6, "UPDATE runs SET seq = seq - 1")
statement("fence-lowered", 6, "UPDATE runs SET fence = 0")
statement("run-deleted", 6, "DELETE FROM runs")


@doctoring
def name_of_the_run_is_free_again(d: Doctor) -> int:
    d.sql("DELETE FROM run_names")
    return 0


@doctoring
def run_deleted_from_all_tables_but_its_name(d: Doctor) -> int:
    for table in ("claims", "contributions", "events", "metrics", "refusals", "rounds", "runs"):
        d.sql(f"DELETE FROM {table}")
    d.sql("DELETE FROM checkpoints")
    return 0


statement("counted-device-deleted", 2, f"DELETE FROM devices WHERE device = {A_DEVICE}")
statement("cap-of-a-device-lowered", 4, f"UPDATE devices SET examples_cap = 5 WHERE device = {A_DEVICE}")
statement("worker-deleted", 3, "DELETE FROM workers")


@doctoring
def snapshot_without_its_format(d: Doctor) -> int:
    """As one of an older version, which nothing was held against."""
    d.sql("UPDATE runs SET snapshot = '{}'")
    return 6


statement("fence-that-no-commit-can-raise", 6, "UPDATE runs SET fence = 9223372036854775807")


@doctoring
def statistics_in_its_row(d: Doctor) -> int:
    """Its first event knows none."""
    d.sql("UPDATE runs SET roles = ?", '{"w":"statistic"}')
    return 6


@doctoring
def statistics_in_its_row_and_in_its_first_event(d: Doctor) -> int:
    """Devices agreed to a digest of other roles."""
    d.sql("UPDATE runs SET roles = ?", '{"w":"statistic"}')
    body = json.loads(d.one("SELECT body FROM events WHERE seq = 1"))
    d.sql("UPDATE events SET body = ? WHERE seq = 1", json.dumps({**body, "roles": {"w": "statistic"}}))
    d.set_in("runs", "snapshot", "roles", {"w": "statistic"}, "TRUE")
    return 1
