"""Doctorings of a run's own row, and of devices and workers."""

from __future__ import annotations

import json

from tests.coordinator.verify.doctorings.table import doctoring
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


@doctoring
def snapshot_without_its_format(d: Doctor) -> int:
    """As one of an older version, which nothing was held against."""
    d.sql("UPDATE runs SET snapshot = '{}'")
    return 6


@doctoring
def fence_that_no_commit_can_raise(d: Doctor) -> int:
    d.sql("UPDATE runs SET fence = 9223372036854775807")
    return 6


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
