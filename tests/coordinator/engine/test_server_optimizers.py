"""Server optimizers: each keeps to the contract, and does what its paper says, by a reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coordinator.engine.aggregation.adaptive import FEDADAM
from coordinator.engine.aggregation.optimizers import FedAvgM, is_layerwise
from coordinator.engine.aggregation.parameters import settings
from coordinator.engine.aggregation.registry import SERVER_OPTIMIZERS
from quorate.testing import ServerOptimizerContract

Float64 = NDArray[np.float64]


BLOCKWISE: dict[str, Any] = {name: found for name, found in SERVER_OPTIMIZERS.items() if not is_layerwise(found)}
"""``test_layerwise`` has the others."""
GIVEN: dict[str, dict[str, float]] = {"fedadagrad": {"beta1": 0.5}, "radam": {"layerwise": 1, "lookahead": 3}}
"""Parameters as a plan sets them, where the defaults do not do."""


def contract(name: str) -> type[ServerOptimizerContract]:
    """The contract's tests for one entry of the registry."""
    body = {"optimizer": SERVER_OPTIMIZERS[name], "given": GIVEN.get(name, {})}
    return type(f"Test_{name}", (ServerOptimizerContract,), body)


for _name in SERVER_OPTIMIZERS:  # a new entry is among them by itself
    globals()[f"Test_{_name}"] = contract(_name)


def test_a_state_that_is_not_written_in_place_is_seen() -> None:
    class Forgetful(FedAvgM):
        def apply(self, model: Any, mean: Any, state: Any, learning_rate: float, settings: Any) -> Any:
            state[0] = np.array(state[0])
            return super().apply(model, mean, state, learning_rate, settings)

    made: Any = contract("fedavgm")()
    made.test_the_state_that_it_declares_is_written_into_the_vectors_that_it_gets()
    made.optimizer = Forgetful()
    with pytest.raises(AssertionError):
        made.test_the_state_that_it_declares_is_written_into_the_vectors_that_it_gets()


# ---------------------------------------------------------------- the papers' lines, in float64

MEANS = [np.array([1.0, -0.5, 0.0, 2e-3]), np.array([0.25, -0.5, 0.0, -4e-3]), np.array([-2.0, 0.125, 1e-6, 8e-3])]
START = np.array([0.5, 0.5, -0.25, 1.0])
LR = 0.1


def adaptive(second: Callable[[Float64, Float64, float], Float64], given: Mapping[str, float]) -> list[Float64]:
    """Reddi et al. 2021, Algorithm 2: the model after each round."""
    beta1, tau = given["beta1"], given["tau"]
    m, v, w = np.zeros(4), np.full(4, tau**2), START
    line = []
    for delta in MEANS:
        m = beta1 * m + (1 - beta1) * delta
        v = second(v, delta**2, given.get("beta2", 0.0))
        w = w + LR * m / (np.sqrt(v) + tau)
        line.append(w)
    return line


def momentum(given: Mapping[str, float]) -> list[Float64]:
    """Hsu et al. 2019: the model after each round."""
    v, w, line = np.zeros(4), START, []
    for delta in MEANS:
        v = given["momentum"] * v + delta
        w = w + LR * v
        line.append(w)
    return line


def test_nesterovs_momentum_is_that_of_torch_bit_by_bit() -> None:
    """Every number is a small dyadic one, so that a fused multiply-add rounds nothing either."""
    rng = np.random.default_rng(3)
    means = [rng.integers(-64, 64, 1000).astype(np.float32) / 32 for _ in range(4)]
    own, own_settings = FedAvgM(), settings("fedavgm", "p", FedAvgM.parameters, {"momentum": 0.5, "nesterov": 1})
    model, state = np.zeros(1000, np.float32), [np.zeros(1000, np.float32)]
    parameter = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([parameter], lr=0.25, momentum=0.5, nesterov=True)
    for mean in means:
        model = own.apply(model, mean, state, 0.25, own_settings)
        parameter.grad = torch.from_numpy(-mean)
        optimizer.step()
        assert np.array_equal(model, parameter.detach().numpy())
    plain = own.apply(
        np.zeros(1000, np.float32), means[0], [np.zeros(1000, np.float32)], 0.25, {**own_settings, "nesterov": 0}
    )
    assert not np.array_equal(plain, 0.25 * 1.5 * means[0])


def test_nesterov_is_on_or_off() -> None:
    with pytest.raises(ValueError, match=r"nesterov \(0\.5\) of fedavgm must be whole, from 0 and below 2"):
        settings("fedavgm", "server_optimizer_parameters", FedAvgM.parameters, {"nesterov": 0.5})
    assert settings("fedavgm", "p", FedAvgM.parameters, {})["nesterov"] == 0


REFERENCES: dict[str, tuple[Callable[[Mapping[str, float]], list[Float64]], dict[str, float]]] = {
    "average": (lambda given: list(START + LR * np.cumsum(MEANS, axis=0)), {}),
    "fedavgm": (momentum, {"momentum": 0.7}),
    "fedadagrad": (lambda given: adaptive(lambda v, square, _: v + square, given), {"beta1": 0.3, "tau": 0.01}),
    "fedadam": (
        lambda given: adaptive(lambda v, square, beta2: beta2 * v + (1 - beta2) * square, given),
        {"beta1": 0.8, "beta2": 0.95, "tau": 0.01},
    ),
    "fedyogi": (
        lambda given: adaptive(lambda v, square, beta2: v - (1 - beta2) * square * np.sign(v - square), given),
        {"beta1": 0.8, "beta2": 0.95, "tau": 0.01},
    ),
}


def played(optimizer: Any, given: Mapping[str, float], *, forget: bool = False) -> list[Float64]:
    """The model after each round, by the product. ``forget``: its state is not read."""
    whole = settings("it", "here", optimizer.parameters, given)
    first = [np.full(4, value, np.float32) for value in optimizer.first(whole)]
    state, model, line = [one.copy() for one in first], START.astype(np.float32), []
    for delta in MEANS:
        if forget:
            state = [one.copy() for one in first]
        model = optimizer.apply(model, delta.astype(np.float32), state, LR, whole)
        line.append(model.astype(np.float64))
    return line


@pytest.mark.parametrize("name", BLOCKWISE)
def test_three_rounds_are_those_of_the_paper(name: str) -> None:
    reference, given = REFERENCES[name]
    for found, wanted in zip(played(BLOCKWISE[name], given), reference(given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6)


@pytest.mark.parametrize("name", [name for name in BLOCKWISE if name != "average"])
def test_the_state_matters_from_the_second_round_on(name: str) -> None:
    given = REFERENCES[name][1]
    whole, without = (played(BLOCKWISE[name], given, forget=forget) for forget in (False, True))
    assert (whole[0] == without[0]).all()
    assert (np.abs(whole[1] - without[1]) > 1e-4).any()


def test_the_first_round_of_fedadam_by_hand() -> None:
    """m = 0.1 D = 0.1, v = 0.99 * 0.01^2 + 0.01 * 1 = 0.010099: 0 + 0.1 * 0.1 / (0.100493... + 0.01)."""
    given = {"beta1": 0.9, "beta2": 0.99, "tau": 0.01}
    state = [np.zeros(1, np.float32), np.full(1, 1e-4, np.float32)]
    model = FEDADAM.apply(np.zeros(1, np.float32), np.ones(1, np.float32), state, 0.1, given)
    assert model[0] == pytest.approx(0.01 / (np.sqrt(0.010099) + 0.01), rel=1e-6)
    assert state[0][0] == pytest.approx(0.1, rel=1e-6)
    assert state[1][0] == pytest.approx(0.010099, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "rate"), [("average", 0.5), ("fedavgm", 0.05), ("fedadagrad", 0.5), ("fedadam", 0.05), ("fedyogi", 0.05)]
)
def test_a_bowl_is_walked_down_and_its_floor_is_not_left(name: str, rate: float) -> None:
    """Each round's mean delta points to the minimum at ``target``, as the gradient of 1/2 |w - target|^2 does."""
    optimizer = BLOCKWISE[name]
    given = settings(name, "here", optimizer.parameters, {})
    target = np.array([3.0, -1.0, 0.25], np.float32)
    model = np.zeros(3, np.float32)
    state = [np.full(3, value, np.float32) for value in optimizer.first(given)]
    for _ in range(600):
        model = optimizer.apply(model, target - model, state, rate, given)
    np.testing.assert_allclose(model, target, atol=0.02)
