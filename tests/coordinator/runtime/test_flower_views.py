"""A Flower run among the other runs: in lists, as rounds, in the fleet, and what is refused."""

from __future__ import annotations

import pytest

from client_sdk.flower.work import node_id
from client_sdk.protocol.flower import FlowerApp, FlowerError
from client_sdk.protocol.operators import FlowerSummary, Funnel
from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.flower import flower_runs
from coordinator.service.stream_viewers import RunBoard
from tests.coordinator.runtime.flower_world import APP, FlowerWorld


@pytest.fixture
def world() -> FlowerWorld:
    """A run with a plan, and a Flower run with two messages of its first group and one of its second."""
    made = FlowerWorld(3)
    made.create()
    made.clock.at += 1
    made.begin()
    for number in range(3):
        made.poll(number)
    made.upload(b"model")
    return made


def test_a_flower_run_is_listed_among_the_runs_and_says_what_it_is(world: FlowerWorld) -> None:
    world.push(world.message(0), world.message(1))
    views = {view.run: view for view in world.coordinator.operators.runs()}
    assert list(views) == ["marks", "vision"]
    view = views["vision"]
    assert (view.kind, view.status, view.phase, view.round) == ("flower", "running", "collecting", 1)
    assert (view.checkpoint, view.plan, view.plan_digest, view.version, view.seq) == (None, {}, None, 0, 0)
    assert view.flower == FlowerSummary(app="acme/vision", version="1.0.0", messages=2, replies=0, errors=0)
    assert views["marks"].flower is None
    assert [view.run for view in world.coordinator.operators.runs(lambda run: run == "vision")] == ["vision"]


def test_a_group_is_shown_as_a_round(world: FlowerWorld) -> None:
    first = [world.message(number) for number in range(3)]
    world.push(*first)
    world.task(0)
    world.task(1)
    world.reply(0, first[0], b"update")
    error = FlowerError(code=2, reason="it raised")
    world.flower.replies.error(world.device(1), "vision", first[1].message, error)
    world.push(world.message(0, group="2", ttl_s=5))
    rounds = world.coordinator.operators.rounds
    assert [(one.round, one.group, one.status, one.kind) for one in rounds("vision")] == [
        (1, "1", "open", "flower"), (2, "2", "open", "flower"),
    ]  # fmt: skip
    assert rounds("vision")[0].funnel == Funnel(selected=3, training=2, reported=1, refused=1)
    assert rounds("vision")[0].bytes_in == len(b"update")
    world.clock.at += 5
    second = world.coordinator.operators.round("vision", 2)
    assert (second.status, second.funnel) == ("ended", Funnel(selected=1, dropped=1))
    assert [one.round for one in rounds("vision", after=1)] == [2]
    assert [one.round for one in rounds("vision", limit=1)] == [1]
    view = world.coordinator.operators.run("vision")
    assert (view.phase, view.round, view.funnel) == ("idle", 2, Funnel(selected=1, dropped=1))
    assert view.flower is not None
    assert (view.flower.messages, view.flower.replies, view.flower.errors) == (4, 1, 2)
    with pytest.raises(ProblemError, match="has no round 3: it is at round 2"):
        world.coordinator.operators.round("vision", 3)


def test_it_says_why_nobody_answers(world: FlowerWorld) -> None:
    world.push(world.message(0))
    assert world.coordinator.operators.run("vision").stalled == ""
    for number in range(3):
        world.poll(number, apps=[FlowerApp(name=APP.name, version="2.0.0", digest=APP.digest)])
    assert world.coordinator.operators.run("vision").stalled == (
        "of 3 devices that are there none can serve it: acme/vision has version 2.0.0, and the run needs 1.0.0"
    )
    world.clock.at += 61
    assert "no device with acme/vision 1.0.0 is there" in world.coordinator.operators.run("vision").stalled


@pytest.mark.parametrize("page", [1, 2, 500])
def test_of_many_devices_it_says_what_those_that_were_looked_at_say(
    page: int, world: FlowerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = FlowerApp(name=APP.name, version="2.0.0", digest=APP.digest)
    world.push(world.message(0))
    first, second, third = sorted(range(3), key=lambda number: node_id(world.device(number)))
    monkeypatch.setattr(flower_runs, "_PAGE", page)

    def stalled() -> str:
        return world.coordinator.operators.run("vision").stalled

    world.poll(first, apps=[old])
    world.poll(second, apps=[old])
    assert stalled() == "", "the last one can serve it"
    monkeypatch.setattr(flower_runs, "LOOKED_AT", min(page, 2))
    said = "can serve it: acme/vision has version 2.0.0, and the run needs 1.0.0; others were not looked at"
    assert stalled() == ("" if page == 500 else f"of {page} devices that are there none {said}")
    world.clock.at += 61
    world.poll(third)
    assert stalled() == "", "of those that were looked at none is there, and others may be"


def test_an_operator_stops_it_and_the_serverapp_learns_that(world: FlowerWorld) -> None:
    message = world.message(0)
    world.push(message)
    view = world.coordinator.operators.stop("vision")
    assert (view.status, view.reason, view.phase, view.over) == ("stopped", "stopped by the operator", "idle", True)
    (only,) = world.coordinator.operators.rounds("vision")
    assert (only.status, only.reason) == ("ended", "the run has ended (stopped)")
    with pytest.raises(ProblemError, match="has ended \\(stopped\\): stopped by the operator"):
        world.pull(message)


def test_a_run_that_failed_says_why(world: FlowerWorld) -> None:
    world.end("failed")
    view = world.coordinator.operators.run("vision")
    assert (view.status, view.over) == ("failed", True)


def test_its_devices_are_in_the_fleet(world: FlowerWorld) -> None:
    world.push(world.message(0))
    world.task(0)
    states = {view.device: (view.state, view.run, view.round) for view in world.coordinator.insight.fleet.devices()}
    assert states[world.device(0)] == ("assigned", "vision", 1)
    assert states[world.device(1)] == ("waiting", None, None)
    counts = world.coordinator.insight.fleet.counts()
    assert (counts.waiting, counts.assigned, counts.away) == (2, 1, 0)
    world.clock.at += 61
    assert world.coordinator.insight.fleet.counts().waiting == 0
    assert world.coordinator.insight.fleet.device(world.device(0)).device.run == "vision"


def test_the_live_stream_shows_each_change_of_it(world: FlowerWorld) -> None:
    board = RunBoard(world.coordinator)
    assert board.views(["vision"])["vision"]["flower"]["messages"] == 0
    message = world.message(0)
    world.push(message)
    assert board.views(["vision"])["vision"]["flower"]["messages"] == 1
    world.task(0)
    assert board.views(["vision"])["vision"]["funnel"]["training"] == 1
    world.reply(0, message, b"update")
    assert board.views(["vision"])["vision"]["funnel"]["reported"] == 1
    world.end()
    assert board.views(["vision"])["vision"]["status"] == "finished"
    assert board.sent(["marks", "vision"], lambda run: True) == (["marks", "vision"], "")


def test_what_makes_no_sense_for_it_is_refused_in_one_sentence(world: FlowerWorld) -> None:
    operators = world.coordinator.operators
    for ask in (
        lambda: operators.pause("vision"),
        lambda: operators.resume("vision"),
        lambda: operators.rename("vision", "eyes"),
        lambda: operators.advance("vision", "olga"),
        lambda: operators.unbar("vision", "d1", "olga"),
        lambda: operators.vouch("vision", 1, "5e" * 64),
        lambda: operators.checkpoints("vision"),
        lambda: operators.metrics("vision"),
        lambda: operators.events("vision"),
        lambda: world.coordinator.insight.lanes.of_round("vision", 1, "", 10),
        lambda: world.coordinator.insight.leases.of_round("vision", 1),
    ):
        with pytest.raises(ProblemError, match="is a Flower run: its ServerApp decides") as refused:
            ask()
        assert refused.value.kind == "conflict"
