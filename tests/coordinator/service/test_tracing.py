"""Traces: one goes from the request over its event to the actions that follow, also in other threads."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from coordinator.access import LOCAL_OWNER
from coordinator.blobs import FileBlobs
from coordinator.blobs.port import DiskFull
from coordinator.runtime import driver
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.service import create_app
from coordinator.service.otel import OtelTraces
from coordinator.service.tracing import CannotTrace, wanted
from coordinator.settings import Settings
from coordinator.store import open_store
from tests.coordinator.certified import Certifier, key_of
from tests.coordinator.service.conftest import Server, launch
from tests.coordinator.service.devices import Device, Signing, model_bytes, plan
from tests.coordinator.service.test_rounds import until
from tests.rotating import on_day

TRACEPARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@dataclass
class Traced:
    """The real application in this process, under its lifespan, with spans in memory; requests are sent one by one."""

    runner: asyncio.Runner
    http: httpx2.AsyncClient
    spans: InMemorySpanExporter
    key: str
    coordinator: Coordinator
    authority: Certifier
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, method: str, url: str, **more: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.key}", **self.headers, **more.pop("headers", {})}
        return self.runner.run(self.http.request(method, url, headers=headers, **more))

    def get(self, url: str, **more: Any) -> httpx2.Response:
        return self.request("GET", url, **more)

    def post(self, url: str, **more: Any) -> httpx2.Response:
        return self.request("POST", url, **more)

    def put(self, url: str, **more: Any) -> httpx2.Response:
        return self.request("PUT", url, **more)

    def device(self, run: str, slot: int = 0) -> Device:
        """A registered device, whose requests come here."""
        auth, made = Signing(key_of(f"{run} {slot}")), Device.__new__(Device)
        made.certificate = self.authority.certificate(auth.key, at=time.time())
        made.id, made.auth, made.slot, made.learner = made.certificate.id, auth, slot, f"tests:{run}"
        made.http, made.headers = self, {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}  # type: ignore[assignment]
        self.coordinator.identities.register_device(made.certificate, examples=10)()
        return made

    def create_run(self, name: str, **more: Any) -> None:
        body, digest = model_bytes()
        self.put(Route.CHECKPOINT.format(digest=digest), content=body).raise_for_status()
        self.post(Route.RUNS, json={"plan": plan(name, **more), "init": digest}).raise_for_status()

    def work(self, device: Device) -> Any:
        """Work for this device as soon as there is some."""
        while True:
            work = device.check_in().json()
            if work["kind"] == "assignment":
                return device.wait_for_work(0)
            time.sleep(0.02)

    def finished(self, run: str) -> bool:
        return bool(self.get(f"/v1/runs/{run}").json()["status"] == "finished")

    def found(self, name: str, **attributes: Any) -> list[ReadableSpan]:
        """Spans of this name with these attributes, as far as they have ended."""
        wanted = {f"quorate.{key}": value for key, value in attributes.items()}
        return [
            span
            for span in self.spans.get_finished_spans()
            if span.name == name and wanted.items() <= dict(span.attributes or {}).items()
        ]

    def trace_of(self, span: ReadableSpan) -> dict[str, str | None]:
        """Name -> name of the parent, for the spans of its trace."""
        mine = [one for one in self.spans.get_finished_spans() if one.context.trace_id == span.context.trace_id]
        names = {one.context.span_id: one.name for one in mine}
        return {one.name: None if one.parent is None else names.get(one.parent.span_id, "lost") for one in mine}


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    chosen, authority = Settings(data=tmp_path), Certifier()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = OtelTraces(provider)
    store, blobs = open_store(chosen.database_url), FileBlobs(chosen.blobs_folder)
    coordinator = Coordinator(Core(store, blobs, settings=chosen, traces=traces), authority=authority.pinned())
    coordinator.identities.take_list(authority.list(time.time()))
    app = create_app(coordinator, chosen)
    app.add_middleware(traces.around)
    key = coordinator.access.keys.create(LOCAL_OWNER, CreateKey.model_validate({"role": "owner"})).text
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost", timeout=30)
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        try:
            yield Traced(runner, http, exporter, key, coordinator, authority)
        finally:
            runner.run(lifespan.__aexit__(None, None, None))
            store.close()


UPDATE = "PUT /v1/runs/{run}/rounds/{round}/attempts/{attempt}/update"


def test_one_trace_goes_from_the_last_update_to_the_commit(traced: Traced) -> None:
    traced.create_run("traced", select=2, goal=2, finish={"rounds": 1})
    devices = [traced.device("traced", slot) for slot in range(2)]
    for device in devices:
        device.check_in()
    for device in devices:
        work = traced.work(device)
        assert device.put(work, device.body(work)).status_code == 200
    until(lambda: traced.finished("traced"))
    until(lambda: bool(traced.found("action Commit")))

    (last,) = traced.found(UPDATE, device=devices[1].id)
    trace = traced.trace_of(last)
    assert trace.pop("action Discard", "event Committed") == "event Committed"
    assert trace == {
        UPDATE: None,
        "event Reported": UPDATE,
        "action Fold": "event Reported",
        "action Commit": "event Reported",
        "event Committed": "action Commit",
    }
    about = {"quorate.run": "traced", "quorate.round": 1}
    for name in trace:
        (span,) = [one for one in traced.found(name) if one.context.trace_id == last.context.trace_id]
        assert about.items() <= dict(span.attributes).items(), name
    (reported,) = traced.found("event Reported", device=devices[1].id)
    assert reported.attributes["quorate.kind"] == "Reported"
    assert reported.end_time is not None
    assert reported.end_time <= last.end_time, "it ended when it was durable, before the answer"
    assert last.attributes["http.response.status_code"] == 200
    (first,) = traced.found(UPDATE, device=devices[0].id)
    assert traced.trace_of(first) == {UPDATE: None, "event Reported": UPDATE, "action Fold": "event Reported"}


@pytest.mark.slow
def test_an_action_that_is_tried_again_stays_in_its_trace(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_RETRY_S", 0.0)
    full = threading.Event()
    write = traced.coordinator.core.blobs.spool

    def spool(limit: int | None = None) -> Any:
        if threading.current_thread().name.startswith("quorate-worker") and not full.is_set():
            full.set()
            raise DiskFull("a secret of the disk")
        return write(limit)

    traced.create_run("again", finish={"rounds": 1})
    device = traced.device("again")
    device.check_in()
    work = traced.work(device)
    monkeypatch.setattr(traced.coordinator.core.blobs, "spool", spool)
    device.put(work, device.body(work)).raise_for_status()
    until(lambda: traced.finished("again"))
    until(lambda: len(traced.found("action Commit")) == 2)
    failed, done = traced.found("action Commit")
    assert full.is_set()
    assert failed.context.trace_id == done.context.trace_id == traced.found(UPDATE)[0].context.trace_id
    assert failed.attributes["error.type"] == "DiskFull"
    assert (failed.status.is_ok, done.status.is_ok) == (False, True)
    assert "secret" not in failed.to_json(), "only the type of an error is told"


def test_no_request_chooses_its_trace_and_none_tells_a_secret(traced: Traced) -> None:
    traced.headers["traceparent"] = TRACEPARENT
    traced.create_run("chosen")
    device = traced.device("chosen")
    device.check_in()
    assert traced.get("/v1/runs?key=qk_planted").status_code == 200
    assert traced.get("/nowhere/qk_planted").status_code == 404
    traced.get("/healthz")
    spans = traced.spans.get_finished_spans()
    assert {"POST /v1/runs", "GET /v1/runs", "GET"} <= {span.name for span in spans}
    assert not any("healthz" in span.name for span in spans)
    assert all(f"{span.context.trace_id:032x}" != "ab" * 16 for span in spans)
    told = "".join(span.to_json() for span in spans)
    assert [secret for secret in (traced.key, "qk_planted", "Signature") if secret in told] == []


@pytest.mark.slow
def test_deadlines_begin_traces_of_their_own(traced: Traced) -> None:
    traced.create_run("late", cohort={"select_s": 0.05})
    until(lambda: any(draw.parent is None for draw in traced.found("action Draw", run="late")))


# ------------------------------------------------------------ what turns it on


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_the_environment_turns_it_on(environment: dict[str, str], found: str | None) -> None:
    assert wanted(environment) == found


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_what_cannot_be_done_is_refused(variable: str, value: str) -> None:
    with pytest.raises(CannotTrace, match=f"{variable}={value} is not supported"):
        wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", variable: value})


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # as where the extra is not installed
from quorate.__main__ import main
sys.exit(main())
"""


@on_day(1, of=2)
def test_without_the_extra_it_says_which_one_is_missing(tmp_path: Path) -> None:
    """And without the variables nothing of it is imported: the other tests' servers run so."""
    command = [sys.executable, "-c", WITHOUT, "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    asked = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces" in done.stderr
    assert "pip install 'quorate[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


@on_day(0, of=2)
def test_nothing_of_it_is_imported_unless_it_is_asked_for() -> None:
    program = "import coordinator.service.process, coordinator.commands.serve, sys; print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "coordinator.service.tracing" in done.stdout
    assert "opentelemetry" not in done.stdout


class Collector(BaseHTTPRequestHandler):
    """Receives spans over OTLP."""

    received: list[ExportTraceServiceRequest]
    seen_headers: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.seen_headers.append(self.headers.get("x-who", ""))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
def test_a_served_coordinator_sends_its_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = type("Handler", (Collector,), {"received": [], "seen_headers": []})
    collector = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-who=me")
    try:
        server = Server.start(tmp_path / "data")
        server.create_run("sent")
        assert server.stop() == 0
    finally:
        collector.shutdown()
        collector.server_close()
    resources = [part for batch in handler.received for part in batch.resource_spans]  # type: ignore[attr-defined]
    named = {one.key: one.value.string_value for one in resources[0].resource.attributes}
    assert named["service.name"] == "quorate"
    spans = [span for part in resources for scope in part.scope_spans for span in scope.spans]
    assert {"POST /v1/runs", "event Created"} <= {span.name for span in spans}
    assert set(handler.seen_headers) == {"me"}  # type: ignore[attr-defined]


@on_day(1, of=2)
def test_a_collector_that_is_away_neither_delays_answers_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20planted-for-the-collector")
    process = launch(tmp_path / "data")
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert httpx2.get(f"{ready['url']}/openapi.json").status_code == 200
    finally:
        process.terminate()
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "the collector did not take the last spans" in log, "it went on trying"
    assert "planted-for-the-collector" not in log
