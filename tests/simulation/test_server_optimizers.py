"""A server optimizer's state, and a codec that draws, in simulations: the same bits by every engine, resumed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors, read_header
from client_sdk.update import Update
from coordinator.blobs import BlobFolder, FileBlobs
from coordinator.datafolder import BLOBS_FOLDER, database_url
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS
from coordinator.engine.plan_file import PlanError
from coordinator.store import open_store
from coordinator.verify import verify
from simulation import History, simulate
from simulation.engines import EngineName
from simulation.virtual.simulation import Simulation
from tests.rotating import in_parts

pytestmark = pytest.mark.whole

SIZES = (3, 9, 30, 4)
INIT = {"w": np.linspace(-1, 1, 2100, dtype=np.float32), "b": np.zeros(3, np.float32), "steps": np.array(7)}


def train(model: Tensors, data: Any, task: Task) -> Update:
    """Towards the mean of the client's data, by numbers that float32 rounds."""
    rate = np.float32(task.learning_rate)
    delta = {name: rate * (np.float32(np.mean(data[0])) - model[name]) for name in ("w", "b")}
    work = Work(steps=1, steps_planned=1, epochs=1.0, examples_seen=len(data[0]))
    return Update(delta, len(data[0]), work=work, metrics={"loss": 1.0})


def clients() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {f"c{at}": (rng.normal(size=size).astype(np.float32), np.zeros(size)) for at, size in enumerate(SIZES)}


def plan(**aggregation: Any) -> dict[str, Any]:
    return {
        "name": "optimized",
        "task": {"codec": "stochastic8@1", "learning_rate": 0.3, "seed": 5},
        "cohort": {"select": 4, "goal": 4, "quorum": 1.0},
        "aggregation": {"weight_cap": 20, "server_learning_rate": 0.05, **aggregation},
        "finish": {"rounds": 4},
    }


ADAM = {"server_optimizer": "fedadam", "server_optimizer_parameters": {"tau": 0.01}}
PLANS = {
    "fedavgm": {"server_optimizer": "fedavgm"},
    "fedadagrad": {"server_optimizer": "fedadagrad"},
    "fedadam": ADAM,
    "fedyogi, trimmed": {
        "server_optimizer": "fedyogi",
        "rule": "trimmed-mean",
        "rule_parameters": {"fraction": 0.25},
        "weighting": "equal",
    },
    "lars": {"server_optimizer": "lars", "server_optimizer_parameters": {"weight_decay": 0.01}},
    "lamb": {"server_optimizer": "lamb"},
    "radam": {"server_optimizer": "radam", "server_optimizer_parameters": {"layerwise": 1, "lookahead": 2}},
}
OTHER_ENGINES = [name for name in get_args(EngineName) if name not in ("serial", "ray")]
WORKERS = {"processes": {"workers": 2}}


def run(asked: dict[str, Any], **options: Any) -> History:
    return simulate(asked, train, clients(), init=INIT, progress=False, **options)


def line(history: History) -> list[tuple[str, str | None]]:
    return [(row.digest, row.named_tensors.get("server-optimizer")) for row in history._store.checkpoints(history.run)]


WHOLE = {
    "krum": {"wrong": 0, "keep": 2},
    "geometric-median": {},
    "centered-clipping": {"radius": 0.05, "iterations": 2, "remember": 1},
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_rule_over_whole_updates_gives_the_same_models_and_verifies(tmp_path: Path, name: str) -> None:
    asked = plan(rule=name, rule_parameters=WHOLE[name], weighting="equal")
    asked["retention"] = {"rounds": 9}
    serial = line(run(asked, folder=tmp_path))
    assert len({digest for digest, _ in serial}) == 5
    assert not wrong(tmp_path)
    for engine in OTHER_ENGINES:
        assert line(run(asked, engine=engine, **WORKERS.get(engine, {}))) == serial
    assert set(WHOLE) == {rule for rule, found in RULES.items() if found.needs == "whole"}


@pytest.mark.parametrize("name", in_parts(PLANS, of=2))
def test_every_engine_gives_the_same_models_and_states(name: str) -> None:
    serial = line(run(plan(**PLANS[name])))
    assert len({digest for digest, _ in serial}) == 5
    assert [state is None for _, state in serial] == [True, False, False, False, False]
    for engine in OTHER_ENGINES:
        assert line(run(plan(**PLANS[name]), engine=engine, **WORKERS.get(engine, {}))) == serial


def test_every_optimizer_with_a_state_is_simulated() -> None:
    assert {found["server_optimizer"] for found in PLANS.values()} == {
        name for name, optimizer in SERVER_OPTIMIZERS.items() if optimizer.slots
    }


@pytest.mark.parametrize("name", ["fedadam", "lamb", "radam"])
def test_a_simulation_that_goes_on_gives_the_same_states(tmp_path: Path, name: str) -> None:
    whole = line(run(plan(**PLANS[name])))
    for _ in range(4):
        found = line(run(plan(**PLANS[name]), folder=tmp_path, rounds=1))
    assert found == whole
    assert not wrong(tmp_path)
    assert states(tmp_path) == {whole[-1][1]}, "older states go with their rounds"


@pytest.mark.parametrize("name", ["fedadam", "radam"])
def test_one_that_was_cut_off_before_its_rows_were_kept_goes_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The state that the folder's rows name is there, though the coordinator has long gone on."""
    whole, keep, calls = line(run(plan(**PLANS[name]))), Simulation.keep, []

    def cut_off(self: Simulation) -> None:
        calls.append(self.state.version)
        if self.state.version == 3:
            raise SystemExit("killed")
        keep(self)

    monkeypatch.setattr(Simulation, "keep", cut_off)
    with pytest.raises(SystemExit):
        run(plan(**PLANS[name]), folder=tmp_path)
    monkeypatch.undo()
    assert 3 in calls
    assert not wrong(tmp_path)
    assert line(run(plan(**PLANS[name]), folder=tmp_path)) == whole


@pytest.mark.parametrize("name", ["fedadam", "lamb"])
def test_retention_keeps_the_states_that_an_audit_folds_with(tmp_path: Path, name: str) -> None:
    asked = {**plan(**PLANS[name]), "retention": {"rounds": 2}}
    whole = line(run(asked, folder=tmp_path))
    assert states(tmp_path) == {state for _, state in whole[2:]}
    assert not wrong(tmp_path)


def test_a_rule_that_is_not_installed_is_refused_in_a_sentence() -> None:
    with pytest.raises(PlanError, match="the aggregation rule clinic:krum 1 is not installed here"):
        run(plan(rule="clinic:krum", rule_version="1"))
    with pytest.raises(ValueError, match="the codec 'clinic:sketch@1' is not installed here"):
        run({**plan(), "task": {"codec": "clinic:sketch@1"}})


def wrong(folder: Path) -> list[str]:
    store = open_store(database_url(folder))
    try:
        return [found.what for found in verify(store, BlobFolder(folder / BLOBS_FOLDER))]
    finally:
        store.close()


def states(folder: Path) -> set[str]:
    """The server optimizer's states on the disk."""
    blobs = FileBlobs(folder / BLOBS_FOLDER)
    found = {digest for digest in blobs.digests() if blobs.open(digest).read()[8:9] == b"{"}
    return {digest for digest in found if "quorate.optimizer" in read_header(blobs.open(digest)).metadata}
