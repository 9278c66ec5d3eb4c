"""Why a device may not work for a run, in sentences for its owner; and that equal offers are equal strings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_sdk.protocol.devices import CheckIn, Policy, PrivacyBounds, PrivacyTerms, SecureBounds, Task
from client_sdk.protocol.secure import SECURE_VERSION
from client_sdk.secagg.header import Terms
from coordinator.engine.eligibility import fewest_examples, offer_of, reason_against, rests, withstands_too_few
from coordinator.engine.plan import Plan

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
        "the plan wants the learner quorate:mnist-mlp, which this device does not have (it offers: none)",
    ),
    (
        {"learners": {"b:two": "2", "a:one": "1"}},
        "the plan wants the learner quorate:mnist-mlp, which this device does not have (it offers: a:one 1, b:two 2)",
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


def test_an_owner_s_bounds_on_noise_speak() -> None:
    noise = PrivacyTerms(noise=2.0, most_rounds=10)

    def against(privacy: PrivacyTerms | None, **bounds: Any) -> str:
        policy = Policy(privacy=PrivacyBounds(**bounds))
        offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "1.2"}, policy=policy))
        return reason_against(TASK, offer, privacy=privacy) or ""

    assert against(noise, most_epsilon=8, apart=3) == ""
    assert against(noise, most_epsilon=2.5) == ""
    assert "one round of this plan costs 2.419" in against(noise, most_epsilon=2.4)
    assert "rounds with noise only" in against(None, most_epsilon=100)
    for privacy in (None, noise):
        assert "in which devices add noise of 2 x clip themselves" in against(privacy, private_only=2)


def test_an_owner_s_bounds_go_by_what_devices_add_under_masks() -> None:
    def against(added: float, **bounds: Any) -> str:
        policy = Policy(privacy=PrivacyBounds(**bounds))
        offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "1.2"}, policy=policy, secure=SECURE_VERSION))
        of_masks = {"noise": added, "divisor": 64} if added else {}
        said = PrivacyTerms(noise=9.0, most_rounds=10)
        return reason_against(TASK, offer, replace(terms(), **of_masks), privacy=said) or ""

    assert against(2.0, private_only=2, most_epsilon=2.5) == ""
    assert "add noise of 2 x clip themselves" in against(1.9, private_only=2)
    assert "add noise of 2 x clip themselves" in against(0.0, private_only=2)
    assert "one round of this plan costs 2.419" in against(2.0, most_epsilon=2.4)
    assert "rounds with noise only" in against(0.0, most_epsilon=100)


def test_a_device_rests_in_the_runs_that_it_declines() -> None:
    offer = offer_of(CheckIn(policy=Policy(rests=(("a", -1), ("b", 3)))))
    assert rests("a", 7, offer) == "the device declines this run"
    said = "the device declines this run until version 3, or for a time if its training has failed"
    assert rests("b", 2, offer) == said
    assert rests("b", 3, offer) is rests("c", 0, offer) is rests("a", 7, offer_of(CheckIn())) is None


def terms(**secure: Any) -> Terms:
    section = {"max_norm": 1.0, "max_abs": 0.25, **secure}
    plan = {"name": "p", "task": {"learner": "quorate:mnist-mlp"}, "aggregation": {"weighting": "examples"}}
    found = Plan.parse({**plan, "secure": section}).terms
    assert found is not None
    return found


def in_secret(found: Terms, speaks: int = SECURE_VERSION, **policy: Any) -> str | None:
    offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "1.2"}, policy=Policy(**policy), secure=speaks))
    return reason_against(TASK, offer, found)


def test_after_a_secure_round_a_device_is_eligible_for_those_plain_ones_that_its_owner_allows() -> None:
    sentence = "the device has joined secure rounds, and its owner lets no data go in clear for quorate:mnist-mlp"
    assert reason(plain=()) == reason(plain=("other:net",)) == sentence
    assert reason(plain=("other:net", "quorate:mnist-mlp")) is None
    assert in_secret(terms(), plain=(), secure_only=True) is None


@pytest.mark.parametrize(
    ("secure", "bounds", "words"),
    [
        ({"minimum_cohort": 63}, None, "hides among 64 or more; the plan asks for 63"),
        ({}, {"smallest_cohort": 65}, "hides among 65 or more; the plan asks for 64"),
        ({}, {"largest_norm": 0.5}, "an L2 clip of at most 0.5; the plan asks for 1"),
        ({"max_norm": 0.099}, None, "an L2 clip of at least 0.1; the plan asks for 0.099"),
        ({}, {"smallest_norm": 1.5}, "an L2 clip of at least 1.5; the plan asks for 1"),
        ({}, {"largest_range": 0.2}, "a range of at most 0.2; the plan asks for 0.25"),
        ({}, {"sums_a_day": 7, "sums_made": True}, "into 7 sums a day, and today's are made"),
        ({}, {"largest_weight_cap": 9999}, "a weight cap of at most 9999; the plan asks for 10000"),
        ({"profile": "fast", "drop": 20}, {"strict_only": True}, "strict secure rounds only"),
    ],
)
def test_an_owners_bounds_on_secure_rounds_leave_the_device_out(
    secure: dict[str, Any], bounds: dict[str, Any] | None, words: str
) -> None:
    policy = {} if bounds is None else {"secure": SecureBounds(**bounds)}
    found = in_secret(terms(**secure), **policy)
    assert found is not None
    assert words in found
    assert in_secret(terms()) is None


@pytest.mark.parametrize(
    ("section", "select", "wanted", "most"),
    [
        ({}, 75, 26, None),
        ({}, 76, 27, 26),
        ({}, 76, 26, None),  # rosters of 75 are possible: a device refuses those of 76 itself
        ({"groups": 4}, 300, 27, 26),
        ({"groups": 4}, 300, 26, None),
        ({"profile": "fast", "drop": 44}, 300, 31, 30),
        ({"profile": "fast", "drop": 44}, 300, 30, None),
    ],
)
def test_a_device_that_no_group_of_the_plan_can_satisfy_is_not_drawn(
    section: dict[str, Any], select: int, wanted: int, most: int | None
) -> None:
    cohort = {"select": select, "goal": select, "quorum": 0.75}
    secure = {"max_norm": 1.0, "max_abs": 0.25, "reserve": 0, **section}
    task = {"learner": "quorate:mnist-mlp"}
    plan = Plan.parse({"name": "p", "task": task, "cohort": cohort, "secure": secure})
    offer = offer_of(CheckIn(policy=Policy(secure=SecureBounds(most_colluding=wanted))))
    said = f"the device wants secrecy against {wanted} colluding devices; groups of the plan withstand {most} at most"
    assert withstands_too_few(plan, offer) == (None if most is None else said)
    assert withstands_too_few(plan, offer_of(CheckIn())) is None


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
    assert offer_of(one) != offer_of(one.model_copy(update={"secure": SECURE_VERSION}))
    assert '"secure"' not in offer_of(one), "the offer of a device that speaks none is as it was"


@pytest.mark.parametrize(
    ("speaks", "says"), [(0, "none"), (1, "version 1"), (SECURE_VERSION + 1, f"version {SECURE_VERSION + 1}")]
)
def test_a_device_of_another_version_of_the_secure_protocol_takes_part_in_plain_rounds_only(
    speaks: int, says: str
) -> None:
    sentence = f"the plan's rounds take version {SECURE_VERSION} of the secure protocol; this device speaks {says}"
    assert in_secret(terms(), speaks) == sentence
    assert in_secret(terms()) is None
    offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "1.2"}, secure=speaks))
    assert reason_against(TASK, offer) is None


@pytest.mark.parametrize(
    ("cohort", "policy", "fewest"),
    [
        ({}, {"secure_only": True}, 0),
        ({}, {"plain": ()}, 0),
        ({}, {"plain": ("quorate:mnist-mlp",)}, 1),
        ({}, {}, 1),
        ({"min_examples": 2}, {"secure_only": True}, 2),
        ({"min_examples": 2}, {"plain": ()}, 2),
        ({"min_examples": 2}, {}, 2),
        ({"choose": "by_examples", "pool": 400}, {"secure_only": True}, 1),
    ],
)
def test_whose_data_goes_in_clear_for_no_learner_needs_to_tell_a_size_only_where_the_plan_asks_for_it(
    cohort: dict[str, Any], policy: dict[str, Any], fewest: int
) -> None:
    body: dict[str, Any] = {
        "name": "sizes",
        "task": {"learner": "quorate:mnist-mlp"},
        "cohort": cohort,
        "aggregation": {"weighting": "equal"},
        "secure": {"max_norm": 1.0, "max_abs": 0.25},
    }
    offer = offer_of(CheckIn(learners={"quorate:mnist-mlp": "1.2"}, policy=Policy(**policy)))
    assert fewest_examples(Plan.parse(body), offer) == fewest
    plain = {name: section for name, section in body.items() if name != "secure"}
    assert fewest_examples(Plan.parse(plain), offer) == max(1, fewest)
