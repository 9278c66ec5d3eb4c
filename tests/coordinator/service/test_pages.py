"""Lists come in pages: what begins the next page stands in a header, also where a page is short or empty."""

from __future__ import annotations

from typing import Any, get_origin

import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.http.paging import every_page
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import NEXT_HEADER, Route
from client_sdk.protocol.privacy import CreateLedger
from coordinator.requests import TABLE
from coordinator.runtime.insight import fleet_views
from tests.coordinator.service.apps import give_back
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_scopes import Served


@pytest.fixture
def operator(server: Server) -> OperatorClient:
    return OperatorClient(server.url, key=server.key)


def pages_of(server: Server, route: str, **wanted: Any) -> list[list[dict[str, Any]]]:
    """All pages of one row each."""
    found, after = [], {}
    while True:
        answer = server.http.get(route, params={"limit": 1, **after, **wanted}).raise_for_status()
        found.append(answer.json())
        if NEXT_HEADER not in answer.headers:
            return found
        after = {"after": answer.headers[NEXT_HEADER]}


def test_every_list_that_an_operator_reads_is_paged_in_one_way() -> None:
    lists = [entry for entry in TABLE if entry.method == "GET" and get_origin(entry.answer) is list]
    assert {entry.route for entry in lists} == {
        Route.RUNS, Route.ROUNDS, Route.RUN_CHECKPOINTS, Route.METRICS, Route.DEVICES, Route.WORKERS, Route.KEYS,
        Route.AUDIT, Route.LEDGERS,
    }  # fmt: skip
    for entry in lists:
        assert {"after", "limit"} <= entry.parameters.keys(), entry.route


def test_pages_join_to_the_whole_list(server: Server, operator: OperatorClient) -> None:
    for name in ("phones", "tablets"):
        operator.create_ledger(CreateLedger(ledger=f"{name}-of-pages", epsilon=1.0, delta=1e-6))
        operator.create_key(CreateKey(role="viewer", scope="*", label=name))
        server.create_run(f"run of {name}".replace(" ", "-"))
    for number in range(3):
        server.device("any", number).register()
    routes = (Route.RUNS, Route.KEYS, Route.LEDGERS, Route.DEVICES, Route.WORKERS, Route.AUDIT)
    for route in routes:
        whole = server.http.get(route, params={"limit": 10_000})
        assert NEXT_HEADER not in whole.headers
        pages = pages_of(server, route)
        assert [len(page) for page in pages[:-1]] == [1] * (len(pages) - 1), route
        assert [row for page in pages for row in page][: len(whole.json())] == whole.json(), route
    assert [view.device for view in every_page(lambda after: operator.devices(after, 2))] == [
        view.device for view in operator.devices()
    ]


def test_a_page_of_a_filter_that_few_pass_may_be_empty_and_say_where_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    first, *_, last = (view.device for view in served.world.coordinator.insight.fleet.devices())
    monkeypatch.setattr(fleet_views, "LOOKED_AT", 1)
    answer = served.ask("GET", f"{Route.DEVICES}?q={last}&limit=1", served.key("viewer", "*"))
    assert (answer.json(), answer.headers[NEXT_HEADER] >= first) == ([], True)
    served.service.close()
    give_back(served.app)
