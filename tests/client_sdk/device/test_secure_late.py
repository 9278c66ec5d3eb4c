"""What becomes of an update whose device was too late for its secure round: it is dropped, or kept where the plan has
it so."""

from __future__ import annotations

from typing import Any

from client_sdk.device.actions import Reply, Send, Unreachable
from client_sdk.device.storage import MemoryStorage
from client_sdk.protocol.names import Route
from coordinator.engine import events as ev
from tests.client_sdk.device.secure_world import SessionPhone, finish, world_with
from tests.client_sdk.device.test_secure_ends import assert_nothing_is_left, reason
from tests.coordinator.secure.world import World


def late(gone: int, attempts: int = 1, **task: Any) -> tuple[World, SessionPhone]:
    """Two rounds of six, five of whom are the goal: in the first one the session advertises when the roster was made,
    and while the others wait for ``gone`` of them that vanish. Round 1 has ended."""
    several = {"select": 6, "goal": 5, "quorum": 0.5}
    world, (phone,) = world_with(1, n=6, rounds_=2, cohort=several, secure={"attempts": attempts})
    phone.secure_task = task

    def slow(send: Send) -> Reply:
        if send.path.get("stage") == "advertise" and not world.happened(ev.Rostered):
            return Unreachable("slow", world.at)
        return None

    phone.interfere = slow
    vanished = world.phones[6 - gone :]
    for other in vanished:
        other.stops = "mask"
    world.play(done=lambda _: world.state.round_number == 2)
    for other in vanished:
        other.gone, other.stops = False, None
        other.restart()
    return world, phone


def test_a_device_that_is_too_late_for_the_roster_withdraws_and_drops_its_update() -> None:
    _, phone = late(gone=1)
    assert phone.history == [(1, "dropped")]
    assert "has ended" in reason(phone) or "without this device" in reason(phone)
    assert phone.routes(Route.WITHDRAWN), "it is assigned the round no more"
    assert_nothing_is_left(phone)


def test_where_the_plan_has_it_kept_the_next_attempt_of_the_round_takes_the_update() -> None:
    world, phone = late(gone=3, attempts=2, keep_late=True)
    finish(world, [phone])
    assert phone.history[0] == (1, "receipt")
    assert {attempt for number, attempt, stage in phone.sent if (number, stage) == (1, "mask")} == {1}
    assert phone.trainings == 2, "one for each round"


def test_where_the_plan_has_it_kept_a_later_round_on_the_same_checkpoint_takes_the_update() -> None:
    world, phone = late(gone=3, keep_late=True)
    assert world.state.version == 0, "round 1 was abandoned"
    finish(world, [phone])
    assert phone.history == [(1, "dropped"), (2, "receipt"), (3, "receipt")]
    assert phone.trainings == 2, "for rounds 1 and 2 together, and for 3"
    assert phone.name in world.survivors()
    assert_nothing_is_left(phone)


def test_a_kept_update_is_of_no_use_on_another_checkpoint_and_is_erased() -> None:
    world, phone = late(gone=1, keep_late=True)
    assert world.state.version == 1, "round 1 was committed without it"
    finish(world, [phone])
    assert phone.history[:2] == [(1, "dropped"), (2, "receipt")]
    assert phone.trainings == 2
    assert_nothing_is_left(phone)


def test_a_kept_update_is_never_sent_to_a_plain_round() -> None:
    world, phone = late(gone=3, keep_late=True)
    world.play(done=lambda _: bool(phone.storage.history()))
    record = phone.storage.load()
    assert record is not None
    assert record.update_digest is not None, "it is kept"
    plain = phone._check_in
    phone._check_in = lambda: plain().changed(secure=None)  # type: ignore[method-assign]
    seen = len(phone.sends)
    phone.interfere = lambda send: Unreachable("gone", world.at) if send.route is Route.UPDATE else None
    world.play(done=lambda _: bool(phone.routes(Route.UPDATE)))
    assert phone.trainings == 2, "a plain round trains anew"
    assert not [send for send in phone.sends[seen:] if send.update == record.update_digest]
    assert isinstance(phone.storage, MemoryStorage)
    assert record.update_digest not in phone.storage._updates
