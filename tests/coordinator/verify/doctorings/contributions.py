"""Doctorings of contributions."""

from __future__ import annotations

from tests.coordinator.verify.doctorings.table import doctoring, statement
from tests.coordinator.verify.history import Doctor

A_DEVICE = "(SELECT min(device) FROM contributions WHERE round = 4)"


statement("contribution-deleted", 4, f"DELETE FROM contributions WHERE round = 4 AND device = {A_DEVICE}")


@doctoring
def contributions_digests_swapped(d: Doctor) -> int:
    one, other, _ = d.all("SELECT device FROM contributions WHERE round = 4 ORDER BY device")
    digests = [d.one("SELECT digest FROM contributions WHERE round = 4 AND device = ?", x) for x in (one, other)]
    d.sql("UPDATE contributions SET digest = ? WHERE round = 4 AND device = ?", digests[1], one)
    d.sql("UPDATE contributions SET digest = ? WHERE round = 4 AND device = ?", digests[0], other)
    return 4


statement(
    "contribution-moved-to-another-round",
    4,
    f"UPDATE contributions SET round = 2 WHERE round = 4 AND device = {A_DEVICE}",
)
statement(
    "contribution-reweighed", 4, f"UPDATE contributions SET weight = weight + 1 WHERE round = 4 AND device = {A_DEVICE}"
)


@doctoring
def contribution_counted_twice(d: Doctor) -> int:
    d.lift("contributions")
    d.sql(f"INSERT INTO contributions SELECT * FROM contributions WHERE round = 4 AND device = {A_DEVICE}")
    return 4


statement(
    "contribution-to-a-round-that-never-was",
    99,
    f"INSERT INTO contributions SELECT run, 99, device, digest, weight, 1 FROM contributions "
    f"WHERE round = 4 AND device = {A_DEVICE}",
)


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
