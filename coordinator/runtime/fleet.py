"""The fleet: which devices wait, and why others get no work. All runs share the waiting devices.

Check-ins that arrive together are written in one transaction, each with what the device said of itself, so that every
replica can say why a device fits no run. Cohorts are drawn in ``drawing``.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from client_sdk.protocol.devices import CheckIn, DeviceFacts, Wait
from coordinator.engine.eligibility import fewest_examples, offer_of, reason_against, rests, withstands_too_few
from coordinator.engine.reasons import grouped, printable
from coordinator.engine.state import RunState
from coordinator.group_commit import GroupCommit
from coordinator.runtime.clock import CostlyValue
from coordinator.runtime.core import Core
from coordinator.runtime.marks import Why, helped_by_another_model, unspendable
from coordinator.runtime.privacy_ledgers import kept_out
from coordinator.runtime.shared_identities import FORGOTTEN_S, Processes
from coordinator.runtime.waiting_pool import Eligible
from coordinator.store.port import DeviceRow, Json, Reader, StoreError, WaitingRow

_HELD_WAIT_S = (0.0, 1.0)
"""Seconds until the next check-in after a hold has expired: a device that checks in at once stays in the pool."""
_REASON = 1500
"""Characters of why a device fits no run, which names each run."""
_MOST = 50_000
"""The most devices whose processes are in memory; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """A device's place in the pool by one of its check-ins. A later check-in takes the place over."""

    device: str
    expires: float


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A check-in. ``waits``: it gets a place in the pool."""

    device: DeviceRow
    process: str
    facts: DeviceFacts
    row: WaitingRow
    waits: bool


class Counts(NamedTuple):
    by_offer: dict[str, int]
    again_s: float
    """Seconds until they are counted again; 0: they are of now."""


class Fleet:
    def __init__(self, core: Core) -> None:
        self._store, self._clock, self._signals, self._settings = core.store, core.clock, core.signals, core.settings
        self._processes, self._going = core.process.processes, core.process.going
        self.pool = core.process.pool
        self._counts: CostlyValue[dict[str, int]] = CostlyValue(core.clock)
        self._eligible: dict[str, CostlyValue[int]] = {}
        """Of each run."""
        self._shared: CostlyValue[list[str]] = CostlyValue(core.clock)
        self.arrivals: GroupCommit[_Arrival, None] = GroupCommit(self._write_arrivals, pauses=0)

    # ------------------------------------------------------------ waiting

    def wait(self, device: DeviceRow, check_in: CheckIn) -> Callable[[], PoolPlace]:
        """Queues the device for the pool, in which it stays until its hold, and some time for its next check-in, have
        passed. The function that it returns makes durable what is queued.

        ``check_in.examples`` is already capped.
        """
        arrival = self._arrival(device, check_in)
        entered = self.arrivals.enter(arrival)

        def settle() -> PoolPlace:
            entered()
            return PoolPlace(arrival.row.device, arrival.row.expires)

        return settle

    def seen(self, device: DeviceRow, check_in: CheckIn) -> Callable[[], None]:
        """Queues that this device checked in and gets no place in the pool. The function that it returns makes that
        durable. It shows to people only: that it cannot be written keeps no answer back."""
        entered = self.arrivals.enter(self._arrival(device, check_in, waits=False))

        def settle() -> None:
            with suppress(StoreError):
                entered()

        return settle

    def unfit(
        self,
        reader: Reader,
        states: Sequence[RunState],
        pool: Iterable[WaitingRow],
        among: Iterable[DeviceRow] | None = None,
    ) -> dict[str, str]:
        """Device -> why it fits no run that is running, of these in the pool, which wait for the end of their hold, and
        of those that wait for their next check-in: of all, or of these, of which some are in the pool or claimed."""
        now, since, found = self._clock.now(), self.back_since(), dict[str, str]()
        known: dict[tuple[str, int], str] = {}
        offers = {row.device: (row.offer, row.examples) for row in pool}
        idle = reader.idle(since, now) if among is None else among
        for row in idle:
            lately = row.last_seen_at is not None and row.last_seen_at >= since and row.left_at is None
            if lately and row.device not in offers and (offered := _offered(row)) is not None:
                offers[row.device] = offered
        for device, offered in offers.items():
            if offered not in known:
                known[offered] = printable(fits_no_run(states, *offered), _REASON)
            if known[offered]:
                found[device] = known[offered]
        return found

    def back_since(self) -> float:
        """Who has checked in before then would have come back: it is away."""
        return self._clock.now() - self._settings.pace_max_s - self._settings.waiting_s

    @staticmethod
    def fewest_of_any(states: Sequence[RunState]) -> Callable[[str], float]:
        """A function: how many examples a device with this offer must have to fit one of the runs that are running, or
        because none is."""
        running = [state for state in states if state.status == "running"]

        def fewest(offer: str) -> float:
            least = (wanted for state in running if (wanted := _fewest(state, offer)) is not None)
            return min(least, default=math.inf) if running else 0

        return cache(fewest)

    def unfit_in_pool(self, states: Sequence[RunState], counts: Counts) -> int:
        """How many devices in the pool fit no run that is running, whatever their examples."""
        return sum(count for offer, count in counts.by_offer.items() if fits_no_run(states, offer, sys.maxsize))

    def warning(self, device: str) -> str:
        """What is said of a device that checked in here, whose identity two processes use; empty: nothing."""
        processes = self._processes.get(device)
        return "" if processes is None else processes.warning(self._clock.now())

    def superseded(self, device: str, process: str) -> bool:
        """Whether another process has checked in here since this one did, and nobody knows yet whether both are
        alive."""
        processes = self._processes.get(device)
        known = processes is not None and processes.newest not in ("", process)
        return bool(process) and known and not self.warning(device)

    def shared_identities(self, reader: Reader) -> list[str]:
        """The devices whose identity two processes use now."""

        def found() -> list[str]:
            now = self._clock.now()
            return [row.device for row in reader.taking_turns(now - FORGOTTEN_S) if Processes.of(row).warning(now)]

        return self._shared.get(found)[0]

    def stop_waiting(self, place: PoolPlace) -> None:
        """Removes the device from the pool, unless it has checked in again since, here or on another replica."""
        with self._store.transaction() as tx:
            tx.drop_hold(place.device, place.expires)

    def refusal(self, device: str, check_in: CheckIn, states: Sequence[RunState]) -> Wait | None:
        """Returns why no running run can use this device, with a window for the next check-in. None where a run can use
        it, or where no run is running."""
        reason = fits_no_run(states, offer_of(check_in), check_in.examples, device)
        return self.pace(reason) if reason else None

    def reasons_of_ineligible(self, reader: Reader, state: RunState, rows: Iterable[WaitingRow], now: float) -> str:
        """Returns why devices that checked in during this round's selection, or wait for other runs (``rows``), cannot
        work for this run; empty where there are none.
        """
        named, rows = frozenset(state.plan.cohort.devices), list(rows)
        out = kept_out(reader, state, [row.device for row in rows])
        against = cache(partial(_against, state))  # many devices offer the same
        reasons = [
            _unnamed(named, row.device)
            or against(row.offer, row.examples)
            or _why_unspendable(state, row.device)
            or _done(state, row.device)
            or out.get(row.device)
            for row in rows
        ]
        selecting_since = state.current.missed_at or state.current.opened_at
        idle = map(_offered, reader.idle(min(selecting_since, now - self._settings.pace_max_s), now))
        reasons += [against(*offered) for offered in idle if offered is not None]
        return grouped(filter(None, reasons), "device was ineligible", "devices were ineligible")

    def pace(self, reason: str) -> Wait:
        return Wait(reason=reason, min_s=self._settings.pace_min_s, max_s=self._settings.pace_max_s)

    def hold_over(self, check_in: CheckIn, states: Sequence[RunState]) -> Wait:
        """Returns the answer to a check-in whose hold has expired: the phases of the runs that this device may work
        for."""
        offer = offer_of(check_in)
        running = [s for s in states if s.status == "running" and _unfit(s, offer) is None]
        if not running:
            paused = ", ".join(state.run for state in states if state.status == "paused")
            return self.pace(f"no run is under way; paused: {paused}" if paused else "no run is under way")
        found = "; ".join(f"run {state.run} is {state.phase} round {state.round_number}" for state in running)
        return Wait(reason=f"not selected yet: {found}", min_s=_HELD_WAIT_S[0], max_s=_HELD_WAIT_S[1])

    def waiting(self, reader: Reader, state: RunState, now: float) -> list[tuple[str, int]]:
        """Returns (device, examples) of the waiting devices that the run may select now, by device id."""
        rows, why = reader.waiting(now), unspendable(reader, state)
        return self.eligible(state, rows, self.left_out(reader, state, [row.device for row in rows], why))

    def left_out(
        self, reader: Reader, state: RunState, devices: Collection[str] | None, why: Mapping[str, Why]
    ) -> Collection[str]:
        """The devices, among these at least, that may not work for the run now: on its checkpoint, or by its privacy
        ledger. ``devices``: None: of all; ``why``: who is unspendable."""
        return why.keys() | kept_out(reader, state, devices).keys()

    def done(self, state: RunState) -> set[str]:
        """The devices that have taken part as often as the plan allows, or so lately."""
        found = {device for device in state.participation if state.has_done_all(device)}
        return found.union(device for device in state.counted_at if state.rests(device))

    def in_tree(self, state: RunState, without: set[str]) -> Eligible:
        """The waiting devices that may work for the run, but for these, in a pool that is held."""

        def fewest(offer: str) -> int | None:
            return _fewest(state, offer)

        running = {log.run for log in self._going() if log.state.status == "running"}
        return self.pool.eligible(
            state.run, {*running, state.run}, frozenset(state.plan.cohort.devices), fewest, without
        )

    def eligible(self, state: RunState, rows: Iterable[WaitingRow], without: Container[str]) -> list[tuple[str, int]]:
        """Returns (device, examples) of the devices that may work for the run, by device id. ``without``: devices that
        may not: see ``left_out``."""
        least: dict[str, int | None] = {}
        chosen, named = [], frozenset(state.plan.cohort.devices)
        for row in rows:
            if row.offer not in least:
                least[row.offer] = _fewest(state, row.offer)
            wanted = least[row.offer]
            if wanted is None or (named and row.device not in named):
                continue
            done = state.has_done_all(row.device) or state.rests(row.device)
            if row.examples >= wanted and row.device not in without and not done:
                chosen.append((row.device, row.examples))
        return sorted(chosen)

    def counts(self) -> Counts:
        """Waiting devices by offer. Each check-in asks for them."""
        return Counts(*self._counts.get(lambda: self.pool.by_offer(self._store, self._clock.now())))

    def count_again(self) -> None:
        """A cohort has left the pool: the next counts are of then."""
        self._counts.forget()
        self._eligible.clear()

    def count_eligible(self, state: RunState, counts: Callable[[], Counts]) -> tuple[int, float]:
        """Returns an estimate of the waiting devices that may work for the run, whose examples are checked when the
        cohort is drawn, and in how many seconds it will be made anew; 0: it is of now, or as old as the counts. It
        takes the longer the more different offers wait."""
        kept = self._eligible.setdefault(state.run, CostlyValue(self._clock))
        return kept.get(lambda: self._count_eligible(state, counts()))

    def _count_eligible(self, state: RunState, counts: Counts) -> int:
        if state.plan.cohort.devices:
            return len(self.waiting(self._store, state, self._clock.now()))
        fit = sum(count for offer, count in counts.by_offer.items() if _unfit(state, offer) is None)
        return max(0, fit - self.count_unspendable(state).total())

    def that_may_return(self, reader: Reader, state: RunState, now: float) -> tuple[int, int]:
        """Returns how many waiting devices the run may select now, and how many more wait that are unspendable: see
        ``leasing.fleet_is_back``."""
        without = unspendable(reader, state)
        fit = self.eligible(state, reader.waiting(now), ())
        out = Counter(without[device] for device, _ in fit if device in without)
        return len(fit) - out.total(), helped_by_another_model(out)

    def count_unspendable(self, state: RunState) -> Counter[Why]:
        """Returns how many waiting devices could work for the run, and are unspendable: for each reason of
        ``marks.unspendable``."""
        without = unspendable(self._store, state)
        if not without:
            return Counter()
        rows = self._store.waiting(self._clock.now(), without)
        return Counter(without[row.device] for row in rows if _unfit(state, row.offer) is None)

    def _arrival(self, device: DeviceRow, check_in: CheckIn, waits: bool = True) -> _Arrival:
        now = self._clock.now()
        row = WaitingRow(
            device=device.device,
            examples=check_in.examples,
            offer=offer_of(check_in),
            since=now,
            expires=now + min(check_in.hold_s, self._settings.max_hold_s) + self._settings.waiting_s,
        )
        return _Arrival(device, check_in.process, check_in.facts, row, waits)

    def _write_arrivals(self, arrivals: Sequence[_Arrival]) -> list[None]:
        """Writes the places in the pool, and of all devices that they were seen and what they said; nothing of one that
        has left since its request was let in."""
        now, processes, facts, entered = self._clock.now(), dict[str, Processes](), dict[str, Json](), len(arrivals)
        arrivals = sorted(arrivals, key=lambda one: one.row.device)  # of two replicas none waits for the other in turn
        with self._store.transaction() as tx:
            keys = {one.device.key_id for one in arrivals if one.device.key_id is not None}
            known = tx.devices_by_keys(keys) if keys else []
            before = {row.device: Processes.of(row) for row in known}
            arrivals = [one for one in arrivals if one.row.device in before or not _has_left(tx, one.device)]
            for one in arrivals:
                device = one.row.device
                facts[device] = {"examples": one.row.examples, "offer": one.row.offer}
                if said := one.facts.model_dump(exclude_defaults=True):
                    facts[device]["said"] = said
                if one.process:
                    processes[device] = before[device] = before.get(device, Processes()).then(one.process, now)
                    facts[device]["processes"] = before[device].stored()
            tx.put_waiting([one.row for one in arrivals if one.waits])
            tx.seen(facts, now)
        for device, found in processes.items():
            self._processes[device] = found
            self._processes.move_to_end(device)
        while len(self._processes) > _MOST:
            self._processes.popitem(last=False)
        if any(one.waits for one in arrivals):
            self._signals.wake("fleet")
        return [None] * entered


def _has_left(reader: Reader, device: DeviceRow) -> bool:
    """Whether a device whose key is not registered any more has left; a newer certificate may have another key."""
    found = None if device.key_id is None else reader.device(device.device)
    return found is not None and found.left_at is not None


def _offered(device: DeviceRow) -> tuple[str, int] | None:
    """What the device offered at its last check-in, and how many examples; None: it has not checked in."""
    offer, examples = device.facts.get("offer"), device.facts.get("examples")
    return (offer, examples) if isinstance(offer, str) and isinstance(examples, int) else None


def fits_no_run(states: Iterable[RunState], offer: str, examples: int, device: str | None = None) -> str:
    """Why no running run can use a device with this offer and number of examples, run by run; empty: one can, or none
    is running. ``device``: its id; None: any."""
    reasons = []
    for state in states:
        if state.status == "running":
            unnamed = None if device is None else _unnamed(state.plan.cohort.devices, device)
            against = unnamed or _against(state, offer, examples)
            if against is None:
                return ""
            reasons.append(f"run {state.run}: {against}")
    return "; ".join(reasons)


def _unfit(state: RunState, offer: str) -> str | None:
    """Returns why a device with this offer may not work for the run, whatever its examples; None: it may."""
    plan = state.plan
    against = reason_against(plan.task, offer, state.terms, plan.half, plan.privacy_terms)
    return against or withstands_too_few(plan, offer) or rests(state.run, state.version, offer)


def _fewest(state: RunState, offer: str) -> int | None:
    """Returns how many examples a device with this offer must have to work for the run; None: it may not."""
    return None if _unfit(state, offer) is not None else fewest_examples(state.plan, offer)


def _unnamed(named: Collection[str], device: str) -> str | None:
    """Returns that the plan names the devices that take part, and not this one; None: it may take part."""
    return "the plan names the devices that take part, and not this one" if named and device not in named else None


def _why_unspendable(state: RunState, device: str) -> str | None:
    """Returns why this device takes no part now, in a sentence of its own or of the run's; None: nothing is known, or
    it is spent, which is counted elsewhere and needs no reason."""
    barred = state.barred.get(device)
    if device in state.declined:
        return f"it has declined this checkpoint: {state.declined[device]}"
    return None if barred is None else f"it is barred until round {barred.until_round}: {barred.why}"


def _done(state: RunState, device: str) -> str | None:
    """Returns that the device has taken part as often as the plan allows, or so lately; None: it may again."""
    cohort = state.plan.cohort
    if state.has_done_all(device):
        return f"it has counted in {cohort.most_rounds} rounds, all that cohort.most_rounds allows"
    return (
        f"it rests: its rounds are cohort.apart = {cohort.apart} committed ones apart" if state.rests(device) else None
    )


def _against(state: RunState, offer: str, examples: int) -> str | None:
    """Returns why a device with this offer and number of examples may not work for the run; None: it may."""
    against = _unfit(state, offer)
    least = fewest_examples(state.plan, offer)
    if against is None and examples < least:
        if not examples and state.plan.secure is not None:
            return "the plan selects devices by their size, and this one tells none"
        return f"the plan wants devices with at least {least} examples; this one has fewer"
    return against
