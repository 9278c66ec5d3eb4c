"""What all devices of one sum agree to is the same on both ends."""

from __future__ import annotations

import pytest

from client_sdk.device.contribution import agreed
from client_sdk.protocol.devices import Assignment
from client_sdk.secagg.header import agreed_digest, moves_of
from tests.client_sdk.device.secure_world import finish, world_with


def test_the_digest_is_the_same_on_both_ends_also_after_the_wire() -> None:
    world, (phone,) = world_with(1)
    plan = world.state.plan
    world.play(done=lambda _: phone.trainings == 1)
    found = phone._check_in()
    assert isinstance(found, Assignment)
    sent = Assignment.model_validate_json(found.model_dump_json())
    assert plan.terms is not None
    assert agreed(sent) == agreed_digest(plan.digest, plan.task, plan.weighting, moves=moves_of(plan.terms))
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
