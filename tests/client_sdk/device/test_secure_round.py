"""A device's session in secure rounds, against the coordinator's own: whole rounds, and each way in which they end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.device.actions import Save, Send
from client_sdk.protocol.names import Route
from client_sdk.secagg.actions import Keep
from tests.client_sdk.device.secure_world import finish, world_with
from tests.rotating import on_day


def test_five_sessions_make_a_sum_and_the_model_is_its_mean() -> None:
    world, sessions = world_with(5)
    finish(world, sessions)
    assert [phone.history for phone in sessions] == [[(1, "receipt")]] * 5
    assert world.survivors() == sorted(phone.name for phone in sessions)
    assert (world.weights() == world.expected_weights()).all()


def test_everything_is_stored_before_it_is_sent_and_is_the_same_each_time() -> None:
    world, (phone, *_) = world_with(1)
    finish(world, [phone])
    stored: set[str] = set()
    for action in phone.performed:
        if isinstance(action, Save):
            stored.add("work" if action.record.work is not None else "")
            if action.record.update_digest is None and "update" in stored:
                stored.add("erased")
            elif action.record.update_digest is not None:
                stored.add("update")
        elif isinstance(action, Send) and action.method == "PUT":
            assert {"work", "update"} <= stored
            assert ("erased" in stored) == (action.path["stage"] in ("survivors", "unmask"))
    before = [type(action) for action in phone.performed]
    for place, action in enumerate(phone.performed):
        if isinstance(action, Send) and action.method == "PUT" and action.path["stage"] != "unmask":
            assert Keep in before[place - 2 : place], "a step is kept, then sent"
    assert all(len(sent) == 1 for sent in phone.sent.values())


def test_nothing_but_the_exchanges_leaves_the_device_in_a_secure_round() -> None:
    """No metric, no seconds, no number of examples and no step, all of which a plain round's report says."""
    world, (phone, *_) = world_with(1)
    finish(world, [phone])
    said: dict[str, set[str]] = {}
    for send in phone.sends:
        if send.route is not Route.CHECK_IN:
            said.setdefault(send.route.name, set()).update(
                () if send.message is None else type(send.message).model_fields
            )
            assert send.update is None
            assert (send.octets is not None) == (send.route is Route.SECURE_MESSAGE), "no body but the exchanges' own"
    assert said == {
        "STARTED": {"attempt"},
        "SECURE": {"hold_s"},
        "SECURE_MESSAGE": {"signature", "body", "certificate"},
        "SECURE_ANSWER": {"hold_s"},
        "OUTCOME": set(),
    }


def crashes() -> list[tuple[int, str]]:
    world, (phone, *_) = world_with(1)
    finish(world, [phone])
    return [(place, when) for place in range(len(phone.performed)) for when in ("before", "after")]


@on_day(0, of=2)
def test_a_crash_at_any_action_loses_nothing_and_sends_the_same_bytes() -> None:
    for place, when in crashes():
        world, (phone, *_) = world_with(1)
        phone.crashes = {place: when}
        finish(world, [phone])
        where = f"{when} {place}: {phone.performed[place]}"
        assert phone.history == [(1, "receipt")], where
        assert all(len(sent) == 1 for sent in phone.sent.values()), where
        assert {attempt for _, attempt, _ in phone.sent} == {0}, where
        assert (world.weights() == world.expected_weights()).all(), where
        assert len(world.survivors()) == 5, where
        assert not phone.storage.load_secure().live, where


@settings(max_examples=30, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["before", "after"])), max_size=8),
    lost=st.sets(st.integers(0, 60), max_size=12),
)
@pytest.mark.slow
def test_any_crashes_and_lost_answers_lose_nothing(places: list[tuple[int, str]], lost: set[int]) -> None:
    world, (phone,) = world_with(1)
    phone.crashes, phone.lost = dict(places), lost
    finish(world, [phone])
    assert phone.history == [(1, "receipt")]
    assert all(len(sent) == 1 for sent in phone.sent.values())
    assert (world.weights() == world.expected_weights()).all()
    assert len(world.survivors()) == 5
