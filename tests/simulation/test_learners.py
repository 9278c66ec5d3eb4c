"""The demo's learner: what it takes, that it learns, and that an installation finds it."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import numpy as np
import pytest
import torch

from client_sdk.learning import Learner
from client_sdk.protocol import Task
from simulation.learners import MnistMlp, mnist_mlp

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


def test_images_may_be_square_or_flat_bytes_or_floats():
    pixels, _ = images(5)
    model = MnistMlp()
    wanted = model(torch.from_numpy(pixels.astype(np.float32) / np.float32(255)))
    assert wanted.shape == (5, 10)
    for other in (pixels, pixels.reshape(5, 784), pixels[:, None]):
        assert torch.equal(model(torch.from_numpy(other)), wanted)


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
