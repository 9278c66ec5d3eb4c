"""Which other machines a worker may count on: those that are there, and have what this one offers.

Knows the followers' words and this machine's. It starts nothing, and has never heard of leases or HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.datacenter.machines import Following, Leader
from coordinator.datacenter.preflight import Ready
from coordinator.datacenter.several import MachineGroup, share_out

GATHER_S = 3.0
"""How long a group that begins waits for its machines."""


class Together:
    """The leader's company. ``ready``: what this machine has. ``tell``: hears a sentence where a machine comes, goes,
    or does not fit."""

    def __init__(
        self, leader: Leader, endpoint: str, folder: Path, ready: Ready, nnodes: int, tell: Callable[[str], None]
    ) -> None:
        self._leader, self._endpoint, self._folder = leader, endpoint, folder
        self._ready, self._nnodes, self._tell = ready, nnodes, tell
        self._known: dict[tuple[int, str], str | None] = {}

    @property
    def device(self) -> str:
        """What all machines of the group train on."""
        return "cuda" if self._ready.gpus else "cpu"

    def fitting(self) -> list[Following]:
        """The followers that can train with this machine now, by number."""
        there = {(words.machine, words.member): words for words in self._leader.there()}
        for machine, member in [key for key in self._known if key not in there]:
            if self._known.pop((machine, member)) is None:
                self._tell(f"Machine {machine} is not heard of any more.")
        for key, words in there.items():
            if key not in self._known:
                self._known[key] = against = self._against(words)
                count = f"{words.nproc} process{'es' if words.nproc > 1 else ''}"
                self._tell(f"Machine {words.machine} is here ({count})." if against is None else against)
        return [words for key, words in sorted(there.items()) if self._known[key] is None]

    def gather(self, stop: threading.Event) -> None:
        """Wait a moment for those that are there already, so that the first offer counts them."""
        until = time.monotonic() + GATHER_S
        while len(self.fitting()) < self._nnodes - 1 and time.monotonic() < until and not stop.wait(0.1):
            pass

    def group(self, nproc: int, here: int) -> tuple[int, MachineGroup] | None:
        """(Processes of this machine, who else does how many) where ``nproc`` find a place; ``here``: the most of this
        machine."""
        shared = share_out(nproc, here, self.fitting())
        if shared is None:
            return None
        mine, others = shared
        return mine, MachineGroup(leader=self._leader, endpoint=self._endpoint, folder=self._folder, followers=others)

    def _against(self, words: Following) -> str | None:
        """Why this follower is left out."""
        left_out = f"Machine {words.machine} is left out: "
        if words.machine >= self._nnodes:
            return f"{left_out}the group has the machines 0 to {self._nnodes - 1}."
        if bool(words.gpus) != bool(self._ready.gpus):
            mine, other = ("GPUs", "CPUs") if self._ready.gpus else ("CPUs", "GPUs")
            return f"{left_out}it trains on {other}, and this one on {mine}."
        for name in self._ready.examples:
            if name not in words.examples:
                return f"{left_out}it does not hold the data {name!r}."
            if words.examples[name] != self._ready.examples[name]:
                return (
                    f"{left_out}its {name!r} has {words.examples[name]} examples, and this machine's has "
                    f"{self._ready.examples[name]}."
                )
        for name, version in self._ready.learners.items():
            if words.learners.get(name) != version:
                found = words.learners.get(name)
                have = f"has {name} {found}" if found is not None else f"does not have {name}"
                return f"{left_out}it {have}, and this machine has {version}."
        return None
