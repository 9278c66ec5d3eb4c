"""What a lying coordinator can tell one device and not its peers: each field of an assignment, of its task and of its
terms of secure rounds. Either the device then masks nothing, or it trains and weighs as its peers do.

With any other knob, a coordinator could let all devices but one put in next to nothing, and read that one's update."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.device.actions import Answered, Reply, Send, Train
from client_sdk.protocol.devices import Assignment, CheckpointRef, PrivacyTerms, Task, TaskStrategy, Wait, Withdrawal
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureTask
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with

REFUSED: dict[str, dict[str, Any]] = {
    "assignment": {
        "run": "run-2",
        "round": 7,
        "device": "d3",
        "plan_digest": "ab" * 32,
        "report_within_s": -1.0,
        "roles": {"w": "statistic"},
        "roles_digest": "ab" * 32,
    },
    "checkpoint": {"digest": "cd" * 32},
    "task": {
        "learner": "tests:other",
        "learner_version": "1",
        "epochs": 2,
        "steps": 5,
        "batch_size": 1,
        "drop_last": True,
        "learning_rate": 1e-300,
        "mu": 1.0,
        "max_grad_norm": 1e-30,
        "time_budget_s": 1e-3,
        "codec": "rotated@1",
        "averaged": ("w", "nothing"),
        "seed": 7,
        "score_held_out": True,
        "strategy": TaskStrategy(name="ditto", version="1", parameters={"lambda": 0.1}),
    },
    "secure": {
        "q": 12,
        "max_norm": 0.001,
        "max_abs": 0.001,
        "weight_cap": 1,
        "weighting": "equal",
        "profile": "fast",
        "drop": 1,
        "corrupt_millionths": 1,
        "sigma": 20,
        "eta": 20,
        "minimum_cohort": 4,
        "groups": 2,
        "noise": 1.0,
        "divisor": 4,
        "lowest": 0.5,
        "highest": 8.0,
        "statistics": (1.0,),
        "move": 0.5,
        "move_each": 0.5,
    },
}
"""Message -> field -> another value, by which the device masks nothing."""
WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "assignment": {
        "attempt": 5,
        "report_within_s": 0.5,
        "partial": "refuse",
        "privacy": PrivacyTerms(noise=1.0, most_rounds=1),
        "max_update_bytes": 1,
        "warning": "Another process uses this folder.",
    },
    "checkpoint": {"version": 3, "bytes": 7},
    "task": {},
    "secure": {"first_seed": 3, "signed": None},
}
"""Message -> field -> another value, by which the device puts in nothing else. *report_within_s*: of work that is whole
in time."""
ELSEWHERE = {"kind", "checkpoint", "task", "secure"}
"""Of the assignment: what is always the same, and the messages in it."""


def cases(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(message, {field: value}, id=f"{message}.{field}")
        for message, fields in table.items()
        for field, value in fields.items()
    ]


def told(phone: SessionPhone, message: str, changes: dict[str, Any]) -> None:
    """The coordinator tells this device another story than its peers, once, and has no other work for it."""
    over = Wait(reason="Not now.", min_s=1, max_s=1)
    story = [changes]

    def interfere(send: Send) -> Reply:
        if send.route is not Route.CHECK_IN:
            return None
        found = phone._check_in()
        if not isinstance(found, Assignment) or not story:
            return Answered(over, phone.world.at)
        changes = story.pop()
        if message != "assignment":
            found = found.model_copy(update={message: getattr(found, message).model_copy(update=changes)})
        else:
            found = found.model_copy(update=changes)
        return Answered(found, phone.world.at)

    phone.interfere = interfere


def asked(phone: SessionPhone) -> tuple[Any, ...]:
    """What training depends on, beside the device's own data and the time that it has."""
    (train,) = [action for action in phone.performed if isinstance(action, Train)]
    work = train.assignment
    return work.run, work.round, work.checkpoint.digest, work.task


def test_every_field_is_in_the_table() -> None:
    for message, model, elsewhere in (
        ("assignment", Assignment, ELSEWHERE),
        ("checkpoint", CheckpointRef, set()),
        ("task", Task, set()),
        ("secure", SecureTask, set()),
    ):
        assert set(model.model_fields) == {*REFUSED[message], *WITHOUT_EFFECT[message], *elsewhere}


@pytest.mark.parametrize(("message", "changes"), cases(REFUSED))
def test_repro_a_device_that_was_told_this_alone_masks_nothing(message: str, changes: dict[str, Any]) -> None:
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    told(phone, message, changes)
    world.play()
    assert not {stage for _, _, stage in phone.sent} & {"mask", "survivors", "unmask"}
    assert phone.name not in world.survivors()
    assert (world.weights() == world.expected_weights()).all()


@pytest.mark.parametrize(("message", "changes"), cases(WITHOUT_EFFECT))
def test_a_device_that_was_told_this_alone_puts_in_what_it_would_have(message: str, changes: dict[str, Any]) -> None:
    world, (phone, peer) = world_with(2)
    told(phone, message, changes)
    finish(world, [phone, peer])
    assert {phone.name, peer.name} <= set(world.survivors())
    assert (world.weights() == world.expected_weights()).all()
    assert asked(phone) == asked(peer)


def test_repro_what_fails_in_training_stays_on_the_device() -> None:
    """A model that fails on a batch of one example told the device's size by the step, and other errors values of its
    data."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.failure = "LearnerFailed: at step 13, on a batch of 1"
    finish(world, [phone])
    (said,) = phone.routes(Route.WITHDRAWN)
    assert said.message == Withdrawal(reason="Training failed on this device: its own log says how.")
    assert phone.history == [(1, "withdrawn")]
    assert not phone.sent


@pytest.mark.parametrize("partial", ["full", "examples_seen", "refuse"])
def test_repro_a_device_whose_deadline_cuts_its_work_short_masks_nothing_whatever_it_is_told(partial: str) -> None:
    """A coordinator could tell all devices but one that the deadline is near: the sum would be that one's update."""
    world, (phone,) = world_with(1, n=6, cohort={"quorum": 0.5})
    phone.completes = False
    told(phone, "assignment", {"partial": partial, "report_within_s": 2.0})
    finish(world, [phone])
    assert phone.history == [(1, "withdrawn")]
    assert "ran out of time" in phone.storage.history()[-1].reason
    assert not phone.sent
    assert phone.name not in world.survivors()
