"""``partition`` gives every example of any data set to exactly one client, lazily, or says in a sentence why not."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from client_sdk.data import held_out_part, training_part
from client_sdk.learning.data import as_examples
from simulation.clients import Clients
from simulation.datasets import Dataset as NamedData
from simulation.datasets import LabelledExamples
from simulation.datasets.dataset import Windows
from simulation.partitioning import By, label_skew, partition, split_indices

N = 600
Y = np.arange(N) % 10
X = np.arange(N, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
"""Each row says its own position."""


def positions(part: Any) -> list[int]:
    """Which examples a part is made of."""
    return [int(row[0]) for row in part.x]


def held(clients: Clients) -> list[list[int]]:
    """Positions of each client's examples, training and held-out ones."""
    return [positions(data.train) + (positions(data.test) if data.test else []) for data in clients.values()]


class Items(Dataset[Any]):
    """A map-style torch dataset that counts what is asked of it."""

    def __init__(self, labels: Any = None, *, dtype: torch.dtype = torch.float32) -> None:
        self.asked: list[int] = []
        self.dtype = dtype
        if labels is not None:
            self.targets = labels

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.asked.append(index)
        return torch.from_numpy(X[index]).to(self.dtype), int(Y[index])


class Stream(IterableDataset[Any]):
    """Has no length."""

    def __iter__(self) -> Any:
        return iter(())


def test_labels_are_read_from_the_items_of_a_dataset_that_does_not_say_them() -> None:
    silent, message = Items(), Items(Y)
    clients = partition(silent, 6, by="dirichlet", seed=3)
    assert silent.asked == list(range(N)), "each item once"
    assert clients.label_skew == partition(message, 6, by="dirichlet", seed=3).label_skew
    assert not message.asked


def test_labels_of_a_dataset_are_not_read_where_nobody_needs_them() -> None:
    silent = Items()
    assert partition(silent, 6, by="iid").label_skew is None
    assert not silent.asked


def test_one_client_says_how_much_it_holds() -> None:
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert repr(partition(dataset, 6, held_out=0.2)["client-0"]) == "<ClientData: 80 to train on, 20 held out>"
    assert repr(Clients.of([(X[:7], Y[:7])])["client-0"]) == "<ClientData: 7 to train on>"


def test_a_list_of_pairs_is_a_data_set_like_any_other() -> None:
    pairs = [(torch.from_numpy(row), int(label)) for row, label in zip(X, Y, strict=True)]
    clients = partition(pairs, 6, by="shards", seed=3, held_out=0.2)
    like = partition((X, Y), 6, by="shards", seed=3, held_out=0.2)
    for client in clients:
        inputs, _ = as_examples(clients[client].train).span(0, clients.examples(client))
        assert np.array_equal(inputs.numpy(), like[client].train.x)
    own = Clients.of({"a": pairs[:2], "b": pairs[2:9], "c": ([1.0, 2.0], [3, 4])})
    assert own.sizes.tolist() == [2, 7, 2]


def test_with_a_tiny_alpha_a_client_takes_another_label_whole_where_its_own_is_used_up() -> None:
    """Float64 leaves nothing of such a mixture outside of one label."""
    clients = partition((X, Y), 20, by="dirichlet", alpha=1e-6, seed=0)
    kinds = [len(np.unique(data.train.y)) for data in clients.values()]
    assert max(kinds) <= 3
    assert float(np.mean(kinds)) < 1.7


@given(
    by=st.sampled_from([way for way in get_args(By) if way != "natural"]),
    clients=st.integers(10, 40),
    seed=st.integers(0, 2**40),
    held_out=st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.99]),
)
def test_every_example_is_held_once_and_its_clients_test_part_is_the_fraction_asked(
    by: By, clients: int, seed: int, held_out: float
) -> None:
    made = partition((X.astype(np.float64), Y), clients, by, seed=seed, held_out=held_out)
    again = partition((X.astype(np.float64), Y), clients, by, seed=seed, held_out=held_out)
    plain = split_indices(Y, clients, by, seed=seed)
    assert len(made) == clients
    for number, (key, expected) in enumerate(zip(made, plain, strict=True)):
        assert made.id(number) == key
        start, end = made.holdings.offsets[number : number + 2]
        train = made.holdings.positions[start : start + made.examples(key)]
        test = made.holdings.positions[start + made.examples(key) : end]
        assert sorted([*train, *test]) == expected.tolist()
        assert np.all(np.diff(train) > 0)
        assert np.all(np.diff(test) > 0)
        assert len(test) == min(int(np.floor(held_out * len(expected) + 0.5)), len(expected) - 1)
        assert made.sizes[number] == made.examples(key) == len(made[key].train) == len(train) >= 1
        assert (made[key].test is None) == (len(test) == 0)
        np.testing.assert_array_equal(made[key].train.x, again[key].train.x)
        np.testing.assert_array_equal(made[key].train.y, Y[train])


def test_held_out_examples_are_drawn_anew_by_each_seed_and_are_no_fixed_place() -> None:
    one, other = (partition((X, Y), 6, "iid", seed=seed, held_out=0.2) for seed in (1, 2))
    tests = [positions(data.test) for data in one.values()]
    assert tests != [positions(data.test) for data in other.values()]
    everyone = held(partition((X, Y), 6, "iid", seed=1))
    for whole, test in zip(everyone, tests, strict=True):
        assert len(test) == 20
        assert set(test) <= set(whole)
        assert test != whole[-20:]


def test_a_dataset_with_parts_is_split_by_its_training_part_and_its_classes_are_kept() -> None:
    train = LabelledExamples(X, Y)
    data = NamedData("ten", train, LabelledExamples(X[:10], Y[:10]), tuple("abcdefghij"), licence="", citation="")
    made = partition(data, 7, seed=3)
    assert sorted(example for part in held(made) for example in part) == list(range(N))
    assert made.classes == tuple("abcdefghij")
    for same in (train, (X, Y), [X, Y], SimpleNamespace(x=X, y=Y), SimpleNamespace(train=(X, Y), test=None)):
        assert held(partition(same, 7, seed=3)) == held(made)


def test_tensors_are_dealt_as_tensors_and_memory_maps_stay_on_disk(tmp_path: Any) -> None:
    wanted = held(partition((X, Y), 7))
    x, y = torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)
    for data in ((x, y), TensorDataset(x, y)):
        made = partition(data, 7)
        assert isinstance(made["client-3"].train.x, torch.Tensor)
        assert held(made) == wanted
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    made = partition((mapped, Y), 7)
    assert np.shares_memory(made.holdings.pool.x, mapped)
    assert held(made) == wanted


@pytest.mark.parametrize("targets", [Y, Y.tolist(), torch.from_numpy(Y)])
def test_torch_datasets_are_dealt_as_subsets_and_no_item_is_asked_for(targets: Any) -> None:
    items = Items(targets)
    made = partition(items, 7, held_out=0.2)
    data = made["client-3"]
    assert isinstance(data.train, Subset)
    assert made.examples("client-3") == len(data.train)
    assert items.asked == []
    arrays = partition((X, Y), 7, held_out=0.2)["client-3"]
    assert data.train.indices == positions(arrays.train)
    assert data.test.indices == positions(arrays.test)


def test_labels_are_found_through_subsets_and_concatenations_or_given() -> None:
    odd = Subset(Items(Y), list(range(1, N, 2)))
    labels = Y[1::2]
    assert [d.train.indices for d in partition(odd, 7).values()] == [p.tolist() for p in split_indices(labels, 7)]
    both = ConcatDataset([odd, TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))])
    whole = np.concatenate([labels, Y])
    assert [d.train.indices for d in partition(both, 7).values()] == [p.tolist() for p in split_indices(whole, 7)]
    bare = partition(Items(), 7, labels=Y)
    assert [d.train.indices for d in bare.values()] == [p.tolist() for p in split_indices(Y, 7)]
    partition(Items(), 7, "iid")  # needs no labels
    partition((X, X), 7, "quantity")


def test_given_labels_stand_in_for_the_targets() -> None:
    """Two houses, each of one region: targets are prices, labels regions."""
    prices, region = np.linspace(0, 1, N), np.arange(N) // 300
    made = partition((X, prices), 4, "labels", labels_per_client=1, labels=region)
    assert {tuple(np.unique(region[part])) for part in held(made)} == {(0,), (1,)}
    np.testing.assert_array_equal(made["client-0"].train.y, prices[positions(made["client-0"].train)])


def test_users_are_clients_in_the_order_of_their_names() -> None:
    users = np.array([30, 4, 4, 100, 30, 4])
    made = partition((X[:6], Y[:6]), by="natural", users=users)
    assert list(made) == ["4", "30", "100"]
    assert held(made) == [[1, 2, 5], [0, 4], [3]]
    assert made.sizes.tolist() == [3, 2, 1]
    assert "7" not in made
    assert "004" not in made
    assert "-4" not in made
    assert str(2**70) not in made
    assert partition((X[:6], Y[:6]), 3, "natural", users=users.astype(np.uint8)).number("100") == 2


def test_users_names_are_ids_where_all_of_them_can_be_else_ids_are_made() -> None:
    good = partition((X[:3], Y[:3]), by="natural", users=["romeo", "juliet", "romeo"])
    assert list(good) == ["juliet", "romeo"]
    assert good.name("romeo") == "romeo"
    assert "romeo-and-juliet" not in good
    assert "ro" not in good
    spoken = partition((X[:3], Y[:3]), by="natural", users=["Romeo", "LADY CAPULET", "romeo"])
    assert list(spoken) == ["client-0", "client-1", "client-2"]
    assert [spoken.name(key) for key in spoken] == ["LADY CAPULET", "Romeo", "romeo"]


def test_a_data_set_may_say_its_users_itself() -> None:
    users = np.arange(N) // 100
    for data in (SimpleNamespace(x=X, y=Y, users=users), SimpleNamespace(train=(X, Y), users=users)):
        assert held(partition(data, by="natural")) == [list(range(k, k + 100)) for k in range(0, N, 100)]


def test_a_data_set_may_name_its_users() -> None:
    users = np.arange(N) // 300
    data = SimpleNamespace(train=SimpleNamespace(x=X, y=Y, users=users), user_names=("zoe", "adam", "nobody"))
    made = partition(data, by="natural")
    assert list(made) == ["zoe", "adam"]
    assert positions(made["adam"].train) == list(range(300, 600))
    twins = partition(SimpleNamespace(x=X, y=Y, users=users, user_names=("jan", "jan")), by="natural")
    assert [twins.name(key) for key in twins] == ["jan", "jan"]
    assert list(twins) == ["client-0", "client-1"]
    assert list(partition(data, by="natural", users=users + 5)) == ["5", "6"]
    with pytest.raises(ValueError, match="users run from 0 to 1; there are 1 user_names"):
        partition(SimpleNamespace(x=X, y=Y, users=users, user_names=("zoe",)), by="natural")


def test_rows_that_are_made_when_asked_for_are_made_for_one_client_only() -> None:
    windows = Windows(np.arange(N, dtype=np.uint8), np.arange(500), 4)
    for labels in (np.arange(500) % 3, Windows(np.arange(N, dtype=np.uint8), np.arange(1, 501), 4)):
        made = partition((windows, labels), 5, "iid")
        assert made.holdings.pool.x is windows
        assert (made.holdings.pool.labels is None) == isinstance(labels, Windows)
        train = made["client-2"].train
        assert train.x.shape == (100, 4)
        assert len(train.y) == 100


# ------------------------------------------------------------ noise


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_has_the_level_of_the_clients_number(dtype: Any) -> None:
    """Client k of 4 has standard deviation 0.8 * (k + 1) / 4: of n draws the estimate's own is 1 / sqrt(2 n)."""
    x = np.zeros((2000, 50), dtype)
    made = partition((x, np.zeros(2000, int)), 4, "noise", noise_sigma=0.8, seed=5)
    for number, data in enumerate(made.values()):
        noisy = data.train.x
        assert noisy.dtype == dtype
        assert noisy.std() == pytest.approx(0.8 * (number + 1) / 4, rel=0.03)
        assert abs(noisy.mean()) < 0.02
        assert len(np.unique(noisy)) > 0.99 * noisy.size
    assert not x.any()


def test_an_examples_noise_is_its_own_however_it_is_asked_for() -> None:
    """Held out or not, array or tensor or item of a dataset, once or twice: the same bits."""
    whole = partition((X, Y), 5, "noise", noise_sigma=2.0, seed=9)
    split = partition((X, Y), 5, "noise", noise_sigma=2.0, seed=9, held_out=0.3)
    tensors = partition((torch.from_numpy(X), torch.from_numpy(Y)), 5, "noise", noise_sigma=2.0, seed=9)
    items = partition(Items(Y), 5, "noise", noise_sigma=2.0, seed=9)
    for key in whole:
        mine = whole[key].train.x
        np.testing.assert_array_equal(mine, whole[key].train.x)
        np.testing.assert_array_equal(mine, tensors[key].train.x.numpy())
        np.testing.assert_array_equal(mine, np.stack([x.numpy() for x, _ in items[key].train]))
        parts = np.concatenate([split[key].train.x, split[key].test.x])
        np.testing.assert_array_equal(np.sort(mine, axis=0), np.sort(parts, axis=0))
    other = partition((X, Y), 5, "noise", noise_sigma=2.0, seed=10)
    assert not np.array_equal(other["client-0"].train.x, whole["client-0"].train.x)


def test_golden_noise_and_held_out_parts() -> None:
    """A recorded run can be made again alike: a change of these draws must be intended, and in the changelog."""
    made = partition((X, Y), 8, "noise", noise_sigma=0.5, seed=11, held_out=0.25)
    digest = hashlib.sha256()
    for data in made.values():
        digest.update(data.train.x.astype("<f4").tobytes() + data.test.x.astype("<f4").tobytes())
    assert digest.hexdigest() == "2ff3535902e8268ec0f74d3ec15d9d92f994d63244d4c7a80d9ab3577aa1d390"


def test_what_clients_hold_is_what_devices_learn_from() -> None:
    """The learning code takes every kind of part as it comes."""
    for data in ((X, Y), Items(Y)):
        for by in ("dirichlet", "noise"):
            mine = partition(data, 6, by, held_out=0.2)["client-2"]
            inputs, targets = as_examples(training_part(mine)).take(torch.tensor([1, 0]))
            assert inputs.shape == (2, 3)
            assert targets.shape == (2,)
            assert len(as_examples(held_out_part(mine))) == len(mine.test)


# ------------------------------------------------------------ a million


@pytest.mark.slow
def test_a_million_clients_cost_their_positions() -> None:
    count = 1_000_000
    x, y = np.zeros((count, 1), np.float32), np.zeros(count, np.int64)
    tracemalloc.start()
    try:
        made = partition((x, y), count, "iid", seed=1)
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 30e6
    assert peak < 100e6
    assert made.id(42) == "client-0000042"
    assert made.number("client-0999999") == 999_999
    assert "client-1000000" not in made
    assert len(made["client-0123456"].train) == 1
    assert made.sizes.sum() == count


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": 7}, "a int cannot be partitioned; a data set is"),
        ({"dataset": X}, "a ndarray cannot be partitioned"),
        ({"dataset": SimpleNamespace(train=True)}, "a SimpleNamespace cannot be partitioned"),
        ({"dataset": (X, Y[:-1])}, "600 inputs .x. and 599 targets .y."),
        ({"dataset": (X, 3)}, "y is a single number"),
        ({"dataset": Stream()}, "a stream of unknown length"),
        (
            {"dataset": TensorDataset(torch.from_numpy(X), torch.from_numpy(X))},
            r"y is torch.float32 of shape \[600, 3\]",
        ),
        ({"dataset": (X, X)}, "labels are needed to deal by them"),
        ({"dataset": [(row, 0.5) for row in X]}, "an item's target is a float, not a whole number"),
        (
            {"dataset": [{"image": row, "label": 1} for row in X]},
            r"\[\(d\['image'\], d\['label'\]\) for d in dataset\]",
        ),
        ({"dataset": {"image": X, "label": Y}}, r"give two of its columns, \(d\['image'\], d\['label'\]\)"),
        ({"dataset": DataLoader(Items())}, "a DataLoader cannot be partitioned: give its .dataset"),
        ({"alpha": "0.3"}, "alpha='0.3' must be a number"),
        ({"alpha": True}, "alpha=True must be a number"),
        ({"held_out": "half"}, "held_out='half' must be a number"),
        ({"held_out": None}, "held_out=None must be from 0"),
        ({"dataset": (X[:0], Y[:0])}, "no examples"),
        ({"labels": Y[:-1]}, "600 examples and 599 labels"),
        ({"labels": np.linspace(0, 1, N)}, "labels must be integers"),
        ({"clients": None}, "among how many clients"),
        ({"clients": 601}, "600 examples cannot give each of 601 clients 1"),
        ({"clients": True}, "must be a whole number"),
        ({"by": "noise", "dataset": (X.astype(np.int64), Y)}, "floating type, not int64"),
        ({"by": "noise", "dataset": (torch.from_numpy(X).byte(), Y)}, "floating type, not torch.uint8"),
        ({"by": "noise", "dataset": Items(Y, dtype=torch.int32)}, "floating type, not torch.int32"),
        ({"by": "noise", "noise_sigma": 0.0}, "noise_sigma=0.0 must be above 0"),
        ({"noise_sigma": 0.1}, "noise_sigma has no effect with by='dirichlet'; it applies to noise"),
        ({"users": Y}, "users has no effect with by='dirichlet'"),
        ({"by": "natural"}, "needs users="),
        ({"by": "natural", "users": Y[:-1]}, "600 examples and 599 users"),
        ({"by": "natural", "users": Y / 3}, "whole numbers or texts"),
        ({"by": "natural", "users": Y, "clients": 5}, "clients=5, but the data has 10 users"),
        ({"by": "natural", "users": Y, "clients": None, "min_examples": 61}, "only 60 examples"),
        ({"by": "natural", "users": Y, "clients": None, "alpha": 1.0}, "alpha has no effect with by='natural'"),
        ({"by": "natural", "users": [], "clients": None, "dataset": (X[:0], Y[:0])}, "no examples|texts"),
        ({"held_out": 1.0}, "held_out=1.0"),
        ({"held_out": -0.1}, "held_out=-0.1"),
        ({"held_out": float("nan")}, "held_out=nan"),
    ],
)
def test_errors_are_one_sentence(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"dataset": (X, Y), "clients": 6} | change
    with pytest.raises(ValueError, match=words) as refused:
        partition(**arguments)
    assert "\n" not in str(refused.value)


def test_the_same_positions_as_by_labels_alone() -> None:
    made = partition((X, Y), 12, alpha=0.1, seed=4, size_sigma=1.0)
    parts = split_indices(Y, 12, alpha=0.1, seed=4, size_sigma=1.0)
    assert held(made) == [part.tolist() for part in parts]
    assert made.label_skew == pytest.approx(label_skew(Y, parts))
