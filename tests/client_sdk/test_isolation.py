"""What a learner does to the arrays that it gets, and what it draws, reaches nobody else."""

from __future__ import annotations

import array as arrays
import random
import sys
from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from client_sdk.chance import derive_seed
from client_sdk.data import count, held_out_part, training_part
from client_sdk.isolation import private, seeded
from client_sdk.learners import evaluate, train
from client_sdk.protocol.devices import Score, Task
from client_sdk.tensors import from_bytes, to_bytes
from client_sdk.tensors.manifest import ManifestMismatch
from client_sdk.update import Update

TASK = Task(learner="a:b", seed=3)


def overwrite(array: Any) -> None:
    """As a careless learner may, through every flag."""
    if isinstance(array, torch.Tensor):
        array.fill_(7)
    else:
        torch.as_tensor(array).fill_(7)


@dataclass(frozen=True)
class Part:
    x: np.ndarray
    y: np.ndarray
    more: dict[str, Any]


def part() -> Part:
    return Part(np.zeros(3), np.zeros(3), {"deep": [np.zeros(2)]})


def test_arrays_in_containers_objects_and_subsets_are_copies() -> None:
    thing = part()
    mine = private(thing)
    assert type(mine) is Part
    for array in (mine.x, mine.y, mine.more["deep"][0]):
        overwrite(array)
    assert not thing.x.any()
    assert not thing.y.any()
    assert not thing.more["deep"][0].any()
    whole = TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    overwrite(private(whole)[0][0])
    some = private(Subset(whole, [0, 2]))
    assert isinstance(some, Subset)
    assert len(some) == 2
    overwrite(some[1][0])
    overwrite(some.__getitems__([0])[0][0])
    pair = (np.zeros((2, 2), order="F")[::-1], np.array([np.zeros(1), np.zeros(2)], object))
    overwrite(private(pair)[0].copy())
    overwrite(private(pair)[1][0])
    assert not whole.tensors[0].any()
    assert not pair[0].any()
    assert not pair[1][0].any()


class Pair(NamedTuple):
    x: np.ndarray
    y: torch.Tensor


class Loader:
    """Whoever calls it gets its data."""

    def __call__(self) -> Any:
        return [1]


def test_a_copy_is_what_it_was() -> None:
    pair = Pair(np.zeros((2, 3), order="F"), torch.ones(1, requires_grad=True))
    mine = private(pair)
    assert type(mine) is Pair
    assert mine.x.flags.f_contiguous
    assert mine.y.requires_grad
    table = pandas.DataFrame({"a": [1.0]})
    other = private(table)
    other.loc[0, "a"] = 7.0
    assert table.loc[0, "a"] == 1.0
    loader = Loader()
    assert private(loader) is loader


@dataclass(frozen=True, slots=True)
class Slotted:
    x: np.ndarray
    y: np.ndarray


class Behind(Dataset[Any]):
    """Its arrays are in an object of its own."""

    def __init__(self) -> None:
        self.part = part()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.part.x[index : index + 1], 0


def one(array: Any) -> Any:
    return array


@pytest.mark.parametrize(
    ("thing", "reached"),
    [
        (Slotted(np.zeros(2), np.zeros(2)), lambda it: it.x),
        (OrderedDict(a=np.zeros(2)), lambda it: it["a"]),
        (defaultdict(list, a=[np.zeros(2)]), lambda it: it["a"][0]),
        (UserDict(a=np.zeros(2)), lambda it: it["a"]),
        (deque([np.zeros(2)]), lambda it: it[0]),
        (bytearray(8), lambda it: np.frombuffer(it)),
        (memoryview(np.zeros((2, 2))), np.asarray),
        (memoryview(bytearray(4)), np.asarray),
        (arrays.array("d", [0, 0]), np.asarray),
        (np.ma.masked_array(np.zeros(2), [0, 1]), lambda it: it.data),
        (np.zeros((2, 3), ">f8", order="F")[:, ::2], one),
        (torch.zeros(2, dtype=torch.bfloat16), one),
        (ConcatDataset([TensorDataset(torch.zeros(2), torch.zeros(2))]), lambda it: it[1][0]),
        (Behind(), lambda it: it[1][0]),
        (Subset(Behind(), [1]), lambda it: it[0][0]),
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_data_is_made_of_does_not_matter(thing: Any, reached: Any) -> None:
    mine = private(thing)
    assert isinstance(mine, type(thing))
    assert len(mine) == len(thing) if hasattr(thing, "__len__") else True
    target = reached(mine)
    target[...] = 7
    assert not (reached(thing) != 0).any()


def test_a_mapped_file_is_mapped_anew_and_its_bytes_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    before = (tmp_path / "x.npy").read_bytes()
    for view in (mapped, mapped[1::2], np.asarray(mapped)[::-1, 1]):
        mine = private(view)
        assert mine.tolist() == view.tolist()
        assert not np.shares_memory(mine, mapped)
        mine[...] = 7  # a read-only mapping would end the process here
    assert (tmp_path / "x.npy").read_bytes() == before
    assert mapped.tolist() == np.arange(12.0).reshape(6, 2).tolist()


def test_what_cannot_be_copied_is_the_learners_as_it_is() -> None:
    class Connection:
        def __copy__(self) -> Any:
            raise TypeError

    thing = Connection()
    assert private(thing) is thing


class Careless:
    """Writes to all that it gets."""

    def train(
        self, model: Any, data: Any, task: Any, *, device: str, round: int, deadline: Any, held_out: Any
    ) -> Update:
        delta = Update({"w": model["w"] + 1}, examples=1)
        for array in (model["w"], data[0], held_out[0]):
            overwrite(array)
        return delta

    def evaluate(self, model: Any, data: Any) -> Score:
        for array in (model["w"], data[0]):
            overwrite(array)
        return Score(examples=1, metrics={})


def test_a_learner_of_any_kind_and_its_scores_change_nothing() -> None:
    body = to_bytes({"w": np.zeros(3, np.float32)})
    model, data = from_bytes(body), Parts()
    for learner in (
        Careless(),
        lambda model, data, task: (overwrite(model["w"]), overwrite(data[0]), Update(model, 1))[2],
    ):
        train(learner, model, data, TASK, device="d", round=1, deadline=None)
    evaluate(Careless(), "a:b", model, data.test)
    assert not model["w"].any()
    assert not data.train[0].any()
    assert not data.test[0].any()
    overwrite(from_bytes(body)["w"])
    assert not from_bytes(body)["w"].any()


class Parts:
    def __init__(self) -> None:
        self.train, self.test = (np.zeros(2), np.zeros(2)), (np.zeros(2), np.zeros(2))


class Flagged(Dataset[Any]):
    """As torchvision's: its split is a flag."""

    def __init__(self, train: Any) -> None:
        self.train = self.test = self.held_out = train

    def __len__(self) -> int:
        return 5


class Pairs:
    def __init__(self, train: Any) -> None:
        self.x, self.y, self.train, self.test = np.zeros(5), np.zeros(5), train, not train


@pytest.mark.parametrize("flag", [True, False, "train", 1, np.bool_(True), Path("here")])
@pytest.mark.parametrize("kind", [Flagged, Pairs])
def test_a_flag_is_no_part(kind: Any, flag: Any) -> None:
    data = kind(flag)
    assert training_part(data) is data
    assert held_out_part(data) is None
    assert count(data) == 5


def draws() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal(), float(torch.rand(1))]


def fails_after(found: list[tuple[float, ...]]) -> None:
    found.append(tuple(draws()))
    raise ZeroDivisionError


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_global_generators_are_seeded_by_seed_round_and_device_and_restored(kept: int) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for _ in range(kept):
        np.random.normal(), random.gauss(0, 1)  # the first of two keeps a second deviate for the next call
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    found: list[tuple[float, ...]] = []
    for drawn in ((0, 1, "a"), (0, 1, "a"), (1, 1, "a"), (0, 2, "a"), (0, 1, "b")):
        with pytest.raises(ZeroDivisionError), seeded(*drawn):
            fails_after(found)
    assert found[0] == found[1]
    assert all(len({one[place] for one in found}) == 4 for place in range(5))
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == str(states[1])
    assert np.array_equal(np.random.get_state()[1], states[1][1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_in_an_app_global_generators_are_untouched_and_a_generator_is_passed() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def states() -> list[str]:
        return [str(random.getstate()), str(np.random.get_state()), str(torch.get_rng_state().tolist())]

    def learner(model: Any, data: Any, task: Any, rng: Any = None) -> Update:
        assert states() == before
        return Update({"w": rng.normal(size=3)}, examples=1)

    class Learner:
        def train(self, model: Any, data: Any, task: Any, *, rng: Any, **more: Any) -> Update:
            return learner(model, data, task, rng)

    before, drawn = states(), [("a", 1), ("a", 1), ("b", 1), ("a", 2)]
    for one in (learner, Learner()):
        found = [
            tuple(train(one, {}, None, TASK, device=device, round=number, deadline=None).delta["w"])
            for device, number in drawn
        ]
        assert found[0] == found[1]
        assert len(set(found)) == 3
    assert draws() == wanted


def test_a_learner_that_imports_torch_draws_from_a_seed_the_first_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def learner(model: Any, data: Any, task: Any) -> Update:
        sys.modules["torch"] = torch
        return Update({"w": torch.rand(3)}, examples=1)

    monkeypatch.delitem(sys.modules, "torch")
    found = [
        train(learner, {}, None, TASK, device="a", round=1, deadline=None, seeds=True).delta["w"] for _ in range(2)
    ]
    assert found[0].tolist() == found[1].tolist()


def test_an_update_is_no_view_of_the_learners_buffer() -> None:
    buffer = np.ones(3, np.float32)
    first = Update({"w": buffer}, examples=1)
    buffer[:] = 3
    assert (first + Update({"w": buffer}, examples=1)).mean()["w"].tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_torch_tensors_are_taken(dtype: torch.dtype) -> None:
    weights = torch.arange(6, dtype=dtype).reshape(2, 3).T.requires_grad_()
    assert Update({"w": weights}, examples=1).delta["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert Update({"w": torch.tensor(1.5, dtype=dtype)}, examples=1).delta["w"].tolist() == 1.5


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array(np.ones(2), [0, 1]),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64),
        [1.0],
        None,
    ],
)
def test_other_things_are_refused_in_a_sentence(value: Any) -> None:
    with pytest.raises(ManifestMismatch):
        Update({"w": value}, examples=1)


class Gpus:
    """Stands for ``torch.cuda`` with two generators; their states are numbers."""

    def __init__(self, states: list[int]) -> None:
        self.states = states
        self.seen: list[int] = []

    def _is_in_bad_fork(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return bool(self.states)

    def get_rng_state_all(self) -> list[int]:
        return list(self.states)

    def set_rng_state_all(self, states: list[int]) -> None:
        self.states = states

    def manual_seed_all(self, seed: int) -> None:
        self.seen.append(seed)
        self.states = [seed] * len(self.states)


def test_generators_of_gpus_are_seeded_and_restored_and_none_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    for before in ([3, 4], []):
        monkeypatch.setattr(torch, "cuda", gpus := Gpus(before.copy()))
        torch.manual_seed(11)
        gpus.states = before.copy()
        gpus.seen.clear()
        with pytest.raises(ZeroDivisionError), seeded(0, 1, "a"):
            fails_after([])
        assert gpus.states == before
        assert gpus.seen[0] == derive_seed("layers", 0, 1, "a")
        assert gpus.seen[1:] == ([] if before else [11]), "what nothing has used begins as the user has seeded torch"
