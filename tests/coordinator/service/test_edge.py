"""What is refused at the door, and how: every error is a problem document with a plain sentence."""

from __future__ import annotations

import httpx2
import pytest

from client_sdk.protocol.names import PROBLEM_MEDIA_TYPE, PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from client_sdk.protocol.problems import PROBLEMS, parse_problem
from coordinator.blobs import BlobError, DiskFull, Missing
from coordinator.service.errors import problem_of
from coordinator.store.port import StoreError
from tests.coordinator.service.conftest import Server

SPEAKS = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}


def refused(response: httpx2.Response, status: int, kind: str) -> str:
    """Checks that the response is that problem; returns its sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    found = parse_problem(status, response.content, response.headers)
    assert found.kind == kind, response.text
    assert found.detail
    return found.detail


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({}, "has no Quorate-Protocol header"),
        ({PROTOCOL_HEADER: "1"}, "upgrade the device"),
        ({PROTOCOL_HEADER: "3"}, "upgrade the coordinator"),
        ({PROTOCOL_HEADER: "one"}, "must be a whole number, not 'one'"),
        ({PROTOCOL_HEADER: "9" * 50}, "must be a whole number"),
    ],
)
def test_a_refusal_of_another_protocol_version_names_both_versions(
    server: Server, headers: dict, sentence: str
) -> None:
    response = server.http.post(Route.CHECK_IN, content="{}", headers=headers)
    detail = refused(response, 426, "protocol-version")
    assert sentence in detail
    assert "version 2" in detail
    assert response.headers["upgrade"] == "quorate/2"
    assert response.headers[PROTOCOL_HEADER] == "2"


def test_an_operator_may_leave_the_version_out_but_not_lie_about_it(server: Server) -> None:
    assert server.http.get(Route.RUNS).status_code == 200
    refused(server.http.get(Route.RUNS, headers={PROTOCOL_HEADER: "7"}), 426, "protocol-version")


def test_a_request_that_is_not_signed_is_unauthenticated(server: Server) -> None:
    missing = server.http.post(Route.CHECK_IN, content="{}", headers={**SPEAKS, "Authorization": ""})
    assert "Signature is missing" in refused(missing, 401, "unauthenticated")
    assert missing.headers["www-authenticate"] == "Bearer"
    refused(server.http.post(Route.CHECK_IN, content="{}", headers=SPEAKS), 401, "unauthenticated")
    bad = {**SPEAKS, "Authorization": "Bearer nobody"}
    refused(server.http.get(Route.CHECKPOINT.format(digest="0" * 64), headers=bad), 401, "unauthenticated")
    neither = server.http.get(Route.CHECKPOINT.format(digest="0" * 64), headers={**SPEAKS, "Authorization": ""})
    assert "or sign the request" in refused(neither, 401, "unauthenticated")


def test_an_invalid_message_names_the_field_and_the_reason(server: Server) -> None:
    device = server.device()
    response = device.send("POST", Route.CHECK_IN, json={"hold_s": -1, "examples": "many"})
    detail = refused(response, 422, "invalid-request")
    assert "hold_s: Input should be greater than or equal to 0 (got -1)" in detail
    assert "examples: " in detail
    refused(device.send("POST", Route.CHECK_IN, content="{"), 422, "invalid-request")
    response = device.send("GET", "/v1/runs/x/rounds/0/outcome")
    assert refused(response, 422, "invalid-request").startswith("round: ")
    assert refused(server.http.get("/v1/devices?limit=0"), 422, "invalid-request").startswith("limit: ")
    assert refused(server.http.get("/v1/devices?after=%00"), 422, "invalid-request").startswith("after: ")
    assert refused(server.http.post("/v1/runs/x/explode"), 422, "invalid-request").startswith("action: ")


def test_unknown_routes_and_methods_are_problems_too(server: Server) -> None:
    assert "/docs" in refused(server.http.get("/v1/nowhere"), 404, "about:blank")
    response = server.http.delete(Route.DEVICES)
    assert "possible: GET, POST" in refused(response, 405, "about:blank")
    assert response.headers["allow"] == "GET, POST"


def test_a_message_that_is_too_long_is_refused_before_it_is_read(server: Server) -> None:
    device = server.device()
    refused(device.send("POST", Route.CHECK_IN, content=b" " * 300_000), 413, "too-large")

    def chunks():
        for _ in range(300):
            yield b" " * 1024

    refused(device.send("POST", Route.CHECK_IN, content=chunks()), 413, "too-large")


def test_other_hosts_names_are_refused(server: Server) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1:8470", ""):
        assert server.http.get(Route.RUNS, headers={"Host": host}).status_code == 421, host
    port = server.url.rsplit(":", 1)[1]
    for host in (f"localhost:{port}", "localhost", "[::1]:80", "127.0.0.1"):
        assert server.http.get(Route.RUNS, headers={"Host": host}).status_code == 200, host


def test_writes_from_pages_of_another_origin_are_refused(server: Server) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        response = server.http.post("/v1/runs/x/stop", headers=headers)
        refused(response, 403, "about:blank")
    own = server.http.post("/v1/runs/x/stop", headers={"Origin": server.url, "Sec-Fetch-Site": "same-origin"})
    refused(own, 404, "unknown-run")
    assert "access-control-allow-origin" not in own.headers


@pytest.mark.parametrize("path", ["/v1/runs", "/nothing", "/healthz", "/docs", "/", "/openapi.json", "/v1/me"])
def test_no_answer_is_framed_kept_or_read_as_something_else(server: Server, path: str) -> None:
    for headers in ({}, {"Host": "evil.example"}, {"Authorization": "Bearer junk"}):
        answer = server.http.get(path, headers=headers, follow_redirects=False)
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.headers.get_list("content-security-policy")) == 1


def test_refusals_are_counted_by_kind(server: Server) -> None:
    before = server.meter('quorate_problems_total{kind="unknown-run"}')
    for _ in range(3):
        refused(server.http.get("/v1/runs/nobody"), 404, "unknown-run")
    assert server.meter('quorate_problems_total{kind="unknown-run"}') == before + 3
    assert server.meter('quorate_requests_total{method="GET",route="/v1/runs/{run}",status="404"}') >= 3


def test_every_kind_of_problem_has_a_status_that_http_knows() -> None:
    from http import HTTPStatus

    assert all(HTTPStatus(kind.status).phrase for kind in PROBLEMS.values())


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (BlobError("the disk reported an error"), "busy", 503),
        (Missing("no blob", ""), "busy", 503),
        (DiskFull("quota of user 7"), "disk-full", 507),
        (StoreError("locked"), "busy", 503),
        (RuntimeError("ours"), "internal", 500),
    ],
)
def test_an_error_of_the_machine_is_reported_without_its_text(error: Exception, kind: str, status: int) -> None:
    found = problem_of(error, path="/v1/x")
    assert (found.kind, found.status) == (kind, status)
    assert str(error) not in found.detail
    assert found.retryable
