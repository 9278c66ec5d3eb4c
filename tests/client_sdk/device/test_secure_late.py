"""What becomes of an update whose device was too late for its secure round: it is dropped."""

from __future__ import annotations

from client_sdk.device.actions import Reply, Send, Unreachable
from client_sdk.protocol.names import Route
from coordinator.engine import events as ev
from tests.client_sdk.device.secure_world import SessionPhone, world_with
from tests.client_sdk.device.test_secure_ends import assert_nothing_is_left, reason
from tests.coordinator.secure.world import World


def late(gone: int) -> tuple[World, SessionPhone]:
    """Two rounds of six, five of whom are the goal: in the first one the session advertises when the roster was made,
    and while the others wait for ``gone`` of them that vanish. Round 1 has ended."""
    several = {"select": 6, "goal": 5, "quorum": 0.5}
    world, (phone,) = world_with(1, n=6, rounds_=2, cohort=several, secure={"attempts": 1})

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
