"""A learner that writes to its data gets one model in every engine and on a device, and the caller's data stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from client_sdk.learners import train
from client_sdk.protocol.devices import Task
from client_sdk.update import Update
from simulation import partition, simulate

PLAN = {"cohort": {"select": 1, "goal": 1}, "finish": {"rounds": 1}}
N = 5


class Holder(Dataset[Any]):
    """Gives the objects that it holds."""

    def __init__(self) -> None:
        self.items = numpy_pairs()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@dataclass
class Parts:
    train: Any
    test: Any = None


@dataclass
class Examples:
    x: Any
    y: Any


def numpy_pairs() -> list[Any]:
    return [(np.full(2, 8.0), 0) for _ in range(N)]


def torch_pairs() -> list[Any]:
    return [(torch.full((2,), 8.0), 0) for _ in range(N)]


def arrays() -> tuple[Any, Any]:
    return np.full((N, 2), 8.0), np.zeros(N, int)


def tensors() -> tuple[Any, Any]:
    return torch.full((N, 2), 8.0), torch.zeros(N, dtype=torch.int64)


LASTS: dict[str, Callable[[], Any]] = {
    "list": numpy_pairs,
    "list of tensors": torch_pairs,
    "list of lists": lambda: [list(pair) for pair in numpy_pairs()],
    "list of two": lambda: numpy_pairs()[:2],
    "tuple": lambda: tuple(numpy_pairs()),
    "arrays": arrays,
    "list of arrays": lambda: list(arrays()),
    "tensors": tensors,
    "an object of arrays": lambda: Examples(*arrays()),
    "tables": lambda: (pandas.DataFrame(arrays()[0]), pandas.Series(arrays()[1])),
    "an object of tables": lambda: Examples(pandas.DataFrame(arrays()[0]), pandas.Series(arrays()[1])),
    "TensorDataset": lambda: TensorDataset(*tensors()),
    "a part that is a list": lambda: Parts(numpy_pairs()),
    "a part that is arrays": lambda: Parts(arrays()),
}
"""Where what a learner writes lasts until its training ends: 8 becomes 4."""
LASTS_NOT: dict[str, Callable[[], Any]] = {
    "Dataset": Holder,
    "Subset": lambda: Subset(Holder(), [0, 1, 2]),
    "Subset of tensors": lambda: Subset(TensorDataset(*tensors()), [0, 1, 2]),
    "ConcatDataset": lambda: ConcatDataset([Holder(), Holder()]),
    "a part that is a Dataset": lambda: Parts(Holder()),
}
"""Where each access gives a new copy: 8 stays 8."""


def inputs(data: Any) -> list[Any]:
    """The input of each example of any kind of data."""
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple):
        data = Examples(*data)
    if hasattr(data, "x"):
        return list(data.x.to_numpy() if hasattr(data.x, "to_numpy") else data.x)
    return [data[place][0] for place in range(len(data))]


def halving(model: Any, data: Any, task: Any) -> Update:
    """Halves all inputs in place, and then learns their mean."""
    table = getattr(data, "x", data[0] if isinstance(data, tuple) else None)
    if hasattr(table, "to_numpy"):
        table.loc[:, :] = table / 2
    else:
        for x in inputs(data):
            x /= 2.0
    mean = np.mean([np.asarray(x) for x in inputs(data)])
    return Update({"w": np.full(3, mean, np.float32)}, examples=len(inputs(data)))


def on_a_device(data: Any) -> float:
    model = {"w": np.zeros(3, np.float32)}
    return float(train(halving, model, data, Task(learner="a:b"), device="d", round=1, deadline=None).delta["w"][0])


def simulated(data: Any, engine: str) -> float:
    init = {"w": np.zeros(3, np.float32)}
    history = simulate(PLAN, halving, [data], init=init, engine=engine, progress=False)  # type: ignore[arg-type]
    return float(history.checkpoint()["w"][0])


@pytest.mark.parametrize("kind", LASTS | LASTS_NOT)
@pytest.mark.parametrize("engine", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_one_model_in_simulation_and_on_a_device(kind: str, engine: str) -> None:
    data = (LASTS | LASTS_NOT)[kind]()
    assert on_a_device(data) == simulated(data, engine) == (4.0 if kind in LASTS else 8.0)
    untouched = inputs(data.train if isinstance(data, Parts) else data)
    assert untouched
    assert all(float(np.asarray(x).min()) == 8.0 for x in untouched)


@pytest.mark.parametrize("kind", ["list", "arrays"])
def test_a_partitions_clients_are_of_the_kind_that_it_shares(kind: str) -> None:
    (client,) = [one for _, one in partition(LASTS[kind](), 1, by="iid", seed=0).items()]
    assert on_a_device(client) == simulated(LASTS[kind](), "serial") == 4.0


@pytest.mark.parametrize("data", [{"x": np.zeros((2, 2))}, pandas.DataFrame({"a": [1.0]})], ids=["dict", "table"])
def test_data_of_no_kind_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="it must be"):
        simulated(data, "serial")


@pytest.mark.parametrize("count", [2, 5])
def test_a_learner_of_torch_takes_a_list_of_pairs_on_a_device(count: int) -> None:
    from torch import nn

    from client_sdk.learning import Learner

    one = Learner(model=lambda: nn.Linear(2, 3), loss=nn.functional.cross_entropy)
    task, model = Task(learner="a:b"), one.initial(0)
    pairs = [(torch.randn(2), number % 3) for number in range(count)]
    whole = (torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs]))
    found = [train(one, model, data, task, device="d", round=1, deadline=None) for data in (pairs, whole)]
    assert found[0].examples == count
    assert found[0].delta["weight"].tolist() == found[1].delta["weight"].tolist()
