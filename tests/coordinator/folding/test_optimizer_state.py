"""The state's blob: block by block beside the checkpoint, of any dtype and order, and refused where it does not fit."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.tensors import Tensors, from_bytes, read_header, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.blobs import FileBlobs, MemoryBlobs
from coordinator.blobs.port import Missing
from coordinator.engine.aggregation.combining import flat
from coordinator.engine.effects import Contribution
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from coordinator.folding.aggregator import BLOCK, Aggregator, CannotAggregate, NewCheckpoint
from tests.coordinator.engine.story import plan

ADAM = {"server_optimizer": "fedadam", "server_optimizer_parameters": {"beta1": 0.5, "tau": 0.5}}


def committed(
    blobs: Any, model: Tensors, delta: dict[str, Any], before: NewCheckpoint | None = None, **aggregation: Any
) -> NewCheckpoint:
    """One round with one update."""
    parent = before.digest if before is not None else blobs.put(to_bytes(model))
    asked = plan(aggregation=aggregation or ADAM)
    body = encode_update(Update(delta, 1), "float32@1", "story", 1)
    item = Contribution(device="d", digest=blobs.put(body), weight=1)
    more = (before.named_tensors, before.small) if before is not None else ()
    return Aggregator(blobs, asked, parent, roles={}, run="story").commit(3, parent, (item,), *more)


def test_it_has_a_row_for_each_element_and_a_column_for_each_slot_and_names_its_round() -> None:
    blobs = MemoryBlobs()
    model = {
        "z": np.ones((3, 5), np.float16),
        "a": np.zeros(BLOCK + 7, np.float32),
        "scalar": np.array(2.5, np.float32),
        "none": np.zeros((0, 2), np.float32),
        "count": np.array(5, np.int64),
    }
    rng = np.random.default_rng(0)
    delta = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in model.items() if name != "count"}
    made = committed(blobs, model, delta)
    stored = blobs.open(made.named_tensors[SERVER_OPTIMIZER]).read()
    assert read_header(stored).metadata == {"quorate.optimizer": "story 3"}
    state = from_bytes(stored)
    assert {name: array.shape for name, array in state.items()} == {
        name: (model[name].size, 2) for name in ("z", "a", "scalar", "none")
    }
    following = committed(blobs, model, delta, made)
    assert (made.evidence.named_tensors, following.evidence.named_tensors) == ({}, made.named_tensors)
    assert following.evidence.parent == made.digest
    for name, array in delta.items():
        np.testing.assert_allclose(state[name][:, 0], np.float32(0.5) * array.reshape(-1), atol=2**-32)
        v = np.float32(0.25) * np.float32(0.99) + array.reshape(-1) ** 2 * np.float32(1 - 0.99)
        np.testing.assert_allclose(state[name][:, 1], v, rtol=1e-6)


def test_the_same_round_gives_the_same_state_and_another_round_another_blob() -> None:
    blobs, model = MemoryBlobs(), {"w": np.zeros(5, np.float32)}
    first = committed(blobs, model, {"w": np.ones(5, np.float32)})
    assert committed(blobs, model, {"w": np.ones(5, np.float32)}) == first
    parent = blobs.put(to_bytes(model))
    body = encode_update(Update({"w": np.ones(5, np.float32)}, 1), "float32@1", "story", 1)
    items = (Contribution(device="d", digest=blobs.put(body), weight=1),)
    for run, number in (("story", 4), ("other", 3)):
        other = Aggregator(blobs, plan(aggregation=ADAM), parent, roles={}, run=run).commit(number, parent, items)
        assert other.digest == first.digest
        assert other.named_tensors != first.named_tensors


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_written() -> None:
    blobs = MemoryBlobs()
    model, delta = {"w": np.zeros(5, np.float32)}, {"w": np.ones(5, np.float32)}
    made = committed(blobs, model, delta)
    momentum = committed(blobs, model, delta, server_optimizer="fedavgm")
    before = set(blobs.digests())
    with pytest.raises(CannotAggregate, match=r"the server optimizer's state has 'w' of shape \[5, 1\]"):
        committed(blobs, model, delta, NewCheckpoint(made.digest, 0, momentum.named_tensors))
    with pytest.raises(Missing):  # its bytes can be put back, so the commit may be tried again
        committed(blobs, model, delta, NewCheckpoint(made.digest, 0, {SERVER_OPTIMIZER: "0" * 64}))
    assert set(blobs.digests()) == before


def test_a_state_that_would_not_be_finite_is_refused() -> None:
    blobs = MemoryBlobs()
    model, delta = {"w": np.zeros(2, np.float32)}, {"w": np.array([1.0, 0.0], np.float32)}
    made = committed(blobs, model, delta, server_optimizer="fedadam")
    endless = {"w": np.array([[0, np.inf], [0, 1]], np.float32)}
    parent = NewCheckpoint(
        made.digest, 0, {SERVER_OPTIMIZER: blobs.put(to_bytes(endless, {"quorate.optimizer": "story 3"}))}
    )
    with pytest.raises(CannotAggregate, match="the server optimizer's state for w would hold values that are not fin"):
        committed(blobs, model, delta, parent, server_optimizer="fedadam")


def test_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    """A commit with two slots needs no more than one without: a block of each, beside the sum."""
    blobs = FileBlobs(tmp_path, durable=False)
    size = 40 * BLOCK
    model, delta = {"w": np.zeros(size, np.float32)}, {"w": np.ones(size, np.float32)}
    parent = blobs.put(to_bytes(model))
    body = encode_update(Update(delta, 1), "float32@1", "story", 1)
    items = (Contribution(device="d", digest=blobs.put(body), weight=1),)
    peaks = {}
    for name in ("average", "fedadam"):
        aggregator = Aggregator(blobs, plan(aggregation={"server_optimizer": name}), parent, roles={}, run="story")
        first = aggregator.commit(1, parent, items)
        aggregator.forget(1)
        tracemalloc.start()
        aggregator.commit(2, parent, items, first.named_tensors)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["average"] < 4 * size * 3
    assert peaks["fedadam"] < peaks["average"] + 40 * 4 * BLOCK


def random_model(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"z": (300, 251), "a": (40,), "m": (2, 3, 5), "none": (0, 2), "scalar": ()}
    return {name: (rng.normal(size=shape) * 2.0**-8).astype(np.float32) for name, shape in shapes.items()}


LAYERWISE: list[dict[str, Any]] = [
    {"server_optimizer": "lars", "server_optimizer_parameters": {"weight_decay": 0.01}},
    {"server_optimizer": "lamb", "server_learning_rate": 0.02},
    {
        "server_optimizer": "radam",
        "server_optimizer_parameters": {"layerwise": 1, "lookahead": 2},
        "server_learning_rate": 0.02,
    },
]


@pytest.mark.parametrize("aggregation", LAYERWISE, ids=[found["server_optimizer"] for found in LAYERWISE])
def test_how_many_values_are_worked_on_at_a_time_changes_no_bit_of_a_layer(
    monkeypatch: pytest.MonkeyPatch, aggregation: dict[str, Any]
) -> None:
    def line() -> list[NewCheckpoint]:
        blobs, found = MemoryBlobs(), list[NewCheckpoint]()
        for number in range(3):
            before = found[-1] if found else None
            found.append(committed(blobs, random_model(0), random_model(number + 1), before, **aggregation))
        assert [one.small for one in found] == [{SERVER_OPTIMIZER: 1}, {SERVER_OPTIMIZER: 2}, {SERVER_OPTIMIZER: 3}]
        return found

    assert random_model(0)["z"].size > BLOCK
    whole = line()
    for block in (1000, 1 << 20):
        monkeypatch.setattr("coordinator.folding.aggregator.BLOCK", block)
        assert line() == whole


@pytest.mark.parametrize("aggregation", LAYERWISE, ids=[found["server_optimizer"] for found in LAYERWISE])
def test_a_masked_round_takes_the_step_of_a_plain_one_with_the_same_mean(aggregation: dict[str, Any]) -> None:
    blobs, model, delta = MemoryBlobs(), random_model(0), random_model(1)
    delta = {name: (np.rint(values * 2.0**20) * 2.0**-20).astype(np.float32) for name, values in delta.items()}
    plain = committed(blobs, model, delta, **aggregation)
    parent = blobs.put(to_bytes(model))
    aggregator = Aggregator(blobs, plan(aggregation=aggregation), parent, roles={}, run="story")
    mean = np.concatenate([delta[name].ravel() for name in aggregator.layout.whole])
    masked = aggregator.apply(3, parent, flat(mean))
    assert masked._replace(evidence=plain.evidence) == plain
    assert masked.small == {SERVER_OPTIMIZER: 1}


def test_memory_of_layers_is_that_of_the_largest(tmp_path: Path) -> None:
    """A few vectors of a layer, however many layers there are."""
    blobs, size, count = FileBlobs(tmp_path, durable=False), 2 * BLOCK, 8
    model = {f"w{at}": np.zeros((2, size // 2), np.float32) for at in range(count)}
    delta = {name: np.ones_like(values) for name, values in model.items()}
    parent = blobs.put(to_bytes(model))
    item = Contribution(
        device="d", digest=blobs.put(encode_update(Update(delta, 1), "float32@1", "story", 1)), weight=1
    )
    peaks = {}
    for aggregation in ({"server_optimizer": "fedadam"}, *LAYERWISE[1:]):
        aggregator = Aggregator(blobs, plan(aggregation=aggregation), parent, roles={}, run="story")
        first = aggregator.commit(1, parent, (item,))
        aggregator.forget(1)
        tracemalloc.start()
        aggregator.commit(2, parent, (item,), first.named_tensors, first.small)
        peaks[aggregation["server_optimizer"]] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    for name in ("lamb", "radam"):
        assert peaks[name] < peaks["fedadam"] + 10 * 4 * size
