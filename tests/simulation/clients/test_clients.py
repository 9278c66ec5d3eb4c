"""``Clients``: one interface for a partition and for what the user brings, lazy, with ids that a coordinator takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch.utils.data import TensorDataset

from client_sdk.protocol.names import DeviceId
from simulation.clients import Clients
from simulation.clients.clients import label_skew, skew_of
from simulation.clients.naming import ID_PATTERN, Named, Numbered, is_id
from simulation.partitioning import partition

X = np.arange(12, dtype=np.float32)[:, None]
Y = np.arange(12) % 3


class Lazy(Mapping[str, Any]):
    """A user's own mapping, which makes data on request and counts it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[str]:
        return iter(["b", "a", "c"])

    def __getitem__(self, id: str) -> Any:
        self.asked.append(id)
        return X[:2], Y[:2]


@given(st.integers(1, 10**12), st.data())
def test_made_ids_are_computed_and_read_back(count: int, data: st.DataObject) -> None:
    names = Numbered(count)
    number = data.draw(st.integers(0, count - 1))
    made = names.id(number)
    TypeAdapter(DeviceId).validate_python(made)
    assert names.number(made) == number
    assert len(made) == len("client-") + len(str(count))
    for stranger in (
        f"{made}0",
        made[:-1],
        made.replace("client-", ""),
        made.upper(),
        names.id(count),
        "client-",
        "client-²",
    ):
        assert names.number(stranger) is None


@given(st.sets(st.from_regex(ID_PATTERN, fullmatch=True), min_size=1), st.text())
def test_names_that_are_ids_are_found_again_and_others_are_not(ids: set[str], stranger: str) -> None:
    names = Named(np.unique(np.array(sorted(ids))))
    assert {names.id(number) for number in range(len(names))} == ids
    assert all(names.number(names.id(number)) == number for number in range(len(names)))
    assert (names.number(stranger) is not None) == (stranger in ids)


@given(st.text())
def test_ids_are_what_a_coordinator_takes(text: str) -> None:
    pattern = TypeAdapter(DeviceId).json_schema()["pattern"]
    assert pattern == f"^{ID_PATTERN}$"
    assert is_id(text) == bool(re.fullmatch(pattern, text) and not text.endswith("\n"))


def test_a_partition_is_a_mapping_in_the_order_of_numbers() -> None:
    made = partition((X, Y), 5, "iid")
    assert list(made) == [f"client-{number}" for number in range(5)]
    assert [made.number(key) for key in made] == list(range(5))
    assert made.sizes.tolist() == [len(data.train) for data in made.values()]
    assert made.get("client-9") is None
    assert 3 not in made
    with pytest.raises(KeyError, match="there is no client 'client-05'; the first of 5 is 'client-0'"):
        made["client-05"]
    with pytest.raises(IndexError, match="from 0 to 4"):
        made.id(5)
    assert made == made
    assert made != partition((X, Y), 5, "iid")
    assert len({made}) == 1


def test_parts_are_gathered_when_asked_for_and_kept() -> None:
    made = partition((X, Y), 3, "iid", held_out=0.25)
    data = made["client-1"]
    assert "train" not in vars(data)
    assert data.train is data.train
    assert "test" not in vars(data)
    assert (len(data.train), len(data.test)) == (3, 1)
    assert not np.shares_memory(data.train.x, X)


@pytest.mark.parametrize(
    "value",
    [
        (X, Y),
        [X.tolist(), Y.tolist()],
        SimpleNamespace(x=X, y=Y),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        SimpleNamespace(train=(X, Y), test=None),
        SimpleNamespace(train=SimpleNamespace(x=X, y=Y), held_out=(X[:4], Y[:4])),
        SimpleNamespace(train=(X, Y), test=TensorDataset(torch.from_numpy(X[:4]), torch.from_numpy(Y[:4]))),
    ],
)
def test_the_users_own_data_of_every_form_has_parts_sizes_and_labels(value: Any) -> None:
    for given_clients, key in (({"ward-7": value}, "ward-7"), ([value], "client-0"), ((value,), "client-0")):
        made = Clients.of(given_clients)
        assert list(made) == [key]
        assert made.examples(key) == made.sizes[0] == 12
        assert made[key].train is (value.train if hasattr(value, "train") else value)
        test = getattr(value, "test", None) or getattr(value, "held_out", None)
        assert made[key].test is test
        assert made.name(key) == key
        labels = made.holdings.labels(0)
        assert labels is not None
        assert len(labels) == 12 + (4 if test else 0)
        assert made.label_skew == 0.0


def test_clients_stay_what_they_are() -> None:
    made = partition((X, Y), 3, "iid")
    assert Clients.of(made) is made


def test_a_lazy_mapping_is_asked_for_one_client_at_a_time_and_keeps_its_order() -> None:
    lazy = Lazy()
    made = Clients.of(lazy)
    assert list(made) == ["b", "a", "c"]
    assert "a" in made
    assert lazy.asked == []
    assert len(made["a"].train[0]) == 2
    assert lazy.asked == ["a"]
    assert repr(made) == "<Clients: 3>"
    assert lazy.asked == ["a"]


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ({}, "there are no clients"),
        ([], "there are no clients"),
        ({"Ward 7": (X, Y)}, "the client id 'Ward 7' will not do; ids are at most 64 of a-z"),
        ({"a": (X, Y), "b\n": (X, Y)}, "will not do"),
        ({"": (X, Y)}, "the client id '' will not do"),
        ({"a" * 65: (X, Y)}, "will not do"),
        ({3: (X, Y)}, "the client id 3 is no text"),
        ((X, Y), "the data of client 0 is a ndarray; it must be"),
        ({"a": (X, Y), "b": (X, Y, Y)}, "the data of client 'b' is a tuple"),
        ([(3, 4)], "the data of client 0 is a tuple"),
        ({"a": None}, "the data of client 'a' is a NoneType"),
        ({"a": SimpleNamespace(train=(X, Y), test=X)}, "the data of client 'a' is a ndarray"),
        ("clients", "a str is none of these"),
        (TensorDataset(torch.zeros(3), torch.zeros(3)), "a TensorDataset is none of these"),
        (SimpleNamespace(x=X, y=Y), "a SimpleNamespace is none of these"),
    ],
)
def test_what_are_no_clients_is_refused_by_name(clients: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Clients.of(clients)


@given(st.lists(st.lists(st.integers(-3, 5), max_size=9), min_size=1, max_size=8).filter(any))
def test_skew_of_pairs_equals_the_table(held: list[list[int]]) -> None:
    """By the definition, with the whole table of clients and labels."""
    labels = np.array([label for part in held for label in part])
    sizes = np.array([len(part) for part in held])
    table = np.array([[part.count(kind) for kind in sorted(set(labels.tolist()))] for part in held], float)
    by_hand = np.abs(table - sizes[:, None] * table.sum(0) / table.sum()).sum() / (2 * table.sum())
    assert skew_of(labels, sizes) == pytest.approx(by_hand, abs=1e-12)
    parts = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    assert label_skew(labels, parts) == pytest.approx(by_hand, abs=1e-12)


def test_summaries_say_how_many_and_how_uneven() -> None:
    made = partition((X, Y), 3, "labels", labels_per_client=1)
    assert made.summary() == "3 clients, 12 training examples, 4 each, label skew 0.67"
    assert repr(made) == "<Clients: 3; A few labels each, labels per client 1, seed 0>"
    prices = Clients.of([(X, X[:, 0]), (X[:5], X[:5, 0])])
    assert prices.summary() == "2 clients, 17 training examples, 5 to 12 each (median 8)"
    assert Clients.of([(X, Y)]).summary() == "1 client, 12 training examples, 12 each, label skew 0.00"
