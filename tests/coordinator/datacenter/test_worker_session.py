"""A worker's session against a script: what it asks, in which order, and what it does with each answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.actions import (
    Answered,
    Certify,
    Failed,
    Fetch,
    Fetched,
    RequestRefused,
    Save,
    Send,
    Sleep,
    Unreachable,
)
from client_sdk.device.record import Record
from client_sdk.device.requests import Pacing
from client_sdk.identity import key_of
from client_sdk.protocol.devices import CheckpointRef, Noted, Registered, Task, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import (
    DatacenterTask,
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerPoll,
    WorkerRegistered,
    WorkerRegistration,
)
from coordinator.datacenter.worker_session import (
    AwaitJob,
    Begin,
    Ended,
    Finished,
    Halt,
    JobProgress,
    TrainLease,
    Unable,
    WorkerAction,
    WorkerReply,
    work,
)
from tests.client_sdk.device.scripted_authority import START, ScriptedAuthority

DIGEST = "ab" * 32
LEASE = Lease(
    run="r",
    round=4,
    attempt=2,
    fence=7,
    worker="w1",
    checkpoint=CheckpointRef(version=3, digest="cd" * 32, bytes=90),
    plan_digest="ef" * 32,
    task=Task(learner="a:b"),
    datacenter=DatacenterTask(data="proxy"),
    lease_s=40,
    heartbeat_s=10,
    within_s=300,
    max_result_bytes=1000,
)
TRAINED = Finished(digest=DIGEST, parent=DIGEST, bytes=90, steps=100, examples=2560, metrics={"loss": 0.5}, at=50.0)
RECEIPT = ResultReceipt(run="r", round=4, attempt=2, worker="w1", digest=DIGEST, version=4)
KNOWN = Record(key_seed="11" * 32, coordinator="https://c.example", registered=Registered(device="w1", examples_cap=0))
"""The record of a worker that is registered."""
NAMES = {
    Route.REGISTER_WORKER: "register",
    Route.LEASES: "poll",
    Route.HEARTBEAT: "heartbeat",
    Route.LEASE_END: "end",
}


class Script:
    """Answers a session by rules that a test may change. ``log`` is what happened, shortly."""

    def __init__(self, record: Record | None = None, **rules: Any) -> None:
        self.record: Record | None = record or KNOWN
        self.authority = ScriptedAuthority("worker")
        self.at = START
        self.log: list[str] = []
        self.sent: list[Send] = []
        self.job: list[Any] = []
        self.rules: dict[str, list[Any]] = {
            "register": [Registered],
            "poll": [LEASE],
            "heartbeat": [LeaseRenewed(ends_in_s=40)],
            "fetch": [Fetched(1.0)],
            "train": [TRAINED],
            "result": [RECEIPT],
            "end": [Noted()],
            **rules,
        }

    def play(self, leases: int = 1) -> list[Ended]:
        return self.play_from(START, leases)

    def play_from(self, at: float, leases: int = 1) -> list[Ended]:
        """Play a session that starts at this time."""
        ended: list[Ended] = []
        session = work(
            self.record,
            lambda: WorkerPoll(instance="i"),
            coordinator=KNOWN.coordinator,
            enrolment_token=self.authority.enrolment,
            leases=leases,
            pacing=Pacing(retry_s=1),
            at=at,
        )
        action = next(session)
        while len(ended) < leases or isinstance(action, Sleep):
            if isinstance(action, Ended):
                ended.append(action)
            try:
                action = session.send(self.perform(action))
            except StopIteration:
                break
        return ended

    def perform(self, action: WorkerAction) -> WorkerReply:
        self.at += 0.5
        match action:
            case Save():
                self.record = action.record
            case Certify():
                self.log.append(action.what)
                key = key_of(self.record.key_seed) if self.record is not None else None
                assert self.record is not None
                assert key is not None
                return self.authority.perform(action, self.record, key, self.at)
            case Send():
                name = NAMES[action.route]
                self.log.append(name)
                self.sent.append(action)
                return self.answer(name)
            case Begin():
                name = {Fetch: "fetch", TrainLease: "train", Send: "result"}[type(action.job)]
                self.log.append(name)
                if isinstance(action.job, Send):
                    self.sent.append(action.job)
                first = self.rules[name][0]
                if isinstance(first, list):
                    self.job = list(self.next(name))
                else:
                    self.job = [self.answer(name)]
            case AwaitJob():
                assert action.for_s == 10
                return self.job.pop(0)
            case Halt():
                self.log.append("halt")
            case Ended():
                self.log.append(action.result)
            case Sleep():
                self.log.append("sleep")
                self.at += action.max_s
            case _:
                assert_never(action)
        return None

    def next(self, name: str) -> Any:
        rules = self.rules[name]
        return rules.pop(0) if len(rules) > 1 else rules[0]

    def answer(self, name: str) -> Any:
        found = self.next(name)
        if found is Registered:
            message = self.sent[-1].message
            assert isinstance(message, WorkerRegistration)
            found = WorkerRegistered(worker=Certificate.parse(bytes.fromhex(message.certificate)).id)
        if isinstance(found, ProblemError):
            return RequestRefused(found.problem, self.at)
        if isinstance(found, str):
            return Unreachable(found, self.at)
        if isinstance(found, Fetched | Finished | Failed | Unable | RequestRefused | Unreachable):
            return found
        return Answered(found, self.at)


def progress(step: int) -> JobProgress:
    return JobProgress(step, {"loss": 1 / step}, 5.0)


def lost() -> ProblemError:
    return problem("lease-lost", "round 4 has been leased again")


def test_a_lease_from_poll_to_receipt_with_heartbeats_in_between() -> None:
    script = Script(train=[[progress(1), progress(2), TRAINED]])
    (ended,) = script.play()
    assert script.log == ["poll", "fetch", "train", "heartbeat", "heartbeat", "result", "committed"]
    assert (ended.result, ended.version) == ("committed", 4)
    beat = script.sent[2].message
    assert beat == Heartbeat(attempt=2, fence=7, step=2, metrics={"loss": 0.5})
    put = script.sent[3]
    assert (put.method, put.url, put.update) == ("PUT", "/v1/runs/r/rounds/4/attempts/2/result", DIGEST)
    assert put.message == ResultReport(fence=7, parent=DIGEST, steps=100, examples=2560, metrics={"loss": 0.5})


def test_a_lost_lease_stops_the_training_and_the_worker_polls_again() -> None:
    script = Script(
        train=[[progress(1), progress(2)], [TRAINED]],
        heartbeat=[LeaseRenewed(ends_in_s=40), lost(), LeaseRenewed(ends_in_s=40)],
    )
    ended = script.play(leases=2)
    assert script.log[:7] == ["poll", "fetch", "train", "heartbeat", "heartbeat", "halt", "lost"]
    assert script.log[7:] == ["poll", "fetch", "train", "result", "committed"]
    assert ended[0].reason == "round 4 has been leased again"


def test_silence_of_the_coordinator_does_not_stop_a_training() -> None:
    script = Script(train=[[progress(1), progress(2), TRAINED]], heartbeat=["no route", problem("busy", "wait")])
    assert script.play()[0].result == "committed"


def test_a_training_that_fails_ends_the_round_and_the_worker_rests() -> None:
    script = Script(train=[Failed("the loss is not finite", 9.0), TRAINED])
    ended, then = script.play(2)
    assert (ended.result, ended.reason, then.result) == ("failed", "the loss is not finite", "committed")
    assert script.log[:7] == ["poll", "fetch", "train", "end", "failed", "sleep", "poll"]
    assert script.sent[1].message == LeaseEnd(attempt=2, fence=7, failed=True, reason="the loss is not finite")


def test_a_worker_that_was_asked_for_one_round_does_not_rest_after_it() -> None:
    script = Script(train=[Failed("the loss is not finite", 9.0)])
    script.play()
    assert script.log == ["poll", "fetch", "train", "end", "failed"]


def test_a_training_that_has_to_wait_gives_the_round_back() -> None:
    script = Script(train=[Unable("machine 2 has gone", 9.0)])
    (ended,) = script.play()
    assert (ended.result, ended.reason) == ("given-back", "machine 2 has gone")
    assert script.sent[-1].message == LeaseEnd(attempt=2, fence=7, failed=False, reason="machine 2 has gone")


def test_a_worker_that_cannot_keep_the_checkpoint_gives_the_round_back() -> None:
    script = Script(fetch=[Failed("the disk is full", 2.0)])
    assert script.play()[0].result == "given-back"
    message = script.sent[-1].message
    assert isinstance(message, LeaseEnd)
    assert not message.failed, "another worker may have room"


def test_a_checkpoint_is_fetched_again_while_the_lease_is_kept() -> None:
    wrong = problem("digest-mismatch", "changed on the way")
    script = Script(fetch=["no route", wrong, Fetched(3.0)])
    assert script.play()[0].result == "committed"
    assert script.log[:8] == ["poll", "fetch", "heartbeat", "sleep", "fetch", "heartbeat", "sleep", "fetch"]
    twice = Script(fetch=[wrong])
    assert twice.play()[0].result == "given-back"


def test_a_result_is_sent_again_until_it_is_answered() -> None:
    script = Script(result=["no route", problem("busy", "full", retry_after_s=2), RECEIPT])
    assert script.play()[0].result == "committed"
    assert script.log.count("result") == 3


def test_the_answer_to_the_result_counts_not_the_heartbeats_beside_it() -> None:
    """Committed while a heartbeat was under way, the round is over, and the heartbeat's answer says it first."""
    script = Script(result=[[progress(100), progress(100), Answered(RECEIPT, 60.0)]], heartbeat=[lost()])
    (ended,) = script.play()
    assert ended.result == "committed"
    assert "halt" not in script.log
    assert script.log.count("heartbeat") == 1


@pytest.mark.parametrize(
    ("refused", "result", "ends"),
    [("lease-lost", "lost", False), ("duplicate", "refused", True), ("invalid-update", "refused", True)],
)
def test_a_result_that_is_refused(refused: str, result: str, ends: bool) -> None:
    script = Script(result=[problem(refused, "no")])
    assert script.play()[0].result == result
    assert ("end" in script.log) == ends, "what cannot be taken ends the round: trained again it would be the same"


def test_a_result_longer_than_allowed_is_not_sent() -> None:
    script = Script(train=[Finished(digest=DIGEST, parent=DIGEST, bytes=1001, steps=1, examples=1, at=9.0)])
    assert script.play()[0].reason == "The result has 1001 bytes; the coordinator takes 1000."
    assert "result" not in script.log


def test_no_work_is_waited_out_and_trouble_backed_off() -> None:
    script = Script(poll=[Wait(reason="none", min_s=5, max_s=9), "no route", problem("busy", "later"), LEASE])
    script.play()
    assert script.log[:8] == ["poll", "sleep", "poll", "sleep", "poll", "sleep", "poll", "fetch"]


@pytest.mark.parametrize("where", ["poll", "fetch", "result"])
def test_a_key_that_was_revoked_ends_the_session(where: str) -> None:
    rules: dict[str, Any] = {where: [problem("revoked-key", "worker w1 was revoked by an operator")]}
    with pytest.raises(ProblemError, match="revoked"):
        Script(**rules).play()


def test_a_driver_with_an_invalid_answer_gets_an_error() -> None:
    answers: dict[str, Callable[[], Script]] = {
        "TrainLease": lambda: Script(train=[Fetched(1.0)]),
        "a result": lambda: Script(result=[Fetched(1.0)]),
    }
    for words, script in answers.items():
        with pytest.raises(TypeError, match=words):
            script().play()
