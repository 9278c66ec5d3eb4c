"""The operator's client and the evaluator against answers from memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk import evaluator
from client_sdk.operator import OperatorClient
from client_sdk.operator_protocol import MetricReport
from client_sdk.problems import ProblemError, problem
from client_sdk.protocol import Score, read_content_digest
from client_sdk.tensors import Tensors, from_bytes, to_bytes

URL = "http://coordinator.test"
BODY = to_bytes({"w": np.arange(3, dtype=np.float32)})
DIGEST = hashlib.sha256(BODY).hexdigest()


class Coordinator:
    """Answers from memory; ``line`` are the versions of the one run."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.line: list[bytes] = [BODY]
        self.status = "running"
        self.metrics: list[MetricReport] = []
        self.streams: Iterator[Any] = iter([])
        self.trouble: Callable[[httpx2.Request], httpx2.Response | None] = lambda request: None
        self.seq = 0

    def client(self) -> OperatorClient:
        return OperatorClient(URL, http=httpx2.Client(base_url=URL, transport=httpx2.MockTransport(self.answer)))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        trouble = self.trouble(request)
        if trouble is not None:
            return trouble
        path = request.url.path
        if path.startswith("/v1/checkpoints/"):
            if request.method == "PUT":
                return httpx2.Response(201, json={})
            body = next((one for one in self.line if path.endswith(hashlib.sha256(one).hexdigest())), None)
            return httpx2.Response(200, content=body) if body is not None else refusal("unknown-checkpoint", "Gone.")
        if path.endswith("/events"):
            stream: httpx2.Response = next(self.streams)
            return stream
        if path.endswith("/metrics"):
            if request.method == "POST":
                self.metrics.append(MetricReport.model_validate_json(request.content))
            return httpx2.Response(200, json=[self.metric(report) for report in self.metrics])
        if path.endswith("/checkpoints"):
            return httpx2.Response(200, json=[self.checkpoint(version) for version in range(len(self.line))])
        if path == "/v1/runs" and request.method == "GET":
            return httpx2.Response(200, json=[self.run()])
        return httpx2.Response(200, json=self.run())

    def run(self) -> dict[str, Any]:
        return {
            "run": "run-1",
            "name": "mnist",
            "status": self.status,
            "reason": "",
            "phase": "idle",
            "round": 0,
            "version": len(self.line) - 1,
            "checkpoint": hashlib.sha256(self.line[-1]).hexdigest(),
            "rounds_committed": 0,
            "rounds_wanted": 3,
            "plan": {"task": {"learner": "a:b"}},
            "plan_digest": "ab" * 32,
            "origin": "",
            "created_at": 1.0,
            "seq": self.seq,
            "funnel": {},
        }

    def checkpoint(self, version: int) -> dict[str, Any]:
        return {
            "version": version,
            "digest": hashlib.sha256(self.line[version]).hexdigest(),
            "parent": None,
            "round": None,
            "origin": "",
            "bytes": len(self.line[version]),
            "created_at": 1.0,
        }

    @staticmethod
    def metric(report: MetricReport) -> dict[str, Any]:
        ((name, value),) = report.score.metrics.items()
        return {
            "version": report.version,
            "source": report.source,
            "name": name,
            "value": value,
            "examples": report.score.examples,
            "at": 1.0,
        }


def refusal(kind: str, detail: str) -> httpx2.Response:
    found = problem(kind, detail).problem
    return httpx2.Response(found.status, content=found.model_dump_json())


def frames(*seqs: int) -> httpx2.Response:
    body = "retry: 2000\n\n: still here\n\n"
    for seq in seqs:
        event = {"seq": seq, "at": 1.0, "kind": "opened", "body": {"n": seq}}
        body += f"id: {seq}\nevent: opened\ndata: {json.dumps(event)}\n\n"
    return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_sdk.operator.time.sleep", lambda seconds: None)


def test_every_request_says_the_protocols_version() -> None:
    coordinator = Coordinator()
    client = coordinator.client()
    assert client.create_run({"name": "mnist"}, DIGEST, "by hand").run == "run-1"
    assert [view.run for view in client.runs()] == ["run-1"]
    for act in (client.pause, client.resume, client.stop):
        assert act("run-1").run == "run-1"
    assert {request.headers["quorate-protocol"] for request in coordinator.requests} == {"1"}
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


def test_an_answer_of_something_else_is_told() -> None:
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


# ------------------------------------------------------------ evaluator


def score(model: Tensors) -> Score:
    return Score(examples=10, metrics={"sum": float(model["w"].sum())})


def test_each_checkpoint_is_scored_once_as_it_comes_until_the_run_ends() -> None:
    coordinator = Coordinator()
    more = [to_bytes({"w": np.full(3, n, np.float32)}) for n in (5, 6, 7)]
    told: list[tuple[int, float]] = []

    def grow(checkpoint: Any, found: Score) -> None:
        told.append((checkpoint.version, found.metrics["sum"]))
        if more:
            coordinator.line.append(more.pop(0))
        else:
            coordinator.status = "finished"

    view = evaluator.follow(coordinator.client(), "run-1", score, source="test", on_score=grow, poll_s=0)
    assert view.status == "finished"
    assert told == [(0, 3.0), (1, 15.0), (2, 18.0), (3, 21.0)]
    assert [(report.version, report.source, report.digest) for report in coordinator.metrics] == [
        (version, "test", hashlib.sha256(body).hexdigest()) for version, body in enumerate(coordinator.line)
    ]


def test_what_this_source_scored_before_is_left_out() -> None:
    coordinator = Coordinator()
    coordinator.line.append(to_bytes({"w": np.ones(3, np.float32)}))
    coordinator.status = "stopped"
    coordinator.metrics = [
        MetricReport(version=0, digest=DIGEST, source="test", score=Score(examples=1, metrics={"sum": 3.0})),
        MetricReport(version=1, digest=DIGEST, source="other", score=Score(examples=1, metrics={"sum": 3.0})),
    ]
    evaluator.follow(coordinator.client(), "run-1", score, source="test", poll_s=0)
    assert [(report.version, report.source) for report in coordinator.metrics[2:]] == [(1, "test")]


def test_trouble_is_told_once_and_waited_out() -> None:
    coordinator = Coordinator()
    coordinator.status = "finished"
    troubles = iter([refusal("busy", "Full.")] * 3)
    coordinator.trouble = lambda request: next(troubles, None)
    told: list[str] = []
    evaluator.follow(coordinator.client(), "run-1", score, on_trouble=told.append, poll_s=0)
    assert told == ["Full."]
    assert len(coordinator.metrics) == 1


def test_a_refusal_ends_the_evaluation() -> None:
    coordinator = Coordinator()
    coordinator.trouble = lambda request: refusal("unknown-run", "There is no run x.")
    with pytest.raises(ProblemError, match="no run x"):
        evaluator.follow(coordinator.client(), "x", score, poll_s=0)


def test_stop_ends_it_between_two_checkpoints() -> None:
    coordinator = Coordinator()
    coordinator.line += [to_bytes({"w": np.full(3, n, np.float32)}) for n in (1, 2)]
    stop = threading.Event()
    evaluator.follow(coordinator.client(), "run-1", score, on_score=lambda *_: stop.set(), stop=stop, poll_s=0)
    assert len(coordinator.metrics) == 1
    assert from_bytes(coordinator.line[0])["w"].sum() == 3
