"""What an owner allows, sentence by sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.device.policy import epochs_asked, learner_refusal, refusal, secure_policy, shown, terms_refusal
from client_sdk.protocol.devices import Assignment, CheckIn, CheckpointRef, Policy, SecureBounds, Task
from client_sdk.protocol.secure import SECURE_VERSION
from client_sdk.secagg.consent import SecurePolicy
from client_sdk.secagg.header import GraphRule, Terms, task_of
from tests.client_sdk.device.scripted import LEARNER, offer
from tests.rotating import in_parts

SECURE = task_of(
    Terms(
        q=16,
        max_norm=1.0,
        max_abs=0.25,
        weight_cap=1,
        rule=GraphRule(profile="strict"),
        minimum_cohort=64,
    )
)


def assignment(secure: bool = False, **task: object) -> Assignment:
    return Assignment(
        run="run-1",
        round=1,
        device="d0",
        checkpoint=CheckpointRef(version=0, digest="00" * 32, bytes=1),
        plan_digest="ab" * 32,
        task=Task.model_validate({"learner": LEARNER, **task}),
        report_within_s=60,
        secure=SECURE if secure else None,
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


def test_after_a_secure_round_no_plain_plan_but_for_what_the_owner_allows() -> None:
    for allowed in ((), ("other:net",)):
        assert refusal(assignment(), offer(policy=Policy(plain=allowed))) == (
            "This device has joined secure rounds; its owner alone can let its data go in clear for clinic:risk."
        )
    assert refusal(assignment(), offer(policy=Policy(plain=(LEARNER,)))) is None


TERMS = Terms(
    q=16,
    max_norm=4.0,
    max_abs=1.0,
    weight_cap=1000,
    rule=GraphRule(profile="strict"),
    minimum_cohort=64,
)
FAST = GraphRule(profile="fast", drop=44, corrupt_millionths=100_000, sigma=80, eta=40)


@pytest.mark.parametrize(
    ("bounds", "changes", "words"),
    [
        ({"smallest_cohort": 65}, {}, "hides among 65"),
        ({"largest_norm": 3.5}, {}, "L2 clip of at most 3.5; the plan asks for 4"),
        ({"smallest_norm": 4.5}, {}, "L2 clip of at least 4.5; the plan asks for 4"),
        ({"largest_range": 0.5}, {}, "range of at most 0.5"),
        ({"largest_weight_cap": 999}, {}, "weight cap of at most 999"),
        ({"strict_only": True}, {"rule": FAST}, "strict secure rounds only"),
        ({"smallest_sigma": 90}, {"rule": FAST}, "wants 90 bits of secrecy; the plan asks for 80"),
        ({}, {"minimum_cohort": 63}, "hides among 64"),
    ],
)
def test_the_owners_bounds_on_secure_rounds(bounds: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    assert terms_refusal(TERMS, Policy()) is None
    assert terms_refusal(replace(TERMS, rule=FAST), Policy()) is None
    policy = Policy(secure=SecureBounds(**bounds)) if bounds else Policy()
    assert words in (terms_refusal(replace(TERMS, **changes), policy) or "")


def test_bounds_reach_the_attempt_as_they_were_set() -> None:
    assert secure_policy(Policy()) == SecurePolicy()
    message = {
        "smallest_cohort": 100,
        "most_colluding": 33,
        "largest_norm": 2.0,
        "smallest_norm": 0.2,
        "largest_range": 0.5,
        "largest_weight_cap": 9,
        "smallest_sigma": 90,
        "strict_only": True,
        "fewest_examples": 30,
        "whole_passes": False,
        "fewest_steps": 3,
        "largest_batch": 0.1,
        "sums_a_day": 9,
        "sums_made": True,
        "nearest_model": 0.02,
        "near_repeats": 2,
        "origins": "signed",
        "model_keys": ("ab" * 32,),
        "largest_move": 2.0,
        "late_moves": 4,
    }
    assert set(message) == set(SecureBounds.model_fields)
    assert secure_policy(Policy(secure=SecureBounds.model_validate(message))) == SecurePolicy(**message)


WORK: tuple[dict[str, Any], ...] = ({}, {"epochs": 2}, {"epochs": 3, "drop_last": True}, {"steps": 2}, {"steps": 9})


def test_a_device_that_sets_nothing_sends_these_bytes() -> None:
    plain = '"policy":{"learners":null,"secure_only":false,"max_epochs":null}'
    rest = ',"secure":0,"process":"","facts":{"sdk":""},"hold_s":25.0}'
    assert CheckIn().model_dump_json() == '{"examples":0,"learners":{},' + plain + rest


def test_what_is_set_travels_with_the_check_in() -> None:
    policy = Policy(secure=SecureBounds(smallest_cohort=100, largest_norm=2.0), plain=(LEARNER,))
    sent = CheckIn(policy=policy)
    assert CheckIn.model_validate_json(sent.model_dump_json()) == sent
    assert '"smallest_cohort":100' in sent.model_dump_json()
    assert f'"plain":["{LEARNER}"]' in sent.model_dump_json()


@pytest.mark.parametrize(
    ("examples", "task", "bounds", "sentence"),
    [
        (19, {"batch_size": 1}, {}, "lets no update of fewer than 20 examples into a sum"),
        (20, {"batch_size": 10}, {}, None),
        (32, {"batch_size": 10}, {}, None),
        (32, {"batch_size": 11}, {}, "allows 50% of its data in a batch at most; the plan's batch of 11 may be more"),
        (33, {"batch_size": 16}, {}, None),
        (64, {"batch_size": 17}, {}, "allows 50% of its data in a batch at most; the plan's batch of 17 may be more"),
        (
            20,
            {"steps": 1, "batch_size": 1},
            {},
            "whole passes only; the plan's 1 steps may be less than one pass",
        ),
        (20, {"steps": 31, "batch_size": 1}, {}, "allows whole passes only; the plan's 31 steps may be less than one"),
        (20, {"steps": 32, "batch_size": 1}, {}, None),
        (20, {"steps": 19, "batch_size": 1}, {"whole_passes": False}, None),
        (20, {"steps": 1, "batch_size": 1}, {"whole_passes": False}, "wants 2 steps behind an update"),
        (20, {"epochs": 1, "batch_size": 20}, {"largest_batch": 1.0}, "wants 2 steps behind an update"),
        (20, {"epochs": 2, "batch_size": 20}, {"largest_batch": 1.0}, None),
        (39, {"epochs": 1, "batch_size": 10}, {"fewest_examples": 40}, "fewer than 40 examples"),
        (1, {"epochs": 1, "batch_size": 1}, {"fewest_examples": 1, "fewest_steps": 1, "largest_batch": 1.0}, None),
    ],
)
def test_no_update_of_too_little_work_comes_into_a_sum(
    examples: int, task: dict[str, Any], bounds: dict[str, Any], sentence: str | None
) -> None:
    policy = Policy(secure=SecureBounds(**bounds))
    found = refusal(assignment(secure=True, **task), offer(examples=examples, policy=policy))
    assert found is None if sentence is None else sentence in (found or "")
    assert re.search(rf"\b{examples}\b", found or "") is None or str(examples) in str(task), "its size is not told"
    assert refusal(assignment(secure=False, **task), offer(examples=examples, policy=policy)) is None


@pytest.mark.parametrize(("one", "other"), in_parts([(20, 32), (33, 64), (65, 128), (100, 101), (513, 1024)], of=2))
@pytest.mark.parametrize(
    "bounds", [{}, {"whole_passes": False, "fewest_steps": 7}, {"largest_batch": 1.0}, {"largest_batch": 0.1}]
)
def test_repro_refusals_tell_no_more_of_a_size_than_its_power_of_two(
    one: int, other: int, bounds: dict[str, Any]
) -> None:
    """A coordinator that varied steps and batch over ten runs, and saw which were refused, knew the exact size."""
    policy = Policy(secure=SecureBounds(**bounds), max_epochs=3)
    tasks: list[dict[str, Any]] = [{"batch_size": batch, **more} for batch in range(1, 1100, 7) for more in WORK]
    tasks += [{"batch_size": 10, "steps": steps} for steps in range(1, 500)]
    tasks += [{"batch_size": 1, "steps": steps} for steps in range(1, 2100)]
    refused = 0
    for task in tasks:
        work = assignment(secure=True, **task)
        of_one, of_other = (refusal(work, offer(examples=size, policy=policy)) for size in (one, other))
        assert of_one == of_other, task
        refused += of_one is not None
    assert 0 < refused < len(tasks)
    assert refusal(assignment(secure=True), offer(examples=19)), "the owner's own fewest is exact"


@pytest.mark.parametrize("examples", [20, 21, 31, 32, 33, 63, 64, 65, 1000])
def test_no_work_below_the_owners_floors_is_taken_whatever_the_size(examples: int) -> None:
    for batch in range(1, examples + 2):
        for task in ({"batch_size": batch}, {"batch_size": batch, "steps": -(-examples // batch) - 1}):
            if task.get("steps") != 0 and refusal(assignment(secure=True, **task), offer(examples=examples)) is None:
                assert batch <= examples / 2, task
                assert "steps" not in task, "less than a whole pass"


def test_a_secure_round_within_the_owners_bounds_is_taken() -> None:
    assert refusal(assignment(secure=True), offer(examples=65, policy=Policy(secure_only=True))) is None
    assert refusal(assignment(secure=True), offer(examples=65, policy=Policy(plain=()))) is None


def test_a_secure_round_beyond_them_and_one_that_this_sdk_does_not_know_are_refused_before_training() -> None:
    careful = offer(policy=Policy(secure=SecureBounds(smallest_cohort=65)))
    assert refusal(assignment(secure=True), careful) == "This device hides among 65 or more; the plan asks for 64."
    unknown = assignment(secure=True).changed(secure=SECURE.changed(drop=3))
    assert refusal(unknown, offer()) == (
        "This device's SDK cannot take part in this secure round: a strict round takes no drop, corrupt, sigma or eta."
    )


def test_a_device_says_that_it_speaks_the_secure_protocol() -> None:
    assert shown(offer(examples=60)) == offer(examples=60, secure=SECURE_VERSION)


@pytest.mark.parametrize(
    "policy", [Policy(secure_only=True), Policy(plain=()), Policy(secure_only=True, plain=("a:b",))]
)
def test_a_device_whose_data_goes_in_clear_for_no_learner_says_no_size(policy: Policy) -> None:
    """Because its owner says so, or after its first secure round."""
    secret = offer(examples=60, policy=policy)
    assert shown(secret).examples == 0
    assert shown(offer(examples=60, policy=Policy(plain=("a:b",)))).examples == 60, "plain plans need it"
    assert refusal(assignment(secure=True, steps=7, batch_size=10), secret.changed(examples=60)) is None


@pytest.mark.parametrize("steps", [40, 1_000_000])
def test_repro_a_device_that_says_no_size_says_none_when_it_refuses_steps(steps: int) -> None:
    """It said how many passes over its data they were: with many steps, exactly how much data it has."""
    policy = Policy(secure_only=True, max_epochs=5)
    said = {
        refusal(assignment(secure=True, steps=steps, batch_size=10), offer(examples=size, policy=policy))
        for size in (61, 67, 71)
    }
    assert said == {f"This device's owner allows 5 epochs a round; the plan asks for {steps} steps, which may be more."}


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
