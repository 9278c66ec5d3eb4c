"""Metrics that have a state: objects with ``update(outputs, targets)`` and ``compute()``, such as torchmetrics'.

A learner's own object is never updated: each scoring has a fresh copy (``fresh``), so threads, clients and rounds share
nothing. A state that consists of sums of a fixed size may leave its device, as plain numbers (``numbers_of``), be added
up exactly by whoever has no code of the metric, and become a value again where the code is (``computed``).

=========================== ============================================ ===========================================
object                      its state                                    it adds up where
=========================== ============================================ ===========================================
``torchmetrics.Metric``     what ``add_state`` declared                  each has ``dist_reduce_fx="sum"``
any other                   its attributes that are numbers, arrays or   ``merge(other)`` adds them
                            tensors
=========================== ============================================ ===========================================
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from client_sdk.learning.errors import LearnerFailed

Numbers = npt.NDArray[np.float64]


def has_state(metric: Any) -> bool:
    """Whether the metric is an object with a state, rather than a function."""
    return callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None))


def fresh(name: str, metric: Any) -> Any:
    """A copy of the metric as it is before any example."""
    try:
        made = copy.deepcopy(metric)
    except Exception as error:
        raise LearnerFailed(f"The metric {name} cannot be copied, so that each client has its own: {error}.") from error
    if callable(reset := getattr(made, "reset", None)):
        reset()
    for part in _torchmetrics(made):
        part.sync_on_compute = part._to_sync = False  # in a torchrun group it would wait for ranks that do not score
    return made


def unaddable(metric: Any) -> str:
    """Why states of this metric cannot be added up over devices; empty where they can, as far as its definition
    shows."""
    if parts := _torchmetrics(metric):
        declared = [(part, state) for part in parts for state in part._defaults]
        if any(isinstance(part._defaults[state], list) for part, state in declared):
            return "it keeps every score and label: give it bins of a fixed number (of torchmetrics: thresholds=100)"
        others = [state for part, state in declared if _called(part._reductions[state]) != "dim_zero_sum"]
        if others or not declared:
            what = f"its state {others[0]} is no sum" if others else "it declares no state"
            return f"{what}: give one whose states have dist_reduce_fx='sum'"
        return ""
    if not callable(getattr(metric, "merge", None)):
        return "it has no merge(other), which adds the state of another one to its own"
    if not hasattr(metric, "__dict__"):
        return "its state is not in attributes"
    growing = next((name for name, value in vars(metric).items() if isinstance(value, list | dict) and not value), None)
    return "" if growing is None else f"its state {growing} grows with the data: keep counts in bins of a fixed number"


def numbers_of(name: str, metric: Any, used: Any) -> list[float] | None:
    """The state of ``used``, which is a ``fresh(metric)`` that was updated, as differences from a new one. None where
    it does not add up: ``unaddable`` says why, or its numbers change their shapes with the data, or its ``merge`` does
    not add them."""
    if unaddable(metric):
        return None
    found = _numbers(fresh(name, metric), used)
    if found is not None and not _torchmetrics(metric):
        twice = copy.deepcopy(used)
        merged = twice.merge(copy.deepcopy(used))
        both = _numbers(fresh(name, metric), twice if merged is None else merged)
        if both is None or not np.allclose(both, 2 * found, rtol=1e-6):
            return None
    return None if found is None else [float(number) for number in found]


def adds_up(name: str, metric: Any, width: int) -> bool:
    """Whether the state of a drawn batch adds up. ``width``: of the model's last layer. True where the metric takes
    none of the batches that are drawn here: then nothing is known."""
    scores, labels = torch.rand(8, width), torch.arange(8) % max(width, 2)
    for outputs, targets in ((scores, labels), (scores, scores.round()), (scores[:, 0], labels % 2)):
        used = fresh(name, metric)
        try:
            used.update(outputs, targets)
            return numbers_of(name, metric, used) is not None
        except Exception:  # noqa: BLE001, S112 - a user's metric may raise anything at what it does not take
            continue
    return True


def size_of(name: str, metric: Any) -> int:
    """How many numbers its state has before any example."""
    return sum(math.prod(_shape(value)) for _, _, value in _places(fresh(name, metric)))


def computed(name: str, metric: Any, state: Sequence[float]) -> Any:
    """The value of the metric with the state that ``numbers_of`` gave, or a sum of such states."""
    made, left = fresh(name, metric), np.asarray(state, np.float64)
    for owner, attribute, before in _places(made):
        size = math.prod(_shape(before))
        part, left = left[:size], left[size:]
        setattr(owner, attribute, _like(before, part))
    if left.size:
        raise LearnerFailed(f"The state of {name} has {len(state)} numbers, which is not the size of this metric's.")
    return value_of(made)


def value_of(used: Any) -> Any:
    """``used.compute()``; NaN where it divides by zero. One that has seen no example is not warned about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was called before the ``update`` method.*")
        try:
            return used.compute()
        except ZeroDivisionError:
            return math.nan


def _numbers(first: Any, used: Any) -> Numbers | None:
    """The differences of all numbers, in the order of ``_places``. None where their shapes, or other attributes, are
    not those of a new one."""
    before, after = _places(first), _places(used)
    if not before or [(key, _shape(value)) for _, key, value in before] != [
        (key, _shape(now)) for _, key, now in after
    ]:
        return None
    if not _torchmetrics(first) and not _same_otherwise(first, used):
        return None
    return np.concatenate([_flat(now[2]) - _flat(then[2]) for then, now in zip(before, after, strict=True)])


def _places(metric: Any) -> list[tuple[Any, str, Any]]:
    """(owner, attribute, value) of each number, array or tensor of the state."""
    if parts := _torchmetrics(metric):
        return [(part, name, getattr(part, name)) for part in parts for name in part._defaults]
    return [(metric, name, value) for name, value in sorted(vars(metric).items()) if _is_number(value)]


def _same_otherwise(first: Any, used: Any) -> bool:
    """Whether the attributes that are no numbers are equal."""
    try:
        return vars(first).keys() == vars(used).keys() and all(
            _is_number(value) or callable(value) or bool(vars(first)[key] == value) for key, value in vars(used).items()
        )
    except Exception:  # noqa: BLE001 - attributes of any type
        return False


def _torchmetrics(metric: Any) -> list[Any]:
    """The metric and those inside it, of torchmetrics; empty for other objects. torchmetrics is not imported."""
    if not isinstance(metric, torch.nn.Module):
        return []
    return [part for part in metric.modules() if hasattr(part, "_reductions") and hasattr(part, "_defaults")]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _called(reduction: Any) -> str:
    return str(getattr(reduction, "__name__", ""))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.dtype not in (torch.bool, np.bool_) and (
            isinstance(value, torch.Tensor) or value.dtype.kind in "iuf"
        )
    return isinstance(value, int | float) and not isinstance(value, bool)


def _flat(value: Any) -> Numbers:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, np.float64).reshape(-1)


def _like(before: Any, part: Numbers) -> Any:
    """``before`` moved by these differences, of its type and shape."""
    moved = _flat(before) + part
    if isinstance(before, torch.Tensor):
        whole = torch.from_numpy(moved.reshape(tuple(before.shape)))
        return (whole if before.is_floating_point() else whole.round()).to(before)
    if isinstance(before, np.ndarray | np.generic):
        made = (moved if before.dtype.kind == "f" else moved.round()).astype(before.dtype).reshape(np.shape(before))
        return made if isinstance(before, np.ndarray) else made[()]
    return type(before)(moved[0] if isinstance(before, float) else round(moved[0]))
