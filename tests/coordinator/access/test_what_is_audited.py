"""Each request that changes something leaves a row in the audit, by whatever route it comes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from coordinator.requests import TABLE, Body, Direct, Entry
from coordinator.service import create_app
from coordinator.service.declaring import declaration
from coordinator.service.openapi import EXAMPLES
from coordinator.settings import Settings
from tests.coordinator.access.test_audit import CHANGE_NOTHING, Audited
from tests.coordinator.world import World

AUDITED = [entry for entry in TABLE if entry.audited is not None and entry.permission.of_operators]
READS = {"GET", "HEAD"}


def test_every_route_of_operators_that_writes_is_an_audited_entry() -> None:
    """HTTP has routes of its own; none of them writes."""
    served = create_app(World(0).coordinator, Settings()).router.routes
    writing = {
        (method, route.path)
        for route in served
        if isinstance(route, APIRoute)
        and declaration(route).permission.of_operators
        and route.path not in CHANGE_NOTHING
        for method in (route.methods or set()) - READS
    }
    assert len(writing) >= 8
    assert writing == {(entry.method, str(entry.route)) for entry in AUDITED}


def test_no_audited_entry_is_held() -> None:
    """The routes of held requests do not record."""
    assert all(isinstance(entry.shape, Direct | Body) for entry in TABLE if entry.audited is not None)


@pytest.mark.parametrize("entry", AUDITED, ids=lambda entry: entry.name)
def test_a_request_leaves_a_row_whether_it_is_carried_out_or_refused(entry: Entry) -> None:  # type: ignore[type-arg]
    audited = Audited()
    try:
        values = {
            "run": "marks",
            "action": "pause",
            "digest": "0" * 64,
            "key": "0" * 16,
            "worker": "w1",
            "device": "d1",
            "ledger": "phones",
        }
        sent: dict[str, Any] = {"content": b"a body"}
        if entry.message is not None:
            sent = {"json": EXAMPLES.get(entry.message.__name__, {})}
        answer = audited.ask(entry.method, str(entry.route).format(**values), **sent)
        assert answer.status_code < 500
        assert entry.audited is not None
        action = entry.audited.action.format(**values)
        found = [(by, what) for _, by, what, _ in audited.rows()]
        assert found[0] == (audited.key, action), answer.text
        assert found[1:] in ([], [(audited.key, f"{action} done" if answer.is_success else f"{action} refused")])
    finally:
        audited.app.state.service.close()
