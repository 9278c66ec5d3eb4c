"""A method that a path does not have is 405 with the methods that it has, for every path and every method."""

from __future__ import annotations

import pytest

from tests.coordinator.service.conftest import Server
from tests.coordinator.service.test_edge import refused

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FILES = ("/v1/checkpoints/{digest}", "/v1/flower/runs/{run}/contents/{digest}")
HIDDEN = {key: {"HEAD"} for key in (*FILES, "/healthz", "/readyz")}
"""Methods that the OpenAPI document leaves out, since GET describes them."""
VALUES = {
    "run": "mnist",
    "round": "1",
    "attempt": "0",
    "digest": "0" * 64,
    "worker": "w-1",
    "key": "0" * 16,
    "device": "d1",
    "ledger": "phones",
}
VALUES |= {"stage": "share", "message": "0" * 64}


def paths(server: Server) -> dict[str, set[str]]:
    """Each path with its methods; a path with actions is one for each action."""
    found: dict[str, set[str]] = {}
    for template, operations in server.http.get("/openapi.json").json()["paths"].items():
        methods = {name.upper() for name in operations} | HIDDEN.get(template, set())
        for action in ("pause", "resume", "stop") if "{action}" in template else ("",):
            path = template.format(**VALUES, action=action)
            found[path] = found.get(path, set()) | methods
    return found


def test_every_method_that_a_path_does_not_have_is_405(server: Server) -> None:
    checked = 0
    for path, methods in paths(server).items():
        for method in METHODS:
            if method in methods:
                continue
            response = server.http.request(method, path)
            assert response.status_code == 405, (method, path, response.text)
            assert response.headers["allow"] == ", ".join(sorted(methods)), (method, path)
            if method != "HEAD":
                assert f"possible: {response.headers['allow']}." in refused(response, 405, "about:blank")
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("path", ["rounds", "checkpoints", "events"])
def test_repro_a_post_to_a_route_for_get_is_405(server: Server, path: str) -> None:
    response = server.http.post(f"/v1/runs/x/{path}")
    refused(response, 405, "about:blank")
    assert response.headers["allow"] == "GET"
