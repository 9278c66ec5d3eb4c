"""Runs a job on several machines: which of them can train together, the leader's part, and a follower's. Starts
processes; imports no torch.

Each machine runs its own torchrun; all connect to the leader's endpoint. Where a process dies, torchrun ends on all
machines, and the leader starts all of them again from the last saved step: at most ``max_restarts`` + 1 starts. Where
a whole machine is silent, the job is aborted, since another worker may be faster.

The result and the messages come from the leader's processes, which have the lowest ranks. A follower's error reaches
the leader through the folder.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.child_processes import SupervisedChild
from coordinator.datacenter.job import JobWatch, broke_off, end_of_process, start_processes
from coordinator.datacenter.machines import Ending, Follower, FollowerStatus, Leader, Order
from coordinator.datacenter.preflight import PreflightReport
from coordinator.datacenter.progress import OnMessage
from coordinator.datacenter.spec import JobFailed, JobResult, JobSpec, JobStopped, no_torch

SETTLE_S = 5.0
"""Seconds that one machine's processes may run after another's have ended: they fail by themselves, with a reason."""
PATHS = ("init", "out", "checkpoints")


class MachineLost(Exception):
    """A machine of the group no longer responds: the message is one sentence. Saved steps remain."""


class ConditionEvent(threading.Event):
    """An event that counts as set while a condition holds. A waiting thread must poll it."""

    def __init__(self, condition: Callable[[], object]) -> None:
        super().__init__()
        self._condition = condition

    def is_set(self) -> bool:
        return bool(self._condition()) or super().is_set()


@dataclass(frozen=True, kw_only=True)
class MachineGroup:
    """The machines that do a job together: the leader, and so many processes on each of these followers."""

    leader: Leader
    endpoint: str
    folder: Path
    """All machines see it; it contains the job's paths."""
    followers: Sequence[tuple[FollowerStatus, int]]

    def order(self, spec: JobSpec, data: str, job: str, start: int) -> Order:
        body = spec.model_dump(mode="json")
        for name in PATHS:
            if body[name] is not None:
                body[name] = os.path.relpath(body[name], self.folder)
        members = tuple((status.machine, status.member, nproc) for status, nproc in self.followers)
        return Order(job=job, start=start, endpoint=self.endpoint, members=members, data=data, spec=body)


def share_out(
    nproc: int, here: int, others: Sequence[FollowerStatus]
) -> tuple[int, list[tuple[FollowerStatus, int]]] | None:
    """``nproc`` processes distributed over the machines, in order: (processes here, [(follower, processes)]). None
    where the machines allow fewer."""
    mine, left, found = min(here, nproc), nproc - min(here, nproc), []
    for status in others:
        if left and status.nproc:
            found.append((status, min(left, status.nproc)))
            left -= found[-1][1]
    return None if left else (mine, found)


def lead(
    spec: JobSpec,
    group: MachineGroup,
    data: str,
    on_progress: OnMessage,
    stop: threading.Event,
) -> JobResult:
    """Run the job with other machines, as ``job.launch`` does alone. ``spec`` is this machine's part; ``data`` is the
    name under which each machine holds its copy.

    Raises JobFailed, JobStopped, and MachineLost.
    """
    if (lacking := no_torch()) is not None:
        raise JobFailed(lacking)
    job = os.urandom(8).hex()
    others = _FollowerWatch(group.leader)
    watch = JobWatch(on_progress, ConditionEvent(lambda: stop.is_set() or others.broken()))
    with (
        tempfile.TemporaryDirectory(prefix="quorate-job-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        cause = guess = ""
        try:
            for start in range(spec.max_restarts + 1):
                if start:
                    group = rejoined(group, stop)
                order = group.order(spec, data, job, start)
                others.begin(order)
                group.leader.publish(order)
                child = start_processes(spec, start, log, scratch, order.place(0))
                code = _one_start(watch, child, spec.hang_s, stop)
                if watch.result is not None:
                    return watch.result
                if watch.failed is not None:
                    raise JobFailed(watch.failed)
                endings = others.settled()
                final = next((end.reason for end in endings.values() if end.final), None)
                if final is not None:
                    raise JobFailed(final)
                reported = next((f"machine {one}: {end.reason}" for one, end in endings.items()), None)
                cause = (watch.reason if watch.reason != guess else "") or reported or ""
                guess = "" if cause else end_of_process(code)
                watch.reason = cause or guess
        finally:
            group.leader.withdraw()
        log.seek(0)
        raise JobFailed(broke_off(spec, code, log.read(), cause.rstrip(".")))


def follow(
    follower: Follower,
    order: Order,
    folder: Path,
    learners: Mapping[str, str],
    data: Mapping[str, str],
    stop: threading.Event,
    threads: int | None = None,
) -> str | None:
    """Run this machine's part of an order until it ends or the leader replaces the order. Returns why it failed, which
    the leader reads too; None where it did not fail. ``threads``: of each process here, as in ``JobSpec``."""
    place = order.place_of(follower.machine, follower.member)
    if place is None:
        return None
    number, nproc = place
    over = ConditionEvent(lambda: stop.is_set() or (now := follower.order()) is None or now.key != order.key)
    try:
        spec = part_of(order, folder, nproc, learners, data, threads)
    except ValueError as error:
        return _ended(follower, order, f"Machine {follower.machine}: {' '.join(str(error).split())}", final=True)
    if (lacking := no_torch()) is not None:
        return _ended(follower, order, lacking, final=True)
    watch = JobWatch(lambda message: None, over)
    with (
        tempfile.TemporaryDirectory(prefix="quorate-job-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        try:
            code = watch.follow(start_processes(spec, order.start, log, scratch, order.place(number)), spec.hang_s)
        except JobStopped:
            return None
        if watch.failed is not None:
            return _ended(follower, order, watch.failed, final=True)
        if code == 0:
            return None
        log.seek(0)
        alone = spec.model_copy(update={"max_restarts": 0, "checkpoints": None})
        reason = watch.reason or broke_off(alone, code, log.read()).removeprefix("The training broke off: ")
        return _ended(follower, order, reason.rstrip("."), final=False)


def part_of(
    order: Order,
    folder: Path,
    nproc: int,
    learners: Mapping[str, str],
    data: Mapping[str, str],
    threads: int | None = None,
) -> JobSpec:
    """A follower's part of an order, on its own data and its own learner. ValueError where the order needs what this
    machine does not have, or names files outside the shared folder."""
    body = dict(order.spec)
    if body.get("learner") not in learners:
        raise ValueError(f"there is no learner {body.get('learner')!r} here.")
    if order.data not in data:
        raise ValueError(f"it does not hold the data {order.data!r}.")
    root = folder.resolve()
    for name in PATHS:
        if body.get(name) is not None:
            path = (root / str(body[name])).resolve()
            if not path.is_relative_to(root):
                raise ValueError(f"{name} is outside of the folder that the machines share.")
            body[name] = str(path)
    return JobSpec.model_validate({**body, "data": data[order.data], "nproc": nproc, "threads": threads})


class _FollowerWatch:
    """The leader's view of the followers while its own processes run."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._order: Order | None = None
        self._ended_at: float | None = None

    def begin(self, order: Order) -> None:
        self._order, self._ended_at = order, None

    def broken(self) -> bool:
        """Whether the processes here wait in vain: another machine is lost, or its part has ended."""
        if self._order is None:
            return False
        endings = self._leader.endings(self._order)
        if endings and self._ended_at is None:
            self._ended_at = time.monotonic()
        settled = self._ended_at is not None and time.monotonic() - self._ended_at >= SETTLE_S
        return settled or any(end.final for end in endings.values()) or self._leader.missing(self._order) is not None

    def settled(self) -> dict[int, Ending]:
        """The followers' endings, after a wait of up to SETTLE_S seconds."""
        order = self._order
        if order is None:
            return {}
        until, found = time.monotonic() + SETTLE_S, self._leader.endings(order)
        while time.monotonic() < until and len(found) < len(order.members) and not any(e.final for e in found.values()):
            if self._leader.missing(order) is not None:
                break
            time.sleep(0.05)
            found = self._leader.endings(order)
        return found


def _one_start(watch: JobWatch, child: SupervisedChild, hang_s: float, stopped: threading.Event) -> int:
    """Wait until the processes of a start have ended, by themselves or because of another machine. Returns the exit
    code."""
    try:
        return watch.follow(child, hang_s)
    except JobStopped:
        if stopped.is_set() or child.returncode is None:
            raise
        return child.returncode


def rejoined(
    group: MachineGroup,
    stopped: threading.Event,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> MachineGroup:
    """The group's machines, once each of them is known to live: its agent has written its file again since this call,
    or is another agent. MachineLost where one does not within ``lost_s``.

    A file alone does not show that its agent lives: it is there for ``lost_s`` after that was killed. A start with a
    dead agent breaks as soon as its successor comes, and counts as a restart. The second write after the first look
    counts, since the first may be older than the call.
    """
    until, first = clock() + group.leader.lost_s, {s.machine: s for s in group.leader.present()}
    while True:
        there = {status.machine: status for status in group.leader.present()}
        alive = {machine for machine, status in there.items() if _lives(status, first.setdefault(machine, status))}
        lacking = [status.machine for status, _ in group.followers if status.machine not in alive]
        if not lacking:
            return replace(group, followers=[(there[status.machine], nproc) for status, nproc in group.followers])
        if stopped.is_set():
            raise JobStopped("The training was asked to stop.")
        if clock() >= until:
            raise MachineLost(f"Machine {lacking[0]} of the group no longer responds.")
        pause(0.1)


def _lives(now: FollowerStatus, first: FollowerStatus) -> bool:
    return now.member != first.member or now.beat >= first.beat + 2


def _ended(follower: Follower, order: Order, reason: str, final: bool) -> str:
    follower.ended(order, reason, final)
    return reason


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
