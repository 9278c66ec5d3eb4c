"""Rounds of functions through a real server process, real clients and HTTP: the mean that is computed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from threading import Thread

import numpy as np
import pytest

from client_sdk.data import Examples
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client
from client_sdk.http.operator import OperatorClient
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from client_sdk.update import Update
from tests.coordinator.service.conftest import Server

SIZES = (3, 17, 40, 41, 64, 90)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator"))
    yield running
    running.stop()


def shards(seed: int = 4) -> list[Examples]:
    """One for each size, each with labels of its own kind: the devices disagree."""
    rng = np.random.default_rng(seed)
    found = []
    for number, size in enumerate(SIZES):
        x = rng.standard_normal((size, 6)).astype(np.float32)
        y = np.where(rng.random(size) < 0.7, number % 3, (x[:, 0] > 0).astype(np.int64))
        found.append(Examples(x, y.astype(np.int64)))
    return found


def train_over_http(
    server: Server, operator: OperatorClient, run: str, name: str, learner: object, data: list[Examples], rounds: int
) -> dict[str, int]:
    """A client in a thread for each part of the data, until the run has ended: device id -> number of its part."""

    def device(number: int) -> None:
        trainer = LearnerTrainer(Catalogue({name: learner}, installed=[]), data[number])
        with Client(
            server.url, MemoryStorage(), trainer, enrolment_token=server.token, label=f"{run}-{number}", hold_s=20
        ) as client:
            client.run(rounds=rounds)

    threads = [Thread(target=device, args=(number,), daemon=True) for number in range(len(data))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for _ in operator.events(run):
        pass
    found = [one for one in operator.devices(limit=1000) if one.label.startswith(f"{run}-")]
    assert len(found) == len(data)
    return {one.device: int(one.label.rsplit("-", 1)[1]) for one in found}


def federate(
    server: Server, learner_name: str, learner: object, initial: Tensors, rounds: int, **rule: object
) -> list[Tensors]:
    """Every device takes part in every round. Returns the checkpoints."""
    data = shards()
    with OperatorClient(server.url) as operator:
        plan = {
            "name": learner_name.split(":")[1],
            "task": {"learner": learner_name},
            "cohort": {"select": len(SIZES), "goal": len(SIZES), "collect_s": 60},
            "aggregation": rule,
            "finish": {"rounds": rounds},
        }
        run = operator.create_run(plan, operator.upload_checkpoint(to_bytes(initial)), "a test").run

        train_over_http(server, operator, run, learner_name, learner, data, rounds)
        view = operator.run(run)
        assert (view.status, view.version) == ("finished", rounds)
        assert [found.funnel.reported for found in operator.rounds(run)] == [len(SIZES)] * rounds
        return [from_bytes(operator.checkpoint(found.digest)) for found in operator.checkpoints(run)]


def towards_the_mean(model: Tensors, data: Examples, task: Task) -> Update:
    """One exact step to the mean of the device's labels, in quarters, so that no rounding hides a wrong weight."""
    target = np.float32(np.round(4 * data.y.mean()) / 4)
    return Update({"w": np.full(4, target) - model["w"]}, len(data), work=Work(steps=1, steps_planned=1))


def densenet121() -> list[str]:
    """The names of its 727 tensors, as torchvision has them."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    layers = [f"denseblock{b}.denselayer{i}" for b, n in enumerate((6, 12, 24, 16), 1) for i in range(1, n + 1)]
    found = ["conv0.weight", *(f"norm0.{part}" for part in norm), *(f"norm5.{part}" for part in norm)]
    for layer in layers:
        found += [f"{layer}.{one}.{part}" for one in ("norm1", "norm2") for part in norm]
        found += [f"{layer}.{one}.weight" for one in ("conv1", "conv2")]
    for number in (1, 2, 3):
        found += [f"transition{number}.norm.{part}" for part in norm] + [f"transition{number}.conv.weight"]
    return [f"features.{name}" for name in found] + ["classifier.weight", "classifier.bias"]


def by_one_size(model: Tensors, data: Examples, task: Task) -> Update:
    return Update({name: np.ones_like(value) for name, value in model.items() if value.dtype == np.float32}, len(data))


@pytest.mark.slow
def test_a_model_of_many_tensors_is_trained_over_http_with_a_server_optimizer(server: Server):
    """The headers of checkpoints, updates and states have more than 64 KiB, which once was the most."""
    initial: Tensors = {
        name: np.array(3, np.int64) if name.endswith("tracked") else np.zeros((1, 1, 1, 1), np.float32)
        for name in densenet121()
    }
    assert len(initial) == 727
    assert len(to_bytes(initial)) > 64 * 1024
    rule = {"server_optimizer": "fedavgm", "server_optimizer_parameters": {"momentum": 0.5}}
    line = federate(server, "tests:densenet", by_one_size, initial, 2, **rule)
    for name, found in line[2].items():
        moved = 2.0 if "running_" in name else 2.5  # statistics have no momentum
        assert found.tolist() == (3 if name.endswith("tracked") else [[[[moved]]]])


@pytest.mark.slow
def test_a_round_of_plain_functions_is_the_weighted_mean(server: Server):
    initial = {"w": np.arange(4, dtype=np.float32)}
    line = federate(server, "tests:mean", towards_the_mean, initial, 1)
    targets = [Fraction(float(np.round(4 * shard.y.mean()) / 4)) for shard in shards()]
    assert len(set(targets)) > 1
    mean = sum(target * size for target, size in zip(targets, SIZES, strict=True)) / sum(SIZES)
    for number, weight in enumerate(line[1]["w"].tolist()):
        change = mean - number
        assert abs(Fraction(weight) - mean) <= abs(change) * Fraction(1, 2**24) + Fraction(1, 2**33) + mean / 2**24
