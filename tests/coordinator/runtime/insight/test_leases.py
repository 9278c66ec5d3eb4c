"""A datacenter round's leases are told from its log: who had each, how it ended, how fast it trained."""

from __future__ import annotations

import pytest

from client_sdk.protocol.workers import Heartbeat, Lease, LeaseEnd, LeasesView
from client_sdk.tensors import to_bytes
from coordinator.store.port import WorkerRow
from tests.coordinator.runtime.test_workers import Center


@pytest.fixture
def center() -> Center:
    found = Center()
    found.fall_back()
    return found


def view(center: Center, round: int = 2) -> LeasesView:
    return center.coordinator.insight.leases.of_round("marks", round)


def beat(center: Center, worker: WorkerRow, lease: Lease, step: int, **metrics: float) -> None:
    message = Heartbeat(attempt=lease.attempt, fence=lease.fence, step=step, metrics=metrics)
    center.coordinator.workers.heartbeat(worker, "marks", lease.round, message)
    center.settle()


def told(found: LeasesView) -> list[tuple[str, str]]:
    return [(lease.began, lease.outcome) for lease in found.leases]


def test_each_lease_ends_as_it_ended(center: Center) -> None:
    first, second = center.worker("gpu box"), center.worker("spare")
    lease = center.poll(first, "i1", installation="disk")
    center.clock.at += 12
    beat(center, first, lease, 30, samples_per_s=900.0, communication_share=0.25)
    assert told(view(center)) == [("first", "held")]
    center.clock.at += 1
    lease = center.poll(first, "i2", installation="disk")
    assert told(view(center)) == [("first", "replaced"), ("restarted", "held")]
    center.clock.at += 2
    given_back = LeaseEnd(attempt=lease.attempt, fence=lease.fence, failed=False, reason="maintenance")
    center.coordinator.workers.end_lease(first, "marks", 2, given_back)
    center.poll(first, "i3", installation="disk")
    center.pass_time(41)
    lease = center.poll(second, "j1")
    center.clock.at += 11
    beat(center, second, lease, 60, samples_per_s=1100.0)
    center.clock.at += 1
    center.deliver(second, lease, to_bytes(center.trained()), metrics={"loss": 0.5, "samples_per_s": 1000.0})
    found = view(center)
    assert told(found) == [
        ("first", "replaced"), ("restarted", "returned"), ("again", "silent"), ("taken-over", "delivered"),
    ]  # fmt: skip
    assert (found.count, found.restarts) == (4, 1)
    assert [lease.label for lease in found.leases] == ["gpu box"] * 3 + ["spare"]
    assert [lease.reason for lease in found.leases] == [
        "the worker was started again", "maintenance", "no heartbeat came in time", "",
    ]  # fmt: skip
    assert [(point.attempt, point.step) for point in found.points] == [(1, 30), (4, 60), (4, 100)]
    assert [point.metrics.get("samples_per_s") for point in found.points] == [900.0, 1100.0, 1000.0]
    assert [lease.step for lease in found.leases] == [30, 0, 0, 100]
    assert all(lease.ended_at and lease.ended_at > lease.granted_at for lease in found.leases)


def test_a_round_that_takes_too_long_ends_its_lease_with_the_reason(center: Center) -> None:
    worker = center.worker()
    lease = center.poll(worker)
    for _ in range(9):
        center.clock.at += 35
        if center.coordinator.operators.run("marks").round == 2:
            beat(center, worker, lease, 1)
    (found,) = view(center).leases
    assert (found.outcome, found.reason) == ("over", center.coordinator.operators.round("marks", 2).reason)
    assert "no result within 300 s" in found.reason


def test_a_stopped_run_ends_the_lease(center: Center) -> None:
    center.poll(center.worker())
    center.clock.at += 3
    center.coordinator.operators.stop("marks")
    (found,) = view(center).leases
    assert (found.outcome, found.ended_at) == ("over", center.clock.at)


def test_a_failed_training_says_why(center: Center) -> None:
    worker = center.worker()
    lease = center.poll(worker)
    failed = LeaseEnd(attempt=1, fence=lease.fence, failed=True, reason="the loss is not finite")
    center.coordinator.workers.end_lease(worker, "marks", 2, failed)
    (found,) = view(center).leases
    assert (found.outcome, found.reason) == ("failed", "the loss is not finite")


def test_heartbeats_beyond_the_bound_are_thinned_and_the_last_stays(
    center: Center, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.runtime.insight.lanes.POINTS_SHOWN", 4)
    monkeypatch.setattr("coordinator.runtime.insight.lanes.LEASES_SHOWN", 1)
    worker = center.worker()
    for place in range(10):
        lease = center.poll(worker, f"i{place // 5}", installation="disk")
        center.clock.at += 11
        beat(center, worker, lease, place)
    found = view(center)
    assert [point.step for point in found.points] == [0, 3, 6, 9]
    assert (found.count, [lease.attempt for lease in found.leases]) == (2, [2])


def test_a_round_of_devices_has_none_and_a_round_that_is_not_there_is_refused(center: Center) -> None:
    assert view(center, 1) == LeasesView(count=0, restarts=0)
    with center.refuses("unknown-round", "no round 9"):
        view(center, 9)
