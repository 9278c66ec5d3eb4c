"""Forgeries with all links computed anew that the model's tensors or the other runs show."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from client_sdk.tensors import to_bytes
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import chain, open_store
from coordinator.store.port import RefusalRow
from coordinator.verify import Violation, verify
from tests.coordinator.verify.history import RUN, Doctor, doctored
from tests.coordinator.world import World

COPIED = ("runs", "events", "checkpoints", "contributions", "rounds", "refusals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rounds were committed, and the run has finished: it has no snapshot, assignment or update left behind."""
    store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    world = World(8, store=store, blobs=FileBlobs(tmp_path / BLOBS_FOLDER))
    world.create(finish={"rounds": 2})
    world.play_round(1)
    world.play_round(2)
    store.close()
    return tmp_path


def found(folder: Path) -> list[Violation]:
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    try:
        return list(verify(store, BlobFolder(folder / BLOBS_FOLDER)))
    finally:
        store.close()


def rechain(folder: Path, run: str) -> None:
    """Computes all links of a run anew."""
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    row = store.run(run)
    assert row is not None
    link, links = chain.log_beginning(row), {}
    for event in store.events(run, 0):
        links[event.seq] = link = chain.link_of_event(link, event)
    store.close()
    with doctored(folder) as doctor:
        for seq, text in links.items():
            doctor.sql("UPDATE events SET link = ? WHERE run = ? AND seq = ?", text, run, seq)


def test_a_version_of_other_tensors_is_named(folder: Path) -> None:
    data = to_bytes({"marks": np.zeros(9, np.float32), "steps": np.array(7, np.int64)})
    digest = hashlib.sha256(data).hexdigest()
    path = folder / BLOBS_FOLDER / digest[:2] / digest
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with doctored(folder) as doctor:
        old, size = doctor.digest(2), doctor.one("SELECT bytes FROM checkpoints WHERE version = 2")
        doctor.sql("UPDATE checkpoints SET digest = ?, bytes = ? WHERE version = 2", digest, len(data))
        for table, column in (("events", "body"), ("rounds", "body"), ("runs", "snapshot")):
            doctor.sql(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", old, digest)
        committed = doctor.event("Committed", 2)
        assert doctor.body_of(committed)["bytes"] == size
        doctor.set_in("events", "body", "bytes", len(data), "seq = ?", committed)
    rechain(folder, RUN)
    ((invariant, run, number, what),) = [(w.invariant, w.run, w.round, w.what) for w in found(folder)]
    assert (invariant, run, number) == ("5", RUN, 2)
    assert "other tensors" in what


def test_a_run_that_was_copied_is_named(folder: Path) -> None:
    """Under another id, with links of its own. The bytes of each update name the run in which it counts."""
    assert found(folder) == []
    with doctored(folder) as doctor:
        doctor.sql("INSERT INTO run_names VALUES ('copy')")
        for table in COPIED:
            _copy(doctor, table)
        snapshot = json.loads(doctor.one("SELECT snapshot FROM runs WHERE run = 'copy'"))
        doctor.sql("UPDATE runs SET snapshot = ? WHERE run = 'copy'", json.dumps(snapshot | {"run": "copy"}))
        _rechain_refusals(doctor)
    rechain(folder, "copy")
    wrong = found(folder)
    assert {(w.invariant, w.run, w.round) for w in wrong} == {("1", RUN, 1), ("1", RUN, 2)}
    assert all("run copy" in w.what for w in wrong)


def _copy(doctor: Doctor, table: str) -> None:
    names = [name for _, name, *_ in doctor.database.execute(f"PRAGMA table_info({table})")]
    kept = [f'"{name}"' for name in names if name not in ("run", "number")]
    columns = ", ".join(kept)
    doctor.database.execute(f"INSERT INTO {table} (run, {columns}) SELECT 'copy', {columns} FROM {table}")


def _rechain_refusals(doctor: Doctor) -> None:
    link = chain.refusals_beginning("copy")
    names = ("round", "device", "digest", "kind", "reason", "at")
    rows = doctor.database.execute(f"SELECT number, {', '.join(names)} FROM refusals WHERE run = 'copy'").fetchall()
    for number, (key, *values) in enumerate(rows, start=1):
        link = chain.refusal_link(link, number, RefusalRow(run="copy", **dict(zip(names, values, strict=True))))
        doctor.sql("UPDATE refusals SET link = ? WHERE number = ?", link, key)
