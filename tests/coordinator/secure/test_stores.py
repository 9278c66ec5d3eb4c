"""Secure rounds over a real log: what is submitted is written by a store, survives a restart, and ``verify`` finds
nothing wrong with it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.blobs import FileBlobs
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.pool_tree import PoolTree
from coordinator.engine.selection import uniform
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import Aggregator
from coordinator.folding.refold import short
from coordinator.runtime.commits import Commits
from coordinator.runtime.run_log import RunLog
from coordinator.runtime.secure_rounds import SecureLog
from coordinator.store import open_store
from coordinator.store.memory import MemoryStore
from coordinator.store.port import CheckpointRow, DeviceRow, RunRow, Store
from coordinator.store.rows import MessageRow
from coordinator.verify import verify
from tests.coordinator.secure.world import World

pytestmark = pytest.mark.whole


class Watched(RunLog):
    """The runtime's log, which shows the world what came of each event."""

    world: StoredWorld

    def enter(
        self, make: Any, *, fence: int | None = None, message: MessageRow | None = None
    ) -> Callable[[], list[fx.Effect]]:
        entered = super().enter(make, fence=fence, message=message)

        def settle() -> list[fx.Effect]:
            effects = entered()
            self.world.effects += effects
            return effects

        return settle


class StoredLog(SecureLog):
    """What the runtime has of a run with secure rounds, and what is to do."""

    def __init__(self, log: RunLog, todo: list[fx.Action]) -> None:
        super().__init__(log)
        self.todo = todo


class StoredWorld(World):
    """A world whose log is in a store, and whose blobs are files. It is its own clock."""

    def __init__(self, store: Store, folder: Path, n: int, **given: Any) -> None:
        self.store = store
        super().__init__(n, blobs=FileBlobs(folder, durable=False), **given)

    def now(self) -> float:
        return self.at

    def _boot(self, todo: list[fx.Action]) -> None:
        row = self.store.run("run-1") or self._created()
        todo: list[fx.Action] = []
        log = Watched(row, self.store, self, lambda run, actions: todo.extend(actions))
        log.world = self
        self.log = StoredLog(log, todo)  # type: ignore[assignment]
        self.aggregator = Aggregator(self.blobs, self.plan, self.start, roles={})
        core: Any = SimpleNamespace(log=lambda run: log, store=self.store, blobs=self.blobs)
        self._secure(self.log, Commits(core))

    def _created(self) -> RunRow:
        row = RunRow(
            run="run-1",
            name=self.plan.name,
            plan=self.plan.model_dump(mode="json"),
            plan_digest=self.plan.digest,
            selection_seed=7,
            init=self.start,
            origin="test",
            created_at=self.at,
        )
        first = CheckpointRow(
            run="run-1",
            version=0,
            digest=self.start,
            parent_version=None,
            round=None,
            origin="test",
            bytes=self.blobs.size(self.start),
            created_at=self.at,
        )
        with self.store.transaction() as tx:
            tx.insert_run(row)
            tx.insert_checkpoint(first)
            for phone in self.phones:
                key = phone.member.device.signer.public_hex
                tx.insert_device(
                    DeviceRow(
                        device=phone.name,
                        key_id=key,
                        certificate="",
                        label="",
                        examples_cap=1000,
                        enrolled_at=self.at,
                    )
                )
        return row

    def draw(self, chosen: list[str], state: RunState) -> tuple[list[str], dict[str, Any]]:
        """As the runtime draws, so that the draw can be repeated."""
        tree = PoolTree((name, 100) for name in sorted(chosen))
        cohort = uniform(tree, state.plan.cohort.select, seed=7, round=state.round_number)
        if not cohort:
            return cohort, {}
        shown = {"tree": tree.shown([tree.rank(name) for name in cohort])}
        return cohort, {"pool": self.blobs.put(json.dumps(shown).encode()), "examples": tree.total, "root": tree.root}

    def _referred(self) -> set[str]:
        pools = {str(row.body["pool"]) for row in self.store.events("run-1", 0, 100_000) if row.kind == "Drawn"}
        return super()._referred() | pools

    def texts(self) -> Iterable[str]:
        for row in self.store.events("run-1", 0, 100_000):
            yield json.dumps(row.body)

    def logged(self, kind: str) -> list[dict[str, Any]]:
        return [dict(row.body) for row in self.store.events("run-1", 0, 100_000) if row.kind == kind]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path / 'quorate.sqlite3'}")
    yield made
    made.close()


def assert_in_order(world: StoredWorld) -> None:
    world.assert_clean()
    assert_verified(world)


def assert_verified(world: StoredWorld) -> None:
    assert [str(wrong) for wrong in verify(world.store, world.blobs)] == []


def test_rounds_are_written_and_verified(store: Store, tmp_path: Path) -> None:
    world = StoredWorld(store, tmp_path / "blobs", 5, rounds_=2)
    world.phones[1].stops = "mask"
    world.play()
    assert world.state.version == 2
    assert [row.kind for row in store.rounds("run-1", 0)] == ["secure", "secure"]
    contributions = store.contributions("run-1", 1)
    assert {row.device for row in contributions} == {phone.name for phone in world.phones} - {world.phones[1].name}
    assert {row.weight for row in contributions} == {0}, "nobody knows what one device weighs"
    assert_in_order(world)


def test_attempts_faults_and_abandoned_rounds_are_verified(store: Store, tmp_path: Path) -> None:
    world = StoredWorld(store, tmp_path / "blobs", 7, secure={"attempts": 2})
    for phone in world.phones[:3]:
        phone.stops = "mask"
    world.play()
    assert [body["attempt"] for body in world.logged("Announced")] == [0, 1]
    assert world.state.version == 1
    assert_in_order(world)


@pytest.mark.parametrize("every", [1, 7])
def test_a_new_process_reads_what_the_last_one_wrote(store: Store, tmp_path: Path, every: int) -> None:
    undisturbed = World(4).play().state.checkpoint
    world = StoredWorld(store, tmp_path / "blobs", 4)
    steps = iter(range(10**6))

    def restarting(w: World) -> bool:
        if next(steps) % every == 0 and not w.state.over:
            w._boot([])
            hints = fx.Wake | fx.SendAnswers
            w.log.todo += [action for action in rounds.pending(w.state) if not isinstance(action, hints)]
        return False

    world.play(restarting)
    assert world.state.checkpoint == undisturbed
    assert_in_order(world)


def test_the_owners_way_out_is_audited_and_verified(store: Store, tmp_path: Path) -> None:
    world = StoredWorld(store, tmp_path / "blobs", 4)
    for phone in world.phones[:2]:
        phone.stops = "unmask"
    world.play(lambda w: w.state.round_number == 2 and w.state.phase == "selecting")
    for phone in world.phones:
        phone.gone, phone.stops = False, None
        phone.restart()
    exhausted: Callable[[World], bool] = lambda w: bool(w.state.exhausted) and w.state.phase == "selecting"  # noqa: E731
    world.play(exhausted)
    world.log.submit(lambda state, at: ev.Advanced(at=at, round=state.round_number, by="the owner"))
    world.play()
    assert world.state.version == 1
    assert [(row.by, row.action) for row in store.audit("run-1")] == [("the owner", "advance")]
    assert_in_order(world)


def test_a_secure_round_is_committed_under_the_fence_of_the_run(store: Store, tmp_path: Path) -> None:
    world = StoredWorld(store, tmp_path / "blobs", 4)
    world.play(lambda w: any(isinstance(action, fx.CommitSum) for action in w.log.todo))
    action = next(action for action in world.log.todo if isinstance(action, fx.CommitSum))
    work = world.secure._work
    checkpoint = work.checkpoint

    def overtaken(action: Any) -> tuple[str, int]:
        with store.transaction("run-1") as tx:
            tx.raise_fence("run-1")
        return checkpoint(action)

    work.checkpoint = overtaken  # type: ignore[method-assign]
    world.secure.perform(action)
    assert (world.state.phase, world.state.version) == ("committing", 0), "it is the other replica's to commit"
    work.checkpoint = checkpoint  # type: ignore[method-assign]
    world.secure.perform(action)
    assert world.state.version == 1
    world.play()
    assert_in_order(world)


def test_what_is_wrong_with_the_short_messages_of_a_round_under_way_is_found(store: Store, tmp_path: Path) -> None:
    world = StoredWorld(store, tmp_path / "blobs", 4)
    world.play(lambda w: w.state.phase == "masking")
    rows = store.message_rounds("run-1")
    assert set(rows.values()) == {1}
    assert len(rows) == 8, "four have advertised and shared"
    assert_verified(world)
    (digest, content), *_ = store.messages("run-1", list(rows)).items()
    named = f"a message of the round, {short(digest)},"

    def replaced(*now: MessageRow) -> list[str]:
        kept = store.messages("run-1", list(rows))
        with store.transaction("run-1") as tx:
            tx.drop_messages("run-1", 1)
            tx.insert_messages(now)
            others = [MessageRow(run="run-1", round=1, digest=key, content=value) for key, value in kept.items()]
            tx.insert_messages([row for row in others if row.digest != digest])
        found = [wrong.what for wrong in verify(world.store, world.blobs)]
        with store.transaction("run-1") as tx:
            for row in now:
                tx.drop_messages("run-1", row.round)
            tx.insert_messages([*others, MessageRow(run="run-1", round=1, digest=digest, content=content)])
        return found

    row = MessageRow(run="run-1", round=1, digest=digest, content=content)
    assert replaced(row) == []
    (spoiled,) = replaced(replace(row, content=content + b"1"))
    assert spoiled.startswith(f"{named} cannot be read: Blob {digest} is damaged: what is stored has another SHA-256.")
    assert replaced() == [f"{named} cannot be read: There is no blob '{digest}'."]
    stranger = replace(row, digest="a" * 64)
    assert replaced(row, stranger) == [f"a message is stored that the log does not name: {short('a' * 64)}"]
    assert replaced(replace(row, round=7)) == [f"a message is stored that the log does not name: {short(digest)}"]
    world.play()
    assert_in_order(world)
    assert not store.message_rounds("run-1"), "they go with the event that says so"
    with store.transaction("run-1") as tx:
        tx.insert_messages([row])
    found = [wrong.what for wrong in verify(world.store, world.blobs)]
    assert set(found) == {f"a message of the round is left: {short(digest)}"}


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("digest", b"\0" * 32, "a message is stored that the log does not name: "),
        ("digest", 5, "a message is stored that the log does not name: 5"),
        ("round", "one", "a message is stored that the log does not name: "),
        ("content", "text", "a message of the round, "),
        ("content", 10**15, "a message of the round, "),
    ],
    ids=["digest of bytes", "digest of a number", "round in words", "content of text", "content of a number"],
)
def test_repro_a_row_of_a_message_with_a_value_of_another_type_is_found(
    tmp_path: Path, column: str, value: object, what: str
) -> None:
    """SQLite stores what somebody else gives it. ``quorate verify`` ended with a TypeError, and a number as content
    was read as so many zeros."""
    made = open_store(f"sqlite:///{tmp_path / 'quorate.sqlite3'}")
    world = StoredWorld(made, tmp_path / "blobs", 4)
    world.play(lambda w: w.state.phase == "masking")
    digest = next(iter(made.message_rounds("run-1")))
    with closing(sqlite3.connect(tmp_path / "quorate.sqlite3")) as connection:
        connection.execute(f"UPDATE messages SET {column} = ? WHERE digest = ?", (value, digest))
        connection.commit()
    found = [wrong.what for wrong in verify(made, world.blobs)]
    assert any(wrong.startswith(what) for wrong in found), found
    made.close()
