"""The contracts of all aggregation rules and server optimizers, also of packages.

A package that brings one runs these on it too: ``class TestMine(ColumnRuleContract): rule = MINE; given = {...}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from client_sdk.tensors import Manifest, TensorSpec
from coordinator.engine.aggregation.combining import Columns, Sources, Updates, flat
from coordinator.engine.aggregation.optimizers import Layer, ServerOptimizer, Vector, is_layerwise
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, settings
from coordinator.engine.aggregation.registry import Chosen, Installed, Registry
from coordinator.engine.aggregation.rules import ColumnRule, Mean, Rule, WholeRule
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from coordinator.engine.plan import Plan, chosen
from coordinator.engine.plan_file import PlanError


def require_parameters(declared: Mapping[str, Parameter], given: Mapping[str, float]) -> Mapping[str, float]:
    """Every declaration has words, and a default in its own range; an unknown name is refused."""
    for parameter in declared.values():
        assert parameter.meaning
        assert parameter.default is None or parameter.takes(parameter.default)
        for outside in (float("nan"), float("inf"), -float("inf")):
            assert not parameter.takes(outside)
    with pytest.raises(ExtensionError, match="has no parameter 'no-such-thing'"):
        settings("it", "here", declared, {**given, "no-such-thing": 1.0})
    return settings("it", "here", declared, given)


class RuleContract:
    """``rule``, and ``given``: parameters as a plan sets them."""

    rule: Rule
    given: ClassVar[Mapping[str, float]] = {}

    def columns(self, count: int = 7, width: int = 33) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        rng = np.random.default_rng(count)
        return (rng.normal(size=(count, width)) * 10.0 ** rng.integers(-6, 3, (count, width))).astype(np.float32)

    def test_it_says_what_it_needs(self) -> None:
        assert self.rule.needs in ("sum", "all", "whole")
        assert isinstance(self.rule.takes_weights, bool)
        require_parameters(self.rule.parameters, self.given)


class ColumnRuleContract(RuleContract):
    """Of a rule that needs all updates, by columns."""

    rule: ColumnRule

    def combine(self, columns: Vector, weights: list[int] | None = None) -> Vector:
        given = require_parameters(self.rule.parameters, self.given)
        return self.rule.combine(columns, np.array(weights or [1] * len(columns), np.int64), given)

    def test_a_block_has_a_value_for_each_column_and_stays_between_the_extremes(self) -> None:
        columns = self.columns()
        before = columns.copy()
        found = self.combine(columns)
        assert found.dtype == np.float32
        assert found.shape == (33,)
        assert (found >= columns.min(axis=0)).all()
        assert (found <= columns.max(axis=0)).all()
        assert columns.tobytes() == before.tobytes(), "the columns are the caller's"

    @pytest.mark.parametrize("width", [1, 2, 8, 32])
    def test_how_wide_a_block_is_changes_no_bit(self, width: int) -> None:
        columns = self.columns(129)
        whole = self.combine(columns)
        parts = [self.combine(np.ascontiguousarray(columns[:, at : at + width])) for at in range(0, 33, width)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()

    def test_the_order_of_the_updates_changes_no_bit(self) -> None:
        columns, weights = self.columns(9), [3, 1, 4, 1, 5, 9, 2, 6, 5]
        if not self.rule.takes_weights:
            weights = [1] * 9
        whole = self.combine(columns, weights)
        for seed in range(5):
            order = np.random.default_rng(seed).permutation(9)
            assert self.combine(columns[order], [weights[at] for at in order]).tobytes() == whole.tobytes()

    def test_one_update_alone_is_its_own_mean(self) -> None:
        columns = self.columns(1)
        np.testing.assert_array_equal(self.combine(columns), columns[0])


class WholeRuleContract(RuleContract):
    """Of a rule over whole updates. ``count``: how many the tests give it, at least."""

    rule: WholeRule
    count: ClassVar[int] = 7

    def chosen(self, count: int, **sections: object) -> Chosen:
        """The rule as a plan of rounds of ``count`` updates names it. PlanError where it is refused."""
        named = {"rule": "contract:rule", "rule_version": "1", "rule_parameters": dict(self.given)}
        plan = {
            "name": "contract",
            "task": {"learner": "contract:learner"},
            "cohort": {"select": count, "goal": count, "quorum": 1.0},
            "aggregation": {**named, "weighting": "equal", "partial": "refuse"},
            **sections,
        }
        return chosen(Plan.parse(plan), Registry(rules={"contract:rule": Installed("1", self.rule)}), count)

    def delta(self, rows: Columns, width: int = 1000, parameters: int | None = None) -> Vector:
        """Of updates that come in blocks of ``width`` columns, of which the first ``parameters`` are no statistics."""
        return self.chosen(len(rows)).of_whole(Updates.of(rows, width, parameters))

    def updates(self, width: int = 2100) -> Columns:
        fewest = self.rule.fewest(require_parameters(self.rule.parameters, self.given))
        return self.columns(max(self.count, fewest), width)

    def test_it_gives_a_finite_value_for_each_value_of_an_update(self) -> None:
        found = self.delta(self.updates())
        assert found.dtype == np.float32
        assert found.shape == (2100,)
        assert np.isfinite(found).all()

    @pytest.mark.parametrize("width", [7, 1023, 1024, 2100])
    def test_how_wide_a_block_is_changes_no_bit(self, width: int) -> None:
        updates = self.updates()
        assert self.delta(updates, width).tobytes() == self.delta(updates).tobytes()

    def test_the_order_of_the_updates_changes_no_bit(self) -> None:
        updates = self.updates()
        whole = self.delta(updates)
        for seed in range(5):
            assert self.delta(np.random.default_rng(seed).permutation(updates)).tobytes() == whole.tobytes()

    def test_equal_updates_give_that_update(self) -> None:
        updates = self.updates()
        updates[:] = updates[0]
        np.testing.assert_allclose(self.delta(updates), updates[0], rtol=1e-6, atol=2**-32)

    def test_statistics_have_no_say_in_what_parameters_get(self) -> None:
        updates = self.updates(60)
        before = self.delta(updates, parameters=40)
        updates[:, 40:] *= np.linspace(-50, 50, len(updates), dtype=np.float32)[:, None]
        assert self.delta(updates, parameters=40)[:40].tobytes() == before[:40].tobytes()

    def test_a_plan_whose_rounds_may_have_too_few_updates_is_refused(self) -> None:
        fewest = self.rule.fewest(require_parameters(self.rule.parameters, self.given))
        self.chosen(fewest)
        if fewest > 1:
            with pytest.raises(PlanError, match=f"it takes no fewer than {fewest} updates"):
                self.chosen(fewest - 1)

    def test_a_plan_with_masked_rounds_is_refused(self) -> None:
        with pytest.raises(PlanError, match="needs single updates, which nobody sees"):
            self.chosen(max(100, len(self.updates())), secure={"max_norm": 1.0, "max_abs": 0.25})


class ServerOptimizerContract:
    """``optimizer``, and ``given``: parameters as a plan sets them."""

    optimizer: ServerOptimizer
    given: ClassVar[Mapping[str, float]] = {}
    layers = Manifest({"a": TensorSpec("F32", (4, 6)), "b": TensorSpec("F32", (7,)), "c": TensorSpec("F32", (1, 19))})

    def played(self, rounds: int = 4, cut: int = 50, turn: int = 1) -> tuple[bytes, bytes]:
        """Model and state after some rounds, made in blocks of ``cut``. ``turn`` = -1: the last block first."""
        rng, size = np.random.default_rng(50), self.layers.elements
        given = require_parameters(self.optimizer.parameters, self.given)
        found = Chosen(rule=Mean(), rule_settings={}, optimizer=self.optimizer, optimizer_settings=given)
        model, small = rng.normal(size=size).astype(np.float32), dict[str, Any]()
        state = np.tile(np.array(self.optimizer.first(given), np.float32), (size, 1))
        blocks = [
            (at, min(cut, place.stop - at))
            for place in self.layers.slices().values()
            for at in range(place.start, place.stop, cut)
        ]
        for _ in range(rounds):
            mean = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 2, size)).astype(np.float32)
            sources = Sources(lambda mean=mean: flat(mean), self.layers, size)  # type: ignore[misc]
            kept = {SERVER_OPTIMIZER: flat(state.copy())} if state.shape[1] else {}
            made = found.combine(flat(model), sources, kept, small, {"server_learning_rate": 0.1}, b"")
            following = np.zeros(size, np.float32)
            for at, count in blocks[::turn]:
                following[at : at + count] = made.model.read(at, count)
                for kept_now in made.tensors.values():
                    state[at : at + count] = kept_now.read(at, count)
            model, small = following, dict(made.small)
        return model.tobytes(), state.tobytes()

    def step(self, model: Vector, mean: Vector, state: list[Vector], rate: float, step: int = 1) -> Vector:
        """One step, of one block or of one layer."""
        given = require_parameters(self.optimizer.parameters, self.given)
        layer = (Layer("layer", (1, model.size), step),) if is_layerwise(self.optimizer) else ()
        found: Vector = cast("Any", self.optimizer).apply(*layer, model, mean, state, rate, given)
        return found

    def begun(self, size: int) -> list[Vector]:
        """The state before the first round."""
        given = require_parameters(self.optimizer.parameters, self.given)
        return [np.full(size, value, np.float32) for value in self.optimizer.first(given)]

    def test_it_says_what_it_keeps_and_what_that_begins_with(self) -> None:
        given = require_parameters(self.optimizer.parameters, self.given)
        assert len(self.optimizer.first(given)) <= len(self.optimizer.slots) == len(set(self.optimizer.slots))
        assert np.isfinite(self.optimizer.first(given)).all()

    @pytest.mark.parametrize("cut", [1, 3, 16])
    def test_how_vectors_are_cut_into_blocks_changes_no_bit(self, cut: int) -> None:
        assert self.played(cut=cut) == self.played()

    def test_the_order_of_the_blocks_changes_no_bit(self) -> None:
        assert self.played(cut=5, turn=-1) == self.played()

    def test_it_remembers_nothing_beside_its_slots(self) -> None:
        """Another process goes on with what was stored: so does this one, after other rounds."""
        played = self.played()
        self.played(rounds=1)
        assert self.played() == played

    def test_columns_of_one_array_are_as_good_as_vectors_of_their_own(self) -> None:
        """The state is stored with a row for each element: blocks come as columns of that."""
        apart = self.begun(20)
        rows = np.array(apart, np.float32).reshape(len(apart), 20).T.copy()
        model = np.linspace(-1, 1, 20, dtype=np.float32)
        for at, mean in enumerate((model * np.float32(0.3), model - 1), 1):
            one = self.step(model, mean, list(rows.T), 0.5, at)
            assert one.tobytes() == self.step(model, mean, apart, 0.5, at).tobytes()
        assert rows.T.tobytes() == np.array(apart, np.float32).reshape(rows.T.shape).tobytes()

    def test_model_and_mean_are_not_changed(self) -> None:
        model, mean = np.ones(5, np.float32), np.full(5, 0.25, np.float32)
        self.step(model, mean, self.begun(5), 0.1)
        assert model.tolist() == [1.0] * 5
        assert mean.tolist() == [0.25] * 5

    def test_the_state_that_it_declares_is_written_into_the_vectors_that_it_gets(self) -> None:
        """A vector that is put in the place of another one is lost: the next round begins with the old one."""
        state, model = self.begun(5), np.ones(5, np.float32)
        before = [one.tobytes() for one in state]
        for at, mean in enumerate((1.0, -3.0), 1):
            model = self.step(model, np.full(5, mean, np.float32), state[:], 0.1, at)
            assert model.dtype == np.float32
            assert model.shape == (5,)
        assert [one.tobytes() != old for one, old in zip(state, before, strict=True)] == [True] * len(state)

    def test_where_nothing_was_learned_a_model_at_rest_stays(self) -> None:
        state, model = self.begun(3), np.array([1.5, -2, 0], np.float32)
        for at in (1, 2, 3):
            assert self.step(model, np.zeros(3, np.float32), state, 0.7, at).tolist() == [1.5, -2, 0]
            assert np.isfinite(state).all()
