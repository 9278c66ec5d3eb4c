"""What a run does where a file that it needs is damaged: no wrong model, the blob's name, and it goes on by itself."""

from __future__ import annotations

import io
import random
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.protocol.devices import Work
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import from_bytes
from coordinator.blobs import BlobError, Damaged, FileBlobs, Gone
from coordinator.blobs.blocks import CheckedFile
from coordinator.commands.tables import print_run
from coordinator.engine import effects as fx
from coordinator.engine.named_tensors import SERVER_OPTIMIZER
from coordinator.engine.rounds import pending
from coordinator.folding.aggregator import LostUpdate, NewCheckpoint
from coordinator.runtime.commits import Commits, ask_again
from coordinator.verify import verify
from tests.coordinator.runtime.test_optimizer_states import ADAM
from tests.coordinator.served import RUN, Phone, Served
from tests.coordinator.service.wire import kind
from tests.coordinator.test_blocks import file_of, flip
from tests.coordinator.world import World
from tests.rotating import on_day

pytestmark = pytest.mark.usefixtures("updates_as_files")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(8, blobs=FileBlobs(tmp_path / "blobs"))


def calm(world: World, seconds: float = 5) -> None:
    """Lets the coordinator do what it can, as its driver does: what the disk refuses is tried again later."""
    for _ in range(6):
        world.clock.at += seconds
        world.coordinator.tick()
        refused = []
        while (task := world.coordinator.core.take_task()) is not None:
            try:
                world.coordinator.perform(task)
            except BlobError:
                refused.append(task)
        for task in refused:
            world.coordinator.core.put_back(task)


def said(world: World) -> list[str]:
    """What `quorate status` prints about damaged files."""
    lines = io.StringIO()
    with redirect_stdout(lines):
        print_run(world.coordinator.operators.run("marks"))
    return [line for line in lines.getvalue().splitlines() if line.startswith(("  damaged", "  repaired"))]


def store_again(world: World, data: bytes, digest: str) -> None:
    with world.blobs.spool() as spool:
        spool.write(data)
        world.coordinator.operators.put_checkpoint(spool, digest)
    calm(world)


def test_a_damaged_parent_stalls_the_commit_until_its_bytes_are_back(world: World) -> None:
    parent = world.create().checkpoint
    right = world.blobs.open(parent).read()
    world.check_in()
    a, b, c, *_ = world.cohort()
    world.report(a, b)
    flip(file_of(world.blobs, parent), len(right) - 1)  # type: ignore[arg-type]
    with pytest.raises(Damaged, match=parent):
        world.report(c)
    calm(world)
    assert world.coordinator.core.state("marks").phase == "committing"
    assert world.coordinator.healthy()["damaged"] == [parent]
    assert parent in world.coordinator.stalled()["marks"]
    assert said(world) == [f"  damaged     {parent}: store its right bytes again"]
    store_again(world, right, parent)
    assert "damaged" not in world.coordinator.healthy()
    world.require({1: [a, b, c]})
    assert said(world) == [f"  repaired    {parent} was damaged; its right bytes are stored again"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("lost", ["parent", "optimizer"])
def test_a_commit_whose_file_is_damaged_for_good_is_ended_by_a_stop(world: World, lost: str, restarted: bool) -> None:
    world.create(aggregation=ADAM)
    counted = world.play_round(1)
    state = world.coordinator.core.state("marks")
    digest = state.checkpoint if lost == "parent" else state.named_tensors[SERVER_OPTIMIZER]
    world.check_in()
    a, b, c, *_ = world.cohort()
    world.report(a, b, round=2)
    flip(file_of(world.blobs, digest), 60)  # type: ignore[arg-type]
    with pytest.raises(Damaged, match=digest):
        world.report(c, round=2)
    calm(world)
    assert world.coordinator.core.state("marks").phase == "committing"
    if restarted:
        world.boot()
    world.coordinator.operators.stop("marks")
    calm(world)
    state = world.coordinator.core.state("marks")
    assert (state.status, state.reason, state.version) == ("stopped", "stopped by the operator", 1)
    row = world.store.round("marks", 2)
    assert row is not None
    assert row.status == "abandoned"
    assert digest in row.reason
    assert len(world.store.refusals("marks", 2)) == 3
    assert len(counted) == len(world.store.contributions("marks", 1))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_secure_commit_whose_parent_is_damaged_for_good_is_ended_by_a_stop(tmp_path: Path, restarted: bool) -> None:
    world = Served(blobs=FileBlobs(tmp_path / "blobs"))
    try:
        world.secure_run()
        parent = world.state.checkpoint
        world.begin()
        world.play(lambda: world.state.phase == "unmasking")
        flip(file_of(world.blobs, parent), 60)  # type: ignore[arg-type]
        world.settle = lambda: calm(world, 0)  # type: ignore[method-assign]
        world.boot()
        world.play()
        assert world.state.phase == "committing"
        assert world.coordinator.healthy()["damaged"] == [parent]
        if restarted:
            world.boot()
        world.coordinator.operators.stop(RUN)
        calm(world)
        assert (world.state.status, world.state.version, world.state.leftovers) == ("stopped", 0, {})
        row = world.store.round(RUN, 1)
        assert row is not None
        assert parent in row.reason
    finally:
        world.close()


def test_a_damaged_state_of_the_optimizer_stalls_the_commit(world: World) -> None:
    world.create(aggregation=ADAM)
    world.play_round(1)
    state = world.coordinator.core.state("marks").named_tensors[SERVER_OPTIMIZER]
    path = file_of(world.blobs, state)  # type: ignore[arg-type]
    right = path.read_bytes()
    flip(path, len(right) - 2)
    with pytest.raises(Damaged, match=state):
        world.play_round(2)
    assert state in world.coordinator.stalled()["marks"]
    path.write_bytes(right)  # from a backup
    calm(world)
    assert world.coordinator.core.state("marks").version == 2
    assert world.coordinator.stalled() == {}


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_without_its_newest_checkpoint_a_run_stalls_and_abandons_nothing(world: World, harm: str) -> None:
    world.create()
    counted = world.play_round(1)
    newest = world.coordinator.operators.run("marks").checkpoint
    path = file_of(world.blobs, newest)  # type: ignore[arg-type]
    right = path.read_bytes()
    if harm == "lost":
        path.unlink()
    else:
        flip(path, 40)
        with pytest.raises(Damaged):
            world.blobs.open(newest).read()
    for _ in range(40):
        with suppress(BlobError):  # to a device of the round that was drawn before: busy
            world.check_in()
        calm(world)
    stalled = world.coordinator.core.state("marks").round_number
    assert stalled <= 3, "the round that was drawn before is abandoned at its deadline; no other one begins"
    assert newest in world.coordinator.stalled()["marks"]
    assert newest in str(world.coordinator.healthy()["run_errors"])
    store_again(world, right, newest)
    second = world.play_round(stalled)
    marks = world.expected({1: counted, stalled: second})["marks"]
    assert world.checkpoint()["marks"].tolist() == marks.tolist()


@pytest.fixture(params=["collecting", "committing"])
def asked(request: pytest.FixtureRequest, world: World) -> tuple[list[int], str]:
    """A round whose first update is found damaged in this phase, so that its device is asked again. (cohort, digest)"""
    world.create(aggregation={} if request.param == "collecting" else {"rule": "median", "weighting": "equal"})
    world.check_in()
    cohort = world.cohort()
    first, _ = world.report(*cohort[:2])
    flip(file_of(world.blobs, first.digest), 60)  # type: ignore[arg-type]
    if request.param == "collecting":
        world.boot()
        calm(world, 1)
    world.report(cohort[2])
    calm(world, 1)
    state = world.coordinator.core.state("marks")
    assert (state.phase, state.current.count("reported")) == ("collecting", 2)
    assert state.deadline == state.current.collecting_at + 60  # type: ignore[operator]
    assert world.coordinator.healthy()["damaged"] == [first.digest]
    assert world.cohort()[0] == cohort[0]
    return cohort, first.digest


@pytest.mark.parametrize("other", [True, False])
def test_the_device_of_a_damaged_update_is_asked_again_and_counts(
    world: World, asked: tuple[list[int], str], other: bool
) -> None:
    (a, b, c, _), lost = asked
    (answer,) = world.check_in(a)
    assert (answer.round, answer.attempt) == (1, 0)
    work = Work(steps=4, steps_planned=4, epochs=1.0, examples_seen=10 + other)
    (receipt,) = world.report(a, work=work)
    calm(world, 1)
    assert (receipt.digest != lost) is other
    assert world.coordinator.core.state("marks").version == 1
    counted = {row.device: row.digest for row in world.store.contributions("marks", 1)}
    assert counted[world.rows[a].device] == receipt.digest
    assert counted.keys() == {world.rows[number].device for number in (a, b, c)}
    refused = [(row.device, row.digest) for row in world.store.refusals("marks", 1)]
    assert refused == ([(world.rows[a].device, lost)] if other else [])
    assert world.coordinator.devices.outcome(world.rows[a].device, "marks", 1).result == "counted"
    assert list(verify(world.store, world.blobs)) == []
    with suppress(BlobError):
        world.coordinator.perform(("marks", fx.Discard(round=1)))
    assert world.blobs.damaged() == []


@pytest.mark.parametrize("busy", ["before", "while it is made"])
def test_a_commit_of_a_round_that_opened_again_counts_nothing(
    world: World, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the first commit is slow: meanwhile one of its updates was lost, sent anew and the round closed."""
    world.create()
    world.check_in()
    a, b, c, _ = world.cohort()
    work = Work(steps=4, steps_planned=4, epochs=1.0, examples_seen=11)
    with monkeypatch.context() as patch:
        patch.setattr(world, "settle", lambda: None)
        first, _, _ = world.report(a, b, c)
        (old,) = (action for action in pending(world.coordinator.core.state("marks")) if isinstance(action, fx.Commit))

        def lose_and_replace() -> None:
            item = next(item for item in old.contributions if item.digest == first.digest)
            error = LostUpdate(item, Gone("lost", first.digest))
            assert ask_again(world.coordinator.core.log("marks"), 1, error)
            world.report(a, work=work)

        commits = Commits(world.coordinator.core)
        aggregator = world.coordinator.core.aggregator("marks")

        def made() -> NewCheckpoint:
            written = aggregator.commit(1, old.parent, old.contributions)
            if busy == "while it is made":
                lose_and_replace()
            return written

        if busy == "before":
            lose_and_replace()
        assert not commits.commit("marks", old, made)
    assert world.coordinator.core.state("marks").version == 0
    world.boot()
    calm(world, 0)
    assert world.coordinator.core.state("marks").version == 1
    assert first.digest not in {row.digest for row in world.store.contributions("marks", 1)}
    assert list(verify(world.store, world.blobs)) == []


@pytest.mark.parametrize("end", ["deadline", "withdrawn", "damaged again", "stopped"])
def test_a_round_whose_damaged_update_is_not_sent_again_is_abandoned_by_its_name(
    world: World, asked: tuple[list[int], str], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, b, c, d), lost = asked
    world.report(d)
    calm(world, 0)
    assert world.coordinator.core.state("marks").round_number == 1, "the round waits for the device"
    if end == "withdrawn":
        world.coordinator.devices.withdraw(world.rows[a].device, "marks", 1, 0, "moved")
    elif end == "damaged again":
        monkeypatch.setattr(world, "settle", lambda: None)
        world.report(a)
        flip(file_of(world.blobs, lost), 60)  # type: ignore[arg-type]
        monkeypatch.undo()
        world.boot()
    elif end == "stopped":
        world.coordinator.operators.stop("marks")
    calm(world, 11 if end == "deadline" else 0)
    if end == "deadline":
        other = Work(steps=4, steps_planned=4, epochs=1.0, examples_seen=11)
        with world.refuses("late", lost):
            world.report(a, work=other)
    row = world.store.round("marks", 1)
    assert row is not None
    assert row.status == "abandoned"
    assert end == "stopped" or lost in row.reason
    refused = {(item.device, item.digest) for item in world.store.refusals("marks", 1)}
    assert (world.rows[a].device, lost) in refused
    assert {device for device, _ in refused} == {world.rows[number].device for number in (a, b, c, d)}
    assert list(verify(world.store, world.blobs)) == []
    if end != "stopped":
        world.play_round(world.coordinator.core.state("marks").round_number)
        assert world.coordinator.core.state("marks").version == 1


def test_a_device_that_works_for_another_run_is_not_asked(world: World) -> None:
    world.create(aggregation={"rule": "median", "weighting": "equal"})
    world.check_in()
    a, b, c, _ = world.cohort()
    first, _ = world.report(a, b)
    flip(file_of(world.blobs, first.digest), 60)  # type: ignore[arg-type]
    world.create(name="other", cohort={"select": 2, "goal": 2})
    world.check_in()
    assert a in world.cohort()
    world.report(c)
    calm(world, 1)
    row = world.store.round("marks", 1)
    assert row is not None
    assert row.status == "abandoned"
    assert first.digest in row.reason


def test_a_device_that_sends_a_damaged_update_again_repairs_it(world: World) -> None:
    world.create(cohort={"collect_s": 600})
    world.check_in()
    a, b, c, *_ = world.cohort()
    first, _ = world.report(a, b)
    flip(file_of(world.blobs, first.digest), 60)  # type: ignore[arg-type]
    world.boot()
    calm(world)
    device = world.rows[a]
    with world.blobs.spool() as spool:
        spool.write(world.body(a))
        world.coordinator.devices.report(device, "marks", 1, 0, spool)()
    calm(world)
    world.report(c)
    world.require({1: [a, b, c]})


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({}, id="plain", marks=on_day(0, of=3)),
        pytest.param({"aggregation": ADAM}, id="adam", marks=on_day(1, of=3)),
    ],
)
def test_of_a_hundred_flipped_bits_none_gives_a_wrong_model_and_each_is_named_before_use(
    tmp_path: Path, plan: dict[str, Any]
) -> None:
    named = committed = states = 0
    for seed in range(100):
        chance = random.Random(seed)
        blobs = FileBlobs(tmp_path / str(seed), durable=False)
        world = World(8, blobs=blobs)
        world.create(**plan, retention={"rounds": 9})
        moment, flipped, right = chance.randrange(14), "", b""
        for step in range(14):
            if step == moment:
                state = world.coordinator.core.state("marks").named_tensors.get(SERVER_OPTIMIZER)
                flipped = state if state and chance.random() < 0.3 else chance.choice(list(blobs.digests()))
                states += flipped == state
                right = file_of(blobs, flipped).read_bytes()
                flip(file_of(blobs, flipped), chance.randrange(len(right)))
                if chance.random() < 0.5:
                    world.boot()
            try:
                if step % 4 == 0:
                    world.check_in()
                else:
                    number = world.coordinator.core.state("marks").round_number
                    world.report(world.cohort()[0], round=number)
            except (BlobError, ProblemError, IndexError):
                pass
            calm(world)
        named += flipped in blobs.damaged()
        repair(blobs, flipped, right)
        calm(world)
        if not plan:
            wanted = np.zeros(world.size, np.float32)
            for row in world.store.checkpoints("marks"):
                if row.round is not None:
                    lanes = np.zeros(world.size, np.float64)
                    counted = world.store.contributions("marks", row.round)
                    lanes[[world.index(item.device) for item in counted]] = 2.0**row.round
                    wanted = wanted + (lanes / np.count_nonzero(lanes)).astype(np.float32)
            assert world.checkpoint()["marks"].tolist() == wanted.tolist(), seed
        assert list(verify(world.store, blobs)) == [], seed  # it adds all rounds up again, from right bytes
        committed += world.coordinator.core.state("marks").version
    assert named > 10, "most flips must strike a blob that is read again"
    assert committed > 150
    assert (states > 15) == bool(plan)


def repair(blobs: FileBlobs, digest: str, right: bytes) -> None:
    """Stores the right bytes of what is damaged, known or not, unless it is deleted."""
    if digest in blobs.damaged() or (blobs.has(digest) and not blobs.is_whole(digest)):
        with blobs.spool() as spool:
            spool.write(right)
            assert spool.commit() == digest


class Patient(Served):
    """Devices that ask again where the coordinator says that it is busy."""

    def settle(self) -> None:
        calm(self, 0)

    def _refused(self, phone: Phone, answer: httpx2.Response) -> bool:
        return kind(answer) != "busy" and super()._refused(phone, answer)


@on_day(2, of=3)
def test_of_flipped_bits_in_secure_rounds_none_gives_a_wrong_model_and_each_is_named_before_use(
    tmp_path: Path,
) -> None:
    named = committed = 0
    for seed in range(40):
        chance = random.Random(seed)
        blobs = FileBlobs(tmp_path / str(seed), durable=False)
        world = Patient(4, blobs=blobs)
        try:
            world.secure_run(finish={"rounds": 2})
            world.begin()
            for _ in range(chance.randrange(40)):
                world.turn(chance.choice(world.phones))
                world.settle()
            flipped = chance.choice(list(blobs.digests()))
            right = file_of(blobs, flipped).read_bytes()
            flip(file_of(blobs, flipped), chance.randrange(len(right)))
            if chance.random() < 0.5:
                world.boot()
            world.play()
            named += flipped in blobs.damaged()
            repair(blobs, flipped, right)
            world.play()
            made = world.store.checkpoint(RUN, 1)
            committed += made is not None
            if made is not None:
                counted = [world.index(row.device) for row in world.store.contributions(RUN, 1)]
                with blobs.open(made.digest) as file:
                    model = from_bytes(file.read())["w"]
                assert np.allclose(model, world.sum_of(counted), atol=1e-3), seed
            assert list(verify(world.store, blobs)) == [], seed
        finally:
            world.close()
    assert named > 4, "some flips must strike a blob that is read again"
    assert committed > 30


@pytest.mark.parametrize("rotten", ["parent", "optimizer"])
def test_verify_names_a_version_of_wrong_bytes_also_once_the_file_is_repaired(
    world: World, monkeypatch: pytest.MonkeyPatch, rotten: str
) -> None:
    """As with a reader that believes the disk: each block is taken as it is."""
    world.create(aggregation=ADAM)
    world.play_round(1)
    state = world.coordinator.core.state("marks")
    digest = state.checkpoint if rotten == "parent" else state.named_tensors[SERVER_OPTIMIZER]
    path = file_of(world.blobs, digest)  # type: ignore[arg-type]
    right = path.read_bytes()
    monkeypatch.setattr(CheckedFile, "_checked", lambda self, index: self._read(index))
    flip(path, len(right) - 2)
    world.play_round(2)
    path.write_bytes(right)  # from a backup
    found = {wrong.round: wrong.what for wrong in verify(world.store, world.blobs) if wrong.invariant == "evidence"}
    assert list(found) == [2]
    assert digest[:12] in found[2]
