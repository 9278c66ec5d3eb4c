"""A coordinator of one run that answers operators from memory, without a socket."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import numpy as np

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.operators import MetricReport
from client_sdk.protocol.problems import problem
from client_sdk.tensors import to_bytes

URL = "https://coordinator.test"
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
