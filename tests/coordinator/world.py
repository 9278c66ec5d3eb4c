"""A coordinator in memory with a clock that stands still, and devices that a test controls.

A test reads as a list of happenings: devices check in, the clock moves, updates arrive. Each update carries a mark of
its device and its round: lane ``d`` of ``marks`` is ``2^round``, so a device counted twice, or in the wrong round, is
visible in the model.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import (
    Assignment,
    CheckIn,
    Policy,
    Receipt,
    Score,
    Wait,
    Work,
)
from client_sdk.protocol.operators import CreateRun, RunView
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.secure import SECURE_VERSION
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.blobs import Blobs, MemoryBlobs
from coordinator.engine import effects as fx
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.fleet import PoolPlace
from coordinator.settings import Settings
from coordinator.store.memory import MemoryStore
from coordinator.store.port import DeviceRow, Store, WorkerRow
from tests.coordinator.certified import Certifier, key_of

LEARNER = "tests:marks"
SECURE = fx.Announce | fx.Gather | fx.SendAnswers | fx.Open | fx.CommitSum
"""Actions that a coordinator refuses to perform: the tests of secure runs submit what comes of them themselves."""


class StandingClock:
    """Moves only when a test moves it."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self._at, self._fallen = at, 0.0

    @property
    def at(self) -> float:
        return self._at

    @at.setter
    def at(self, at: float) -> None:
        self._fallen += max(0.0, self._at - at)
        self._at = at

    def now(self) -> float:
        return self._at

    def elapsed(self) -> float:
        return self._at + self._fallen


def counting_entropy() -> Any:
    """Different bytes at every call, the same in every test."""
    calls = itertools.count()

    def entropy(count: int) -> bytes:
        return hashlib.shake_256(f"entropy {next(calls)}".encode()).digest(count)

    return entropy


class World:
    """``devices`` registered devices, their authority, and one coordinator. ``settle`` performs all that is to do."""

    def __init__(
        self,
        devices: int = 8,
        *,
        store: Store | None = None,
        blobs: Blobs | None = None,
        clock: StandingClock | None = None,
        ids: Sequence[str] = (),
    ) -> None:
        """``ids``: what the authority calls the first devices; it draws the ids of the others."""
        self.clock = clock or StandingClock()
        self.store = store or MemoryStore()
        self.blobs = blobs or MemoryBlobs()
        self.settings = Settings()
        self.authority = Certifier()
        self.entropy = counting_entropy()
        self.coordinator = self.boot()
        self.size = devices
        self.rows: list[DeviceRow] = []
        self.coordinator.identities.take_list(self.authority.list(self.clock.at))
        self.worker_keys: list[DeviceKey] = []
        self.keys = [key_of(f"device {number}") for number in range(devices)]
        for key, given in itertools.zip_longest(self.keys, ids):
            certificate = self.authority.certificate(key, at=self.clock.at, id=given)
            self.rows.append(self.coordinator.identities.register_device(certificate, examples=1000)())

    def worker(self, label: str = "cluster") -> WorkerRow:
        """One more registered worker."""
        self.worker_keys.append(key_of(f"worker {len(self.worker_keys)}"))
        certificate = self.authority.certificate(self.worker_keys[-1], at=self.clock.at, holder="worker")
        return self.coordinator.identities.register_worker(certificate, label=label)

    def boot(self) -> Coordinator:
        """A coordinator on what is durable, as after a crash."""
        self.coordinator = self.replica()
        return self.coordinator

    def replica(self) -> Coordinator:
        """One more coordinator on the same store and blobs."""
        coordinator = Coordinator(
            Core(self.store, self.blobs, clock=self.clock, settings=self.settings, entropy=self.entropy),
            authority=self.authority.pinned(),
        )
        coordinator.recover()
        return coordinator

    # ------------------------------------------------------------ operators

    def plan(self, **sections: Any) -> dict[str, Any]:
        """A plan for 4 of 3, quorum 2; sections override by key."""
        base: dict[str, Any] = {
            "name": "marks",
            "task": {"learner": LEARNER},
            "cohort": {"select": 4, "goal": 3, "quorum": 0.6, "select_s": 10, "collect_s": 60},
            "finish": {"rounds": 5},
        }
        for name, section in sections.items():
            base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
        return base

    def model(self) -> Tensors:
        return {"marks": np.zeros(self.size, np.float32), "steps": np.array(7, np.int64)}

    def create(self, model: Tensors | None = None, **sections: Any) -> RunView:
        body = to_bytes(model or self.model())
        digest = hashlib.sha256(body).hexdigest()
        with self.coordinator.core.blobs.spool() as spool:
            spool.write(body)
            self.coordinator.operators.put_checkpoint(spool, digest)
        return self.coordinator.operators.create_run(CreateRun(plan=self.plan(**sections), init=digest, origin="test"))

    def checkpoint(self, run: str = "marks") -> Tensors:
        return from_bytes(self.blobs.open(self.coordinator.operators.run(run).checkpoint).read())

    # ------------------------------------------------------------ time

    def settle(self) -> None:
        """Lets the coordinator do everything it can do at this moment, until nothing changes any more."""
        for _ in range(100):
            before = [(run, self.store.head(run)) for run in self.store.run_ids()]
            self.coordinator.tick()
            task = self.coordinator.core.take_task()
            while task is not None:
                if not isinstance(task[1], SECURE):
                    self.coordinator.perform(task)
                task = self.coordinator.core.take_task()
            if before == [(run, self.store.head(run)) for run in self.store.run_ids()]:
                return
        raise AssertionError("the coordinator does not come to rest")

    def pass_time(self, seconds: float) -> None:
        self.clock.at += seconds
        self.settle()

    # ------------------------------------------------------------ devices

    def index(self, device: str) -> int:
        return next(number for number, row in enumerate(self.rows) if row.device == device)

    def check_in(self, *numbers: int, examples: int = 10, version: str = "1", **policy: Any) -> list[Any]:
        """These devices (all, when none is named) check in; then the coordinator settles. The answers, in order;
        None: it waits in the pool."""
        message = self.message(examples=examples, version=version, **policy)
        answers = [
            self.coordinator.devices.check_in(self.rows[number], message)()
            for number in numbers or range(len(self.rows))
        ]
        self.settle()
        return [None if isinstance(answer, PoolPlace) else answer for answer in answers]

    def message(self, *, examples: int = 10, version: str = "1", **policy: Any) -> CheckIn:
        """What a device of these tests says when it checks in; one with bounds on secure rounds speaks their
        protocol."""
        secure = SECURE_VERSION if "secure" in policy else 0
        return CheckIn(
            examples=examples, learners={LEARNER: version}, policy=Policy(**policy), secure=secure, hold_s=25
        )

    def assignment(self, number: int) -> Assignment | None:
        return self.coordinator.devices.assignment(self.rows[number].device)

    def cohort(self) -> list[int]:
        """Numbers of the devices that have a live assignment."""
        return [number for number in range(len(self.rows)) if self.assignment(number) is not None]

    def body(
        self,
        number: int,
        round: int = 1,
        *,
        run: str = "marks",
        examples: int = 10,
        codec: str = "float32@1",
        **more: Any,
    ) -> bytes:
        marks = np.zeros(self.size, np.float32)
        marks[number] = 2.0**round
        delta = more.pop("delta", {"marks": marks})
        work = more.pop("work", Work(steps=4, steps_planned=4, epochs=1.0, examples_seen=examples))
        update = Update(
            delta, examples, work=work, metrics=more.pop("metrics", {"loss": 0.5}), held_out=more.pop("held_out", None)
        )
        return encode_update(update, codec, run, round, more.pop("attempt", 0))

    def send(self, number: int, body: bytes, round: int = 1, *, run: str = "marks", attempt: int = 0) -> Receipt:
        """One device sends these bytes for this round."""
        device = self.rows[number]
        limit = self.coordinator.devices.update_limit(device.device, run, round, attempt)
        with self.coordinator.core.blobs.spool(limit) as spool:
            spool.write(body)
            receipt = self.coordinator.devices.report(device, run, round, attempt, spool)()
        self.settle()
        return receipt

    def report(self, *numbers: int, round: int = 1, **more: Any) -> list[Receipt]:
        return [self.send(number, self.body(number, round, **more), round) for number in numbers]

    def play_round(self, round: int) -> list[int]:
        """All check in, the first of the cohort to the goal report. Who counted."""
        self.check_in()
        cohort = self.cohort()
        goal = self.coordinator.operators.run("marks").plan["cohort"]["goal"]  # type: ignore[index]
        self.report(*cohort[:goal], round=round)
        return cohort[:goal]

    # ------------------------------------------------------------ what is true

    def expected(self, counted: Mapping[int, Sequence[int]]) -> Tensors:
        """The model when these devices counted once, with equal weight, in these rounds, and none other."""
        marks = np.zeros(self.size, np.float32)
        for number, devices in counted.items():
            lanes = np.zeros(self.size, np.float64)
            lanes[list(devices)] = 2.0**number
            marks = marks + (lanes / len(devices)).astype(np.float32)
        return {"marks": marks, "steps": np.array(7, np.int64)}

    def require(self, counted: Mapping[int, Sequence[int]], run: str = "marks") -> None:
        """The run's model, its line and its contributions are those of these rounds: nobody twice, nobody lost."""
        found, wanted = self.checkpoint(run), self.expected(counted)
        assert found["marks"].tolist() == wanted["marks"].tolist()
        assert found["steps"] == wanted["steps"]
        line = self.store.checkpoints(run)
        assert [(row.version, row.parent_version) for row in line] == [
            (version, version - 1 if version else None) for version in range(len(counted) + 1)
        ]
        for number, devices in counted.items():
            rows = self.store.contributions(run, number)
            assert [row.device for row in rows] == sorted(self.rows[device].device for device in devices)
        assert all(self.blobs.has(row.digest) for row in line), "no checkpoint without its blob"

    def pool(self, run: str = "marks") -> bytes:
        """The list that the last cohort was drawn from, or what its tree shows of who was drawn, as it was kept."""
        with self.blobs.open(str(self.drawn(run)["pool"])) as file:
            return file.read()

    def drawn(self, run: str = "marks") -> dict[str, Any]:
        """What the log says of the last draw."""
        return [row for row in self.store.events(run, 0) if row.kind == "Drawn"][-1].body

    @contextmanager
    def refuses(self, kind: str, words: str = ".") -> Iterator[None]:
        """What happens inside is refused with this kind of problem, in these words."""
        with pytest.raises(ProblemError, match=words) as refusal:
            yield
        assert refusal.value.problem.kind == kind, refusal.value.problem

    def stored(self, digest: str, run: str = "marks") -> bool:
        """Whether the bytes of an update are stored, in a row or in a blob."""
        return bool(self.store.messages(run, [digest])) or self.blobs.has(digest)

    def refusals(self, round: int = 1, run: str = "marks") -> list[tuple[int, str]]:
        """(device, kind) of each refusal recorded in a round, in order."""
        return [(self.index(row.device), row.kind) for row in self.store.refusals(run, round)]


__all__ = ["LEARNER", "Score", "StandingClock", "Wait", "World", "counting_entropy"]
