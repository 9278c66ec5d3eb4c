"""What a plan may name: built in or of a package, with its version and its numbers; what is refused in a sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from coordinator.engine.aggregation.optimizers import Average
from coordinator.engine.aggregation.parameters import ExtensionError, Settings
from coordinator.engine.aggregation.registry import BUILT_IN, RULES, SERVER_OPTIMIZERS, Installed, Registry
from coordinator.engine.aggregation.rules import Mean, Median
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.plan import Plan, chosen
from coordinator.engine.plan_file import PlanError
from coordinator.engine.selection import SELECTIONS

EQUAL = {"weighting": "equal"}


def plan(**aggregation: Any) -> Plan:
    return Plan.parse({"name": "p", "task": {"learner": "a:b"}, "aggregation": aggregation})


HERE = Registry(
    rules={"clinic:krum": Installed("1.2", Median()), "clinic:sum": Installed("1", Mean())},
    server_optimizers={"clinic:slow": Installed("3", Average())},
)


@pytest.mark.parametrize(
    ("aggregation", "sentence"),
    [
        (
            {"rule": "bulyan"},
            "rule: there is no aggregation rule 'bulyan'; there are mean, median, trimmed-mean, krum, ",
        ),
        ({"rule": "trimmed-mean", **EQUAL}, "rule_parameters: trimmed-mean needs fraction, a number from 0 and below"),
        (
            {"rule": "trimmed-mean", "rule_parameters": {"fraction": 0.5}, **EQUAL},
            r"rule_parameters: fraction \(0.5\) of trimmed-mean must be from 0 and below 0.5",
        ),
        (
            {"rule": "trimmed-mean", "rule_parameters": {"beta": 0.1}, **EQUAL},
            "rule_parameters: trimmed-mean has no parameter 'beta'; it has fraction",
        ),
        (
            {"rule": "trimmed-mean", "rule_parameters": {"fraction": 0.1}},
            'the trimmed-mean takes no weights: set weighting = "equal"',
        ),
        (
            {"rule": "trimmed-mean", "rule_parameters": {"fraction": 0.1}, "partial": "examples_seen", **EQUAL},
            'the trimmed-mean takes no weights: set partial = "full" or "refuse"',
        ),
        ({"rule_parameters": {"fraction": 0.1}}, "mean has no parameter 'fraction'; it has none"),
        ({"rule_version": "2"}, "rule_version: the aggregation rule mean is built in: leave its version out"),
        ({"server_optimizer": "adam"}, "server_optimizer: there is no server optimizer 'adam'; there are average,"),
        (
            {"server_optimizer": "fedadam", "server_optimizer_parameters": {"beta2": 1}},
            r"beta2 \(1\) of fedadam must be from 0 and below 1",
        ),
        ({"server_optimizer": "fedadagrad", "server_optimizer_parameters": {"beta2": 0.9}}, "has no parameter 'beta2'"),
        *(
            (
                {"server_optimizer": "radam", "server_optimizer_parameters": {name: value}},
                rf"{name} \({value:g}\) of radam must be {accepted}",
            )
            for name, value, accepted in (
                ("layerwise", 2, "whole, from 0 and below 2"),
                ("lookahead", 2.5, "whole, from 0 and below 10001"),
                ("lookahead_rate", 0, "from 0.01 and below 1"),
                ("eps", 0, "from 1e-09"),
                ("weight_decay", -1, "from 0"),
            )
        ),
        (
            {"server_optimizer": "fedavgm", "server_optimizer_parameters": {"momentum": -0.1}},
            "must be from 0 and below",
        ),
    ],
)
def test_what_is_known_without_any_package_is_refused_at_once(aggregation: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence) as refusal:
        plan(**aggregation)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("aggregation", "sentence"),
    [
        (
            {"rule": "clinic:trim", "rule_version": "1"},
            "aggregation.rule: the aggregation rule clinic:trim 1 is",
        ),
        ({"rule": "clinic:krum", "rule_version": "1.1", **EQUAL}, "clinic:krum is installed in version 1.2, not 1.1"),
        ({"rule": "clinic:krum", "rule_version": "1.2"}, 'the clinic:krum takes no weights: set weighting = "equal"'),
        (
            {"rule": "clinic:krum", "rule_version": "1.2", "rule_parameters": {"f": 2}, **EQUAL},
            "aggregation.rule_parameters: clinic:krum has no parameter 'f'",
        ),
        (
            {"rule": "clinic:krum", **EQUAL},
            'aggregation.rule_version: the .* rule clinic:krum .*set rule_version = "1.2", which is installed',
        ),
        ({"server_optimizer": "clinic:slow"}, 'set server_optimizer_version = "3", which is installed here'),
        (
            {"server_optimizer": "clinic:slow", "server_optimizer_version": "2"},
            "the server optimizer clinic:slow is installed in version 3, not 2",
        ),
    ],
)
def test_what_only_the_package_knows_is_refused_where_it_is_looked_up(
    aggregation: dict[str, Any], sentence: str
) -> None:
    asked = plan(**aggregation)
    with pytest.raises(PlanError, match=sentence):
        chosen(asked, HERE)
    with pytest.raises(PlanError, match="is not installed here: install its package"):
        chosen(asked, BUILT_IN)


def test_a_package_brings_a_rule_and_an_optimizer() -> None:
    asked = plan(
        rule="clinic:krum",
        rule_version="1.2",
        server_optimizer="clinic:slow",
        server_optimizer_version="3",
        **EQUAL,
    )
    found = chosen(asked, HERE)
    assert (type(found.rule), type(found.optimizer)) == (Median, Average)


@pytest.mark.parametrize(("what", "foreign"), [("rule", "clinic:krum"), ("server_optimizer", "clinic:slow")])
def test_a_version_has_at_most_64_characters_and_a_name_at_most_200(what: str, foreign: str) -> None:
    longest = "clinic:" + "x" * 193
    for name, version in ((foreign, "1" * 64), (longest, "1")):
        assert getattr(plan(**{what: name, f"{what}_version": version}).aggregation, what) == name
    for name, version in ((foreign, "1" * 65), (longest + "x", "1")):
        with pytest.raises(PlanError, match=r"at most (64|200) characters"):
            plan(**{what: name, f"{what}_version": version})


def test_every_parameter_is_set() -> None:
    found = chosen(plan(server_optimizer="fedadam", server_optimizer_parameters={"tau": 0.5}))
    assert found.optimizer_settings == {"beta1": 0.9, "beta2": 0.99, "tau": 0.5}
    defaults = {
        "average": {},
        "fedavgm": {"momentum": 0.9, "nesterov": 0.0},
        "fedadagrad": {"beta1": 0.0, "tau": 1e-3},
        "fedadam": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
        "fedyogi": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
        "lars": {"momentum": 0.9, "trust_coefficient": 1e-3, "weight_decay": 0.0},
        "lamb": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.0},
        "radam": {
            "beta1": 0.9,
            "beta2": 0.99,
            "eps": 1e-8,
            "weight_decay": 0.0,
            "layerwise": 0.0,
            "lookahead": 0.0,
            "lookahead_rate": 0.5,
        },
    }
    assert set(defaults) == set(SERVER_OPTIMIZERS)
    for name, wanted in defaults.items():
        assert chosen(plan(server_optimizer=name)).optimizer_settings == wanted, "plans leave them out"
    trimmed = plan(rule="trimmed-mean", rule_parameters={"fraction": 0}, **EQUAL)
    assert chosen(trimmed).rule_settings == {"fraction": 0.0}


def test_what_a_plan_leaves_out_stays_what_it_was() -> None:
    """Of an entry with parameters each default is here; None: a plan must set it."""
    wanted = {
        "trimmed-mean": {"fraction": None},
        "krum": {"wrong": None, "keep": 1},
        "geometric-median": {"iterations": 32, "smoothing": 1e-6},
        "centered-clipping": {"radius": None, "iterations": 5, "remember": 0},
        "adaptive-mu": {"step": 0.1, "patience": 5},
        "q-ffl": {"q": None},
        "scaffold": {"population": None},
        "feddyn": {"population": None},
        "ditto": {"lambda": None},
        "fedrep": {"head_epochs": 1},
        "error-feedback": {"momentum": 0},
        "power-of-choice": {"factor": 2},
        "oort": {
            "explore": 0.9,
            "decay": 0.98,
            "least": 0.2,
            "preferred": 0.3,
            "alpha": 2,
            "cutoff": 0.95,
            "pace": 0,
            "window": 20,
        },
    }
    entries: dict[str, Any] = {**RULES, **STRATEGIES, **SELECTIONS}
    found = {name: {key: one.default for key, one in entry.parameters.items()} for name, entry in entries.items()}
    assert {name: numbers for name, numbers in found.items() if numbers} == wanted


@pytest.mark.parametrize(
    ("parameter", "accepted", "refused"),
    [("beta1", [0.0, 0.999], [-0.001, 1.0]), ("beta2", [0.0, 0.999], [-0.001, 1.0]), ("tau", [1e-9, 9e8], [0.0, 1e9])],
)
def test_the_adaptive_optimizers_take_numbers_in_the_papers_range(
    parameter: str, accepted: list[float], refused: list[float]
) -> None:
    for value in accepted:
        given = plan(server_optimizer="fedyogi", server_optimizer_parameters={parameter: value})
        assert chosen(given).optimizer_settings[parameter] == value
    for value in refused:
        with pytest.raises(PlanError, match=f"{parameter} .* of fedyogi must be from"):
            plan(server_optimizer="fedyogi", server_optimizer_parameters={parameter: value})


def test_a_secure_plan_takes_every_optimizer_and_only_rules_of_the_sum() -> None:
    whole = {"name": "p", "task": {"learner": "a:b"}, "secure": {"max_norm": 1.0, "max_abs": 0.25}}
    refuse = {"partial": "refuse"}
    adam = {"server_optimizer": "fedadam", **refuse}
    assert chosen(Plan.parse({**whole, "aggregation": adam})).optimizer.slots == ("m", "v")
    with pytest.raises(PlanError, match=r"aggregation.rule \(trimmed-mean\) needs single updates"):
        Plan.parse({**whole, "aggregation": {"rule": "trimmed-mean", "rule_parameters": {"fraction": 0.1}, **EQUAL}})
    foreign = {"rule": "clinic:krum", "rule_version": "1.2", **EQUAL, **refuse}
    with pytest.raises(PlanError, match=r"aggregation.rule \(clinic:krum\) needs single updates, which nobody sees"):
        chosen(Plan.parse({**whole, "aggregation": foreign}), HERE)
    sums = {"rule": "clinic:sum", "rule_version": "1", **refuse}
    assert chosen(Plan.parse({**whole, "aggregation": sums}), HERE).rule.needs == "sum"


# ---------------------------------------------------------------- digests


def test_the_digest_feels_what_is_new() -> None:
    trimmed = {"rule": "trimmed-mean", **EQUAL}
    plans = [
        plan(),
        plan(**trimmed, rule_parameters={"fraction": 0.1}),
        plan(**trimmed, rule_parameters={"fraction": 0.2}),
        plan(rule="clinic:krum", rule_version="1"),
        plan(rule="clinic:krum", rule_version="2"),
        plan(server_optimizer="fedadam"),
        plan(server_optimizer="fedyogi"),
        plan(server_optimizer="fedadam", server_optimizer_parameters={"beta1": 0.5}),
        plan(server_optimizer="clinic:slow", server_optimizer_version="1"),
        plan(server_optimizer="clinic:slow", server_optimizer_version="2"),
    ]
    assert len({one.digest for one in plans}) == len(plans)
    for one in plans:
        assert Plan.parse(one.model_dump(mode="json")) == one
        assert Plan.parse(one.model_dump(mode="json")).digest == one.digest


class Slow(Average):
    """An optimizer that a test changes."""

    slots = ("v",)

    def __init__(self, first: Any = (0.0,)) -> None:
        self.begins = first

    def first(self, settings: Settings) -> Any:
        return self.begins


@pytest.mark.parametrize("first", [(0.0, 1.0), 0.0, [0.0], None, (math.nan,), (math.inf,)])
def test_a_state_that_cannot_begin_is_refused_in_a_sentence(first: Any) -> None:
    here = Registry(server_optimizers={"clinic:slow": Installed("3", Slow(first))})
    named = {"server_optimizer": "clinic:slow", "server_optimizer_version": "3"}
    with pytest.raises(PlanError, match=r"its state begins with .*: first.. gives a tuple of numbers, at most one for"):
        chosen(plan(**named), here)


class Rebound(Slow):
    def apply(self, model: Any, mean: Any, state: Any, learning_rate: float, settings: Settings) -> Any:
        state[0] = mean
        return model + mean


class Counting(Slow):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def apply(self, model: Any, mean: Any, state: Any, learning_rate: float, settings: Settings) -> Any:
        self.calls += 1
        return model + mean


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [(Rebound(), "puts another vector in the place of one of its state"), (Counting(), "has changed its own calls")],
)
def test_an_optimizer_whose_state_would_be_lost_or_its_own_is_a_reason(optimizer: Slow, sentence: str) -> None:
    here = Registry(server_optimizers={"clinic:slow": Installed("3", optimizer)})
    found = chosen(plan(server_optimizer="clinic:slow", server_optimizer_version="3"), here)
    one = np.ones(4, np.float32)
    with pytest.raises(ExtensionError, match=sentence):
        found.apply(one, one, [one.copy()], 1.0)
