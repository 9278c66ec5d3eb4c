"""LARS, LAMB and RAdam with LookAhead on the server: the steps of their papers, by transcriptions in float64 that keep
the papers' signs (the gradient is minus the mean delta), which are held against torch and against the datacenter's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_sdk.tensors import Manifest, TensorSpec
from coordinator.datacenter.optimizers import Lamb, Lars
from coordinator.engine.aggregation.combining import Sources, flat
from coordinator.engine.aggregation.parameters import ExtensionError, settings
from coordinator.engine.aggregation.registry import RULES, SERVER_OPTIMIZERS, Chosen
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from tests.coordinator.engine.test_server_optimizers import contract

Layers = dict[str, NDArray[np.float64]]
Line = list[Layers]

RATE, STEPS = 0.05, 12
SHAPES = {"b": (4,), "one": (1, 1), "w": (30, 50), "zero": (2, 3)}
"""Biases, a layer of one value, one of more than a chunk of a norm, and one that begins with zeros."""
MANIFEST = Manifest({name: TensorSpec("F32", shape) for name, shape in SHAPES.items()})


def drawn() -> tuple[Layers, Line]:
    """The first model, and the mean delta of each round. In rounds 3 and 9 nothing was learned of ``w``."""
    rng = np.random.default_rng(6)
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    start["zero"][:] = 0
    means = [
        {name: (rng.normal(0.1, 0.3, shape) * 10.0 ** -(at % 3)).astype(np.float32) for name, shape in SHAPES.items()}
        for at in range(STEPS)
    ]
    means[2]["w"][:] = means[8]["w"][:] = 0
    return _wide(start), [_wide(mean) for mean in means]


def _wide(layers: Mapping[str, Any]) -> Layers:
    return {name: values.astype(np.float64) for name, values in layers.items()}


def played(name: str, given: Mapping[str, float], width: int = 1 << 16) -> Line:
    """The model after each round, by the product."""
    optimizer = SERVER_OPTIMIZERS[name]
    whole = settings(name, "here", optimizer.parameters, given)
    chosen = Chosen(rule=RULES["mean"], rule_settings={}, optimizer=optimizer, optimizer_settings=whole)
    start, means = drawn()
    model, places = _flat(start), MANIFEST.slices()
    state = np.tile(np.array(optimizer.first(whole), np.float32), (model.size, 1))
    small: Mapping[str, Any] = {}
    line = []
    for at, mean in enumerate(means, 1):
        sources = Sources(lambda mean=mean: flat(_flat(mean)), MANIFEST, model.size)  # type: ignore[misc]
        tensors = {SERVER_OPTIMIZER: flat(state.copy())}
        made = chosen.combine(flat(model), sources, tensors, small, {"server_learning_rate": RATE}, b"")
        following = model.copy()
        for place in places.values():
            for first in range(place.start, place.stop, width):
                part = slice(first, min(first + width, place.stop))
                following[part] = made.model.read(first, part.stop - first)
                state[part] = made.tensors[SERVER_OPTIMIZER].read(first, part.stop - first)
        model, small = following, made.small
        assert small == {SERVER_OPTIMIZER: at}
        line.append({name: model[place].reshape(SHAPES[name]).astype(np.float64) for name, place in places.items()})
    return line


def _flat(layers: Layers) -> NDArray[np.float32]:
    return np.concatenate([values.ravel() for values in layers.values()]).astype(np.float32)


# ---------------------------------------------------------------- the papers, with g the gradient


def each_layer(step: Callable[..., Callable[[NDArray[np.float64], NDArray[np.float64], int], Any]]) -> Line:
    """The model after each round. ``step(values)``: makes the function of a layer, its gradient and the number of the
    step that gives the next values."""
    start, means = drawn()
    steps = {name: step(values) for name, values in start.items()}
    line, model = [], start
    for t, mean in enumerate(means, 1):
        model = {name: steps[name](values, -mean[name], t) for name, values in model.items()}
        line.append(model)
    return line


def lars(momentum: float, eta: float, beta: float) -> Line:
    """You et al. 2017, Algorithm 1."""

    def of(first: NDArray[np.float64]) -> Any:
        v = np.zeros_like(first)

        def step(w: NDArray[np.float64], g: NDArray[np.float64], t: int) -> Any:
            nonlocal v
            trust, decay = 1.0, beta
            if w.ndim < 2:
                decay = 0.0
            elif np.any(w) and np.any(g):
                trust = eta * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
            v = momentum * v + RATE * trust * (g + decay * w)
            return w - v

        return step

    return each_layer(of)


def lamb(beta1: float, beta2: float, eps: float, decay: float) -> Line:
    """You et al. 2020, Algorithm 2."""

    def of(first: NDArray[np.float64]) -> Any:
        m, v = np.zeros_like(first), np.zeros_like(first)

        def step(x: NDArray[np.float64], g: NDArray[np.float64], t: int) -> Any:
            nonlocal m, v
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
            return x - RATE * scaled(x, r, decay)

        return step

    return each_layer(of)


def scaled(x: NDArray[np.float64], r: NDArray[np.float64], decay: float) -> Any:
    """phi(|x|) / |r + decay x| (r + decay x), with phi the identity."""
    if x.ndim < 2:
        return r
    r = r + decay * x
    long, change = np.linalg.norm(x), np.linalg.norm(r)
    return long / change * r if long and change else r


def radam(beta1: float, beta2: float, eps: float, decay: float, by_layer: int, k: int = 0, alpha: float = 0.5) -> Line:
    """Liu et al. 2020, Algorithm 2, within Zhang et al. 2019, Algorithm 1."""

    def of(first: NDArray[np.float64]) -> Any:
        m, v, slow = np.zeros_like(first), np.zeros_like(first), first

        def step(x: NDArray[np.float64], g: NDArray[np.float64], t: int) -> Any:
            nonlocal m, v, slow
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            most = 2 / (1 - beta2) - 1
            rho = most - 2 * t * beta2**t / (1 - beta2**t)
            r = m / (1 - beta1**t)
            if rho > 5:
                q = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
                r = q * r * np.sqrt(1 - beta2**t) / (np.sqrt(v) + eps)
            r = scaled(x, r, decay) if by_layer else r + (decay * x if x.ndim > 1 else 0)
            fast = x - RATE * r
            if k and t % k == 0:
                slow = fast = slow + alpha * (fast - slow)
            return fast

        return step

    return each_layer(of)


NUMBERS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "weight_decay": 0.02}
ADAM = tuple(NUMBERS.values())
CASES: dict[str, tuple[str, Mapping[str, float], Line]] = {
    "lars": (
        "lars",
        {"momentum": 0.7, "trust_coefficient": 0.03, "weight_decay": 0.1},
        lars(0.7, 0.03, 0.1),
    ),
    "lars, not decayed": ("lars", {}, lars(0.9, 0.001, 0.0)),
    "lamb": ("lamb", NUMBERS, lamb(*ADAM)),
    "radam": ("radam", NUMBERS, radam(*ADAM, 0)),
    "radam, by layer": ("radam", {**NUMBERS, "layerwise": 1}, radam(*ADAM, 1)),
    "lookahead": ("radam", {**NUMBERS, "lookahead": 5, "lookahead_rate": 0.3}, radam(*ADAM, 0, 5, 0.3)),
    "rangerlars": ("radam", {**NUMBERS, "layerwise": 1, "lookahead": 3}, radam(*ADAM, 1, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_the_paper(case: str) -> None:
    name, given, wanted = CASES[case]
    found = played(name, given)
    for step, (one, other) in enumerate(zip(found, wanted, strict=True), 1):
        for layer in SHAPES:
            np.testing.assert_allclose(one[layer], other[layer], rtol=2e-5, atol=2e-6, err_msg=f"{layer}, step {step}")
    moved = {layer: np.abs(found[-1][layer] - drawn()[0][layer]).max() for layer in SHAPES}
    assert min(moved.values()) > 1e-4, "every layer was moved"


def by_torch(make: Callable[[list[Any]], torch.optim.Optimizer]) -> Line:
    """The model after each round, by an optimizer of torch in float64."""
    start, means = drawn()
    model = {name: torch.nn.Parameter(torch.tensor(values)) for name, values in start.items()}
    optimizer, line = make(list(model.values())), []
    for mean in means:
        for name, one in model.items():
            one.grad = torch.tensor(-mean[name])
        optimizer.step()
        line.append({name: one.detach().numpy().copy() for name, one in model.items()})
    return line


AS_TORCH: dict[str, tuple[Line, Callable[[list[Any]], torch.optim.Optimizer]]] = {
    "radam": (
        radam(0.8, 0.95, 1e-4, 0.0, 0),
        lambda params: torch.optim.RAdam(params, lr=RATE, betas=(0.8, 0.95), eps=1e-4),
    ),
    "radam, decayed": (
        radam(*ADAM, 0),
        lambda params: torch.optim.RAdam(
            [
                {"params": [one for one in params if one.ndim > 1], "weight_decay": 0.02},
                {"params": [one for one in params if one.ndim < 2]},
            ],
            lr=RATE,
            betas=(0.8, 0.95),
            eps=1e-4,
            decoupled_weight_decay=True,
        ),
    ),
    "lars": (lars(0.7, 0.03, 0.1), lambda params: Lars(params, RATE, 0.7, 0.1, 0.03)),
    "lamb": (lamb(*ADAM), lambda params: Lamb(params, RATE, (0.8, 0.95), 1e-4, 0.02)),
}


@pytest.mark.parametrize("name", AS_TORCH)
def test_the_transcriptions_are_torchs_radam_and_the_datacenters_lars_and_lamb(name: str) -> None:
    transcribed, make = AS_TORCH[name]
    for one, other in zip(transcribed, by_torch(make), strict=True):
        for layer in SHAPES:
            np.testing.assert_allclose(one[layer], other[layer], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_the_width_of_a_block_changes_no_bit(case: str) -> None:
    name, given, _ = CASES[case]
    whole = [_flat(model).tobytes() for model in played(name, given)]
    for width in (7, 1024):
        assert [_flat(model).tobytes() for model in played(name, given, width)] == whole


@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.6, 0.9999])
def test_radam_takes_every_beta2(beta2: float) -> None:
    """Below 2/3 rho never reaches 5: no step is divided by the root."""
    found = played("radam", {"beta2": beta2})
    for one, other in zip(found, radam(0.9, beta2, 1e-8, 0.0, 0), strict=True):
        for layer in SHAPES:
            np.testing.assert_allclose(one[layer], other[layer], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(("name", "rate"), [("lars", 5.0), ("lamb", 0.01), ("radam", 0.02)])
def test_a_bowl_is_walked_down_and_its_floor_is_not_left(name: str, rate: float) -> None:
    """Each round's mean delta points to the minimum at ``target``, as the gradient of 1/2 |w - target|^2 does."""
    made: Any = contract(name)()
    made.given = {}
    target, model, state = np.array([3.0, -1.0, 0.25], np.float32), np.ones(3, np.float32), made.begun(3)
    for at in range(1500):
        model = made.step(model, target - model, state, rate * (1 - at / 1500), at + 1)
    np.testing.assert_allclose(model, target, atol=0.02)


def digest(case: str) -> str:
    name, given, _ = CASES[case]
    return hashlib.sha256(_flat(played(name, given)[-1]).tobytes()).hexdigest()


@pytest.mark.slow
def test_another_process_gives_the_same_bits() -> None:
    program = "from tests.coordinator.engine.test_layerwise import *; print({case: digest(case) for case in CASES})"
    more = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
    found = subprocess.run([sys.executable, "-c", program], env=more, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str({case: digest(case) for case in CASES})


# ---------------------------------------------------------------- of packages


class Odd:
    """A package's layer-wise optimizer that gives what it is told to."""

    layerwise = True
    slots: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = {}

    def __init__(self, gives: Callable[[Any], Any]) -> None:
        self._gives = gives
        self.seen: list[tuple[str, tuple[int, ...], int]] = []

    def first(self, settings: Any) -> tuple[float, ...]:
        return ()

    def apply(self, layer: Any, model: Any, mean: Any, state: Any, learning_rate: float, settings: Any) -> Any:
        self.seen.append((layer.name, layer.shape, layer.step))
        assert (model.size, len(state)) == (np.prod(layer.shape), 0)
        return self._gives(model)


def combined(optimizer: Any, steps: int = 4) -> Any:
    chosen = Chosen(rule=RULES["mean"], rule_settings={}, optimizer=optimizer, optimizer_settings={})
    tensors = Manifest({"a": TensorSpec("F32", (2, 3)), "empty": TensorSpec("F32", (0,)), "b": TensorSpec("F32", ())})
    more = Manifest({**tensors, "mean": TensorSpec("F32", (2,))})
    sources = Sources(lambda: flat(np.ones(9, np.float32)), more, tensors.elements)
    return chosen.combine(
        flat(np.zeros(9, np.float32)), sources, {}, {SERVER_OPTIMIZER: steps}, {"server_learning_rate": 1.0}, b""
    )


def test_an_optimizer_gets_whole_layers_once_each_with_their_names_and_the_number_of_the_step() -> None:
    optimizer = Odd(lambda model: model + np.float32(2))
    made = combined(optimizer)
    assert [made.model.read(at, 2).tolist() for at in (0, 2, 4)] == [[2, 2]] * 3
    assert made.model.read(6, 1).tolist() == [2]
    assert made.model.read(7, 2).tolist() == [1, 1], "a statistic has the plain mean"
    assert optimizer.seen == [("a", (2, 3), 5), ("b", (), 5)]
    assert made.small == {SERVER_OPTIMIZER: 5}
    assert not made.model.zero_sum


@pytest.mark.parametrize(
    ("gives", "sentence"),
    [
        (lambda model: 1 / 0, "the server optimizer of the plan failed: ZeroDivisionError"),
        (lambda model: model[:2], r"server optimizer of the plan gives float32 \[2\] for a block of float32 \[6\]"),
        (lambda model: model.reshape(2, 3), r"gives float32 \[2, 3\] for a block of float32 \[6\]"),
    ],
)
def test_what_a_packages_optimizer_does_wrong_is_a_reason(gives: Any, sentence: str) -> None:
    with pytest.raises(ExtensionError, match=sentence):
        combined(Odd(gives)).model.read(0, 2)
