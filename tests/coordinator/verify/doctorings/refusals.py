"""Doctorings of refusals, the audit, assignments and scores."""

from __future__ import annotations

from coordinator.store import chain
from coordinator.store.rows import RefusalRow
from tests.coordinator.verify.doctorings.table import doctoring
from tests.coordinator.verify.history import Doctor


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


@doctoring
def refusal_of_an_update_that_counts(d: Doctor) -> int:
    """With its link, as somebody could who knows the format."""
    device, digest = d.database.execute("SELECT device, digest FROM contributions WHERE round = 4").fetchone()
    row = RefusalRow(run="marks", round=4, device=device, digest=digest, kind="late", reason="late", at=1e6)
    number = d.one("SELECT refusals FROM runs") + 1
    link = chain.refusal_link(d.one("SELECT link FROM refusals ORDER BY number DESC"), number, row)
    d.sql("INSERT INTO refusals (run, round, device, digest, kind, reason, at, link) VALUES (?, 4, ?, ?, ?, ?, ?, ?)",
          "marks", device, digest, "late", "late", 1e6, link)  # fmt: skip
    d.sql("UPDATE runs SET refusals = ?", number)
    return 4
