"""Who is left out after complaints: every complaint is met, nobody clean goes, and one liar cannot clear the room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.engine.secure.attempts import at_fault

CASES: list[tuple[dict[str, tuple[str, ...]], set[str]]] = [
    ({}, set()),
    ({"a": ("x",)}, {"a", "x"}),  # one word against another
    ({"a": ("x",), "b": ("x",)}, {"x"}),
    ({"a": ("x",), "b": ("x",), "c": ("y",)}, {"x", "c", "y"}),
    ({"a": ("w", "x", "y", "z")}, {"a"}),  # a device that complains of many is alone in it
    ({"a": ("w", "x", "y", "z"), "b": ("w", "x", "y", "z")}, {"a", "b"}),  # so are two that agree upon it
    ({"a": ("x", "y"), "b": ("x",)}, {"a", "x"}),
    ({"a": ("b",), "b": ("a",)}, {"a", "b"}),
    ({"a": ("x", "y"), "b": ("x", "y"), "c": ("x", "y")}, {"x", "y"}),
]


@pytest.mark.parametrize(("complaints", "wanted"), CASES)
def test_who_has_most_to_do_with_the_complaints_goes(complaints: dict[str, tuple[str, ...]], wanted: set[str]) -> None:
    assert set(at_fault(complaints)) == wanted


def test_the_reason_says_which_side_one_stood_on() -> None:
    found = at_fault({"a": ("x",), "b": ("x", "a")})
    assert found["x"] == "2 could not open its shares"
    assert found["b"] == "it could not open those of 2"
    assert found["a"] == "1 could not open its shares and it could not open those of 1"


COMPLAINTS = st.dictionaries(
    st.sampled_from("abcdef"), st.sets(st.sampled_from("uvwxyz"), min_size=1).map(tuple), max_size=6
)


@given(complaints=COMPLAINTS)
def test_no_complaint_is_left_and_nobody_goes_for_nothing(complaints: dict[str, tuple[str, ...]]) -> None:
    gone = set(at_fault(complaints))
    lines = {(device, dealer) for device, dealers in complaints.items() for dealer in dealers}
    assert all(gone & set(line) for line in lines)
    assert gone <= {end for line in lines for end in line}


@given(liars=st.integers(1, 5), honest=st.integers(7, 40))
def test_liars_fewer_than_their_victims_take_nobody_with_them(liars: int, honest: int) -> None:
    dealers = tuple(f"h{number}" for number in range(honest))
    assert set(at_fault({f"l{number}": dealers for number in range(liars)})) == {f"l{n}" for n in range(liars)}
