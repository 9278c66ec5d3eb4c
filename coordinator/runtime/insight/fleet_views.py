"""The fleet as people see it: pages of devices, one device, counts by state, class and hour.

Nothing here is on a device's way. What is read of the whole fleet is kept for some seconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from client_sdk.credentials.certificate import Certificate
from client_sdk.protocol.devices import rounded_size, said_class
from client_sdk.protocol.insight import (
    CertificateView,
    ClassView,
    DeviceDetail,
    DeviceHourView,
    DeviceRound,
    FleetCounts,
    FleetView,
    HourView,
)
from client_sdk.protocol.names import Page, first_of
from client_sdk.protocol.operators import DeviceState, DeviceView
from client_sdk.protocol.problems import problem
from coordinator.engine.rounds import KINDS
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.flower.nodes import PRESENT_S, polls, said_by, serves_no_run
from coordinator.runtime.identities import Identities
from coordinator.runtime.shared_identities import Processes
from coordinator.store.flower_rows import FlowerMessageRow
from coordinator.store.insight import HOUR_S, HOURS, DeviceHours, Participation
from coordinator.store.paging import LOOKED_AT
from coordinator.store.port import ClaimRow, ClassRow, DeviceRow, Reader

NO_CLASS = "no class"
OTHERS = "other classes"
_KEPT_S = 10.0
"""Seconds for which the view of the whole fleet is kept."""
READ = 500
"""Devices that one request reads, about: where few of those that it reads pass its filter, and it wants no more."""
_CLASSES = 50
_SHARED = 50
_ROUNDS = 50

Sees = Callable[[str], bool]
"""Whether a run is in the caller's scope."""


def _any(run: str) -> bool:
    return True


def class_of(label: str) -> str:
    """The class that a label says, for people."""
    return said_class(label) or NO_CLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFilter:
    """Which devices are listed; what is None or empty lets all pass."""

    state: DeviceState | None = None
    device_class: str = ""
    seen_since: float | None = None
    q: str = ""
    """A part of the id or of the label, in whatever case."""
    sees: Sees | None = None
    """Devices that have an assignment of a run for which it is true."""

    def names(self, device: str, label: str) -> bool:
        """Whether a device of this id and label is named by it."""
        words = self.q.lower()
        return (not self.device_class or class_of(label) == self.device_class) and (
            not words or words in device.lower() or words in label.lower()
        )

    def lets_pass(self, view: DeviceView) -> bool:
        return (
            (self.state is None or view.state == self.state)
            and self.names(view.device, view.label)
            and (self.seen_since is None or (view.last_seen_at or 0.0) >= self.seen_since)
            and (self.sees is None or (view.run is not None and self.sees(view.run)))
        )


@dataclass(slots=True)
class _States:
    """What decides the states of some devices, read at once for all of them."""

    now: float
    waiting: set[str]
    unfit: dict[str, str]
    """Device -> why it fits no run."""
    claims: dict[str, ClaimRow] = field(default_factory=dict)
    messages: dict[str, FlowerMessageRow] = field(default_factory=dict)
    """The message of a Flower run that a device works on."""

    def of(self, row: DeviceRow) -> DeviceState:
        if row.left_at is not None:
            return "left"
        if row.device in self.claims or row.device in self.messages:
            return "assigned"
        if row.device in self.unfit:
            return "unfit"
        return "waiting" if row.device in self.waiting else "away"

    def view(self, row: DeviceRow) -> DeviceView:
        claim = self.claims.get(row.device) or self.messages.get(row.device)
        state = self.of(row)
        return DeviceView(
            device=row.device,
            label=row.label,
            examples_cap=rounded_size(row.examples_cap),
            enrolled_at=row.enrolled_at,
            last_seen_at=row.last_seen_at,
            state=state,
            unfit=self.unfit[row.device] if state == "unfit" else "",
            warning=Processes.of(row).warning(self.now),
            run=claim.run if claim else None,
            round=claim.round if claim else None,
            device_class=class_of(row.label),
            facts=cast("dict[str, str | int | float]", row.facts.get("said", {})),
        )


class _Search:
    """Looks for the devices that a filter lets pass, in order of id, in one reading of the store.

    The ids of all that may pass come from where the state that is wanted is stored: the claims, the pool, who was seen
    lately; otherwise from the index of ids with their labels. Their rows are then read and looked at. ``LOOKED_AT``
    bounds how many ids are read, ``READ`` how many rows, so that no question costs more with a larger fleet. Who sees
    some runs is told no id of another run's device: for them all claims are looked at, and the rows of their runs.
    """

    def __init__(self, core: Core, fleet: Fleet, reader: Reader, wanted: DeviceFilter) -> None:
        self._reader, self._wanted, self._fleet = reader, wanted, fleet
        self._now, self._runs = core.clock.now(), core.states()
        self._running = reader.flower_running()
        self._messages = {message.device: message for message in reader.flower_under_way(self._now)}

    def page(self, limit: int, after: str) -> Page[DeviceView]:
        """The next devices, ``limit`` at most."""
        found: list[DeviceView] = []
        ids, rows, size = float(LOOKED_AT), float(max(limit, READ)), limit + 1
        if self._wanted.sees is not None:
            ids = rows = math.inf
        while ids > 0:
            some, end = self._next(after, size)
            ids -= size
            size = int(min(4 * size, LOOKED_AT, ids))
            for at in range(0, len(some), limit + 1):
                part = some[at : at + limit + 1]
                found += filter(self._wanted.lets_pass, self.views(self._reader.devices_named(part)))
                if len(found) > limit:
                    return first_of(found, limit, lambda view: view.device)
                rows -= len(part)
                if rows <= 0 and part[-1] != some[-1]:
                    return Page(found, part[-1])
            if not end:
                return Page(found)
            after = end
            if rows <= 0:
                break
        return Page(found, after)

    def views(self, rows: Iterable[DeviceRow]) -> list[DeviceView]:
        """These devices, in order of id."""
        rows = sorted(rows, key=lambda row: row.device)
        names = [row.device for row in rows]
        pool = self._reader.waiting(self._now, names)
        unfit, waiting = self._fleet.unfit(self._reader, self._runs, pool, rows), {place.device for place in pool}
        for row in rows:
            if polls(row, self._now - PRESENT_S):
                if why := serves_no_run(self._running, said_by(row)):
                    unfit[row.device] = why
                else:
                    waiting.add(row.device)
        claims = {claim.device: claim for claim in self._reader.claims_of(names)}
        return [*map(_States(self._now, waiting, unfit, claims, self._messages).view, rows)]

    def _next(self, after: str, size: int) -> tuple[Sequence[str], str]:
        """Ids above this one, in order, among which are all that pass, up to the one with which the next ones begin;
        empty: there are no more. About ``size`` are read."""
        wanted, sources = self._wanted, list[tuple[Iterable[str], str]]()
        if wanted.state == "assigned" or wanted.sees is not None:
            claims, sees = self._reader.claims_after(after, size), wanted.sees or _any
            sources = [
                ([device for device, run in claims if sees(run)], claims[-1][0] if len(claims) == size else ""),
                ([device for device, message in self._messages.items() if sees(message.run)], ""),
            ]
        elif wanted.state in ("waiting", "unfit"):
            sources = [self._places(after, size, fit=wanted.state == "waiting"), *self._lately(after, size)]
        else:
            return self._labels(after, size)
        end = min((end for _, end in sources if end), default="")
        ids = sorted({one for some, _ in sources for one in some if after < one and (not end or one <= end)})
        if wanted.q or wanted.device_class:
            labels = self._reader.labels(ids)
            ids = [one for one in ids if wanted.names(one, labels.get(one, ""))]
        return ids, end

    def _labels(self, after: str, size: int) -> tuple[list[str], str]:
        wanted, rows = self._wanted, self._reader.device_labels(after, size)
        ids = [
            str(device)
            for device, label, left_at in rows
            if wanted.names(device, label) and (not wanted.state or (wanted.state == "left") == (left_at is not None))
        ]
        return ids, str(rows[-1][0]) if len(rows) == size else ""

    def _places(self, after: str, size: int, *, fit: bool) -> tuple[list[str], str]:
        """Of the pool, those that fit a run, or those that fit none."""
        rows, least = self._reader.places_after(after, size), self._fleet.fewest_of_any(self._runs)
        ids = [str(device) for device, examples, offer in rows if (examples >= least(offer)) == fit]
        return ids, str(rows[-1][0]) if len(rows) == size else ""

    def _lately(self, after: str, size: int) -> list[tuple[list[str], str]]:
        """Those that may be there without a place in the pool: nodes of Flower runs, and who comes back. Where these
        are many, they are found among all as soon."""
        found = [self._reader.flower_node_ids(LOOKED_AT)]
        if self._wanted.state == "unfit":
            found.append(self._reader.seen_lately(self._fleet.back_since(), LOOKED_AT))
        return [self._labels(after, size) if ids is None else (ids, "") for ids in found]


class FleetViews:
    """Safe from any thread."""

    def __init__(self, core: Core, fleet: Fleet, identities: Identities) -> None:
        self._core = core
        self._pool = fleet
        self._identities = identities
        self._lock = threading.Lock()
        self._kept: tuple[float, FleetView] | None = None
        self._counts: CostlyValue[FleetCounts] = CostlyValue(core.clock)

    def devices(self, limit: int = 1000, after: str = "", wanted: DeviceFilter | None = None) -> Page[DeviceView]:
        """Devices in order of id, after this one, that the filter lets pass."""
        wanted = wanted or DeviceFilter()
        with self._core.store.reading() as reader:
            found = _Search(self._core, self._pool, reader, wanted).page(limit, after)
            took_part = reader.participation([view.device for view in found], _in_scope(reader, wanted.sees))
        return Page((_with(view, took_part.get(view.device)) for view in found), found.next)

    def device(self, device: str, sees: Sees | None = None) -> DeviceDetail:
        """One device with its last rounds. With ``sees`` only rounds of runs for which it is true, and only of a device
        that has one, or has an assignment of such a run. ProblemError *unknown-device*."""
        with self._core.store.reading() as reader:
            row = reader.device(device)
            if row is None:
                raise _unknown(device)
            (view,) = _Search(self._core, self._pool, reader, DeviceFilter()).views([row])
            runs = _in_scope(reader, sees)
            rounds = _rounds(reader, device, runs)
            took_part = reader.participation([device], runs).get(device)
            hours = reader.device_hours(device)
        if sees is not None:
            if not rounds and (view.run is None or not sees(view.run)):
                raise _unknown(device)
            if view.run is not None and not sees(view.run):
                view = view.changed(state="away", run=None, round=None)
            if view.state == "unfit":
                view = view.changed(state="away", unfit="")
        return DeviceDetail(
            device=_with(view, took_part),
            certificate=self._certificate(row),
            rounds=rounds,
            availability=_by_hour(row, hours, int(self._core.clock.now() // HOUR_S)),
        )

    def _certificate(self, row: DeviceRow) -> CertificateView | None:
        if not row.certificate:
            return None
        certificate = Certificate.parse(bytes.fromhex(row.certificate))
        refusal = self._identities.refusal(certificate)
        return CertificateView(
            not_before=certificate.not_before,
            not_after=certificate.not_after,
            refused=refusal.kind if refusal else "",
            reason=refusal.problem.detail if refusal else "",
        )

    def counts(self) -> FleetCounts:
        """Cheap enough to be asked for every few seconds."""
        return self._counts.get(self._count)[0]

    def _count(self) -> FleetCounts:
        pool = self._pool.counts()
        with self._core.store.reading() as reader:
            now = self._core.clock.now()
            busy = {message.device for message in reader.flower_under_way(now)}
            idle, unserving = _nodes(reader, now)
            held = self._pool.unfit_in_pool(self._core.states(), pool)
            waiting = sum(pool.by_offer.values()) - held + len(idle - busy)
            unfit = held + len(self._pool.unfit(reader, self._core.states(), ())) + len(unserving.keys() - busy)
            assigned = reader.claims_count() + len(busy)
            registered = reader.registered_devices()
        away = max(0, registered - waiting - assigned - unfit)
        return FleetCounts(waiting=waiting, unfit=unfit, assigned=assigned, away=away)

    def fleet(self) -> FleetView:
        """The whole fleet in numbers, at most 10 s old."""
        now = self._core.clock.now()
        with self._lock:
            if self._kept is None or not 0 <= now - self._kept[0] < _KEPT_S:
                self._kept = (now, self._fleet(now))
            return self._kept[1]

    def note_hours(self) -> None:
        """Notes how many devices were seen in the hour under way, and which. Called every half minute while the process
        serves: what checks in between the last note of an hour and its end is missing in it."""
        hour = int(self._core.clock.now() // HOUR_S)
        seen = self._core.store.seen_since(hour * HOUR_S)
        if seen != self._core.store.seen_by_hour(hour).get(hour):
            with self._core.store.transaction() as tx:
                tx.put_hour(hour, seen)
                tx.note_device_hours(hour)
                tx.drop_hours(hour - 2 * HOURS)

    def _fleet(self, now: float) -> FleetView:
        counts = self.counts()
        with self._core.store.reading() as reader:
            everybody, classes = reader.all_classes(), reader.device_classes(_CLASSES)
            hour = int(now // HOUR_S)
            shared = self._pool.shared_identities(reader)
            seen = reader.seen_by_hour(hour - HOURS + 1)
            seen[hour] = max(seen.get(hour, 0), reader.seen_since(hour * HOUR_S))
        return FleetView(
            by_state={**counts.model_dump(), "left": everybody.left},
            by_class=_classes(classes, everybody),
            shared_identities=shared[:_SHARED],
            availability=[
                HourView(from_at=one * HOUR_S, devices=seen.get(one, 0)) for one in range(hour - HOURS + 1, hour + 1)
            ],
        )


def _nodes(reader: Reader, now: float) -> tuple[set[str], dict[str, str]]:
    """The devices that are there for Flower runs; and of those that can serve none that goes on, why."""
    running, idle, unserving = reader.flower_running(), set[str](), dict[str, str]()
    for node in reader.flower_nodes(now - PRESENT_S):
        why = serves_no_run(running, said_by(node))
        if why:
            unserving[node.device] = why
        else:
            idle.add(node.device)
    return idle, unserving


def _by_hour(row: DeviceRow, noted: DeviceHours, now: int) -> list[DeviceHourView]:
    """The last 24 hours. What was not noted yet follows from when it was last seen."""
    last = int((row.last_seen_at or 0.0) // HOUR_S)
    hours = range(now - HOURS + 1, now + 1)
    return [DeviceHourView(from_at=hour * HOUR_S, seen=hour in noted or hour == last) for hour in hours]


def _classes(found: Sequence[ClassRow], everybody: ClassRow) -> list[ClassView]:
    views = [_class_view(row.device_class, row.devices, row.rounds, row.heard) for row in named(found)]
    views.sort(key=lambda view: (-view.devices, view.device_class))
    others = [
        getattr(everybody, number) - sum(getattr(row, number) for row in found)
        for number in ("devices", "rounds", "heard")
    ]
    return [*views, *([_class_view(OTHERS, *others)] if others[0] else [])]


def named(found: Iterable[ClassRow]) -> list[ClassRow]:
    """The classes by their names for people: a label may say the one of those that say none, too."""
    classes: dict[str, ClassRow] = {}
    for row in found:
        name = row.device_class or NO_CLASS
        has = classes.get(name, ClassRow(device_class=name))
        more = {number: getattr(has, number) + getattr(row, number) for number in ("devices", "heard", "rounds")}
        classes[name] = replace(has, **more)
    return [*classes.values()]


def _class_view(name: str, devices: int, rounds: int, heard: int) -> ClassView:
    return ClassView(device_class=name, devices=devices, rounds_joined=rounds, never_heard=devices - heard)


def _in_scope(reader: Reader, sees: Sees | None) -> list[str] | None:
    """The runs that are seen; None: all."""
    return None if sees is None else list(filter(sees, reader.run_ids()))


def _rounds(reader: Reader, device: str, runs: list[str] | None) -> list[DeviceRound]:
    """Its rounds that counted and those that were refused, newest first. Of a round that was never opened nothing but
    the refusal is known."""
    rounds = []
    for row in reader.counted_in(device, _ROUNDS, runs):
        found = reader.round(row.run, row.round)
        at, secure = (found.closed_at, KINDS[found.kind].masked) if found is not None else (None, False)
        rounds.append(
            DeviceRound(run=row.run, round=row.round, at=at, result="counted", version=row.version, secure=secure)
        )
    for refusal in reader.refused_in(device, _ROUNDS, runs):
        if refusal.kind != "abandoned":
            found = reader.round(refusal.run, refusal.round)
            rounds.append(
                DeviceRound(
                    run=refusal.run,
                    round=refusal.round,
                    at=refusal.at,
                    result="late" if refusal.kind == "late" else "refused",
                    reason=refusal.reason,
                    secure=found is not None and KINDS[found.kind].masked,
                )
            )
    return sorted(rounds, key=lambda one: -(one.at or 0.0))


def _with(view: DeviceView, took_part: Participation | None) -> DeviceView:
    if took_part is None:
        return view
    return view.changed(rounds_joined=took_part.rounds, refusals=took_part.refusals)


def _unknown(device: str) -> Exception:
    return problem("unknown-device", f"there is no device {device} here, or none in your scope")
