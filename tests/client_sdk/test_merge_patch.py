"""Merge patches: whatever two objects are, the difference on the first gives the second (RFC 7396)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.protocol.live import difference, merged, without_nulls

values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@given(before=objects, after=objects)
def test_the_difference_leads_from_one_to_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = difference(before, after)
    assert merged(before, patch) == after
    assert (patch == {}) == (before == after)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_standard(target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    assert merged(target, patch) == result


def test_fields_that_are_null_are_absent_but_not_in_lists() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": 1}, "e": [None]}) == {"b": {"d": 1}, "e": [None]}


def test_an_object_that_becomes_a_value_is_replaced() -> None:
    assert difference({"a": {"b": 1}}, {"a": {}}) == {"a": {"b": None}}
    assert difference({"a": {"b": 1}}, {"a": 1}) == {"a": 1}
