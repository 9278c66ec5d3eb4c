"""Every route against every kind of credentials: generated from the routes that the service declares.

A request is *let in* where the answer is neither 401 nor 403 ``not-permitted``: what it asks for may still not exist.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount

from client_sdk.identity import DeviceKey
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from client_sdk.protocol.secure import SECURE_HEADER
from client_sdk.protocol.workers import RESULT_HEADER
from coordinator.access import LOCAL_OWNER, Role
from coordinator.requests import TABLE, Held, Permission
from coordinator.service import create_app
from coordinator.service.declaring import UndeclaredRoute, declaration, require_declarations
from coordinator.service.openapi import EXAMPLES
from coordinator.settings import Settings
from tests.coordinator.certified import key_of
from tests.coordinator.service.devices import Signing
from tests.coordinator.world import World

pytestmark = pytest.mark.whole

RUN = "marks"
OTHER = "other"
OPERATORS = [
    (role, scope) for role, scope in product(("viewer", "operator", "owner"), ("*", RUN, "mar*", OTHER, "mark"))
]
INVALID = ("none", "junk", "revoked", "expired", "no-secret")
PEERS = ("device", "worker")
REGISTRATIONS = {Route.REGISTER: "device", Route.REGISTER_WORKER: "worker"}
"""Whose registration it is."""
BESIDE = {str(Route.RESULT): RESULT_HEADER, str(Route.SECURE_MESSAGE): SECURE_HEADER}
"""The header that has the message, where the body is something else."""
REFUSED = {f"/problems/{kind}" for kind in ("not-permitted", "not-certified")}

MESSAGES = {
    (entry.method, str(entry.route)): {
        **EXAMPLES.get(entry.message.__name__, {"fence": 1, "steps": 1, "examples": 1}),
        **({"hold_s": 0} if isinstance(entry.shape, Held) else {}),
    }
    for entry in TABLE
    if entry.message is not None and entry.permission.of_peers
}
"""Devices and workers are known once their message was read; operators before it is."""


class Matrix:
    """One service in memory with one run, and a text for each kind of credentials."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.worker()
        self.world.create()
        access, clock = self.world.coordinator.access, self.world.clock
        self.app: FastAPI = create_app(self.world.coordinator, Settings())
        self.keys: dict[Any, str] = {}
        for role, scope in OPERATORS:
            asked = CreateKey.model_validate({"role": role, "scope": scope})
            self.keys[role, scope] = access.keys.create(LOCAL_OWNER, asked).text
        expired = access.keys.create(LOCAL_OWNER, CreateKey(role="owner", expires_in_s=1))
        revoked = access.keys.create(LOCAL_OWNER, CreateKey(role="owner"))
        access.keys.revoke(LOCAL_OWNER, revoked.key)
        clock.at += 1
        self.keys |= {
            "junk": "nobody's",
            "expired": expired.text,
            "revoked": revoked.text,
            "no-secret": f"{expired.text[:20]}{'0' * 64}",
        }
        self.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=self.app), base_url="http://localhost")

    def routes(self) -> list[APIRoute]:
        return [route for route in self.app.router.routes if isinstance(route, APIRoute)]

    def peer(self, who: str, route: APIRoute) -> DeviceKey:
        """The key of a device or of a worker; of a new device where this one would leave."""
        if route.path != Route.LEAVE or who == "worker":
            return self.world.keys[0] if who == "device" else self.world.worker_keys[0]
        key = key_of(f"leaves {len(self.world.store.devices())}")
        self.world.authority.admit(self.world.coordinator, [key], at=self.world.clock.at)
        return key

    def ask(self, route: APIRoute, who: Any) -> httpx2.Response:
        values = {
            "run": RUN,
            "round": "1",
            "attempt": "0",
            "digest": self.world.coordinator.operators.run(RUN).checkpoint,
            "action": "pause",
        }
        values |= {
            "ledger": f"run:{RUN}",
            "worker": "w1",
            "device": "d1",
            "key": "0" * 16,
            "stage": "share",
            "message": "0" * 64,
        }
        (method,) = route.methods
        path = route.path.format(**values)
        headers, auth = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}, None
        message = MESSAGES.get((method, route.path))
        if who in PEERS:
            key = self.peer(who, route)
            auth = Signing(key, self.world.clock.now)
            if message is not None and "certificate" in message:
                certificate = self.world.authority.certificate(key, at=self.world.clock.at - 1, holder=who)
                message = {"certificate": certificate.encoded.hex()}
        elif who != "none":
            headers["Authorization"] = f"Bearer {self.keys[who]}"

        if message is not None and route.path in BESIDE:
            headers[BESIDE[route.path]], message = json.dumps(message), None

        async def send() -> httpx2.Response:
            query = {"follow": "false"} if path.endswith(("/events", "/stream")) else {}
            return await self.http.request(method, path, headers=headers, params=query, json=message, auth=auth)

        return asyncio.run(send())

    def let_in(self, route: APIRoute, who: Any) -> bool:
        answer = self.ask(route, who)
        assert answer.status_code < 500, answer.text
        if answer.status_code == 401:
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            return False
        if answer.status_code == 403 and not answer.content:  # of a HEAD
            return False
        return not (answer.status_code == 403 and answer.json()["type"] in REFUSED)


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    made = Matrix()
    yield made
    made.app.state.service.close()


ROUTES = [
    f"{next(iter(route.methods))} {route.path}"
    for route in create_app(World(0).coordinator, Settings()).router.routes
    if isinstance(route, APIRoute)
]


def expected(route: APIRoute, role: str, scope: str) -> bool:
    """Whether an operator with this role for this scope is let in. Written anew, not read from the code."""
    permission, scoped = declaration(route)
    if permission is Permission.NOBODY:
        return True
    lowest = {
        Permission.VIEWER: ("viewer", "operator", "owner"),
        Permission.PEER: ("viewer", "operator", "owner"),
        Permission.OPERATOR: ("operator", "owner"),
        Permission.OWNER: ("owner",),
    }.get(permission, ())
    if role not in lowest:
        return False
    if "{run}" in route.path:
        return scope in ("*", RUN, "mar*")
    return scoped or scope == "*"


@pytest.mark.parametrize("name", ROUTES)
def test_a_route_lets_in_whom_it_declares_and_nobody_else(matrix: Matrix, name: str) -> None:
    route = next(route for route in matrix.routes() if f"{next(iter(route.methods))} {route.path}" == name)
    permission = declaration(route).permission
    for role, scope in OPERATORS:
        assert matrix.let_in(route, (role, scope)) is expected(route, role, scope), f"{role} {scope}"
    for who in INVALID:
        free = permission is Permission.NOBODY and (who == "none" or route.path != "/readyz")
        assert matrix.let_in(route, who) is free, who
    for peer in PEERS:
        mine = permission is Permission.PEER or permission.value == peer
        if permission is Permission.CERTIFIED:
            mine = REGISTRATIONS[route.path] == peer
        free = permission is Permission.NOBODY
        assert matrix.let_in(route, peer) is (mine or free), peer


def test_a_request_that_changes_something_needs_more_than_a_viewer() -> None:
    app = create_app(World(0).coordinator, Settings())
    for route in app.router.routes:
        permission = declaration(route).permission
        ends_own_session = route.path == Route.CURRENT_SESSION
        if (
            isinstance(route, APIRoute)
            and permission.of_operators
            and route.methods != {"GET"}
            and not ends_own_session
        ):
            assert permission.role is not None
            assert permission.role > Role.VIEWER, route.path


def test_what_belongs_to_no_run_and_is_not_scoped_is_known() -> None:
    """Lists that show a part to each caller, and the few requests that concern all runs."""
    app = create_app(World(0).coordinator, Settings())
    found = [route for route in app.router.routes if isinstance(route, APIRoute) and "{run}" not in route.path]
    of_operators = [route for route in found if declaration(route).permission.of_operators]
    everything = {(*route.methods, route.path) for route in of_operators if not declaration(route).scoped}
    assert everything == {
        ("GET", "/v1/audit/head"),
        ("GET", "/v1/fleet"),
        ("GET", "/v1/system"),
        ("GET", "/v1/privacy/ledgers"),
        ("GET", "/v1/privacy/ledgers/{ledger}"),
        ("POST", "/v1/privacy/ledgers"),
        ("POST", "/v1/privacy/ledgers/{ledger}/allow"),
        ("POST", "/v1/workers/{worker}/revoke"),
        ("POST", "/v1/sessions/links"),
    }


def test_every_route_declares_who_may_ask() -> None:
    app = create_app(World(0).coordinator, Settings())
    require_declarations(app.router.routes)
    app.router.routes.append(Mount("/a-page", app=app))
    with pytest.raises(UndeclaredRoute, match="/a-page does not declare"):
        require_declarations(app.router.routes)


def test_a_service_with_a_route_that_declares_nothing_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.service.stream.declared", lambda route, permission, **more: route)
    with pytest.raises(UndeclaredRoute, match=r"/v1/runs/\{run\}/events does not declare"):
        create_app(World(0).coordinator, Settings())
