"""The plan's section ``[privacy]``: noise from epsilon and back, and what it does not go with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.privacy.accounting import epsilon_of, rho_of
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError

ROOT = Path(__file__).parents[3]


MASKED: dict[str, Any] = {
    "privacy": {"mechanism": "distributed"},
    "aggregation": {"weighting": "equal", "partial": "refuse"},
    "secure": {"max_norm": 0.5, "max_abs": 0.05},
}
GROUPED = {**MASKED, "secure": {**MASKED["secure"], "groups": 4}, "cohort": {"quorum": 0.7}}
OPTIONS = ["privacy", "plan", "--noise", "4", "--rounds", "10", "--delta", "1e-6", "--goal", "256", "--values", "50890"]


def plan(**sections: Any) -> Plan:
    body: dict[str, Any] = {
        "name": "private",
        "task": {"learner": "a:b"},
        "cohort": {"select": 300, "goal": 256, "most_rounds": 10},
        "aggregation": {"weighting": "equal"},
        "privacy": {"clip": 0.5, "noise": 4.0, "delta": 1e-6},
    }
    for name, section in sections.items():
        body[name] = {**body.get(name, {}), **section}
        body[name] = {field: value for field, value in body[name].items() if value is not None}
    return Plan.parse(body)


def test_epsilon_of_noise_and_noise_of_epsilon() -> None:
    given = plan()
    assert given.privacy is not None
    assert given.privacy.spent(given) == pytest.approx(4.010, abs=1e-3)
    assert given.privacy.rho(given) == 10 / (2 * 4.0**2)
    wanted = plan(privacy={"noise": None, "epsilon": 4.0})
    assert wanted.privacy is not None
    assert wanted.privacy.spent(wanted) <= 4.0
    assert wanted.privacy.multiplier(wanted) == pytest.approx(4.009, abs=1e-3)
    assert wanted.privacy.deviation(wanted) == pytest.approx(4.009 * 0.5 * 2**32, rel=1e-3)


def test_a_run_of_fewer_rounds_than_a_device_may_count_in_costs_those() -> None:
    short = plan(finish={"rounds": 2})
    assert short.privacy is not None
    assert short.privacy.participations(short) == 2
    assert short.privacy.spent(short) == epsilon_of(2 / (2 * 4.0**2), 1e-6)


@pytest.mark.parametrize("mechanism", ["tree", "blt"])
def test_correlated_noise_of_a_target_reaches_it(mechanism: str) -> None:
    rounds = {"cohort": {"most_rounds": 4, "apart": 20}, "finish": {"rounds": 100}}
    wanted = plan(**rounds, privacy={"mechanism": mechanism, "noise": None, "epsilon": 4.0})
    alone = plan(**rounds, privacy={"noise": None, "epsilon": 4.0})
    assert wanted.privacy is not None
    assert alone.privacy is not None
    assert 3.999 < wanted.privacy.spent(wanted) <= 4.0
    assert wanted.privacy.cost(wanted) * 4 == pytest.approx(wanted.privacy.rho(wanted))
    assert wanted.privacy.terms(wanted).apart == 20
    assert rho_of(wanted.privacy.terms(wanted).noise, 1) == pytest.approx(wanted.privacy.cost(wanted))
    pattern, strategy = wanted.privacy.pattern(wanted), wanted.privacy.strategy(wanted)
    least = strategy.squares(pattern)[-1] / (2 * wanted.privacy.multiplier(wanted) ** 2)
    assert wanted.privacy.rho(wanted) >= least * (1 - 2**-50), "never below what the worst rounds cost"
    total = wanted.privacy.multiplier(wanted) * strategy.spread(100)[-1]
    assert total < 0.8 * alone.privacy.multiplier(alone) * 10
    told = " ".join(wanted.privacy.said(wanted, None))
    assert f"the sum of all 100 rounds has noise of {total:.4g} x clip; independent noise of the same epsilon" in told
    assert "the sum of all" not in " ".join(alone.privacy.said(alone, None))


def test_a_model_that_is_too_large_for_exact_buffers_is_refused() -> None:
    given = plan(privacy={"mechanism": "blt"}, finish={"rounds": 1000})
    assert given.privacy is not None
    assert given.privacy.against_model(given, 10**6) is None
    assert "274,877,906,944 values times rounds at most" in str(given.privacy.against_model(given, 10**9))


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"privacy": {"mechanism": "ftrl"}}, "privacy.mechanism"),
        (
            {"privacy": {"mechanism": "blt", "clip": 60.0, "noise": 30.0}, "finish": {"rounds": 10_000}},
            'the buffers of "blt" cannot hold exactly',
        ),
        (
            {"privacy": {"mechanism": "blt"}, "finish": {"rounds": 10_000_000}},
            '"blt" takes finish.rounds of 100,000 at most: lower it, or take "tree"',
        ),
        ({"cohort": {"most_rounds": None}}, "privacy needs cohort.most_rounds"),
        ({"privacy": {"noise": None}}, "it needs noise, or an epsilon to compute it from"),
        ({"privacy": {"epsilon": 1.0}}, "privacy.noise = 4 gives epsilon 4.01 at delta 1e-06 .* set noise = 14.33"),
        ({"privacy": {"clip": 0.0}}, "privacy.clip"),
        ({"privacy": {"delta": 1.0}}, "privacy.delta"),
        (
            {"privacy": {"adapt": {"lowest": 0.6, "highest": 1.0}}},
            "clip .0.5. is that of the first round, and",
        ),
        ({"privacy": {"adapt": {"highest": 1.0}}}, "privacy.adapt: a clip that adapts needs lowest"),
        ({"privacy": {"adapt": {"lowest": 0.1}}}, "needs lowest and highest"),
        ({"privacy": {"adapt": {"lowest": 0.1, "highest": 1.0, "quantile": 1.0}}}, "privacy.adapt.quantile"),
        ({"privacy": {"adapt": {"lowest": 0.1, "highest": 1.0, "rate": 0.0}}}, "privacy.adapt.rate"),
        ({"privacy": {"noise": None, "epsilon": 1e-9, "delta": 1e-15}}, "give sums beyond 2.31: lower clip"),
        ({"privacy": {"clip": 60000.0, "noise": 10_000.0}}, "give sums beyond 2.31: lower clip"),
        ({"aggregation": {"weighting": "examples"}}, 'needs aggregation.weighting = "equal"'),
        ({"aggregation": {"partial": "examples_seen"}}, "weights would tell how much data a device has"),
        ({"aggregation": {"inverse_participation": 4}}, "would weigh more than 1"),
        ({"aggregation": {"clip_norm": 1.0}}, "leave aggregation.clip_norm out"),
        ({"aggregation": {"statistics_range": 1.0}}, "no statistic is averaged in a private run"),
        ({"aggregation": {"rule": "median"}}, "only the sum is bounded, so the rule is mean"),
        ({"secure": {"max_norm": 0.5, "max_abs": 0.5}}, 'set privacy.mechanism = "distributed"'),
        ({"privacy": {"mechanism": "distributed"}}, "noise that devices add before they mask: it needs .secure."),
        (
            {**MASKED, "secure": {"max_norm": 1.0, "max_abs": 0.5}},
            "one bound, to which devices scale .* set both alike",
        ),
        ({**MASKED, "secure": {**MASKED["secure"], "q": 1}}, "set q = 2 or more"),
        ({**MASKED, "aggregation": {"weighting": "examples"}}, 'needs aggregation.weighting = "equal"'),
        ({**MASKED, "datacenter": {"data": "proxy", "every": 3}}, "privacy with .datacenter. is not accounted for"),
        ({"buffered": {"concurrency": 300}}, "privacy with .buffered. is not accounted for"),
        ({"strategy": {"name": "fednova"}}, "privacy with .strategy. is not accounted for"),
        ({"datacenter": {"data": "proxy", "every": 3}}, "privacy with .datacenter. is not accounted for"),
        ({"task": {"score_held_out": True}}, "scores are computed from data, without noise"),
        ({"cohort": {"choose": "oort"}}, "who is drawn would depend on devices' data"),
        ({"cohort": {"choose": "power-of-choice"}}, "who is drawn would depend on devices' data"),
        ({"cohort": {"choose": "by_examples"}}, "who is drawn would depend on devices' data"),
        ({"cohort": {"min_examples": 2}}, "who is drawn would depend on devices' data"),
    ],
)
def test_what_it_does_not_go_with_is_refused_in_a_sentence(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan(**sections)


def test_noise_of_devices_is_refused_where_a_lane_cannot_have_it() -> None:
    sound = plan(**MASKED)
    assert sound.privacy is not None
    assert sound.privacy.against_size(sound, 50_890) == ""
    for changes, values, sentence in (
        ({"privacy": {**MASKED["privacy"], "noise": 1e-4}}, 10, "would add noise of deviation"),
        (
            {"secure": {**MASKED["secure"], "q": 24, "max_abs": 1e-4}, "privacy": {**MASKED["privacy"], "noise": 2e3}},
            10**9,
            "at most 48 fit",
        ),
    ):
        wrong = plan(**{**MASKED, **changes})
        assert wrong.privacy is not None
        assert sentence in wrong.privacy.against_size(wrong, values)
    usual = plan()
    assert usual.privacy is not None
    assert usual.privacy.against_size(usual, 10) == ""


def test_groups_cost_the_root_of_their_number() -> None:
    """Of 268 devices any 90 have all of the noise, of 67 any 23; all 256 add to each value of the mean."""
    found = [list(one.privacy.said(one, 50_890)) for one in (plan(**MASKED), plan(**GROUPED)) if one.privacy]
    assert found[0][0] == found[1][0], "a device is in one group: its epsilon is the same"
    assert (
        "90 honest devices of 268 are surely in a sum, and give it noise 4 x clip; all 256 give the round 6.746"
        in found[0][1]
    )
    assert "23 honest devices of 67 are surely in each of the 4 groups' sums" in found[1][1]
    assert "noise 13.34 x clip in a sum is 0.0521 x clip in each value" in found[1][2]
    shown = CliRunner().invoke(app, [*OPTIONS, "--roster", "268", "--groups", "4"])
    assert "any 23 of a group of 67 to have all of it" in shown.stdout
    assert "each value is off by 0.0521 x clip" in shown.stdout


def test_under_masks_a_list_counts_and_not_a_committed_round() -> None:
    short = plan(**MASKED, finish={"rounds": 2})
    assert short.privacy is not None
    assert short.privacy.participations(short) == 10, "rounds that fail after their list cost as much"


def test_what_sampling_gains_is_labelled_as_a_simulation_s() -> None:
    simulated = [*OPTIONS, "--clients", "10000", "--of", "50"]
    shown = " ".join(CliRunner().invoke(app, simulated).stdout.split())
    assert "amplified by sampling: 0.2045, in a simulation only, where each of 50 rounds draws each of 10,000" in shown
    assert "an estimate, not proven" in shown
    assert json.loads(CliRunner().invoke(app, [*simulated, "--json"]).stdout)["amplified"] == pytest.approx(
        0.204462, rel=1e-5
    )
    assert "amplified" not in CliRunner().invoke(app, OPTIONS).stdout


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    parts = page.split("$ quorate privacy plan ")[1:]
    assert len(parts) == 2
    for part in parts:
        options, _, shown = part.partition("\n")
        found = CliRunner().invoke(app, ["privacy", "plan", *options.split()])
        assert found.exit_code == 0
        assert shown.startswith(found.stdout + "```")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--rounds 3 --delta 1e-6", "Give --noise, or the --epsilon that it shall reach."),
        ("--rounds 3 --delta 1e-6 --noise 1 --epsilon 1", "Give --noise, or the --epsilon that it shall reach."),
        ("--rounds 3 --delta 1 --noise 1", "a delta is above 0 and below 1, not 1.0."),
        ("--rounds 3 --delta 1e-6 --noise 0", "A noise multiplier is a number above 0, not 0."),
        ("--rounds 3 --delta 1e-6 --noise 1 --roster 12 --groups 9", "A roster of 12 in 9 groups: a secure round has"),
        ("--rounds 3 --delta 1e-6 --noise 1 --clients 1000", "With --clients, give --of, the rounds of the simulation"),
        ("--rounds 3 --delta 1e-6 --noise 1 --clients 100 --of 5", "and a --goal of at most so many clients."),
        ("--rounds 3 --delta 1e-6 --epsilon 0", "an epsilon is a number above 0, not 0.0."),
    ],
)
def test_bad_input_of_the_command_gets_a_sentence(options: str, sentence: str) -> None:
    found = CliRunner().invoke(app, ["privacy", "plan", *options.split()])
    assert found.exit_code == 1
    assert sentence in found.output
    assert "Traceback" not in found.output


def test_a_clip_that_adapts_costs_what_another_does_and_other_plans_keep_their_digest() -> None:
    usual = plan()
    adapts = plan(privacy={"adapt": {"lowest": 0.01, "highest": 10.0}})
    assert usual.privacy is not None
    assert adapts.privacy is not None
    assert "adapt" not in usual.privacy.model_dump()
    assert plan(privacy={"adapt": None}).digest == usual.digest != adapts.digest
    assert (adapts.privacy.rho(adapts), adapts.privacy.deviation(adapts)) == (
        usual.privacy.rho(usual),
        usual.privacy.deviation(usual),
    )
    assert (usual.privacy.bit(usual), usual.privacy.after({}, 0.5)) == (0.0, {})
    assert 0 < adapts.privacy.bit(adapts) <= adapts.privacy.beta(adapts) * 0.5


def test_devices_are_told_the_bounds_of_a_clip_and_a_round_moves_the_model_by_the_highest() -> None:
    one = plan(**MASKED)
    other = plan(**{**MASKED, "privacy": {**MASKED["privacy"], "adapt": {"lowest": 0.1, "highest": 5.0}}})
    assert one.terms is not None
    assert other.terms is not None
    assert (one.terms.clips, other.terms.clips) == ((0.5, 0.5), (0.1, 5.0))
    assert other.reach.norm == pytest.approx(10 * one.reach.norm)
    assert other.privacy is not None
    assert other.privacy.against_size(other, 50_890) == ""
    coarse = plan(**{**MASKED, "secure": {**MASKED["secure"], "q": 2}, "privacy": {
        **MASKED["privacy"], "noise": 50.0, "adapt": {"lowest": 0.1, "highest": 5.0}
    }})  # fmt: skip
    assert coarse.privacy is not None
    assert coarse.privacy.against_size(coarse, 50_890) == ""
