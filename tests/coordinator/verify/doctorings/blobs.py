"""Doctorings of files."""

from __future__ import annotations

from tests.coordinator.verify.doctorings.table import doctoring
from tests.coordinator.verify.history import Doctor


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
    d.blob(d.as_file(d.reported(6))).unlink()
    return 6


@doctoring
def update_of_the_open_round_flipped(d: Doctor) -> int:
    d.flip(d.as_file(d.reported(6)))
    return 6


@doctoring
def retained_update_deleted(d: Doctor) -> int:
    d.blob(d.as_file(d.reported(4))).unlink()
    return 4


@doctoring
def retained_update_flipped(d: Doctor) -> int:
    d.flip(d.as_file(d.reported(4)))
    return 4


@doctoring
def short_update_of_the_open_round_deleted(d: Doctor) -> int:
    d.sql("DELETE FROM messages WHERE digest = ?", d.reported(6))
    return 6


@doctoring
def short_update_of_the_open_round_flipped(d: Doctor) -> int:
    d.sql("UPDATE messages SET content = zeroblob(length(content)) WHERE digest = ?", d.reported(6))
    return 6


@doctoring
def tree_of_who_waited_deleted(d: Doctor) -> int:
    d.blob(d.body_of(d.event("Drawn", 4))["pool"]).unlink()
    return 4


@doctoring
def tree_of_who_waited_changed(d: Doctor) -> int:
    d.flip(d.body_of(d.event("Drawn", 4))["pool"])
    return 4


@doctoring
def optimizer_state_deleted(d: Doctor) -> int:
    d.blob(d.one("SELECT named_tensors ->> 'server-optimizer' FROM checkpoints WHERE version = 4")).unlink()
    return 5


@doctoring
def optimizer_state_flipped(d: Doctor) -> int:
    d.flip(d.one("SELECT named_tensors ->> 'server-optimizer' FROM checkpoints WHERE version = 4"))
    return 5


@doctoring
def tree_of_who_waited_is_that_of_another_round(d: Doctor) -> int:
    d.set_in("events", "body", "pool", d.body_of(d.event("Drawn", 5))["pool"], "seq = ?", d.event("Drawn", 4))
    return 4
