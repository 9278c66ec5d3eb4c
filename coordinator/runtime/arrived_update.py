"""An update that has arrived and is valid, and the event that counts it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from client_sdk.protocol.devices import UpdateReport
from coordinator.engine import events as ev
from coordinator.engine.treatment import UNTREATED, Treated
from coordinator.store.port import DeviceRow


@dataclass(frozen=True, slots=True)
class ArrivedUpdate:
    """A validated update with its device."""

    device: DeviceRow
    report: UpdateReport
    digest: str
    size: int
    at: float | None = None
    """Unix time of its arrival in seconds; None: now."""
    treated: Treated = UNTREATED


def reported_event(arrived: ArrivedUpdate, at: float) -> ev.Reported:
    report, most = arrived.report, arrived.device.examples_cap
    return ev.Reported(
        at=at,
        round=report.round,
        attempt=report.attempt,
        device=arrived.device.device,
        digest=arrived.digest,
        bytes=arrived.size,
        examples=min(report.examples, most),
        steps=report.work.steps,
        steps_planned=report.work.steps_planned,
        complete=report.work.complete,
        metrics=dict(report.metrics),
        held_out=dict(report.held_out.metrics) if report.held_out else {},
        held_out_examples=min(report.held_out.examples, most) if report.held_out else 0,
        seconds=(report.fetch_s, report.train_s, report.encode_s),
        treated=replace(arrived.treated, capped=report.examples > most),
    )
