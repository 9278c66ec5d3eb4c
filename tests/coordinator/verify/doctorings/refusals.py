"""Doctorings of refusals, the audit, assignments and scores."""

from __future__ import annotations

from coordinator.store import chain
from coordinator.store.rows import RefusalRow
from tests.coordinator.verify.doctorings.table import doctoring, statement
from tests.coordinator.verify.history import Doctor

statement("refusal-of-an-abandoned-update-deleted", 2, "DELETE FROM refusals WHERE round = 2")
statement("refusal-with-another-reason", 2, "UPDATE refusals SET reason = 'the update was invalid' WHERE round = 2")
statement("refusal-of-another-kind", 2, "UPDATE refusals SET kind = 'late' WHERE round = 2")
statement("refusal-of-a-device-that-counts-nowhere", 4, "UPDATE refusals SET device = 'd0' WHERE round = 4")


@doctoring
def late_refusal_deleted(d: Doctor) -> int:
    """No event tells of it; the next refusal is of round 5."""
    d.sql("DELETE FROM refusals WHERE round = 4")
    return 5


statement("last-refusal-deleted", 4, "DELETE FROM refusals WHERE number = (SELECT max(number) FROM refusals)")
statement("late-refusal-with-another-reason", 4, "UPDATE refusals SET reason = 'too slow' WHERE round = 4")


@doctoring
def refusals_swapped(d: Doctor) -> int:
    d.sql("UPDATE refusals SET number = -number WHERE round IN (4, 5)")
    d.sql("UPDATE refusals SET number = 9 WHERE round = 4")
    return 4


statement(
    "action-added-to-the-audit",
    6,
    "INSERT INTO audit (run, at, by, action, detail) VALUES ('marks', 1e6, 'olga', 'advance', '')",
)
statement("assignment-deleted", 6, "DELETE FROM claims WHERE device = (SELECT min(device) FROM claims)")
statement(
    "assignment-in-a-round-that-is-over",
    6,
    "UPDATE claims SET round = 5 WHERE device = (SELECT min(device) FROM claims)",
)
statement(
    "assignment-of-a-device-that-was-not-drawn",
    6,
    "INSERT INTO claims SELECT min(device), 'marks', 6, 0, 1e9 FROM devices WHERE device NOT IN "
    "(SELECT device FROM claims)",
)
statement(
    "assignment-with-another-deadline",
    6,
    "UPDATE claims SET until = until + 60 WHERE device = (SELECT min(device) FROM claims)",
)
statement("score-changed", 5, "UPDATE metrics SET value = 0.99 WHERE source = 'evaluator' AND name = 'accuracy'")
statement("score-deleted", 5, "DELETE FROM metrics WHERE source = 'evaluator' AND name = 'loss'")
statement("score-invented", 6, "INSERT INTO metrics VALUES ('marks', 3, 'evaluator', 'f1', 0.9, 50, 1e6)")
statement("score-of-devices-changed", 1, "UPDATE metrics SET examples = examples + 1 WHERE version = 0")


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
