"""What machines of one worker tell each other through a folder: who is there, what is asked, how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.datacenter import machines
from coordinator.datacenter.machines import Follower, FollowerStatus, Leader, MachineInUse, Order
from coordinator.datacenter.multi_machine import FollowerPool, MachineGroup, MachineLost, part_of, rejoined, share_out
from coordinator.datacenter.preflight import PreflightReport
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec

HAS: dict[str, Any] = {"nproc": 2, "gpus": 0, "learners": {"a:b": "1"}, "examples": {"proxy": 50}}
SPEC = JobSpec(learner="a:b", data="here.npz", recipe=Recipe(steps=3), device="cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "BEAT_S", 0.02)
    monkeypatch.setattr(machines, "LOOK_S", 0.0)


@pytest.fixture
def open_() -> Iterator[Callable[[Any], Any]]:
    """Closes what it was given, at the end, unless it is closed."""
    made: list[Any] = []

    def keep(one: Any) -> Any:
        made.append(one)
        return one

    yield keep
    for one in made:
        one.close()


def until(true: Callable[[], Any]) -> Any:
    ends_at = time.monotonic() + 20
    while time.monotonic() < ends_at:
        if found := true():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def order_for(follower: Follower, start: int = 0) -> Order:
    members = ((follower.machine, follower.member, 1),)
    body = SPEC.model_dump(mode="json")
    return Order(job="j", start=start, endpoint="127.0.0.1:1", members=members, data="proxy", spec=body)


def test_machines_find_each_other_and_know_when_one_goes(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    leader = open_(Leader(tmp_path, 30.0))
    assert leader.present() == []
    follower = Follower(tmp_path, 1, **HAS, lost_s=30.0)
    until(lambda: [status.machine for status in leader.present()] == [1] and follower.has_leader())
    order = order_for(follower)
    assert follower.order() is None
    leader.publish(order)
    assert until(follower.order) == order
    assert (leader.missing(order), leader.endings(order)) == (None, {})
    follower.ended(order, "a process was killed", final=False)
    ending = until(lambda: leader.endings(order))[1]
    assert (ending.reason, ending.final) == ("a process was killed", False)
    assert leader.endings(order_for(follower, start=1)) == {}, "of another start"
    leader.withdraw()
    until(lambda: follower.order() is None)
    follower.close()
    until(lambda: leader.missing(order) == 1)
    assert leader.present() == []


def test_a_follower_that_was_started_again_is_another_one(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    leader = open_(Leader(tmp_path, 30.0))
    first = Follower(tmp_path, 1, **HAS, lost_s=30.0)
    order = order_for(first)
    until(leader.present)
    leader.publish(order)
    first.close()
    second = open_(Follower(tmp_path, 1, **HAS, lost_s=30.0))
    until(second.has_leader)
    assert second.order() is None, "the order was the first one's"
    until(leader.present)
    assert leader.missing(order) == 1


def test_a_file_that_stands_still_is_nobodys(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    """Left by an agent that was killed: it was never seen to move, or has not moved for long."""
    now = [100.0]
    follower = Follower(tmp_path, 1, **HAS, lost_s=30.0)
    kept = (tmp_path / "machines" / "1.json").read_text()
    leader = open_(Leader(tmp_path, 30.0, clock=lambda: now[0]))
    until(leader.present)
    follower.close()
    (tmp_path / "machines" / "1.json").write_text(kept)
    assert [status.machine for status in leader.present()] == [1], "it was there a moment ago"
    now[0] += 31
    assert leader.present() == []
    fresh = open_(Leader(tmp_path, 30.0))
    assert fresh.present() == fresh.present() == []
    (tmp_path / "machines" / "1.json").write_text("{half of")
    assert fresh.present() == []


def test_an_order_of_a_leader_that_is_gone_is_none(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    follower = open_(Follower(tmp_path, 1, **HAS, lost_s=30.0))
    leader = Leader(tmp_path, 30.0)
    leader.publish(order_for(follower))
    until(follower.order)
    path = tmp_path / "machines" / "leader.json"
    kept = path.read_text()
    leader.close()
    until(lambda: not follower.has_leader())
    path.write_text(kept)
    assert follower.order() is None


def test_a_machine_is_one_agent(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    open_(Follower(tmp_path, 1, **HAS, lost_s=30.0))
    with pytest.raises(MachineInUse, match="Another agent is machine 1 in"):
        Follower(tmp_path, 1, **HAS, lost_s=30.0)
    open_(Follower(tmp_path, 2, **HAS, lost_s=30.0))


def following(machine: int, nproc: int = 2, **more: Any) -> FollowerStatus:
    return FollowerStatus(**{**HAS, "machine": machine, "member": f"m{machine}", "beat": 1, "nproc": nproc, **more})


@pytest.mark.parametrize(
    ("nproc", "shares"),
    [(1, (1, [])), (2, (2, [])), (3, (2, [(1, 1)])), (6, (2, [(1, 3), (2, 1)])), (7, (2, [(1, 3), (2, 2)])), (8, None)],
)
def test_processes_fill_the_machines_in_order(nproc: int, shares: Any) -> None:
    found = share_out(nproc, 2, [following(1, nproc=3), following(2, nproc=2)])
    assert (found and (found[0], [(status.machine, count) for status, count in found[1]])) == shares


def test_paths_are_those_of_each_machine(tmp_path: Path, open_: Callable[[Any], Any]) -> None:
    leader = open_(Leader(tmp_path / "here", 30.0))
    spec = SPEC.model_copy(update={"out": tmp_path / "here" / "jobs" / "x" / "out", "init": tmp_path / "here" / "i"})
    group = MachineGroup(leader=leader, endpoint="h:1", folder=tmp_path / "here", followers=[(following(1), 2)])
    order = group.order(spec, "proxy", "j", 0)
    part = part_of(order, tmp_path / "there", 2, {"a:b": "1"}, {"proxy": "mine.npz"})
    assert (part.out, part.init) == (tmp_path / "there" / "jobs" / "x" / "out", tmp_path / "there" / "i")
    assert (part.data, part.nproc, part.checkpoints) == ("mine.npz", 2, None)


class Folder:
    """A leader's view of machine 1 whose agent was killed at its third write: its file is there, and moves no more. The
    clock runs by itself where somebody waits; at ``back_at`` another agent is machine 1."""

    lost_s = 30.0

    def __init__(self, back_at: float, alive: bool = False) -> None:
        self.now, self._back_at, self._alive = 0.0, back_at, alive

    def present(self) -> list[FollowerStatus]:
        if self.now >= self._back_at:
            return [following(1, member="successor", beat=1)]
        return [following(1, beat=3 + int(self.now / 0.5) * self._alive)]

    def pause(self, seconds: float) -> None:
        self.now += seconds


def rejoined_by(folder: Folder) -> str:
    """The member with which the next start is made."""
    group = MachineGroup(leader=cast("Any", folder), endpoint="h:1", folder=Path(), followers=[(following(1), 2)])
    found = rejoined(group, threading.Event(), clock=lambda: folder.now, pause=folder.pause)
    return found.followers[0][0].member


def test_a_start_waits_for_the_successor_of_a_killed_agent_and_not_for_a_live_one() -> None:
    """Its file still counted for ``lost_s``: a start with the dead agent broke when its successor came, which cost a
    second restart."""
    assert rejoined_by(Folder(back_at=12.0)) == "successor"
    living = Folder(back_at=99.0, alive=True)
    assert (rejoined_by(living), living.now < 1.5) == ("m1", True)
    with pytest.raises(MachineLost, match="Machine 1 of the group no longer responds"):
        rejoined_by(Folder(back_at=99.0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learner": "os:system"}, "there is no learner 'os:system' here"),
        ({"out": "../../elsewhere"}, "out is outside of the folder that the machines share"),
        ({"init": "/etc/passwd"}, "init is outside of the folder that the machines share"),
        ({"recipe": {"steps": 0}}, "greater than or equal to 1"),
    ],
)
def test_a_follower_trains_only_the_learners_and_data_of_its_options(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    body = {**SPEC.model_dump(mode="json"), **changes}
    order = Order(job="j", start=0, endpoint="h:1", members=((1, "m", 1),), data="proxy", spec=body)
    with pytest.raises(ValueError, match=sentence):
        part_of(order, tmp_path, 1, {"a:b": "1"}, {"proxy": "mine.npz"})
    with pytest.raises(ValueError, match="does not hold the data 'proxy'"):
        part_of(order.model_copy(update={"spec": SPEC.model_dump(mode="json")}), tmp_path, 1, {"a:b": "1"}, {})


class FakeLeader:
    """A leader whose followers are these."""

    def __init__(self, *followers: FollowerStatus) -> None:
        self.followers = list(followers)

    def present(self) -> list[FollowerStatus]:
        return self.followers


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, "Machine 1 is here (2 processes)."),
        ({"machine": 2}, "Machine 2 is left out: the group has the machines 0 to 1."),
        ({"gpus": 2}, "Machine 1 is left out: it trains on GPUs, and this one on CPUs."),
        ({"examples": {}}, "Machine 1 is left out: it does not hold the data 'proxy'."),
        ({"examples": {"proxy": 49}}, "Machine 1 is left out: its 'proxy' has 49 examples, and this machine's has 50."),
        ({"learners": {"a:b": "2"}}, "Machine 1 is left out: it has a:b 2, and this machine has 1."),
        ({"learners": {}}, "Machine 1 is left out: it does not have a:b, and this machine has 1."),
    ],
)
def test_who_fits_is_counted_and_who_does_not_is_reported_once(
    tmp_path: Path, other: dict[str, Any], expected: str
) -> None:
    status, reported = following(**{"machine": 1, **other}), list[str]()
    leader: Any = FakeLeader(status)
    ready = PreflightReport(learners={"a:b": "1"}, examples={"proxy": 50}, gpus=0)
    pool = FollowerPool(leader, "h:1", tmp_path, ready, 2, reported.append)
    for _ in range(2):
        assert pool.compatible() == ([status] if "is here" in expected else [])
    assert reported == [expected]
    leader.followers.clear()
    assert pool.compatible() == []
    assert reported[1:] == (["Machine 1 no longer responds."] if "is here" in expected else [])
    assert pool.group(3, 2) is None
    assert pool.device == "cpu"
