"""The OpenAPI document says who may do what: requests drawn from it, with the credentials of every role, prove it.

Each operation is sent requests with keys of each role for everything, with keys for some runs, with keys that are no
longer valid, and with none. No answer is a server error, each is one that the document has, and nobody succeeds whom
the document does not name.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from coordinator.access import Role
from tests.coordinator.service import test_openapi as document
from tests.coordinator.service.test_openapi import CHECKS, OPERATIONS, STREAMS, Service, cases, operations, translated
from tests.rotating import in_parts

EACH = 5
"""Requests to each operation, each of which is sent with all credentials: to invent one takes longest."""
FOR_EVERYBODY = ("GET /healthz", "GET /readyz", f"POST {Route.SESSIONS}", f"POST {Route.SESSION_BY_LINK}")
"""Operations of which every operator, and nobody, gets an answer; of a wrong key /readyz says so, and so does a
login."""

service = document.service


@dataclass(frozen=True)
class Caller:
    """Whose credentials a request has. ``role`` None: those of nobody."""

    name: str
    role: Role | None = None
    scope: str = "*"

    def allowed(self, operation: dict[str, Any], run: str | None) -> bool:
        """Whether the document allows the operation to this caller, for this run. Written anew, not read from the
        code."""
        lowest = operation.get("x-role")
        if lowest is None:
            return not operation.get("security")
        if self.role is None or self.role < Role.named(lowest):
            return False
        return run is None or self.scope == "*" or run == self.scope


CALLERS = (
    Caller("none"),
    Caller("garbage"),
    Caller("revoked owner"),
    Caller("viewer of another run", Role.VIEWER, "another"),
    Caller("operator of known", Role.OPERATOR, "known"),
    Caller("owner of known", Role.OWNER, "known"),
    Caller("viewer", Role.VIEWER),
    Caller("operator", Role.OPERATOR),
    Caller("owner", Role.OWNER),
)
"""Who may least comes first: what is refused is not refused because somebody else has done it."""


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    """Caller's name -> API key; empty: no credentials are sent."""
    owner = {"Authorization": f"Bearer {service.tokens['owner']}"}

    def created(role: str, scope: str) -> dict[str, Any]:
        answer = service.request("POST", Route.KEYS, json={"role": role, "scope": scope}, headers=owner)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    keys = {one.name: created(one.role.text, one.scope)["text"] for one in CALLERS if one.role is not None}
    revoked = created("owner", "*")
    service.request("POST", Route.REVOKE_KEY.format(key=revoked["key"]), headers=owner).raise_for_status()
    service.known["key"] = created("viewer", "*")["key"]  # not one of those above: requests may revoke it
    return keys | {"revoked owner": revoked["text"], "garbage": "qk_" + "0" * 16 + "_" + "f" * 64, "none": ""}


def explore(service: Service, operation: Any, keys: dict[str, str], examples: int) -> None:
    """Sends so many requests to one operation, others each time, each as every caller, and checks each answer."""
    excluded = [check for check in CHECKS if check.__name__ == "response_schema_conformance"]
    checks = [check for check in CHECKS if operation.path not in STREAMS or check not in excluded]
    suppressed = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    @settings(max_examples=examples, deadline=None, derandomize=False, database=None, suppress_health_check=suppressed)
    @given(case=cases(service, operation))
    def search(case: Any) -> None:
        headers = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
        sent = translated(case.as_transport_kwargs(base_url="http://localhost", headers=headers))
        run = (case.path_parameters or {}).get("run")
        for caller in CALLERS:
            response = service.request(**{**sent, "headers": with_key(sent["headers"], keys[caller.name])})
            case.validate_response(response, checks=checks)
            check_allowed(caller, operation, run, response)

    search()


def check_allowed(caller: Caller, operation: Any, run: str | None, response: Any) -> None:
    """Whether the answer is one that the document has for this caller."""
    who = f"{caller.name} at {operation.label}"
    if caller.allowed(operation.definition.raw, run):
        assert response.status_code != 401 or operation.label in FOR_EVERYBODY, f"{who}: {response.text}"
        if caller.scope == "*":
            kind = response.json().get("type") if response.status_code == 403 else None
            assert kind != "/problems/not-permitted", f"{who}: {response.text}"
    else:
        assert 400 <= response.status_code < 500, f"{who}: {response.status_code} {response.text}"


def with_key(headers: dict[str, Any], key: str) -> dict[str, Any]:
    """The headers with the caller's key in place of the credentials that schemathesis invents."""
    credentials = ("authorization", "signature", "signature-input")
    others = {name: value for name, value in headers.items() if name.lower() not in credentials}
    return {**others, "Authorization": f"Bearer {key}"} if key else others


def test_repro_no_signature_is_sent_beside_a_key() -> None:
    """The document names Signature as another kind of credentials, so schemathesis invents one now and then."""
    assert with_key({"Signature": "", "SIGNATURE-INPUT": "", "authorization": "Bearer x", "a": "b"}, "k") == {
        "a": "b",
        "Authorization": "Bearer k",
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", in_parts(range(OPERATIONS), of=2))
def test_each_role_is_answered_as_documented(service: Service, keys: dict[str, str], number: int) -> None:
    explore(service, operations(service)[number], keys, EACH)


@pytest.mark.soak
def test_soak(service: Service, keys: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: all operations with all credentials in turn, for SOAK_SECONDS."""
    seconds, sent = float(os.environ.get("SOAK_SECONDS", "600")), 0
    ends = time.monotonic() + seconds
    for operation in itertools.takewhile(lambda _: time.monotonic() < ends, itertools.cycle(operations(service))):
        explore(service, operation, keys, 25)
        sent += 25
    with capsys.disabled():
        print(f"\n{sent} requests with the credentials of {len(CALLERS)} callers in {seconds:.0f} s")
