"""What the machines of one worker tell each other: small files in a folder that all of them see.

::

    machines/leader.json      who leads, and what is to be trained now: an Order, or nothing
    machines/K.json           machine K: what it has, and how its part of an order ended
    machines/K.lock           held by the one agent that is machine K

Each writes its own file, whole or not at all, and again every BEAT_S with a number that rises. Who reads it looks
whether the number moves, by its own clock: a file that stands still for ``lost_s`` is of a machine that is not there.
No clocks are compared, and nothing listens at a port. Whoever may write into the folder may say what is trained, as
with the saved steps beside it: keep it among your own machines.

Knows files and time. It has never heard of torchrun, leases, HTTP or torch.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.datacenter.spec import Place

BEAT_S = 0.5
"""How often a machine says that it is there."""
LOOK_S = 0.2
"""How often a file is read again, at most."""
FOLDER = "machines"
M = TypeVar("M", bound=BaseModel)


class _Words(BaseModel):
    model_config = ConfigDict(frozen=True)


class Order(_Words):
    """What the machines are to train together: one start of one job."""

    job: str
    """Another word for each job."""
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
        """Where the processes of that machine meet the others'; 0 is the leader."""
        meeting = f"{self.job}-{self.start}"
        return Place(node=number, nnodes=1 + len(self.members), endpoint=self.endpoint, meeting=meeting)

    def place_of(self, machine: int, member: str) -> tuple[int, int] | None:
        """(number among the machines that take part, processes); None where this agent is not asked."""
        for number, (one, name, nproc) in enumerate(self.members, 1):
            if (one, name) == (machine, member):
                return number, nproc
        return None


class Ending(_Words):
    """How a machine's part of an order ended."""

    job: str
    start: int
    reason: str
    """What happened, for people."""
    final: bool
    """Whether it cannot be trained at all: the same would happen again."""


class Leading(_Words):
    """The leader's file."""

    member: str
    beat: int
    order: Order | None = None


class Following(_Words):
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
    """Of the last order that ended here."""


class MachineInUse(Exception):
    """Another agent is this machine."""


class _File:
    """One file that is written again and again, by a thread; ``set`` changes what it says, at once."""

    def __init__(self, path: Path, words: Leading | Following) -> None:
        self._path, self._words = path, words
        self._lock, self._over = threading.Lock(), threading.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write()
        self._thread = threading.Thread(target=self._beat, name="quorate-beat", daemon=True)
        self._thread.start()

    def set(self, **changes: Any) -> None:
        with self._lock:
            self._words = self._words.model_copy(update=changes)
        self._write()

    def close(self) -> None:
        """The file goes: whoever reads knows at once that nobody is there."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with suppress(OSError):  # a full disk, a share that is away: the next beat may be written
                self._write()

    def _write(self) -> None:
        with self._lock:
            self._words = self._words.model_copy(update={"beat": self._words.beat + 1})
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text(self._words.model_dump_json())
            fresh.replace(self._path)


class _Seen:
    """Somebody else's file: what it says, while it moves."""

    def __init__(self, path: Path, lost_s: float, clock: Callable[[], float]) -> None:
        self._path, self._lost_s, self._clock = path, lost_s, clock
        self._words: Leading | Following | None = None
        self._looked_at = self._moved_at = float("-inf")

    def words(self, kind: type[M]) -> M | None:
        """What it says; None where it is not there, stands still, or has not moved yet before these eyes."""
        now = self._clock()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            try:
                found: M | None = kind.model_validate_json(self._path.read_bytes())
            except FileNotFoundError:
                found, self._words, self._moved_at = None, None, float("-inf")
            except (OSError, ValidationError):
                found = None  # a share that hiccups is no farewell: the last words stand until they are too old
            if found is not None:
                before, self._words = self._words, found  # type: ignore[assignment]
                if before is not None and (before.member, before.beat) != (found.member, found.beat):  # type: ignore[attr-defined]
                    self._moved_at = now
        moving = now - self._moved_at < self._lost_s
        return self._words if moving and isinstance(self._words, kind) else None


class Leader:
    """The leading machine's side. ``folder``: the one that all machines see."""

    def __init__(self, folder: Path, lost_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self.lost_s, self._clock = folder / FOLDER, lost_s, clock
        self._file = _File(self._folder / "leader.json", Leading(member=os.urandom(8).hex(), beat=0))
        self._seen: dict[int, _Seen] = {}
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    def there(self) -> list[Following]:
        """The followers that are there, by machine."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= LOOK_S:
                self._looked_at = now
                for path in self._folder.glob("*.json"):
                    if path.stem.isdecimal():
                        self._seen.setdefault(int(path.stem), _Seen(path, self.lost_s, self._clock))
            found = {machine: seen.words(Following) for machine, seen in sorted(self._seen.items())}
        return [words for machine, words in found.items() if words is not None and words.machine == machine]

    def give(self, order: Order) -> None:
        """From now on this is what is trained; None of the orders before."""
        self._file.set(order=order)

    def take_back(self) -> None:
        """Nothing is to be trained."""
        self._file.set(order=None)

    def endings(self, order: Order) -> dict[int, Ending]:
        """Machine -> how its part of this very start ended."""
        found = {words.machine: words.ending for words in self._asked(order)}
        return {machine: end for machine, end in found.items() if end and (end.job, end.start) == order.key}

    def missing(self, order: Order) -> int | None:
        """The first machine of the order that is lost, or has been started again since; None: all are there."""
        there = {(words.machine, words.member) for words in self._asked(order)}
        return next((one for one, name, _ in order.members if (one, name) not in there), None)

    def close(self) -> None:
        self._file.close()

    def _asked(self, order: Order) -> list[Following]:
        asked = {(one, name) for one, name, _ in order.members}
        return [words for words in self.there() if (words.machine, words.member) in asked]


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
        self._leader = _Seen(place / "leader.json", lost_s, clock)
        self._file = _File(
            place / f"{machine}.json",
            Following(
                machine=machine,
                member=self.member,
                beat=0,
                nproc=nproc,
                gpus=gpus,
                learners=learners,
                examples=examples,
            ),
        )

    def led(self) -> bool:
        """Whether a leader is there."""
        return self._leader.words(Leading) is not None

    def order(self) -> Order | None:
        """What this machine is to train now; None where there is no leader, or it asks for nothing of this one."""
        leading = self._leader.words(Leading)
        if leading is None or leading.order is None:
            return None
        return leading.order if leading.order.place_of(self.machine, self.member) is not None else None

    def ended(self, order: Order, reason: str, final: bool) -> None:
        """This machine's part is over before the result was there."""
        self._file.set(ending=Ending(job=order.job, start=order.start, reason=reason, final=final))

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
