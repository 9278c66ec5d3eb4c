"""The table is complete, and HTTP and the fault explorer serve what stands in it, also what is added to it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Noted, Receipt, Started, UpdateReport, Wait
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from client_sdk.protocol.problems import Problem, ProblemError
from coordinator.access import Operator
from coordinator.requests import TABLE, Credentials, Held, NotYet, Permission, Request, Table, identify
from coordinator.requests.devices import CHECK_IN, STARTED
from coordinator.runtime.devices import ArrivedUpdate
from coordinator.runtime.identities import Registrant, SignedBy
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.certified import key_id, key_of
from tests.coordinator.requests.entries import BODY, DIRECT, EXTENDED, HELD, Question
from tests.coordinator.service.devices import Signing
from tests.coordinator.world import World
from tests.explorer.holders import Holder, QuickSigner, holder_of
from tests.explorer.request import SentRequest as Delivery
from tests.explorer.schedule import Schedule
from tests.explorer.serving import serve
from tests.explorer.shape import Shape

OTHER = key_of("another key")
HTTP_ALONE = {
    ("GET", Route.EVENTS), ("GET", Route.CHECKPOINT), ("HEAD", Route.CHECKPOINT), ("GET", Route.REVOCATIONS),
    ("GET", Route.REVOCATION_LIST), ("GET", Route.SESSION_OIDC), ("GET", Route.OIDC_CALLBACK),
    ("GET", Route.STREAM), ("GET", Route.FLOWER_CONTENT), ("HEAD", Route.FLOWER_CONTENT),
}  # fmt: skip
"""The streams, downloads, the authority's own bytes, and the redirects to an issuer and back."""


def served(table: Table = TABLE) -> set[tuple[str, str]]:
    app = create_app(World(0).coordinator, Settings(), table)
    routes = [route for route in app.router.routes if isinstance(route, APIRoute)]
    return {(method, str(route.path)) for route in routes for method in route.methods if route.path.startswith("/v1/")}


def test_every_route_of_the_protocol_is_in_the_table_or_is_http_s_alone() -> None:
    entries = {(entry.method, str(entry.route)) for entry in TABLE}
    assert served() == entries | {(method, str(route)) for method, route in HTTP_ALONE}
    assert {str(route) for route in Route} == {route for _, route in served()}
    assert not entries & {(method, str(route)) for method, route in HTTP_ALONE}


def test_every_entry_is_served_by_http_also_one_that_is_added() -> None:
    assert served(EXTENDED) - served() == {(entry.method, entry.route) for entry in (DIRECT, HELD, BODY)}


@pytest.mark.parametrize("entry", list(TABLE), ids=lambda entry: f"{entry.method} {entry.route}")
def test_an_entry_says_what_it_is(entry: Any) -> None:
    names = {name for name in entry.parameters if f"{{{name}}}" in entry.route}
    assert entry.route.format(**dict.fromkeys(names, "x")).count("{") == 0
    assert entry.summary
    assert entry.description
    if isinstance(entry.shape, Held):
        assert "hold_s" in entry.message.model_fields


# ------------------------------------------------------------ who is asking


def test_the_caller_is_resolved_before_the_table() -> None:
    world = World(1)
    coordinator, row = world.coordinator, world.worker()
    by_device, by_worker, by_nobody = (
        SignedBy(key_id(key).hex(), 0) for key in (*world.keys, *world.worker_keys, OTHER)
    )
    assert identify(coordinator, Permission.NOBODY, "") is None
    owner = coordinator.access.keys.create_owner("a test", "")
    operator = identify(coordinator, Permission.OPERATOR, owner.text)
    assert isinstance(operator, Operator)
    assert (operator.id, str(operator)) == (f"key:{owner.key}", "owner *")
    assert identify(coordinator, Permission.PEER, owner.text) == operator
    assert identify(coordinator, Permission.DEVICE, by_device) == world.rows[0]
    assert identify(coordinator, Permission.WORKER, by_worker) == row
    assert [identify(coordinator, Permission.PEER, one) for one in (by_device, by_worker)] == [world.rows[0], row]
    holder = Registrant(world.authority.certificate(OTHER, at=world.clock.at))
    assert identify(coordinator, Permission.CERTIFIED, holder) == holder
    coordinator.workers.revoke(row.worker)
    refused: list[tuple[Permission, Credentials, str, str]] = [
        (Permission.DEVICE, by_nobody, "unregistered", "register again"),
        (Permission.PEER, by_nobody, "unregistered", "register again"),
        (Permission.DEVICE, by_worker, "revoked-key", "was revoked"),
        (Permission.WORKER, by_device, "not-certified", "is a device"),
        (Permission.PEER, by_worker, "revoked-key", "was revoked"),
        (Permission.PEER, owner.text[:-1] + "x", "unauthenticated", "API key is not valid"),
        (Permission.VIEWER, by_device, "unauthenticated", "operator's API key"),
        (Permission.VIEWER, holder, "unauthenticated", "operator's API key"),
        (Permission.DEVICE, owner.text, "unauthenticated", "Sign this request"),
        (Permission.WORKER, holder, "unauthenticated", "Sign this request"),
        (Permission.CERTIFIED, by_device, "unauthenticated", "Sign this request"),
        (Permission.CERTIFIED, owner.text, "unauthenticated", "Sign this request"),
        (Permission.PEER, holder, "unauthenticated", "operator's API key"),
    ]
    for permission, shown, kind, words in refused:
        with pytest.raises(ProblemError, match=words) as refusal:
            identify(coordinator, permission, shown)
        assert refusal.value.kind == kind


# ------------------------------------------------------------ many at a time


def test_what_is_entered_before_it_is_settled_shares_a_transaction() -> None:
    world = World(4)
    world.create()
    transactions = counted(world)
    waiting = [Request(CHECK_IN, row, world.message()) for row in world.rows]
    entered = [request.begin(CHECK_IN.shape.first, world.coordinator) for request in waiting]
    assert transactions == [0]
    assert all(isinstance(one.settle(), NotYet) for one in entered)
    assert transactions == [1]
    world.settle()
    found = [request.call(CHECK_IN.shape.again, world.coordinator) for request in waiting]
    assert all(found)
    where = {"run": "marks", "round": 1}
    transactions = counted(world)
    starting = [Request(STARTED, row, Started(attempt=0), where) for row in world.rows]
    entered = [request.begin(STARTED.shape.call, world.coordinator) for request in starting]
    assert [one.settle() for one in entered] == [Noted()] * 4
    assert transactions == [1]


def test_updates_that_stay_in_memory_are_counted_in_one_transaction() -> None:
    world = World(4)
    world.create()
    world.check_in()
    transactions = counted(world)
    report = UpdateReport(run="marks", round=1, codec="float32@1", examples=10)
    arrivals = [ArrivedUpdate(row, report, f"{number:064x}", 100) for number, row in enumerate(world.rows)]
    entered = [world.coordinator.devices.count(arrived) for arrived in arrivals]
    assert [type(settle()) for settle in entered[:3]] == [Receipt] * 3
    with pytest.raises(ProblemError, match="has closed"):
        entered[3]()
    assert transactions == [1]


def counted(world: World) -> list[int]:
    """How many transactions there are from now on: the only item."""
    count, transaction = [0], world.store.transaction

    def counting(run: str | None = None) -> Any:
        count[0] += 1
        return transaction(run) if run is not None else transaction()

    world.store.transaction = counting  # type: ignore[method-assign]
    return count


# ------------------------------------------------------------ an entry that is added


def test_http_serves_an_entry_that_is_added() -> None:
    world = World(1)
    device, auth = world.rows[0].device, Signing(world.keys[0], world.clock.now)
    app = create_app(world.coordinator, Settings(reread_s=0.01), EXTENDED)
    usual: dict[str, Any] = {"headers": {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}, "base_url": "http://localhost"}

    async def talk() -> None:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, auth=auth, **usual) as http:
            answer = await http.post("/v1/tests/marks/3", json={"word": "yes"})
            assert answer.json() == {"device": device, "text": "marks 3 yes"}
            assert (await http.post("/v1/tests/marks/0", json={})).json()["type"] == "/problems/invalid-request"
            assert (await http.post("/v1/tests/marks/3", auth=None, json={})).status_code == 401
            answer = await http.post("/v1/tests", json={"word": "marks", "hold_s": 0.02})
            assert answer.json()["reason"] == "there is no marks"
            held = asyncio.create_task(http.post("/v1/tests", json={"word": "marks", "hold_s": 20}))
            while not world.coordinator.core.signals.waiting:
                await asyncio.sleep(0)
            await asyncio.to_thread(world.create)
            assert (await held).json() == {"device": device, "text": "marks"}
            assert (await http.put("/v1/tests/marks", content=b"eight by")).status_code == 200
            assert (await http.put("/v1/tests/marks", content=b"nine byte")).status_code == 413
        app.state.service.close()

    asyncio.run(talk())
    assert world.blobs.has(hashlib.sha256(b"eight by").hexdigest())
    assert "/v1/tests/{run}/{round}" in app.openapi()["paths"]


class Calm(Schedule):
    """One device and one replica, and no faults: ``ask`` has the replica serve a request."""

    def __init__(self) -> None:
        shape = Shape.of(1)
        super().__init__(
            replace(shape, rates={}, replicas=1, devices=1, enrolments=0, workers=0, liars=0, dead=0, store="memory")
        )
        self.answers: list[Any] = []
        self.nonces = itertools.count(10**9)
        self.asked: Callable[[Calm], None]

    def play_with(self, asked: Callable[[Calm], None]) -> None:
        self.asked = asked
        self.play()

    def _loop(self) -> None:
        self._step()
        self.asked(self)

    def _settle(self) -> None:
        """Nothing is left to do."""

    def ask(self, send: Send, body: bytes = b"", holder: Holder | None = None) -> None:
        """``holder``: who signs; None: the device."""
        replica = self.replicas[0]
        signer = QuickSigner(holder or self.devices[0].holder, replica.now, self.nonces)
        serve(self.world, replica, Delivery(send, signer, body, table=EXTENDED), self.answers.append)

    def pass_time(self, seconds: float) -> None:
        until = self.world.agenda.now + seconds
        while self.world.agenda.next_at <= until:
            self._step()
        self.world.agenda.now = until


def sent(entry: Any, message: Any = None, /, **path: Any) -> Send:
    return Send(method=entry.method, route=entry.route, answers=(), path=path, message=message)


def test_the_explorer_serves_an_entry_that_is_added() -> None:
    def asked(calm: Calm) -> None:
        name = calm.shape.plan["name"]
        calm.ask(sent(DIRECT, Question(word="yes"), run=name, round=3))
        assert calm.answers.pop().text == f"{name} 3 yes"
        calm.ask(sent(HELD, Question(word="none", hold_s=5)))
        assert not calm.answers
        calm.pass_time(6)
        assert calm.answers.pop() == Wait(reason="there is no none", min_s=0, max_s=1)
        calm.ask(sent(HELD, Question(word=name, hold_s=5)))
        assert calm.answers.pop().text == name
        calm.ask(sent(BODY, run=name), b"eight by")
        calm.pass_time(1)
        assert calm.answers.pop() == Noted()
        calm.ask(sent(BODY, run=name), b"nine byte")
        calm.pass_time(1)
        assert isinstance(calm.answers.pop(), Problem)

    Calm().play_with(asked)


@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.permission.of_peers], ids=lambda entry: entry.name)
def test_the_explorer_serves_every_entry_of_devices_and_workers(entry: Any) -> None:
    """Each by a key that nobody registered: the answer is a refusal, and not that it is not served."""

    def asked(calm: Calm) -> None:
        message = None if entry.message is None else entry.message.model_construct(certificate="80ff", hold_s=0)
        path = {name: calm.shape.plan["name"] if name == "run" else 1 for name in entry.parameters}
        calm.ask(sent(entry, message, **path), holder=holder_of("nobody"))

    calm = Calm()
    calm.play_with(asked)
    (answer,) = calm.answers
    assert answer.kind == ("not-certified" if entry.permission is Permission.CERTIFIED else "unregistered")
