"""The fleet and several runs on it: which devices can take part in which run, and the reasons for the others."""

from __future__ import annotations

from client_sdk.protocol.devices import CheckIn, Wait
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import LEARNER, World


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
    assert [world.coordinator.operators.run(run).version for run in ("marks", "other")] == [1, 1]
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


def test_a_learner_or_version_that_does_not_fit_gets_the_reason(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(task={"learner_version": "2"})
    (answer,) = world.check_in(0, version="1")
    assert isinstance(answer, Wait)
    assert answer.reason == f"run marks: the plan wants {LEARNER} 2; this device has 1"
    assert 0 < answer.min_s < answer.max_s
    nothing = CheckIn(examples=5, learners={})
    answer = world.coordinator.devices.check_in(world.rows[1], nothing)()  # type: ignore[assignment]
    assert isinstance(answer, Wait)
    assert "which this device does not have (it offers: none)" in answer.reason
    assert world.check_in(2, 3, version="2") == [None, None]
    assert len(world.store.waiting(world.clock.now())) == 2


def test_a_device_that_is_too_small_gets_the_reason_by_its_capped_size(make_world: MakeWorld) -> None:
    world = make_world(4)
    world.create(cohort={"min_examples": 500})
    (answer,) = world.check_in(0, examples=400)
    assert isinstance(answer, Wait)
    assert "at least 500 examples; this one has fewer" in answer.reason
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
    assert world.coordinator.operators.run("other").phase == "collecting"


def test_a_hold_that_ran_out_returns_what_the_runs_are_doing(world: World) -> None:
    message = CheckIn(examples=5, learners={LEARNER: "1"})
    answer = world.coordinator.devices.hold_over(world.rows[0].device, message)
    assert answer.reason == "not selected yet: run marks is selecting round 1"
    assert answer.max_s <= 5, "it comes back at once and keeps its place"
    world.coordinator.operators.stop("marks")
    assert world.coordinator.devices.hold_over(world.rows[0].device, message).reason == "no run is under way"
