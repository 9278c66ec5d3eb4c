"""What an owner allows, sentence by sentence."""

from __future__ import annotations

import pytest

from client_sdk.policy import epochs_asked, learner_refusal, refusal
from client_sdk.protocol import Assignment, CheckpointRef, Policy, Task
from tests.client_sdk.scripted import LEARNER, offer


def assignment(secure: bool = False, **task: object) -> Assignment:
    return Assignment(
        run="run-1",
        round=1,
        device="d0",
        checkpoint=CheckpointRef(version=0, digest="00" * 32, bytes=1),
        plan_digest="ab" * 32,
        task=Task.model_validate({"learner": LEARNER, **task}),
        report_within_s=60,
        secure=secure,
        max_update_bytes=100,
    )


def test_an_open_policy_takes_what_is_installed() -> None:
    assert refusal(assignment(), offer()) is None
    assert refusal(assignment(learner_version="1.0"), offer()) is None


@pytest.mark.parametrize(
    ("work", "policy", "sentence"),
    [
        (assignment(learner="x:y"), Policy(), "This device has not got the learner x:y; it has clinic:risk 1.0."),
        (assignment(learner_version="2.0"), Policy(), "This device has clinic:risk 1.0; the plan wants 2.0."),
        (
            assignment(),
            Policy(learners=("a:b", "c:d")),
            "This device's owner allows these learners only: a:b, c:d. The plan wants clinic:risk.",
        ),
        (assignment(), Policy(learners=()), "This device's owner allows these learners only: none. The plan wants"),
        (
            assignment(),
            Policy(secure_only=True),
            "allows rounds with secure aggregation only, and this round has none.",
        ),
        (assignment(epochs=6), Policy(max_epochs=5), "allows 5 epochs a round; the plan asks for 6 epochs."),
        (
            assignment(steps=100, batch_size=10),
            Policy(max_epochs=5),
            "allows 5 epochs a round; the plan asks for 100 steps, 17 epochs of its data.",
        ),
        (assignment(codec="quantum@9"), Policy(), "This device cannot encode as the plan asks"),
    ],
)
def test_each_refusal_says_why(work: Assignment, policy: Policy, sentence: str) -> None:
    reason = refusal(work, offer(policy=policy))
    assert reason is not None
    assert sentence in reason


def test_secure_rounds_wait_for_an_sdk_that_has_them() -> None:
    assert "has no secure aggregation" in str(refusal(assignment(secure=True), offer(policy=Policy(secure_only=True))))


def test_a_device_without_learners_says_so() -> None:
    assert learner_refusal(Task(learner="x:y"), {}) == (
        "This device has not got the learner x:y; it has no learner at all."
    )


@pytest.mark.parametrize(
    ("task", "examples", "epochs"),
    [
        ({}, 60, 1),
        ({"epochs": 3}, 60, 3),
        ({"steps": 6, "batch_size": 10}, 60, 1),
        ({"steps": 7, "batch_size": 10}, 60, 2),
        ({"steps": 5, "batch_size": 1000}, 60, 5),
        ({"steps": 5}, 0, 5),
    ],
)
def test_steps_are_counted_in_passes_over_this_devices_data(task: dict[str, int], examples: int, epochs: int) -> None:
    assert epochs_asked(Task.model_validate({"learner": LEARNER, **task}), examples) == epochs


def test_the_limit_itself_is_allowed() -> None:
    assert refusal(assignment(epochs=5), offer(policy=Policy(max_epochs=5))) is None
    assert refusal(assignment(steps=30, batch_size=10), offer(policy=Policy(max_epochs=5))) is None
