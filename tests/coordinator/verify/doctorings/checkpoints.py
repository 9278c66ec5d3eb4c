"""Doctorings of the rows of checkpoints."""

from __future__ import annotations

from tests.coordinator.verify.doctorings.table import doctoring, event_says, statement
from tests.coordinator.verify.history import Doctor


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


event_says("commit-names-another-digest", 5, "Committed", "digest", lambda d: d.digest(1))
event_says("result-names-another-digest", 3, "Delivered", "digest", lambda d: d.digest(1))
statement("checkpoint-of-another-size", 4, "UPDATE checkpoints SET bytes = bytes + 1 WHERE version = 3")
statement("first-checkpoint-of-another-size", 1, "UPDATE checkpoints SET bytes = bytes + 1 WHERE version = 0")
statement("checkpoint-of-another-origin", 4, "UPDATE checkpoints SET origin = 'round 9' WHERE version = 3")
statement("checkpoint-of-another-time", 4, "UPDATE checkpoints SET created_at = created_at - 1 WHERE version = 3")
statement(
    "checkpoint-names-an-older-optimizer-state",
    5,
    "UPDATE checkpoints SET named_tensors = (SELECT named_tensors FROM checkpoints WHERE version = 1) "
    "WHERE version = 4",
)
statement("newest-checkpoint-deleted", 5, "DELETE FROM checkpoints WHERE version = 4")
statement(
    "checkpoint-after-the-last",
    6,
    "INSERT INTO checkpoints SELECT run, 5, digest, 4, 6, origin, bytes, created_at, named_tensors "
    "FROM checkpoints WHERE version = 4",
)
