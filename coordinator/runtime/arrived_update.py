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
    score = report.held_out
    share = min(1.0, most / score.examples) if score else 1.0
    """Of its held-out examples those that the device may claim."""
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
        held_out=dict(score.metrics) if score else {},
        held_out_examples=min(score.examples, most) if score else 0,
        held_out_weights={name: weight * share for name, weight in score.weights.items()} if score else {},
        held_out_states={name: [one * share for one in state] for name, state in score.states.items()} if score else {},
        seconds=(report.fetch_s, report.train_s, report.encode_s),
        treated=replace(arrived.treated, capped=report.examples > most),
    )
