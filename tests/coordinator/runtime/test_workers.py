"""What workers ask for: a run whose fleet is away goes on in the datacenter, and comes back to its devices."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Wait
from client_sdk.protocol.workers import (
    Heartbeat,
    Lease,
    LeaseEnd,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
)
from client_sdk.tensors import Tensors, to_bytes
from coordinator.blobs import Spool
from coordinator.runtime import sweeping
from coordinator.runtime.identities import SignedBy
from coordinator.runtime.workers import WorkerResults
from coordinator.store.port import WorkerRow
from coordinator.verify import verify
from tests.coordinator.world import LEARNER, World

SECTION: dict[str, Any] = {"data": "proxy", "patience": 1, "lease_s": 40, "max_s": 300, "nproc": 2}


class Center(World):
    """A world with workers."""

    def fall_back(self, **more: Any) -> None:
        """Creates the run, and lets the time of its first selection pass with nobody there."""
        self.create(datacenter={**SECTION, **more})
        self.pass_time(11)
        assert self.coordinator.operators.run("marks").phase == "leasing"

    def poll(self, worker: WorkerRow, instance: str = "i1", **more: Any) -> Any:
        usual: dict[str, Any] = {"learners": {LEARNER: "1"}, "data": ("proxy",), "nproc": 2}
        answer = self.coordinator.workers.poll(worker, WorkerPoll(instance=instance, **{**usual, **more}))
        self.settle()
        return answer

    def trained(self, version: int = 1, **more: Any) -> Tensors:
        return {**self.model(), "marks": np.full(self.size, 100.0 + version, np.float32), **more}

    def deliver(self, worker: WorkerRow, lease: Lease, body: bytes, **more: Any) -> ResultReceipt:
        parent = lease.checkpoint.digest
        usual = {"fence": lease.fence, "parent": parent, "steps": 100, "examples": 25_600, "metrics": {"loss": 0.5}}
        report = ResultReport.model_validate({**usual, **more})
        where = (lease.run, lease.round, lease.attempt, report)
        limit = self.coordinator.workers.results.limit(worker, *where)
        with self.coordinator.core.blobs.spool(limit) as spool:
            spool.write(body)
            receipt = self.coordinator.workers.results.take(worker, *where, spool)
        self.settle()
        return receipt


@pytest.fixture
def center() -> Center:
    return Center()


def test_a_round_without_devices_is_trained_by_a_worker_and_committed_as_it_is(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    assert isinstance(lease, Lease)
    assert (lease.round, lease.attempt, lease.fence, lease.within_s) == (2, 1, 1, 300)
    assert (lease.datacenter.data, lease.datacenter.nproc, lease.task.learner) == ("proxy", 2, LEARNER)
    assert lease.checkpoint.digest == center.coordinator.operators.run("marks").checkpoint
    center.clock.at += 15
    beat = Heartbeat(attempt=1, fence=1, step=40, metrics={"loss": 0.7, "samples_per_s": 900.0})
    assert center.coordinator.workers.heartbeat(worker, "marks", 2, beat).ends_in_s == 40
    view = center.coordinator.operators.round("marks", 2)
    assert view.lease is not None
    assert (view.kind, view.lease.step, view.lease.metrics["loss"]) == ("datacenter", 40, 0.7)
    assert [(w.state, w.run, w.round) for w in center.coordinator.workers.listed()] == [("leased", "marks", 2)]
    body = to_bytes(center.trained(steps=np.array(107, np.int64)))
    receipt = center.deliver(worker, lease, body)
    assert (receipt.version, receipt.digest) == (1, hashlib.sha256(body).hexdigest())
    model = center.checkpoint()
    assert model["marks"].tolist() == [101.0] * 8
    assert model["steps"] == 107, "buffers too"
    ended = center.coordinator.operators.round("marks", 2)
    assert (ended.status, ended.version, ended.bytes_in, ended.metrics) == ("committed", 1, len(body), {"loss": 0.5})
    assert ended.because == "1 federated round in a row had to be abandoned"
    assert (
        center.coordinator.operators.checkpoints("marks")[1].origin == f"round 2, in the datacenter by {worker.worker}"
    )
    assert list(verify(center.store, center.blobs)) == []


def test_devices_that_come_back_get_their_round_and_the_line_goes_on(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    center.deliver(worker, center.poll(worker), to_bytes(center.trained()))
    lease = center.poll(worker)
    assert isinstance(lease, Lease), "nobody waits yet"
    center.check_in(0, 1, 2)
    assert center.coordinator.operators.run("marks").phase == "training", "a live lease is not taken away"
    center.deliver(worker, lease, to_bytes(center.trained(2)))
    view = center.coordinator.operators.round("marks", 4)
    assert (view.kind, view.status) == ("federated", "open")
    assert view.because == "3 eligible devices waited when the last round in the datacenter ended"
    assert center.coordinator.operators.run("marks").phase == "selecting"
    center.check_in(3)
    counted = center.cohort()[:3]
    center.report(*counted, round=4)
    model = center.checkpoint()["marks"]
    assert sorted(set(model.tolist())) == [102.0, pytest.approx(102 + 16 / 3)]
    assert [row.version for row in center.store.checkpoints("marks")] == [0, 1, 2, 3]
    kinds = [(row.kind, row.status) for row in center.coordinator.operators.rounds("marks")]
    assert kinds == [
        ("federated", "abandoned"),
        ("datacenter", "committed"),
        ("datacenter", "committed"),
        ("federated", "committed"),
        ("federated", "open"),
    ]
    assert list(verify(center.store, center.blobs)) == []


def test_a_worker_that_asks_while_devices_wait_does_not_take_their_round(center: Center) -> None:
    center.fall_back()
    for number in (0, 1, 2):
        center.coordinator.devices.check_in(center.rows[number], center.message())()
    assert center.poll(center.worker()) is None
    assert center.coordinator.operators.run("marks").kind == "federated"


def test_with_no_worker_at_all_a_quorum_of_devices_is_enough(center: Center) -> None:
    center.fall_back()
    center.check_in(0, 1)
    assert center.coordinator.operators.run("marks").phase == "leasing"
    center.pass_time(11)
    assert center.coordinator.operators.run("marks").phase == "selecting"


def test_a_worker_that_dies_loses_the_round_to_another_and_its_result_is_refused_with_a_record(center: Center) -> None:
    center.fall_back()
    first, second = center.worker(), center.worker()
    old = center.poll(first)
    assert center.poll(second) is None
    center.pass_time(41)
    new = center.poll(second)
    assert (new.attempt, new.fence) == (2, 2)
    with center.refuses("lease-lost", "leased again: its fence is 2, not 1"):
        center.deliver(first, old, to_bytes(center.trained()))
    with center.refuses("lease-lost"):
        center.coordinator.workers.heartbeat(first, "marks", 2, Heartbeat(attempt=1, fence=1))
    center.deliver(second, new, to_bytes(center.trained(2)))
    with center.refuses("lease-lost", "round 2 is over"):
        center.deliver(first, old, to_bytes(center.trained(2)))
    assert center.checkpoint()["marks"].tolist() == [102.0] * 8
    refused = [(row.device, row.kind) for row in center.store.refusals("marks", 2)]
    assert refused == [(first.worker, "lease-lost")]


def test_the_same_result_again_gets_the_same_receipt_and_another_is_refused(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    body = to_bytes(center.trained())
    receipt = center.deliver(worker, lease, body)
    assert center.deliver(worker, lease, body) == receipt
    center.boot()
    assert center.deliver(worker, lease, body) == receipt
    with center.refuses("duplicate"):
        center.deliver(worker, lease, to_bytes(center.trained(2)))
    assert len(center.store.checkpoints("marks")) == 2


def test_a_result_that_is_sent_twice_at_a_time_is_no_refusal(center: Center, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both requests find the round open; the second is asked for its event once the first has ended it."""
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    body = to_bytes(center.trained())
    check, twins = WorkerResults._check_result, [body]

    def meanwhile(results: WorkerResults, spool: Spool, parent: str) -> None:
        check(results, spool, parent)
        if twins:
            center.deliver(worker, lease, twins.pop())

    monkeypatch.setattr(WorkerResults, "_check_result", meanwhile)
    assert center.deliver(worker, lease, body).version == 1
    assert len(center.store.checkpoints("marks")) == 2
    assert center.store.refusals("marks", 2) == []


def test_a_lease_that_is_not_this_workers_is_refused_in_words_that_say_which(center: Center) -> None:
    center.fall_back()
    first, second = center.worker(), center.worker()
    center.poll(first)
    for worker, attempt, fence, words in [
        (second, 1, 1, "round 2 is leased to another worker, under fence 1"),
        (first, 1, 2, "round 2 was never leased under fence 2: its fence is 1"),
        (first, 2, 1, "fence 1 is that of attempt 1 of round 2, not 2"),
    ]:
        with center.refuses("lease-lost", words):
            center.coordinator.workers.heartbeat(worker, "marks", 2, Heartbeat(attempt=attempt, fence=fence))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"extra": np.zeros(1, np.float32)}, "extra"),
        ({"marks": np.zeros(3, np.float32)}, "marks"),
        ({"marks": np.zeros(8, np.float64)}, "marks"),
        ({"marks": np.full(8, np.nan, np.float32)}, "NaN or infinity in marks"),
    ],
)
def test_a_result_that_is_no_checkpoint_of_the_run_is_refused(
    center: Center, changes: dict[str, Any], words: str
) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    with center.refuses("invalid-update", words):
        center.deliver(worker, lease, to_bytes(center.trained(**changes)))
    with center.refuses("invalid-update", "truncated|ends"):
        center.deliver(worker, lease, to_bytes(center.trained())[:-1])
    with center.refuses("invalid-update", "__metadata__"):
        center.deliver(worker, lease, to_bytes(center.trained(), {"a": "b"}))
    assert center.coordinator.operators.run("marks").phase == "training", "the lease is still there"
    center.deliver(worker, lease, to_bytes(center.trained()))


def test_a_result_that_was_trained_from_other_bytes_is_refused_and_the_log_has_the_right_ones(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    with center.refuses("invalid-update", "trained from"):
        center.deliver(worker, lease, to_bytes(center.trained()), parent="0" * 64)
    center.deliver(worker, lease, to_bytes(center.trained()))
    (row,) = (row for row in center.store.events("marks", 0) if row.kind == "Delivered")
    assert row.body["evidence"] == {"parent": lease.checkpoint.digest, "updates": ""}
    assert list(verify(center.store, center.blobs)) == []


def test_a_refused_result_with_the_committed_bytes_does_not_take_them_away(center: Center) -> None:
    """Two workers that train alike make the same bytes: the loser's are not deleted with the round's leftovers."""
    center.fall_back()
    first, second = center.worker(), center.worker()
    old = center.poll(first)
    body = to_bytes(center.trained())
    report = ResultReport(fence=1, steps=1, examples=1)
    with center.coordinator.core.blobs.spool() as spool:
        spool.write(body)
        center.pass_time(41)
        new = center.poll(second)
        with center.refuses("lease-lost"):
            center.coordinator.workers.results.take(first, "marks", 2, old.attempt, report, spool)
    assert [row.digest for row in center.store.refusals("marks", 2)] == [hashlib.sha256(body).hexdigest()]
    center.deliver(second, new, body)
    center.deliver(second, center.poll(second), to_bytes(center.trained(2)))
    center.boot()
    sweeping.sweep(center.coordinator.core)
    assert list(verify(center.store, center.blobs)) == []


def test_a_restarted_worker_gets_its_round_at_once_and_a_repeated_poll_the_same_lease(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker, installation="here")
    assert center.poll(worker) == lease
    restarted = center.poll(worker, "i2", installation="here")
    assert (restarted.attempt, restarted.fence) == (2, 2)
    center.boot()
    assert center.poll(worker, "i2") == restarted
    with center.refuses("lease-lost"):
        center.coordinator.workers.end_lease(
            worker, "marks", 2, LeaseEnd(attempt=1, fence=1, failed=True, reason="old")
        )


@pytest.mark.parametrize("installation", ["there", ""])
def test_a_second_agent_with_the_same_certificate_waits_until_the_lease_has_ended(
    center: Center, installation: str
) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker, installation="here")
    second = {"instance": "i2", "installation": installation}
    assert center.poll(worker, **second) is None
    answer = center.coordinator.workers.hold_over(
        worker, WorkerPoll(**second, learners={LEARNER: "1"}, data=("proxy",), nproc=2)
    )
    assert "round 2 of marks, which another process has with this worker's certificate" in answer.reason
    assert center.poll(worker) == lease, "the first keeps it"
    center.clock.at += 39
    center.coordinator.workers.heartbeat(worker, "marks", 2, Heartbeat(attempt=1, fence=1, step=1))
    center.pass_time(39)
    assert center.poll(worker, **second) is None
    center.pass_time(2)
    taken = center.poll(worker, **second)
    assert (taken.attempt, taken.fence) == (2, 2)


def test_repro_a_second_process_with_a_certificate_gets_no_round_of_another_run(center: Center) -> None:
    """It trained the round of one run while the first process trained that of another one."""
    center.fall_back()
    center.create(name="second", datacenter=SECTION)
    center.pass_time(11)
    worker = center.worker()
    lease = center.poll(worker, "i1", installation="here")
    assert isinstance(lease, Lease)
    assert center.poll(worker, "i2", installation="there") is None
    assert isinstance(center.poll(center.worker(), "i3", installation="there"), Lease), "another certificate"
    again = center.poll(worker, "i4", installation="here")
    assert (again.run, again.fence) == (lease.run, lease.fence + 1), "the first, started again"


def test_of_two_processes_that_ask_at_once_one_gets_a_lease(center: Center) -> None:
    center.fall_back()
    center.create(name="second", datacenter=SECTION)
    center.pass_time(11)
    worker = center.worker()
    start = threading.Barrier(4)
    found: list[object] = []

    def ask(name: str) -> None:
        asked = WorkerPoll(instance=name, installation=name, learners={LEARNER: "1"}, data=("proxy",), nproc=2)
        start.wait(30)
        found.append(center.coordinator.workers.poll(worker, asked))

    threads = [threading.Thread(target=ask, args=(f"i{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [isinstance(one, Lease) for one in found].count(True) == 1
    assert found.count(None) == 3


def test_a_worker_says_that_it_cannot_or_gives_the_round_back(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    back = LeaseEnd(attempt=1, fence=lease.fence, failed=False, reason="the machine is wanted")
    center.coordinator.workers.end_lease(worker, "marks", 2, back)
    assert center.coordinator.operators.run("marks").phase == "leasing"
    lease = center.poll(worker)
    cannot = LeaseEnd(attempt=2, fence=lease.fence, failed=True, reason="the loss is not finite")
    center.coordinator.workers.end_lease(worker, "marks", 2, cannot)
    reason = center.coordinator.operators.round("marks", 2).reason
    assert reason == f"worker {worker.worker} could not train: the loss is not finite"
    assert center.coordinator.operators.run("marks").phase == "selecting"


def test_a_worker_that_fits_no_run_gets_the_reason(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    answer = center.poll(worker, data=("other",), nproc=1)
    assert isinstance(answer, Wait)
    assert answer.reason == "run marks: the plan wants the data 'proxy', which this worker does not hold"
    over = center.coordinator.workers.hold_over(worker, WorkerPoll(instance="i"))
    assert "which this worker does not have" in over.reason


def test_a_worker_is_not_offered_what_it_cannot_do_and_hears_why(center: Center) -> None:
    center.fall_back(shard="full")
    worker = center.worker()
    answer = center.poll(worker)
    assert isinstance(answer, Wait)
    assert answer.reason == "run marks: the plan wants shard=full, which this worker cannot do"
    small = center.poll(worker, strategies=("shard=full",), memory_bytes=100)
    assert isinstance(small, Wait)
    assert "weights, gradients and optimizer are" in small.reason
    assert isinstance(center.poll(worker, strategies=("shard=full",), memory_bytes=10**9), Lease)


def test_a_round_by_plan_waits_for_a_worker_though_devices_wait(center: Center) -> None:
    center.create(datacenter={**SECTION, "patience": None, "every": 2, "wait_s": 20})
    center.play_round(1)
    assert center.coordinator.operators.run("marks").phase == "leasing"
    center.check_in()
    center.pass_time(19)
    assert center.coordinator.operators.run("marks").phase == "leasing"
    worker = center.worker()
    center.deliver(worker, center.poll(worker), to_bytes(center.trained()))
    assert center.coordinator.operators.run("marks").version == 2
    assert center.coordinator.operators.run("marks").kind == "federated"


def test_a_revoked_worker_is_unknown_and_its_lease_ends(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    center.poll(worker)
    assert center.coordinator.workers.revoke(worker.worker).state == "revoked"
    with center.refuses("revoked-key", "was revoked by an operator"):
        center.coordinator.identities.worker(SignedBy(str(worker.key_id), center.clock.at))
    with center.refuses("unknown-worker"):
        center.coordinator.workers.revoke("w0")
    center.pass_time(41)
    assert center.coordinator.operators.run("marks").phase == "leasing"


def test_a_lease_is_seen_and_kept_through_another_replica(center: Center) -> None:
    center.fall_back()
    worker = center.worker()
    lease = center.poll(worker)
    other = center.replica()
    center.clock.at += 30
    assert other.workers.heartbeat(worker, "marks", 2, Heartbeat(attempt=1, fence=lease.fence, step=3)).ends_in_s == 40
    center.pass_time(30)
    assert center.coordinator.operators.run("marks").phase == "training"
    center.coordinator = other
    center.deliver(worker, lease, to_bytes(center.trained()))
    assert center.coordinator.operators.run("marks").version == 1
