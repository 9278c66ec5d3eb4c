"""From updates to the next checkpoint: exact, whatever the order, the grouping, the dtypes, and what failed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.names import REPORT_KEY
from client_sdk.tensors import BF16, TensorHeader, Tensors, from_bytes, narrow, read_header, to_bytes, widen
from client_sdk.update import Update, encode_update
from coordinator.blobs import DiskFull, MemoryBlobs
from coordinator.engine.effects import Contribution
from coordinator.folding.aggregator import BLOCK, Aggregator, CannotAggregate
from coordinator.folding.validation import measure
from tests.coordinator.engine.story import plan


class Bench:
    """One model, its updates as blobs, and an aggregator of a plan."""

    def __init__(self, model: Tensors, **sections: Any) -> None:
        self.blobs = MemoryBlobs()
        self.plan = plan(cohort={"select": 9, "goal": 9, "quorum": 1.0}, **sections)
        self.model = model
        self.parent = self.blobs.put(to_bytes(model))
        self.aggregator = self.boot()

    def boot(self) -> Aggregator:
        return Aggregator(self.blobs, self.plan, self.parent, roles={})

    def update(self, device: str, delta: dict[str, Any], weight: int = 1) -> Contribution:
        arrays = {name: np.asarray(value, np.float32) for name, value in delta.items()}
        body = encode_update(Update(arrays, weight), self.plan.task.codec, "story", 1)
        return Contribution(device=device, digest=self.blobs.put(body), weight=weight)

    def commit(self, *items: Contribution, aggregator: Aggregator | None = None) -> Tensors:
        digest, size, *_ = (aggregator or self.aggregator).commit(1, self.parent, items)
        body = self.blobs.open(digest).read()
        assert len(body) == size
        assert read_header(self.blobs.open(digest)).metadata == {}
        return from_bytes(body)


def vector(*values: float) -> dict[str, Any]:
    return {"w": np.array(values, np.float32)}


def random_updates(bench: Bench, count: int, size: int) -> list[Contribution]:
    rng = np.random.default_rng(7)
    return [
        bench.update(f"d{i}", {"w": rng.normal(size=size) * 10.0 ** rng.integers(-5, 3)}, int(rng.integers(1, 900)))
        for i in range(count)
    ]


# ---------------------------------------------------------------- the mean


def test_a_mean_that_can_be_done_by_hand() -> None:
    bench = Bench(vector(1, 10, -4))
    items = (bench.update("a", vector(1, 0, 2), 1), bench.update("b", vector(3, 4, -2), 3))
    assert bench.commit(*items)["w"].tolist() == [3.5, 13.0, -5.0]


def test_order_grouping_and_restarts_change_no_bit() -> None:
    bench = Bench({"w": np.random.default_rng(1).normal(size=50).astype(np.float32)})
    items = random_updates(bench, 4, 50)
    wanted = bench.boot().commit(1, bench.parent, tuple(items))
    for order in itertools.permutations(items):
        for folded in range(5):
            aggregator = bench.boot()
            for item in order[:folded]:
                aggregator.fold(1, item)
            assert aggregator.commit(1, bench.parent, tuple(items)) == wanted


def test_what_was_folded_and_is_not_counted_is_left_out() -> None:
    bench = Bench(vector(0, 0))
    counted, other = bench.update("a", vector(2, 0)), bench.update("b", vector(0, 64))
    bench.aggregator.fold(1, other)
    bench.aggregator.fold(1, counted)
    assert bench.commit(counted)["w"].tolist() == [2, 0]


def test_what_was_folded_under_another_digest_or_weight_is_folded_again() -> None:
    bench = Bench(vector(0.0))
    bench.aggregator.fold(1, bench.update("a", vector(9)))
    assert bench.commit(bench.update("a", vector(2)))["w"].tolist() == [2]
    light, heavy = bench.update("a", vector(1), 1), bench.update("a", vector(1), 3)
    bench.aggregator.fold(1, light)
    assert bench.commit(heavy, bench.update("b", vector(5), 1))["w"].tolist() == [2]


def test_folding_twice_counts_once() -> None:
    bench = Bench(vector(0.0))
    item = bench.update("a", vector(4))
    for _ in range(3):
        bench.aggregator.fold(1, item)
    assert bench.commit(item, bench.update("b", vector(0)))["w"].tolist() == [2]


def test_an_update_that_was_folded_when_it_came_is_not_read_again_at_the_commit() -> None:
    """The commit of a large round would read every body a second time."""
    bench = Bench(vector(0.0))
    items = bench.update("a", vector(2)), bench.update("b", vector(4))
    for item in items:
        bench.aggregator.fold(1, item)
        bench.blobs.delete(item.digest)
    assert bench.commit(*items)["w"].tolist() == [3]


def test_a_late_fold_of_an_older_round_touches_nothing() -> None:
    bench = Bench(vector(0.0))
    old, new = bench.update("a", vector(64)), bench.update("a", vector(2))
    bench.aggregator.fold(2, new)
    bench.aggregator.fold(1, old)
    digest, *_ = bench.aggregator.commit(2, bench.parent, (new,))
    assert from_bytes(bench.blobs.open(digest).read())["w"].tolist() == [2]


def test_the_next_rounds_sum_starts_from_nothing() -> None:
    bench = Bench(vector(0.0))
    bench.aggregator.fold(1, bench.update("a", vector(64)))
    bench.aggregator.forget(1)
    item = bench.update("a", vector(2))
    bench.aggregator.fold(2, item)
    digest, *_ = bench.aggregator.commit(2, bench.parent, (item,))
    assert from_bytes(bench.blobs.open(digest).read())["w"].tolist() == [2]


def test_committing_twice_gives_the_same_checkpoint() -> None:
    bench = Bench({"w": np.zeros(30, np.float32)})
    items = tuple(random_updates(bench, 3, 30))
    first = bench.aggregator.commit(1, bench.parent, items)
    assert bench.aggregator.commit(1, bench.parent, items) == first
    bench.aggregator.forget(1)
    assert bench.aggregator.commit(1, bench.parent, items) == first


def test_a_model_of_several_blocks_and_many_tensors() -> None:
    """Tensors end within blocks. The flat order of deltas is not the file's: the median mixed them up once."""
    rng = np.random.default_rng(3)
    model = {
        "z": rng.normal(size=BLOCK + 5).astype(np.float32),
        "a.bias": rng.normal(size=(3,)).astype(np.float32),
        "m": rng.normal(size=(7, 11)).astype(np.float16),
        "scalar": np.float32(2.5).reshape(()),
        "none": np.zeros((0, 4), np.float32),
        "count": np.array(5, np.int64),
    }
    for rule in ("mean", "median"):
        bench = Bench(model, aggregation={"rule": rule, "weighting": "equal"})
        deltas = [
            {name: rng.normal(size=array.shape) for name, array in model.items() if name != "count"} for _ in range(3)
        ]
        after = bench.commit(*(bench.update(f"d{i}", delta) for i, delta in enumerate(deltas)))
        for name, array in model.items():
            assert after[name].shape == array.shape
            assert after[name].dtype == array.dtype
            if name == "count":
                assert after[name] == 5
                continue
            stack = np.stack([delta[name].astype(np.float32) for delta in deltas])
            step = stack.astype(np.float64).mean(axis=0) if rule == "mean" else np.median(stack, axis=0)
            wanted = array.astype(np.float64) + step
            np.testing.assert_allclose(after[name].astype(np.float64), wanted, rtol=2e-3, atol=2e-3)


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize(("dtype", "name"), [(np.dtype("<f2"), "F16"), (BF16, "BF16"), (np.dtype("<f4"), "F32")])
def test_a_checkpoint_keeps_its_dtype_and_is_rounded_once(dtype: Any, name: str) -> None:
    start = np.array([1.0, 256.0, -0.125, 3.0], np.float32)
    bench = Bench({"w": narrow(start, name)})
    items = [bench.update("a", vector(2**-10, 0.75, 0.5, 0)), bench.update("b", vector(2**-9, 0.75, 0, 0))]
    after = bench.commit(*items)["w"]
    mean = np.array([(2**-10 + 2**-9) / 2, 0.75, 0.25, 0], np.float32)
    assert after.dtype == dtype
    assert after.tobytes() == narrow(start + mean, name).tobytes()
    assert widen(after)[3] == 3.0


def test_updates_in_float16_are_summed_exactly_as_sent() -> None:
    bench = Bench(vector(0.0, 0.0), task={"codec": "float16@1"})
    after = bench.commit(bench.update("a", vector(0.1, 1)), bench.update("b", vector(0.2, 3)))
    wanted = (float(np.float16(0.1)) + float(np.float16(0.2))) / 2
    assert after["w"].tolist() == [np.float32(wanted), 2.0]


def test_tensors_that_are_not_averaged_are_copied() -> None:
    rng = np.random.default_rng(2)
    model = {
        "head": np.zeros(2, np.float32),
        "body": rng.normal(size=3 * BLOCK).astype(np.float32),
        "steps": np.array([7, -(2**62)], np.int64),
        "mask": np.array([True, False, True]),
    }
    bench = Bench(model, task={"averaged": ["head*"]})
    after = bench.commit(bench.update("a", {"head": [1, 2]}))
    assert after["head"].tolist() == [1, 2]
    assert all(after[name].tobytes() == model[name].tobytes() for name in ("body", "steps", "mask"))


def test_an_update_of_the_longest_kind_fits_its_limit() -> None:
    bench = Bench({"w": np.zeros(1000, np.float32)})
    item = bench.update("a", {"w": np.zeros(1000)})
    assert bench.blobs.size(item.digest) <= bench.aggregator.max_update_bytes


# ---------------------------------------------------------------- rules and steps


def test_the_median_withstands_a_minority() -> None:
    bench = Bench(vector(10, 10), aggregation={"rule": "median", "weighting": "equal"})
    values = [(1, -1), (2, -2), (60_000, -60_000)]
    items = [bench.update(f"d{i}", vector(*pair)) for i, pair in enumerate(values)]
    for order in itertools.permutations(items):
        assert bench.commit(*order)["w"].tolist() == [12, 8]


def test_an_even_number_has_the_middle_of_the_two_in_the_middle() -> None:
    bench = Bench(vector(0.0), aggregation={"rule": "median", "weighting": "equal"})
    items = [bench.update(f"d{i}", vector(value)) for i, value in enumerate((1, 2, 4, 100))]
    assert bench.commit(*items)["w"].tolist() == [3]


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_each_update_is_clipped_alone(rule: str) -> None:
    bench = Bench(vector(0, 0), aggregation={"rule": rule, "weighting": "equal", "clip_norm": 5.0})
    long, short = bench.update("a", vector(30, 40)), bench.update("b", vector(0.3, 0.4))
    for folds_first in (False, True):
        aggregator = bench.boot()
        if folds_first:
            aggregator.fold(1, long)
        after = bench.commit(long, short, aggregator=aggregator)["w"]
        assert after.tolist() == pytest.approx([1.65, 2.2], rel=1e-6)


def test_clipping_measured_at_the_door_or_at_the_fold_is_the_same() -> None:
    rng = np.random.default_rng(5)
    digests = set()
    for remembers in (False, True):
        bench = Bench({"w": np.zeros(500, np.float32)}, aggregation={"clip_norm": 1.0})
        rng = np.random.default_rng(5)
        item = bench.update("a", {"w": rng.normal(size=500)}, 3)
        if remembers:
            bench.aggregator.remember(
                item.digest, measure(bench.blobs.open(item.digest), bench.plan, bench.aggregator.layout)
            )
        digests.add(bench.aggregator.commit(1, bench.parent, (item,)).digest)
    assert len(digests) == 1


def test_the_servers_learning_rate() -> None:
    bench = Bench(vector(1, 1), aggregation={"server_learning_rate": 0.5})
    assert bench.commit(bench.update("a", vector(2, -4)))["w"].tolist() == [2, -1]


# ---------------------------------------------------------------- what cannot be, and what fails


def test_a_model_that_would_not_be_finite_is_no_checkpoint() -> None:
    bench = Bench({"w": np.array([3.4028234e38], np.float32)})
    item = bench.update("a", vector(2e4))
    with pytest.raises(CannotAggregate, match="values in w that are not finite"):
        bench.commit(item, aggregator=_with_rate(bench, 1e35))
    assert bench.commit(item)["w"].tolist() == [np.float32(3.4028234e38)], "a small step is rounded away"


def test_values_whose_sum_could_leave_the_range_are_refused() -> None:
    """They should never have been taken; the commit says so instead of wrapping."""
    bench = Bench(vector(0.0))
    with pytest.raises(CannotAggregate, match="60000 is above"):
        bench.commit(bench.update("a", vector(60_000)))


def _with_rate(bench: Bench, rate: float) -> Aggregator:
    """A plan no validator would take: what matters is that the commit looks at what it writes."""
    aggregation = bench.plan.aggregation.model_copy(update={"server_learning_rate": rate})
    bench.plan = bench.plan.model_copy(update={"aggregation": aggregation})
    return bench.boot()


@pytest.mark.parametrize(("name", "start", "step"), [("F16", 65_000.0, 1_000.0), ("BF16", 3.38e38, 6e4)])
def test_a_value_that_its_dtype_cannot_hold_is_refused_and_not_made_infinite(
    name: str, start: float, step: float
) -> None:
    bench = Bench({"w": narrow(np.array([start], np.float32), name)}, aggregation={"server_learning_rate": 1000})
    before = set(bench.blobs.digests())
    item = bench.update("a", vector(step))
    aggregator = bench.aggregator if name == "F16" else _with_rate(bench, 1e32)
    with pytest.raises(CannotAggregate):
        bench.commit(item, aggregator=aggregator)
    assert set(bench.blobs.digests()) == before | {item.digest}, "no checkpoint, not even in part"


def test_an_update_that_is_gone_is_no_reason_to_leave_it_out() -> None:
    bench = Bench(vector(0.0))
    here, gone = bench.update("a", vector(2)), bench.update("b", vector(4))
    bench.blobs.delete(gone.digest)
    with pytest.raises(CannotAggregate, match="gone"):
        bench.commit(here, gone)
    bench.update("b", vector(4))
    assert bench.commit(here, gone)["w"].tolist() == [3]


class Torn:
    """A codec whose blocks of one update end in an error of the disk, once, after the first."""

    def __init__(self, codec: Any, body: bytes) -> None:
        self._codec, self._body, self._left = codec, body, 1

    def blocks(self, source: BytesIO, header: TensorHeader, block: int) -> Iterator[Any]:
        blocks = self._codec.blocks(source, header, block=block)
        yield next(blocks)
        if source.getvalue() == self._body and self._left:
            self._left -= 1
            raise OSError("Input/output error")
        yield from blocks


def test_an_update_that_cannot_be_read_to_its_end_leaves_no_part_in_the_sum() -> None:
    bench = Bench({"a": np.zeros(BLOCK, np.float32), "b": np.zeros(8, np.float32)})
    good = bench.update("x", {"a": np.ones(BLOCK), "b": np.ones(8)})
    torn = bench.update("y", {"a": np.full(BLOCK, 3.0), "b": np.full(8, 3.0)})
    bench.aggregator.fold(1, good)
    body = bench.blobs.open(torn.digest).read()
    bench.aggregator.remember(torn.digest, measure(body, bench.plan, bench.aggregator.layout))
    sums = bench.aggregator._sums
    sums._codec = Torn(sums._codec, body)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="Input/output"):
        bench.commit(good, torn)
    after = bench.commit(good, torn)
    assert set(after["a"].tolist()) == set(after["b"].tolist()) == {2.0}


def test_a_full_disk_at_the_commit_keeps_the_sum_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(vector(0.0))
    item = bench.update("a", vector(2))
    spool = bench.blobs.spool

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, chunk: bytes) -> None:
            raise DiskFull("Could not write the spool: the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(bench.blobs, "spool", lambda limit=None: Full())
        with pytest.raises(DiskFull):
            bench.commit(item)
    assert bench.blobs.spool == spool
    assert bench.commit(item)["w"].tolist() == [2]


def test_an_updates_report_is_not_part_of_the_model() -> None:
    bench = Bench(vector(1.0))
    item = bench.update("a", vector(1))
    assert REPORT_KEY in read_header(bench.blobs.open(item.digest)).metadata
    assert set(bench.commit(item)) == {"w"}
