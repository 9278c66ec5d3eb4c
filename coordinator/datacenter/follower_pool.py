"""Selects the machines that can train with this worker: those that respond, and have what this one offers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.datacenter.machines import FollowerStatus, Leader
from coordinator.datacenter.multi_machine import MachineGroup, share_out
from coordinator.datacenter.preflight import PreflightReport

GATHER_S = 3.0
"""Seconds that a new group waits for its machines."""


class FollowerPool:
    """The leader's followers. ``ready``: this machine's capabilities. ``report``: receives a sentence where a machine
    comes, goes, or is incompatible."""

    def __init__(
        self,
        leader: Leader,
        endpoint: str,
        folder: Path,
        ready: PreflightReport,
        nnodes: int,
        report: Callable[[str], None],
    ) -> None:
        self._leader, self._endpoint, self._folder = leader, endpoint, folder
        self._ready, self._nnodes, self._report = ready, nnodes, report
        self._mismatches: dict[tuple[int, str], str | None] = {}

    @property
    def device(self) -> str:
        """What all machines of the group train on."""
        return "cuda" if self._ready.gpus else "cpu"

    def compatible(self) -> list[FollowerStatus]:
        """The followers that can train with this machine now, by number."""
        there = {(status.machine, status.member): status for status in self._leader.present()}
        for machine, member in [key for key in self._mismatches if key not in there]:
            if self._mismatches.pop((machine, member)) is None:
                self._report(f"Machine {machine} no longer responds.")
        for key, status in there.items():
            if key not in self._mismatches:
                self._mismatches[key] = mismatch = self._mismatch(status)
                count = f"{status.nproc} process{'es' if status.nproc > 1 else ''}"
                self._report(f"Machine {status.machine} is here ({count})." if mismatch is None else mismatch)
        return [status for key, status in sorted(there.items()) if self._mismatches[key] is None]

    def gather(self, stop: threading.Event) -> None:
        """Wait up to GATHER_S seconds for running followers, so that the first offer counts them."""
        until = time.monotonic() + GATHER_S
        while len(self.compatible()) < self._nnodes - 1 and time.monotonic() < until and not stop.wait(0.1):
            pass

    def group(self, nproc: int, here: int) -> tuple[int, MachineGroup] | None:
        """(processes of this machine, the other machines with theirs) for ``nproc`` processes; ``here``: the most of
        this machine. None where the machines allow fewer."""
        shared = share_out(nproc, here, self.compatible())
        if shared is None:
            return None
        mine, others = shared
        return mine, MachineGroup(leader=self._leader, endpoint=self._endpoint, folder=self._folder, followers=others)

    def _mismatch(self, status: FollowerStatus) -> str | None:
        """Why this follower is excluded; None where it is compatible."""
        left_out = f"Machine {status.machine} is left out: "
        if status.machine >= self._nnodes:
            return f"{left_out}the group has the machines 0 to {self._nnodes - 1}."
        if bool(status.gpus) != bool(self._ready.gpus):
            mine, other = ("GPUs", "CPUs") if self._ready.gpus else ("CPUs", "GPUs")
            return f"{left_out}it trains on {other}, and this one on {mine}."
        for name in self._ready.examples:
            if name not in status.examples:
                return f"{left_out}it does not hold the data {name!r}."
            if status.examples[name] != self._ready.examples[name]:
                return (
                    f"{left_out}its {name!r} has {status.examples[name]} examples, and this machine's has "
                    f"{self._ready.examples[name]}."
                )
        for name, version in self._ready.learners.items():
            if status.learners.get(name) != version:
                found = status.learners.get(name)
                have = f"has {name} {found}" if found is not None else f"does not have {name}"
                return f"{left_out}it {have}, and this machine has {version}."
        return None
