"""The limits of the numbers in a request's path and query: beyond them no handler, and no database, sees a request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from coordinator.requests.entry import AfterRound, Attempt, Limit, RoundNumber


@pytest.mark.parametrize(
    ("kind", "read", "refused"),
    [
        (AfterRound, [0, 2**63 - 1], [-1, 2**63]),
        (Attempt, [0, 1], [-1]),
        (RoundNumber, [1, 2], [0, -1]),
        (Limit, [1, 10_000], [0, 10_001]),
    ],
    ids=["after", "attempt", "round", "limit"],
)
def test_the_outermost_numbers_are_read(kind: Any, read: list[int], refused: list[int]) -> None:
    adapter: TypeAdapter[int] = TypeAdapter(kind)
    for number in read:
        assert adapter.validate_python(str(number)) == number
    for number in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(str(number))
