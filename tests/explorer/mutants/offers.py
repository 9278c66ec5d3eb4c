"""Bugs in what devices and workers are offered, who is served, and who is drawn."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import replace
from typing import Any

from client_sdk.device.session import _Session
from client_sdk.protocol.devices import Assignment, Outcome, Task
from coordinator.engine import effects as fx
from coordinator.engine.phases import lifecycle, selecting
from coordinator.engine.selection import Choice
from coordinator.engine.state import RunState
from coordinator.runtime import drawing
from coordinator.runtime.core import Core
from coordinator.runtime.devices import DeviceRequests, Outcomes
from coordinator.runtime.fleet import Fleet
from coordinator.runtime.signals import Signals
from coordinator.runtime.waiting_pool import WaitingPool
from coordinator.store.port import Reader, WaitingRow
from tests.explorer.mutants.datacenter import CENTER
from tests.explorer.mutants.registry import mutant
from tests.explorer.plans import STRATEGY

Patches = list[tuple[Any, str, Any]]
_drawn = selecting.drawn
EVER = float("-inf")


@mutant("checkpoint-not-fetched", "parent")
def _checkpoint_not_fetched() -> Patches:
    """A device does not fetch the checkpoint that it was assigned, and trains on what it has."""

    def fetch(self: _Session, assignment: Assignment) -> Generator[Any, Any, str | None]:
        return None
        yield

    return [(_Session, "_fetch", fetch)]


@mutant("assignment-in-any-phase", "offer", "no-bug", replicas=3, focus=("pause", "collecting"))
def _assignment_in_any_phase() -> Patches:
    """A claim is an assignment whatever the run is doing, by the state that the replica has."""

    def assignment(self: DeviceRequests, device: str) -> Assignment | None:
        claim = self._core.store.claim(device)
        if claim is None:
            return None
        log = self._core.log(claim.run)
        return Assignment(
            run=claim.run,
            round=claim.round,
            attempt=claim.attempt,
            device=device,
            checkpoint=self._checkpoint(log.state, log.state.version),
            plan_digest=log.row.plan_digest,
            task=log.state.plan.task,
            report_within_s=max(0.0, (log.state.deadline or 0.0) - self._core.clock.now()),
            partial=log.state.plan.aggregation.partial,
            max_update_bytes=self._limit(claim.run),
        )

    return [(DeviceRequests, "assignment", assignment)]


@mutant("cap-not-applied", "draw")
def _cap_not_applied() -> Patches:
    """A device waits in the pool with all examples that it says it has."""
    check_in = DeviceRequests.check_in

    def uncapped(self: DeviceRequests, device: Any, said: Any) -> Any:
        return check_in(self, replace(device, examples_cap=2**31), said)

    return [(DeviceRequests, "check_in", uncapped)]


@mutant("outcome-always-dropped", "offer")
def _outcome_always_dropped() -> Patches:
    """Each device gets the answer that its update was not received in time."""

    def dropped(self: Outcomes, device: str, run: str, round: int) -> Outcome:
        return Outcome(run=run, round=round, device=device, result="dropped")

    return [(Outcomes, "outcome", dropped)]


@mutant("deadline-third", "offer", "deadline")
def _deadline_third() -> Patches:
    """A round collects for a third of its time."""

    def drawn(state: Any, event: Any) -> Any:
        following, effects = _drawn(state, event)
        if following.phase != "collecting":
            return following, effects
        early = event.at + state.plan.cohort.collect_s / 3
        return following.with_round(replace(following.current, deadline=early)), effects

    return [(selecting, "drawn", drawn)]


@mutant("claimed-drawn", "draw", "claims", focus=("pause", "selecting"), two_runs=True, replicas=3, storm_s=60.0)
def _claimed_drawn() -> Patches:
    """Devices that work for another run are in the pool."""

    def everyone(self: Reader, now: float, among: Collection[str] | None = None) -> list[WaitingRow]:
        rows = self._all(WaitingRow, {"expires >": now})
        return [row for row in rows if among is None or row.device in among]

    return [(Reader, "waiting", everyone), (Reader, "claimed", lambda self, among=None: set())]


@mutant("expired-drawn", "draw", focus=("clock-ahead", "selecting"))
def _expired_drawn() -> Patches:
    """Devices whose wait has expired are still in the pool."""
    make = drawing._Draw.make

    class Everyone:
        def __init__(self, transaction: Any) -> None:
            self._transaction = transaction

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transaction, name)

        def waiting(self, now: float) -> Any:
            return self._transaction.waiting(EVER)

    def of_everyone(self: Any, tx: Any, state: Any, now: float) -> Any:
        return make(self, Everyone(tx), state, now)

    return [(drawing._Draw, "make", of_everyone), (WaitingPool, "_pass", lambda self, now: None)]


@mutant("left-devices-drawn", "draw")
def _left_devices_drawn() -> Patches:
    """A device that has disconnected stays in the pool."""
    return [(Fleet, "stop_waiting", lambda self, place: None)]


@mutant("pool-of-the-start", "draw")
def _pool_of_the_start() -> Patches:
    """The pool in memory is that of the first draw."""

    def changes(self: Reader, after: int) -> tuple[int, list[str]]:
        return after, []

    return [(Reader, "pool_changes", changes)]


@mutant("round-one-again", "draw")
def _round_one_again() -> Patches:
    """Every round draws as the first one."""
    draw = Choice.draw

    def first(self: Choice, rows: Any, k: int, *, round: int, **more: Any) -> list[str]:
        return draw(self, rows, k, round=1, **more)

    return [(Choice, "draw", first)]


@mutant("uniform-is-the-first", "draw")
def _uniform_is_the_first() -> Patches:
    """Of the devices that wait alike, the first by name take part: whoever repeats the draw in the same way agrees."""

    draw = Choice.draw

    def first(self: Choice, rows: Any, k: int, **more: Any) -> list[str]:
        if self.name != "uniform":
            return draw(self, rows, k, **more)
        return [row[0] for row in rows][:k]

    return [(Choice, "draw", first)]


@mutant("losses-forgotten", "draw")
def _losses_forgotten() -> Patches:
    """What a round has shown of its devices is not known in the next one."""
    return [(lifecycle, "_known", lambda state: ())]


@mutant("full-pool-waits", "liveness", rates={}, replicas=1)
def _full_pool_waits() -> Patches:
    """A check-in does not wake the clock: a full pool waits for the deadline."""
    wait = Fleet.wait

    def silent(self: Fleet, device: Any, said: Any) -> Any:
        entered = wait(self, device, said)

        def settle() -> Any:
            signals, self._signals = self._signals, Signals()
            try:
                return entered()
            finally:
                self._signals = signals

        return settle

    return [(Fleet, "wait", silent)]


@mutant("workers-not-woken", "liveness", rates={}, replicas=1, plan={**CENTER, "finish": {"rounds": 6}}, workers=2)
def _workers_not_woken() -> Patches:
    """A round that is offered to the datacenter wakes no worker."""
    hint = Core.hint
    return [(Core, "hint", lambda self, action: None if isinstance(action, fx.Offer) else hint(self, action))]


@mutant("small-state-not-told", "offer", plan={"strategy": STRATEGY})
def _small_state_not_told() -> Patches:
    """In each round devices are told what the strategy decides of an empty small state."""

    def task(self: Core, state: RunState, device: str, version: int | None = None) -> Task:
        return self.aggregator(state.run).algorithm.task(state.plan, state.version, {})

    return [(Core, "task", task)]
