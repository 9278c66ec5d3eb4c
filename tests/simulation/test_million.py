"""A fleet of a million: only those that take part are made, and memory and the time to begin do not grow with it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from client_sdk.data import Examples
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import Behaviour, History, simulate
from simulation.clients.holdings import ArrayPool
from simulation.partitioning import label_skew, sampled
from simulation.virtual.behaviour import PHONES
from tests.simulation.test_virtual_rounds import Stepping, plan

X = np.random.default_rng(0).standard_normal((500, 2)).astype(np.float32)
Y = np.arange(500, dtype=np.int64) % 10


class OfExamples(Stepping):
    def train(self, model: Tensors, data: Any, task: Task, **more: Any) -> Update:
        return super().train(model, (data.x, data.y), task, **more)


def played(count: int, behaviour: Behaviour = PHONES) -> History:
    return simulate(plan(5), OfExamples(), sampled((X, Y), count, examples=6), behaviour=behaviour, progress=False)


def test_of_a_million_only_the_selected_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = ArrayPool.take

    def counted(pool: ArrayPool, positions: Any) -> Examples:
        taken.append(len(positions))
        return take(pool, positions)

    monkeypatch.setattr(ArrayPool, "take", counted)
    history = played(1_000_000)
    assert history.status == "finished"
    selected = sum(one.selected for one in history.rounds)
    assert 5 * 8 <= selected <= 60
    assert len(taken) <= selected + 2 * 3, "with those that the check of a stateless learner trains again"
    assert len({one.device for one in history.participants}) <= selected, "no row of anybody else"


def test_memory_does_not_grow_with_the_fleet() -> None:
    """A byte for each client would be seen."""
    played(1000)  # imports
    peaks = []
    for count in (1000, 1_000_000):
        tracemalloc.start()
        played(count, Behaviour(speed_sigma=0.6))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_000_000


def test_a_client_is_a_function_of_the_seed_and_its_number() -> None:
    small, large = (sampled((X, Y), count, examples=40, alpha=0.3, size_sigma=0.6, seed=3) for count in (100, 10**6))
    sizes = small.sizes
    assert [small.holdings.examples(number) for number in range(100)] == sizes.tolist()
    assert [large.holdings.examples(number) for number in range(100)] == sizes.tolist()
    for number in (0, 7, 99):
        one, other = small.holdings.data(number).train, large.holdings.data(number).train
        assert np.array_equal(one.x, other.x)
        assert len(one.x) == sizes[number]
    other = sampled((X, Y), 100, examples=40, alpha=0.3, size_sigma=0.6, seed=4)
    assert other.sizes.tolist() != sizes.tolist()


def test_sizes_and_labels_are_distributed_as_they_say() -> None:
    many = sampled((X, Y), 20_000, examples=200, size_sigma=0.6, seed=1)
    logs = np.log(many.sizes)
    assert logs.std() == pytest.approx(0.6, abs=0.01)
    assert np.median(many.sizes) == pytest.approx(200, rel=0.02)
    skews = []
    for alpha in (0.05, 1.0, 100.0):
        some = sampled((X, Y), 200, examples=50, alpha=alpha)
        held = [some.holdings.labels(number) for number in range(200)]
        labels = np.concatenate([one for one in held if one is not None])
        skews.append(label_skew(labels, [np.arange(50 * number, 50 * number + 50) for number in range(200)]))
    assert skews[0] > 0.7 > 0.5 > skews[1] > 0.3 > skews[2]


def test_held_out_examples_are_not_trained_on() -> None:
    one = sampled((np.arange(500.0), Y), 5, examples=10, held_out=0.2)
    assert one.sizes.tolist() == [8] * 5
    data = one["client-3"]
    assert data.test is not None
    assert (len(data.train.x), len(data.test.x)) == (8, 2)
    assert sampled((X, Y), 5, examples=1, held_out=0.9)["client-0"].test is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"examples": 0}, "at least one"),
        ({"alpha": -1.0}, "alpha"),
        ({"held_out": 1.0}, "held_out"),
        ({"size_sigma": 9.0}, "size_sigma"),
        ({"clients": 0}, "at least one client"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sampled((X, Y), **{"clients": 5, **options})
