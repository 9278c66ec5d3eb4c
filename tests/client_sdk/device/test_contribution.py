"""The trained update of a secure round as it waits on the device: what is in it, and what it weighs."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk import codecs
from client_sdk.device.contribution import ClearContribution, codec_seed, in_private_order, weight_of, work_for
from client_sdk.protocol.devices import Assignment, Task
from client_sdk.protocol.secure import SecureTask
from client_sdk.tensors import Manifest, ManifestMismatch, NotFinite, Tensors, canonical_digest, read_header, to_bytes
from client_sdk.update import Update
from tests.client_sdk.device.test_policy import SECURE, assignment

MODEL = {"b": np.zeros(3, np.float32), "a": np.ones((2, 2), np.float32), "steps": np.array(4, np.int64)}
CHECKPOINT = to_bytes(MODEL)
OWN = Manifest.of(MODEL)
DELTA = {"b": np.arange(3, dtype=np.float32), "a": np.full((2, 2), 0.5, np.float32)}
TASK = Task(learner="clinic:risk")


def trained(**changes: object) -> ClearContribution:
    update = Update({**DELTA, **changes}, examples=60, metrics={"loss": 0.3}, model=OWN)  # type: ignore[dict-item]
    return ClearContribution.of(update, CHECKPOINT, TASK)


def asked(codec: str = "float32@1", round: int = 3) -> Assignment:
    made = assignment(secure=True, codec=codec)
    return made.changed(round=round)


def test_what_waits_is_the_change_the_examples_and_where_it_began() -> None:
    found = ClearContribution.parse(trained().encoded)
    assert {name: array.tolist() for name, array in found.delta.items()} == {
        name: array.tolist() for name, array in DELTA.items()
    }
    assert (found.examples, found.tensors) == (60, canonical_digest(CHECKPOINT))
    assert set(read_header(trained().encoded).metadata) == {"quorate.contribution"}
    assert b"loss" not in trained().encoded
    assert "0.5" not in repr(found)


@pytest.mark.parametrize("codec", codecs.linear_names())
def test_it_is_encoded_for_the_round_that_takes_it(codec: str) -> None:
    flat = np.concatenate([DELTA["a"].reshape(-1), DELTA["b"]])
    for number in (3, 4):
        work = asked(codec, number)
        values = trained().values(work)
        assert values.tolist() == codecs.linear(codec).forward(flat, codec_seed(work)).tolist()
        assert work_for(work, trained().encoded).dimension == len(values)
    again = ClearContribution.parse(trained().encoded)
    again.values(asked(codec)).fill(0)
    assert again.delta["b"].tolist() == [0, 1, 2], "the values are an array of their own"


def test_the_order_follows_from_the_devices_secret_the_run_the_round_and_the_bits_of_the_model() -> None:
    near = {**MODEL, "b": np.array([0, 0, np.nextafter(np.float32(0), np.float32(1))], np.float32)}
    renamed = to_bytes(MODEL, {"another": "file"})
    work = asked()
    seeds = [
        in_private_order(one, secret, checkpoint).task.seed
        for one, secret, checkpoint in (
            (work, b"s" * 32, CHECKPOINT),
            (work, b"s" * 32, renamed),
            (work, b"t" * 32, CHECKPOINT),
            (work.changed(round=4), b"s" * 32, CHECKPOINT),
            (work.changed(run="other"), b"s" * 32, CHECKPOINT),
            (work, b"s" * 32, to_bytes(near)),
        )
    ]
    assert seeds[0] == seeds[1] == 1534511887284253254
    assert len({work.task.seed, *seeds}) == 6
    private = in_private_order(work, b"s" * 32, CHECKPOINT)
    assert private.changed(task=work.task) == work


def test_what_nobody_else_could_see_is_refused_where_it_was_trained() -> None:
    with pytest.raises(ManifestMismatch):
        ClearContribution.of(Update({"a": DELTA["a"]}, examples=1, model=OWN), CHECKPOINT, TASK)
    with pytest.raises(ManifestMismatch):
        trained(b=np.zeros(4, np.float32))
    with pytest.raises(NotFinite):
        trained(b=np.array([0, np.nan, 1], np.float32))
    only = TASK.model_copy(update={"averaged": ("a",)})
    assert set(ClearContribution.of(Update({"a": DELTA["a"]}, examples=1, model=OWN), CHECKPOINT, only).delta) == {"a"}


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"ignored": np.ones(1, np.float32)}, "lacks 'ignored'|has unexpected 'ignored'"),
        ({"ignored": np.ones(1, np.int64)}, "has unexpected 'ignored'"),
        ({"ignored": np.zeros((0, 7), np.bool_)}, "has unexpected 'ignored'"),
        ({"steps": np.array(4, np.int32)}, "'steps' as I32, expected I64"),
        ({"steps": np.full((1, 1), 4, np.int64)}, r"'steps' of shape \[1, 1\]"),
    ],
)
@pytest.mark.parametrize("averaged", ["*", "[ab]"])
def test_repro_a_checkpoint_is_exactly_the_learners_model(added: Tensors, words: str, averaged: str) -> None:
    """A tensor that the learner ignored made another checkpoint of the same model, on which no device was spent."""
    task = TASK.model_copy(update={"averaged": (averaged,)})
    with pytest.raises(ManifestMismatch, match=words):
        ClearContribution.of(Update(DELTA, examples=1, model=OWN), to_bytes({**MODEL, **added}), task)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": np.array(4, np.int64)},
        {"frozen": np.ones(2, np.float32)},
        {"b": np.zeros(3, np.float64)},
        {"b": np.zeros(3, np.float16)},
    ],
    ids=["integer", "not averaged", "wider", "narrower"],
)
def test_repro_of_a_learner_that_names_no_model_the_update_is_all_of_it_in_float32(changes: Tensors) -> None:
    """Else a function on arrays that casts them would train again on the same values in another dtype."""
    model = {name: array for name, array in MODEL.items() if name != "steps"}
    task = TASK.model_copy(update={"averaged": ("[ab]",)})
    update = Update(DELTA, examples=1)
    assert ClearContribution.of(update, to_bytes(model), task).examples == 1
    with pytest.raises(ManifestMismatch, match="the checkpoint of this secure round"):
        ClearContribution.of(update, to_bytes({**model, **changes}), task)


@pytest.mark.parametrize(
    ("weighting", "cap", "examples", "weight"),
    [
        ("examples", 100, 60, 60),
        ("examples", 50, 60, 50),
        ("examples", 100, 0, 0),
        ("equal", 1, 60, 1),
        ("equal", 1, 0, 1),
    ],
)
def test_a_device_weighs_what_the_plan_says(weighting: str, cap: int, examples: int, weight: int) -> None:
    task = SecureTask.model_validate({**SECURE.model_dump(), "weighting": weighting, "weight_cap": cap})
    assert weight_of(examples, task) == weight
