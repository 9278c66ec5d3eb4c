"""A plan is checked as it would be when a run is created, and nothing is created."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from client_sdk.protocol.insight import CheckPlan, PlanView
from client_sdk.protocol.operators import CreateRun
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import to_bytes
from coordinator.access import LOCAL_OWNER
from coordinator.requests.insight import plan_schema
from coordinator.store.port import MarkRow
from tests.coordinator.world import World


def any_run(run: str) -> bool:
    return True


def uploaded(world: World) -> str:
    body = to_bytes(world.model())
    digest = hashlib.sha256(body).hexdigest()
    with world.blobs.spool() as spool:
        spool.write(body)
        world.coordinator.operators.put_checkpoint(spool, digest)
    return digest


def check(world: World, init: str | None, **sections: Any) -> PlanView:
    return world.coordinator.insight.plans.check(CheckPlan(plan=world.plan(**sections), init=init), permitted=any_run)


def test_a_plan_is_shown_whole_with_its_cost_and_nothing_is_created() -> None:
    world = World(8)
    found = check(world, uploaded(world))
    assert world.store.run_ids() == []
    made = world.create()
    assert (found.plan, found.plan_digest, found.run) == (made.plan, made.plan_digest, made.run)
    cost = {line.name: line.value for line in found.cost}
    assert cost["round_longest_s"] == 70
    assert cost["run_longest_s"] == 350
    assert cost["round_upload_bytes"] == 4 * cost["device_upload_bytes"]
    assert cost["run_bytes"] == 5 * (cost["round_upload_bytes"] + cost["round_download_bytes"])
    assert all(line.text for line in found.cost)
    assert (found.devices_registered, found.devices_spent, found.warnings) == (8, 0, [])
    assert check(world, None).run == "marks-2"


def test_without_a_checkpoint_the_costs_in_bytes_are_not_known() -> None:
    found = check(World(8), None)
    assert [line.name for line in found.cost] == ["round_longest_s", "run_longest_s"]
    assert "not known" in found.warnings[0]


def test_too_few_devices_are_a_warning() -> None:
    world = World(1)
    (warning,) = check(world, uploaded(world)).warnings
    assert warning == "1 devices are registered here; a round needs 2 reports."


@pytest.mark.parametrize(
    "sections",
    [
        {"cohort": {"select": 2, "goal": 3}},
        {"task": {"codec": "nothing@1"}},
        {"task": {"averaged": ["nowhere.*"]}},
        {"unknown": 1},
    ],
    ids=["goal", "codec", "averaged", "field"],
)
def test_what_creating_refuses_is_refused_with_the_same_problem(sections: dict[str, Any]) -> None:
    world = World(8)
    init = uploaded(world)
    with pytest.raises(ProblemError) as created:
        world.coordinator.operators.create_run(CreateRun(plan=world.plan(**sections), init=init))
    with pytest.raises(ProblemError) as checked:
        check(world, init, **sections)
    assert checked.value.problem == created.value.problem


def test_a_checkpoint_that_was_not_uploaded_and_a_name_out_of_scope_are_refused() -> None:
    world = World(8)
    with world.refuses("unknown-checkpoint"):
        check(world, "0" * 64)
    with world.refuses("not-permitted", "would be named marks"):
        plan = CheckPlan(plan=world.plan())
        world.coordinator.insight.plans.check(plan, permitted=lambda run: False)


def test_a_secure_plan_says_how_many_devices_are_spent_on_its_checkpoint() -> None:
    world = World(8)
    init = uploaded(world)
    sections: dict[str, Any] = {
        "cohort": {"select": 70, "goal": 66, "quorum": 0.9},
        "aggregation": {"partial": "refuse"},
        "secure": {"max_norm": 1.0, "max_abs": 0.25},
    }
    secure = check(world, init, **sections)
    assert (secure.devices_registered, secure.devices_spent) == (8, 0)
    plain = {line.name: line.value for line in check(world, init, cohort=sections["cohort"]).cost}
    cost = {line.name: line.value for line in secure.cost}
    assert cost["round_longest_s"] > plain["round_longest_s"]
    beside = cost["device_upload_bytes"] - plain["device_upload_bytes"]
    assert 10_000 < beside < 20_000, "of so small a model the shares for 65 peers are nearly all that is sent"
    made = world.create(**sections)
    tensors = world.coordinator.core.state(made.run).marked_on
    with world.store.transaction() as tx:
        tx.insert_marks(MarkRow(tensors=tensors, device=row.device, run=made.run, round=1) for row in world.rows[:3])
    again = check(world, init, **sections)
    assert again.devices_spent == 3
    assert "of which 3 have signed on this checkpoint" in again.warnings[0]


def test_repro_a_secure_plan_is_told_what_the_command_tells() -> None:
    """It knew nothing of groups, sizes, sums and owners, and 310 devices in 4 groups were a bug of the coordinator."""
    world = World(8)
    found = check(
        world,
        uploaded(world),
        cohort={"select": 320, "goal": 300, "quorum": 0.7},
        aggregation={"partial": "refuse", "weighting": "examples", "server_learning_rate": 0.002},
        secure={"max_norm": 0.05, "max_abs": 0.25, "groups": 4},
    )
    begins = ("A sum: Without noise", "Sizes: each round's total weight", "Groups: 4 x 77 or 78 withstands 26 of 310 ")
    for words in begins:
        assert any(note.startswith(words) for note in found.notes), words
    assert "lying groups that the rule survives: 0; a bad sum costs that group." in found.notes[-1]
    declined = [warning for warning in found.warnings if warning.startswith("Devices whose owners set nothing decline")]
    clip, near = declined[0], declined[-1]
    assert clip.endswith(": This device's owner allows an L2 clip of at least 0.1; the plan asks for 0.05.")
    assert "each moves the model by at most 0.002 times max_norm" in near
    assert check(world, None).notes == []


def test_a_secure_plan_with_a_datacenter_is_told_of_the_signature_and_has_a_bound() -> None:
    """Its rounds were said to move the model by any distance, so that owners had to allow that."""
    world = World(8)
    sections: dict[str, Any] = {
        "cohort": {"select": 80, "goal": 70},
        "aggregation": {"partial": "refuse"},
        "secure": {"max_norm": 1.0, "max_abs": 0.25},
        "datacenter": {"data": "proxy", "every": 5},
    }
    found = check(world, uploaded(world), **sections)
    assert found.notes[-1].startswith("Datacenter: devices whose owners set nothing decline a model that a datacenter")
    assert not [warning for warning in found.warnings if "may move it" in warning]


@pytest.mark.parametrize(
    ("sections", "fields"),
    [
        ({"cohort": {"select": 2, "goal": 3}}, [("cohort",)]),
        ({"cohort": {"select": "x"}, "task": {"learner": 7}}, [("task", "learner"), ("cohort", "select")]),
        ({"task": {"codec": "nothing@1"}}, [("task", "codec")]),
        ({"task": {"averaged": ["nowhere.*"]}}, [("task", "averaged")]),
        ({"aggregation": {"rule": "nowhere:median", "rule_version": "1"}}, [("aggregation", "rule")]),
        ({"unknown": 1}, [("unknown",)]),
    ],
    ids=["contradiction", "two", "codec", "averaged", "rule", "field"],
)
def test_a_refusal_names_its_fields(sections: dict[str, Any], fields: list[tuple[str, ...]]) -> None:
    world = World(8)
    with pytest.raises(ProblemError) as checked:
        check(world, uploaded(world), **sections)
    found = checked.value.problem
    assert [one.field for one in found.fields or ()] == fields
    assert all(one.detail in found.detail for one in found.fields or ())


def test_the_schema_is_that_of_the_command() -> None:
    document = plan_schema(World(0).coordinator, LOCAL_OWNER).document
    assert document["properties"]["name"]["description"].startswith("Short name")
    assert document["$defs"]["Cohort"]["properties"]["goal"]["default"] == 256


def test_devices_that_weigh_less_than_their_examples_are_said() -> None:
    world = World(8)  # each registered with 1,000 examples
    (said,) = check(world, uploaded(world), aggregation={"weight_cap": 100}).warnings
    assert said.startswith(
        "8 of 8 registered devices that told their size, rounded down, hold more than weight_cap = 100 examples, "
        "up to 512"
    )
    assert check(world, uploaded(world), aggregation={"weight_cap": 1000}).warnings == []


def test_a_checkpoint_of_a_run_keeps_its_statistics_where_nobody_says_others() -> None:
    """A run from a checkpoint whose statistics were said by pattern took them for parameters."""
    world = World(8)
    digest = uploaded(world)
    create = world.coordinator.operators.create_run
    assert check(world, digest).warnings == []
    said = create(CreateRun(plan=world.plan(), init=digest, origin="test", roles={"mar*": "non-negative"}))
    assert world.store.run(said.run).roles == {"marks": "non-negative"}  # type: ignore[union-attr]
    (word,) = check(world, digest).warnings
    assert word == ("Since nobody says otherwise, these tensors are statistics, not parameters: marks (never below 0).")
    again = create(CreateRun(plan=world.plan(), init=digest, origin="test"))
    assert world.store.run(again.run).roles == {"marks": "non-negative"}  # type: ignore[union-attr]
    none = create(CreateRun(plan=world.plan(), init=digest, origin="test", roles={}))
    assert world.store.run(none.run).roles == {}  # type: ignore[union-attr]
    assert check(world, digest).warnings == [], "its runs say different things, and its names nothing"
