"""The world of a run with buffered rounds: devices come as places get free, and each trains the version that was the
newest when it was drawn.

::

    collecting   where a place is free, an absent client comes and is drawn; each device trains for as long as its speed
                 says, then reports, or vanishes, or comes too late        -> a commit with each K reports
    committing   takes no virtual time                                 -> the next round opens; who trains goes on

A client is trained when its time has come, in this process, one after another: updates of several versions are in
flight at once, and an engine has the model of one. Its update stays in memory until its round is over:
``StoredUpdates`` are the coordinator's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.protocol.devices import Started
from client_sdk.tensors import Layout, Tensors
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.engine.effects import Contribution
from coordinator.engine.rounds import kind_of
from coordinator.engine.state import RunState
from coordinator.folding.validation import Measures
from coordinator.requests import Request
from coordinator.requests.devices import CHECK_IN, STARTED
from simulation.engines import CannotTrain, Kernel
from simulation.engines.kernel import Contributed
from simulation.errors import SimulationError
from simulation.virtual.device import Device
from simulation.virtual.parts import OUT_OF_TIME, Part, part_of
from simulation.virtual.world import ASKS_AGAIN_S, SimulatedWorld

_COLUMNS = 1 << 20
_DAY_S = 86_400.0
_IN_VAIN = 1000
"""Devices in a row that vanish or withdraw, after which a client that cannot be counted ends the simulation."""


class StoredUpdates:
    """``Sums`` over updates in this process, by the digest under which they were reported."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stored: dict[str, Contributed] = {}
        self._of: dict[int, tuple[str, ...]] = {}
        """Round -> its updates."""

    def put(self, digest: str, update: Contributed) -> None:
        self._stored[digest] = update

    def remember(self, digest: str, measures: Measures) -> None:
        pass

    def fold(self, round: int, item: Contribution, clip: float = 0.0) -> None:
        pass

    def total(self, round: int, items: tuple[Contribution, ...], clip: float = 0.0) -> ExactSum:
        self._of[round] = tuple(item.digest for item in items)
        total = ExactSum.of(self._layout.whole)
        for item in items:
            found = self._stored[item.digest]
            total.add_blocks(found.blocks(), item.weight, found.measures.peak)
        return total

    def columns(self, items: tuple[Contribution, ...]) -> Iterator[NDArray[np.float32]]:
        width = max(256, _COLUMNS // len(items))
        for row in zip(*(self._stored[item.digest].blocks(width) for item in items), strict=True):
            yield np.stack(row)

    def forget(self, round: int) -> None:
        for number in [number for number in self._of if number <= round]:
            for digest in self._of.pop(number):
                self._stored.pop(digest, None)


class BufferedWorld(SimulatedWorld):
    """``kernel`` trains; ``updates`` has what was trained; ``model``: the tensors of a checkpoint."""

    def __init__(
        self, *arguments: Any, kernel: Kernel, updates: StoredUpdates, model: Callable[[str], Tensors], **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._kernel = kernel
        self._updates = updates
        self._model = model
        self._models: dict[str, Tensors] = {}
        """Checkpoints from which devices train now."""
        self._in_vain = 0
        self._gone: set[tuple[str, int]] = set()
        """(device, round of its draw) of those that have vanished while they have a place."""

    def play_round(self, trained: Callable[[int, int, int], None] = lambda *_: None) -> RunState:
        self._trained, self._draws = trained, 0
        while self._agenda.next_at <= self.now:
            self._happen()
        if self._state.round is None:
            self.coordinator.tick()
        state = self._state
        number, version, began = state.round_number, state.version, self.now
        self._perform()
        while (state := self._state).round is not None and state.round_number == number:
            self._fill(state)
            if (state := self._state).round is None or state.round_number != number:
                break
            deadline = float("inf") if state.deadline is None else state.deadline
            later = self.now + ASKS_AGAIN_S
            if self._habits.by_day and later < min(self._agenda.next_at, deadline, began + _DAY_S):
                self._agenda.now = later  # others are available then, for the places that are free
            elif self._agenda.next_at < deadline:
                self._happen()
            elif state.deadline is not None:
                self._agenda.now = max(self._agenda.now, deadline)
                self.coordinator.tick()
                self._perform()
            else:
                raise SimulationError(f"round {number} has free places, and no client is left to come")
        if self._state.version != version:
            self._bad, self._some_count = {}, False
        return self._state

    # ------------------------------------------------------------ places

    def _fill(self, state: RunState) -> None:
        """Absent clients come for the places that are free, and those that have one begin to train."""
        known = [self._device(self._clients.number(name)) for name in self._awaited(state)]
        self._check_in([], known)  # of an earlier call of the simulation
        for device in known:
            self._begins(device)
        free = kind_of(state.current).free(state)
        self._refused = self._not_drawable(state)
        while free and (arriving := [self._device(number) for number in self._order(state.current, free)]):
            self._enrolment.enrol(arriving)
            self._check_in([], arriving)
            self._refused.update(device.number for device in arriving if device.over)
            self.coordinator.tick()
            self._perform()
            for device in arriving:
                if not device.over:
                    self._begins(device)
            self._refused |= self._not_drawable(self._state)
            free = kind_of(self._state.current).free(self._state)

    def _not_drawable(self, state: RunState) -> set[int]:
        """Clients with a place, also where they have vanished, and those that rest."""
        kind = kind_of(state.current)
        return {self._clients.number(name) for name in state.current.members if not kind.drawable(state.current, name)}

    def _awaited(self, state: RunState) -> list[str]:
        """Devices with a place that are not here."""
        there = state.current.members.items()
        live = ((name, one.since) for name, one in there if one.status in ("selected", "training"))
        return sorted(name for name, since in live if name not in self._present and (name, since) not in self._gone)

    def _begins(self, device: Device) -> None:
        """The device gets its assignment, unless it has it, and says that it starts."""
        if device.assignment is None:
            assignment = Request(CHECK_IN, device.row, device.offer).call(CHECK_IN.shape.again, self.coordinator)
            if assignment is None:
                device.vanish()
            else:
                device.answered(assignment)
        if not device.over and device.assignment is not None:
            where = {"run": self._run, "round": device.assignment.round}
            Request(STARTED, device.row, Started(), where).call(STARTED.shape.call, self.coordinator)
            device.started()
        self._remove_if_over(device)

    def begins_training(self, device: Device) -> None:
        """A session has its checkpoint and begins to train, unless its device vanishes."""
        assignment = device.assignment
        member = None if self._state.round is None else self._state.current.members.get(device.row.device)
        if assignment is None or member is None or member.until is None:
            device.vanish()
            return
        collect_s = self._state.plan.cohort.collect_s
        drawn_at = member.until - collect_s
        conducts = self._habits.conducts([device.row.device], assignment.round, drawn_at)
        conduct = conducts[device.row.device]
        part = (
            None
            if conduct.vanishes
            else part_of(
                self._state,
                device.row.device,
                conduct,
                assignment.round,
                assignment.task,
                began=drawn_at,
                due_s=collect_s,
                clients=self._clients,
                order=self._habits.unit("order", device.row.device, assignment.round),
            )
        )
        if part is None:
            self._gone.add((device.row.device, assignment.round))
            self._gives_nothing()
            device.vanish()
            return
        self._models.setdefault(assignment.checkpoint.digest, self._model(assignment.checkpoint.digest))
        self._agenda.after(max(0.0, part.at - self.now), self._ends, device, part)

    # ------------------------------------------------------------ reports

    def _ends(self, device: Device, part: Part) -> None:
        """Ends the training of a device, or its time."""
        assignment = device.assignment
        if device.over or assignment is None:
            return
        name, job = device.row.device, part.job
        state = self._state
        kind = None if state.round is None else kind_of(state.round)
        if kind is None or kind.assigned(state, assignment.round, name) is None:
            device.trained(None)
        elif job is None:
            self._gives_nothing()
            device.trained(None if assignment.partial == "refuse" else OUT_OF_TIME, complete=False)
        elif isinstance(found := self._kernel.train(self._models[assignment.checkpoint.digest], job), CannotTrain):
            self._cannot(job, found)
            self._gives_nothing()
            device.trained(found)
        else:
            self._some_count, self._in_vain = True, 0
            device.trained(found.done)
            self._deliver(device, found)
        self._remove_if_over(device)
        live = {one.assignment.checkpoint.digest for one in self._present.values() if one.assignment is not None}
        self._models = {digest: model for digest, model in self._models.items() if digest in live}
        self._perform()

    def _deliver(self, device: Device, found: Contributed) -> None:
        if device.update is None:
            return
        number, goal = self._state.round_number, self._state.plan.cohort.goal
        self._updates.put(device.update.digest, found)
        self._sent.append(device)
        self._hand_over()
        same = self._state.round_number == number and self._state.round is not None
        self._trained(number, self._received() if same else goal, goal)

    def _gives_nothing(self) -> None:
        """SimulationError where so many in a row gave nothing that no round would ever close."""
        self._in_vain += 1
        if self._in_vain < _IN_VAIN:
            return
        if self._bad:
            self._failed(*next(iter(self._bad.values())))
        raise SimulationError(f"{_IN_VAIN} clients in a row vanished, withdrew or ran out of time: no round can close")

    def _perform(self) -> None:
        while (task := self.coordinator.core.take_task()) is not None:
            self.coordinator.perform(task)
