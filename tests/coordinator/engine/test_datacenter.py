"""Datacenter rounds as stories: when one opens and why, who has the lease, what is committed, when devices are back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client_sdk.protocol.workers import DatacenterTask, Mesh, WorkerPoll, all_strategies, strategies_of
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine import rounds
from coordinator.engine.phases import round_kind
from coordinator.engine.phases.leasing import fleet_is_back, least_bytes, reason_against
from tests.coordinator.engine.secure_story import SecureStory
from tests.coordinator.engine.story import FALLBACK, Story, digest_of, every, only, plan, refusal

BY_PLAN: dict[str, Any] = {"data": "proxy", "every": 2, "wait_s": 25, "lease_s": 40, "max_s": 300}


def fallback(**more: Any) -> Story:
    return Story(datacenter={**FALLBACK, **more})


def phase(story: Story) -> tuple[str, str]:
    return story.state.current.kind, story.state.phase


# Whose turn


def test_a_run_falls_back_after_patience_abandoned_rounds_and_says_why() -> None:
    story = fallback(patience=3).selecting()
    for number in (1, 2):
        story.drawn()
        assert phase(story) == ("federated", "selecting"), number
        assert story.state.round_number == 1
    effects = story.drawn()
    assert phase(story) == ("datacenter", "leasing")
    row = every(effects, fx.RecordRound)[-1]
    assert (row.round, row.kind, row.status) == (2, "datacenter", "open")
    assert row.body["because"] == "3 attempts at a federated round in a row failed"
    assert fx.Offer(round=2) in effects
    missed = every(effects, fx.RecordRound)[0]
    assert (missed.round, missed.status, missed.body["missed"]) == (1, "abandoned", 3)


def test_a_run_that_fell_back_stays_there_until_devices_are_back() -> None:
    story = fallback().training()
    story.delivered()
    assert phase(story) == ("datacenter", "leasing")
    assert story.state.current.because == "too few devices wait: the run fell back to the datacenter in round 2"
    story.leased()
    story.delivered()
    assert (story.state.version, story.state.round_number) == (2, 4)
    effects = story.fleet_returned(3)
    assert phase(story) == ("federated", "selecting")
    ended = every(effects, fx.RecordRound)[0]
    assert (ended.status, ended.reason) == ("abandoned", "3 eligible devices wait, and no worker has the round")
    story.collecting()
    for device in ("a", "b", "c"):
        story.reported(device)
    story.committed()
    assert phase(story) == ("federated", "selecting"), "the fleet keeps its turn while it commits"


def test_every_kth_version_is_made_in_the_datacenter() -> None:
    story = Story(datacenter=BY_PLAN).whole_round()
    assert phase(story) == ("datacenter", "leasing")
    assert story.state.current.because == "one version in 2 is made in the datacenter, by plan"
    story.leased()
    story.delivered()
    assert (phase(story), story.state.version) == (("federated", "selecting"), 2)


def test_without_the_section_nothing_ever_leads_there() -> None:
    story = Story().selecting()
    for _ in range(5):
        story.drawn()
    assert phase(story) == ("federated", "selecting")


@pytest.mark.parametrize("ends", ["failed", "too long"])
def test_after_a_datacenter_round_that_was_given_up_it_is_the_fleets_turn(ends: str) -> None:
    story = fallback().training()
    if ends == "failed":
        effects = story.lease_ended(failed=True, reason="the loss is not finite")
        reason = "worker w could not train: the loss is not finite"
    else:
        effects = story.tick(300)
        reason = "no result within 300 s of the first lease (1 in all)"
    assert every(effects, fx.RecordRound)[0].reason == reason
    assert phase(story) == ("federated", "selecting")
    story.drawn()
    assert phase(story) == ("datacenter", "leasing"), "and after another abandoned round the datacenter's again"


# A plan that cannot be trained


def test_a_datacenter_that_fails_three_times_in_a_row_has_a_rest_and_rounds_say_why() -> None:
    story = fallback().training()
    for _ in range(2):
        story.lease_ended(failed=True, reason="no such data")
        assert story.state.current.because == ""
        story.drawn()
        assert phase(story) == ("datacenter", "leasing")
        story.leased()
    effects = story.lease_ended(failed=True, reason="no such data")
    reason = "the datacenter rests after 3 rounds in a row that could not be trained there, the last one because "
    assert story.state.current.because == reason + "worker w could not train: no such data"
    assert every(effects, fx.RecordRound)[-1].body["because"] == story.state.current.because
    failed_at = story.at
    for _ in range(5):
        assert phase(story) == ("federated", "selecting")
        story.at += 100
        story.drawn()
    assert phase(story) == ("federated", "selecting")
    story.at = failed_at + round_kind.REST_S
    story.drawn()
    assert phase(story) == ("datacenter", "leasing"), "it is tried again"
    story.leased()
    story.lease_ended(failed=True)
    assert story.state.fallback.rests_until == story.at + 2 * round_kind.REST_S, "and the next rest is longer"


def test_while_the_datacenter_rests_the_fleet_makes_rounds_also_those_that_were_the_datacenters_by_plan() -> None:
    story = Story(datacenter={**BY_PLAN, "every": 1}).selecting()
    for _ in range(3):
        story.leased()
        story.lease_ended(failed=True, reason="no such data")
        story.whole_round()
    assert (story.state.version, phase(story)) == (3, ("federated", "selecting"))


def test_a_result_and_an_operator_who_resumes_end_the_count_of_failures() -> None:
    for end in ("result", "resume"):
        story = fallback().training()
        for _ in range(2):
            story.lease_ended(failed=True)
            story.drawn()
            story.leased()
        if end == "result":
            story.delivered()
            story.leased()
        story.lease_ended(failed=True)
        if end == "resume":
            assert story.state.fallback.rests_until is not None
            story.paused()
            story.drawn()
            story.resumed()
        assert (story.state.fallback.rests_until, story.state.fallback.failures) == (None, 1 if end == "result" else 0)
        assert phase(story)[0] == ("federated" if end == "result" else "datacenter")


def test_rests_double_up_to_a_day_and_fall_back_with_the_clock() -> None:
    assert [round_kind.rest_s(failures) for failures in (0, 2, 3, 4, 5)] == [0, 0, 600, 1200, 2400]
    assert round_kind.rest_s(50) == round_kind.rest_s(5000) == 86_400
    story = fallback().training()
    for _ in range(2):
        story.lease_ended(failed=True)
        story.drawn()
        story.leased()
    story.lease_ended(failed=True)
    before = story.state.fallback.rests_until
    assert before is not None
    story.at -= 1000
    story.happens(ev.ClockFell(at=story.at, by_s=1000))
    assert story.state.fallback.rests_until == before - 1000


# Leases


def test_every_grant_raises_the_fence_and_ends_the_lease_before() -> None:
    story = fallback().training()
    story.tick(40)
    assert phase(story) == ("datacenter", "leasing")
    granted = only(story.leased("v"), fx.Granted)
    assert (granted.attempt, granted.fence) == (2, 2)
    old = {"attempt": 1, "fence": 1, "worker": "w"}
    before = story.state
    assert refusal(story.heartbeat(**old)) == "lease-lost"
    assert refusal(story.lease_ended(failed=True, **old)) == "lease-lost"
    late = story.delivered(**old)
    assert refusal(late) == "lease-lost"
    assert only(late, fx.RecordRefusal).device == "w"
    assert story.state is before
    assert refusal(story.delivered(fence=1)) == "lease-lost", "the right worker under the wrong fence"
    assert only(story.delivered(), fx.Taken).version == 1


def test_the_fence_goes_on_counting_over_rounds() -> None:
    story = fallback().training()
    story.delivered()
    granted = only(story.leased(), fx.Granted)
    assert (granted.round, granted.attempt, granted.fence) == (3, 1, 2)


def test_the_same_process_gets_its_lease_again_and_a_restarted_one_a_new_one() -> None:
    story = fallback().leasing()
    story.leased(installation="here")
    before = story.state
    again = only(story.leased(instance="i1"), fx.Granted)
    assert (again.attempt, again.fence) == (1, 1)
    assert story.state is before
    restarted = only(story.leased(instance="i2", installation="here"), fx.Granted)
    assert (restarted.attempt, restarted.fence) == (2, 2)
    assert refusal(story.heartbeat(fence=1, attempt=1)) == "lease-lost"


@pytest.mark.parametrize(("first", "second"), [("here", "there"), ("here", ""), ("", "there"), ("", "")])
def test_a_second_process_of_one_worker_waits_for_the_end_of_the_lease(first: str, second: str) -> None:
    story = fallback().leasing()
    story.leased(installation=first)
    before = story.state
    assert refusal(story.leased(instance="i2", installation=second)) == "conflict"
    assert story.state is before
    story.tick(40)
    granted = only(story.leased(instance="i2", installation=second), fx.Granted)
    assert (granted.attempt, granted.fence) == (2, 2)


def test_another_worker_waits_while_the_lease_lives() -> None:
    story = fallback().training()
    assert refusal(story.leased("v")) == "conflict"
    assert story.lease_ended(failed=False)[-1] == fx.Offer(round=2)
    assert only(story.leased("v"), fx.Granted).fence == 2


@pytest.mark.parametrize("more", [{"fence": 1}, {"fence": 3}, {"attempt": 1}, {"attempt": 3}])
def test_a_grant_that_does_not_raise_the_fence_by_one_is_refused(more: dict[str, int]) -> None:
    story = fallback().training()
    story.tick(40)
    assert refusal(story.leased("v", **more)) == "stale"


def test_heartbeats_keep_the_lease_and_few_of_them_are_logged() -> None:
    story = fallback().training()
    for second in range(1, 121):
        story.at += 1
        kept = only(story.heartbeat(step=second), fx.Renewed)
        assert kept.ends_at > story.at + 29
        story.tick()
    assert phase(story) == ("datacenter", "training")
    logged = [event for event in story.log if isinstance(event, ev.WorkerHeartbeat)]
    assert len(logged) == 12, "one for each quarter of the 40 s"
    lease = story.state.current.lease
    assert lease is not None
    assert (lease.step, lease.metrics) == (120, {"loss": 1 / 121})


def test_a_late_heartbeat_keeps_a_lease_that_nobody_has_ended_yet() -> None:
    story = fallback().training()
    story.at += 100
    only(story.heartbeat(), fx.Renewed)
    story.tick()
    assert phase(story) == ("datacenter", "training")


def test_no_lease_reaches_beyond_the_rounds_time() -> None:
    story = fallback(max_s=50).training()
    story.at += 30
    assert only(story.heartbeat(), fx.Renewed).ends_at == story.state.current.opened_at + 50
    story.tick(20)
    assert phase(story) == ("federated", "selecting")


def test_a_clock_that_falls_back_moves_the_times_of_the_round() -> None:
    story = fallback().training()
    at = story.at
    story.at -= 1000
    story.happens(ev.ClockFell(at=story.at, by_s=1000))
    state = story.state
    assert (state.deadline, state.current.give_up_at) == (at - 1000 + 40, at - 1000 + 300)
    assert state.current.lease is not None
    assert state.current.lease.renewed_at == at - 1000


# The fleet's return


@pytest.mark.parametrize(
    ("section", "after_s", "waiting", "back"),
    [
        (FALLBACK, 0, 2, False),
        (FALLBACK, 0, 3, True),
        (FALLBACK, 10, 2, True),
        (FALLBACK, 10, 1, False),
        ({**FALLBACK, "return_devices": 5}, 0, 4, False),
        ({**FALLBACK, "return_devices": 5}, 0, 5, True),
        (BY_PLAN, 0, 100, False),
        (BY_PLAN, 24, 100, False),
        (BY_PLAN, 25, 2, True),
        (BY_PLAN, 25, 1, False),
    ],
)
def test_when_enough_devices_wait(section: dict[str, Any], after_s: float, waiting: int, back: bool) -> None:
    """A whole cohort (goal 3) at once; a quorum (2) once no worker took the round in time; by plan only then."""
    story = Story(datacenter=section)
    if "every" in section:
        story.whole_round()
    else:
        story.leasing()
    story.at += after_s
    assert fleet_is_back(story.state, story.at, waiting) == back
    effects = story.fleet_returned(waiting)
    assert (story.state.current.kind == "federated") == back
    assert any(isinstance(effect, fx.Refused) for effect in effects) != back


def test_devices_that_wait_when_a_result_comes_have_the_next_round_and_no_round_is_opened_in_vain() -> None:
    story = fallback().training()
    effects = story.delivered(waiting=3)
    assert phase(story) == ("federated", "selecting")
    rows = every(effects, fx.RecordRound)
    assert [(row.round, row.kind, row.status) for row in rows] == [
        (2, "datacenter", "committed"),
        (3, "federated", "open"),
    ]
    assert rows[-1].body["because"] == "3 eligible devices waited when the last round in the datacenter ended"
    assert not any(isinstance(effect, fx.Offer) for effect in effects)
    story.drawn()
    assert phase(story) == ("datacenter", "leasing"), "patience counts anew"
    assert story.state.current.because == "1 federated round in a row had to be abandoned"


@pytest.mark.parametrize("waiting", [None, 0, 2])
def test_too_few_devices_leave_the_run_in_the_datacenter(waiting: int | None) -> None:
    story = fallback().training()
    story.delivered(waiting=waiting)
    assert phase(story) == ("datacenter", "leasing")


def test_devices_do_not_take_a_round_from_a_worker_that_has_it() -> None:
    story = fallback().training()
    assert refusal(story.fleet_returned(100)) == "stale"


def test_a_stale_return_ends_no_other_round() -> None:
    story = fallback().leasing()
    assert refusal(story.fleet_returned(100, round=1)) == "stale"


# Pausing, stopping, ending


def test_a_pause_lets_a_lease_go_on_and_ends_what_nobody_has_begun() -> None:
    story = fallback().training()
    story.paused()
    assert (story.state.status, story.state.phase) == ("paused", "training")
    story.delivered()
    assert (story.state.status, story.state.phase, story.state.version) == ("paused", "idle", 1)
    story.resumed()
    assert phase(story) == ("datacenter", "leasing")
    story.leased()
    story.paused()
    effects = story.tick(40)
    assert (story.state.status, story.state.phase) == ("paused", "idle")
    assert every(effects, fx.RecordRound)[-1].reason == "the run was paused while no worker had the round"


def test_a_stop_ends_the_round_and_refuses_its_result() -> None:
    story = fallback().training()
    story.stopped()
    assert (story.state.status, story.state.phase) == ("stopped", "idle")
    assert refusal(story.delivered(worker="w", round=2, fence=1, attempt=1)) == "lease-lost"


def test_the_result_of_the_last_round_finishes_the_run() -> None:
    story = Story(datacenter=FALLBACK, finish={"rounds": 1}).training()
    story.state = replace(story.state, named_tensors={"server-optimizer": "9" * 64}, small={"rounds": 3})
    effects = story.delivered()
    assert (story.state.status, story.state.reason) == ("finished", "reached 1 round")
    made = only(effects, fx.RecordCheckpoint)
    assert (made.version, made.parent, made.digest, made.contributions) == (1, 0, digest_of("result", 2), ())
    assert made.named_tensors == {"server-optimizer": "9" * 64}, "the server optimizer's state carries over"
    assert story.state.small == {"rounds": 3}
    assert made.origin == "round 2, in the datacenter by w"
    row = every(effects, fx.RecordRound)[-1]
    assert (row.kind, row.status, row.body["bytes_in"], row.body["metrics"]) == (
        "datacenter", "committed", 700, {"loss": 0.25},
    )  # fmt: skip
    assert row.body["lease"]["fence"] == 1  # type: ignore[index]


def test_what_is_in_flight_after_a_crash() -> None:
    leasing = fallback().leasing()
    assert rounds.pending(leasing.state)[-1] == fx.Offer(round=2)
    assert fx.Offer(round=2) not in rounds.pending(fallback().training().state)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, None),
        ({"learners": {}}, "wants the learner tests:story, which this worker does not have"),
        ({"learners": {"tests:story": "2"}}, "wants tests:story 1; this worker has 2"),
        ({"data": ("other",)}, "wants the data 'proxy', which this worker does not hold"),
        ({"nproc": 3}, "wants 4 processes; this worker has 3"),
        ({"strategies": ("recompute",)}, "wants shard=full, which this worker cannot do"),
        ({"strategies": ("shard=optimizer",)}, "wants shard=full, recompute, which this worker cannot do"),
        ({"memory_bytes": 1_500_000_000}, None),
        (
            {"memory_bytes": 1_499_999_999},
            "gradients and optimizer are 1.5 GB of each process; this worker has 1.5",
        ),
    ],
)
def test_which_workers_can_take_a_round(more: dict[str, Any], sentence: str | None) -> None:
    usual: dict[str, Any] = {"learners": {"tests:story": "1"}, "data": ("proxy", "x"), "nproc": 4}
    usual["strategies"] = ("recompute", "shard=full")
    poll = WorkerPoll(instance="i", **{**usual, **more})
    section = {**FALLBACK, "nproc": 4, "shard": "full", "recompute": True}
    found = reason_against(plan(task={"learner_version": "1"}, datacenter=section), poll, 2_000_000_000)
    assert (found is None) == (sentence is None)
    assert sentence is None or sentence in str(found)
    assert reason_against(plan(), poll) == "the plan asks for no datacenter rounds"


@pytest.mark.parametrize(
    ("fields", "models"),
    [
        ({}, 3.0),
        ({"momentum": 0.0}, 2.0),
        ({"optimizer": "lamb"}, 4.0),
        ({"shard": "optimizer"}, 2.25),
        ({"shard": "gradients"}, 1.5),
        ({"shard": "full", "optimizer": "lars", "momentum": 0.0}, 0.75),
        ({"mesh": {"pipeline": 2, "tensor": 2}}, 0.75),
        ({"mesh": {"data": 2, "tensor": 2}, "shard": "full"}, 0.75),
        ({"mesh": {"data": 2, "replicas": 2}, "shard": "full"}, 1.5),
    ],
)
def test_what_a_process_holds_at_least(fields: dict[str, Any], models: float) -> None:
    """Of four processes, in models: weights, gradients, moments."""
    work = DatacenterTask.model_validate({"data": "proxy", "nproc": 4, "accumulate": 2, **fields})
    assert least_bytes(work, 1000) == 1000 * models


def test_a_worker_names_all_that_a_plan_can_ask_for() -> None:
    known = all_strategies()
    assert {
        "precision=float16",
        "recompute",
        "shard=full",
        "compress=topk",
        "sync_every",
        "mesh",
        "server",
        "hogwild",
    } <= set(known)
    assert not [name for name in known if name.endswith(("=none", "=float32"))], "which every worker can do"
    asked = DatacenterTask(data="a", shard="optimizer", compress="topk", precision="bfloat16")
    assert strategies_of(asked) == ("precision=bfloat16", "shard=optimizer", "compress=topk")
    assert strategies_of(DatacenterTask(data="a", nproc=2, mesh=Mesh(tensor=2))) == ("mesh",)
    assert strategies_of(DatacenterTask(data="a")) == ()


def test_repro_a_secure_run_returned_to_its_devices_with_too_few_for_a_roster() -> None:
    """The quorum is 4 of goal 6; no roster is smaller than the plan's minimum_cohort."""
    story = SecureStory(secure={"minimum_cohort": 5}, datacenter=FALLBACK)
    story.created()
    story.drawn_from("a")
    state = story.state
    assert state.phase == "leasing"
    assert state.current.deadline is not None
    late = state.current.deadline + 1
    assert [fleet_is_back(state, late, waiting) for waiting in (4, 5)] == [False, True]
