"""Private runs that die at each durable step, by turns, and what must hold of their noise and their ledger.

A schedule is (step, when, what): at its step-th write of the store or the blobs the process dies, before the write or
after it. Then ``restart`` starts it again; ``lose`` also takes the bytes of an update from the disk, so that its device
is asked for another one; ``set-back`` plays the round to its end first, puts the folder back as it was at that step,
and lets the round end with other devices; ``again`` creates the run once more in an empty folder, with the same name.

What must hold, of all processes together: no stream of noise is in two sums; a sum has one stream, as long as the
folder goes forwards; the ledger holds each round that was committed, at each death and at the end; nobody has lost more
than the plan allows; ``verify`` finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.blobs import MemoryBlobs
from coordinator.engine.plan import Plan
from coordinator.folding.noise import RoundSeed
from coordinator.runtime import devices
from coordinator.store.memory import MemoryStore, MemoryTransaction
from coordinator.store.port import CheckpointRow, ContributionRow
from coordinator.verify import verify
from tests.coordinator.runtime.test_private_rounds import create
from tests.coordinator.world import World

ROUNDS = 2
MOST = 2
RUN, LEDGER = "marks", "run:marks"
When = Literal["before", "after"]
What = Literal["restart", "lose", "set-back", "again"]


class Broken(AssertionError):
    """An invariant does not hold."""


class Died(BaseException):
    """The process has died: nothing handles it."""


@dataclass
class Noise:
    """Which streams of noise went into which sums."""

    sums: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    """Key of a stream -> parent and digest of the sum that it went into."""
    keys: dict[tuple[int, str, bytes], bytes] = field(default_factory=dict)
    """Round, parent and sum -> key, since the folder was set back last."""

    def see(self, key: bytes, round: int, parent: str, total: bytes) -> None:
        if self.sums.setdefault(key, (parent, total)) != (parent, total):
            raise Broken(f"round {round}: one stream of noise is in two sums")
        if self.keys.setdefault((round, parent, total), key) != key:
            raise Broken(f"round {round}: one sum has two streams of noise")


@dataclass
class Schedule:
    step: int
    when: When
    what: What
    mechanism: str = "gaussian"
    adapts: bool = False
    """Whether the clip does."""
    noise: Noise = field(default_factory=Noise)
    writes: int = 0
    dead: bool = False
    """Whether it has died already: it dies once."""
    copies: tuple[MemoryStore, MemoryBlobs] | None = None

    def play(self) -> int:
        """Plays it. Returns how many writes there were. Broken."""
        world = World(devices=6)
        with self._watched():
            self._rounds(world, backwards=False)
            if self.what == "set-back" and self.copies is not None:
                self._checked(world)
                world.store, world.blobs = self.copies
                world.boot()
                self.noise.keys.clear()
                self._rounds(world, backwards=True)
            elif self.what == "again":
                self._checked(world)
                self.noise.keys.clear()
                world = World(devices=6)
                self._rounds(world, backwards=True)
        self._checked(world)
        lost = "5" if self.what == "lose" else ""  # that its bytes are gone, verify says too
        wrong = [str(one) for one in verify(world.store, world.blobs) if one.invariant != lost]
        if wrong:
            raise Broken(wrong[0])
        return self.writes

    @contextmanager
    def _watched(self) -> Iterator[None]:
        commit, add, key = MemoryTransaction.commit, MemoryBlobs.add, RoundSeed.key
        schedule = self

        def committed(tx: MemoryTransaction) -> None:
            schedule._write(lambda: commit(tx), bool(tx._layer), tx._committed)

        def added(blobs: MemoryBlobs, digest: str, data: bytes) -> None:
            schedule._write(lambda: add(blobs, digest, data), True, None)

        def seen(seed: RoundSeed, parent: str, total: bytes, mechanism: str) -> bytes:
            found = key(seed, parent, total, mechanism)
            schedule.noise.see(found, seed.round, parent, total)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "SHORT_BYTES", 0)
            patch.setattr(MemoryTransaction, "commit", committed)
            patch.setattr(MemoryBlobs, "add", added)
            patch.setattr(RoundSeed, "key", seen)
            yield

    def _write(self, write: Callable[[], None], counts: bool, committed: Any) -> None:
        self.writes += counts
        mine = counts and self.writes == self.step and not self.dead
        if mine and self.when == "before":
            self.dead = True
            raise Died
        write()
        if mine:
            self.dead = True
            raise Died

    def _rounds(self, world: World, *, backwards: bool) -> None:
        self._act(world, lambda: self._created(world))
        for number in range(1, ROUNDS + 1):
            for turn in range(6):
                row = world.store.round(RUN, number)
                if row is not None and row.status != "open":
                    break
                self._act(world, world.check_in)
                for again in (0, 1):  # a device whose update is lost is asked for another one
                    for device in sorted(world.cohort(), reverse=backwards):
                        self._act(world, partial(self._send, world, device, number, 2 * turn + again))
                    self._act(world, world.settle)
                self._act(world, lambda: world.pass_time(61))

    def _created(self, world: World) -> None:
        if world.store.run(RUN) is None:
            cohort = {"select": 5, "goal": 3, "most_rounds": MOST}
            adapt = {"adapt": {"lowest": 0.01, "highest": 10.0}} if self.adapts else {}
            create(world, cohort=cohort, finish={"rounds": ROUNDS}, privacy={"mechanism": self.mechanism, **adapt})

    def _send(self, world: World, device: int, number: int, turn: int) -> None:
        """The update of this device; in another turn, and where one was lost, another one. Late ones are refused."""
        marks = np.zeros(world.size, np.float32)
        marks[device] = 0.5 / (turn + 1 + (self.what == "lose" and self.dead))
        try:
            world.send(device, world.body(device, number, delta={"marks": marks}), number)
        except ProblemError as error:
            if error.problem.kind not in ("late", "stale", "duplicate", "not-selected", "conflict"):
                raise

    def _act(self, world: World, act: Callable[[], Any]) -> None:
        """Does it, and once more after a death."""
        while True:
            try:
                act()
                return
            except Died:
                self._checked(world)
                if self.what == "set-back":
                    self.copies = copied(world)
                if self.what == "lose":
                    _lose_one(world)
                world.boot()
                world.settle()

    def _checked(self, world: World) -> None:
        """The ledger holds what is committed, and no more than is allowed."""
        store = world.store
        row = store.run(RUN)
        if row is None:
            return
        plan = Plan.parse(row.plan)
        assert plan.privacy is not None
        cost = plan.privacy.cost(plan)
        committed = {row.round for row in store._all(CheckpointRow) if row.round is not None}
        counted = Counter(row.device for row in store._all(ContributionRow) if row.round in committed)
        spent = store.privacy_totals(LEDGER)
        for device, times in counted.items():
            if spent.get(device, 0.0) < times * cost:
                raise Broken(f"{device} has counted {times} times, and the ledger has {spent.get(device, 0.0)}")
        if missing := committed - {row.round for row in store.privacy_debits(RUN)}:
            raise Broken(f"rounds {sorted(missing)} are committed, and not in the ledger")
        if max(spent.values(), default=0.0) > plan.privacy.rho(plan):
            raise Broken("a device has lost more than the plan allows")


def _lose_one(world: World) -> None:
    """Takes an update of the round under way from the disk."""
    now = {row.round for row in world.store.rounds(RUN) if row.status == "open"}
    reported = [row.body for row in world.store.events(RUN, 0) if row.kind == "Reported" and row.body["round"] in now]
    if reported:
        world.blobs.delete(str(reported[-1]["digest"]))


def copied(world: World) -> tuple[MemoryStore, MemoryBlobs]:
    """What is durable, as a copy of the folder has it."""
    store, blobs = MemoryStore(), MemoryBlobs()
    for row, table in world.store._committed.tables.items():  # type: ignore[attr-defined]
        for key, one in table.all.rows.items():
            store._committed.tables[row].put(key, one)
        store._committed.tables[row].last = table.last
    for digest in list(world.blobs.digests()):
        with world.blobs.open(digest) as file:
            blobs.put(file.read())
    return store, blobs


def schedules(*whats: What, mechanism: str = "gaussian", adapts: bool = False) -> Iterator[Schedule]:
    """Each death, followed by each of these; all of them where none is given."""
    writes = Schedule(0, "before", "restart", mechanism, adapts).play()
    for step in range(1, writes + 1):
        for when in get_args(When):
            yield from (Schedule(step, when, what, mechanism, adapts) for what in whats or get_args(What))
