"""What of Flower runs is deleted, when, and what never is."""

from __future__ import annotations

import pytest

from client_sdk.protocol.problems import ProblemError
from coordinator.blobs import MemoryBlobs
from coordinator.runtime.flower.retention import AWAY_S, ENDED_S, EVERY_S, UNNEEDED_S
from coordinator.runtime.sweeping import MARGIN_S, sweep
from tests.coordinator.runtime.flower_world import FlowerWorld, digest_of
from tests.coordinator.world import StandingClock


@pytest.fixture
def world() -> FlowerWorld:
    clock = StandingClock()
    made = FlowerWorld(3, clock=clock, blobs=MemoryBlobs(clock.now))
    made.begin()
    for number in range(3):
        made.poll(number)
    return made


def later(world: FlowerWorld, seconds: float) -> None:
    world.clock.at += seconds
    world.coordinator.tick()
    world.clock.at += EVERY_S
    world.coordinator.tick()


def there(world: FlowerWorld, content: bytes) -> bool:
    return world.blobs.has(digest_of(content))


def test_during_a_run_contents_that_nothing_needs_go_and_replies_stay(world: FlowerWorld) -> None:
    for content in (b"answered", b"waiting", b"state", b"unused"):
        world.upload(content)
    answered = world.message(0, b"answered")
    world.push(answered, world.message(1, b"waiting", ttl_s=10 * UNNEEDED_S))
    world.reply(0, answered, b"update")
    world.flower.runs.keep_state("vision", digest_of(b"state"))
    later(world, UNNEEDED_S - EVERY_S - 1)
    assert all(there(world, content) for content in (b"answered", b"unused"))
    later(world, EVERY_S)
    assert not there(world, b"answered")
    assert not there(world, b"unused")
    assert all(there(world, content) for content in (b"waiting", b"state", b"update"))
    assert [one.content for one in world.pull(answered)] == [digest_of(b"update")]
    assert world.push(answered).known == (answered.message,)
    assert world.task(1).content == digest_of(b"waiting")


def test_an_expired_message_keeps_its_content_since_it_may_be_offered_again(world: FlowerWorld) -> None:
    world.upload(b"model")
    message = world.message(0, ttl_s=5.0)
    world.push(message)
    later(world, 3 * UNNEEDED_S)
    assert there(world, b"model")
    world.push(message)
    assert world.task(0).content == digest_of(b"model")


def test_a_day_after_its_end_a_run_has_no_contents(world: FlowerWorld) -> None:
    world.upload(b"model")
    messages = [world.message(number, ttl_s=50.0) for number in range(2)]
    world.push(*messages)
    world.reply(0, messages[0], b"update")
    world.clock.at += 60
    world.end()
    view, rounds = world.view(), world.coordinator.operators.rounds("vision")
    rows = world.store.flower_messages("vision")
    assert view.errors == 1
    later(world, ENDED_S - EVERY_S - 1)
    assert there(world, b"update")
    later(world, EVERY_S)
    assert not there(world, b"update")
    assert not there(world, b"model")
    assert world.store.flower_contents("vision") == []
    assert world.store.flower_messages("vision") == rows
    with pytest.raises(ProblemError, match="has ended \\(finished\\)"):
        world.pull(messages[0])
    assert world.reply(0, messages[0], b"update").digest == digest_of(b"update")
    with pytest.raises(ProblemError, match="has ended"):
        world.reply(1, messages[1], b"late")
    assert world.coordinator.operators.rounds("vision") == rounds
    assert world.view() == view
    later(world, ENDED_S)
    assert world.view() == view


def test_a_blob_that_something_else_has_stays(world: FlowerWorld) -> None:
    run = world.create()
    assert run.checkpoint is not None
    model = world.blobs.open(run.checkpoint).read()
    world.upload(model)
    world.begin("other")
    world.upload(b"shared")
    world.upload(b"shared", "other")
    world.push(world.message(0, b"shared", ttl_s=10 * ENDED_S), run="other")
    later(world, 2 * UNNEEDED_S)
    assert world.store.flower_contents("vision") == []
    assert there(world, model)
    assert there(world, b"shared")


def test_a_content_that_is_sent_again_stays_for_another_while(world: FlowerWorld) -> None:
    world.upload(b"model")
    world.clock.at += UNNEEDED_S
    world.upload(b"model")
    world.coordinator.tick()
    assert there(world, b"model")
    world.push(world.message(0))


def test_what_a_crash_left_without_a_row_goes_at_the_next_start(world: FlowerWorld) -> None:
    world.blobs.put(b"left behind")
    world.upload(b"model")
    world.boot()
    assert sweep(world.coordinator.core) == 1
    assert not there(world, b"left behind")
    assert there(world, b"model")


def test_nodes_that_are_long_away_are_forgotten(world: FlowerWorld) -> None:
    world.clock.at += AWAY_S - 1
    world.poll(0)
    later(world, 2)
    assert [node.device for node in world.store.flower_nodes(0.0)] == [world.device(0)]


def test_blobs_wait_for_the_margin_of_clocks() -> None:
    assert MARGIN_S <= UNNEEDED_S
