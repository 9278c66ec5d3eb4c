"""Updates: + is closed, loses nothing, has no order; and the body in which one travels."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk import codecs
from client_sdk.protocol.devices import Score, UpdateReport, Work
from client_sdk.protocol.names import REPORT_KEY
from client_sdk.tensors import ManifestMismatch, NotFinite, OutOfRange, TensorError, Tensors, from_bytes, read_header
from client_sdk.tensors import to_bytes as file_of
from client_sdk.tensors.exact_sum import EmptySum, SumOverflow
from client_sdk.update import BadReport, Seconds, Update, decode_report, encode_update


def marked(device: int, round: int = 1, devices: int = 6) -> Update:
    """An update whose delta has a one at its device and at its round, so that counting twice shows."""
    mark = np.zeros((devices, 4), np.float32)
    mark[device, round] = 1.0
    noise = np.random.default_rng([device, round]).normal(0, 0.1, 9).astype(np.float32)
    return Update(
        {"mark": mark, "noise": noise},
        examples=10 * device + 1,
        work=Work(steps=device, steps_planned=6, epochs=0.1 * device, examples_seen=3 * device, complete=device != 2),
        metrics={"loss": 0.1 * device, **({"rare": 0.7} if device == 3 else {})},
        held_out=Score(examples=device, metrics={"accuracy": 0.1 * device}) if device else None,
    )


def everything(update: Update) -> tuple[object, ...]:
    """All that an update shows, its mean as bytes."""
    means = {name: array.tobytes() for name, array in update.mean().items()}
    return (means, update.count, update.examples, update.metrics, update.held_out, update.work)


def grouped(updates: list[Update], rng: np.random.Generator) -> Update:
    """The updates summed in a random binary tree."""
    pool = [updates[i] for i in rng.permutation(len(updates))]
    while len(pool) > 1:
        i, j = rng.choice(len(pool), 2, replace=False)
        pair = pool[i] + pool[j]
        pool = [update for k, update in enumerate(pool) if k not in (i, j)] + [pair]
    return pool[0]


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_every_order_and_grouping_gives_the_same_update(seed: int) -> None:
    updates = [marked(device) for device in range(6)]
    straight = reduce(add, updates)
    for other in (grouped(updates, np.random.default_rng(seed)), sum(reversed(updates))):
        assert isinstance(other, Update)
        assert everything(other) == everything(straight)
        assert other == straight


def test_updates_differ_where_anything_of_them_does() -> None:
    def update(delta: object = (1.0, 2.0), examples: int = 3, loss: float = 0.5, name: str = "w") -> Update:
        return Update({name: np.asarray(delta, np.float32)}, examples, metrics={"loss": loss})

    assert update() == update()
    others = [update((1.0, 2.0000002)), update([[1.0, 2.0]]), update(examples=4), update(loss=0.4), update(name="v")]
    assert all(update() != other for other in others)
    assert update() + update() != update(examples=6), "two devices are not one"
    assert update() != "an update"


@pytest.mark.parametrize("delta", [{"w": [1.0, 2.0]}, {3: np.ones(2)}, {"w": None}])
def test_a_delta_that_is_no_arrays_by_name_is_refused_in_a_sentence(delta: dict[str, np.ndarray]) -> None:
    with pytest.raises(ManifestMismatch, match="the delta maps names to NumPy arrays, not "):
        Update(delta, examples=1)


def test_each_counts_once_with_its_weight() -> None:
    updates = [marked(device) for device in range(6)]
    total = reduce(add, updates)
    weights = np.array([10 * device + 1 for device in range(6)])
    assert (total.count, total.examples) == (6, int(weights.sum()))
    np.testing.assert_allclose(total.mean()["mark"][:, 1], weights / weights.sum(), rtol=1e-6)
    assert total.mean()["mark"][:, [0, 2, 3]].any() == np.False_


def test_parts_are_not_changed_by_adding() -> None:
    parts = [marked(1), marked(2), marked(3) + marked(4)]
    before = [everything(part) for part in parts]
    total = reduce(add, parts)
    after_total = everything(total)
    _ = total + parts[0]
    _ = sum([total, parts[1]])
    assert [everything(part) for part in parts] == before
    assert everything(total) == after_total


def test_the_mean_of_one_is_its_delta_on_the_grid() -> None:
    update = marked(1)
    np.testing.assert_allclose(update.mean()["noise"], update.delta["noise"], atol=2.0**-33)
    assert update.count == 1
    assert (update + marked(2)).mean().keys() == {"mark", "noise"}
    assert update.mean()["mark"].shape == (6, 4)


def test_the_mean_by_hand() -> None:
    heavy = Update({"w": np.array([1.0], np.float32)}, examples=3)
    light = Update({"w": np.array([5.0], np.float32)}, examples=1)
    assert (heavy + light).mean()["w"].tolist() == [2.0]
    assert (heavy + light).examples == 4
    assert (heavy + light).delta["w"].tolist() == [2.0]


def test_repro_an_update_takes_no_weight_that_the_coordinator_would_ignore() -> None:
    """``weight=`` was in the docstring, and no round looked at it: the plan decides what an update weighs."""
    with pytest.raises(TypeError, match="weight"):
        Update({"w": np.zeros(1, np.float32)}, 3, weight=7)  # type: ignore[call-arg]


def test_metrics_are_means_over_the_examples_of_those_that_gave_them() -> None:
    total = reduce(add, [marked(device) for device in range(6)])
    examples = [10 * device + 1 for device in range(6)]
    loss = sum(Fraction(0.1 * d) * n for d, n in enumerate(examples)) / sum(examples)
    assert total.metrics == {"loss": float(loss), "rare": 0.7}
    accuracy = sum(Fraction(0.1 * d) * d for d in range(1, 6)) / 15
    assert total.held_out == Score(examples=15, metrics={"accuracy": float(accuracy)})
    assert (marked(0) + marked(0)).held_out is None


def test_a_score_counts_by_its_weight() -> None:
    def scored(examples: int, value: float, weight: float) -> Update:
        score = Score(examples=examples, metrics={"loss": value, "share": value}, weights={"loss": weight})
        return Update({"w": np.ones(1, np.float32)}, 1, held_out=score)

    total = scored(1, 2.0, 3.0) + scored(3, 6.0, 1.0)
    assert total.held_out == Score(examples=4, metrics={"loss": 3.0, "share": 5.0})


def test_work_adds_up() -> None:
    work = (marked(1) + marked(3)).work
    assert (work.steps, work.steps_planned, work.examples_seen, work.complete) == (4, 12, 12, True)
    assert work.epochs == pytest.approx(0.4)
    assert not (marked(1) + marked(2)).work.complete
    assert marked(2).work == Work(steps=2, steps_planned=6, epochs=0.2, examples_seen=6, complete=False)


def test_half_precision_and_double_deltas_count_as_float32() -> None:
    for dtype in (np.float16, np.float64):
        update = Update({"w": np.array([0.5, -2.0], dtype)}, 1)
        assert update.delta["w"].dtype == np.float32
        assert (update + update).mean()["w"].tolist() == [0.5, -2.0]


OTHERS: dict[str, Tensors] = {
    "lacks 'noise'": {"mark": np.zeros((6, 4), np.float32)},
    "has unexpected 'more'": {
        "mark": np.zeros((6, 4), np.float32),
        "noise": np.zeros(9, np.float32),
        "more": np.zeros(1),
    },
    "shape": {"mark": np.zeros((4, 6), np.float32), "noise": np.zeros(9, np.float32)},
}


@pytest.mark.parametrize("words", OTHERS)
def test_updates_of_different_models_cannot_be_added(words: str) -> None:
    other = Update(OTHERS[words], 1)
    for left in (marked(1), marked(1) + marked(2)):
        with pytest.raises(ManifestMismatch, match=words):
            left + other
        with pytest.raises(ManifestMismatch, match=words):
            left + (other + other)


@pytest.mark.parametrize(("value", "error"), [(np.nan, NotFinite), (-np.inf, NotFinite), (1e6, OutOfRange)])
def test_bad_values_are_named_and_change_nothing(value: float, error: type[TensorError]) -> None:
    bad = marked(1)
    bad.delta["noise"][8] = value
    total = marked(2) + marked(3)
    before = everything(total)
    for attempt in (
        lambda: total + bad,
        lambda: bad + total,
        bad.mean,
        lambda: encode_update(bad, "float32@1", "r", 1),
    ):
        with pytest.raises(error, match="'noise'"):
            attempt()
    assert everything(total) == before


def test_too_much_weight_is_refused() -> None:
    heavy = Update({"w": np.array([1.0], np.float32)}, 2**31 - 1)
    with pytest.raises(SumOverflow):
        heavy + heavy
    assert heavy.mean()["w"].tolist() == [1.0]


@pytest.mark.parametrize("number", [-1, 1.5, True, None, "7"])
def test_examples_are_a_whole_number(number: object) -> None:
    delta = {"w": np.zeros(1, np.float32)}
    with pytest.raises(OutOfRange, match="examples"):
        Update(delta, number)  # type: ignore[arg-type]


def test_integers_are_no_deltas_and_metrics_are_finite() -> None:
    with pytest.raises(ManifestMismatch, match="never averaged"):
        Update({"count": np.zeros(1, np.int64)}, 1)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="'loss'"):
            Update({"w": np.zeros(1, np.float32)}, 1, metrics={"loss": value})


@pytest.mark.parametrize("undefined", [float("nan"), np.float32("nan"), np.float64("nan")])
def test_a_metric_without_a_value_is_left_out(undefined: float) -> None:
    """An AUC of one label: the device's update was lost, and in a simulation the run ended."""
    update = Update({"w": np.ones(1, np.float32)}, 2, metrics={"loss": 0.5, "auc": undefined})
    assert update.metrics == {"loss": 0.5}
    other = Update({"w": np.ones(1, np.float32)}, 2, metrics={"loss": 0.5, "auc": 0.75})
    assert (update + other).metrics == {"auc": 0.75, "loss": 0.5}
    with pytest.raises(ValueError, match="'auc'"):
        Update({"w": np.zeros(1, np.float32)}, 1, metrics={"auc": float("inf")})


def test_updates_without_weight_have_no_mean() -> None:
    empty = Update({"w": np.ones(1, np.float32)}, 0, metrics={"loss": 1.0})
    assert (empty + empty).metrics == {}
    with pytest.raises(EmptySum):
        (empty + empty).mean()
    assert (empty + Update({"w": np.ones(1, np.float32)}, 2)).mean()["w"].tolist() == [1.0]


def test_only_updates_can_be_added() -> None:
    for other in (1, None, {"w": 1}):
        with pytest.raises(TypeError):
            marked(1) + other  # type: ignore[operator]
        with pytest.raises(TypeError):
            other + marked(1)


# ---------------------------------------------------------------- the body


@pytest.mark.parametrize("codec", ["float32@1", "float16@1"])
def test_a_body_holds_the_deltas_and_the_report(codec: str) -> None:
    update = marked(3)
    body = encode_update(update, codec, "run-1", 7, 2, Seconds(fetch_s=0.5, train_s=12.0, encode_s=0.25))
    header = read_header(body)
    assert list(header.metadata) == [REPORT_KEY]
    assert decode_report(header) == UpdateReport(
        run="run-1",
        round=7,
        attempt=2,
        codec=codec,
        examples=31,
        work=update.work,
        fetch_s=0.5,
        train_s=12.0,
        encode_s=0.25,
        metrics=update.metrics,
        held_out=update.held_out,
    )
    assert header.manifest == codecs.get(codec).wire(update.manifest)
    decoded = codecs.get(codec).decode(from_bytes(body))
    for name, array in update.delta.items():
        np.testing.assert_allclose(decoded[name], array, rtol=0 if codec == "float32@1" else 1e-3)
    assert body == encode_update(
        marked(3), codecs.get(codec), "run-1", 7, 2, Seconds(fetch_s=0.5, train_s=12.0, encode_s=0.25)
    )


def test_a_report_that_the_protocol_does_not_take_is_not_sent() -> None:
    delta = {"w": np.zeros(1, np.float32)}
    with pytest.raises(ValueError, match="a metric cannot be called 'not a name'"):
        Update(delta, 1, metrics={"not a name": 1.0})
    with pytest.raises(BadReport, match="examples"):
        encode_update(Update(delta, 2**31 + 1), "float32@1", "r", 1)
    with pytest.raises(BadReport, match="round"):
        encode_update(Update(delta, 1), "float32@1", "r", 0)
    with pytest.raises(codecs.UnknownCodec):
        encode_update(Update(delta, 1), "zip@1", "r", 1)


GOOD = UpdateReport(run="r", round=1, codec="float32@1", examples=3).model_dump(mode="json")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"format": "pt"},
        {REPORT_KEY: json.dumps(GOOD), "format": "pt"},
        {REPORT_KEY: ""},
        {REPORT_KEY: "[" * 30_000},
        {REPORT_KEY: "null"},
        {REPORT_KEY: json.dumps(GOOD | {"examples": -1})},
        {REPORT_KEY: json.dumps(GOOD | {"run": "../etc"})},
        {REPORT_KEY: json.dumps(GOOD | {"work": {"steps": 10**400}})},
        {REPORT_KEY: json.dumps(GOOD | {"metrics": {"loss": "NaN"}})},
        {REPORT_KEY: json.dumps(GOOD | {"metrics": {"loss": float("nan")}})},
        {REPORT_KEY: json.dumps({k: v for k, v in GOOD.items() if k != "codec"})},
    ],
)
def test_a_bad_report_is_one_sentence(metadata: dict[str, str]) -> None:
    header = read_header(file_of({"w": np.zeros(1, np.float32)}, metadata))
    with pytest.raises(BadReport) as caught:
        decode_report(header)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_fields_of_a_newer_device_are_ignored() -> None:
    header = read_header(file_of({"w": np.zeros(1, np.float32)}, {REPORT_KEY: json.dumps(GOOD | {"battery": 0.5})}))
    assert decode_report(header).examples == 3
