"""States of metrics as plain numbers: which ones add up, what travels, and what becomes of it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score

from client_sdk.learning.errors import LearnerFailed
from client_sdk.learning.states import computed, fresh, numbers_of, size_of, unaddable


class Numbers:
    """A number of each kind, of which a plain attribute is none."""

    def __init__(self) -> None:
        self.whole, self.broken, self.array = 0, 0.5, np.zeros((2, 2), np.int32)
        self.tensor, self.scalar, self.on, self.name = torch.zeros(2, dtype=torch.int64), np.float64(1), False, "a"
        self.switch = torch.tensor(False)

    def update(self, outputs: Any, targets: Any) -> None:
        self.whole += 3
        self.broken += 0.25
        self.array[1, 0] += 5
        self.tensor[1] += 7
        self.scalar += np.float64(2)

    def merge(self, other: Any) -> Any:
        made = Numbers()
        for name in ("whole", "broken", "array", "tensor", "scalar"):
            setattr(made, name, getattr(self, name) + getattr(other, name) - getattr(Numbers(), name))
        return made

    def compute(self) -> Any:
        return [self.whole, self.broken, self.array, self.tensor, self.scalar, self.on]


def used(metric: Any, times: int = 1) -> Any:
    made = fresh("m", metric)
    for _ in range(times):
        made.update(None, None)
    return made


def test_numbers_of_each_kind_travel_as_differences_and_come_back_in_their_types() -> None:
    assert numbers_of("m", Numbers(), used(Numbers())) == [0, 0, 5, 0, 0.25, 2, 0, 7, 3]
    assert size_of("m", Numbers()) == 9
    whole, broken, array, tensor, scalar, on = computed("m", Numbers(), [0, 0, 9.9, 0, 0.5, 4, 0, 13.9, 5.9])
    assert (whole, broken, array.tolist(), tensor.tolist(), scalar, on) == (6, 1, [[0, 0], [10, 0]], [0, 14], 5, False)
    assert (type(whole), type(broken), array.dtype, tensor.dtype) == (int, float, np.int32, torch.int64)
    with pytest.raises(LearnerFailed, match="The state of m has 10 numbers"):
        computed("m", Numbers(), [0.0] * 10)


def test_a_metric_that_is_in_use_is_scored_from_its_beginning() -> None:
    class Counting(Numbers):
        def reset(self) -> None:
            self.__init__()  # type: ignore[misc]

    metric = Counting()
    metric.update(None, None)
    assert fresh("m", metric).whole == 0
    assert metric.whole == 3


def test_an_attribute_beside_the_numbers_that_changes_is_a_state_that_does_not_travel() -> None:
    class Naming(Numbers):
        def update(self, outputs: Any, targets: Any) -> None:
            super().update(outputs, targets)
            self.name = "b"

    assert numbers_of("m", Naming(), used(Naming())) is None

    class Switching(Numbers):
        def update(self, outputs: Any, targets: Any) -> None:
            super().update(outputs, targets)
            self.on = True

    assert numbers_of("m", Switching(), used(Switching())) is None


class Declaring(Metric):
    full_state_update = False

    def __init__(self, **states: Any) -> None:
        super().__init__()
        for name, (first, reduction) in states.items():
            self.add_state(name, default=first, dist_reduce_fx=reduction)

    def update(self, outputs: Any, targets: Any) -> None: ...

    def compute(self) -> torch.Tensor:
        return torch.zeros(())


class Empty(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}


class Unmerged:
    def update(self, outputs: Any, targets: Any) -> None: ...


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (BinaryAUROC(), "it keeps every score and label: give it bins"),
        (Declaring(most=(torch.zeros(()), "max")), "its state most is no sum"),
        (Declaring(mine=(torch.zeros(()), None)), "its state mine is no sum"),
        (Declaring(total=(torch.zeros(()), "sum"), most=(torch.zeros(()), "max")), "its state most is no sum"),
        (Declaring(), "it declares no state"),
        (Empty(), "its state seen grows with the data"),
        (Unmerged(), "it has no merge"),
        (BinaryAUROC(thresholds=10), ""),
        (MulticlassF1Score(3), ""),
        (MeanMetric(), ""),
        (Declaring(total=(torch.zeros(()), "sum")), ""),
        (MetricCollection({"f1": MulticlassF1Score(3)}), ""),
        (Numbers(), ""),
    ],
)
def test_what_adds_up(metric: Any, why: str) -> None:
    found = unaddable(metric)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_torchmetrics_counts_come_back_whole() -> None:
    metric = MulticlassF1Score(3, average="macro")
    one = fresh("m", metric)
    one.update(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]))
    assert (one.sync_on_compute, one._to_sync) == (False, False), "in a group it would wait for ranks that do not score"
    state = numbers_of("m", metric, one)
    assert state is not None
    assert float(computed("m", metric, [number + 0.4 for number in state])) == pytest.approx(float(one.compute()))
