"""What all devices of one sum must have agreed to: a coordinator that tells one device another story than its peers has
devices under different headers, whose masks do not cancel."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.device.actions import Answered, Reply, Send
from client_sdk.device.contribution import agreed, fits, work_for
from client_sdk.protocol.devices import Assignment
from client_sdk.protocol.names import Route
from client_sdk.secagg.terms import agreed_digest
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with


def told(phone: SessionPhone, **task: Any) -> None:
    """The coordinator tells this device another task under the same plan's digest."""

    def interfere(send: Send) -> Reply:
        if send.route is not Route.CHECK_IN:
            return None
        found = phone._check_in()
        if not isinstance(found, Assignment):
            return None
        return Answered(found.changed(task=found.task.model_copy(update=task)), phone.world.at)

    phone.interfere = interfere


@pytest.mark.parametrize(
    "task",
    [{"learning_rate": 1e-300}, {"mu": 1.0}, {"seed": 7}, {"drop_last": True}],
    ids=lambda task: next(iter(task)),
)
def test_repro_a_device_that_was_given_another_task_than_its_peers_masks_nothing(task: dict[str, Any]) -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    told(phone, **task)
    finish(world, [phone])
    assert phone.history == [(1, "withdrawn")]
    assert "names another plan or task than this device trained for" in phone.storage.history()[-1].reason
    assert not phone.sent


def test_repro_a_device_that_was_told_another_weighting_than_its_peers_masks_nothing() -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.secure_task = {"weighting": "equal"}
    finish(world, [phone])
    assert phone.history == [(1, "withdrawn")]
    assert not phone.sent


def test_repro_a_kept_update_of_another_task_is_of_no_use_under_the_same_plan() -> None:
    world, (phone,) = world_with(1)
    world.play(done=lambda _: phone.trainings == 1)
    found = phone._check_in()
    assert isinstance(found, Assignment)
    work = work_for(found, phone.contribution().encoded)
    assert fits(work, found)
    assert not fits(work, found.changed(task=found.task.model_copy(update={"learning_rate": 1e-300})))
    assert not fits(work, found.changed(secure=None))


def test_the_digest_is_the_same_on_both_ends_also_after_the_wire() -> None:
    world, (phone,) = world_with(1)
    plan = world.state.plan
    world.play(done=lambda _: phone.trainings == 1)
    found = phone._check_in()
    assert isinstance(found, Assignment)
    sent = Assignment.model_validate_json(found.model_dump_json())
    assert agreed(sent) == agreed_digest(plan.digest, plan.task, plan.aggregation.weighting)
    with pytest.raises(ValueError, match="plain round"):
        agreed(sent.changed(secure=None))


@pytest.mark.parametrize("cap", [1, 10_000])
def test_repro_the_coordinators_cap_for_one_device_changes_not_what_it_weighs(cap: int) -> None:
    """With caps of 1 for all devices but one, the sum would be nearly that device's update."""
    world, (phone,) = world_with(1)
    record = phone.storage.load()
    assert record is not None
    assert record.registered is not None
    phone.storage.save(record.changed(registered=record.registered.changed(examples_cap=cap)))
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert phone.name in world.survivors()
    assert (world.weights() == world.expected_weights()).all()
