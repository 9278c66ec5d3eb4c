"""Clients as the coordinator knows them: their rows, as if each had registered before the run, and what each offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from client_sdk.protocol.devices import CheckIn, Policy, SecureBounds
from client_sdk.protocol.secure import SECURE_VERSION
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow
from simulation.clients import Clients
from simulation.virtual.device import Device, device_row

_LONGEST = 64
"""Letters of a label."""


def label_of(name: str, device_class: str) -> str:
    """``class/id``, as real devices say their class; empty where there are no classes."""
    return f"{device_class}/{name}"[:_LONGEST] if device_class else ""


class SimulatedEnrolment:
    """``enrol`` writes the rows of new devices to the coordinator's store. ``class_of``: device -> its class."""

    def __init__(self, coordinator: Coordinator, run: str, clients: Clients, class_of: Callable[[str], str]) -> None:
        self._coordinator = coordinator
        self._clients = clients
        self._class_of = class_of
        plan = coordinator.core.state(run).plan
        task, self._secure = plan.task, plan.secure
        self._learners = {task.learner: task.learner_version or "simulated"}
        self._rows: dict[int, DeviceRow] = {}

    def row(self, number: int, now: float) -> DeviceRow:
        """The row of this client's device, which it gets at ``now`` where it has none yet."""
        name = self._clients.id(number)
        examples = self._clients.holdings.examples(number)
        return self._rows.get(number) or device_row(name, examples, label_of(name, self._class_of(name)), now)

    def offer(self, number: int) -> CheckIn:
        """What the device sends when it checks in. Its owner allows secure rounds as the plan asks for them, but for
        what no owner can allow."""
        examples = self._clients.holdings.examples(number)
        if self._secure is None:
            return CheckIn(examples=examples, learners=self._learners, hold_s=0)
        bounds = SecureBounds(smallest_cohort=self._secure.minimum_cohort, smallest_sigma=self._secure.rule.sigma or 1)
        policy = Policy(secure=bounds)
        return CheckIn(examples=examples, learners=self._learners, policy=policy, secure=SECURE_VERSION, hold_s=0)

    def enrol(self, devices: Sequence[Device]) -> None:
        """Writes the rows of those devices that the coordinator does not know yet."""
        new = [device for device in devices if device.number not in self._rows]
        if not new:
            return
        with self._coordinator.core.store.transaction() as tx:
            for device in new:
                if tx.device(device.row.device) is None:
                    tx.insert_device(device.row)
        self._rows |= {device.number: device.row for device in new}
