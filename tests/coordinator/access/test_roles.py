"""What an operator may do: roles in order, and scopes of runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.access import EVERYTHING, Grant, Operator, Role, Scope

NAMES = st.text("ab", min_size=1, max_size=4)
SCOPES = st.one_of(st.just("*"), NAMES, NAMES.map("{}*".format))


def test_each_role_may_do_what_the_one_before_may() -> None:
    assert sorted([Role.named("owner"), Role.named("viewer"), Role.named("operator")]) == list(Role)
    operator = Operator("olga", (Grant.parse("operator"),))
    assert [operator.has(role) for role in Role] == [True, True, False]
    with pytest.raises(ValueError, match="'root' is no role"):
        Role.named("root")


@given(SCOPES, NAMES)
def test_a_scope_has_a_run_or_has_not(text: str, run: str) -> None:
    begins = text.endswith("*") and run.startswith(text[:-1])
    assert (run in Scope.parse(text)) == (begins or run == text)
    assert str(Scope.parse(text)) == text


@given(SCOPES, SCOPES, NAMES)
def test_a_scope_within_another_has_no_run_that_the_other_lacks(outer: str, inner: str, run: str) -> None:
    one, other = Scope.parse(outer), Scope.parse(inner)
    if one.includes(other) and run in other:
        assert run in one
    assert EVERYTHING.includes(other)
    assert other.includes(other)
    assert not one.includes(EVERYTHING) or one == EVERYTHING


@pytest.mark.parametrize("text", ["", "A", "a b", "*a", "a**", "-a", "a" * 65, "a\n"])
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no scope"):
        Scope.parse(text)


def test_each_grant_counts_alone() -> None:
    """Whoever owns one run and views all others owns no other."""
    rita = Operator("rita", (Grant.parse("owner a"), Grant.parse("viewer *")))
    assert rita.may_with(Role.OWNER, "a")
    assert not rita.may_with(Role.OPERATOR, "b")
    assert rita.sees("b")
    assert rita.sees_everything
    assert not rita.may(Role.OWNER, EVERYTHING)
    assert str(rita) == "owner a, viewer *"
