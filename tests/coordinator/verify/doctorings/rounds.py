"""Doctorings of the rows of rounds."""

from __future__ import annotations

from tests.coordinator.verify.doctorings.table import DOCTORINGS, doctoring, statement
from tests.coordinator.verify.history import Doctor


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
_round_changed("version-is-true", 1, "body = json_set(body, '$.version', json('true'))")
_round_changed("version-is-a-float", 1, "body = json_set(body, '$.version', 1.0)")
_round_changed("body-is-no-json", 4, "body = '{'")
_round_changed("lease", 3, "body = json_set(body, '$.lease.worker', 'w0')")
_round_changed("cohort-of-the-open-one", 6, "body = json_set(body, '$.cohort', json('[]'))")


statement("committed-round-deleted", 4, "DELETE FROM rounds WHERE round = 4")


@doctoring
def abandoned_round_deleted_with_its_refusals(d: Doctor) -> int:
    d.sql("DELETE FROM rounds WHERE round = 2")
    d.sql("DELETE FROM refusals WHERE round = 2")
    return 2


statement("open-round-deleted", 6, "DELETE FROM rounds WHERE round = 6")
statement(
    "round-that-never-was",
    7,
    "INSERT INTO rounds SELECT run, 7, attempt, kind, status, reason, opened_at, collecting_at, closed_at, body "
    "FROM rounds WHERE round = 2",
)
