"""What a secure round left behind is deleted while replicas serve; what anything names, or may name, stays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from client_sdk.tensors import to_bytes
from coordinator.blobs import MemoryBlobs
from coordinator.runtime.sweeping import MARGIN_S, sweep_secure
from coordinator.secure import arrived
from tests.coordinator.served import RUN, Served
from tests.coordinator.world import StandingClock

LASTS_S = 3600.0
"""``secure.expires_s`` of the run."""


@pytest.fixture
def world() -> Iterator[Served]:
    clock = StandingClock()
    made = Served(clock=clock, blobs=MemoryBlobs(clock.now))
    made.secure_run()
    yield made
    made.close()


def lost_messages(world: Served) -> list[str]:
    """Messages whose event a crash prevented: sealed shares, a vector with its signature, a signature."""
    rng = np.random.default_rng(5)
    return [world.blobs.put(rng.bytes(size)) for size in (700, 5000, 64)]


def test_a_message_without_an_event_goes_when_no_attempt_can_be_its_own_any_more(world: Served) -> None:
    lost = lost_messages(world)
    assert sweep_secure(world.coordinator.core, world.clock.at + LASTS_S + MARGIN_S) == 0, "not older yet"
    assert all(world.blobs.has(digest) for digest in lost)
    assert sweep_secure(world.coordinator.core, world.clock.at + LASTS_S + MARGIN_S + 1) == 3
    assert not any(world.blobs.has(digest) for digest in lost)


def test_messages_of_a_run_that_has_ended_go_too(world: Served) -> None:
    lost_messages(world)
    core = world.coordinator.core
    world.coordinator.operators.stop(RUN)
    assert core.states() == []
    assert sweep_secure(core, world.clock.at + LASTS_S + MARGIN_S + 1) == 3


def test_a_coordinator_at_work_does_it_by_itself(world: Served) -> None:
    lost = lost_messages(world)
    for _ in range(5):
        world.pass_time(1800)
    assert not any(world.blobs.has(digest) for digest in lost)


def test_messages_under_way_stay_however_old_they_are(world: Served) -> None:
    world.begin()
    world.play(lambda: world.state.phase == "masking")
    named = set(world.state.secure.blobs)
    assert named
    replica = world.replica()
    assert sweep_secure(replica.core, world.clock.at + 1e6) == 0
    assert named <= set(world.stored())
    world.play()
    assert world.coordinator.operators.run(RUN).version == 1


def test_a_replica_whose_cache_is_old_sees_what_another_has_named(world: Served) -> None:
    world.begin()
    replica = world.replica()
    before = replica.core.log(RUN).seq
    world.play(lambda: world.state.phase == "sharing" and len(world.state.secure.shared) > 2)
    assert replica.core.log(RUN).seq == before, "it has not read the events"
    assert sweep_secure(replica.core, world.clock.at + 1e6) == 0


def test_a_message_that_is_about_to_be_named_stays(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica sweeps between the blob of a long message and its event."""
    monkeypatch.setattr(arrived, "SHORT_BYTES", 0)
    world.begin()
    replica, put, swept = world.replica(), world.blobs.put, []

    def put_and_sweep(data: bytes) -> str:
        digest = put(data)
        swept.append(sweep_secure(replica.core, world.clock.at))
        return digest

    world.blobs.put = put_and_sweep  # type: ignore[method-assign]
    world.play()
    assert len(swept) > 20
    assert not any(swept)
    assert world.coordinator.operators.run(RUN).version == 1


def test_the_same_bytes_that_are_stored_again_are_new(world: Served) -> None:
    lost = lost_messages(world)[0]
    with world.blobs.open(lost) as file:
        data = file.read()
    world.clock.at += 9000
    world.blobs.put(data)
    assert sweep_secure(world.coordinator.core, world.clock.at) == 2
    assert world.blobs.has(lost)


def test_a_checkpoint_that_waits_for_its_run_and_a_list_of_devices_stay(world: Served) -> None:
    kept = [world.blobs.put(to_bytes(world.model() | {"more": np.ones(3, np.float32)}))]
    kept += [world.blobs.put(b'[["d1",10],["d2",10]]'), world.blobs.put(b"[]")]
    assert sweep_secure(world.coordinator.core, world.clock.at + 1e6) == 0
    assert all(world.blobs.has(digest) for digest in kept)


def test_nothing_is_deleted_where_a_log_cannot_be_read(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    lost_messages(world)

    def unreadable(run: str) -> None:
        raise ValueError("event 3 cannot be read")

    monkeypatch.setattr(world.coordinator.core, "state", unreadable)
    assert sweep_secure(world.coordinator.core, world.clock.at + 1e6) == 0
    assert world.coordinator.core.process.run_errors.of(RUN)


def test_a_coordinator_without_secure_runs_looks_for_nothing() -> None:
    clock = StandingClock()
    world = Served(clock=clock, blobs=MemoryBlobs(clock.now))
    world.create(name="plain")
    lost = lost_messages(world)
    assert sweep_secure(world.coordinator.core, clock.at + 1e6) == 0
    assert all(world.blobs.has(digest) for digest in lost), "the next start deletes them"
    world.close()
