"""The operator's client against answers from memory."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.http.transport import why_silent
from client_sdk.protocol.names import PROTOCOL_VERSION, read_content_digest
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import to_bytes
from tests.client_sdk.http.operator_script import BODY, DIGEST, Coordinator, refusal


def frames(*seqs: int) -> httpx2.Response:
    body = "retry: 2000\n\n: still here\n\n"
    for seq in seqs:
        event = {"seq": seq, "at": 1.0, "kind": "opened", "body": {"n": seq}}
        body += f"id: {seq}\nevent: opened\ndata: {json.dumps(event)}\n\n"
    return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_sdk.http.operator.time.sleep", lambda seconds: None)


def test_every_request_says_the_protocols_version() -> None:
    coordinator = Coordinator()
    client = coordinator.client()
    assert client.create_run({"name": "mnist"}, DIGEST, "by hand").run == "run-1"
    assert [view.run for view in client.runs()] == ["run-1"]
    for act in (client.pause, client.resume, client.stop):
        assert act("run-1").run == "run-1"
    assert {request.headers["quorate-protocol"] for request in coordinator.requests} == {str(PROTOCOL_VERSION)}
    assert [(request.method, request.url.path) for request in coordinator.requests] == [
        ("POST", "/v1/runs"),
        ("GET", "/v1/runs"),
        ("POST", "/v1/runs/run-1/pause"),
        ("POST", "/v1/runs/run-1/resume"),
        ("POST", "/v1/runs/run-1/stop"),
    ]


def test_advancing_says_who_asks() -> None:
    coordinator = Coordinator()
    assert coordinator.client().advance("run-1", "olga").exhausted == ""
    (request,) = coordinator.requests
    assert (request.method, request.url.path) == ("POST", "/v1/runs/run-1/advance")
    assert json.loads(request.content) == {"by": "olga"}


def test_unbarring_names_the_device_and_says_who_asks() -> None:
    coordinator = Coordinator()
    assert coordinator.client().unbar("run-1", "phone-7", "olga").barred == {}
    (request,) = coordinator.requests
    assert (request.method, request.url.path) == ("POST", "/v1/runs/run-1/devices/phone-7/unbar")
    assert json.loads(request.content) == {"by": "olga"}


def test_a_refusal_is_the_coordinators_sentence() -> None:
    coordinator = Coordinator()
    coordinator.trouble = lambda request: refusal("unknown-run", "There is no run x.")
    with pytest.raises(ProblemError, match="There is no run x"):
        coordinator.client().run("x")


def test_silence_names_the_address_and_the_fix() -> None:
    with OperatorClient("http://127.0.0.1:9") as client, pytest.raises(ProblemError) as caught:
        client.runs()
    assert "No coordinator answers at http://127.0.0.1:9" in str(caught.value)
    assert "quorate serve" in str(caught.value)


def test_an_answer_of_another_server_is_an_error() -> None:
    coordinator = Coordinator()
    coordinator.trouble = lambda request: httpx2.Response(200, content=b"<html>")
    with pytest.raises(ProblemError, match="is it a Quorate coordinator"):
        coordinator.client().runs()


def test_an_upload_goes_without_metadata_under_its_digest(tmp_path: Path) -> None:
    coordinator = Coordinator()
    path = tmp_path / "init.safetensors"
    path.write_bytes(to_bytes({"w": np.arange(3, dtype=np.float32)}, {"author": "me"}))
    assert coordinator.client().upload_checkpoint(path) == DIGEST
    (request,) = coordinator.requests
    assert request.url.path == f"/v1/checkpoints/{DIGEST}"
    assert request.content == BODY
    assert read_content_digest(request.headers["content-digest"]) == DIGEST


def test_a_download_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    coordinator = Coordinator()
    client = coordinator.client()
    assert client.download(DIGEST, tmp_path / "model.safetensors") == len(BODY)
    assert (tmp_path / "model.safetensors").read_bytes() == BODY
    coordinator.trouble = lambda request: httpx2.Response(200, content=BODY[:-1])
    with pytest.raises(ProblemError, match="ask again"):
        client.download(DIGEST, tmp_path / "other.safetensors")
    with pytest.raises(ProblemError):
        client.checkpoint(DIGEST)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_events_go_on_after_a_lost_connection_and_end_with_the_run() -> None:
    coordinator = Coordinator()
    coordinator.streams = iter([frames(1, 2), refusal("busy", "Full."), frames(3), httpx2.Response(204)])
    seen = []
    for event in coordinator.client().events("run-1"):
        seen.append((event.seq, event.kind, event.body))
        if event.seq == 3:
            coordinator.status, coordinator.seq = "finished", 3
    assert seen == [(n, "opened", {"n": n}) for n in (1, 2, 3)]
    asked = [r.headers["last-event-id"] for r in coordinator.requests if r.url.path.endswith("/events")]
    assert asked == ["0", "2", "2"]


def test_events_of_an_unknown_run_are_refused() -> None:
    coordinator = Coordinator()
    coordinator.streams = iter([refusal("unknown-run", "There is no run x.")])
    with pytest.raises(ProblemError, match="no run x"):
        next(coordinator.client().events("x"))


def test_a_run_that_is_not_there_is_answered_with_similar_names() -> None:
    """Whatever is asked of a run: near names are of the runs that the caller sees."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/runs":
            return httpx2.Response(200, json=[{"run": name} for name in ("mnist", "mnist-2", "adult")])
        return refusal("unknown-run", "there is no run 'mnits'")

    with httpx2.Client(base_url="http://127.0.0.1:8470", transport=httpx2.MockTransport(answer)) as http:
        client = OperatorClient("http://127.0.0.1:8470", key="qk_x", http=http)
        for ask in (client.run, client.rounds, client.stop, client.checkpoints):
            with pytest.raises(ProblemError, match=r"there is no run 'mnits'; did you mean mnist or mnist-2\?"):
                ask("mnits")


@pytest.mark.parametrize(
    ("url", "error", "sentence"),
    [
        ("https://fl.test", httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] x"), "not trusted here.*--ca FILE"),
        ("https://fl.test", httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] x"), "There is no TLS at this port"),
        ("http://127.0.0.1:1", httpx2.RemoteProtocolError("disconnected"), "may speak https there"),
        ("http://127.0.0.1:1", httpx2.ConnectError("refused"), "Start it with 'quorate serve'"),
    ],
)
def test_why_a_coordinator_is_silent(url: str, error: httpx2.HTTPError, sentence: str) -> None:
    def silent(request: httpx2.Request) -> httpx2.Response:
        raise error

    with httpx2.Client(base_url=url, transport=httpx2.MockTransport(silent)) as http:
        with pytest.raises(ProblemError, match=sentence):
            OperatorClient(url, key="qk_x", http=http).runs()


def test_the_proxy_that_was_asked_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    said = why_silent("https://fl.test", httpx2.ConnectError("refused"))
    assert said.startswith("It was asked by the environment's proxy 127.0.0.1:1 ")
