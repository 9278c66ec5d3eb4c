"""Who is left out after complaints: who has to do with several, nobody clean, and one liar cannot clear the room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine.secure.disputes import at_fault

CASES: list[tuple[dict[str, tuple[str, ...]], set[str]]] = [
    ({}, set()),
    ({"a": ("x",)}, set()),  # one word against another, which was settled
    ({"a": ("x",), "b": ("x",)}, {"x"}),
    ({"a": ("x",), "b": ("x",), "c": ("y",)}, {"x"}),
    ({"a": ("w", "x", "y", "z")}, {"a"}),  # a device that complains of many is alone in it
    ({"a": ("w", "x", "y", "z"), "b": ("w", "x", "y", "z")}, {"a", "b"}),  # so are two that agree upon it
    ({"a": ("x", "y"), "b": ("x",)}, {"a", "x"}),
    ({"a": ("b",), "b": ("a",)}, set()),
    ({"a": ("x", "y"), "b": ("x", "y"), "c": ("x", "y")}, {"x", "y"}),
]


@pytest.mark.parametrize(("complaints", "wanted"), CASES)
def test_who_has_most_to_do_with_the_complaints_goes(complaints: dict[str, tuple[str, ...]], wanted: set[str]) -> None:
    assert set(at_fault(complaints, {})) == wanted


def test_disputes_of_former_rounds_count_for_who_has_to_do_with_one_now() -> None:
    before = {"b": {"x": 1}, "c": {"x": 2, "y": 2}, "d": {"y": 3}}
    assert set(at_fault({"a": ("x",)}, before)) == {"x"}
    assert at_fault({}, before) == {}
    assert at_fault({"a": ("x",)}, {"a": {"x": 1}}) == {}, "the same line twice is one"


def test_the_reason_says_with_how_many() -> None:
    found = at_fault({"a": ("x",), "b": ("x",)}, {"c": {"x": 1}})
    assert found == {"x": "it and 3 others could not open each other's shares, in the last rounds"}


COMPLAINTS = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from("uvwxyz"), min_size=1).map(tuple), max_size=6
)


@given(complaints=COMPLAINTS)
def test_nobody_is_left_in_several_disputes_and_nobody_goes_for_nothing(complaints: dict[str, tuple[str, ...]]) -> None:
    gone = set(at_fault(complaints, {}))
    lines = {(device, dealer) for device, dealers in complaints.items() for dealer in dealers}
    ends = [end for line in lines for end in line]
    left = [end for line in lines if not gone & set(line) for end in line]
    assert max(map(left.count, left), default=0) <= 1
    assert all(ends.count(device) > 1 for device in gone)


@given(liars=st.integers(1, 5), honest=st.integers(7, 40))
def test_liars_fewer_than_their_victims_take_nobody_with_them(liars: int, honest: int) -> None:
    dealers = tuple(f"h{number}" for number in range(honest))
    assert set(at_fault({f"l{number}": dealers for number in range(liars)}, {})) == {f"l{n}" for n in range(liars)}
