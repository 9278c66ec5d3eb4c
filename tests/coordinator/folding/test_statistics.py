"""Statistics of a model in a round's fold: the plain mean, whatever is done to the parameters, and never below 0 where
they cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import OutOfRange, Roles, Tensors, from_bytes, read_header
from client_sdk.update import Update, encode_update
from coordinator.engine.aggregation.parameters import Parameter, Settings
from coordinator.engine.aggregation.registry import SERVER_OPTIMIZERS, Installed, Registry
from coordinator.engine.effects import Contribution
from coordinator.folding.aggregator import Aggregator, NewCheckpoint
from coordinator.folding.validation import Bounds, check, measure
from tests.coordinator.folding.test_aggregator import Bench

MODEL: Tensors = {
    "bn.running_mean": np.array([1, -2], np.float32),
    "bn.running_var": np.array([4, 0.5, 0], np.float32),
    "fc.weight": np.array([[3, 4], [0, 1]], np.float32),
    "steps": np.array(7, np.int64),
}
ROLES: Roles = {"bn.running_mean": "statistic", "bn.running_var": "non-negative"}
ONE = {
    "bn.running_mean": np.array([100, 2], np.float32),
    "bn.running_var": np.array([-4, 0.25, 1], np.float32),
    "fc.weight": np.array([[3, 4], [0, 0]], np.float32),
}
TWO = {
    "bn.running_mean": np.array([-20, 6], np.float32),
    "bn.running_var": np.array([4, -0.25, 0], np.float32),
    "fc.weight": np.array([[-1, 0], [2, 0]], np.float32),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("name", SERVER_OPTIMIZERS)


class StatisticsBench(Bench):
    registry = Registry()

    def boot(self) -> Aggregator:
        return Aggregator(self.blobs, self.plan, self.parent, roles=ROLES, registry=self.registry)

    def update(self, device: str, delta: dict[str, Any], weight: int = 1) -> Contribution:
        encoded = codecs.beside(self.plan.task.codec, ROLES)
        body = encode_update(Update(delta, weight), encoded, "story", 1, plan=self.plan.digest)
        return Contribution(device=device, digest=self.blobs.put(body), weight=weight)

    def made(self, *deltas: dict[str, Any], weights: Sequence[int] = (1, 3)) -> tuple[Tensors, NewCheckpoint]:
        items = tuple(self.update(f"d{at}", delta, weights[at]) for at, delta in enumerate(deltas))
        made = self.aggregator.commit(1, self.parent, items)
        return from_bytes(self.blobs.open(made.digest).read()), made


def bench(**aggregation: Any) -> StatisticsBench:
    return StatisticsBench(MODEL, aggregation=aggregation)


def mean(name: str, weights: Sequence[int] = (1, 3)) -> np.ndarray[Any, Any]:
    return MODEL[name] + (weights[0] * ONE[name] + weights[1] * TWO[name]) / np.float32(sum(weights))


@EVERY_OPTIMIZER
@pytest.mark.parametrize("rate", [1.0, 2.0, 0.1])
def test_no_server_optimizer_and_no_server_rate_touches_them(name: str, rate: float) -> None:
    found, made = bench(server_optimizer=name, server_learning_rate=rate).made(ONE, TWO)
    for statistic in ROLES:
        assert found[statistic].tolist() == mean(statistic).tolist()
    assert made.raised == 0
    assert found["steps"] == 7


@EVERY_OPTIMIZER
def test_parameters_move_as_in_a_model_without_statistics(name: str) -> None:
    asked = {"server_optimizer": name, "server_learning_rate": 0.5}
    alone = Bench({"fc.weight": MODEL["fc.weight"]}, aggregation=asked)
    expected = alone.commit(
        alone.update("a", {"fc.weight": ONE["fc.weight"]}), alone.update("b", {"fc.weight": TWO["fc.weight"]}, 3)
    )
    found, _ = bench(**asked).made(ONE, TWO)
    assert found["fc.weight"].tobytes() == expected["fc.weight"].tobytes()


@EVERY_OPTIMIZER
def test_an_optimizers_state_is_of_parameters_alone(name: str) -> None:
    at = bench(server_optimizer=name)
    _, made = at.made(ONE, TWO)
    for state in made.named_tensors.values():
        assert list(read_header(at.blobs.open(state)).manifest) == ["fc.weight"]
    assert (not made.named_tensors) == (not SERVER_OPTIMIZERS[name].slots)


class Watching:
    """A package's optimizer that keeps what it was given."""

    slots: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = {}

    def __init__(self) -> None:
        self.seen: list[float] = []

    def first(self, settings: Settings) -> tuple[float, ...]:
        return ()

    def apply(self, model: Any, mean: Any, state: Sequence[Any], learning_rate: float, settings: Settings) -> Any:
        self.seen += model.tolist()
        return model * np.float32(0)


def test_a_packages_optimizer_gets_parameters_only() -> None:
    watching = Watching()

    class WithPackage(StatisticsBench):
        registry = Registry(server_optimizers={"clinic:watching": Installed("1", watching)})

    asked = {"server_optimizer": "clinic:watching", "server_optimizer_version": "1"}
    found, _ = WithPackage(MODEL, aggregation=asked).made(ONE, TWO)
    assert watching.seen[:4] == [3, 4, 0, 1]
    assert set(watching.seen) == {0, 1, 3, 4}, "it is also tried on some of them"
    assert found["bn.running_mean"].tolist() == mean("bn.running_mean").tolist()


def test_they_are_not_in_the_norm_and_are_not_scaled() -> None:
    at = bench(clip_norm=1.0)
    item = at.update("a", ONE)
    measures = measure(at.blobs.open(item.digest), at.plan, at.aggregator.layout)
    assert measures.scale == 0.2
    assert 100 <= measures.peak < 101
    made = at.aggregator.commit(1, at.parent, (item,))
    found = from_bytes(at.blobs.open(made.digest).read())
    assert found["fc.weight"].tolist() == (MODEL["fc.weight"] + np.float32(0.2) * ONE["fc.weight"]).tolist()
    assert found["bn.running_mean"].tolist() == [101, 0]


def test_a_rule_over_all_updates_takes_them_coordinate_by_coordinate() -> None:
    three = {name: np.full_like(array, 1) for name, array in ONE.items()}
    found, _ = bench(rule="median", weighting="equal", clip_norm=1.0).made(ONE, TWO, three, weights=(1, 1, 1))
    for name in ROLES:
        expected = MODEL[name] + np.median(np.stack([ONE[name], TWO[name], three[name]]), axis=0).astype(np.float32)
        assert found[name].tolist() == expected.tolist()


@pytest.mark.parametrize("codec", codecs.names())
def test_every_codec_leaves_them_as_they_are(codec: str) -> None:
    at = StatisticsBench(MODEL, task={"codec": codec})
    found, _ = at.made(ONE, TWO)
    for name in ROLES:
        assert found[name].tobytes() == mean(name).astype(np.float32).tobytes()


# ---------------------------------------------------------------- their own bound


@pytest.mark.parametrize("of_all", [{"*running*": 50.0}, {}])
def test_beyond_their_range_they_are_cut_and_that_is_counted(of_all: dict[str, float]) -> None:
    at = bench(statistics_range={"*_mean": 10.0, **of_all})
    items = at.update("a", ONE), at.update("b", TWO)
    layout = at.aggregator.layout
    assert [measure(at.blobs.open(item.digest), at.plan, layout).cut for item in items] == [1, 1]
    made = at.aggregator.commit(1, at.parent, items)
    found = from_bytes(at.blobs.open(made.digest).read())
    assert found["bn.running_mean"].tolist() == [1 + (10 - 10) / 2, -2 + (2 + 6) / 2]
    assert found["bn.running_var"].tolist() == [4, 0.5, 0.5]
    assert found["fc.weight"].tolist() == [[4, 6], [1, 1]]


def test_a_statistic_that_may_be_below_0_goes_there() -> None:
    found, made = bench().made({**ONE, "bn.running_mean": np.array([-100, 2], np.float32)})
    assert found["bn.running_mean"].tolist() == [-99, 0]
    assert made.raised == 0


def test_a_sum_is_zero_where_it_is_zero_in_every_tensor() -> None:
    nothing = {name: np.zeros_like(array) for name, array in ONE.items()}
    assert bench().made(nothing)[1].zero_sum
    for name in ONE:
        assert not bench().made({**nothing, name: ONE[name]})[1].zero_sum


def test_what_is_cut_may_be_beyond_what_the_rounds_sum_could_hold() -> None:
    heavy, far = {"weight_cap": 2**20}, {**ONE, "bn.running_mean": np.array([60_000, 0], np.float32)}
    at = bench(**heavy, statistics_range=10.0)
    assert measure(at.blobs.open(at.update("a", far).digest), at.plan, at.aggregator.layout).peak == 10.0
    at = bench(**heavy)
    with pytest.raises(OutOfRange, match="60000 is above"):
        measure(at.blobs.open(at.update("a", far).digest), at.plan, at.aggregator.layout)


@pytest.mark.parametrize(("value", "why"), [(np.nan, "NaN"), (np.inf, "NaN or infinity"), (1e6, "above 65536")])
def test_a_range_is_no_reason_to_take_what_no_sum_can_hold(value: float, why: str) -> None:
    at = bench(statistics_range=1.0)
    bad = {**ONE, "bn.running_var": np.array([value, 0, 0], np.float32)}
    body = encode_update(Update(bad, 1), _Unchecked(), "story", 1)
    source = at.blobs.open(at.blobs.put(body))
    with pytest.raises(ProblemError, match=why):
        check(source, at.aggregator.layout, at.plan, run="story", round=1, attempt=0)


class _Unchecked:
    name = "float32@1"

    def encode(self, delta: Any, origin: Any) -> Any:
        return dict(delta)


@pytest.mark.parametrize("sizes", [(1, 2, 6), (3, 6), (9,), (5, 4)])
def test_blocks_may_lie_across_the_place_where_statistics_begin(sizes: tuple[int, ...]) -> None:
    bounds = Bounds(4, np.array([1, 1, 2, 2, 2], np.float32))
    flat = np.arange(-4, 5, dtype=np.float32)
    blocks = np.split(flat, np.cumsum(sizes)[:-1])
    found = np.concatenate(list(bounds.applied(blocks, 0.5)))
    assert found.tolist() == [-2, -1.5, -1, -0.5, 0, 1, 2, 2, 2]
    assert np.concatenate(list(bounds.of_parameters(blocks))).tolist() == [-4, -3, -2, -1]
    assert np.concatenate([block for block, _ in bounds.of_statistics(blocks)]).tolist() == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- never below 0


def test_a_lie_does_not_commit_a_variance_below_0_and_is_counted() -> None:
    lie = {**ONE, "bn.running_var": np.array([-40, -0.5, -1], np.float32)}
    found, made = bench().made(lie, lie)
    assert found["bn.running_var"].tolist() == [0, 0, 0]
    assert made.raised == 2, "0.5 - 0.5 is no lie"
    assert found["bn.running_mean"].tolist() == [101, 0], "other statistics may be anything"


def test_rounding_of_variances_from_0_up_commits_none_below_0_and_is_not_counted() -> None:
    rng = np.random.default_rng(3)
    parent = (rng.random(2000) * 10.0 ** rng.integers(-9, 3, 2000)).astype(np.float32)
    at = StatisticsBench({**MODEL, "bn.running_var": parent})
    tiny = (rng.random(2000) * 1e-12).astype(np.float32)
    deltas = [{**ONE, "bn.running_var": np.where(rng.random(2000) < part, tiny, 0) - parent} for part in (0, 0.5)]
    items = tuple(at.update(f"d{place}", delta, 3 + place) for place, delta in enumerate(deltas))
    made = at.aggregator.commit(1, at.parent, items)
    found = from_bytes(at.blobs.open(made.digest).read())["bn.running_var"]
    assert float(found.min()) >= 0
    assert made.raised == 0
