"""Why a device may not work for a run, in sentences for its owner; and that equal offers are equal strings."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.protocol import CheckIn, Policy, Task
from coordinator.engine.eligibility import offer_of, reason_against

TASK = Task(learner="quorate:mnist-mlp", learner_version="1.2", epochs=3)


def reason(learners: dict[str, str] | None = None, *, task: Task = TASK, **policy: Any) -> str | None:
    have = {"quorate:mnist-mlp": "1.2"} if learners is None else learners
    return reason_against(task, offer_of(CheckIn(learners=have, policy=Policy(**policy))))


def test_a_device_that_has_the_learner_may_work() -> None:
    assert reason() is None
    assert reason(max_epochs=3, learners={"quorate:mnist-mlp": "1.2"}) is None


CASES: list[tuple[dict[str, Any], str]] = [
    (
        {"learners": {}},
        "the plan wants the learner quorate:mnist-mlp, which this device does not have (installed: none)",
    ),
    (
        {"learners": {"b:two": "2", "a:one": "1"}},
        "the plan wants the learner quorate:mnist-mlp, which this device does not have (installed: a:one 1, b:two 2)",
    ),
    ({"learners": {"quorate:mnist-mlp": "1.3"}}, "the plan wants quorate:mnist-mlp 1.2; this device has 1.3"),
    ({"learners": {"quorate:mnist-mlp": ""}}, "the plan wants quorate:mnist-mlp 1.2; this device has "),
]


@pytest.mark.parametrize(("case", "sentence"), CASES)
def test_the_learner_or_its_version_is_missing(case: dict[str, Any], sentence: str) -> None:
    assert reason(**case) == sentence


def test_the_policy_speaks() -> None:
    task = TASK.model_copy(update={"learner_version": None})
    offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "9"}, policy=Policy(learners=("other:net",))))
    assert reason_against(task, offer) == "the device's policy does not allow the learner quorate:mnist-mlp"
    assert reason(secure_only=True) == (
        "the device's policy allows rounds with secure aggregation only; this run's rounds are plain"
    )
    assert reason(max_epochs=2) == "the plan asks for 3 epochs; the device's policy allows 2"


def test_any_version_will_do_where_the_plan_names_none() -> None:
    assert reason({"quorate:mnist-mlp": "0.0.1"}, task=Task(learner="quorate:mnist-mlp")) is None


def test_a_task_in_steps_has_no_epochs_to_bound() -> None:
    assert reason(task=Task(learner="quorate:mnist-mlp", steps=50), max_epochs=1) is None


def test_a_task_that_names_no_measure_trains_one_epoch_and_the_policy_sees_it() -> None:
    """Neither epochs nor steps means one epoch, which every bound allows."""
    assert reason(task=Task(learner="quorate:mnist-mlp"), max_epochs=1) is None


def test_equal_offers_are_equal_strings() -> None:
    one = CheckIn(examples=5, learners={"a:x": "1", "b:y": "2"}, hold_s=10)
    two = CheckIn(examples=99, learners={"b:y": "2", "a:x": "1"}, hold_s=0)
    assert offer_of(one) == offer_of(two), "sizes and holds decide nothing about eligibility"
    assert offer_of(one) != offer_of(one.model_copy(update={"policy": Policy(secure_only=True)}))
