"""The world of a run with secure rounds: devices that have trained go through the five exchanges, in turns.

::

    collecting   a device that has trained advertises; the roster closes, and those who train longer come too late
    sharing, masking, agreeing, unmasking
                 whenever the round has moved on, each device gets a turn, ``network_s`` later; it sends what is due,
                 rests, or vanishes
    committing   the sum is opened, and the next round opens

Devices really mask, or only quantize, by their primitives; the times, the events and the checkpoints are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from client_sdk.device.contribution import ClearContribution
from client_sdk.protocol.devices import Assignment
from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.memory import Memory
from client_sdk.tensors import Layout, canonical_digest, split
from coordinator.engine.state import RunState
from simulation.engines.port import CannotTrain, Job
from simulation.virtual.authority import SimulatedAuthority
from simulation.virtual.device import Device
from simulation.virtual.masking_device import MaskingDevice
from simulation.virtual.unfinished import Unfinished
from simulation.virtual.world import SimulatedWorld


class SecureWorld(SimulatedWorld):
    """The simulated world of a run with secure rounds. ``primitives``: the cryptography of its devices; ``layout``:
    that of an update's flat vector; other arguments: see ``SimulatedWorld``."""

    def __init__(
        self, *places: Any, authority: SimulatedAuthority, primitives: Primitives, layout: Layout, **settings: Any
    ) -> None:
        super().__init__(*places, **settings)
        self.authority = authority
        self.primitives = primitives
        self._layout = layout
        self._memories: dict[int, Memory] = {}
        self._parent = ("", "")
        """Digests of the newest checkpoint that was asked for: of its file, and of its tensors."""
        self._contributed: dict[str, tuple[Assignment, int]] = {}
        self._waiting_for_turns: dict[str, MaskingDevice] = {}
        self._lagging: list[tuple[Device, Job | None]] = []
        self._seen: tuple[object, ...] = ()

    @property
    def state(self) -> RunState:
        """The run's newest state."""
        return self._state

    def rests(self, device: Device, seconds: float) -> None:
        """The device waits for so long before its next turn."""
        self._agenda.after(seconds, self._turn, device)

    # ------------------------------------------------------------ what is other than in plain rounds

    def _device(self, number: int) -> Device:
        row, offer = self._enrolment.row(number, self.now), self._enrolment.offer(number)
        return MaskingDevice(self, number, row, offer, self._memories.get(number, Memory()))

    def _remove_if_over(self, device: Device) -> None:
        if device.over and isinstance(device, MaskingDevice) and device.memory != Memory():
            self._memories[device.number] = device.memory
        super()._remove_if_over(device)

    def _assign(self, state: RunState) -> None:
        self._contributed.clear()
        super()._assign(state)

    def _most(self, state: RunState) -> int:
        plan = state.plan
        return plan.cohort.goal if plan.secure is None else plan.secure.most_advertisers(plan.cohort)

    def begins_training(self, device: Device) -> None:
        part = self._parts.get(device.row.device)
        if part is not None and isinstance(device, MaskingDevice):
            device.vanishes_before = part.vanishes_before
        super().begins_training(device)

    def _comes_late(self, one: Unfinished) -> None:
        del self._elsewhere[one.device]  # it finds that the round is over

    def _perform(self) -> None:
        while (task := self.coordinator.core.take_task()) is not None:
            self.coordinator.perform(task)

    # ------------------------------------------------------------ the exchanges

    def _collect(self, round: int) -> None:
        """Lets time pass until the round has ended."""
        while True:
            self._perform()
            state = self._state
            if state.round_number != round or state.round is None or state.phase == "idle":
                break
            self._wake(state)
            until = float("inf") if state.deadline is None else state.deadline
            if self._agenda.next_at < until:
                self._happen()
            elif state.deadline is None:
                raise RuntimeError(f"round {round} waits for nothing, in the phase {state.phase}")
            else:
                self._agenda.now = max(self._agenda.now, state.deadline)
                self.coordinator.tick()
        self._hear_of_the_end()

    def _wake(self, state: RunState) -> None:
        """Where the round has moved on: each waiting device gets a turn, after the time of an exchange."""
        secure = state.secure
        if secure is None:
            return
        seen = (state.round_number, state.phase, state.current.attempt, secure.header, secure.roster)
        if seen == self._seen:
            return
        self._seen = seen
        for name, device in self._waiting_for_turns.items():
            self._agenda.after(self._parts[name].network_s, self._turn, device)
        self._waiting_for_turns.clear()
        if state.phase == "collecting" and secure.header:
            lagging, self._lagging = self._lagging, []
            for late, job in lagging:
                self._agenda.after(0.0, self._finish, late, job)

    def _turn(self, device: MaskingDevice) -> None:
        if not device.over:
            device.turn()
        self._stays(device)

    def _finish(self, device: Device, job: Job | None) -> None:
        """Ends the training of a device, or its time."""
        assignment, state = device.assignment, self._state
        if device.over or not isinstance(device, MaskingDevice):
            return
        if assignment is None or state.round_number != assignment.round or state.phase == "idle":
            device.vanish()
        elif state.phase != "collecting":
            self._lagging.append((device, job))  # too late for this roster
            return
        elif job is None:
            device.trained(None, complete=False)
        elif isinstance(result := self._engine.result(job), CannotTrain):
            self._cannot(job, result)
            device.trained(result)
        else:
            self._some_count = True
            name, report = device.row.device, result.report
            self._contributed[name] = assignment, report.examples
            device.contributed(complete=report.work.complete)
            done = 0 if state.secure is None else len(state.secure.advertised)
            self._trained(state.round_number, max(1, done), self._most(state))
        self._stays(device)

    def _stays(self, device: MaskingDevice) -> None:
        """After a turn, unless its part is over."""
        if device.over:
            self._remove_if_over(device)
        else:
            self._waiting_for_turns[device.row.device] = device

    def _hear_of_the_end(self) -> None:
        """The devices that are still there learn that the round is over."""
        for name in list(self._contributed):
            device = self._present.get(name)
            if isinstance(device, MaskingDevice):
                device.turn()
                self._leaves(device)
        for late, _ in self._lagging:
            self._leaves(late)
        self._waiting_for_turns.clear()
        self._lagging.clear()

    def _leaves(self, device: Device) -> None:
        """The round is over for this device."""
        device.vanish()
        self._remove_if_over(device)

    # ------------------------------------------------------------ what devices put in

    @property
    def trained_from(self) -> str:
        """Digest of the tensors from which the devices of this round train."""
        state = self._state
        if self._parent[0] != state.checkpoint:
            with self.coordinator.core.blobs.open(state.checkpoint) as file:
                self._parent = state.checkpoint, canonical_digest(file.read())
        return self._parent[1]

    def contribution(self, device: str) -> ClearContribution:
        """What a device has trained for this round."""
        examples = self._contributed[device][1]
        flat = np.concatenate([block[0] for block in self._engine.columns([device])])
        return ClearContribution(delta=split(flat, self._layout.whole), examples=examples, tensors=self.trained_from)
