"""Summarises a run from the operators' views, with one line for each round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from client_sdk.protocol.operators import MetricView, RoundView, RunView, SecureView

METRIC = "accuracy"
SOURCE = "evaluator"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One round."""

    round: int
    status: str
    """open, committed or abandoned."""
    reason: str
    waiting: int
    """Devices in the pool when the cohort was drawn."""
    selected: int
    training: int
    """Devices that reported a start of training."""
    collected: int
    """Updates in the sum: of a secure round, devices whose masked update came."""
    late: int
    """Reports that came after the round had closed, and were refused."""
    dropped: int
    """Devices without any report."""
    withdrawn: int
    seconds: float | None
    """From its opening to the commit; None while it is open."""
    bytes_in: int
    version: int | None
    accuracy: float | None
    """Accuracy of the round's checkpoint, from 0 to 1; None while it is not scored."""
    secure: SecureView | None = None
    """The exchanges of a secure round."""

    def came(self, exchange: str) -> int:
        """Devices of a secure round that have sent their message of this exchange."""
        exchanges = self.secure.exchanges if self.secure is not None else ()
        return sum(found.came for found in exchanges if found.exchange == exchange)

    def needed(self, exchange: str) -> int | None:
        """The fewest with which a secure round goes on; None where the exchange has not begun."""
        exchanges = self.secure.exchanges if self.secure is not None else ()
        return next((found.needed for found in exchanges if found.exchange == exchange), None)

    def report(self) -> dict[str, Any]:
        """What the file that ``DEMO_JSON`` names gets of this round."""
        body: dict[str, Any] = {
            "round": self.round,
            "selected": self.selected,
            "collected": self.collected,
            "late": self.late,
            "dropped": self.dropped,
            "accuracy": None if self.accuracy is None else round(self.accuracy, 6),
        }
        if self.secure is not None:
            body["exchanges"] = {found.exchange: found.came for found in self.secure.exchanges}
        return body


@dataclass(frozen=True, kw_only=True)
class Journal:
    """A run as it stands."""

    run: RunView
    lines: tuple[Line, ...]

    @property
    def over(self) -> bool:
        return self.run.over

    @property
    def committed(self) -> list[Line]:
        return [line for line in self.lines if line.status == "committed"]

    @property
    def scored(self) -> bool:
        """Whether every committed round has its accuracy."""
        return all(line.accuracy is not None for line in self.committed)


def read(run: RunView, rounds: Iterable[RoundView], metrics: Iterable[MetricView]) -> Journal:
    """The journal of these views."""
    scores = {metric.version: metric.value for metric in metrics if (metric.source, metric.name) == (SOURCE, METRIC)}
    return Journal(run=run, lines=tuple(_line(view, scores) for view in rounds))


def _line(view: RoundView, scores: dict[int, float]) -> Line:
    funnel, secure = view.funnel, view.secure
    masked = [found.came for found in secure.exchanges if found.exchange == "mask"] if secure is not None else []
    return Line(
        round=view.round,
        status=view.status,
        reason=view.reason,
        waiting=funnel.waiting,
        selected=funnel.selected,
        training=funnel.training,
        collected=funnel.reported if secure is None else sum(masked),
        late=funnel.late,
        dropped=funnel.dropped,
        withdrawn=funnel.withdrawn + funnel.refused,
        seconds=None if view.status == "open" or view.closed_at is None else view.closed_at - view.opened_at,
        bytes_in=view.bytes_in,
        version=view.version,
        accuracy=None if view.version is None else scores.get(view.version),
        secure=secure,
    )
