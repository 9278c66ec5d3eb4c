"""Spans of OpenTelemetry. Only this module imports it; the extra ``otel`` brings it, and ``tracing`` decides about it.

One trace: the span of a request (kind *server*), of each event that it makes durable (*internal*), of each action that
follows, also later and in another thread, and so on. What follows from no request, such as a deadline, begins a trace
of its own.

Spans say which run, round, attempt, device or worker they are about, and of an error its type alone: messages and
tracebacks may hold what is secret. The ``traceparent`` of a request is not read: with it any device could put its
requests into the traces of others, or decide what is sampled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_sdk.extensions import installed_version
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.runtime import log_context
from coordinator.runtime.core import Task
from coordinator.runtime.tracing import NAMES, names_of
from coordinator.service.core import PROBES

_HINTS = (fx.Wake, fx.Offer)
"""Actions that are performed at once, where they are handed out."""
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


def sending_provider() -> TracerProvider:
    """A provider that sends its spans over OTLP, as the variables OTEL_... of the environment say. Its owner shuts it
    down."""
    named = Resource.create({"service.name": "quorate", "service.version": installed_version()})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class OtelTraces:
    """The traces of one coordinator. Safe from any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("quorate", installed_version())
        self._lock = threading.Lock()
        self._causes: dict[Task, Context] = {}
        """Actions that are to be performed -> the event that each follows from."""

    # ------------------------------------------------------------ requests

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, with a span for each of its requests but the probes."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in PROBES:
                await app(scope, receive, send)
                return
            method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
            status = 0

            async def seen(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            with self._span(method, {"http.request.method": method}, Context(), SpanKind.SERVER) as span:
                try:
                    await app(scope, receive, seen)
                finally:
                    _finish_request(span, method, getattr(scope.get("route"), "path", None), status)

        return traced

    # ------------------------------------------------------------ events and actions

    def cause(self) -> Context:
        return contexts.get_current()

    def batch(self, run: str) -> _OtelBatch:
        return _OtelBatch(self, run)

    @contextmanager
    def performing(self, run: str, action: fx.Action) -> Iterator[None]:
        task = (run, action)
        with self._lock:
            cause = self._causes.pop(task, None)
        try:
            with self._span(f"action {type(action).__name__}", _attributes(names_of(run, action)), cause or Context()):
                yield
        except BaseException:
            if cause is not None:
                self.follow(task, cause)
            raise

    def follow(self, task: Task, cause: Context) -> None:
        """Notes from which event an action follows, until it is performed."""
        with self._lock:
            self._causes[task] = cause

    def begun(self, name: str, attributes: Mapping[str, Any], cause: Context) -> Span:
        """Begins a span, which its owner ends."""
        return self._tracer.start_span(name, cause, attributes=dict(attributes))

    @contextmanager
    def _span(
        self, name: str, attributes: Mapping[str, Any], cause: Context, kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, cause, kind, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                _failed(span, type(error).__qualname__)
                raise


class _OtelBatch:
    """The spans of the events of one transaction. Those of one that fails are never ended, and so never sent."""

    def __init__(self, traces: OtelTraces, run: str) -> None:
        self._traces = traces
        self._run = run
        self._begun: list[tuple[Span, Context, Sequence[fx.Effect]]] = []

    def event(self, cause: object, event: ev.Event, round: int, effects: Sequence[fx.Effect]) -> None:
        names = {"round": round, **names_of(self._run, event)}
        parent = cause if isinstance(cause, Context) else Context()
        span = self._traces.begun(f"event {event.kind}", _attributes({**names, "kind": event.kind}), parent)
        self._begun.append((span, parent, effects))

    def durable(self) -> None:
        for span, parent, effects in self._begun:
            span.end()
            here = trace.set_span_in_context(span, parent)
            for effect in effects:
                if isinstance(effect, fx.Action) and not isinstance(effect, _HINTS):
                    self._traces.follow((self._run, effect), here)


def _attributes(names: Mapping[str, Any]) -> dict[str, Any]:
    return {f"quorate.{name}": value for name, value in names.items()}


def _finish_request(span: Span, method: str, route: str | None, status: int) -> None:
    known = log_context.names()
    span.set_attributes(_attributes({name: known[name] for name in NAMES if name in known}))
    if route is not None:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= 500:
        _failed(span, str(status))


def _failed(span: Span, type_: str) -> None:
    span.set_attribute("error.type", type_)
    span.set_status(StatusCode.ERROR)
