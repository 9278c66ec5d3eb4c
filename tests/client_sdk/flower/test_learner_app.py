"""A Quorate learner as a ClientApp: called as Flower calls it, and once under Flower's own simulation."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx

from client_sdk.flower import client_app
from client_sdk.flower.flwr_private import received_message
from client_sdk.learners import LearnerError
from client_sdk.learning import accuracy
from client_sdk.protocol.devices import Task
from quorate import Learner, Update
from tests.rotating import on_day


def learner() -> Learner:
    import torch
    from torch import nn

    return Learner(
        model=lambda: nn.Linear(3, 2),
        loss=nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        training_metrics=True,
        version=f"1 of {torch.__version__}",
    )


def data(partition: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(20 + 10 * partition, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def message(content: RecordDict, kind: str) -> Message:
    """A message that has arrived now."""
    metadata = Metadata(1, "m", 1, 7, "", "2", time.time(), 60.0, kind)
    return received_message(content, metadata)


def ask(app: ClientApp, kind: str, model: Any, partition: int = 1, **config: Any) -> RecordDict:
    """The content of the app's reply to a message that a strategy would send."""
    content = RecordDict({"arrays": model, "config": ConfigRecord({"server-round": 2, **config})})
    context = Context(
        run_id=1,
        node_id=7,
        node_config={"partition-id": partition, "num-partitions": 2},
        state=RecordDict(),
        run_config={"lr": 0.5, "batch-size": 10},
    )
    reply = app(message(content, kind), context)
    assert not reply.has_error()
    return reply.content


def arrays(tensors: dict[str, Any]) -> ArrayRecord:
    from flwr.app import Array

    return ArrayRecord({name: Array(value) for name, value in tensors.items()})


def test_it_trains_as_the_learner_does_with_the_fields_of_the_run_and_the_message() -> None:
    own = learner()
    model = own.initial(seed=3)
    app = client_app(own, lambda context: data(context.node_config["partition-id"]), Task(learner="a:b", seed=5))
    content = ask(app, "train", arrays(model), **{"local-epochs": 2, "proximal-mu": 0.1})
    task = Task(learner="a:b", seed=5, learning_rate=0.5, batch_size=10, epochs=2, mu=0.1)
    update = own.train(model, data(1), task, device="1", round=2)
    assert list(content["arrays"]) == list(model)
    for name, array in content["arrays"].items():
        np.testing.assert_array_equal(array.numpy(), model[name] + update.delta[name])
    assert content["metrics"]["num-examples"] == 30
    assert content["metrics"]["loss"] == update.metrics["loss"]
    assert set(content["metrics"]) == {"num-examples", "loss", "accuracy"}


def test_it_evaluates_on_the_held_out_part() -> None:
    own = learner()
    model = own.initial(seed=3)

    class Parts:
        train, test = data(0), data(1)

    content = ask(client_app(own, Parts()), "evaluate", arrays(model))
    score = own.evaluate(model, data(1))
    assert dict(content["metrics"]) == {"num-examples": 30, **score.metrics}


def test_a_plain_function_is_a_learner_too() -> None:
    def step(model: Any, data: Any, task: Task) -> Update:
        return Update({"w": np.full(2, task.learning_rate, np.float32)}, examples=4)

    content = ask(client_app(step, (np.zeros(4), np.zeros(4))), "train", arrays({"w": np.ones(2), "n": np.arange(3)}))
    np.testing.assert_array_equal(content["arrays"]["w"].numpy(), np.full(2, 1.5))
    assert content["arrays"]["w"].numpy().dtype == np.float64
    np.testing.assert_array_equal(content["arrays"]["n"].numpy(), np.arange(3))


def test_a_learner_that_trains_in_place_and_reuses_its_output_changes_nobody_elses_arrays() -> None:
    import torch

    out = np.zeros(2, np.float32)
    own = data(0)
    before = own[0].copy()

    def careless(model: Any, data: Any, task: Task) -> Update:
        weights = torch.from_numpy(model["w"])
        weights += 1  # in place, through every flag
        torch.from_numpy(data[0]).zero_()
        out[:] = weights.numpy()
        return Update({"w": out}, examples=4)

    app = client_app(careless, own)
    sent = arrays({"w": np.full(2, 3, np.float32)})
    first = ask(app, "train", sent)["arrays"]["w"].numpy().tolist()
    kept = ask(app, "train", sent)["arrays"]
    out[:] = 99
    assert (first, kept["w"].numpy().tolist()) == ([7, 7], [7, 7]), "3 + (3 + 1), both times"
    assert sent["w"].numpy().tolist() == [3, 3]
    assert own[0].tobytes() == before.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_an_error_and_no_reply(value: float) -> None:
    """A strategy would average them into everybody's model."""

    def broken(model: Any, data: Any, task: Task) -> Update:
        return Update({"w": np.array([0, value])}, examples=4)

    with pytest.raises(LearnerError, match="the delta of 'w' holds NaN or infinity"):
        ask(client_app(broken, data(0)), "train", arrays({"w": np.ones(2)}))


def test_a_message_without_a_model_is_refused_in_a_sentence() -> None:
    app = client_app(learner(), data(0))
    with pytest.raises(LearnerError, match="needs one record of arrays, its model; the message has 0"):
        app(
            message(RecordDict(), "train"),
            Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={}),
        )


@pytest.fixture
def scratch() -> Iterator[str]:
    """A folder with a short name: those of Ray's sockets have a limit of some 100 characters."""
    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder


@on_day(1, of=4)
def test_it_runs_under_flowers_own_simulation(monkeypatch: pytest.MonkeyPatch, scratch: str) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.simulation import run_simulation

    own = learner()
    model = own.initial(seed=3)
    task = Task(learner="a:b", seed=5, learning_rate=0.5, batch_size=10)
    app = client_app(own, lambda context: data(context.node_config["partition-id"]), task)
    server, results = ServerApp(), []

    @server.main()
    def main(grid: Any, context: Context) -> None:
        strategy = FedProx(proximal_mu=0.01, fraction_evaluate=1.0, min_available_nodes=2)
        assert isinstance(strategy, FedAvg)
        results.append(strategy.start(grid=grid, initial_arrays=arrays(model), num_rounds=2))

    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=2,
        backend_config={
            "init_args": {"_temp_dir": scratch},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    expected = dict(model)
    for number in (1, 2):
        updates = [
            own.train(expected, data(device), task.model_copy(update={"mu": 0.01}), device=str(device), round=number)
            for device in (0, 1)
        ]
        mean = sum(updates[1:], updates[0]).mean()
        expected = {name: array + mean[name] for name, array in expected.items()}
    [result] = results
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), expected[name], rtol=1e-5)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] > 0.5


def test_it_takes_the_state_dict_of_a_model_with_tied_weights_and_answers_under_its_names() -> None:
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
            self.outer.weight = self.inner.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.outer(self.inner(x))
            return found

    own = Learner(model=Tied, loss=nn.functional.cross_entropy)
    app = client_app(own, lambda context: data(context.node_config["partition-id"]))
    model = {name: value.numpy() for name, value in Tied().state_dict().items()}
    found = ask(app, "train", arrays(model), **{"local-epochs": 1})["arrays"]
    assert list(found) == list(model)
    assert found["outer.weight"].numpy().tobytes() == found["inner.weight"].numpy().tobytes()
    assert not np.array_equal(found["outer.weight"].numpy(), model["inner.weight"])
    assert ask(app, "evaluate", arrays(model))["metrics"]["num-examples"] == 30
