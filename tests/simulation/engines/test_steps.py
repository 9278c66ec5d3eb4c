"""Ways to make local steps in a simulation: the same bits in every engine, close to the exact ones, kept by the run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client_sdk.learning import Learner, stacked
from client_sdk.protocol.devices import Task
from coordinator.engine.plan import Plan
from quorate import simulate
from simulation import Clients
from simulation.engines import steps as ways
from simulation.engines.steps import asked, chosen
from simulation.errors import SimulationError, SimulationWarning
from simulation.history import History
from simulation.history.local_steps import EXACT, Steps
from tests.rotating import on_day, taking_turns

RNG = np.random.default_rng(1)
SIZES = (7, 12, 6, 10, 16, 6, 8, 11)
DATA = [(RNG.standard_normal((size, 6)).astype(np.float32), RNG.integers(0, 3, size)) for size in SIZES]
TASK = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def learner(model: Any = perceptron, **more: Any) -> Learner:
    return Learner(model=model, loss=functional.cross_entropy, **more)


def run(steps: str, folder: Path | None = None, rounds: int | None = None, one: Any = None, **more: Any) -> History:
    plan: dict[str, Any] = {
        "cohort": {"select": 8, "goal": more.pop("goal", 8)},
        "task": TASK | more.pop("task", {}),
        "finish": {"rounds": 3},
    }
    found: History = simulate(
        plan, one or learner(), DATA, steps=steps, folder=folder, rounds=rounds, progress=False, **more
    )
    return found


def bits(history: History) -> bytes:
    return b"".join(array.tobytes() for array in history.checkpoint().values())


@pytest.mark.parametrize("steps", ["traced", "stacked-3"])
def test_every_engine_gives_the_same_bits_and_others_than_exact_by_roundings_alone(steps: str) -> None:
    exact, serial = run("exact"), run(steps)
    assert bits(serial) == bits(run(steps))
    for workers in (1, 3):
        assert bits(run(steps, engine="processes", workers=workers)) == bits(serial)
    assert serial.steps == steps
    assert exact.steps == "exact"
    for name, array in exact.checkpoint().items():
        np.testing.assert_allclose(serial.checkpoint()[name], array, atol=1e-5)
    assert f"local steps: {steps}" in serial.summary()
    assert "local steps" not in exact.summary()


@on_day(0, of=2)
def test_a_stack_whose_clients_do_not_all_count_is_the_same_in_every_engine() -> None:
    """A round that closes early counts some clients of a stack."""
    serial = run("stacked-3", goal=5)
    assert len(serial) == 3
    assert bits(run("stacked-3", goal=5, engine="processes", workers=2)) == bits(serial)


@on_day(1, of=2)
def test_a_run_is_resumed_with_the_steps_that_it_was_begun_with(tmp_path: Path, monkeypatch: Any) -> None:
    whole = run("stacked-3")
    run("stacked-3", tmp_path, 1)
    for other in ("exact", "traced", "stacked-2"):
        with pytest.raises(SimulationError, match='was begun with steps="stacked-3": continue it with the same'):
            run(other, tmp_path, 1)
    monkeypatch.setattr(ways, "chosen", None)  # nothing is tried again
    run("stacked", tmp_path, 1)
    assert bits(run("fast", tmp_path)) == bits(whole)
    assert History.open(tmp_path).steps == "stacked-3"


class Forgetful(nn.Linear):
    """Its forward pass counts in Python, which a graph does not."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Narrow(nn.Linear):
    """Reads a value of a batch of more than two examples, which a graph cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 2:
            float(x.sum())
        return super().forward(x)


IN_PLACE = "its model writes to a tensor in place, as BatchNorm does"
DRAWS = "its model draws random numbers, as dropout does, which a stack would draw for all of its clients at once"
READS = "its model or its loss reads a tensor's values in Python"


def plain_function(model: Any, data: Any, task: Any) -> Any:
    from quorate import Update

    return Update({"w": np.ones(3, np.float32)}, examples=len(data[1]))


@pytest.mark.parametrize(
    ("one", "steps", "task", "says"),
    [
        (learner(Forgetful), "traced", {}, "an update differed by "),
        (learner(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))), "stacked-2", {}, IN_PLACE),
        (learner(lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))), "stacked-2", {}, DRAWS),
        (learner(lambda: Narrow(6, 3)), "traced", {}, READS),
        (learner(), "stacked-2", {"score_held_out": True}, "clients score the model that they receive"),
        (learner(optimizer=torch.optim.Adam), "stacked", {}, "its optimizer is not plain SGD"),
        (learner(lambda: nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 3))), "stacked", {}, ""),
        (plain_function, "fast", {}, "makes its steps itself"),
    ],
)
def test_what_differs_or_cannot_be_is_exact_and_says_why(one: Any, steps: str, task: Any, says: str) -> None:
    more = {"init": {"w": np.zeros(3, np.float32)}} if one is plain_function else {}
    if not says:
        assert run(steps, rounds=1, one=one).steps.startswith("stacked-")  # small enough: the control
        return
    history = run(steps, rounds=1, one=one, task=task, **more)
    assert history.steps == "exact"
    assert says in history.steps_reason
    assert f"local steps: exact, since {history.steps_reason}" in history.summary()
    assert bits(history) == bits(run("exact", rounds=1, one=one, task=task, **more))


def test_clients_with_a_proximal_term_and_clipped_gradients_are_stacked() -> None:
    """The trial holds them against the exact ones."""
    history = run("stacked-3", rounds=1, task={"mu": 0.1, "max_grad_norm": 0.5})
    assert (history.steps, history.steps_reason) == ("stacked-3", "")


def builds(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the batches for which a graph of a stack is built from now on."""
    found, build = list[torch.Size](), stacked.StackedGraph

    def counted(module: Any, loss: Any, names: Any, x: torch.Tensor, y: Any, **how: Any) -> Any:
        found.append(x.shape)
        return build(module, loss, names, x, y, **how)

    monkeypatch.setattr(stacked, "StackedGraph", counted)
    return found


@pytest.mark.parametrize("steps", taking_turns("stacked", "fast"))
def test_what_cannot_be_stacked_is_built_once_and_not_for_each_number_of_clients(
    steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = builds(monkeypatch)
    monkeypatch.setattr(ways._Trial, "seconds", lambda trial: {"exact": 1.0}.get(trial.stepper.steps.name, 2.0))
    history = run(steps, one=learner(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))))
    assert history.steps == "exact"
    assert IN_PLACE in history.steps_reason
    assert len(built) == 1


def test_a_shape_that_cannot_be_stacked_is_built_once_however_many_clients_and_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, one = builds(monkeypatch), learner(lambda: Narrow(6, 3))
    stepper, model = ways.Stepper(one, Steps("stacked", 2)), one.initial(0)
    clients = [(f"device {number}", data) for number, data in enumerate(DATA)]

    def failed(number: int) -> list[Any]:
        return [found for found in stepper.all(model, clients, task(), number) if isinstance(found, Exception)]

    with pytest.warns(SimulationWarning, match=f"in round 1 clients could not be stacked, .*: {READS}"):
        assert not failed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not failed(2)
    assert built == [torch.Size([2, 4, 6])]
    assert stepper.refused == READS


def test_a_large_model_is_not_stacked() -> None:
    large = learner(lambda: nn.Sequential(nn.Linear(6, 300_000), nn.Linear(300_000, 3)))
    found = chosen("stacked", large, plan(), Clients.of(DATA), large.initial(0)).steps
    assert (found.kind, found.reason) == (
        "exact",
        "so many models do not fit into a cache, or a round has not so many clients",
    )


def task() -> Task:
    return Task(learner="tests:net", **TASK)


def plan(select: int = 8, *, least: int = 1, **changes: Any) -> Plan:
    cohort = {"select": select, "goal": select, "min_examples": least}
    return Plan.parse({"name": "steps", "task": {"learner": "tests:net", **TASK, **changes}, "cohort": cohort})


def test_the_fastest_way_is_chosen_by_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way takes as long as this table says."""
    costs = {"exact": 4.0, "traced": 2.0, "stacked-4": 3.0, "stacked-8": 1.0}
    monkeypatch.setattr(ways._Trial, "seconds", lambda trial: costs[trial.stepper.steps.name])
    one = learner()

    def found(steps: str) -> Steps:
        return chosen(steps, one, plan(), Clients.of(DATA), one.initial(0)).steps

    assert found("fast") == Steps("stacked", 8)
    costs["exact"] = 0.5
    assert found("fast") == Steps(reason="nothing was faster")
    assert found("stacked") == Steps("stacked", 8)


def test_the_trial_has_a_smaller_last_batch() -> None:
    def sizes(task: Task, least: int = 1) -> list[int]:
        return [len(data[1]) for _, data in ways._selectable(Clients.of(DATA), task, least)]

    assert sizes(task()) == [7, 11, 6, 10, 15, 6, 7, 11]
    assert all(size % 4 for size in sizes(task()))
    assert sizes(task(), 12) == [12, 15]
    assert sizes(task().model_copy(update={"drop_last": True})) == list(SIZES)
    assert sizes(task().model_copy(update={"drop_last": True, "batch_size": 16})) == [7, 12, 6, 10, 16, 6, 7, 11]


@pytest.mark.parametrize("steps", ["traced", "fast"])
def test_steps_are_tried_on_clients_that_the_plan_may_select(steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with one example, on which BatchNorm cannot train, is never selected where the plan asks for two."""
    monkeypatch.setattr(ways._Trial, "seconds", lambda trial: {"exact": 2.0}.get(trial.stepper.steps.name, 1.0))
    normed = learner(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    clients = Clients.of([(x[:size], y[:size]) for (x, y), size in zip([DATA[1]] * 4, (1, 8, 2, 9), strict=True)])
    found = chosen(steps, normed, plan(3, least=2, drop_last=True), clients, normed.initial(0)).steps
    assert (found.kind, found.reason) == ("traced", "")
    alone = chosen(steps, normed, plan(3, least=10), clients, normed.initial(0)).steps
    assert alone == Steps(reason="no client has as many examples as the plan asks for")


def test_labels_of_eight_bits_are_stacked() -> None:
    clients = Clients.of([(x, y.astype(np.uint8)) for x, y in DATA[:3]])
    assert chosen("stacked-2", learner(), plan(3), clients, learner().initial(0)).steps == Steps("stacked", 2)


def test_a_model_that_normalizes_over_its_batch_is_not_stacked_where_batches_are_filled_up() -> None:
    """The first clients fill a power of two, which is smaller than a batch; the examples that fill up others count."""
    normed = learner(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False)))
    clients = Clients.of([(x[:size], y[:size]) for (x, y), size in zip([DATA[1]] * 4, (8, 8, 8, 5), strict=True)])
    found = chosen("stacked-2", normed, plan(4, batch_size=32), clients, normed.initial(0)).steps
    assert found.kind == "exact"
    assert "an update differed" in found.reason


@pytest.mark.parametrize("name", ["slow", "traced-2", "stacked-", "stacked-1", "stacked-x", "", None])
def test_an_unknown_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="there are no local steps"):
        run(name)


def test_what_an_origin_says_is_read_again() -> None:
    for one in (EXACT, Steps("traced"), Steps("stacked", 16), Steps(reason="it fails; (really)")):
        found = Steps.of("made by simulate" + one.said + "; secure rounds are simulated without masks")
        assert (found.name, found.reason) == (one.name, one.reason.replace(";", ","))
    assert asked("stacked-16") == ("stacked", 16)
