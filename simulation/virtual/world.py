"""The world of a run in virtual time: which devices arrive, which are fast, which vanish. The coordinator makes every
decision about a round.

::

    selecting    devices arrive in random order until the pool is full; where
                 all have come, it waits for those that still train         -> the coordinator draws the cohort
    leasing      where the plan has a datacenter, it trains the round while devices check in
    collecting   each of them trains for as long as its speed says, then reports, or vanishes, or comes too late
    committing   the engine's sum becomes the next checkpoint               -> the next round opens

Only devices that take part exist: of a million clients those of a round are made when they arrive, and removed when
they have reported or were not selected. A device that trains when a round closes is busy until it has finished, and
comes too late. So a round is a function of the seed, its number and the busy devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from client_sdk.protocol.devices import Started, Task
from client_sdk.protocol.problems import ProblemError
from coordinator.engine.effects import Fold
from coordinator.engine.state import Round, RunState
from coordinator.requests import NotYet, Request
from coordinator.requests.devices import CHECK_IN, STARTED, UPDATE
from coordinator.runtime.coordinator import Coordinator
from simulation.clients import Clients
from simulation.engines.port import CannotTrain, Engine, Job
from simulation.virtual.agenda import Agenda
from simulation.virtual.behaviour import Habits
from simulation.virtual.datacenter import SimulatedDatacenter
from simulation.virtual.device import Device, SimulatedEnrolment
from simulation.virtual.parts import OUT_OF_TIME, Part, Unfinished, parts_of

ASKS_AGAIN_S = 600.0
"""Virtual seconds after which waiting devices check in again, before their place in the pool expires."""
_PARTS = 8
"""About how many batches of a round's updates are passed on while others are trained: each batch has a cost."""

_place = attrgetter("place")
_SAME_CLIENT = 5
"""Rounds in a row after which one client alone is enough: the one with the fewest examples has always trained first."""


class SimulatedWorld:
    """``play_round`` lets time pass until the round under way has ended."""

    def __init__(
        self,
        coordinator: Coordinator,
        run: str,
        clients: Clients,
        habits: Habits,
        engine: Engine,
        agenda: Agenda,
        *,
        seed: int,
        size_of: Callable[[str], int],
        begin: Callable[[RunState], None],
        failed: Callable[[Job, CannotTrain], None],
        class_of: Callable[[str], str],
        settle_states: Callable[[Sequence[str], int], None],
        datacenter: SimulatedDatacenter | None = None,
    ) -> None:
        """``settle_states``: called with devices before they train in a round, of this number. ``size_of``: bytes
        that an update would have on the wire, by its report's JSON. ``begin``: called when a cohort starts to train.
        ``failed``: called when the user's code raised; may raise itself."""
        self.coordinator = coordinator
        self.size_of = size_of
        self._run = run
        self._log = coordinator.core.log(run)
        self._clients = clients
        self._habits = habits
        self._engine = engine
        self._agenda = agenda
        self._seed = seed
        self._begin = begin
        self._failed = failed
        self._settle_states = settle_states
        self._datacenter = datacenter
        self._enrolment = SimulatedEnrolment(coordinator, run, clients, class_of)
        self._present: dict[str, Device] = {}
        self._elsewhere: dict[str, int] = {}
        self._refused: set[int] = set()
        self._draws = 0
        self._checked_in_at = 0.0
        self._trained: Callable[[int, int, int], None] = lambda *_: None
        self._sent: list[Device] = []
        self._reported = 0
        self._parts: dict[str, Part] = {}
        self._training: list[tuple[Part, Device]] = []
        self._bad: dict[str, tuple[Job, CannotTrain]] = {}
        """Client -> why its values cannot be counted, of all rounds since the last commit."""
        self._some_count = False
        """Whether any client's could, since then."""

    @property
    def now(self) -> float:
        return self._agenda.now

    @property
    def _state(self) -> RunState:
        """The run's newest state. Only this process writes to its log, so the store need not be asked."""
        return self._log.state

    def play_round(self, trained: Callable[[int, int, int], None] = lambda *_: None) -> RunState:
        """Plays the round under way and returns the state after it has been committed or abandoned, or has missed its
        selection, or has waited for as long where it waits for devices without an end. Where there is none, one may
        open now; else the state is returned as it is.

        ``trained(round, done, of)`` is called for each client that has trained. Where no client at all has values that
        can be counted, ``failed`` is called with the first one.
        """
        self._clear()
        if self._state.round is None:
            self.coordinator.tick()
        state, version = self._state, self._state.version
        number, missed, self._trained = state.round_number, state.abandoned, trained
        while state.round_number == number and state.round is not None and state.abandoned == missed:
            self._perform()
            state = self._state
            if state.round_number != number or state.round is None:
                break
            if state.phase == "selecting":
                self._arrive(state)
            elif state.phase == "leasing":
                self._lease(state)
            self.coordinator.tick()
            self._perform()
            state = self._state
            if state.round_number == number and state.phase not in ("selecting", "leasing"):
                if state.phase == "collecting":
                    self._assign(state)
                self._collect(number)
            elif state.round_number == number and state.abandoned == missed and state.deadline is not None:
                self._wait(min(state.deadline, self.now + ASKS_AGAIN_S) if self._habits.by_day else state.deadline)
            elif state.round_number == number and state.waits:
                self._wait(self.now + state.plan.cohort.select_s)
                return self._state
            state = self._state
        if state.version != version:
            self._bad, self._some_count = {}, False
        elif (
            self._bad
            and not self._some_count
            and (len(self._bad) >= min(2, len(self._clients)) or state.abandoned >= _SAME_CLIENT)
        ):
            job, first = next(iter(self._bad.values()))
            more = f"No client has an update that can be counted ({len(self._bad)} have trained)."
            self._failed(job, replace(first, reason=f"{first.reason} {more}"))
        return state

    def resume(self, busy: Sequence[Unfinished]) -> None:
        """Adds devices that still train, for rounds that were played before this world began."""
        for one in busy:
            self._elsewhere[one.device] = one.number
            self._agenda.after(one.at - self.now, self._comes_late, one)

    def close(self) -> None:
        """Ends the sessions of all present devices."""
        for device in self._present.values():
            device.vanish()
        self._present.clear()

    # ------------------------------------------------------------ selecting

    def _clear(self) -> None:
        """Before a round: frees devices that have finished by now, and removes those that were not selected."""
        while self._agenda.next_at <= self.now:
            self._happen()
        self._leave(self._waiting())
        self._refused.clear()
        self._draws, self._checked_in_at = 0, self.now

    def _leave(self, waiting: Sequence[Device]) -> None:
        """These devices wait no longer."""
        for device in waiting:
            device.vanish()
            self._remove_if_over(device)
        if waiting:
            with self.coordinator.core.store.transaction() as tx:
                tx.drop_waiting([device.row.device for device in waiting])

    def _arrive(self, state: RunState) -> None:
        """Fills the pool with absent devices in an order drawn for this round, until it is full or all have come. Those
        that have counted as often as they may, or rest, leave their place to others."""
        if self.now - self._checked_in_at >= ASKS_AGAIN_S:
            if self._habits.by_day:
                self._leave([one for one in self._waiting() if not self._habits.available(one.row.device, self.now)])
            self._check_in(self._waiting(), [])
            self._checked_in_at = self.now
        after_s, most = self._habits.arrival(state.round_number)
        cohort = state.plan.cohort
        if after_s and most is None and state.phase == "selecting" and state.deadline is not None:
            opened_at = state.deadline - cohort.select_s
            self._pass(opened_at + min(after_s, 0.999 * cohort.select_s))
        pool = cohort.pool_count if most is None else min(most, cohort.pool_count)
        while (missing := pool - self._that_may_be_drawn(state)) > 0:
            arriving = [self._device(number) for number in self._order(state.current, missing)]
            if not arriving:
                return
            self._enrolment.enrol(arriving)
            self._check_in([], arriving)
            self._refused.update(device.number for device in arriving if device.over)

    def _that_may_be_drawn(self, state: RunState) -> int:
        waiting = self._waiting()
        if not state.participation and not state.counted_at:  # nobody has done all, or rests
            return len(waiting)
        return sum(not (state.has_done_all(one.row.device) or state.rests(one.row.device)) for one in waiting)

    def _waiting(self) -> list[Device]:
        return [device for device in self._present.values() if device.assignment is None]

    def _wait(self, until: float) -> None:
        """Lets time pass until a busy device is free, or until ``until``."""
        busy = len(self._present) + len(self._elsewhere)
        while self._agenda.next_at < until:
            if len(self._present) + len(self._elsewhere) < busy and self._agenda.next_at > self.now:
                return
            self._happen()
        if len(self._present) + len(self._elsewhere) == busy:
            self._agenda.now = max(self.now, until)

    def _pass(self, until: float) -> None:
        """Lets time pass until then, where that is later."""
        while self._agenda.next_at < until:
            self._happen()
        self._agenda.now = max(self._agenda.now, until)

    def _happen(self) -> None:
        do, arguments = self._agenda.take()
        do(*arguments)

    def _check_in(self, waiting: list[Device], arriving: list[Device]) -> None:
        for device in arriving:
            self._present[device.row.device] = device
            device.arrive()
        asking = waiting + arriving
        requests = [Request(CHECK_IN, one.row, one.offer) for one in asking]
        answers = settled([request.begin(CHECK_IN.shape.first, self.coordinator).settle for request in requests])
        for device, answer in zip(asking, answers, strict=True):
            if not isinstance(answer, NotYet):
                device.answered(answer)
                self._remove_if_over(device)

    def _remove_if_over(self, device: Device) -> None:
        if device.over:
            self._present.pop(device.row.device, None)

    def _order(self, round: Round, count: int) -> list[int]:
        """Returns so many absent clients that are available now, fewer where there are no more, in random order: a
        function of the seed, the round, the hour and the busy devices."""
        out = {device.number for device in self._present.values()} | self._refused | set(self._elsewhere.values())
        again = [round.missed] if round.missed else []
        rng = np.random.Generator(np.random.PCG64([self._seed, round.number, self._draws, *again]))
        self._draws += 1
        named = [self._clients.number(name) for name in self._state.plan.cohort.devices]
        total = len(named) or len(self._clients)
        if len(out) == total and not named:
            return []
        most, by_day = min(total, count + len(out)), self._habits.by_day
        while True:
            drawn = [int(number) for number in rng.choice(named or total, most, replace=False, shuffle=True)]
            found = [number for number in drawn if number not in out]
            if by_day:
                found = [one for one in found if self._habits.available(self._clients.id(one), self.now)]
            if not by_day or len(found) >= count or most == total:
                return found[:count]
            most = min(total, 4 * most)

    def _device(self, number: int) -> Device:
        return Device(self, number, self._enrolment.row(number, self.now), self._enrolment.offer(number))

    def _lease(self, state: RunState) -> None:
        """Plays a datacenter round: the datacenter trains, and devices check in meanwhile. Where the run has fallen
        back in an earlier round, they check in first, and the round may return to the fleet."""
        if not state.current.planned and state.fallback.away_since != state.round_number:
            self._arrive(state)
        if self._datacenter is not None:
            self._datacenter.take(state, lambda: self._arrive(state))

    # ------------------------------------------------------------ collecting

    def _task(self, state: RunState, device: str) -> Task:
        """The device's task in the round under way."""
        return self.coordinator.core.task(state, device)

    def _assign(self, state: RunState) -> None:
        """Submits the jobs that will count to the engine. While it trains, the cohort gets its assignments, and the end
        of each training is put on the agenda."""
        self._begin(state)
        self._parts, gone = parts_of(state, self.now, self._clients, self._habits, self._task)
        jobs = [part.job for part in sorted(self._parts.values(), key=_place) if part.job is not None]
        self._settle_states([job.device for job in jobs], state.round_number)
        self._engine.submit(jobs[: self._most(state)])
        self._training = []
        members = state.current.members
        absent = [self._device(self._clients.number(name)) for name in members if name not in self._present]
        if absent:  # members of a cohort that was drawn before this run was interrupted
            self._check_in([], absent)
        cohort = [self._present[name] for name in sorted(members) if name in self._present]
        for device in (one for one in cohort if one.assignment is None):
            assignment = Request(CHECK_IN, device.row, device.offer).call(CHECK_IN.shape.again, self.coordinator)
            if assignment is not None:
                device.answered(assignment)
        for device in (one for one in cohort if one.row.device in gone):
            device.vanish()
        starting = [device for device in cohort if not device.over]
        message, where = Started(attempt=state.current.attempt), {"run": self._run, "round": state.round_number}
        requests = [Request(STARTED, one.row, message, where) for one in starting]
        settled([request.begin(STARTED.shape.call, self.coordinator).settle for request in requests])
        for device in starting:
            device.started()
        for device in cohort:
            self._remove_if_over(device)
        for part, device in sorted(self._training, key=lambda one: one[0].place):
            self._agenda.after(part.at - self.now, self._finish, device, part.job)

    def _most(self, state: RunState) -> int:
        """How many updates close the round."""
        return state.plan.cohort.goal

    def begins_training(self, device: Device) -> None:
        """A session has its checkpoint and begins to train, unless its device vanishes."""
        part = self._parts.get(device.row.device)
        if part is None:
            device.vanish()
        else:
            self._training.append((part, device))

    def _collect(self, round: int) -> None:
        """Lets time pass until the round has closed, and performs the actions of its end.

        Updates that arrive one after another are passed on together, each with its own time: before any other event,
        at the latest when the round is about to close, and many of them during the wait for the engine.
        """
        state = self._state
        self._reported = self._received()
        while state.round_number == round and state.phase == "collecting" and state.deadline is not None:
            missing = state.plan.cohort.goal - self._reported - len(self._sent)
            if self._agenda.next_at < state.deadline and missing > 0:
                self._happen()
            elif self._sent:
                self._hand_over()
            else:
                self._agenda.now = max(self._agenda.now, state.deadline)
                self.coordinator.tick()
            state = self._state
        self._perform()
        self._sent.clear()

    def _finish(self, device: Device, job: Job | None) -> None:
        """Ends the training of a device, or its time."""
        if device.over:
            return
        assignment = device.assignment
        state = self._state
        if assignment is None or state.round_number != assignment.round or state.phase != "collecting":
            device.trained(None)
        elif job is None:
            self._hand_over()
            device.trained(None if assignment.partial == "refuse" else OUT_OF_TIME, complete=False)
        elif isinstance(result := self._engine.result(job, self._meanwhile), CannotTrain):
            self._hand_over()
            self._cannot(job, result)
            device.trained(result)
        else:
            self._some_count = True
            device.trained(result)
            if device.update is not None:
                self._sent.append(device)
            self._trained(state.round_number, self._reported + len(self._sent), state.plan.cohort.goal)
        self._remove_if_over(device)

    def _cannot(self, job: Job, why: CannotTrain) -> None:
        """The client's training gave nothing: the user's fault ends the run, and others have their number."""
        if why.trace is not None:
            self._failed(job, why)
        if why.bad_values:
            self._bad[job.device] = job, why

    def _comes_late(self, one: Unfinished) -> None:
        """A device has trained for a round that has ended: it sends its update, which is not read."""
        del self._elsewhere[one.device]
        where = {"run": self._run, "round": one.round, "attempt": 0}
        with suppress(ProblemError):
            Request(UPDATE, self._enrolment.row(one.number, self.now), None, where).call(
                UPDATE.shape.limit, self.coordinator
            )

    def _meanwhile(self) -> None:
        """While the engine trains the next job: passes updates on that would otherwise wait until the last."""
        if len(self._sent) * _PARTS >= self._state.plan.cohort.goal:
            self._hand_over()

    def _hand_over(self) -> None:
        """Passes the updates on to the coordinator that were sent since the last call."""
        sent, self._sent = self._sent, []
        if not sent:
            return
        count = self.coordinator.devices.count
        answers = settled([count(device.update) for device in sent if device.update is not None])
        for device, answer in zip(sent, answers, strict=True):
            device.received(answer)
            self._remove_if_over(device)
        self._reported = self._received()

    def _received(self) -> int:
        """Returns the number of updates that the round under way has received."""
        return 0 if self._state.round is None else self._state.current.count("reported")

    def _perform(self) -> None:
        while (task := self.coordinator.core.take_task()) is not None:
            if not isinstance(task[1], Fold):  # the engine added it when it had trained it
                self.coordinator.perform(task)


def settled(entered: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to what was queued, ProblemError in the place of one that is refused. The first call makes all of it
    durable."""
    answers: list[Any] = []
    for settle in entered:
        try:
            answers.append(settle())
        except ProblemError as refused:
            answers.append(refused)
    return answers
