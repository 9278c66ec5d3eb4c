"""A small real history in a data folder, and the means to change what is stored.

====== ============================================================================================================
round 1 committed by three of four devices; the fourth is late
round 2 abandoned: of four devices one reported
round 3 committed in the datacenter, under its second lease
round 4 committed; an evaluator scored its model
round 5 committed
round 6 collecting: one device has reported, one trains, one has withdrawn, one is silent
====== ============================================================================================================
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from client_sdk.tensors import to_bytes
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import open_store
from coordinator.verify import Violation, verify
from tests.coordinator.databases import in_file
from tests.coordinator.runtime.test_workers import SECTION, Center

RUN = "marks"


def play(folder: Path, *, retention: int, optimizer: bool = True) -> None:
    """Writes the history. ``retention``: rounds for which raw updates are stored."""
    store = in_file(folder / DATABASE_FILE)
    center = Center(8, store=store, blobs=FileBlobs(folder / BLOBS_FOLDER))
    aggregation = {"server_optimizer": "fedadam"} if optimizer else {}
    center.create(
        datacenter={**SECTION, "return_devices": 3},
        retention={"rounds": retention},
        aggregation=aggregation,
        task={"score_held_out": True},
        finish={"rounds": 20},
    )
    _committed(center, 1)
    center.check_in()
    center.report(*center.cohort()[:1], round=2)
    center.pass_time(300)
    _datacenter(center)
    _committed(center, 4)
    view = center.coordinator.operators.run(RUN)
    score = Score(examples=50, metrics={"accuracy": 0.5, "loss": 1.5})
    center.coordinator.operators.report_metrics(
        RUN, MetricReport(version=view.version, digest=view.checkpoint, source="evaluator", score=score)
    )
    _committed(center, 5)
    center.clock.at += 3
    center.check_in()
    first, second, third, _ = center.cohort()
    center.report(first, round=6)
    center.clock.at += 1
    center.coordinator.devices.started(center.rows[second].device, RUN, 6, 0)()
    center.coordinator.devices.withdraw(center.rows[third].device, RUN, 6, 0, "the battery is low")
    center.settle()
    store.close()


def _committed(center: Center, number: int) -> None:
    """All eight wait; of the cohort of four three count, and the fourth is late."""
    center.clock.at += 3
    center.check_in()
    cohort = center.cohort()
    for device in cohort[:3]:
        center.clock.at += 1
        score = Score(examples=5, metrics={"accuracy": 0.25})
        center.report(device, round=number, examples=10 + device, held_out=score)
    with center.refuses("late"):
        center.report(cohort[3], round=number)


def _datacenter(center: Center) -> None:
    worker = center.worker()
    center.poll(worker, "i1", installation="here")
    center.clock.at += 5
    lease = center.poll(worker, "i2", installation="here")
    center.check_in(0, 1, 2, 3)
    center.clock.at += 5
    center.deliver(worker, lease, to_bytes(center.trained(1)))


class Doctor:
    """Changes what is stored, as somebody with a shell could. Keys and foreign keys do not hold it back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = sqlite3.connect(folder / DATABASE_FILE)

    def close(self) -> None:
        self.database.commit()
        self.database.close()

    def sql(self, statement: str, *values: object) -> None:
        """Executes a statement, which must change a row."""
        assert self.database.execute(statement, values).rowcount > 0, statement

    def one(self, query: str, *values: object) -> Any:
        """The first column of the first row."""
        return self.database.execute(query, values).fetchone()[0]

    def all(self, query: str, *values: object) -> list[Any]:
        return [row[0] for row in self.database.execute(query, values)]

    def lift(self, table: str) -> None:
        """Removes the keys of a table."""
        self.database.execute(f"CREATE TABLE lifted AS SELECT * FROM {table}")
        self.database.execute(f"DROP TABLE {table}")
        self.database.execute(f"ALTER TABLE lifted RENAME TO {table}")

    def event(self, kind: str, round: int | None = None) -> int:
        """Sequence number of the first event of this kind, in this round."""
        number = "" if round is None else f"AND json_extract(body, '$.round') = {round}"
        return int(self.one(f"SELECT min(seq) FROM events WHERE kind = ? {number}", kind))

    def set_in(self, table: str, column: str, path: str, value: object, where: str, *values: object) -> None:
        """Changes one value inside a body."""
        changed = f"json_set({column}, '$.{path}', json(?))"
        self.sql(f"UPDATE {table} SET {column} = {changed} WHERE {where}", json.dumps(value), *values)

    def body_of(self, seq: int) -> Any:
        return json.loads(self.one("SELECT body FROM events WHERE seq = ?", seq))

    def make_room(self, seq: int, count: int = 1) -> None:
        """Moves all events from ``seq`` on back by ``count``."""
        self.sql("UPDATE events SET seq = -(seq + ?) WHERE seq >= ?", count, seq)
        self.sql("UPDATE events SET seq = -seq WHERE seq < 0")
        self.sql("UPDATE runs SET seq = seq + ?", count)

    def swap_events(self, one: int, other: int) -> None:
        self.sql("UPDATE events SET seq = -1 WHERE seq = ?", one)
        self.sql("UPDATE events SET seq = ? WHERE seq = ?", one, other)
        self.sql("UPDATE events SET seq = ? WHERE seq = -1", other)

    def digest(self, version: int) -> str:
        return str(self.one("SELECT digest FROM checkpoints WHERE version = ?", version))

    def reported(self, round: int) -> str:
        return str(self.body_of(self.event("Reported", round))["digest"])

    def as_file(self, digest: str) -> str:
        """Stores a short update as a long one is: in a file. Returns its digest."""
        path = self.folder / BLOBS_FOLDER / digest[:2] / digest
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.one("SELECT content FROM messages WHERE digest = ?", digest))
        self.sql("DELETE FROM messages WHERE digest = ?", digest)
        return digest

    def blob(self, digest: str) -> Path:
        path = self.folder / BLOBS_FOLDER / digest[:2] / digest
        assert path.is_file()
        return path

    def flip(self, digest: str) -> None:
        path = self.blob(digest)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


@contextmanager
def doctored(folder: Path) -> Iterator[Doctor]:
    doctor = Doctor(folder)
    try:
        yield doctor
    finally:
        doctor.close()


def violations(folder: Path) -> list[Violation]:
    store = open_store(f"sqlite:///{folder / DATABASE_FILE}")
    try:
        return list(verify(store, BlobFolder(folder / BLOBS_FOLDER)))
    finally:
        store.close()
