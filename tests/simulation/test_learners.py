"""The learners that come with Quorate: their sizes, what they take, that they learn, and that an installation finds
them."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import numpy as np
import pytest
import torch

from client_sdk.learning import Learner
from client_sdk.protocol.devices import Task
from simulation import learners
from simulation.learners import (
    MnistCnn,
    MnistMlp,
    MnistMlp200,
    ShakespeareLstm,
    adult_logistic,
    mnist_cnn,
    mnist_mlp,
    mnist_mlp_200,
    shakespeare_lstm,
    shakespeare_lstm_unrolled,
)

TASK = Task(learner="quorate:mnist-mlp", epochs=5, batch_size=20, learning_rate=0.1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten made-up digits: each class lights a band of rows of its own, under noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, count)
    pixels = rng.integers(0, 120, (count, 28, 28))
    for row in range(count):
        pixels[row, 2 * y[row] : 2 * y[row] + 4] += 80
    return pixels.astype(np.uint8), y


def test_it_is_a_784_64_10_perceptron():
    start = mnist_mlp().initial(0)
    shapes = {"hidden.weight": (64, 784), "hidden.bias": (64,), "output.weight": (10, 64), "output.bias": (10,)}
    assert {name: array.shape for name, array in start.items()} == shapes
    assert sum(array.size for array in start.values()) == 50_890


PARAMETERS = {
    "mnist-mlp": 50_890,
    "mnist-mlp-200": 199_210,
    "mnist-cnn": 1_663_370,
    "shakespeare-lstm": 819_920,
    "shakespeare-lstm-unrolled": 819_920,
    "adult-logistic": 218,
}
"""Entry point -> parameters; the MNIST ones as McMahan et al. state them."""


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_the_installation_has_each_with_its_number_of_parameters(name: str, count: int):
    (found,) = entry_points(group="quorate.learners", name=name)
    learner = found.load()()
    assert sum(array.size for array in learner.initial(0).values()) == count
    assert learner.version == version("quorate")
    assert f"quorate:{name}`" in (learners.__doc__ or "")
    assert f" {count:,} |" in (learners.__doc__ or "")


def test_the_front_door_is_as_listed():
    assert all(hasattr(learners, name) for name in learners.__all__)
    functions = {name for name in learners.__all__ if name.islower()}
    assert functions == {name.replace("-", "_") for name in PARAMETERS}


@pytest.mark.parametrize("kind", [MnistMlp, MnistMlp200, MnistCnn])
def test_images_may_be_square_or_flat_bytes_or_floats(kind: type[torch.nn.Module]):
    pixels, _ = images(5)
    model = kind()
    wanted = model(torch.from_numpy(pixels.astype(np.float32) / np.float32(255)))
    assert wanted.shape == (5, 10)
    for other in (pixels, pixels.reshape(5, 784), pixels[:, None]):
        assert torch.equal(model(torch.from_numpy(other)), wanted)


class AsItWas(torch.nn.Module):
    """The demo's model, written out as it was when learners were one file; recorded runs rest on its bits."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(784, 64)
        self.output = torch.nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        if not pixels.is_floating_point():
            pixels = pixels.to(self.hidden.weight.dtype) / 255
        return self.output(torch.relu(self.hidden(pixels)))


def test_the_small_perceptron_keeps_its_bits():
    before = Learner(model=AsItWas, loss=torch.nn.functional.cross_entropy)
    start, data = mnist_mlp().initial(0), images(100)
    wanted = before.initial(0)
    assert {name: array.tobytes() for name, array in start.items()} == {n: a.tobytes() for n, a in wanted.items()}
    one, other = (learner.train(start, data, TASK, device="d", round=1) for learner in (before, mnist_mlp()))
    assert {n: a.tobytes() for n, a in one.delta.items()} == {n: a.tobytes() for n, a in other.delta.items()}


def characters(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts that count up by one in a vocabulary of 80, from anywhere; and what follows each character."""
    starts = np.random.default_rng(0).integers(0, 80, count)
    codes = (starts[:, None] + np.arange(width + 1)) % 80
    return codes[:, :-1].astype(np.uint8), codes[:, 1:].astype(np.uint8)


def people(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((count, 108)).astype(np.float32)
    return x, (x[:, 3] > 0).astype(np.int64)


def sample_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    match name.split("-")[0]:
        case "mnist":
            return images(20)
        case "adult":
            return people(20)
    x, y = characters(10, 12)
    return (x, y) if name.endswith("unrolled") else (x, y[:, -1])


@pytest.mark.parametrize("name", PARAMETERS)
def test_one_step_lowers_the_loss(name: str):
    learner = getattr(learners, name.replace("-", "_"))()
    start, data = learner.initial(0), sample_of(name)
    task = Task(learner=f"quorate:{name}", steps=1, batch_size=20, learning_rate=0.1)
    update = learner.train(start, data, task, device="d", round=1)
    before = learner.evaluate(start, data)
    after = learner.evaluate({tensor: start[tensor] + update.delta[tensor] for tensor in start}, data)
    assert set(after.metrics) == {"loss", "accuracy"}
    assert after.metrics["loss"] < before.metrics["loss"]
    assert update.metrics["loss"] == pytest.approx(before.metrics["loss"], rel=1e-5)


def test_the_network_of_the_paper_sees_where_things_are():
    """An MLP does not care in which order pixels come; convolutions and pooling do."""
    shapes = {name: array.shape for name, array in mnist_cnn().initial(0).items() if name.endswith("weight")}
    assert shapes == {
        "first.weight": (32, 1, 5, 5),
        "second.weight": (64, 32, 5, 5),
        "dense.weight": (512, 3136),
        "output.weight": (10, 512),
    }
    assert mnist_mlp_200().initial(0)["second.weight"].shape == (200, 200)


def test_characters_of_any_integer_type_and_both_ways_to_score():
    codes, _ = characters(3, 20)
    torch.manual_seed(0)
    last, every = ShakespeareLstm(), ShakespeareLstm(every_position=True)
    every.load_state_dict(last.state_dict())
    wanted = last(torch.from_numpy(codes))
    assert wanted.shape == (3, 80)
    assert torch.equal(last(torch.from_numpy(codes.astype(np.int64))), wanted)
    everywhere = every(torch.from_numpy(codes))
    assert everywhere.shape == (3, 80, 20)
    torch.testing.assert_close(everywhere[:, :, -1], wanted)
    torch.testing.assert_close(everywhere[:, :, 4], last(torch.from_numpy(codes[:, :5])))
    assert set(shakespeare_lstm().initial(3)) == set(shakespeare_lstm_unrolled().initial(3))


def test_logistic_regression_starts_undecided_and_learns():
    learner, data = adult_logistic(), people(500)
    start = learner.initial(0)
    assert learner.evaluate(start, data).metrics["loss"] == pytest.approx(np.log(2))
    task = Task(learner="quorate:adult-logistic", epochs=5, batch_size=20, learning_rate=0.1)
    update = learner.train(start, data, task, device="d", round=1)
    assert learner.evaluate(update.delta, data).metrics["accuracy"] > 0.9


def test_it_learns():
    learner = mnist_mlp()
    start, data = learner.initial(0), images(400)
    before = learner.evaluate(start, data)
    update = learner.train(start, data, TASK, device="d", round=1)
    after = learner.evaluate({name: start[name] + update.delta[name] for name in start}, data)
    assert set(after.metrics) == {"loss", "accuracy"}
    assert before.metrics["accuracy"] < 0.3
    assert after.metrics["accuracy"] > 0.9


def test_the_installation_finds_it_with_the_distribution_s_version():
    (found,) = entry_points(group="quorate.learners", name="mnist-mlp")
    learner = found.load()()
    assert isinstance(learner, Learner)
    assert learner.version == version("quorate")
