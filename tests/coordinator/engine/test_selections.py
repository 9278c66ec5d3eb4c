"""The contract of selections, for each that is built in; and which plans each goes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from coordinator.engine.aggregation.parameters import ExtensionError, Parameter
from coordinator.engine.aggregation.registry import Installed, Registry
from coordinator.engine.plan import Plan, chosen, selection_of
from coordinator.engine.plan_file import PlanError
from coordinator.engine.selection import SELECTIONS, Choice
from quorate.testing import SelectionContract

EQUAL = {"weighting": "equal"}
FOREIGN = {"choose": "clinic:turn", "choose_version": "1", "pool": 400}


class TestUniform(SelectionContract):
    selection = SELECTIONS["uniform"]


class TestByExamples(SelectionContract):
    selection = SELECTIONS["by_examples"]


class TestPowerOfChoice(SelectionContract):
    selection = SELECTIONS["power-of-choice"]
    given: ClassVar = {"factor": 1.5}


class TestOort(SelectionContract):
    selection = SELECTIONS["oort"]
    given: ClassVar = {"explore": 0.5, "cutoff": 0.5}


class TestCyclic(SelectionContract):
    selection = SELECTIONS["cyclic"]


class TestFixed(SelectionContract):
    selection = SELECTIONS["fixed"]


class TestPoisson(SelectionContract):
    selection = SELECTIONS["poisson"]


def test_all_that_are_built_in_are_here() -> None:
    tested = [one.selection for one in SelectionContract.__subclasses__() if one.__module__ == __name__]
    assert all(any(one is built_in for one in tested) for built_in in SELECTIONS.values())


def plan(**sections: Any) -> Plan:
    return Plan.parse({"name": "choice", "task": {"learner": "clinic:risk"}, **sections})


def installed(name: str) -> Registry:
    """What a package provides: one of ours, under its name."""
    return Registry(selections={"clinic:turn": Installed("1", SELECTIONS[name])})


@pytest.mark.parametrize(
    ("cohort", "sentence"),
    [
        ({"choose": "fast"}, "choose: there is no selection 'fast'; there are uniform, by_examples, power-of-choice,"),
        ({"choose": "oort", "choose_version": "1"}, "choose_version: the selection oort is built in: leave its"),
        ({"choose": "oort", "choose_parameters": {"d": 1}}, "choose_parameters: oort has no parameter 'd'; it has"),
        ({"choose": "oort", "choose_parameters": {"alpha": -1}}, r"alpha \(-1\) of oort must be from 0 and below 100"),
        ({"choose": "power-of-choice"}, 'choose = "power-of-choice" with weighting = "examples" counts the size of'),
    ],
)
def test_a_wrong_name_or_number_is_refused_before_anything_is_imported(cohort: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=f"{sentence}"):
        plan(cohort={"pool": 400, **cohort})


@pytest.mark.parametrize("name", [name for name in SELECTIONS if name != "uniform"])
def test_a_pool_of_the_cohorts_size_leaves_nothing_to_choose(name: str) -> None:
    with pytest.raises(PlanError, match=f'cohort: choose = "{name}" draws 300 of 300 .* set cohort.pool above'):
        chosen(plan(cohort={"choose": name}, aggregation=EQUAL))
    assert selection_of(plan(cohort={"choose": name, "pool": 301}, aggregation=EQUAL)).name == name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("power-of-choice", "reads the loss of single devices, which nobody knows in secure rounds"),
        ("oort", "reads the loss of single devices, which nobody knows in secure rounds"),
        ("poisson", "draws cohorts of any size, and a secure round is made for cohort.select devices"),
        ("cyclic", ""),
        ("fixed", ""),
    ],
)
def test_secure_rounds_go_with_what_needs_nothing_of_single_devices(name: str, sentence: str) -> None:
    rest = {"aggregation": {**EQUAL, "partial": "refuse"}, "secure": {"max_norm": 1.0, "max_abs": 0.25}}
    built_in, foreign = plan(cohort={"choose": name, "pool": 400}, **rest), plan(cohort=FOREIGN, **rest)
    for one, registry in ((built_in, Registry()), (foreign, installed(name))):
        if sentence:
            with pytest.raises(PlanError, match=f'cohort: "{one.cohort.choose}" {sentence}'):
                chosen(one, registry)
        else:
            assert chosen(one, registry)


def test_a_packages_selection_needs_its_version() -> None:
    assert selection_of(plan(cohort=FOREIGN), installed("cyclic")).selection is SELECTIONS["cyclic"]
    with pytest.raises(PlanError, match=r"cohort.choose: the selection clinic:turn 1 is not installed here: install"):
        chosen(plan(cohort=FOREIGN))
    with pytest.raises(PlanError, match=r"cohort.choose: the selection clinic:turn is installed in version 1, not 2"):
        chosen(plan(cohort={**FOREIGN, "choose_version": "2"}), installed("cyclic"))
    with pytest.raises(PlanError, match=r'cohort.choose_version: .* set choose_version = "1", which is installed here'):
        chosen(plan(cohort={"choose": "clinic:turn", "pool": 400}), installed("cyclic"))


def test_what_is_known_of_devices_is_kept_for_plans_that_may_read_it() -> None:
    cohorts = [*({"choose": name, "pool": 400} for name in SELECTIONS), FOREIGN]
    kept = [one["choose"] for one in cohorts if plan(cohort=one, aggregation=EQUAL).cohort.remembers]
    assert kept == ["power-of-choice", "oort", "cyclic", "clinic:turn"]


class Counting:
    """Draws others each time that it is asked."""

    reads: tuple[str, ...] = ()
    varies = False
    parameters: Mapping[str, Parameter] = {}

    def __init__(self) -> None:
        self.draws = 0

    def select(self, pool: Any, k: int, **_: Any) -> list[str]:
        self.draws += 1
        return [one.device for one in pool[self.draws :][:k]]


def test_a_selection_with_a_state_of_its_own_is_named() -> None:
    choice = Choice(name="lab:counting", selection=Counting(), settings={})
    with pytest.raises(ExtensionError, match="the selection lab:counting has changed its own draws"):
        choice.draw([("a", 1), ("b", 1), ("c", 1)], 2, seed=1, round=1)
