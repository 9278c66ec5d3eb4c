"""The limits of the numbers in a request's path and query: beyond them no handler, and no database, sees a request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from client_sdk.protocol.names import Route
from coordinator.requests.entry import AfterRound, Attempt, Limit, RoundNumber
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.world import World


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


def test_a_list_begins_at_its_beginning_and_has_a_thousand_rows_where_the_query_says_nothing() -> None:
    pages = create_app(World(0).coordinator, Settings()).openapi()["paths"]
    defaults = {
        (route, parameter["name"]): parameter["schema"]["default"]
        for route in (Route.ROUNDS, Route.DEVICES)
        for parameter in pages[route]["get"]["parameters"]
        if parameter["in"] == "query" and parameter["name"] in ("after", "limit")
    }
    assert defaults == {
        (Route.ROUNDS, "after"): 0,
        (Route.ROUNDS, "limit"): 1000,
        (Route.DEVICES, "after"): "",
        (Route.DEVICES, "limit"): 1000,
    }
