"""The fleet: which devices wait, and why others get no work. All runs share the waiting devices.

Check-ins that arrive together are written in one transaction. Cohorts are drawn in ``cohort_selection``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from client_sdk.protocol.devices import CheckIn, Wait
from coordinator.engine.eligibility import fewest_examples, offer_of, reason_against
from coordinator.engine.state import RunState
from coordinator.runtime.clock import Clock
from coordinator.runtime.group_commit import GroupCommit
from coordinator.runtime.ineligible import Ineligible
from coordinator.runtime.marks import Why, helped_by_another_model, left_out
from coordinator.runtime.shared_identities import SharedIdentities
from coordinator.runtime.signals import Signals
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, Reader, Store, StoreError, WaitingRow

_HELD_WAIT_S = (0.0, 1.0)
"""Seconds until the next check-in after a hold has expired: a device that checks in at once stays in the pool."""


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """A device's place in the pool by one of its check-ins. A later check-in takes the place over."""

    device: str
    expires: float


class Fleet:
    def __init__(self, store: Store, clock: Clock, signals: Signals, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._signals = signals
        self._settings = settings
        self._ineligible = Ineligible()
        self.shared = SharedIdentities()
        self._arrivals: GroupCommit[WaitingRow | str, None] = GroupCommit(self._write_arrivals)

    def locked(self) -> bool:
        """Whether a thread writes check-ins."""
        return self._arrivals.locked()

    # ------------------------------------------------------------ waiting

    def wait_all(self, arrivals: Sequence[tuple[DeviceRow, CheckIn]]) -> list[PoolPlace]:
        """Adds the devices to the pool until their hold, and some time for their next check-in, have passed.

        ``check_in.examples`` is already capped.
        """
        rows = [self._arrival(device, check_in) for device, check_in in arrivals]
        for row in rows:
            self._ineligible.forget(row.device)
        for result in self._arrivals.submit_all(rows):
            if isinstance(result, BaseException):
                raise result
        self._signals.wake("fleet")
        return [_place(row) for row in rows]

    def enter(self, device: DeviceRow, check_in: CheckIn) -> Callable[[], PoolPlace]:
        """The same for one device in two steps: it is queued, and the function that is returned makes durable what is
        queued."""
        row = self._arrival(device, check_in)
        self._ineligible.forget(row.device)
        entered = self._arrivals.enter(row)

        def settle() -> PoolPlace:
            entered()
            self._signals.wake("fleet")
            return _place(row)

        return settle

    def seen(self, devices: Sequence[str]) -> None:
        """Notes that these devices checked in and get no place in the pool. It shows to people only: that it cannot be
        written keeps no answer back."""
        for result in self._arrivals.submit_all(list(devices)):
            if isinstance(result, BaseException) and not isinstance(result, StoreError):
                raise result

    def unfit(self) -> dict[str, dict[str, str]]:
        """Device -> run -> why it cannot work for it, of the devices that wait for their next check-in and fit no run,
        as far as this process was asked."""
        settings = self._settings
        return self._ineligible.devices(self._clock.now() - settings.pace_max_s - settings.waiting_s)

    def stop_waiting(self, place: PoolPlace) -> None:
        """Removes the device from the pool, unless it has checked in again since, here or on another replica."""
        with self._store.transaction() as tx:
            tx.drop_hold(place.device, place.expires)

    def refusal(self, device: str, check_in: CheckIn, states: Sequence[RunState]) -> Wait | None:
        """Returns why no running run can use this device, with a window for the next check-in. None where a run can use
        it, or where no run is running."""
        open_runs = [state for state in states if state.status == "running"]
        if not open_runs:
            return None
        offer, reasons = offer_of(check_in), {}
        for state in open_runs:
            against = _against(state, offer, check_in.examples)
            if against is None:
                return None
            reasons[state.run] = against
        for run, against in reasons.items():
            self._ineligible.note(run, device, against, self._clock.now())
        return self.pace("; ".join(f"run {run}: {against}" for run, against in reasons.items()))

    def reasons_of_ineligible(self, state: RunState, rows: Iterable[WaitingRow], now: float) -> str:
        """Returns why devices that checked in during this round's selection, or wait for other runs, cannot work for
        this run; empty where there are none.
        """
        for row in rows:
            against = _against(state, row.offer, row.examples) or _left_out(state, row.device)
            if against is not None:
                self._ineligible.note(state.run, row.device, against, now)
        selecting_since = state.current.missed_at or state.current.opened_at
        return self._ineligible.reasons(state.run, min(selecting_since, now - self._settings.pace_max_s))

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
        return self.eligible(state, reader.waiting(now), left_out(reader, state))

    def eligible(self, state: RunState, rows: Iterable[WaitingRow], without: Container[str]) -> list[tuple[str, int]]:
        """Returns (device, examples) of the devices that may work for the run, by device id. ``without``: devices that
        may not train on its checkpoint any more, or are barred from it: ``marks.left_out``."""
        least: dict[str, int | None] = {}
        chosen = []
        for row in rows:
            if row.offer not in least:
                unfit = _unfit(state, row.offer) is not None
                least[row.offer] = None if unfit else fewest_examples(state.plan, row.offer)
            wanted = least[row.offer]
            if wanted is not None and row.examples >= wanted and row.device not in without:
                chosen.append((row.device, row.examples))
        return sorted(chosen)

    def counts(self) -> dict[str, int]:
        """Waiting devices by offer."""
        return self._store.waiting_by_offer(self._clock.now())

    def count_eligible(self, state: RunState, counts: dict[str, int]) -> int:
        """Returns an estimate of the waiting devices that may work for the run now: their examples are checked when the
        cohort is drawn."""
        fit = sum(count for offer, count in counts.items() if _unfit(state, offer) is None)
        return max(0, fit - self.count_left_out(state).total())

    def that_may_return(self, reader: Reader, state: RunState, now: float) -> tuple[int, int]:
        """Returns how many waiting devices the run may select now, and how many more wait that are left out: see
        ``leasing.fleet_is_back``."""
        without = left_out(reader, state)
        fit = self.eligible(state, reader.waiting(now), ())
        out = Counter(without[device] for device, _ in fit if device in without)
        return len(fit) - out.total(), helped_by_another_model(out)

    def count_left_out(self, state: RunState) -> Counter[Why]:
        """Returns how many waiting devices could work for the run, and are left out: for each reason of
        ``marks.left_out``."""
        without = left_out(self._store, state)
        if not without:
            return Counter()
        rows = self._store.waiting(self._clock.now(), without)
        return Counter(without[row.device] for row in rows if _unfit(state, row.offer) is None)

    def _arrival(self, device: DeviceRow, check_in: CheckIn) -> WaitingRow:
        now = self._clock.now()
        return WaitingRow(
            device=device.device,
            examples=check_in.examples,
            offer=offer_of(check_in),
            since=now,
            expires=now + min(check_in.hold_s, self._settings.max_hold_s) + self._settings.waiting_s,
        )

    def _write_arrivals(self, arrivals: Sequence[WaitingRow | str]) -> list[None]:
        """Writes places in the pool; of a device without one, given by its id, that it was seen."""
        with self._store.transaction() as tx:
            tx.put_waiting([row for row in arrivals if isinstance(row, WaitingRow)])
            tx.seen([row if isinstance(row, str) else row.device for row in arrivals], self._clock.now())
        return [None] * len(arrivals)


def _place(row: WaitingRow) -> PoolPlace:
    return PoolPlace(row.device, row.expires)


def _unfit(state: RunState, offer: str) -> str | None:
    """Returns why a device with this offer may not work for the run, whatever its examples; None: it may."""
    return reason_against(state.plan.task, offer, state.terms)


def _left_out(state: RunState, device: str) -> str | None:
    """Returns why this device takes no part now, in a sentence of its own or of the run's; None: nothing is known, or
    it is spent, which is counted elsewhere and needs no reason."""
    barred = state.barred.get(device)
    if device in state.declined:
        return f"it has declined this checkpoint: {state.declined[device]}"
    return None if barred is None else f"it is barred until round {barred.until_round}: {barred.why}"


def _against(state: RunState, offer: str, examples: int) -> str | None:
    """Returns why a device with this offer and number of examples may not work for the run; None: it may."""
    against = _unfit(state, offer)
    least = fewest_examples(state.plan, offer)
    if against is None and examples < least:
        if not examples and state.plan.secure is not None:
            return "the plan selects devices by their size, and this one tells none"
        return f"the plan wants devices with at least {least} examples; this one has {examples}"
    return against
