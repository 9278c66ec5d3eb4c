"""A device that starts again in the middle of an attempt: what it has now is held against what it stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.secagg.errors import BadMessage, Refusal
from client_sdk.secagg.memory import Step
from client_sdk.tensors import Float32
from tests.client_sdk.secagg.attempt import entropy, header
from tests.client_sdk.secagg.fleet import POLICY, Coordinator, fleet


def shared(n: int = 4) -> Coordinator:
    """All devices have stored and sent their shares."""
    members, authority = fleet(n)
    coordinator = Coordinator(header(dimension=5, expires_at=1000), authority, members)
    roster = coordinator.open()
    for place, member in enumerate(members):
        member.tell(roster)
        coordinator.hear_share(place)
    return coordinator


def test_a_device_with_another_key_goes_on_with_no_attempt_of_the_older_key() -> None:
    """A key that was rotated, or a folder with another one: its peers and the coordinator know the older one."""
    coordinator = shared()
    member = coordinator.members[0]
    member.device = replace(member.device, signer=DeviceKey.create(entropy("another key")))
    before = len(member.log)
    with pytest.raises(BadMessage, match="another identity"):
        member.start(coordinator.header)
    assert member.log[before:] == []


def test_a_device_with_the_memory_of_another_device_goes_on_with_no_attempt() -> None:
    coordinator = shared()
    member, other = coordinator.members[:2]
    member.disk = other.disk
    member.device = replace(member.device, device="device-0009")
    before = len(member.log)
    with pytest.raises(BadMessage, match="not in the roster"):
        member.start(coordinator.header)
    member.device = replace(member.device, device="device-0000")
    with pytest.raises(BadMessage, match="other keys"):
        member.start(coordinator.header)
    assert member.log[before:] == []


@pytest.mark.parametrize(
    ("values", "weight", "words"),
    [
        pytest.param(np.zeros(4, np.float32), 1, "another number of values", id="values"),
        pytest.param(np.array([0, 0, np.nan, 0, 0], np.float32), 1, "NaN or infinity", id="NaN"),
        pytest.param(np.zeros(5, np.float32), 1 << 40, "weight is not within the header's cap", id="weight"),
    ],
)
def test_what_was_trained_again_meanwhile_is_masked_only_where_it_fits(
    values: Float32, weight: int, words: str
) -> None:
    """A device whose update was damaged trains again in the middle of an attempt, and may get another one."""
    coordinator = shared()
    member = coordinator.members[0]
    member.values, member.weight = values, weight
    member.start(coordinator.header)
    with pytest.raises(Refusal, match=words):
        member.tell(coordinator.delivery(0))
    assert member.live(coordinator.header).step is Step.SHARED
    assert "mask" not in [message.stage for message in member.log]


def test_a_roster_that_withstands_too_few_is_refused_when_it_comes_and_after_a_restart() -> None:
    """Of six devices *strict* withstands three. The coordinator chooses the roster; the owner may become stricter."""
    members, authority = fleet(6)
    coordinator = Coordinator(header(dimension=5, expires_at=1000), authority, members)
    for member, most in zip(members, (3, 4, None), strict=False):
        member.device = replace(member.device, policy=POLICY.changed(most_colluding=most))
    roster = coordinator.open()
    assert members[0].tell(roster) is not None
    with pytest.raises(Refusal, match="4 colluding devices; a group of 6 withstands 3"):
        members[1].tell(roster)
    assert members[1].live(coordinator.header).step is Step.ADVERTISED
    assert members[2].tell(roster) is not None
    members[2].device = replace(members[2].device, policy=members[1].device.policy)
    with pytest.raises(Refusal, match="a group of 6 withstands 3"):
        members[2].start(coordinator.header)


def test_repro_a_device_looks_at_the_size_of_its_own_group() -> None:
    """Of seven devices in two groups three withstand two, and four withstand one: larger groups may withstand fewer."""
    members, authority = fleet(7)
    coordinator = Coordinator(header(dimension=5, expires_at=1000, groups=2, minimum_cohort=3), authority, members)
    for member in members:
        member.device = replace(member.device, policy=POLICY.changed(most_colluding=2))
    roster = coordinator.open()
    assert coordinator.roster is not None
    three, four = sorted((group for group, _ in coordinator.roster.divided(coordinator.header)), key=len)
    of = {member.device.device: member for member in members}
    for entry in three.entries:
        assert of[entry.advertisement.device].tell(roster) is not None
    for entry in four.entries:
        with pytest.raises(Refusal, match="2 colluding devices; a group of 4 withstands 1"):
            of[entry.advertisement.device].tell(roster)
