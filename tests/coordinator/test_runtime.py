"""The runtime as devices and operators see it: whole rounds, what counts, what is refused and how it is told."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np
import pytest

from client_sdk.operator_protocol import MetricReport
from client_sdk.protocol import Assignment, CheckIn, Score, Wait, Work
from client_sdk.tensors import digest
from coordinator.blobs import DiskFull, MemoryBlobs, TooLarge
from coordinator.blobs.memory import MemorySpool
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import LEARNER, World

# ---------------------------------------------------------------- whole rounds


def test_a_run_from_its_first_round_to_its_last(world: World) -> None:
    counted = {number: world.play_round(number) for number in range(1, 6)}
    view = world.coordinator.run("marks")
    assert (view.status, view.reason, view.phase) == ("finished", "reached 5 rounds", "idle")
    assert (view.version, view.rounds_committed, view.rounds_wanted) == (5, 5, 5)
    world.require(counted)
    assert [(row.status, row.version) for row in world.coordinator.rounds("marks")] == [
        ("committed", version) for version in range(1, 6)
    ]
    assert world.store.claims() == []


def test_select_4_goal_3_the_fourth_is_told_it_is_late(world: World) -> None:
    world.check_in()
    first, second, third, fourth = world.cohort()
    receipts = world.report(first, second, third)
    assert [(receipt.weight, receipt.round) for receipt in receipts] == [(10, 1)] * 3
    world.require({1: [first, second, third]})
    with world.refuses("late", "round 1 is over"):
        world.report(fourth)
    assert world.refusals() == [(fourth, "late")]
    row = world.coordinator.round("marks", 1)
    assert (row.funnel.selected, row.funnel.reported, row.funnel.late, row.funnel.dropped) == (4, 3, 1, 0)


def test_at_the_deadline_a_quorum_commits(world: World) -> None:
    world.check_in()
    first, second, *_ = world.cohort()
    world.report(first, second)
    world.pass_time(59)
    assert world.coordinator.run("marks").phase == "collecting"
    world.pass_time(1)
    world.require({1: [first, second]})


def test_below_the_quorum_the_round_is_abandoned_and_the_acknowledged_update_is_told(world: World) -> None:
    world.check_in()
    first, second, *_ = world.cohort()
    world.report(first)
    world.pass_time(60)
    world.require({})
    assert world.refusals() == [(first, "abandoned")]
    row = world.coordinator.round("marks", 1)
    assert (row.status, row.reason) == ("abandoned", "1 of 4 devices reported by the deadline; the quorum is 2")
    outcome = world.coordinator.outcome(world.rows[first].device, "marks", 1)
    assert (outcome.result, outcome.reason) == (
        "refused",
        "the round was abandoned: 1 of 4 devices reported by the deadline; the quorum is 2",
    )
    with world.refuses("late", "the round was abandoned"):
        world.report(first)
    with world.refuses("late", "round 1 is over"):
        world.report(second)
    assert {claim.round for claim in world.store.claims()} == {2}, "whoever waited is free for the next round"


def test_a_select_deadline_draws_from_whoever_waits(world: World) -> None:
    world.check_in(1, 5)
    assert world.cohort() == []
    world.pass_time(10)
    assert world.cohort() == [1, 5]
    world.report(1, 5)
    world.require({1: [1, 5]})


def test_nobody_waits_so_rounds_are_abandoned_and_told(world: World) -> None:
    world.pass_time(10)
    world.pass_time(10)
    reasons = [row.reason for row in world.coordinator.rounds("marks")]
    assert reasons == ["0 eligible devices waited; a round needs at least 2"] * 2 + [""]


def test_the_same_updates_in_every_order_give_the_same_bits() -> None:
    """Values that no float sum would add alike in two orders."""
    rng = np.random.default_rng(4)
    deltas = [{"marks": (rng.normal(size=4) * 10.0**place).astype(np.float32)} for place in (-4, 0, 2, 3)]
    digests = set()
    for order in itertools.permutations(range(4)):
        world = World(4)
        world.create(cohort={"select": 4, "goal": 4, "quorum": 1.0})
        world.check_in()
        for number in order:
            world.send(number, world.body(number, delta=deltas[number], examples=number * 7 + 1))
        digests.add(world.coordinator.run("marks").checkpoint)
    assert len(digests) == 1


def test_the_next_model_is_the_weighted_mean_of_the_deltas(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    for number, examples in ((first, 10), (second, 20), (third, 70)):
        world.report(number, examples=examples)
    marks = world.checkpoint()["marks"]
    assert marks[[first, second, third]].tolist() == [np.float32(0.2), np.float32(0.4), np.float32(1.4)]


# ---------------------------------------------------------------- idempotence


def test_the_same_bytes_get_the_same_receipt_at_every_later_time(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    body = world.body(first)
    receipt = world.send(first, body)
    assert world.send(first, body) == receipt, "while collecting"
    world.boot()
    assert world.send(first, body) == receipt, "after a restart"
    world.report(second, third)
    assert world.send(first, body) == receipt, "after the commit, when the raw update is gone"
    assert not world.blobs.has(receipt.digest)
    world.play_round(2)
    world.boot()
    assert world.send(first, body) == receipt, "a round later, after another restart"
    assert world.coordinator.outcome(world.rows[first].device, "marks", 1).version == 1


def test_other_bytes_are_refused_and_the_first_count(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    receipt = world.report(first)[0]
    other = world.body(first, metrics={"loss": 0.25})
    with world.refuses("duplicate", "the first one counts"):
        world.send(first, other)
    assert world.refusals() == [(first, "duplicate")]
    assert not world.blobs.has(hashlib.sha256(other).hexdigest())
    world.report(second, third)
    with world.refuses("duplicate", "the first one counts"):
        world.send(first, other)
    assert receipt.digest in [row.digest for row in world.store.contributions("marks", 1)]


def test_checking_in_again_while_assigned_gives_the_same_assignment(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    first = world.assignment(number)
    (again,) = world.check_in(number)
    assert again == first
    world.pass_time(20)
    (later,) = world.check_in(number)
    assert isinstance(first, Assignment)
    assert isinstance(later, Assignment)
    assert first.report_within_s - later.report_within_s == pytest.approx(20)
    assert later.model_copy(update={"report_within_s": 0}) == first.model_copy(update={"report_within_s": 0})


def test_an_assignment_says_all_that_a_device_needs(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    work, view = world.assignment(number), world.coordinator.run("marks")
    assert work is not None
    assert (work.run, work.round, work.attempt, work.device) == ("marks", 1, 0, world.rows[number].device)
    assert (work.checkpoint.version, work.checkpoint.digest) == (0, view.checkpoint)
    assert work.checkpoint.bytes == len(world.coordinator.checkpoint_file(view.checkpoint).read_bytes())
    assert work.plan_digest == view.plan_digest
    assert (work.task.learner, work.partial, work.secure) == (LEARNER, "full", False)
    assert len(world.body(number)) <= work.max_update_bytes


# ---------------------------------------------------------------- withdrawal, late, stale, not selected


def test_a_device_that_withdraws_is_free_at_once_and_cannot_report(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    device = world.rows[number].device
    world.coordinator.withdraw(device, "marks", 1, 0, "battery low")
    world.coordinator.withdraw(device, "marks", 1, 0, "battery low")
    assert world.assignment(number) is None
    assert world.coordinator.outcome(device, "marks", 1).result == "withdrawn"
    assert world.check_in(number) == [None], "it waits for the next round"
    with world.refuses("withdrawn"):
        world.report(number)
    assert world.refusals() == [(number, "withdrawn")]
    assert world.coordinator.round("marks", 1).funnel.withdrawn == 1


def test_the_round_is_abandoned_as_soon_as_too_many_withdrew(world: World) -> None:
    world.check_in()
    for number in world.cohort()[:3]:
        world.coordinator.withdraw(world.rows[number].device, "marks", 1, 0, "moved")
    assert world.coordinator.round("marks", 1).reason == ("3 of 4 devices withdrew; 1 are left and the quorum is 2")


def test_who_was_not_selected_is_told_before_the_body_is_read(world: World) -> None:
    world.check_in()
    outsider = next(number for number in range(8) if number not in world.cohort())
    device = world.rows[outsider].device
    with world.refuses("not-selected", "was not selected for round 1"):
        world.coordinator.update_limit(device, "marks", 1, 0)
    with world.refuses("not-selected"):
        world.coordinator.started(device, "marks", 1, 0)
    with world.refuses("not-selected"):
        world.coordinator.withdraw(device, "marks", 1, 0, "")
    assert world.coordinator.outcome(device, "marks", 1).result == "unknown"


@pytest.mark.parametrize(("number", "attempt"), [(2, 0), (1, 1), (10**6, 0)])
def test_a_round_that_is_not_open_is_stale_before_the_body_is_read(world: World, number: int, attempt: int) -> None:
    world.check_in()
    with world.refuses("stale"):
        world.coordinator.update_limit(world.rows[world.cohort()[0]].device, "marks", number, attempt)


def test_a_late_update_is_refused_before_the_body_is_read_and_recorded_once(world: World) -> None:
    world.check_in()
    late = world.cohort()[3]
    world.report(*world.cohort()[:3])
    device = world.rows[late].device
    for _ in range(2):
        with world.refuses("late", "round 1 is over"):
            world.coordinator.update_limit(device, "marks", 1, 0)
    assert world.refusals() == [(late, "late")]
    outcome = world.coordinator.outcome(device, "marks", 1)
    assert (outcome.result, outcome.reason) == ("refused", "round 1 is over")


def test_an_update_whose_round_closes_while_it_is_read_is_late_and_leaves_no_bytes(world: World) -> None:
    world.check_in()
    *counted, late = world.cohort()
    body, device = world.body(late), world.rows[late]
    with world.blobs.spool(world.coordinator.update_limit(device.device, "marks", 1, 0)) as spool:
        spool.write(body)
        world.report(*counted)
        with world.refuses("late"):
            world.coordinator.report(device, "marks", 1, 0, spool)
    assert world.refusals() == [(late, "late")]
    assert not world.blobs.has(hashlib.sha256(body).hexdigest())
    world.require({1: counted})


def test_repro_equal_bytes_of_two_devices_are_not_deleted_under_the_one_that_counts() -> None:
    """With retention the late twin's refusal deleted the counted update's blob."""
    world = World(8)
    world.create(retention={"rounds": 3})
    world.check_in()
    first, *others, late = world.cohort()
    body = world.body(first)
    with world.blobs.spool() as spool:
        spool.write(body)
        receipt = world.send(first, body)
        world.report(*others)
        with world.refuses("late"):
            world.coordinator.report(world.rows[late], "marks", 1, 0, spool)
    assert world.coordinator.run("marks").version == 1
    assert world.blobs.has(receipt.digest)


def test_an_unknown_run_is_told_so(world: World) -> None:
    for ask in (
        lambda: world.coordinator.run("nothing"),
        lambda: world.coordinator.pause("nothing"),
        lambda: world.coordinator.rounds("nothing"),
        lambda: world.coordinator.checkpoints("nothing"),
        lambda: world.coordinator.metrics("nothing"),
        lambda: world.coordinator.events("nothing"),
        lambda: world.coordinator.update_limit(world.rows[0].device, "nothing", 1, 0),
        lambda: world.coordinator.started(world.rows[0].device, "nothing", 1, 0),
        lambda: world.coordinator.outcome(world.rows[0].device, "nothing", 1),
    ):
        with world.refuses("unknown-run", "there is no run 'nothing'"):
            ask()


@pytest.mark.parametrize("number", [0, 2, 99, 2**31, 2**63, 10**30])
def test_a_round_that_never_was_is_unknown(world: World, number: int) -> None:
    with world.refuses("unknown-round", "the run is at round 1|it is at round 1"):
        world.coordinator.round("marks", number)
    with world.refuses("unknown-round"):
        world.coordinator.outcome(world.rows[0].device, "marks", number)


# ---------------------------------------------------------------- bad updates


def _changed(**tensors: Any) -> dict[str, Any]:
    return {name: np.asarray(value, np.float32) for name, value in tensors.items()}


BAD_DELTAS: list[tuple[str, dict[str, Any], str]] = [
    ("a wrong name", _changed(mark=np.zeros(8)), "mark"),
    ("one name too many", _changed(marks=np.zeros(8), more=np.zeros(1)), "more"),
    ("a wrong shape", _changed(marks=np.zeros(7)), r"\[7\]|\(7,\)"),
    ("as many values in another shape", _changed(marks=np.zeros((2, 4))), r"\[2, 4\]|\(2, 4\)"),
]


@pytest.mark.parametrize(("delta", "words"), [case[1:] for case in BAD_DELTAS], ids=[case[0] for case in BAD_DELTAS])
def test_an_update_that_does_not_fit_the_model(world: World, delta: dict[str, Any], words: str) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, world.body(number, delta=delta), words)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000.0, 3e38])
def test_values_that_cannot_be_summed(world: World, value: float) -> None:
    """The SDK would not encode them: so the bytes are changed after."""
    world.check_in()
    number = world.cohort()[0]
    body = bytearray(world.body(number))
    body[-4:] = np.float32(value).tobytes()
    _refused(world, number, bytes(body), "NaN|infinity|finite|out of range|above")


def test_a_wrong_dtype(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    _refused(world, number, body.replace(b'"F32"', b'"I32"'), "I32")


def test_bytes_cut_short_or_one_too_long(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    _refused(world, number, body[:-1])
    _refused(world, number, body + b"\0")
    _refused(world, number, body[:4])
    _refused(world, number, b"")
    _refused(world, number, b"\xff" * 64)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run": "other"}, "made for run other"),
        ({"round": 2}, "round 2"),
        ({"attempt": 3}, "attempt 3"),
        ({"codec": "float16@1"}, "encoded with float16@1; the task asks for float32@1"),
    ],
)
def test_a_report_for_something_else(world: World, more: dict[str, Any], words: str) -> None:
    world.check_in()
    number = world.cohort()[0]
    _refused(world, number, world.body(number, **more), words)


def test_an_update_without_a_report_or_with_a_broken_one(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    body = world.body(number)
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    report = json.loads(header["__metadata__"]["quorate.report"])

    def rebuilt(metadata: dict[str, str] | None) -> bytes:
        changed = {name: value for name, value in header.items() if name != "__metadata__"}
        if metadata is not None:
            changed["__metadata__"] = metadata
        text = json.dumps(changed, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body[8 + size :]

    _refused(world, number, rebuilt(None), "quorate.report")
    _refused(world, number, rebuilt({"quorate.report": "{"}), "report")
    _refused(world, number, rebuilt({"quorate.report": json.dumps({**report, "examples": -1})}), "examples")
    _refused(world, number, rebuilt({"quorate.report": json.dumps({**report, "examples": 2**40})}), "examples")
    _refused(world, number, rebuilt({"quorate.report": json.dumps({**report, "metrics": {"loss": "x"}})}), "loss")


def test_an_update_of_no_examples_is_refused(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    with world.refuses("invalid-update", "at least one training example"):
        world.report(number, examples=0)
    assert world.refusals() == [(number, "invalid-update")]
    assert world.report(number)[0].weight == 10


def test_a_body_longer_than_the_limit_stops_while_it_arrives(world: World) -> None:

    world.check_in()
    number = world.cohort()[0]
    limit = world.coordinator.update_limit(world.rows[number].device, "marks", 1, 0)
    with world.blobs.spool(limit) as spool:
        spool.write(b"\0" * limit)
        with pytest.raises(TooLarge):
            spool.write(b"\0")


def _refused(world: World, number: int, body: bytes, words: str = ".") -> None:
    """The body is refused as invalid, leaves nothing behind, and a good one still counts."""
    blobs, before = set(world.blobs.digests()), world.coordinator.run("marks")
    with world.refuses("invalid-update", words):
        world.send(number, body)
    assert set(world.blobs.digests()) == blobs
    assert world.coordinator.run("marks") == before
    assert world.assignment(number) is not None, "the device may still send what it should have sent"


def test_a_good_update_after_a_bad_one_counts(world: World) -> None:
    world.check_in()
    first, second, third, _ = world.cohort()
    _refused(world, first, world.body(first)[:-1])
    world.report(first, second, third)
    world.require({1: [first, second, third]})


# ---------------------------------------------------------------- the machine fails


class FullDisk(MemoryBlobs):
    """Blobs on a disk that is full while ``full`` is set."""

    full = False

    def spool(self, limit: int | None = None) -> MemorySpool:
        spool = super().spool(limit)
        commit = spool.commit

        def fails(expected: str | None = None) -> str:
            if self.full:
                raise DiskFull("Could not write a blob: the disk is full.")
            return commit(expected)

        spool.commit = fails  # type: ignore[method-assign]
        return spool


def test_a_full_disk_leaves_everything_as_it_was_and_a_later_try_succeeds() -> None:
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    world.check_in()
    first, second, third, _ = world.cohort()
    world.report(first)
    before, head = world.coordinator.run("marks"), world.store.head("marks")
    blobs.full = True
    with pytest.raises(DiskFull):
        world.report(second)
    assert (world.coordinator.run("marks"), world.store.head("marks")) == (before, head)
    assert world.assignment(second) is not None
    blobs.full = False
    world.report(second, third)
    world.require({1: [first, second, third]})


def test_a_full_disk_at_the_checkpoint_leaves_the_round_committing_until_there_is_room() -> None:
    blobs = FullDisk()
    world = World(8, blobs=blobs)
    world.create()
    world.check_in()
    first, second, third, _ = world.cohort()
    world.report(first, second)
    device = world.rows[third]
    with blobs.spool() as spool:
        spool.write(world.body(third))
        world.coordinator.report(device, "marks", 1, 0, spool)
    blobs.full = True
    with pytest.raises(DiskFull):
        world.settle()
    assert world.coordinator.run("marks").phase == "committing"
    blobs.full = False
    world.boot()
    world.settle()
    world.require({1: [first, second, third]})


# ---------------------------------------------------------------- the fleet and several runs


def test_several_runs_share_the_fleet_and_no_device_has_two_assignments(make_world: MakeWorld) -> None:
    world = make_world(10)
    world.create()
    world.create(name="other")
    world.check_in()
    claims = world.store.claims()
    assert sorted(claim.run for claim in claims) == ["marks"] * 4 + ["other"] * 4
    assert len({claim.device for claim in claims}) == 8
    by_run = {run: [world.index(c.device) for c in claims if c.run == run] for run in ("marks", "other")}
    for run, numbers in by_run.items():
        for number in numbers[:3]:
            world.send(number, world.body(number, run=run), run=run)
    assert [world.coordinator.run(run).version for run in ("marks", "other")] == [1, 1]
    world.require({1: by_run["marks"][:3]})
    world.require({1: by_run["other"][:3]}, run="other")
    assert not {world.index(c.device) for c in world.store.claims()} & {n for ns in by_run.values() for n in ns[:3]}


def test_an_update_cannot_be_sent_to_another_run(make_world: MakeWorld) -> None:
    world = make_world(10)
    world.create()
    world.create(name="other")
    world.check_in()
    claim = next(claim for claim in world.store.claims() if claim.run == "other")
    with world.refuses("not-selected"):
        world.send(world.index(claim.device), world.body(0), run="marks")


def test_a_learner_or_version_that_does_not_fit_is_told_why(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(task={"learner_version": "2"})
    (answer,) = world.check_in(0, version="1")
    assert isinstance(answer, Wait)
    assert answer.reason == f"run marks: the plan wants {LEARNER} 2; this device has 1"
    assert 0 < answer.min_s < answer.max_s
    nothing = CheckIn(examples=5, learners={})
    answer = world.coordinator.check_in(world.rows[1], nothing)  # type: ignore[assignment]
    assert isinstance(answer, Wait)
    assert "which this device does not have (installed: none)" in answer.reason
    assert world.check_in(2, 3, version="2") == [None, None]
    assert world.store.waiting_by_offer(world.clock.now()).popitem()[1] == 2


def test_a_device_that_is_too_small_is_told_why_by_its_capped_size(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(cohort={"min_examples": 500})
    (answer,) = world.check_in(0, examples=400)
    assert isinstance(answer, Wait)
    assert "at least 500 examples; this one has 400" in answer.reason
    world.create(name="picky", cohort={"min_examples": 1001})
    (answer,) = world.check_in(1, examples=2000)
    assert answer is None, "1000 by its enrolment: enough for one of the two runs"


def test_secure_only_devices_are_never_selected_for_plain_rounds(world: World) -> None:
    for answer in world.check_in(0, 1, 2, 3, secure_only=True):
        assert isinstance(answer, Wait)
        assert "secure aggregation only" in answer.reason
    world.check_in(4, 5)
    world.pass_time(10)
    assert world.cohort() == [4, 5]


def test_with_several_runs_a_device_waits_if_one_of_them_can_use_it(make_world: MakeWorld) -> None:
    world = make_world(6)
    world.create(task={"learner_version": "2"})
    world.create(name="other", task={"learner_version": "1"})
    assert world.check_in(version="1") == [None] * 6
    assert {claim.run for claim in world.store.claims()} == {"other"}


def test_devices_whose_size_one_run_refuses_do_not_keep_it_from_resting(make_world: MakeWorld) -> None:
    """They fill the pool by count, but not by eligibility; the draw then waits for the deadline."""
    world = make_world(6)
    world.create(cohort={"min_examples": 50})
    world.create(name="other", cohort={"select": 6, "goal": 6, "quorum": 1.0, "select_s": 3600})
    world.check_in(0, 1, 2, 3, examples=10)
    assert world.cohort() == []
    world.check_in(4, 5, examples=60)
    assert world.coordinator.run("other").phase == "collecting"


def test_a_hold_that_ran_out_is_told_what_the_runs_are_doing(world: World) -> None:
    message = CheckIn(examples=5, learners={LEARNER: "1"})
    told = world.coordinator.hold_over(world.rows[0].device, message)
    assert told.reason == "not selected yet: run marks is selecting round 1"
    assert told.max_s <= 5, "it comes back at once and keeps its place"
    world.coordinator.stop("marks")
    assert world.coordinator.hold_over(world.rows[0].device, message).reason == "no run is under way"


# ---------------------------------------------------------------- aggregation as the plan says


def test_sizes_are_capped_at_enrolment_and_by_the_plan(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"weight_cap": 300})
    world.check_in(examples=10**6)
    assert [examples for _, examples in json.loads(world.pool())] == [1000] * 4, "what they enrolled with"
    assert [receipt.weight for receipt in world.report(0, 1, examples=2**31)] == [300, 300]


def test_the_cap_of_enrolment_holds_without_a_cap_of_the_plan(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    assert world.report(number, examples=2**31)[0].weight == 1000


def test_partial_work_in_the_three_modes(make_world: MakeWorld) -> None:
    half = Work(steps=2, steps_planned=4, epochs=0.5, examples_seen=50, complete=False)
    for partial, weight in (("full", 100), ("examples_seen", 50)):
        world = make_world(4)
        world.create(aggregation={"partial": partial})
        world.check_in()
        assert world.report(0, examples=100, work=half)[0].weight == weight
    world = make_world(4)
    world.create(aggregation={"partial": "refuse"})
    world.check_in()
    with world.refuses("invalid-update", "2 of 4 steps"):
        world.report(0, examples=100, work=half)
    assert list(world.blobs.digests()) != []
    assert len(world.report(0, examples=100)) == 1


def test_the_coordinator_clips_each_update_to_the_norm(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"clip_norm": 5.0}, cohort={"select": 2, "goal": 2, "quorum": 1.0})
    world.check_in()
    first, second = world.cohort()
    long, short = np.zeros(4, np.float32), np.zeros(4, np.float32)
    long[[0, 1]], short[[2, 3]] = (30.0, 40.0), (0.3, 0.4)
    world.send(first, world.body(first, delta={"marks": long}))
    world.send(second, world.body(second, delta={"marks": short}))
    assert world.checkpoint()["marks"].tolist() == pytest.approx([1.5, 2.0, 0.15, 0.2], rel=1e-6)


def test_the_servers_learning_rate_scales_the_step(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"server_learning_rate": 0.25})
    counted = world.play_round(1)
    assert world.checkpoint()["marks"][counted].tolist() == [np.float32(0.25) * np.float32(2 / 3)] * 3


def test_the_median_ignores_one_wild_update(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(aggregation={"rule": "median", "weighting": "equal"})
    world.check_in()
    for number, value in zip(world.cohort()[:3], (1.0, 60_000.0, 2.0), strict=True):
        world.send(number, world.body(number, delta={"marks": np.full(4, value, np.float32)}))
    assert world.checkpoint()["marks"].tolist() == [2.0] * 4


def test_what_is_not_averaged_stays_bit_for_bit(make_world: MakeWorld) -> None:
    world = make_world(4)
    rng = np.random.default_rng(1)
    model = {
        "marks": np.zeros(4, np.float32),
        "body.weight": rng.normal(size=(3, 5)).astype(np.float32),
        "body.count": np.array([1, 2**62], np.int64),
        "body.seen": np.array([True, False]),
        "body.half": rng.normal(size=7).astype(np.float16),
    }
    world.create(model, task={"averaged": ["marks"]})
    counted = world.play_round(1)
    after = world.checkpoint()
    assert set(after) == set(model)
    for name in set(model) - {"marks"}:
        assert after[name].tobytes() == model[name].tobytes()
        assert after[name].dtype == model[name].dtype
    assert np.flatnonzero(after["marks"]).tolist() == sorted(counted)


def test_a_device_that_sends_what_is_not_averaged_is_refused(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create({**world.model(), "body": np.ones(2, np.float32)}, task={"averaged": ["marks"]})
    world.check_in()
    delta = {"marks": np.zeros(4, np.float32), "body": np.zeros(2, np.float32)}
    with world.refuses("invalid-update", "body"):
        world.send(0, world.body(0, delta=delta))


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_raw_updates_are_kept_as_long_as_the_plan_says(make_world: MakeWorld, rounds: int) -> None:
    world = make_world(8)
    world.create(retention={"rounds": rounds})
    kept: dict[int, list[str]] = {}
    for number in range(1, 5):
        world.play_round(number)
        kept[number] = [row.digest for row in world.store.contributions("marks", number)]
        for earlier, digests in kept.items():
            there = {world.blobs.has(item) for item in digests}
            assert there == {earlier > number - rounds}, (earlier, number)
    assert all(world.blobs.has(row.digest) for row in world.store.checkpoints("marks"))


def test_raw_updates_of_an_abandoned_round_go_as_well(world: World) -> None:
    world.check_in()
    receipt = world.report(world.cohort()[0])[0]
    assert world.blobs.has(receipt.digest)
    world.pass_time(60)
    assert not world.blobs.has(receipt.digest)


# ---------------------------------------------------------------- operators


def test_pausing_lets_the_round_end_and_resuming_opens_the_next(world: World) -> None:
    world.check_in()
    assert world.coordinator.pause("marks").status == "paused"
    counted = world.cohort()[:3]
    world.report(*counted)
    assert (world.coordinator.run("marks").phase, world.coordinator.run("marks").version) == ("idle", 1)
    world.pass_time(1000)
    assert world.coordinator.run("marks").round == 1
    assert world.coordinator.resume("marks").phase == "selecting"
    world.settle()
    world.require({1: counted, 2: world.play_round(2)})


def test_a_run_is_stopped_for_good(world: World) -> None:
    world.check_in()
    number = world.cohort()[0]
    world.report(number)
    view = world.coordinator.stop("marks")
    assert (view.status, view.reason) == ("stopped", "stopped by the operator")
    assert world.refusals() == [(number, "abandoned")]
    assert world.store.claims() == []
    for again in (world.coordinator.stop, world.coordinator.pause, world.coordinator.resume):
        with world.refuses("conflict"):
            again("marks")
    assert world.check_in(1) == [None]
    world.boot()
    assert world.coordinator.run("marks").status == "stopped"


def test_a_score_at_the_target_finishes_the_run(make_world: MakeWorld) -> None:
    world = make_world(8)
    world.create(finish={"metric": "accuracy", "target": 0.9})
    world.play_round(1)
    view = world.coordinator.run("marks")
    report = MetricReport(version=1, digest=view.checkpoint, score=Score(examples=100, metrics={"accuracy": 0.93}))
    (row,) = world.coordinator.report_metrics("marks", report)
    assert (row.version, row.name, row.value, row.examples, row.source) == (1, "accuracy", 0.93, 100, "evaluator")
    after = world.coordinator.run("marks")
    assert (after.status, after.reason) == ("finished", "accuracy 0.93 reached the target 0.9 at version 1")


def test_scores_of_another_checkpoint_or_source_are_refused(world: World) -> None:
    view = world.coordinator.run("marks")
    score = Score(examples=1, metrics={"accuracy": 0.5})
    with world.refuses("conflict", "was scored"):
        world.coordinator.report_metrics("marks", MetricReport(version=0, digest="0" * 64, score=score))
    for version in (1, 2**31, 10**30):
        with world.refuses("unknown-checkpoint", f"no version {version}"):
            world.coordinator.report_metrics("marks", MetricReport(version=version, digest="0" * 64, score=score))
    with world.refuses("conflict", "kept for the scores that devices report"):
        world.coordinator.report_metrics(
            "marks", MetricReport(version=0, digest=view.checkpoint, source="devices", score=score)
        )
    assert world.coordinator.metrics("marks") == []


def test_devices_score_the_model_they_received(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(task={"score_held_out": True})
    world.check_in()
    for number, accuracy in zip(world.cohort()[:3], (0.5, 0.7, 0.9), strict=True):
        world.report(number, held_out=Score(examples=20, metrics={"accuracy": accuracy}))
    (row,) = world.coordinator.metrics("marks")
    assert (row.version, row.source, row.name, row.examples) == (0, "devices", "accuracy", 60)
    assert row.value == pytest.approx(0.7)


@pytest.mark.parametrize("examples", [2**31, 2**70])
def test_a_device_that_claims_absurdly_many_held_out_examples_cannot_stop_the_round(
    make_world: MakeWorld, examples: int
) -> None:
    world = make_world(4)
    world.create(task={"score_held_out": True})
    world.check_in()
    counted = world.cohort()[:3]
    for number in counted:
        try:
            world.report(number, held_out=Score(examples=examples, metrics={"accuracy": 1.0}))
        except ValueError:
            world.report(number)
    world.require({1: counted})


def test_a_device_with_a_huge_metric_cannot_stop_the_round(world: World) -> None:
    world.check_in()
    counted = world.cohort()[:3]
    world.report(*counted, metrics={"loss": 1.7e308})
    world.require({1: counted})
    assert world.coordinator.round("marks", 1).metrics == {"loss": 1.7e308}


def test_the_log_can_be_read_from_anywhere(world: World) -> None:
    world.play_round(1)
    world.check_in()
    whole = world.coordinator.events("marks")
    assert [row.seq for row in whole] == list(range(1, len(whole) + 1))
    kinds = ["Created", "Drawn", "Reported", "Reported", "Reported", "Committed", "Drawn"]
    assert [row.kind for row in whole] == kinds
    assert world.coordinator.run("marks").seq == len(whole)
    paged = [row for after in range(0, len(whole), 2) for row in world.coordinator.events("marks", after, 2)]
    assert paged == whole
    assert world.coordinator.events("marks", whole[-1].seq) == []
    world.boot()
    assert world.coordinator.events("marks", 2) == whole[2:]


def test_only_checkpoints_of_runs_are_served(world: World) -> None:
    world.check_in()
    receipt = world.report(world.cohort()[0])[0]
    for unknown in (receipt.digest, "0" * 64, "../../etc/passwd"):
        with world.refuses("unknown-checkpoint"):
            world.coordinator.checkpoint_file(unknown)
    body = world.coordinator.checkpoint_file(world.coordinator.run("marks").checkpoint).read_bytes()
    assert digest(body) == world.coordinator.run("marks").checkpoint


def test_checkpoints_name_their_parents(world: World) -> None:
    for number in (1, 2):
        world.play_round(number)
    line = world.coordinator.checkpoints("marks")
    assert [row.version for row in line] == [0, 1, 2]
    assert [row.parent for row in line] == [None, line[0].digest, line[1].digest]
    assert [row.origin for row in line] == ["test", "round 1", "round 2"]


def test_devices_are_listed_with_what_they_do(world: World) -> None:
    world.check_in(0, 1, 2, 3, 4)
    states = {world.index(view.device): view.state for view in world.coordinator.devices()}
    cohort = world.cohort()
    assert {number for number, state in states.items() if state == "assigned"} == set(cohort)
    assert {number for number, state in states.items() if state == "waiting"} == set(range(5)) - set(cohort)
    first = world.coordinator.devices(limit=3)
    assert [*first, *world.coordinator.devices(after=first[-1].device)] == world.coordinator.devices()


def test_when_the_clock_falls_the_round_keeps_its_length(world: World) -> None:
    world.check_in()
    world.clock.at -= 5000
    world.settle()
    world.pass_time(59)
    assert world.coordinator.run("marks").phase == "collecting"
    assert world.assignment(world.cohort()[0]).report_within_s == pytest.approx(1)  # type: ignore[union-attr]
    world.pass_time(1)
    assert world.coordinator.round("marks", 1).status == "abandoned"


def test_health_reads_the_database(world: World) -> None:
    world.check_in(0)
    assert world.coordinator.healthy() == {"runs": 1, "tasks": 0, "waiting": 1}
