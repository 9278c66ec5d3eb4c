"""The members of a round are a mapping that never changes, with counts that are those of a walk over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from coordinator.engine.state import Member, Members

STATUSES = get_args(get_type_hints(Member)["status"])


@given(
    size=st.integers(1, 300), changes=st.lists(st.tuples(st.integers(0, 299), st.sampled_from(STATUSES)), max_size=60)
)
def test_members_are_what_a_dict_is(size: int, changes: list[tuple[int, str]]) -> None:
    plain = {f"device-{n * 7 % size:03}-{n}": Member(examples=n) for n in range(size)}
    members, seen = Members(plain), []
    for place, status in changes:
        device = list(plain)[place % size]
        seen.append((members, dict(plain)))
        plain[device] = replace(plain[device], status=status, bytes=place)  # type: ignore[arg-type]
        members = members.changed(device, plain[device])
    for found, expected in [*seen, (members, plain)]:  # an earlier one is as it was
        assert list(found.items()) == list(expected.items())
        counted = Counter(member.status for member in expected.values())
        assert [found.count(status) for status in STATUSES] == [counted[status] for status in STATUSES]
    assert members.count("selected", "training") == members.count("selected") + members.count("training")
    assert members == Members(plain) == plain
    assert "device" not in members
    assert members.get("device") is None


def test_members_travel_as_json() -> None:
    members = Members({"b": Member(examples=3), "a": Member(examples=2, status="reported")})
    adapter = TypeAdapter(Members)
    found = adapter.validate_json(adapter.dump_json(members))
    assert isinstance(found, Members)
    assert list(found.items()) == list(members.items())
    assert found.count("reported") == 1


def test_a_device_that_is_no_member_cannot_change() -> None:
    with pytest.raises(KeyError):
        Members({"a": Member(examples=1)}).changed("b", Member(examples=1))
