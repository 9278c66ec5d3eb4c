"""The plan's section [secure]: what it refuses, alone and with the rest, in a sentence that names the field; and that
plans without it are, to the byte, what they were."""

from __future__ import annotations

import math
from typing import Any

import pytest

from client_sdk.protocol import wire
from client_sdk.secagg.header import GraphRule
from client_sdk.tensors.exact_sum import RANGE
from coordinator.engine.aggregation.section import Aggregation
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from coordinator.engine.secure.plan import FEWEST_BITS, Secure, cannot_learn, quantizer, said_of_bits

MINIMAL: dict[str, Any] = {"name": "mnist", "task": {"learner": "quorate:mnist-mlp"}}
SECURE: dict[str, Any] = {"max_norm": 1.0, "max_abs": 0.25}
FAST: dict[str, Any] = {**SECURE, "profile": "fast", "drop": 38}
INF, NAN = float("inf"), float("nan")
BY_EXAMPLES = {"weighting": "examples"}
PLAIN = Aggregation(weighting="examples")


def plan(secure: dict[str, Any] | None = None, **sections: Any) -> Plan:
    return Plan.parse({**MINIMAL, **sections, "secure": SECURE if secure is None else secure})


def section(**fields: Any) -> Secure:
    found = plan({**SECURE, **fields}, aggregation=BY_EXAMPLES if "weight_cap" in fields else {}).secure
    assert found is not None
    return found


def test_a_plan_without_the_section_has_plain_rounds() -> None:
    plain = Plan.parse(MINIMAL)
    assert plain.secure is None
    assert "secure" not in plain.written_out
    assert Plan.parse({**MINIMAL, "secure": None}).digest == plain.digest
    assert plan().digest != plain.digest


def test_each_number_of_the_section_is_agreed_to() -> None:
    of = {"weight_cap": {"aggregation": BY_EXAMPLES}}
    digests = {plan({**SECURE, name: value}, **of.get(name, {})).digest for name, value in {
        "max_norm": 2.0, "max_abs": 0.5, "q": 17, "weight_cap": 9, "minimum_cohort": 65,
        "reserve": 1, "exchange_s": 61, "attempts": 2, "expires_s": 3601,
    }.items()}  # fmt: skip
    assert len(digests | {plan().digest, plan(aggregation=BY_EXAMPLES).digest}) == 11


def test_defaults_are_those_of_the_design() -> None:
    found = section()
    assert (found.profile, found.q, found.minimum_cohort) == ("strict", 16, 64)
    assert found.rule == GraphRule(profile="strict")
    assert found.rule.parameters(300).threshold == 201
    fast = plan(FAST).secure
    assert fast is not None
    assert fast.rule == GraphRule(profile="fast", drop=38, corrupt_millionths=100_000, sigma=80, eta=40)


@pytest.mark.parametrize(
    ("select", "goal", "roster"),
    [
        (300, 256, 268),  # a twentieth
        (40, 30, 31),  # at least one
        (100, 99, 99),  # one above the goal may be slow to train: no round waits for all that were selected
        (103, 100, 101),  # half of the three above the goal
        (100, 100, 100),
        (340, 290, 300),  # the largest roster of *strict*
    ],
)
def test_the_reserve_follows_from_the_cohort_where_the_plan_does_not_say_it(
    select: int, goal: int, roster: int
) -> None:
    silent = plan({**SECURE, "minimum_cohort": 20}, cohort={"select": select, "goal": goal})
    assert silent.secure is not None
    assert silent.secure.most_advertisers(silent.cohort) == roster
    said = plan({**SECURE, "minimum_cohort": 20, "reserve": 0}, cohort={"select": select, "goal": goal})
    assert said.secure is not None
    assert said.secure.most_advertisers(said.cohort) == goal


def test_it_survives_json() -> None:
    fast = plan({**FAST, "corrupt": 0.123456})
    again = Plan.parse(fast.model_dump(mode="json"))
    assert again == fast
    assert again.digest == fast.digest
    assert again.secure is not None
    assert again.secure.rule.corrupt_millionths == 123_456


@pytest.mark.parametrize(
    ("aggregation", "cap", "wanted"),
    [
        (BY_EXAMPLES, None, 10_000),
        ({**BY_EXAMPLES, "weight_cap": 500}, None, 500),
        (BY_EXAMPLES, 700, 700),
        ({"weighting": "equal"}, None, 1),
        ({}, None, 1),
    ],
)
def test_a_device_weighs_what_the_plan_lets_it(aggregation: dict[str, Any], cap: int | None, wanted: int) -> None:
    found = plan({**SECURE, "weight_cap": cap}, aggregation=aggregation)
    assert found.terms is not None
    assert found.terms.weight_cap == found.heaviest == wanted
    assert Plan.parse(MINIMAL).terms is None


@pytest.mark.parametrize(
    ("sections", "weighting", "named"),
    [
        ({}, "equal", None),
        ({"aggregation": {"weighting": "equal"}}, "equal", "equal"),
        ({"aggregation": BY_EXAMPLES}, "examples", "examples"),
        ({"secure": None}, "examples", None),
        ({"secure": None, "aggregation": {"weighting": "equal"}}, "equal", "equal"),
    ],
)
def test_devices_of_secure_plans_weigh_the_same_where_the_plan_does_not_say_it(
    sections: dict[str, Any], weighting: str, named: str | None
) -> None:
    """And the canonical text has what the plan names, so that no other plan has another digest by it."""
    found = Plan.parse({**MINIMAL, "secure": SECURE, **sections})
    assert found.weighting == weighting
    assert wire.named(found).get("aggregation", {}).get("weighting") == named
    again = Plan.parse(found.written_out)
    assert (again.weighting, again.digest) == (weighting, found.digest)


# (field, taken, refused): both ends of each range, and just beyond them
RANGES: list[tuple[str, list[object], list[object]]] = [
    ("profile", ["strict"], ["curious", "", None]),
    ("q", [1, 14, 24], [0, 25, 16.0]),
    ("max_norm", [1e-9, 1e9], [0, -1, 1e-320, 1e308, INF, NAN, None]),
    ("max_abs", [1e-9, 1e9], [0, -1, 1e-320, 1e308, INF, NAN, None]),
    ("weight_cap", [None, 1, 10_000], [0, -1, 10_001, 2**24]),
    ("minimum_cohort", [3, 268], [2, 0, 269, 10_001]),
    ("reserve", [None, 0, 44], [-1, 45]),
    ("exchange_s", [0.5, 750], [0, -1, 751, INF, NAN]),
    ("quiet_s", [None, 0.5, 60], [0, -1, 60.1, INF, NAN]),
    ("attempts", [1, 8], [0, 9]),
    ("expires_s", [840, 518_400], [839, 518_401, INF, NAN]),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, taken, _ in RANGES for value in taken])
def test_a_value_within_its_range_is_taken(field: str, value: object) -> None:
    assert getattr(section(**{field: value}), field) == value


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, _, wrong in RANGES for value in wrong])
def test_a_value_beyond_its_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError, match=f"secure.*{field}"):
        section(**{field: value})


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_norm": 1.0}, {}, "secure.max_abs: is required"),
    ({**SECURE, "colour": 1}, {}, "secure.colour: there is no such field"),
    ({**SECURE, "cipher": "chacha20"}, {}, "secure.cipher: there is no such field"),
    ({**SECURE, "keep_late": True}, {}, "secure.keep_late: there is no such field"),
    (
        {**SECURE, "adversary": "curious"},
        {},
        "secure: adversary: rounds are always secure against a malicious coordinator: leave it out",
    ),
    (
        {**SECURE, "threshold": 150},
        {},
        "secure: threshold: it follows from the profile and the roster's size: leave it out",
    ),
    (
        {**SECURE, "neighbours": 110},
        {},
        "secure: neighbours: it follows from the profile and the roster's size: leave it out",
    ),
    (
        {**SECURE, "drop": 3, "sigma": 40},
        {},
        'secure: drop, sigma: only profile = "fast" takes these; strict has numbers of its own',
    ),
    ({**SECURE, "profile": "fast"}, {}, 'secure: profile = "fast" needs drop: how many devices may vanish'),
    (
        {**FAST, "corrupt": 0.1234567},
        {},
        "secure: corrupt (0.1234567) is not a whole number of millionths: devices compute in exact integers",
    ),
    (
        {**FAST, "drop": 100},
        {},
        (
            "secure.profile: a roster of 218 devices is possible, and of 218 devices 100 may vanish and 21 collude: "
            "no graph and no threshold withstands both"
        ),
    ),
    (
        {**SECURE, "reserve": 35},
        {"cohort": {"select": 290, "goal": 256}},
        (
            "secure.reserve (35) and cohort.goal (256) together are above cohort.select (290): "
            "so many could never advertise"
        ),
    ),
    (
        {**SECURE, "minimum_cohort": 257, "reserve": 0},
        {},
        (
            "secure.minimum_cohort (257) is above cohort.goal and secure.reserve together (256): "
            "a round could never have as many"
        ),
    ),
    (
        SECURE,
        {"cohort": {"select": 400, "goal": 301}},
        'secure.profile = "strict" takes at most 300 devices; cohort.goal and secure.reserve together are 301',
    ),
    (
        {**FAST, "drop": 10},
        {"cohort": {"select": 20_000, "goal": 10_001}, "aggregation": {**BY_EXAMPLES, "weight_cap": 100}},
        'secure.profile = "fast" takes at most 10000 devices; cohort.goal and secure.reserve together are 10001',
    ),
    (
        {**SECURE, "weight_cap": 600},
        {"aggregation": {**BY_EXAMPLES, "weight_cap": 500}},
        (
            "secure.weight_cap (600) is above what a device may weigh by [aggregation] (500): "
            "lanes would be left empty; leave it out"
        ),
    ),
    *(
        (
            {**SECURE, **({"weight_cap": 600} if field == "secure.weight_cap" else {})},
            {"aggregation": {} if field == "secure.weight_cap" else {"weight_cap": 600}},
            (
                f"{field} (600) bounds weights by examples, and devices of a secure plan weigh the same where it does "
                'not say otherwise: leave it out, or set aggregation.weighting = "examples"'
            ),
        )
        for field in ("secure.weight_cap", "aggregation.weight_cap")
    ),
    (
        SECURE,
        {"task": {"learner": "a:b", "codec": "float16@1"}},
        (
            "task.codec (float16@1) cannot be added under masks: a secure plan takes float32@1, rotated@1, "
            "sampled-half@1, sampled-quarter@1, sampled-half-rotated@1, sampled-quarter-rotated@1, "
            "sampled-half-unbiased@1, sampled-quarter-unbiased@1, sampled-half-rotated-unbiased@1, "
            "sampled-quarter-rotated-unbiased@1"
        ),
    ),
    (
        SECURE,
        {"aggregation": {"rule": "median", "weighting": "equal"}},
        (
            "aggregation.rule (median) needs single updates, which nobody sees: "
            'set rule = "mean", or secure.groups, whose means it then looks at'
        ),
    ),
    (
        SECURE,
        {"aggregation": {"clip_norm": 1.0}},
        "aggregation.clip_norm is the coordinator's clip, and it sees no update: set secure.max_norm instead",
    ),
    (
        SECURE,
        {"aggregation": {"partial": "examples_seen"}},
        'aggregation.partial = "examples_seen" needs the work of each, which nobody sees: set partial = "refuse"',
    ),
    (
        SECURE,
        {"task": {"learner": "a:b", "score_held_out": True}},
        "task.score_held_out = true would reveal each device's scores: leave it out of a secure plan",
    ),
    (
        SECURE,
        {"retention": {"rounds": 1}},
        "retention.rounds keeps raw updates, and a secure round has none: leave it out",
    ),
    (
        {**SECURE, "expires_s": 700},
        {},
        (
            "secure.expires_s (700) is below cohort.collect_s and 4 times secure.exchange_s together (840): "
            "an attempt would expire under way"
        ),
    ),
]


@pytest.mark.parametrize(("secure", "sections", "sentence"), WRONG)
def test_what_cannot_be_carried_out_is_refused_in_one_sentence(
    secure: dict[str, Any], sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError) as refused:
        plan(secure, **sections)
    assert str(refused.value) == sentence


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(PlanError) as refused:
        plan(SECURE, aggregation={"clip_norm": 1.0}, retention={"rounds": 2})
    assert str(refused.value).count(";") == 1
    assert "clip_norm" in str(refused.value)
    assert "retention" in str(refused.value)


@pytest.mark.parametrize("goal", [64, 100, 137, 200, 256, 299])
@pytest.mark.parametrize("drop", [5, 12, 20, 44])
def test_every_roster_that_can_happen_has_a_rule_where_the_plan_is_taken(goal: int, drop: int) -> None:
    """The two ends are checked; here all sizes between are."""
    cohort, fewest = {"select": 300, "goal": goal}, max(64, math.ceil(0.85 * goal - 1e-9))
    if (fewest + fewest // 10) // 2 + 1 > fewest - drop:  # more signatures than devices that may be left
        with pytest.raises(PlanError, match="no graph and no threshold withstands both"):
            plan({**FAST, "drop": drop}, cohort=cohort)
        return
    taken = plan({**FAST, "drop": drop}, cohort=cohort)
    assert taken.secure is not None
    assert taken.secure.fewest_advertisers(taken.cohort) == fewest
    for size in range(taken.secure.fewest_advertisers(taken.cohort), taken.secure.most_advertisers(taken.cohort) + 1):
        found = taken.secure.rule.parameters(size)
        assert 2 * found.threshold > found.holders
        assert found.signers <= size - drop


# ------------------------------------------------------------ rounding


def rounds(q: int, cap: int = 10_000, **more: float) -> Secure:
    return Secure(**{**SECURE, "q": q, "weight_cap": cap, **more})


def test_a_cap_far_above_what_devices_weigh_is_said_with_numbers_that_help() -> None:
    said = said_of_bits(rounds(12), PLAIN, 32, 6)
    assert said == (
        "q = 12 with weight_cap = 10,000: where 6 devices weigh about 32, their mean has 5.0 bits, and rounding is "
        "more than what they send. Set secure.weight_cap to what devices usually weigh, such as 32, or q = 15"
    )
    assert said_of_bits(rounds(12), PLAIN, 31.2, 6, enough=FEWEST_BITS).endswith("such as 32, or q = 15")
    assert "6.0 bits, and rounding is a large part of what is committed" in said_of_bits(rounds(13), PLAIN, 32, 6)
    assert said_of_bits(rounds(13), PLAIN, 32, 6, enough=FEWEST_BITS) == ""
    assert said_of_bits(rounds(15), PLAIN, 32, 6) == ""
    assert said_of_bits(rounds(22, 2**24 - 1), PLAIN, 1, 2).endswith("such as 1"), "no q is high enough"
    assert said_of_bits(rounds(4, 128), PLAIN, 32, 6)
    assert said_of_bits(rounds(4, 127), PLAIN, 32, 6) == "", "somebody chose it"


def test_the_rounding_of_a_mean_is_the_bound_that_is_written_at_its_top() -> None:
    """q = 1: steps of 2 max_abs = 0.5. With two values a = 0.7, so that the first term decides; with 100 the second."""
    used = quantizer(rounds(1), PLAIN)
    assert used.rounding_error(2, 3, 10_000) == pytest.approx(math.sqrt(2) * math.sqrt(3) / 2 * 0.5 / 3)
    assert used.rounding_error(2, 3, 5_000) == pytest.approx(2 * math.sqrt(2) * math.sqrt(3) / 2 * 0.5 / 3)
    assert used.rounding_error(100, 3, 10_000) == pytest.approx(10 * math.sqrt(3 * 0.1 * 0.5) / 3)
    assert cannot_learn(rounds(1), PLAIN, 100, 3).startswith(
        "q = 1 with max_abs = 0.25 rounds a mean of 100 values by 1.3 times max_norm (1), so no update"
    )
    assert cannot_learn(rounds(1), PLAIN, 100, 9) == ""


def test_ranges_of_statistics_are_in_the_order_of_their_names() -> None:
    aggregation = Aggregation(statistics_range={"a[0]": 1.0, "b": 2.0})
    assert rounds(16).terms(aggregation, ["c", "b", "a[0]"]).statistics == (1.0, 2.0, RANGE)
    assert Aggregation(statistics_range={}).statistics_range is None


def test_nobody_weighs_single_updates_by_1_over_p_under_masks() -> None:
    with pytest.raises(PlanError, match=r"inverse_participation weighs single updates, and nobody sees one"):
        plan(aggregation={"partial": "refuse", "weight_cap": 100, "inverse_participation": 4})


@pytest.mark.parametrize(
    ("groups", "goal", "quorum", "advised"),
    [(3, 12, 0.85, 0.66), (4, 16, 0.85, 0.75), (6, 24, 0.85, 0.83), (3, 13, 0.65, 0.61), (4, 300, 0.76, 0.75)],
)
def test_repro_a_plan_whose_quorum_cannot_spare_a_group_is_refused(
    groups: int, goal: int, quorum: float, advised: float
) -> None:
    """A group's bad sum costs that group: with the default quorum one bad vector cost the whole round."""
    secure = {**SECURE, "groups": groups, "minimum_cohort": 3, "reserve": 0}
    cohort = {"select": goal, "goal": goal, "quorum": quorum}
    with pytest.raises(PlanError, match=f"cohort.quorum = {advised:g} or less") as refused:
        plan(secure, cohort=cohort)
    assert str(refused.value).count("cohort.quorum") == 2
    fits = plan(secure, cohort={**cohort, "quorum": advised})
    assert goal - -(-goal // groups) >= fits.cohort.quorum_count


def test_the_loss_of_one_of_two_groups_is_more_than_a_quorum_can_spare() -> None:
    """Most groups must stand, so no quorum is asked for."""
    assert plan({**SECURE, "groups": 2, "minimum_cohort": 3}, cohort={"select": 20, "goal": 12}).secure is not None
    assert plan({**SECURE, "groups": 7, "minimum_cohort": 3}, cohort={"select": 50, "goal": 42}).secure is not None
