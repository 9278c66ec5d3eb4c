"""Empty copies of a module: the same bits as new ones, nothing shared, and none where a copy might be another thing."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

from client_sdk.learning import Learner
from client_sdk.learning.learner import blank, blueprint
from client_sdk.learning.local_sgd import local_sgd
from client_sdk.protocol.devices import Task
from client_sdk.update import Update

X = np.random.default_rng(0).standard_normal((12, 6)).astype(np.float32)
Y = np.arange(12) % 3
TASK = Task(learner="tests:net", batch_size=4, learning_rate=0.1, epochs=2, seed=1)


class Tied(nn.Module):
    """One weight under two names, a buffer that travels and a random one that does not, and a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 6)
        self.out = nn.Linear(6, 6)
        self.out.weight = self.into.weight
        self.out.bias.requires_grad_(False)
        self.scale, self.sizes, self.nothing = 0.5, (6, (6, 3)), None
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mask", (torch.rand(6) > 0.3).float(), persistent=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        logits: torch.Tensor = self.head(self.out(torch.relu(self.into(x) * self.mask)) * self.scale)
        return logits


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.ReLU(), nn.Linear(5, 3))


class Folded(nn.Module):
    """An image of what goes in, one convolution with its own memory layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, (1, 3)).to(memory_format=torch.channels_last)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.conv(x.reshape(-1, 2, 1, 3)).flatten(1))
        return logits


@pytest.fixture(autouse=True)
def some_chance() -> Iterator[None]:
    """These tests make modules themselves, and leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def learner(model: Callable[[], nn.Module]) -> Learner:
    return Learner(model=model, loss=nn.functional.cross_entropy)


def trained(one: Learner, start: Any, device: str) -> Update:
    return one.train(start, (X, Y), TASK, device=device, round=3)


@pytest.mark.parametrize("model", [Tied, normed, Folded], ids=lambda model: model.__name__)
def test_copies_train_to_the_bits_of_new_modules(model: Callable[[], nn.Module]) -> None:
    assert blueprint(model()) is not None
    one = learner(model)
    start = one.initial(5)
    for device in ("a", "b", "a", "c"):
        ours, new = trained(one, start, device), trained(learner(model), start, device)
        assert {name: array.tobytes() for name, array in ours.delta.items()} == {
            name: array.tobytes() for name, array in new.delta.items()
        }
        assert ours.metrics == new.metrics


def test_the_model_is_made_once_and_every_device_has_its_own() -> None:
    made = []

    def model() -> nn.Module:
        made.append(None)
        return normed()

    one = learner(model)
    start = one.initial(0)
    made.clear()
    modules = [one.load(start) for _ in range(4)]
    assert len(made) == 1
    memory = {tensor.data_ptr() for module in modules for tensor in module.state_dict().values()}
    assert len(memory) == 4 * len(start)
    with torch.no_grad():
        next(modules[1].parameters()).add_(1.0)
    modules[2].eval()
    again = one.load(start)
    assert again.training
    assert all(torch.equal(tensor, torch.from_numpy(start[name])) for name, tensor in again.state_dict().items())


def test_a_copy_is_built_as_the_original() -> None:
    torch.manual_seed(3)
    original = Tied()
    build = blueprint(original)
    assert build is not None
    copy = blank(build)
    assert isinstance(copy, Tied)
    assert copy.out.weight is copy.into.weight
    assert copy.into.weight is not original.into.weight
    assert [p.requires_grad for p in copy.parameters()] == [p.requires_grad for p in original.parameters()]
    assert torch.equal(copy.mask, original.mask)
    assert copy.mask.data_ptr() != original.mask.data_ptr()
    assert (copy.scale, copy.sizes, copy.nothing) == (0.5, (6, (6, 3)), None)
    assert "mask" not in copy.state_dict()
    assert repr(copy) == repr(original)
    copy.out.register_forward_hook(lambda *_: None)
    assert not blank(build).out._forward_hooks
    assert all(p.is_meta for p in build.parameters()), "the blueprint holds no memory"


def with_closure() -> nn.Module:
    module = nn.Linear(6, 3)
    module.run = lambda x: module.weight @ x  # type: ignore[assignment]
    return module


def with_hook() -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda *_: None)
    return module


def with_list() -> nn.Module:
    module = nn.Linear(6, 3)
    module.seen = []  # type: ignore[assignment]
    return module


def with_shared_memory() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3), nn.Linear(6, 3))
    module[1].weight = nn.Parameter(module[0].weight.data)
    return module


def with_a_marked_parameter() -> nn.Module:
    module = nn.Linear(6, 3)
    module.weight.rate = 2.0  # type: ignore[attr-defined]
    return module


def with_gradients() -> nn.Module:
    module = nn.Linear(6, 3)
    module(torch.ones(1, 6)).sum().backward()
    return module


@pytest.mark.parametrize(
    "model",
    [
        with_closure,
        with_hook,
        with_list,
        with_shared_memory,
        with_a_marked_parameter,
        with_gradients,
        lambda: nn.LSTM(6, 3),
        lambda: weight_norm(nn.Linear(6, 3)),
        lambda: nn.LazyLinear(3),
        lambda: nn.Sequential(nn.Linear(6, 3), with_hook()),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_of_others_there_is_no_blueprint(model: Callable[[], nn.Module]) -> None:
    assert blueprint(model()) is None


def test_modules_without_a_blueprint_are_made_anew() -> None:
    made: list[weakref.ref[nn.Module]] = []

    def model() -> nn.Module:
        module = with_closure()
        made.append(weakref.ref(module))
        return module

    one = learner(model)
    start = one.initial(0)
    for device in ("a", "b"):
        assert trained(one, start, device).delta["weight"].any()
    assert len(made) == 3


class Counting(nn.Linear):
    """It counts its calls, which training must not carry from one device to the next."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Replacing(nn.Linear):
    """It gives its weight other memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        with torch.no_grad():
            self.weight.data = self.weight.clone()
        return logits


class Hooking(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_forward_hook(lambda *found: found[2] * 2)
        return super().forward(x)


class Averaging(nn.Linear):
    """It has a moving average in a buffer, and another tensor there after each step."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean(0)
        return logits


class AveragingWithGradients(Averaging):
    """The graph of the step hangs on its buffer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = nn.Linear.forward(self, x)
        self.mean.copy_(logits.mean(0))
        return logits


class OtherScale(nn.Linear):
    """It puts another tensor with the same number in a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale = self.scale * 1.0
        return super().forward(x) * self.scale


class Renaming(nn.Linear):
    """It has another attribute in place of one after its first step."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.fresh = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "fresh" in self.__dict__:
            del self.fresh
            self.used = True
            return super().forward(x) * 2
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "again"),
    [
        (normed, True),
        (Averaging, False),
        (AveragingWithGradients, False),
        (OtherScale, False),
        (Renaming, False),
        (lambda: nn.Linear(6, 3), True),
        (Tied, False),  # it has a buffer that no checkpoint fills
        (Counting, False),
        (lambda: Replacing(6, 3), False),
        (lambda: Hooking(6, 3), False),
        (with_closure, False),
    ],
)
def test_a_module_is_filled_again_only_where_training_left_it_as_new(
    model: Callable[[], nn.Module], again: bool
) -> None:
    one, modules = learner(model), []

    def loop(module: nn.Module, *arguments: Any, **named: Any) -> Any:
        modules.append(module)
        return local_sgd(module, *arguments, **named)

    start = one.initial(2)
    for device in ("a", "b"):
        found = one.train(start, (X, Y), TASK, device=device, loop=loop)
        new = learner(model).train(start, (X, Y), TASK, device=device)
        assert all(array.tobytes() == new.delta[name].tobytes() for name, array in found.delta.items())
    assert (modules[0] is modules[1]) is again
    assert one.load(start) is not modules[1], "who loads a model has it alone"


class StepsByHooks:
    """An optimizer that makes its steps in the backward pass."""

    def __init__(self, params: Any, lr: float) -> None:
        def step(weight: torch.Tensor) -> None:
            with torch.no_grad():
                weight.add_(weight.grad, alpha=-lr)

        self.params = list(params)
        for one in self.params:
            one.register_post_accumulate_grad_hook(step)

    def step(self) -> None:
        pass

    def zero_grad(self) -> None:
        for one in self.params:
            one.grad = None


def test_hooks_that_an_optimizer_leaves_on_weights_are_not_those_of_the_next_training() -> None:
    def made() -> Learner:
        return Learner(model=normed, loss=nn.functional.cross_entropy, optimizer=StepsByHooks)

    one = made()
    start = one.initial(2)
    trained(one, start, "a")
    found, plain = trained(one, start, "a"), trained(made(), start, "a")
    assert all(array.tobytes() == plain.delta[name].tobytes() for name, array in found.delta.items())


def test_a_module_in_use_is_not_filled_by_a_training_inside_the_training() -> None:
    """A loss may use its own learner."""
    inside: list[Any] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not inside:
            inside.append(None)
            inside.append(one.evaluate(start, (X, Y)))
        return nn.functional.cross_entropy(outputs, targets)

    one = Learner(model=normed, loss=loss)
    start = one.initial(2)
    trained(one, start, "a")
    inside.clear()
    found, plain = trained(one, start, "a"), trained(learner(normed), start, "a")
    assert all(array.tobytes() == plain.delta[name].tobytes() for name, array in found.delta.items())


def test_what_one_plan_freezes_another_trains() -> None:
    one = learner(normed)
    start = one.initial(2)
    one.train(start, (X, Y), TASK.model_copy(update={"averaged": ("4.*",)}))
    found, plain = trained(one, start, "a"), trained(learner(normed), start, "a")
    assert all(array.tobytes() == plain.delta[name].tobytes() for name, array in found.delta.items())


def test_a_copy_of_a_learner_has_modules_of_its_own() -> None:
    one, modules = learner(normed), []

    def loop(module: nn.Module, *arguments: Any, **named: Any) -> Any:
        modules.append(module)
        return local_sgd(module, *arguments, **named)

    start = one.initial(2)
    one.train(start, (X, Y), TASK, loop=loop)
    copy.copy(one).train(start, (X, Y), TASK, loop=loop)
    one.train(start, (X, Y), TASK, loop=loop)
    assert modules[0] is modules[2]
    assert modules[0] is not modules[1]
