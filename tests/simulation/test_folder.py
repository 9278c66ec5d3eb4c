"""A simulation's folder has the rows of all tables that the coordinator wrote, whenever it is looked at."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.store import Store, open_store
from coordinator.store.declared import TABLES
from coordinator.store.port import DeviceRow, Reader
from coordinator.verify import verify
from simulation import Behaviour, History, simulate
from simulation.virtual.simulation import Simulation
from tests.rotating import on_day
from tests.simulation.test_simulate import NET, digests, examples
from tests.simulation.test_simulate import clients as net_clients
from tests.simulation.test_simulate import plan as net_plan

pytestmark = pytest.mark.whole

INIT = {"w": np.zeros(8, np.float32)}
OF_THE_FLEET = {"pool_changes", "revocation_lists", "waiting"}
SECURE = {"max_norm": 100.0, "max_abs": 4.0, "minimum_cohort": 4, "reserve": 2, "weight_cap": 16}


def learner(model: Tensors, data: Any, task: Task) -> Update:
    """Towards the mean of its inputs."""
    x, _ = data if isinstance(data, tuple) else (data.x, data.y)
    return Update({"w": (np.mean(x, axis=0) - model["w"]).astype(np.float32)}, len(x), work=Work(steps=1))


def clients(count: int = 16, examples: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        f"c{k:02d}": (rng.standard_normal((examples, 8)).astype(np.float32), np.zeros(examples)) for k in range(count)
    }


def plan(rounds: int = 3, *, select: int = 8, **more: Any) -> dict[str, Any]:
    cohort = {"select": select, "goal": select - 2, "quorum": 0.5, "collect_s": 60.0}
    return {"name": "test", "task": {"batch_size": 8}, "cohort": cohort, "finish": {"rounds": rounds}, **more}


def play(folder: Path | None, rounds: int = 3, **more: Any) -> History:
    return simulate(plan(rounds), learner, clients(), init=INIT, folder=folder, progress=False, **more)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    store = open_store(database_url(folder))
    yield store
    store.close()


def require_valid(folder: Path) -> None:
    with opened(folder) as store:
        assert list(verify(store, FileBlobs(folder / BLOBS_FOLDER))) == []


def tables(reader: Reader) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, in every column, but for those of the fleet."""
    return {name: [*map(asdict, reader._all(about.row))] for name, about in TABLES.items() if name not in OF_THE_FLEET}


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Compares the folder with the coordinator's store whenever it was brought up to date; returns which tables had
    rows."""
    seen: list[set[str]] = []
    keep = Simulation.keep

    def kept(self: Simulation) -> None:
        keep(self)
        assert self._folder is not None
        stored = tables(self._folder)
        assert stored == tables(self.store)
        for name in OF_THE_FLEET:
            assert self._folder._all(TABLES[name].row) == []
        seen.append({name for name, rows in stored.items() if rows})

    monkeypatch.setattr(Simulation, "keep", kept)
    return seen


BEHAVIOUR = Behaviour(dropout=0.1, stragglers=0.3)
PLAIN = {"audit_head", "checkpoints", "contributions", "devices", "events", "metrics", "rounds", "run_names", "runs"}


def test_after_each_round_the_folder_has_the_rows_of_all_tables(tmp_path: Path, compared: list[set[str]]) -> None:
    """Also where a second call goes on."""
    asked: dict[str, Any] = {"behaviour": BEHAVIOUR, "test": examples(seed=9), "progress": False, "folder": tmp_path}
    for rounds in (2, None):
        simulate(net_plan(5, select=6, goal=4), NET, net_clients(20), rounds=rounds, **asked)
    assert len(compared) == 6
    assert compared[-1] >= PLAIN | {"refusals"}
    require_valid(tmp_path)


@pytest.mark.parametrize("way", ["masked", "quantized"])
def test_so_it_has_after_secure_rounds(tmp_path: Path, compared: list[set[str]], way: Any) -> None:
    """The marks of its devices were left out once, and verify named each of them."""
    for rounds in (1, None):
        simulate(
            plan(2, select=8, secure=SECURE, aggregation={"weighting": "examples", "partial": "refuse"}),
            learner,
            clients(24),
            init=INIT,
            folder=tmp_path,
            rounds=rounds,
            secure=way,
            behaviour=BEHAVIOUR,
            progress=False,
        )
    assert "secure_marks" in compared[-1]
    require_valid(tmp_path)


def test_so_it_has_after_datacenter_rounds(tmp_path: Path, compared: list[set[str]]) -> None:
    section = {"data": "proxy", "steps": 2, "batch_size": 16, "learning_rate": 0.1, "every": 2}
    simulate(
        net_plan(2, datacenter=section),
        NET,
        net_clients(),
        folder=tmp_path,
        datacenter={"proxy": examples(32, seed=4)},
        progress=False,
    )
    assert "workers" in compared[-1]
    require_valid(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from coordinator.store.sql import SqlWrites
from coordinator.store.port import CheckpointRow
from tests.simulation.test_folder import play

put = SqlWrites._put

def killed(self, rows, *more):
    count = put(self, rows, *more)
    if any(isinstance(row, CheckpointRow) and row.version == 2 for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)  # events are written, rounds are not, nothing is committed
    return count

SqlWrites._put = killed
play(Path(sys.argv[1]))
"""


@on_day(0, of=2)
def test_a_kill_while_the_folder_is_written_costs_the_round_under_way(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    require_valid(tmp_path)
    with History.open(tmp_path) as history:
        assert len(history) == 1
    assert digests(play(tmp_path)) == digests(play(None))
    require_valid(tmp_path)


def test_runs_share_the_devices_of_a_folder(tmp_path: Path) -> None:
    """Verify named a client of the second run that had fewer examples in the first, and it may in neither order."""
    for name, size in (("a", 3), ("b", 9), ("c", 4)):
        simulate({**plan(1), "name": name}, learner, clients(examples=size), init=INIT, folder=tmp_path, progress=False)
        require_valid(tmp_path)
    with opened(tmp_path) as store:
        assert [row.run for row in store.runs()] == ["a", "b", "c"]
        assert {row.examples_cap for row in store.devices()} == {9}


def test_a_real_device_of_a_clients_name_stays_as_it_was(tmp_path: Path) -> None:
    real = DeviceRow(device="c00", key_id="k", certificate="cc", label="real", examples_cap=99, enrolled_at=1.0)
    with opened(tmp_path) as store, store.transaction() as tx:
        tx.insert_device(real)
    simulate(plan(1, select=16), learner, clients(), init=INIT, folder=tmp_path, progress=False)
    with opened(tmp_path) as store:
        assert store.device("c00") == real
        assert len(store.devices()) == 16
