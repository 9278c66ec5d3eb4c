"""The engine ``ray``: the bits of the serial one, also where actors die; a sentence where it cannot work."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import ray
from torch import nn

from client_sdk import cli
from client_sdk.learning import Learner
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import History, SimulationError, simulate
from simulation.engines import Engine, SerialEngine, engine_called, ray_actors
from simulation.engines.ray_actors import _AS_OURS, Actor, RayEngine, _share
from tests.rotating import on_day
from tests.simulation.engines.test_processes import NET, Marks, clients, digests, examples, fate, mark, plan, results

pytestmark = pytest.mark.whole
TODAY = on_day(0, of=3)
LINEAR = Learner(model=lambda: nn.Linear(4, 3), loss=nn.functional.cross_entropy)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray that is there already, with two cores; its sockets need a short path."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    folder = mkdtemp(prefix="ray", dir="/tmp")
    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, **quiet, _temp_dir=folder, _system_config=_AS_OURS)
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def started(cluster: None) -> Iterator[Any]:
    """Makes engines, and closes them."""
    made: list[RayEngine] = []

    def start(marks: Marks, workers: int) -> RayEngine:
        made.append(RayEngine(marks.kernel, workers))
        made[-1].begin(1, marks.model)
        return made[-1]

    yield start
    for engine in made:
        engine.close()


def rows(engine: Engine, marks: Marks, *numbers: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The stored updates of these clients."""
    return np.concatenate([*engine.columns([marks.clients.id(number) for number in numbers])], axis=1)


def kill(engine: RayEngine, number: int) -> None:
    """Ends an actor as a machine that fails does."""
    ray.kill(engine._workers[number].actor)


@TODAY
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_whole_runs_have_the_bits_of_the_serial_engine_and_of_processes(cluster: None, rule: str) -> None:
    found = [
        simulate(
            plan(aggregation={"rule": rule, "weighting": "equal"}),
            NET,
            clients(),
            test=examples(60),
            score_clients=5,
            progress=False,
            **engine,
        )
        for engine in ({}, {"engine": "processes", "workers": 2}, {"engine": "ray", "workers": 2})
    ]
    assert len(set(digests(found[0]))) == 4
    assert digests(found[0]) == digests(found[1]) == digests(found[2])
    assert [*map(fate, found[0].rounds)] == [*map(fate, found[1].rounds)] == [*map(fate, found[2].rounds)]
    for source in ("evaluator", "clients"):
        curves = [history.metric("accuracy", source).values.tolist() for history in found]
        assert curves[0] == curves[1] == curves[2]
    assert ray.is_initialized(), "who had a cluster before has it still"


@TODAY
def test_an_actor_trains_the_stacks_that_the_serial_engine_trains(cluster: None) -> None:
    found = [
        simulate(plan(), LINEAR, clients(), progress=False, steps="stacked-3", **engine)
        for engine in ({}, {"engine": "ray", "workers": 2})
    ]
    assert digests(found[0]) == digests(found[1])
    assert found[0].steps == found[1].steps == "stacked-3"


@TODAY
def test_an_actor_that_dies_costs_its_clients_again_and_not_the_run(started: Any) -> None:
    marks = Marks()
    engine, serial = started(marks, 2), SerialEngine(marks.kernel)
    serial.begin(1, marks.model)
    jobs = [marks.job(number) for number in range(8)]
    assert results(engine, jobs) == results(serial, jobs)
    kill(engine, 0)
    assert marks.mean_of(engine, *range(8)) == marks.mean_of(serial, *range(8))
    kill(engine, 1)
    assert marks.mean_of(engine, 1, 2, 5) == marks.mean_of(serial, 1, 2, 5)
    engine.begin(2, marks.model)
    later = [marks.job(number, round=2) for number in range(6)]
    engine.submit(later)
    kill(engine, 0)
    serial.begin(2, marks.model)
    assert [engine.result(job) for job in later] == [serial.result(job) for job in later]


class Deaf(Actor):
    def begin(self, model: bytes) -> None:
        raise OSError("no space left for the model")


@TODAY
def test_who_has_not_got_the_model_of_the_round_trains_no_other(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors, "Actor", Deaf)
    with pytest.raises(OSError, match="no space left for the model"):
        simulate(plan(), NET, clients(), progress=False, engine="ray", workers=1)


@TODAY
def test_stored_updates_of_an_actor_that_died_are_made_again(started: Any) -> None:
    marks = Marks(aggregation={"rule": "median", "weighting": "equal"})
    engine, serial = started(marks, 2), SerialEngine(marks.kernel)
    serial.begin(1, marks.model)
    jobs = [marks.job(number) for number in range(6)]
    assert results(engine, jobs) == results(serial, jobs)
    kill(engine, 0)
    assert rows(engine, marks, 5, 0, 3).tobytes() == rows(serial, marks, 5, 0, 3).tobytes()


def ends_its_process(model: Tensors, data: Any, task: Task) -> Update:
    """As a client for which the memory does not suffice."""
    if int(data[0][0, 0] if isinstance(data, tuple) else data.x[0, 0]) == 3:
        os._exit(9)
    return mark(model, data, task)


@TODAY
def test_a_client_that_ends_every_actor_ends_the_run_with_a_sentence(started: Any) -> None:
    marks = Marks(ends_its_process)
    engine = started(marks, 1)
    assert engine.result(marks.job(2)).weight == 3
    with pytest.raises(SimulationError, match=r"3 actors of Ray died, .* while they trained client '.*' in round 1"):
        engine.result(marks.job(3))


@TODAY
def test_the_command_trains_on_ray(cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'name = "small"\n[task]\nlearner = "quorate:adult-logistic"\n'
        "[cohort]\nselect = 2\ngoal = 2\n[finish]\nrounds = 1\n"
    )
    table = tmp_path / "mine.npz"
    np.savez(table, x=np.zeros((40, 108), np.float32), y=np.arange(40) % 2)
    models = []
    for engine in ("processes", "ray"):
        folder = tmp_path / engine
        asked = [str(file), "--data", str(table), "--clients", "4", "--workers", "2", "--folder", str(folder)]
        with pytest.raises(SystemExit) as end:
            cli.main(["simulate", *asked, "--engine", engine])
        assert end.value.code in (0, None), capsys.readouterr().err
        models.append(History.open(folder).checkpoints[1].digest)
    assert models[0] == models[1]


def test_parts_of_gpus_and_cores() -> None:
    """Several clients have one GPU where there are more actors than GPUs; Ray counts in ten-thousandths."""
    found = [_share(of, among) for of, among in ((0.0, 3), (1.0, 1), (1.0, 4), (8.0, 4), (2.0, 3))]
    assert found == [0, 1, 0.25, 1, 0.6666]


def test_a_state_on_this_machine_s_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match='engine="processes" trains it'):
        simulate(
            plan(strategy={"name": "scaffold", "parameters": {"population": 12}}, aggregation={"weighting": "equal"}),
            NET,
            clients(),
            engine="ray",
            progress=False,
        )


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "simulation.engines.ray_actors")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SimulationError, match=r"pip install 'quorate\[ray\]'"):
        engine_called("ray")
