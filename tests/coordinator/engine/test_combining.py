"""The sources of a round, the dot products of their updates, and a rule over whole updates: the same bits in any order
and for any width of a block, and refused where its round cannot give what it needs."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.tensors import Manifest, NotFinite, TensorSpec
from coordinator.engine.aggregation.combining import MEMORY, Sources, Updates, dots, flat, gram, norm, norms
from coordinator.engine.aggregation.optimizers import Average
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter
from coordinator.engine.aggregation.registry import Chosen, Installed, Registry
from coordinator.engine.plan import Plan, chosen, require_combinable
from coordinator.engine.plan_file import PlanError
from quorate.testing import WholeRuleContract

Rows = np.ndarray[Any, np.dtype[np.float32]]


def drawn(count: int = 6, width: int = 2500) -> Rows:
    rng = np.random.default_rng(count)
    return (rng.normal(size=(count, width)) * 10.0 ** rng.integers(-6, 3, (count, width))).astype(np.float32)


# ---------------------------------------------------------------- dot products


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 70_000])
def test_the_norm_of_a_vector_is_exact_to_2_to_the_minus_36_however_it_lies_in_memory(size: int) -> None:
    rng = np.random.default_rng(size)
    vector = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 3, size)).astype(np.float32)
    exact = math.sqrt(math.fsum(vector.astype(np.float64) ** 2))
    assert norm(vector) == pytest.approx(exact, rel=2**-36)
    assert norm(np.stack([vector, vector], axis=1)[:, 1]) == norm(vector)
    assert norm(np.zeros(size, np.float32)) == 0


def test_the_norm_of_what_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFinite):
        norm(np.array([1, np.inf], np.float32))


def test_dot_products_are_within_2_to_the_minus_36_of_the_exact_ones() -> None:
    rows = drawn(4)
    found, lengths, with_first = (
        gram(Updates.of(rows, 999)),
        norms(Updates.of(rows, 999)),
        dots(Updates.of(rows, 9), rows[0]),
    )
    for one in range(4):
        for other in range(4):
            exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(rows[one], rows[other], strict=True))
            assert abs(Fraction(found[one, other]) - exact) <= 2.0**-36 * lengths[one] * lengths[other]
        assert lengths[one] == math.sqrt(found[one, one])
        assert with_first[one] == found[one, 0]


@pytest.mark.parametrize("width", [1, 7, 1023, 1024, 1025, 2500])
def test_neither_the_width_of_a_block_nor_the_order_of_rows_changes_a_bit(width: int) -> None:
    rows, order = drawn(), [3, 0, 5, 1, 4, 2]
    whole, turned = gram(Updates.of(rows, 2500)), Updates.of(rows[order], width)
    assert gram(turned).tobytes() == whole[np.ix_(order, order)].tobytes()
    assert norms(turned).tobytes() == np.sqrt(whole.diagonal())[order].tobytes()
    assert dots(turned, rows[2]).tobytes() == whole[order, 2].tobytes()
    assert turned.sum([1, 0, 2, 0, 1, 1]).read(0, 2500).tobytes() == (
        Updates.of(rows, 2500).sum([0, 0, 1, 1, 1, 2]).read(0, 2500).tobytes()
    )


def test_equal_rows_are_at_distance_zero() -> None:
    rows = drawn()
    rows[4] = rows[1]
    found = gram(Updates.of(rows, 100))
    assert found[1, 1] + found[4, 4] - 2 * found[1, 4] == 0


def test_values_may_be_as_small_and_as_large_as_a_round_takes() -> None:
    rows = np.array([[65536, 1e-40], [0, 1e-45], [0, 0]], np.float32)
    found = gram(Updates.of(rows, 2))
    assert found[0, 0] == 2.0**32
    assert found[1, 1] == float(rows[1, 1]) ** 2
    assert not found[2].any()
    with pytest.raises(NotFinite):
        gram(Updates.of(np.array([[1, np.nan]], np.float32), 2))


def test_dot_products_are_of_parameters_only() -> None:
    rows = drawn()
    assert gram(Updates.of(rows, 77, parameters=1500)).tobytes() == gram(Updates.of(rows[:, :1500], 2500)).tobytes()


# ---------------------------------------------------------------- sources


def test_a_sum_takes_other_weights_and_only_whole_ones() -> None:
    updates = Updates.of(np.array([[1, 2], [3, 8], [500, 500]], np.float32), 1)
    assert updates.sum([3, 1, 0]).read(0, 2).tolist() == [1.5, 3.5]
    assert updates.sum(np.array([True, False, False])).read(0, 2).tolist() == [1, 2]
    for weights in ([0.5, 0.5, 0], [1, 1], [[1, 1, 1]]):
        with pytest.raises(ExtensionError, match="a whole number for each of 3 updates"):
            updates.sum(weights)


def test_whole_updates_are_given_as_many_as_the_rule_says_at_once() -> None:
    rows = drawn()
    updates = Updates.of(rows, 100)
    with pytest.raises(ExtensionError, match="more whole updates are held at once than is said, holds = 0"):
        updates.whole(0)
    updates.holds = 2
    for place, row in enumerate(rows):
        update = updates.whole(place)  # the one before it is still named here
        assert update.tobytes() == row.tobytes()
        assert not update.flags.writeable
    part = updates.whole(0)[:3]
    with pytest.raises(ExtensionError, match="more whole updates are held at once than is said, holds = 2"):
        updates.whole(1)
    del update, part
    gc.collect()
    assert updates.whole(1) is not None


def test_a_masked_round_has_the_sum_alone() -> None:
    masked = Sources(lambda: flat(np.ones(3, np.float32)), Manifest({"w": TensorSpec("F32", (3,))}), 3)
    assert masked.sum().read(0, 3).tolist() == [1, 1, 1]
    for ask in (lambda: masked.sum([1]), masked.blocks, lambda: masked.whole(0), lambda: gram(masked)):
        with pytest.raises(ExtensionError, match="a masked round has their sum alone"):
            ask()


# ---------------------------------------------------------------- rules


class Nearest:
    """The update that is nearest to all others."""

    needs = "whole"
    holds = 0
    takes_weights = False
    parameters: ClassVar[dict[str, Parameter]] = {}

    def fewest(self, settings: Mapping[str, float]) -> int:
        return 3

    def delta(self, updates: Updates, settings: Mapping[str, float]) -> Any:
        products = gram(updates)
        squares = products.diagonal()
        scores = sum(squares[:, None] + squares - 2 * products)
        return updates.sum(scores == scores.min()).read(0, updates.elements)


class Otherwise(Nearest):
    """Makes the delta by a function."""

    def __init__(self, delta: Callable[[Updates], Any]) -> None:
        self._delta = delta

    def delta(self, updates: Updates, settings: Mapping[str, float]) -> Any:
        return self._delta(updates)


def by_width(updates: Updates) -> Any:
    """The square of each block is rounded by itself."""
    squares = sum(np.square(columns).sum(axis=1) for columns in updates.blocks())
    return (updates.sum().read(0, updates.elements) * np.float32(squares.sum())).astype(np.float32)


def by_row(updates: Updates) -> Any:
    return next(updates.blocks())[0, :1] * np.ones(updates.elements, np.float32)


def held(updates: Updates) -> Any:
    kept = [updates.whole(place) for place in range(3)]
    return kept[0]


class TestNearest(WholeRuleContract):
    rule = Nearest()


@pytest.mark.parametrize(
    ("delta", "test"),
    [
        (by_width, "test_how_wide_a_block_is_changes_no_bit"),
        (by_row, "test_the_order_of_the_updates_changes_no_bit"),
        (lambda updates: np.zeros(3, np.float32), "test_it_gives_a_finite_value_for_each_value_of_an_update"),
        (held, "test_it_gives_a_finite_value_for_each_value_of_an_update"),
    ],
)
def test_a_rule_that_breaks_the_contract_is_seen(delta: Any, test: str) -> None:
    made: Any = TestNearest()
    made.rule = Otherwise(delta)
    with pytest.raises((AssertionError, ExtensionError, PlanError)):
        getattr(made, test)(*[7] * (test == "test_how_wide_a_block_is_changes_no_bit"))


def plan(**sections: Any) -> Plan:
    named = {"rule": "clinic:rule", "rule_version": "1", "weighting": "equal", "partial": "refuse"}
    cohort = {"select": 9, "goal": 9, "quorum": 1.0}
    return Plan.parse({"name": "p", "task": {"learner": "a:b"}, "cohort": cohort, "aggregation": named, **sections})


def asked(rule: Any = None, **sections: Any) -> Chosen:
    found = plan(**sections)
    return chosen(found, Registry(rules={"clinic:rule": Installed("1", rule or Nearest())}), found.cohort.goal)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"secure": {"max_norm": 1.0, "max_abs": 0.25}, "cohort": {}}, "needs single updates, which nobody sees"),
        (
            {"cohort": {"select": 4, "goal": 4, "quorum": 0.5}},
            r"it takes no fewer than 3 updates, and a round may have 2: raise cohort\.goal or quorum",
        ),
        (
            {"cohort": {"select": 9000, "goal": 9000}},
            "2,592,000,000 bytes of memory, more than 1,073,741,824: .* 9,000",
        ),
    ],
)
def test_a_plan_whose_rounds_cannot_give_what_a_rule_needs_is_refused(sections: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=f"aggregation.*{sentence}"):
        asked(**sections)
    assert asked(), "this one can"
    assert asked(datacenter={"data": "p", "every": 1}), (
        "a worker's round asks no rule, and one of devices may follow it"
    )


def test_a_model_whose_updates_are_too_large_to_be_held_is_refused() -> None:
    rule = Nearest()
    rule.holds = 2
    most = (MEMORY - 32 * 81) // 8
    require_combinable(plan(), asked(rule), most)
    with pytest.raises(PlanError, match=f"for 2 whole updates of {most + 1:,} values, and for a Gram matrix of 9"):
        require_combinable(plan(), asked(rule), most + 1)


@pytest.mark.parametrize(
    ("delta", "what"), [(by_width, "a block of columns has another width"), (by_row, "another order")]
)
def test_a_rule_is_tried_on_drawn_updates_before_round_1(delta: Any, what: str) -> None:
    with pytest.raises(PlanError, match=f"aggregation.rule: .*gives other values where .*{what}"):
        asked(Otherwise(delta))


def combined(rule: Any, sources: Sources) -> Any:
    found = Chosen(rule=rule, rule_settings={}, optimizer=Average(), optimizer_settings={})
    parent = flat(np.zeros(sources.elements, np.float32))
    made = found.combine(parent, sources, {}, {}, {"server_learning_rate": 1.0}, b"")
    return made.model.read(0, sources.elements)


def test_an_update_that_cannot_be_read_is_raised_as_it_is_and_not_as_the_rules_failure() -> None:
    def gone(places: Sequence[int]) -> Any:
        yield np.ones((3, 1), np.float32)
        raise LookupError("its file is gone")

    def hides(updates: Updates) -> Any:
        try:
            return gram(updates)
        except LookupError:
            return np.zeros(2, np.float32)

    sources = Updates.of(np.ones((3, 2), np.float32), 1)
    for rule in (Nearest(), Otherwise(hides)):
        broken = Updates(gone, sources.weights, sources.sum, sources.tensors, 2)
        with pytest.raises(LookupError, match="its file is gone"):
            combined(rule, broken)


@pytest.mark.parametrize(
    ("delta", "sentence"),
    [
        (lambda updates: 1 / 0, "the aggregation rule of the plan failed: ZeroDivisionError"),
        (
            lambda updates: updates.whole(99),
            "the aggregation rule of the plan failed: IndexError|more whole updates",
        ),
        (lambda updates: np.zeros(5), r"gives float64 \[5\] for a block of float32 \[5\]"),
    ],
)
def test_what_a_rule_does_wrong_is_a_reason(delta: Any, sentence: str) -> None:
    with pytest.raises(ExtensionError, match=sentence):
        combined(Otherwise(delta), Updates.of(drawn(4, 5), 2))


def test_too_few_updates_are_a_reason() -> None:
    with pytest.raises(ExtensionError, match="takes no fewer than 3 updates, not 2"):
        combined(Nearest(), Updates.of(drawn(2, 5), 2))
