"""The API's description: complete, true, and drawn without anything from the internet."""

from __future__ import annotations

import re

import pytest

from client_sdk.protocol import access, devices, flower, insight, names, operators, privacy, problems, secure, workers
from client_sdk.protocol.names import Route
from coordinator.service.openapi import EXAMPLES
from tests.coordinator.service.conftest import Server


@pytest.fixture(scope="module")
def document(server: Server) -> dict:
    return server.http.get("/openapi.json").json()


def test_every_route_of_the_protocol_is_described(document: dict) -> None:
    assert {str(route) for route in Route} <= set(document["paths"])
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), (method, path)
            assert operation.get("description"), (method, path)
            assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}


def test_every_body_is_required(document: dict) -> None:
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    bodies = [operation["requestBody"] for operation in operations if "requestBody" in operation]
    assert all(body["required"] for body in bodies)
    assert any(names.TENSORS_MEDIA_TYPE in body["content"] for body in bodies)


def test_fields_have_their_docstrings_as_descriptions(document: dict) -> None:
    fields = document["components"]["schemas"]["CheckIn"]["properties"]
    assert fields["hold_s"]["description"].startswith("Longest wait for the answer")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_valid_message_and_is_shown(name: str, document: dict) -> None:
    rooms = (access, devices, flower, insight, names, operators, privacy, secure, workers, problems)
    model = next(getattr(room, name) for room in rooms if hasattr(room, name))
    model.model_validate(EXAMPLES[name])
    assert set(EXAMPLES[name]) <= set(model.model_fields)
    assert document["components"]["schemas"][name]["examples"] == [EXAMPLES[name]]


def test_the_examples_plan_is_a_plan() -> None:
    from coordinator.engine.plan import Plan

    Plan.parse(EXAMPLES["CreateRun"]["plan"])


def test_the_page_needs_nothing_from_elsewhere(server: Server) -> None:
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    script = server.http.get("/docs.js")
    assert script.status_code == 200
    for text in (page.text, script.text):
        assert not re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_every_operation_says_which_credentials_it_needs(document: dict) -> None:
    schemes = document["components"]["securitySchemes"]
    assert {name: (scheme["type"], scheme.get("name")) for name, scheme in schemes.items()} == {
        "signature": ("apiKey", "Signature"),
        "operator": ("http", None),
        "session": ("apiKey", "__Host-quorate"),
    }
    free = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            named = {name for one in operation.get("security", []) for name in one}
            assert named <= set(schemes)
            assert (operation.get("x-role") in ("viewer", "operator", "owner")) == ("operator" in named), path
            assert ("session" in named) == ("operator" in named), path
            if not named:
                free.add(f"{method} {path}")
    lists = {"get /v1/revocations", "get /v1/revocations/{digest}"}  # signed by the authority
    logins = {"post /v1/sessions", "post /v1/sessions/link", "get /v1/sessions/ways"}
    logins |= {"get /v1/sessions/oidc", "get /v1/sessions/oidc/callback"}
    assert free == {*lists, *logins, "get /healthz", "get /readyz"}


def test_the_page_sends_a_key_and_stores_none(server: Server) -> None:
    script = server.http.get("/docs.js").text
    assert "Authorization: `Bearer ${key}`" in script
    assert not re.search(r"localStorage|sessionStorage|cookie", script)
