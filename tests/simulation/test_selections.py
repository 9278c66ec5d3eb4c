"""Each way to draw cohorts, simulated: the folder can be verified, and a simulation that goes on, or is killed and goes
on, has the cohorts of one that was not interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.engine.aggregation.parameters import Parameter, Settings
from coordinator.engine.selection import SELECTIONS, Candidate
from coordinator.store import open_store
from coordinator.verify import CannotVerify, verify
from simulation import Behaviour, History, simulate
from tests.rotating import in_parts, taking_turns
from tests.simulation.test_treatment import INIT, client

CLIENTS = {f"c{number:02d}": client(2 + number % 5, number / 10) for number in range(14)}


def learner(model: Any, data: Any, task: Any) -> Update:
    x = np.full(2, data[0][0, 0], np.float32)
    loss = float(np.square(model["w"] - x).sum())
    return Update({"w": np.float32(0.3) * (x - model["w"])}, examples=len(data[0]), metrics={"loss": loss})


COHORT = {"select": 5, "goal": 4, "quorum": 0.5, "pool": 14, "collect_s": 30.0}


def play(folder: Path, choose: str, cohort: Mapping[str, Any] = COHORT, **options: Any) -> History:
    plan = {
        "name": "chosen",
        "cohort": {**cohort, "choose": choose},
        "aggregation": {"weighting": "equal"},
        "finish": {"rounds": 7},
    }
    fleet = Behaviour(step_s=1.0, jitter_sigma=1.0, dropout=0.1)
    return simulate(plan, learner, CLIENTS, init=INIT, behaviour=fleet, folder=folder, progress=False, **options)


def cohorts(history: History) -> list[Any]:
    return [row.body["cohort"] for row in history._store.rounds(history.run, 0) if row.status != "open"]


def require_valid(folder: Path) -> None:
    store = open_store(database_url(folder))
    assert list(verify(store, FileBlobs(folder / BLOBS_FOLDER))) == []
    store.close()


@pytest.mark.parametrize("choose", in_parts(SELECTIONS, of=2))
def test_a_simulation_that_goes_on_has_the_cohorts_of_a_whole_one(tmp_path: Path, choose: str) -> None:
    with play(tmp_path / "whole", choose) as whole:
        for part in (1, 3, None):
            with play(tmp_path / "parts", choose, rounds=part) as found:
                assert cohorts(found) == cohorts(whole)[: len(cohorts(found))]
        assert [row.digest for row in found.rounds] == [row.digest for row in whole.rounds]
    require_valid(tmp_path / "parts")


def test_clients_that_the_plan_names_are_the_ones_that_come(tmp_path: Path) -> None:
    named = {"select": 3, "goal": 2, "quorum": 0.5, "devices": ["c11", "c02", "c07"], "collect_s": 30.0}
    with play(tmp_path, "fixed", named) as found:
        assert {device for cohort in cohorts(found) for device in cohort} == {"c02", "c07", "c11"}
    require_valid(tmp_path)
    with pytest.raises(ValueError, match=r"cohort\.devices names 'c99', and there is no such client"):
        play(tmp_path / "other", "fixed", {**named, "devices": ["c02", "c99"], "select": 2})


class Heaviest:
    """The devices with the most examples, of those that were drawn least."""

    version = "2"
    reads = ("selected",)
    varies = False
    parameters: ClassVar[dict[str, Parameter]] = {}

    def select(self, pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings) -> list[str]:
        return [one.device for one in sorted(pool, key=lambda one: (one.selected, -one.examples, one.device))[:k]]


def test_an_object_of_a_notebook_draws_too(tmp_path: Path) -> None:
    """Its folder is refused where the object is not at hand."""
    plan = {"name": "chosen", "cohort": {"select": 5, "goal": 5, "quorum": 1.0, "pool": 14}, "finish": {"rounds": 2}}
    folder = tmp_path / "run"
    with simulate(plan, learner, CLIENTS, init=INIT, selection=Heaviest(), folder=folder, progress=False) as history:
        assert (history.plan.cohort.choose, history.plan.cohort.choose_version) == ("notebook:heaviest", "2")
        first, second = cohorts(history)
    assert first == sorted(sorted(CLIENTS, key=lambda name: (-len(CLIENTS[name][0]), name))[:5])
    assert not set(first) & set(second)
    with pytest.raises(CannotVerify, match="the selection notebook:heaviest 2 is not installed here"):
        require_valid(folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from simulation.virtual.simulation import Simulation
from tests.simulation.test_selections import play

keep, kept = Simulation.keep, []

def killed(self):
    keep(self)
    kept.append(self)
    if len(kept) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

Simulation.keep = killed
play(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("choose", taking_turns("power-of-choice", "oort", "cyclic"))
def test_a_kill_changes_no_cohort(tmp_path: Path, choose: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed"), choose], check=False)
    assert killed.returncode == -signal.SIGKILL
    require_valid(tmp_path / "killed")
    with play(tmp_path / "killed", choose) as found, play(tmp_path / "whole", choose) as whole:
        assert cohorts(found) == cohorts(whole)
    require_valid(tmp_path / "killed")
