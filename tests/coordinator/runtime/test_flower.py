"""A Flower run: messages that are durable before they are acknowledged, offered until they are answered, and replies
that count once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from client_sdk.protocol.flower import FlowerApp, FlowerError, FlowerPoll, FlowerWait
from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.flower.flower_core import MIB
from coordinator.runtime.flower.messages import MESSAGE_UNAVAILABLE
from coordinator.runtime.sweeping import sweep
from tests.coordinator.runtime.flower_world import APP, FlowerWorld, digest_of


def content(world: FlowerWorld, run: str, digest: str, device: str | None) -> bytes:
    world.flower.contents.require(run, digest, device)
    with world.coordinator.core.blobs.open(digest) as file:
        return file.read()


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ProblemError) as refused:
        call()
    return refused.value.kind, refused.value.problem.detail


@pytest.fixture
def world() -> FlowerWorld:
    """Three devices that are there, and the run ``vision`` with the content ``model``."""
    made = FlowerWorld(3)
    made.begin(config={"lr": 0.1})
    for number in range(3):
        assert made.poll(number) is None
    made.upload(b"model")
    return made


def test_a_device_gets_the_metadata_of_a_message_that_waited_as_they_were(world: FlowerWorld) -> None:
    world.push(world.message(0), world.message(1, grouped=False))
    began = world.task(0).created_at
    world.clock.at += 400.0
    own, shown = world.task(0), world.task(1)
    assert (own.created_at, own.ttl_s, own.expires_in_s) == (began, 600.0, 200.0)
    assert [(task.group, task.grouped) for task in (own, shown)] == [("1", True), ("1", False)]


def test_a_message_goes_to_its_device_and_its_reply_comes_back(world: FlowerWorld) -> None:
    first, second = world.message(0), world.message(1)
    assert world.push(first, second).known == ()
    assert world.pull(first, second) == []
    task = world.task(0)
    assert (task.run, task.app, task.config, task.message, task.node) == (
        "vision",
        APP,
        {"lr": 0.1},
        first.message,
        world.node(0),
    )
    assert (task.kind, task.group, task.content, task.bytes, task.expires_in_s) == (
        "train",
        "1",
        first.content,
        5,
        600.0,
    )
    assert task.number == world.view().number
    assert world.poll(2) is None
    receipt = world.reply(0, first, b"update")
    assert (receipt.message, receipt.digest) == (first.message, digest_of(b"update"))
    (reply,) = world.pull(second, first)
    assert (reply.message, reply.node, reply.content, reply.bytes) == (
        first.message,
        world.node(0),
        digest_of(b"update"),
        6,
    )
    assert reply.error is None
    world.reply(1, second, b"other")
    assert [one.message for one in world.pull(second, first)] == [first.message, second.message]
    assert (world.view().messages, world.view().replies, world.view().errors) == (2, 2, 0)


def test_what_was_acknowledged_survives_the_coordinator(world: FlowerWorld) -> None:
    first, second = world.message(0), world.message(1)
    world.push(first, second)
    world.reply(0, first, b"update")
    world.boot()
    sweep(world.coordinator.core)
    assert [one.content for one in world.pull(first, second)] == [digest_of(b"update")]
    assert world.task(1).message == second.message
    assert content(world, "vision", digest_of(b"update"), None) == b"update"
    assert content(world, "vision", second.content, world.device(1)) == b"model"


def test_a_push_may_be_repeated_and_changes_nothing(world: FlowerWorld) -> None:
    first, second = world.message(0), world.message(1)
    world.push(first)
    world.reply(0, first, b"update")
    assert world.push(second, first).known == (first.message,)
    assert world.view().messages == 2
    assert world.poll(0) is None
    assert [one.content for one in world.pull(first)] == [digest_of(b"update")]
    changed = world.message(1, b"model", kind="evaluate", message=second.message)
    assert refusal(lambda: world.push(changed))[0] == "conflict"


def test_a_push_is_all_or_nothing(world: FlowerWorld) -> None:
    good, missing = world.message(0), world.message(1, b"not sent")
    kind, detail = refusal(lambda: world.push(good, missing))
    assert (kind, missing.content in detail) == ("conflict", True)
    twice = good.model_copy(update={"kind": "evaluate"})
    assert "twice" in refusal(lambda: world.push(good, twice))[1]
    assert world.view().messages == 0
    assert world.poll(0) is None


def test_a_device_gets_the_same_message_until_it_is_answered(world: FlowerWorld) -> None:
    first, second = world.message(0), world.message(0, kind="evaluate")
    world.push(second)
    world.clock.at += 1
    world.push(first)
    assert [world.task(0).message for _ in range(3)] == [second.message] * 3
    world.boot()
    assert world.task(0).message == second.message
    world.reply(0, second, b"scores")
    assert world.task(0).message == first.message


def test_a_message_that_was_delivered_stays_first_when_an_older_one_is_offered_again(world: FlowerWorld) -> None:
    old, new = world.message(0, ttl_s=5.0), world.message(0, kind="evaluate")
    world.push(old)
    world.clock.at += 6
    world.push(new)
    assert world.task(0).message == new.message
    assert world.push(old).known == (old.message,)
    assert world.task(0).message == new.message
    world.reply(0, new, b"scores")
    assert world.task(0).message == old.message


def test_the_first_reply_counts_and_the_same_one_again_gets_the_same_receipt(world: FlowerWorld) -> None:
    message = world.message(0)
    world.push(message)
    receipt = world.reply(0, message, b"update")
    assert world.reply(0, message, b"update") == receipt
    assert refusal(lambda: world.reply(0, message, b"another"))[0] == "duplicate"
    error = FlowerError(code=2, reason="it raised")
    assert (
        refusal(lambda: world.flower.replies.error(world.device(0), "vision", message.message, error))[0] == "duplicate"
    )
    world.end()
    assert world.reply(0, message, b"update") == receipt
    assert (world.view().replies, world.view().errors) == (1, 0)


def test_an_error_takes_the_place_of_a_reply(world: FlowerWorld) -> None:
    message = world.message(0)
    world.push(message)
    error = FlowerError(code=2, reason="RuntimeError: the loss is NaN\n  line 3")
    receipt = world.flower.replies.error(world.device(0), "vision", message.message, error)
    assert receipt.digest is None
    assert world.flower.replies.error(world.device(0), "vision", message.message, error) == receipt
    assert [one.error for one in world.pull(message)] == [error]
    assert refusal(lambda: world.reply(0, message, b"update"))[0] == "duplicate"
    assert world.view().errors == 1


def test_a_message_whose_time_is_over_is_an_error_and_its_reply_is_late(world: FlowerWorld) -> None:
    message = world.message(0, ttl_s=30.0)
    world.push(message)
    assert world.task(0).expires_in_s == 30.0
    world.clock.at += 30
    assert world.poll(0) is None
    (expired,) = world.pull(message)
    assert expired.error is not None
    assert (expired.error.code, expired.content) == (MESSAGE_UNAVAILABLE, None)
    assert refusal(lambda: world.reply(0, message, b"update"))[0] == "late"
    assert world.view().errors == 1
    world.push(message)
    assert world.pull(message) == []
    assert world.task(0).message == message.message
    world.reply(0, message, b"update")
    assert [one.content for one in world.pull(message)] == [digest_of(b"update")]
    assert (world.view().messages, world.view().replies, world.view().errors) == (1, 1, 0)


def test_a_serverapp_that_waits_is_woken_when_its_message_expires(world: FlowerWorld) -> None:
    message = world.message(0, ttl_s=30.0)
    world.push(message)
    assert world.pull(message) == []
    signals = world.coordinator.core.signals
    seen = signals.version("flower-replies:vision")
    assert world.flower.tick() == world.clock.at + 30
    assert signals.version("flower-replies:vision") == seen
    world.clock.at += 30
    assert world.flower.tick() is None
    assert signals.version("flower-replies:vision") != seen


def test_a_reply_of_another_device_or_to_no_message_is_refused(world: FlowerWorld) -> None:
    message = world.message(0)
    world.push(message)
    assert refusal(lambda: world.reply(1, message, b"update"))[0] == "not-selected"
    unknown = world.message(0, kind="query")
    assert refusal(lambda: world.reply(0, unknown, b"update"))[0] == "not-selected"
    assert refusal(lambda: world.reply(0, message, b"update", run="nowhere"))[0] == "unknown-run"


def test_the_longest_reply_is_twice_the_largest_message_or_what_the_run_says(world: FlowerWorld) -> None:
    message, query = world.message(0), world.message(0, kind="get_parameters")
    world.push(message, query)
    limit = world.flower.replies.limit
    assert limit(world.device(0), "vision", message.message) == MIB == world.view().max_reply
    assert limit(world.device(0), "vision", query.message) == world.settings.max_update_bytes
    large = b"m" * (3 * MIB)
    world.upload(large)
    world.push(world.message(1, large))
    assert limit(world.device(0), "vision", message.message) == 6 * MIB
    world.begin("small", max_reply=1000)
    assert world.view("small").max_reply == 1000


def test_a_device_reads_the_contents_of_its_own_messages_alone(world: FlowerWorld) -> None:
    world.upload(b"mine")
    world.begin("other")
    message = world.message(0, b"mine")
    world.push(message)
    read = partial(content, world)
    assert read("vision", message.content, world.device(0)) == b"mine"
    assert read("vision", message.content, None) == b"mine"
    for run, device in (("vision", world.device(1)), ("other", world.device(0)), ("other", None)):
        assert refusal(lambda run=run, device=device: read(run, message.content, device))[0] == "unknown-content"
    world.reply(0, message, b"update")
    assert refusal(lambda: read("vision", digest_of(b"update"), world.device(1)))[0] == "unknown-content"


def test_nodes_are_there_for_a_minute_and_busy_ones_say_so(world: FlowerWorld) -> None:
    nodes = world.flower.nodes.there("vision").nodes
    assert [(one.node, one.device) for one in nodes] == sorted((world.node(one), world.device(one)) for one in range(3))
    message = world.message(0)
    world.push(message)
    world.clock.at += 40
    busy = world.poll(0, busy=message.message, hold_s=0)
    assert isinstance(busy, FlowerWait)
    assert "busy" in busy.reason
    world.clock.at += 40
    assert [one.device for one in world.flower.nodes.there("vision").nodes] == [world.device(0)]
    world.reply(0, message, b"update")
    wanted_no_more = world.poll(0, busy=message.message, hold_s=0)
    assert isinstance(wanted_no_more, FlowerWait)
    assert "no answer any more" in wanted_no_more.reason


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ({"name": "acme/other"}, "the app is acme/other, and the run needs acme/vision"),
        ({"version": "2.0.0"}, "acme/vision has version 2.0.0, and the run needs 1.0.0"),
        (
            {"digest": "e" * 64},
            f"the files of acme/vision 1.0.0 have the hash {'e' * 12}, and the run needs {'d' * 12}",
        ),
    ],
)
def test_a_device_with_another_app_gets_no_message_and_the_reason(
    world: FlowerWorld, app: dict[str, str], words: str
) -> None:
    world.push(world.message(0))
    answer = world.poll(0, apps=[FlowerApp(**(APP.model_dump() | app))])
    assert isinstance(answer, FlowerWait)
    assert answer.reason == f"run vision: {words}"
    there = world.flower.nodes.there("vision")
    assert world.device(0) not in [one.device for one in there.nodes]
    assert there.ineligible == {words: 1}
    fleet = world.coordinator.insight.fleet
    view, counts = fleet.device(world.device(0)).device, fleet.counts()
    assert (view.state, view.unfit, counts.unfit) == ("unfit", f"run vision: {words}", 1)
    world.poll(0)
    assert fleet.device(world.device(0)).device.unfit == ""


def test_a_device_for_secure_rounds_only_takes_part_in_no_flower_run(world: FlowerWorld) -> None:
    world.push(world.message(0))
    answer = world.poll(0, secure_only=True)
    assert isinstance(answer, FlowerWait)
    assert "'secure only', and Flower runs are plain" in answer.reason
    assert len(world.flower.nodes.there("vision").nodes) == 2


def test_the_same_run_is_found_again_and_another_one_of_its_name_is_refused(world: FlowerWorld) -> None:
    before = world.view()
    assert world.begin(config={"lr": 0.1}) == before
    for fields, words in (
        ({"config": {"lr": 0.2}}, "lr is 0.1, not 0.2"),
        ({"config": {}}, "lr is 0.1, not None"),
        ({"config": {"lr": 0.1}, "max_reply": 9}, "its longest reply is None, not 9"),
        (
            {"config": {"lr": 0.1}, "app": FlowerApp(name=APP.name, version="2", digest=APP.digest)},
            "version is 1.0.0, not 2",
        ),
        (
            {"config": {"lr": 0.1}, "app": FlowerApp(name=APP.name, version=APP.version, digest="e" * 64)},
            "in the app's .gitignore, which leaves them out of the hash",
        ),
    ):
        kind, detail = refusal(lambda fields=fields: world.begin(**fields))
        assert (kind, words in detail) == ("conflict", True), detail
    world.create()
    assert refusal(lambda: world.begin("marks"))[0] == "conflict"
    world.end()
    assert "choose another name" in refusal(lambda: world.begin(config={"lr": 0.1}))[1]
    other = FlowerWorld(0)
    assert other.begin("marks").run == "marks"
    assert other.create().run == "marks-2"


def test_an_ended_run_offers_nothing_and_takes_nothing(world: FlowerWorld) -> None:
    first, second = world.message(0), world.message(1)
    world.push(first, second)
    world.reply(0, first, b"update")
    ended = world.end("failed")
    assert (ended.status, ended.ended_at) == ("failed", world.clock.at)
    assert world.end("failed") == ended
    assert refusal(lambda: world.end("stopped"))[0] == "conflict"
    assert world.poll(1) is None
    assert refusal(lambda: world.reply(1, second, b"update"))[0] == "late"
    assert refusal(lambda: world.push(second))[0] == "conflict"
    assert refusal(lambda: world.upload(b"more"))[0] == "conflict"
    assert [one.content for one in world.pull(first, second)] == [digest_of(b"update")]
    assert "has ended (failed)" in refusal(lambda: world.pull(second))[1]


def test_a_device_hears_which_of_its_runs_are_over(world: FlowerWorld) -> None:
    number = world.view().number
    known = {"vision": number, "elsewhere": 7}
    message = world.message(0)
    world.push(message)
    going = world.poll(0, busy=message.message, runs=known)
    assert isinstance(going, FlowerWait)
    assert going.over == ()
    world.end()
    busy = world.poll(0, busy=message.message, runs=known)
    assert isinstance(busy, FlowerWait)
    assert busy.over == ("vision",)
    asked = FlowerPoll(apps=(APP,), runs=known)
    assert world.flower.nodes.hold_over(asked).over == ("vision",)
    other = FlowerPoll(apps=(APP,), runs={"vision": number + 1})
    assert world.flower.nodes.hold_over(other).over == (), "another coordinator's run of this name"


def test_the_state_of_the_serverapp_is_a_content(world: FlowerWorld) -> None:
    kept = world.upload(b"state")
    world.flower.runs.keep_state("vision", kept)
    assert world.view().state == kept
    assert refusal(lambda: world.flower.runs.keep_state("vision", "5" * 64))[0] == "conflict"


def test_a_device_that_leaves_is_a_node_no_more(world: FlowerWorld) -> None:
    world.coordinator.identities.leave(world.rows[0])
    assert len(world.flower.nodes.there("vision").nodes) == 2
    left, there = world.message(0), world.message(1)
    assert world.push(left, there).nowhere == (left.message,)
    assert (world.view().messages, world.task(1).message) == (1, there.message)
    assert world.push(left).nowhere == (left.message,)


def test_repro_a_message_to_a_device_that_leaves_is_an_error_at_once_and_its_reply_stays(world: FlowerWorld) -> None:
    waiting, answered, other = world.message(0), world.message(0, kind="evaluate"), world.message(1)
    world.push(waiting, answered, other)
    world.reply(0, answered, b"update")
    world.coordinator.identities.leave(world.rows[0])
    gone, kept = world.pull(waiting, answered, other)
    assert gone.error is not None
    assert (gone.message, gone.error.code, "has left" in gone.error.reason) == (waiting.message, 5, True)
    assert (kept.message, kept.content) == (answered.message, digest_of(b"update"))
    assert world.pull(other) == []


def test_repro_a_poll_that_was_let_in_before_its_device_left_brings_it_not_back(world: FlowerWorld) -> None:
    """The fault explorer, seed 9501611: the message waited for its time, up to an hour, in place of its error."""
    waiting = world.message(0)
    world.push(waiting)
    world.coordinator.identities.leave(world.rows[0])
    assert refusal(lambda: world.flower.nodes.poll(world.device(0), FlowerPoll(apps=(APP,))))[0] == "unregistered"
    (gone,) = world.pull(waiting)
    assert gone.error is not None
    assert gone.error.code == 5


def test_a_flower_run_has_no_plan_and_a_run_with_a_plan_takes_no_messages(world: FlowerWorld) -> None:
    world.create()
    assert "has a plan" in refusal(lambda: world.view("marks"))[1]
    for ask in (
        world.coordinator.operators.checkpoints,
        world.coordinator.operators.metrics,
        world.coordinator.operators.pause,
    ):
        kind, detail = refusal(lambda ask=ask: ask("vision"))
        assert (kind, "its ServerApp decides" in detail) == ("conflict", True)
