"""Strategies in simulated rounds, and rules, optimizers and codecs that are objects of a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.codecs import FLOAT16
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.aggregation.combining import Combined
from coordinator.engine.aggregation.parameters import Parameter
from coordinator.engine.aggregation.strategy import Strategy
from coordinator.engine.plan_file import PlanError
from simulation import Behaviour, History, simulate
from simulation.engines import EngineName

pytestmark = pytest.mark.whole

CLIENTS = {f"c{at}": (np.full((4, 1), float(at), np.float32), np.zeros(4)) for at in range(4)}
CLASSES = {"c0": "phone", "c1": "phone", "c2": "server", "c3": "server"}
INIT = {"w": np.zeros(3, np.float32)}
PLAN: dict[str, Any] = {
    "name": "own",
    "task": {"learning_rate": 0.5, "steps": 8, "batch_size": 4},
    "cohort": {"select": 4, "goal": 4, "quorum": 0.5, "collect_s": 60},
    "finish": {"rounds": 4},
}


def learner(model: Tensors, data: Any, task: Task) -> Update:
    """Moves by rate times steps, and reports them."""
    steps = task.steps or 1
    work = Work(steps=steps, steps_planned=steps, epochs=1.0, examples_seen=4)
    moved = np.full(3, task.learning_rate * steps, np.float32)
    return Update({"w": moved}, 4, work=work, metrics={"loss": float(data[0][0, 0])})


class Fewer(Strategy):
    """Phones do half of the work; each round everybody moves at half the rate of the one before."""

    def decide(self, task: Task, version: int, small: Any, settings: Any, device_class: str) -> Mapping[str, float]:
        return {
            "learning_rate": task.learning_rate / 2 ** small.get("rounds", 0),
            "steps": 4 if device_class == "phone" else 8,
        }

    def combine(
        self, parent: Any, sources: Any, tensors: Any, small: Any, settings: Any, seed: bytes, usual: Any
    ) -> Combined:
        made = usual.combine(parent, sources, tensors, small, settings, seed)
        return made._replace(small={"rounds": small.get("rounds", 0) + 1})


class Double:
    """A server optimizer: twice the mean."""

    slots = ()
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def first(self, settings: Any) -> tuple[float, ...]:
        return ()

    def apply(self, model: Any, mean: Any, state: Any, learning_rate: float, settings: Any) -> Any:
        return model + np.float32(2 * learning_rate) * mean


class Largest:
    """A rule: the largest value of each coordinate, times a number."""

    needs = "all"
    takes_weights = False
    parameters: ClassVar[Mapping[str, Parameter]] = {"times": Parameter(meaning="times", default=1.0)}

    def combine(self, columns: Any, weights: Any, settings: Any) -> Any:
        return columns.max(axis=0) * np.float32(settings["times"])


class Coarse:
    """A codec: halves of three bits less."""

    name = "notebook:coarse@1"
    lossless = False

    def encode(self, delta: Any, origin: Any) -> Any:
        halves = FLOAT16.encode(delta, origin)
        return {name: (half.view(np.uint16) & np.uint16(0xFC00)).view(np.float16) for name, half in halves.items()}

    def decode(self, tensors: Any) -> Any:
        return FLOAT16.decode(tensors)

    def wire(self, manifest: Any) -> Any:
        return FLOAT16.wire(manifest)

    def blocks(self, source: Any, header: Any, block: int = 65536) -> Any:
        return FLOAT16.blocks(source, header, block)


def models(history: History) -> list[float]:
    return [float(history.checkpoint(version)["w"][0]) for version in sorted(history.checkpoints)]


def run(plan: Any = PLAN, **more: Any) -> History:
    return simulate(
        plan,
        learner,
        CLIENTS,
        **{"init": INIT, "classes": CLASSES, "keep_checkpoints": "all", "progress": False, **more},
    )


WANTED = [0.0, 3.0, 4.5, 5.25, 5.625]


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_an_object_of_a_notebook_decides_by_class_and_by_its_small_state(engine: EngineName) -> None:
    history = run(strategy=Fewer(), engine=engine)
    assert models(history) == WANTED
    assert history.plan.strategy is not None
    assert (history.plan.strategy.name, history.plan.strategy.version) == ("notebook:fewer", "1")


def test_a_resumed_run_goes_on_with_it_and_without_it_says_what_is_missing(tmp_path: Path) -> None:
    run(strategy=Fewer(), rounds=2, folder=tmp_path)
    named = {**PLAN, "strategy": {"name": "notebook:fewer", "version": "1"}}
    with pytest.raises((PlanError, ValueError), match="the strategy notebook:fewer 1 is not installed here"):
        run(named, folder=tmp_path)
    assert models(run(strategy=Fewer(), folder=tmp_path)) == WANTED


def test_late_devices_of_a_resumed_run_had_the_work_that_was_decided(tmp_path: Path) -> None:
    slow = {"behaviour": {"phone": Behaviour(step_s=0.5), "server": Behaviour(step_s=7.0)}, "seed": 1}
    plan = {**PLAN, "cohort": {**PLAN["cohort"], "goal": 2, "select": 4, "quorum": 1.0}}
    whole = run(plan, strategy=Fewer(), **slow)
    run(plan, strategy=Fewer(), rounds=2, folder=tmp_path, **slow)
    again = run(plan, strategy=Fewer(), folder=tmp_path, **slow)
    assert any(one.late for one in whole.rounds), "nobody was late: the test shows nothing"
    assert models(again) == models(whole)
    assert [(one.late, one.seconds) for one in again.rounds] == [(one.late, one.seconds) for one in whole.rounds]


def test_one_client_is_trained_again_with_the_task_that_it_had(tmp_path: Path) -> None:
    run(strategy=Fewer(), folder=tmp_path)
    update: Any = simulate(
        PLAN, learner, CLIENTS, classes=CLASSES, strategy=Fewer(), folder=tmp_path, only="c1", round=3, progress=False
    )
    assert update.delta["w"].tolist() == [0.125 * 4] * 3
    assert update.work.steps == 4


def test_a_client_is_trained_again_with_the_rates_of_its_round(tmp_path: Path) -> None:
    plan = {**PLAN, "schedule": {"learning_rate": {"shape": "steps", "factor": 0.5}}}
    run(plan, folder=tmp_path)
    update: Any = simulate(plan, learner, CLIENTS, folder=tmp_path, only="c1", round=3, progress=False)
    assert update.delta["w"].tolist() == [0.125 * 8] * 3


def test_rules_server_optimizers_and_codecs_are_objects_too() -> None:
    fewer = {**PLAN, "aggregation": {"weighting": "equal", "rule_parameters": {"times": 3}}, "finish": {"rounds": 1}}
    history = run(fewer, strategy=Fewer(), rule=Largest(), server_optimizer=Double(), codec=Coarse())
    assert models(history)[-1] == 2 * 3 * 4.0
    said = history.plan
    assert (said.aggregation.rule, said.aggregation.rule_version) == ("notebook:largest", "0")
    assert (said.aggregation.server_optimizer, said.task.codec) == ("notebook:double", "notebook:coarse@1")
    rough = run({**PLAN, "task": {**PLAN["task"], "learning_rate": 0.37}, "finish": {"rounds": 1}}, codec=Coarse())
    assert models(rough)[-1] == 2.0, "0.37 times 8 is 2.96, and three bits of it are left"


def test_a_plan_file_may_get_an_object(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'name = "own"\n[task]\nlearner = "a:b"\nlearning_rate = 0.5\nsteps = 8\nbatch_size = 4\n'
        "[cohort]\nselect = 4\ngoal = 4\nquorum = 0.5\ncollect_s = 60\n[finish]\nrounds = 4\n"
    )
    assert models(run(path, strategy=Fewer())) == WANTED


class Numbers(Strategy):
    parameters: Any = MappingProxyType({"many": 3})


@pytest.mark.parametrize(
    ("plan", "given", "against"),
    [
        ({**PLAN, "strategy": {"name": "fednova"}}, {"strategy": Fewer()}, "strategy= is given, and the plan says"),
        ({**PLAN, "aggregation": {"rule": "median"}}, {"rule": Largest()}, "rule= is given, and the plan says"),
        (PLAN, {"strategy": Fewer}, "strategy= is a class: give an object of it, Fewer()"),
        (PLAN, {"codec": FLOAT16}, "codec= has the name 'float16@1': give it one as of a package"),
        (PLAN, {"strategy": "scaffold"}, "the plan names what is built in, strategy.name = 'scaffold'"),
        (PLAN, {"strategy": Numbers()}, "its parameters are a dict from names to Parameter(meaning=...), and have 3"),
        (PLAN, {"rule": object()}, "cannot be used: its entry point returns an object without needs"),
    ],
)
def test_what_cannot_be_taken_is_one_sentence(plan: Any, given: dict[str, Any], against: str) -> None:
    with pytest.raises((ValueError, PlanError)) as error:
        run(plan, **given)
    assert against in str(error.value)


def test_adaptive_mu_is_told_to_clients() -> None:
    def telling(model: Tensors, data: Any, task: Task) -> Update:
        """Moves by mu; the loss rises with each round."""
        return Update({"w": np.full(3, task.mu, np.float32)}, 4, metrics={"loss": float(model["w"][0]) + 1})

    plan = {**PLAN, "task": {**PLAN["task"], "mu": 0.25}, "strategy": {"name": "adaptive-mu"}}
    found = simulate(plan, telling, CLIENTS, init=INIT, keep_checkpoints="all", progress=False)
    np.testing.assert_allclose(np.diff(models(found)), [0.25, 0.25, 0.35, 0.45], rtol=1e-6)
