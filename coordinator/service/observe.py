"""Meters for Prometheus: requests, refusals, rounds, waiting devices, bytes and latencies.

There is one registry per service, so that two in one process do not mix. The lists of runs and rounds of the
coordinator are read when the meters are scraped.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from client_sdk.protocol.insight import GroupRequests
from client_sdk.protocol.problems import Problem
from coordinator.requests import Entry, Held, Shape
from coordinator.runtime.views import missed_of

if TYPE_CHECKING:
    from coordinator.runtime.coordinator import Coordinator

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PAGE = 1000
_OUTCOMES = ("reported", "withdrawn", "late", "dropped", "refused")
"""Stages of the funnel; each selected device of a round that ended is in one. Those of a secure round whose keys came
are *reported*, also where they vanished later: the round's own row says that."""


class Meters:
    """All meters of one service."""

    def __init__(self, coordinator: Coordinator | None) -> None:
        """``coordinator``: whose rounds are counted; None where the service has none."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "quorate_requests", "Requests answered", ["route", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "quorate_request_seconds",
            "From a request's first byte to the last of its answer; held check-ins included",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.problems = Counter("quorate_problems", "Requests refused, by kind", ["kind"], registry=self.registry)
        self.bytes_in = Counter("quorate_received_bytes", "Bytes of request bodies", registry=self.registry)
        self.bytes_out = Counter("quorate_sent_bytes", "Bytes of response bodies", registry=self.registry)
        self.held = Gauge("quorate_held_check_ins", "Check-ins held open by this process now", registry=self.registry)
        self.streams = Gauge("quorate_event_streams", "Event streams open now", registry=self.registry)
        self.uploads = Gauge("quorate_uploads", "Bodies being received now", registry=self.registry)
        self.viewers = Gauge("quorate_stream_viewers", "Viewers of the stream of all runs now", registry=self.registry)
        self.times = RequestTimes(_SECONDS)
        self._runs: Callable[[Callable[[str], bool] | None], Collector] | None = None
        if coordinator is not None:
            self._runs = partial(_OfRuns, coordinator, RoundCounts(coordinator))
            self.registry.register(self._runs(None))
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, seconds: float, bytes_out: int) -> None:
        """Counts one answered request. ``route`` is the template, so that labels stay few."""
        key = (route, method, status)
        found = self._children.get(key)
        if found is None:
            found = (self.requests.labels(route, method, str(status)), self.seconds.labels(route))
            self._children[key] = found
        self.times.note(method, route, status, seconds)
        found[0].inc()
        found[1].observe(seconds)
        if bytes_out:
            self.bytes_out.inc(bytes_out)

    def refused(self, found: Problem) -> None:
        """Counts one refusal by its kind; those without a kind by their status."""
        self.problems.labels(found.kind if found.type != "about:blank" else f"http-{found.status}").inc()

    def text(self, sees: Callable[[str], bool] | None = None) -> bytes:
        """The exposition format; with ``sees`` only what concerns runs for which it is true. Reads the store: call it
        in a thread."""
        if sees is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        if self._runs is not None:
            registry.register(self._runs(sees))
        return generate_latest(registry)


class RoundCounts:
    """Counts ended rounds of each run by outcome, from the stored rounds: correct after a restart too, and with several
    replicas. Of a run that is over nothing is read again."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._lock = threading.Lock()
        self._ended: dict[str, Count[tuple[str, str]]] = {}
        self._devices: dict[str, Count[str]] = {}
        self._missed: Count[str] = Count()
        self._counted_to: dict[str, int] = {}
        self._over: dict[str, str] = {}
        """The status of each run that was over when its rounds were counted."""

    def of(self, sees: Callable[[str], bool]) -> tuple[Count[tuple[str, str]], Count[str], int, Count[str]]:
        """Rounds by (outcome, kind), their devices by outcome, and selections that found too few devices, those of
        rounds under way included, of the runs for which ``sees`` is true; and these by status. Without those whose own
        rows cannot be read, which is noted."""
        ended: Count[tuple[str, str]] = Count()
        devices = Count(dict.fromkeys(_OUTCOMES, 0))
        missed, statuses = 0, Count[str]()
        with self._lock:
            for run in filter(sees, self._coordinator.operators.run_ids()):
                status = self._over.get(run)
                if status is None:
                    try:
                        view = self._coordinator.operators.run(run)
                    except ValueError as error:
                        self._coordinator.core.process.run_errors.note(run, error)
                        continue
                    status = view.status
                    missed += self._count(run)
                    if view.over:
                        self._over[run] = status
                else:
                    missed += self._missed[run]
                statuses[status] += 1
                ended.update(self._ended[run])
                devices.update(self._devices[run])
        return ended, devices, missed, statuses

    def _count(self, run: str) -> int:
        """Counts the rounds that ended since. Returns the missed selections."""
        ended = self._ended.setdefault(run, Count())
        devices = self._devices.setdefault(run, Count())
        while True:
            page = self._coordinator.operators.ended_rounds(run, self._counted_to.get(run, 0), _PAGE)
            for row in page:
                self._counted_to[run] = row.round
                ended[row.status, row.kind] += 1
                self._missed[run] += row.missed
                for outcome in _OUTCOMES:
                    devices[outcome] += getattr(row.funnel, outcome)
            if len(page) < _PAGE:
                break
        under_way = self._coordinator.core.store.round(run, self._counted_to.get(run, 0) + 1)
        return self._missed[run] + (0 if under_way is None else missed_of(under_way))


class _OfRuns(Collector):
    """The meters of runs: of all of them and of the pool that they share, or of those in a caller's scope."""

    def __init__(self, coordinator: Coordinator, counts: RoundCounts, sees: Callable[[str], bool] | None) -> None:
        self._coordinator = coordinator
        self._counts = counts
        self._sees = sees

    def describe(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily("quorate_rounds", "Rounds that ended")]

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        ended, by_outcome, missed, statuses = self._counts.of(self._sees or (lambda run: True))
        rounds = CounterMetricFamily("quorate_rounds", "Rounds that ended", labels=["outcome", "kind"])
        for labels, count in sorted(ended.items()):
            rounds.add_metric(labels, count)
        yield rounds
        yield CounterMetricFamily(
            "quorate_missed_selections",
            "Selections of rounds that found too few devices when their time was over",
            value=missed,
        )
        devices = CounterMetricFamily(
            "quorate_round_devices",
            "Selected devices of rounds that ended, by what became of them",
            labels=["outcome"],
        )
        for outcome in _OUTCOMES:
            devices.add_metric([outcome], by_outcome[outcome])
        yield devices
        runs = GaugeMetricFamily("quorate_runs", "Runs by status", labels=["status"])
        for status, count in sorted(statuses.items()):
            runs.add_metric([status], count)
        yield runs
        waiting = self._coordinator.healthy().get("waiting") if self._sees is None else None
        if isinstance(waiting, int):
            yield GaugeMetricFamily("quorate_waiting_devices", "Devices in the pool, of all replicas", value=waiting)


# ------------------------------------------------------------ times of requests
# Held requests are counted and not timed: they last as long as their hold. Times fall into the buckets of the meters;
# those of two intervals are kept, the one under way and the one before it. One call costs about a microsecond.

_INTERVAL_S = 300.0
HELD = "held"
OTHER = "other"


@dataclass(slots=True)
class _Group:
    count: int = 0
    refused: int = 0
    errors: int = 0
    now: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


class RequestTimes:
    """How many requests of each group were answered, and how long that took lately: what ``/v1/system`` shows.
    ``bounds``: the upper bounds of the buckets, in seconds; a last one is above them all."""

    def __init__(self, bounds: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = tuple(bounds)
        self._clock = clock
        self._lock = threading.Lock()
        self._group_of: dict[tuple[str, str], str] = {}
        self._groups: dict[str, _Group] = {}
        self._began = clock()

    def know(self, entries: Iterable[Entry[Shape]]) -> None:
        """Names the groups of these requests; all others are *other*."""
        for entry in entries:
            self._group_of[entry.method, str(entry.route)] = HELD if isinstance(entry.shape, Held) else entry.group

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        name = self._group_of.get((method, route), OTHER)
        with self._lock:
            self._turn()
            group = self._groups.get(name) or self._groups.setdefault(name, self._empty())
            group.count += 1
            group.refused += 400 <= status < 500
            group.errors += status >= 500
            if name != HELD:
                group.now[bisect_left(self._bounds, seconds)] += 1

    def view(self) -> list[GroupRequests]:
        """By name of the group."""
        with self._lock:
            self._turn()
            return [self._shown(name, group) for name, group in sorted(self._groups.items())]

    def _shown(self, name: str, group: _Group) -> GroupRequests:
        counts = [new + old for new, old in zip(group.now, group.before, strict=True)]
        return GroupRequests(
            group=name,
            count=group.count,
            refused=group.refused,
            errors=group.errors,
            p50_s=quantile(self._bounds, counts, 0.5),
            p95_s=quantile(self._bounds, counts, 0.95),
        )

    def _empty(self) -> _Group:
        return _Group(now=[0] * (len(self._bounds) + 1), before=[0] * (len(self._bounds) + 1))

    def _turn(self) -> None:
        """Begins a new interval where the one under way is over."""
        passed = self._clock() - self._began
        if passed < _INTERVAL_S:
            return
        for group in self._groups.values():
            group.before = group.now if passed < 2 * _INTERVAL_S else [0] * len(group.now)
            group.now = [0] * len(group.before)
        self._began = self._clock()


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which this share of the observations lies, between the bounds of its bucket in proportion; the
    highest bound for what is above them all. None: there are no observations."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below, low = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return bounds[-1]
