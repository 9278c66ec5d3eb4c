"""Whether this process sends traces: OpenTelemetry's own variables of the environment decide.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``) turns it on; ``OTEL_SDK_DISABLED=true`` and
``OTEL_TRACES_EXPORTER=none`` turn it off. Without an endpoint nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from coordinator.service.otel import OtelTraces

log = structlog.get_logger("coordinator.service")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_END_S = 3.0
"""Longest time in seconds that the last spans delay the end of the process. The exporter itself would try for 10 s."""


class CannotTrace(ValueError):
    """The environment asks for traces that this process cannot send; the message is one sentence with the fix."""


def wanted(environment: Mapping[str, str]) -> str | None:
    """Returns the variable that asks for traces; None where they are off. CannotTrace."""
    asked = next((name for name in _ENDPOINTS if environment.get(name, "").strip()), None)
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if asked is None or disabled or exporter == "none":
        return None
    if exporter != "otlp":
        raise CannotTrace(f"OTEL_TRACES_EXPORTER={exporter} is not supported: leave it out, which means otlp, or none.")
    for name in _PROTOCOLS:
        spoken = environment.get(name, "").strip() or _PROTOCOL
        if spoken != _PROTOCOL:
            raise CannotTrace(f"{name}={spoken} is not supported: traces are sent as {_PROTOCOL}.")
    return asked


@contextmanager
def traces_of_process() -> Iterator[OtelTraces | None]:
    """The traces that the environment asks for, sent until the end of the block; None where it asks for none.
    CannotTrace."""
    asked = wanted(os.environ)
    if asked is None:
        yield None
        return
    try:
        from coordinator.service.otel import OtelTraces, sending_provider
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise CannotTrace(
            f"{asked} asks for traces, and the extra that sends them is missing: "
            "`pip install 'quorate[otel]'`, or unset it."
        ) from None
    provider = sending_provider()
    try:
        yield OtelTraces(provider)
    finally:
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_END_S)
        if ending.is_alive():
            log.warning("the collector did not take the last spans", waited_s=_END_S)
