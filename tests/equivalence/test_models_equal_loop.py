"""Models of many kinds, under each way of adding up, equal a bare PyTorch loop: simulated in both engines, in secure
rounds within their rounding, and deployed.

The loop knows torch and numpy only. It trains ``torch.optim.SGD`` on each client from the global model, takes the
weighted mean of the differences in float64, and applies the server's rule as the papers write it: McMahan et al. 2017
(arXiv:1602.05629), Hsu et al. 2019 (arXiv:1909.06335), Reddi et al. 2021 (arXiv:2003.00295, Algorithm 2). What a model
keeps beside its parameters gets the plain mean. Tolerance: 1e-6 of the largest weight; of bfloat16 one unit in the last
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from client_sdk.data import Examples
from client_sdk.http.operator import OperatorClient
from client_sdk.learning import Learner, batch_order
from client_sdk.tensors import Tensors, from_bytes, to_bytes, widen
from simulation import History, simulate
from simulation.demo.compare import LoopPart, LoopRecipe, fedavg
from simulation.engines import EngineName
from simulation.virtual import secure_world
from tests.coordinator.service.conftest import Server
from tests.equivalence.test_deployed_functions import train_over_http
from tests.rotating import DAY, on_day, taking_turns

SIZES = (4, 7, 12)
ROUNDS = 2
BATCH, RATE, SEED = 4, 0.2, 11
WORDS = 9
Double = NDArray[np.float64]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# ------------------------------------------------------------ models: [batch, 3] word numbers -> [batch, WORDS] scores


class Plain(nn.Module):
    """An embedding, of which a client's words move only some rows, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.head = nn.Linear(6, WORDS)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(x).mean(1)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.features(x))
        return found


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.words.weight


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.words.weight.requires_grad_(False)


class Grouped(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(super().features(x))
        return found


class Normed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(super().features(x))
        return found


class Averaged(Plain):
    """With an exponential moving average of its features in a buffer."""

    ema: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(6))
        self.register_buffer("calls", torch.tensor(0))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        found = super().features(x)
        if self.training:
            with torch.no_grad():
                self.ema.mul_(0.5).add_(found.mean(0), alpha=0.5)
        return found - self.ema


class Adapted(Normed):
    """A model with BatchNorm and a low-rank adapter beside it, as LoRA has it (Hu et al. 2021, arXiv:2106.09685)."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(torch.randn(2, 6))
        self.lora_B = nn.Parameter(torch.zeros(WORDS, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        scores: torch.Tensor = self.head(found) + found @ self.lora_A.T @ self.lora_B.T
        return scores


def half() -> nn.Module:
    return Plain().to(torch.bfloat16)


def double() -> nn.Module:
    return Plain().to(torch.float64)


def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.float(), y)


@dataclass(frozen=True)
class Kind:
    model: Callable[[], nn.Module]
    averaged: tuple[str, ...] = ("*",)
    tolerance: float = 1e-6
    trained: Callable[[str], bool] = field(default=lambda name: True)

    @property
    def learner(self) -> Learner:
        return Learner(model=self.model, loss=loss, averaged=self.averaged, version="1")


MOVING = "moving average"
KINDS = {
    "embedding": Kind(Plain),
    "tied": Kind(Tied),
    "frozen": Kind(Frozen),
    "group norm": Kind(Grouped),
    "batch norm": Kind(Normed, tolerance=2e-6),
    MOVING: Kind(Averaged),
    "adapters": Kind(Adapted, ("lora_*",), trained=lambda name: "lora" in name),
    "all but the head": Kind(Plain, ("!head.*",), trained=lambda name: "head" not in name),
    "bfloat16": Kind(half, tolerance=2.0**-7),
    "float64": Kind(double),
}
RULES: dict[str, dict[str, Any]] = {
    "average": {},
    "rate": {"server_learning_rate": 1.5},
    "clipped": {"clip_norm": 0.05},
    "equal": {"weighting": "equal"},
    "capped": {"weight_cap": 5},
    "fedavgm": {"server_optimizer": "fedavgm", "server_learning_rate": 0.5},
    "nesterov": {"server_optimizer": "fedavgm", "server_optimizer_parameters": {"nesterov": 1}},
    "median": {"rule": "median", "weighting": "equal", "server_learning_rate": 0.5},
    "fedadagrad": {"server_optimizer": "fedadagrad", "server_learning_rate": 0.02},
    "fedadam": {"server_optimizer": "fedadam", "server_learning_rate": 0.02},
    "fedyogi": {"server_optimizer": "fedyogi", "server_learning_rate": 0.02},
}


def of_today(rules: Iterable[str]) -> list[Any]:
    """Kinds with rules: every other one on each day, so that each kind and each rule is there; the others are soak
    tests."""
    cells = enumerate(product(KINDS, rules))
    return [pytest.param(*cell, marks=[pytest.mark.soak] * ((n + DAY) % 2)) for n, cell in cells]


# ------------------------------------------------------------ the loop


def data() -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    rng = np.random.default_rng(5)
    return [(x := rng.integers(0, WORDS, size=(size, 3)), x[:, 0]) for size in SIZES]


def parts(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters, tied ones once, and floating buffers, by name."""
    buffers = {name: one for name, one in module.named_buffers() if one.is_floating_point()}
    return dict(module.named_parameters()), buffers


def numbers(tensors: Mapping[str, torch.Tensor]) -> dict[str, Double]:
    return {name: one.detach().double().numpy().copy() for name, one in tensors.items()}


def trained(kind: Kind, start: nn.Module, number: int, version: int, device: str) -> nn.Module:
    module = kind.model()
    module.load_state_dict(start.state_dict())
    for name, parameter in module.named_parameters():
        if not kind.trained(name):
            parameter.requires_grad_(False)
    x, y = (torch.from_numpy(one) for one in data()[number])
    optimizer = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=RATE)
    order = batch_order(len(y), BATCH, seed=SEED, round=version, device=device)
    for _ in range(-(-len(y) // BATCH)):
        rows = next(order)
        optimizer.zero_grad()
        loss(module(x[rows]), y[rows]).backward()
        optimizer.step()
    return module


def loop(kind: Kind, initial: Tensors, rule: dict[str, Any], ids: list[str]) -> Iterator[dict[str, Double]]:
    """The global model's floating tensors after each round, tied ones once."""
    world = kind.learner.load(initial)
    memory: dict[str, tuple[Double, Double]] = {}
    cap = rule.get("weight_cap", 10_000)
    for version in range(1, ROUNDS + 1):
        before = [numbers(one) for one in parts(world)]
        deltas: list[list[dict[str, Double]]] = []
        for number, device in enumerate(ids):
            after = parts(trained(kind, world, number, version, device))
            change = [{n: numbers(a)[n] - b[n] for n in b} for a, b in zip(after, before, strict=True)]
            norm = np.sqrt(sum((one**2).sum() for one in change[0].values()))
            scale = min(1.0, rule["clip_norm"] / norm) if "clip_norm" in rule else 1.0
            deltas.append([{n: one * scale for n, one in change[0].items()}, change[1]])
        weights = [1 if rule.get("weighting") == "equal" else min(size, cap) for size in SIZES]
        mean = [{n: middle([d[i][n] for d in deltas], weights, rule) for n in before[i]} for i in (0, 1)]
        following = {n: old + (mean[1][n] if kind.trained(n) else 0.0) for n, old in before[1].items()}
        for name, old in before[0].items():
            following[name] = old + (step(rule, mean[0][name], memory, name) if kind.trained(name) else 0.0)
        own = {name: one for tensors in parts(world) for name, one in tensors.items()}
        for name, value in following.items():
            with torch.no_grad():
                own[name].copy_(torch.from_numpy(value))
        yield {name: one.detach().double().numpy().copy() for name, one in own.items()}


def middle(values: list[Double], weights: list[int], rule: dict[str, Any]) -> Double:
    if rule.get("rule") == "median":
        return np.asarray(np.median(values, axis=0))
    return np.asarray(sum(w * one for w, one in zip(weights, values, strict=True)) / sum(weights))


def step(rule: dict[str, Any], d: Double, memory: dict[str, tuple[Double, Double]], name: str) -> Double:
    rate, optimizer = rule.get("server_learning_rate", 1.0), rule.get("server_optimizer", "average")
    if optimizer == "average":
        return np.asarray(rate * d)
    tau, beta2 = 1e-3, 0.99
    m, v = memory.get(name, (np.zeros_like(d), np.zeros_like(d) if optimizer == "fedavgm" else np.full_like(d, tau**2)))
    if optimizer == "fedavgm":
        v = 0.9 * v + d
        memory[name] = m, v
        return np.asarray(rate * (d + 0.9 * v if "server_optimizer_parameters" in rule else v))
    m = (0.0 if optimizer == "fedadagrad" else 0.9) * m + (1.0 if optimizer == "fedadagrad" else 0.1) * d
    if optimizer == "fedadagrad":
        v = v + d**2
    elif optimizer == "fedadam":
        v = beta2 * v + (1 - beta2) * d**2
    else:
        v = v - (1 - beta2) * d**2 * np.sign(v - d**2)
    memory[name] = m, v
    return np.asarray(rate * m / (np.sqrt(v) + tau))


# ------------------------------------------------------------ comparisons


def plan(kind: Kind, rule: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "kinds",
        "task": {
            "learner": "tests:kind",
            "batch_size": BATCH,
            "learning_rate": RATE,
            "seed": SEED,
            "averaged": list(kind.averaged),
        },
        "cohort": {"select": len(SIZES), "goal": len(SIZES), "collect_s": 60},
        "aggregation": {"partial": "refuse", **rule},
        "finish": {"rounds": ROUNDS},
        **more,
    }


def require_equal(kind: Kind, line: list[Tensors], rule: dict[str, Any], ids: list[str], slack: float = 0.0) -> None:
    """``line``: the checkpoints. ``slack``: how far a value may be off beside rounding of the loop's own."""
    initial = line[0]
    for number, by_hand in enumerate(loop(kind, initial, rule, ids), start=1):
        found = line[number]
        largest = max(float(np.abs(one).max()) for one in by_hand.values())
        assert by_hand.keys() == {name for name, one in found.items() if one.dtype.kind != "i"}
        for name, wanted in by_hand.items():
            ours = found[name] if found[name].dtype == np.float64 else widen(found[name])
            off = float(np.abs(ours.astype(np.float64) - wanted).max())
            assert off <= (kind.tolerance * largest + slack) * number, f"round {number}, {name}: {off:.2e}"
    for name, one in initial.items():
        if one.dtype.kind == "i" or not kind.trained(name) or (kind.model is Frozen and name == "words.weight"):
            assert found[name].tobytes() == one.tobytes(), f"{name} moved, and is not averaged"
    moved = max(float(np.abs(widen(found[name]) - widen(initial[name])).max()) for name in by_hand)
    assert moved > 1e-2, "the model must move for the comparison to mean something"


def checkpoints(history: History) -> list[Tensors]:
    return [history.checkpoint(version) for version in range(ROUNDS + 1)]


@pytest.mark.parametrize(("kind", "rule"), of_today(RULES))
def test_simulated_rounds_equal_the_loop(kind: str, rule: str) -> None:
    chosen = KINDS[kind]
    asked = plan(chosen, RULES[rule])
    line = checkpoints(simulate(asked, chosen.learner, data(), progress=False))
    require_equal(chosen, line, RULES[rule], [f"client-{number}" for number in range(len(SIZES))])


@pytest.mark.parametrize("name", ["embedding", "batch norm"])
def test_the_demos_bare_loop_is_this_one(name: str) -> None:
    kind, rule, ids = KINDS[name], RULES["rate"] | RULES["capped"], ["a", "b", "c"]
    recipe = LoopRecipe(
        model=kind.model,
        loss=loss,
        epochs=1,
        batch_size=BATCH,
        learning_rate=RATE,
        seed=SEED,
        weigh=lambda examples: min(examples, rule["weight_cap"]),
        server_learning_rate=rule["server_learning_rate"],
        statistics=kind.learner.roles().keys(),
    )
    initial, shards = kind.learner.initial(0), [Examples(x, y) for x, y in data()]
    cohorts = [[LoopPart(round=at, device=one, shard=ids.index(one)) for one in ids] for at in range(1, ROUNDS + 1)]
    for by_hand, found in zip(loop(kind, initial, rule, ids), fedavg(recipe, initial, shards, cohorts), strict=True):
        for tensor, wanted in by_hand.items():
            assert np.abs(found[tensor].double().numpy() - wanted).max() < 2e-6, tensor


@pytest.mark.parametrize("rule", taking_turns("clipped", "fedadam"))
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_of_processes_gives_the_same_bits(kind: str, rule: str) -> None:
    chosen = KINDS[kind]
    asked, engines = plan(chosen, RULES[rule]), tuple[EngineName, ...](("serial", "processes"))
    one, other = (
        simulate(asked, chosen.learner, data(), engine=engine, progress=False).checkpoints for engine in engines
    )
    assert [view.digest for _, view in sorted(one.items())] == [view.digest for _, view in sorted(other.items())]


@pytest.mark.parametrize(("kind", "rule"), of_today(["average", "rate", "fedavgm"]))
def test_secure_rounds_equal_the_loop_within_their_rounding(
    kind: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six times the bound of ``secagg.quantize`` on one value's standard deviation, and what rate and momentum make of
    it. The devices train in the order of the plan's seed, which the loop knows."""
    chosen = KINDS[kind]
    monkeypatch.setattr(secure_world, "private_seed", lambda *about: SEED)
    q, most, cap = 20, 4.0, max(SIZES)
    secure = {"max_norm": 100.0, "max_abs": most, "q": q, "weight_cap": cap, "minimum_cohort": 3}
    asked = plan(chosen, {"weighting": "examples", **RULES[rule]}, secure=secure)
    line = checkpoints(simulate(asked, chosen.learner, data(), secure="quantized", progress=False))
    deviation = np.sqrt(len(SIZES)) / 2 * (2 * most / (2**q - 2)) * cap / sum(SIZES)
    require_equal(chosen, line, RULES[rule], [f"client-{number}" for number in range(len(SIZES))], 6 * 2.9 * deviation)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server.start(tmp_path_factory.mktemp("coordinator"))
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        pytest.param(*cell, marks=on_day(n % 2, of=2))
        for n, cell in enumerate(zip(KINDS, [*RULES][-len(KINDS) :], strict=True))
    ],
)
def test_deployed_rounds_equal_the_loop(server: Server, kind: str, rule: str) -> None:
    """A real coordinator, and a client for each device, over HTTP."""
    chosen, name = KINDS[kind], f"tests:{kind.replace(' ', '-')}"
    with OperatorClient(server.url) as operator:
        asked = plan(chosen, RULES[rule])
        asked["task"]["learner"] = name
        init = operator.upload_checkpoint(to_bytes(chosen.learner.initial(3)))
        run = operator.create_run(asked, init, "a test", chosen.learner.roles()).run

        parts_of_data = [Examples(x, y) for x, y in data()]
        numbers_of = train_over_http(server, operator, run, name, chosen.learner, parts_of_data, ROUNDS)
        line = [from_bytes(operator.checkpoint(found.digest)) for found in operator.checkpoints(run)]
    assert len(line) == ROUNDS + 1
    require_equal(chosen, line, RULES[rule], sorted(numbers_of, key=lambda device: numbers_of[device]))
