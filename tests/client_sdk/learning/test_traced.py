"""Local steps by graphs, client by client and stacked: the updates of autograd but for roundings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client_sdk.learning import Learner
from client_sdk.learning.errors import Diverged, NoExamples
from client_sdk.learning.local_sgd import local_sgd
from client_sdk.learning.stacked import Stacks
from client_sdk.learning.traced import Graphs, NotTraced
from client_sdk.protocol.devices import Task
from client_sdk.update import Update

RNG = np.random.default_rng(0)
_FIRST = RNG.bit_generator.state
TASK = Task(learner="tests:net", batch_size=4, learning_rate=0.1, epochs=2, seed=1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.out.weight = self.into.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.relu(self.out(torch.relu(self.into(x)))))
        return logits


class Unreached(nn.Linear):
    """The loss depends on one of its two parameters."""

    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = functional.max_pool2d(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 6, 6)))), 2)
        logits: torch.Tensor = self.head(found.flatten(1))
        return logits


class Words(nn.Module):
    """An encoder of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(self.embedding(x)).mean(1))
        return logits


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 3))


def half_frozen() -> nn.Module:
    model = perceptron()
    next(model.parameters()).requires_grad_(False)
    return model


class Counting(nn.Linear):
    """A buffer that says how often it was called, in training."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count: Any = self.seen
        count += 1
        logits: torch.Tensor = super().forward(x) / count
        return logits


@pytest.fixture(autouse=True)
def _same_data() -> None:
    """Each test draws the same data, whichever ran before it in this process."""
    RNG.bit_generator.state = _FIRST


def flat(count: int) -> tuple[Any, Any]:
    return RNG.standard_normal((count, 6)).astype(np.float32), RNG.integers(0, 3, count)


def images(count: int) -> tuple[Any, Any]:
    return RNG.standard_normal((count, 36)).astype(np.float32), RNG.integers(0, 3, count)


def words(count: int) -> tuple[Any, Any]:
    return RNG.integers(0, 11, (count, 5)), RNG.integers(0, 3, count)


def named(one: Any) -> str:
    """Of a parameter."""
    return getattr(one, "__name__", None) or str(one)


def distance(one: Any, other: Any) -> float:
    """The relative L2 difference of two updates."""
    ours, theirs = (
        np.concatenate([array.ravel() for array in update.delta.values()]).astype(np.float64) for update in (one, other)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def traced(learner: Learner, task: Task, data: Any, **more: Any) -> tuple[Update, Graphs]:
    graphs = Graphs(learner.loss)
    loop = partial(local_sgd, graphs=graphs)
    return learner.train(learner.initial(3), data, task, device="a", round=2, loop=loop, **more), graphs


def pair(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss that counts examples of class 0 twice."""
    weights = torch.where(targets == 0, 2.0, 1.0)
    return (weights * functional.cross_entropy(outputs, targets, reduction="none")).sum(), weights.sum()


MODELS: list[Any] = [
    (perceptron, flat),
    (normed, flat),
    (dropping, flat),
    (half_frozen, flat),
    (Tied, flat),
    (Images, images),
    (Words, words),
    (Counting, flat),
]


CHANGES: list[dict[str, Any]] = [
    {"mu": 0.5},
    {"max_grad_norm": 0.1},
    {"drop_last": True},
    {"steps": 3, "epochs": None},
]


@pytest.mark.parametrize(
    ("model", "data", "changes"),
    [*((*one, {}) for one in MODELS), *((perceptron, flat, one) for one in CHANGES), (Images, images, CHANGES[1])],
    ids=named,
)
def test_a_traced_step_is_that_of_autograd(model: Any, data: Any, changes: dict[str, Any]) -> None:
    """In float64, where roundings are below those of an update."""
    learner = Learner(model=lambda: model().double(), loss=functional.cross_entropy)
    task, examples = TASK.model_copy(update=changes), data(10)
    found, graphs = traced(learner, task, examples)
    plain = learner.train(learner.initial(3), examples, task, device="a", round=2)
    assert graphs.reason == ""
    assert distance(found, plain) <= 1e-6
    assert found.work == plain.work
    assert found.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)])
def test_an_optimizer_of_the_learners_own_gets_the_gradients(optimizer: Any) -> None:
    learner = Learner(model=perceptron, loss=pair, optimizer=optimizer)
    examples = flat(10)
    found, graphs = traced(learner, TASK, examples)
    plain = learner.train(learner.initial(3), examples, TASK, device="a", round=2)
    assert graphs.reason == ""
    assert distance(found, plain) <= 1e-6
    assert found.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-6)


def test_a_strategys_offset_is_added() -> None:
    learner = Learner(model=perceptron, loss=pair)
    examples = flat(10)
    offset = {"0.weight": np.full((5, 6), 0.3, np.float32)}
    found, _ = traced(learner, TASK, examples, offset=offset)
    plain = learner.train(learner.initial(3), examples, TASK, device="a", round=2, offset=offset)
    assert distance(found, plain) <= 1e-6


def test_a_graph_is_traced_once_for_each_shape_and_is_told_the_rate() -> None:
    learner, examples = Learner(model=perceptron, loss=functional.cross_entropy), flat(10)
    graphs = Graphs(learner.loss)
    loop = partial(local_sgd, graphs=graphs)
    for rate in (0.1, 0.2):
        task = TASK.model_copy(update={"learning_rate": rate})
        found = learner.train(learner.initial(3), examples, task, device="b", loop=loop)
        assert distance(found, learner.train(learner.initial(3), examples, task, device="b")) <= 1e-5
    assert len(graphs._graphs) == 2, "batches of 4 and of 2"


def reading(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(outputs, targets)
    return loss * 2 if loss.item() > 1 else loss


class Long(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2500):
            x = x + 1e-4
        return super().forward(x)


@pytest.mark.parametrize(
    ("learner", "says"),
    [
        (Learner(model=perceptron, loss=reading), "its loss reads a tensor's values in Python"),
        (Learner(model=lambda: Long(6, 3), loss=functional.cross_entropy), "more than 2,000 operators"),
        (
            Learner(
                model=lambda: nn.Sequential(nn.Embedding(11, 3, sparse=True), nn.Flatten(), nn.Linear(15, 3)),
                loss=functional.cross_entropy,
            ),
            "",
        ),
    ],
)
def test_what_cannot_be_traced_is_trained_by_autograd_and_says_why(learner: Learner, says: str) -> None:
    data = flat(10) if says else words(10)
    found, graphs = traced(learner, TASK, data)
    plain = learner.train(learner.initial(3), data, TASK, device="a", round=2)
    assert says in graphs.reason
    assert graphs.reason
    assert all(array.tobytes() == plain.delta[name].tobytes() for name, array in found.delta.items())


def test_a_loss_that_is_not_finite_is_named_with_its_step() -> None:
    learner = Learner(model=perceptron, loss=functional.mse_loss)
    x, _ = flat(10)
    data = x, np.full((10, 3), 1e30, np.float32)
    with pytest.raises(Diverged, match="at step 1 is inf"):
        traced(learner, TASK, data)


# ------------------------------------------------------------ stacked


def stack(learner: Learner, task: Task, clients: Any, lanes: int = 4) -> list[Any]:
    return learner.train_stack(learner.initial(3), clients, task, round=2, stacks=Stacks(learner.loss, lanes))


@pytest.mark.parametrize(
    ("model", "data", "changes"),
    [
        (perceptron, flat, {}),
        (half_frozen, flat, {"drop_last": True}),
        (Tied, flat, {"steps": 3, "epochs": None}),
        (Images, images, {}),
        (perceptron, flat, {"batch_size": 64}),
        (half_frozen, flat, {"mu": 2.0}),
        (perceptron, flat, {"max_grad_norm": 0.2}),
        (Images, images, {"mu": 0.5, "max_grad_norm": 0.3}),
        (Unreached, flat, {"mu": 0.5, "max_grad_norm": 0.3}),
    ],
    ids=named,
)
def test_stacked_clients_train_as_each_alone(model: Any, data: Any, changes: dict[str, Any]) -> None:
    learner = Learner(model=lambda: model().double(), loss=functional.cross_entropy)
    task = TASK.model_copy(update=changes)
    clients = [("a", data(10)), ("b", data(4)), ("c", data(13))]
    for (device, examples), found in zip(clients, stack(learner, task, clients), strict=True):
        plain = learner.train(learner.initial(3), examples, task, device=device, round=2)
        assert distance(found, plain) <= 1e-6
        assert found.work == plain.work
        assert found.model == plain.model
        assert found.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-6)


@pytest.mark.parametrize("changes", [{}, {"mu": 2.0, "max_grad_norm": 0.2}])
def test_a_smaller_batch_is_trained_alone_where_a_loss_leaves_no_example_out(changes: dict[str, Any]) -> None:
    learner, task = Learner(model=perceptron, loss=functional.mse_loss), TASK.model_copy(update=changes)
    clients = [(name, (flat(count)[0], RNG.random((count, 3), np.float32))) for name, count in (("a", 6), ("b", 9))]
    for (device, examples), found in zip(clients, stack(learner, task, clients), strict=True):
        plain = learner.train(learner.initial(3), examples, task, device=device, round=2)
        assert distance(found, plain) <= 1e-6


def product(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that may be finite where its gradient has no norm in float32."""
    return (outputs * targets).mean()


def test_gradients_without_a_finite_norm_are_the_error_of_their_client() -> None:
    learner, task = Learner(model=Unreached, loss=product), TASK.model_copy(update={"max_grad_norm": 1.0})
    x, y = flat(10)[0], np.ones((10, 3), np.float32)
    clients = [("a", (x, y)), ("b", (x * np.float32(1e25), y))]
    whole, (_, data) = stack(learner, task, clients), clients[1]
    with pytest.raises(Diverged) as alone:
        learner.train(learner.initial(3), data, task, device="b", round=2)
    assert "norm at step 1 is inf" in str(alone.value)
    assert str(whole[1]) == str(alone.value)
    assert distance(whole[0], learner.train(learner.initial(3), clients[0][1], task, device="a", round=2)) <= 1e-5


def test_bits_depend_on_who_is_stacked_alone() -> None:
    learner = Learner(model=perceptron, loss=functional.cross_entropy)
    clients = [("a", flat(10)), ("b", flat(4)), ("c", flat(13))]
    one, other = stack(learner, TASK, clients), stack(learner, TASK, clients)
    for ours, theirs in zip(one, other, strict=True):
        assert all(array.tobytes() == theirs.delta[name].tobytes() for name, array in ours.delta.items())


def test_an_error_is_that_of_its_client() -> None:
    learner = Learner(model=perceptron, loss=functional.cross_entropy)
    x, y = flat(10)
    clients = [("a", flat(10)), ("b", (x[:0], y[:0])), ("c", (np.full_like(x, np.nan), y)), ("d", flat(5))]
    found = stack(learner, TASK, clients)
    assert isinstance(found[1], NoExamples)
    assert isinstance(found[2], Diverged)
    plain = learner.train(learner.initial(3), clients[3][1], TASK, device="d", round=2)
    assert distance(found[3], plain) <= 1e-5


@pytest.mark.parametrize(
    ("model", "loss", "changes", "says"),
    [
        (perceptron, functional.cross_entropy, {"score_held_out": True}, "score the model"),
        (perceptron, pair, {}, "pair"),
        (dropping, functional.cross_entropy, {}, "random"),
        (Counting, functional.cross_entropy, {}, "in place, as BatchNorm does"),
    ],
)
def test_what_cannot_be_stacked_says_why(model: Callable[[], nn.Module], loss: Any, changes: Any, says: str) -> None:
    with pytest.raises(NotTraced, match=says):
        stack(Learner(model=model, loss=loss), TASK.model_copy(update=changes), [("a", flat(10)), ("b", flat(9))])


def test_clients_of_several_shapes_are_not_stacked() -> None:
    learner = Learner(model=Images, loss=functional.cross_entropy)
    x, y = images(10)
    with pytest.raises(NotTraced, match="shapes"):
        stack(learner, TASK, [("a", (x, y)), ("b", (x.reshape(-1, 6, 6), y))])


def test_a_stack_whose_batches_do_not_fit_at_once_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(model=perceptron, loss=functional.cross_entropy)
    clients = [("a", flat(10)), ("b", flat(4)), ("c", flat(13))]
    whole = stack(learner, TASK, clients)
    monkeypatch.setattr("client_sdk.learning.stacked._MOST_BYTES", 1)
    for ours, theirs in zip(stack(learner, TASK, clients), whole, strict=True):
        assert all(array.tobytes() == theirs.delta[name].tobytes() for name, array in ours.delta.items())


def test_gradients_of_16_bits_are_clipped_by_a_factor_of_more() -> None:
    """The factor was rounded to the gradients' type: a small one to another, or to 0."""
    learner = Learner(model=lambda: perceptron().to(torch.float16), loss=functional.cross_entropy)
    task, examples = TASK.model_copy(update={"max_grad_norm": 1e-5, "learning_rate": 900.0}), [flat(9), flat(9)]
    clients, stacks = [("a", examples[0]), ("b", examples[1])], Stacks(learner.loss, 2)
    found = learner.train_stack(learner.initial(3), clients, task, round=2, stacks=stacks)[0]
    plain = learner.train(learner.initial(3), examples[0], task, device="a", round=2)
    assert isinstance(found, Update)
    assert distance(found, plain) <= 1e-3
