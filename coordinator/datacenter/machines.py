"""The status files by which the machines of one worker coordinate, in a folder that all of them see.

::

    machines/leader.json      the leader, and what is to be trained now: an Order, or null
    machines/K.json           machine K: what it has, and how its part of an order ended
    machines/K.lock           locked by the one agent that is machine K

Each machine writes its own file atomically, every BEAT_S seconds, with a rising counter. A reader watches the counter
by its own clock: a machine whose counter does not change for ``lost_s`` seconds is lost. No clocks are compared, and
no port is opened. Anyone with write access to the folder decides what is trained, as with the saved steps beside it:
share it only among your own machines.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.datacenter.spec import Place

BEAT_S = 0.5
"""Seconds between two writes of a machine's file."""
LOOK_S = 0.2
"""Least seconds between two reads of a file."""
FOLDER = "machines"
M = TypeVar("M", bound=BaseModel)


class _StatusMessage(BaseModel):
    model_config = ConfigDict(frozen=True)


class Order(_StatusMessage):
    """What the machines are to train together: one start of one job."""

    job: str
    """Id of the job."""
    start: int
    """Counts the job's starts, from 0."""
    endpoint: str
    """HOST:PORT of the leading machine."""
    members: tuple[tuple[int, str, int], ...]
    """(machine, member, processes) of every follower that takes part, by machine; the leader has the first ranks."""
    data: str
    """Name of the data; each machine has its own copy."""
    spec: dict[str, Any]
    """The JobSpec of the leading machine; paths are relative to the folder."""

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.start

    def place(self, number: int) -> Place:
        """Where the processes of machine ``number`` connect to the others; 0 is the leader."""
        rendezvous_id = f"{self.job}-{self.start}"
        return Place(node=number, nnodes=1 + len(self.members), endpoint=self.endpoint, rendezvous_id=rendezvous_id)

    def place_of(self, machine: int, member: str) -> tuple[int, int] | None:
        """(number among the machines that take part, processes); None where this agent takes no part."""
        for number, (one, name, nproc) in enumerate(self.members, 1):
            if (one, name) == (machine, member):
                return number, nproc
        return None


class Ending(_StatusMessage):
    """How a machine's part of an order ended."""

    job: str
    start: int
    reason: str
    """What happened, for people."""
    final: bool
    """Whether the job cannot be trained at all: another start would fail in the same way."""


class LeaderStatus(_StatusMessage):
    """The leader's file."""

    member: str
    beat: int
    order: Order | None = None


class FollowerStatus(_StatusMessage):
    """A follower's file."""

    machine: int
    member: str
    """Drawn when the agent's process starts."""
    beat: int
    nproc: int
    gpus: int
    learners: dict[str, str]
    examples: dict[str, int]
    """Name of the data held there -> its training examples."""
    ending: Ending | None = None
    """The ending of the last order that ended here."""


class MachineInUse(Exception):
    """Another agent runs with this machine's number."""


class _StatusFile:
    """A status file that a thread writes every BEAT_S seconds; ``set`` changes its content at once."""

    def __init__(self, path: Path, status: LeaderStatus | FollowerStatus) -> None:
        self._path, self._status = path, status
        self._lock, self._over = threading.Lock(), threading.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write()
        self._thread = threading.Thread(target=self._beat, name="quorate-beat", daemon=True)
        self._thread.start()

    def set(self, **changes: Any) -> None:
        with self._lock:
            self._status = self._status.model_copy(update=changes)
        self._write()

    def close(self) -> None:
        """Delete the file: readers see at once that this machine has stopped."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with suppress(OSError):  # a full disk, an unreachable share: the next write may succeed
                self._write()

    def _write(self) -> None:
        with self._lock:
            self._status = self._status.model_copy(update={"beat": self._status.beat + 1})
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text(self._status.model_dump_json())
            fresh.replace(self._path)


class _WatchedFile:
    """Another machine's status file: its content, while its counter rises."""

    def __init__(self, path: Path, lost_s: float, clock: Callable[[], float]) -> None:
        self._path, self._lost_s, self._clock = path, lost_s, clock
        self._status: LeaderStatus | FollowerStatus | None = None
        self._looked_at = self._moved_at = float("-inf")

    def status(self, kind: type[M]) -> M | None:
        """Its content; None where the file is absent, or its counter has not risen within ``lost_s`` or since the first
        read."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            try:
                found: M | None = kind.model_validate_json(self._path.read_bytes())
            except FileNotFoundError:
                found, self._status, self._moved_at = None, None, float("-inf")
            except (OSError, ValidationError):
                found = None  # a share may fail for a moment: the last status holds until it is too old
            if found is not None:
                before, self._status = self._status, found  # type: ignore[assignment]
                if before is not None and (before.member, before.beat) != (found.member, found.beat):  # type: ignore[attr-defined]
                    self._moved_at = now
        moving = now - self._moved_at < self._lost_s
        return self._status if moving and isinstance(self._status, kind) else None


class Leader:
    """The leading machine's side. ``folder``: the one that all machines see."""

    def __init__(self, folder: Path, lost_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self.lost_s, self._clock = folder / FOLDER, lost_s, clock
        self._file = _StatusFile(self._folder / "leader.json", LeaderStatus(member=os.urandom(8).hex(), beat=0))
        self._seen: dict[int, _WatchedFile] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def present(self) -> list[FollowerStatus]:
        """The followers that respond, by machine."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= LOOK_S:
                self._looked_at = now
                for path in self._folder.glob("*.json"):
                    if path.stem.isdecimal():
                        self._seen.setdefault(int(path.stem), _WatchedFile(path, self.lost_s, self._clock))
            found = {machine: seen.status(FollowerStatus) for machine, seen in sorted(self._seen.items())}
        return [status for machine, status in found.items() if status is not None and status.machine == machine]

    def publish(self, order: Order) -> None:
        """Train this order from now on, in place of any earlier one."""
        self._file.set(order=order)

    def withdraw(self) -> None:
        """Withdraw the order: nothing is to be trained."""
        self._file.set(order=None)

    def endings(self, order: Order) -> dict[int, Ending]:
        """Machine -> how its part of this start ended."""
        found = {status.machine: status.ending for status in self._members_of(order)}
        return {machine: end for machine, end in found.items() if end and (end.job, end.start) == order.key}

    def missing(self, order: Order) -> int | None:
        """The first machine of the order that is lost, or has been started again since; None: all respond."""
        there = {(status.machine, status.member) for status in self._members_of(order)}
        return next((one for one, name, _ in order.members if (one, name) not in there), None)

    def close(self) -> None:
        self._file.close()

    def _members_of(self, order: Order) -> list[FollowerStatus]:
        members = {(one, name) for one, name, _ in order.members}
        return [status for status in self.present() if (status.machine, status.member) in members]


class Follower:
    """A follower's side, and its place in the folder until ``close``. MachineInUse where another agent has it."""

    def __init__(
        self,
        folder: Path,
        machine: int,
        *,
        nproc: int,
        gpus: int,
        learners: dict[str, str],
        examples: dict[str, int],
        lost_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine, self.member = machine, os.urandom(8).hex()
        place = folder / FOLDER
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(place / f"{machine}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            taken = f"Another agent is machine {machine} in {folder}; give this one another number."
            raise MachineInUse(taken) from None
        self._leader = _WatchedFile(place / "leader.json", lost_s, clock)
        self._file = _StatusFile(
            place / f"{machine}.json",
            FollowerStatus(
                machine=machine,
                member=self.member,
                beat=0,
                nproc=nproc,
                gpus=gpus,
                learners=learners,
                examples=examples,
            ),
        )

    def has_leader(self) -> bool:
        """Whether a leader responds."""
        return self._leader.status(LeaderStatus) is not None

    def order(self) -> Order | None:
        """The order in which this machine takes part; None where there is no leader or no such order."""
        leading = self._leader.status(LeaderStatus)
        if leading is None or leading.order is None:
            return None
        return leading.order if leading.order.place_of(self.machine, self.member) is not None else None

    def ended(self, order: Order, reason: str, final: bool) -> None:
        """Report that this machine's part ended before there was a result."""
        self._file.set(ending=Ending(job=order.job, start=order.start, reason=reason, final=final))

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
