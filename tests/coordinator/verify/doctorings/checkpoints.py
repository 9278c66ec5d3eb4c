"""Doctorings of the rows of checkpoints."""

from __future__ import annotations

from tests.coordinator.verify.doctorings.table import doctoring
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
