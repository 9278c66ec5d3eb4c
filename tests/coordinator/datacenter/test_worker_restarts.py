"""A worker is back within seconds after its coordinator restarts; where nobody answers for long, it waits longer."""

from __future__ import annotations

from client_sdk.device.actions import Answered, RequestRefused, Send, Sleep, Unreachable
from client_sdk.device.requests import Pacing
from client_sdk.protocol.devices import Wait
from client_sdk.protocol.problems import Problem, problem
from client_sdk.protocol.workers import WorkerPoll
from coordinator.datacenter.worker_session import WorkerReply, work
from tests.coordinator.datacenter.test_worker_session import KNOWN

PACING = Pacing()
BROKEN = ("Server disconnected", 20.0)
REFUSED = ("Connection refused", 0.0)


def slept(replies: list[tuple[str, float] | Wait | Problem]) -> list[float]:
    """The longest sleep after each reply to a poll, of a worker that sleeps as long as it may. A poll takes its held
    seconds."""
    session = work(KNOWN, lambda: WorkerPoll(instance="i"), coordinator=KNOWN.coordinator, pacing=PACING)
    at, left, sleeps = 0.0, list(replies), []
    action = next(session)
    while left or not isinstance(action, Send):
        reply: WorkerReply = None
        if isinstance(action, Sleep):
            sleeps.append(action.max_s)
            at += action.max_s
        else:
            answer = left.pop(0)
            if isinstance(answer, Wait):
                at += 20.0
                reply = Answered(answer, at)
            elif isinstance(answer, Problem):
                reply = RequestRefused(answer, at)
            else:
                at += answer[1]
                reply = Unreachable(answer[0], at, held_s=answer[1])
        action = session.send(reply)
    return sleeps


def test_a_worker_is_back_within_seconds_after_a_restart() -> None:
    """Its poll was held when the coordinator died, which took a minute to come back."""
    sleeps = slept([BROKEN, *[REFUSED] * 12])
    assert max(sleeps) <= PACING.restart_most_s
    assert sum(sleeps) >= 60


def test_restarts_in_a_row_do_not_add_up() -> None:
    """Each time a connection breaks that had been open, the backoff begins anew."""
    sleeps = slept([BROKEN, REFUSED, REFUSED] * 8)
    assert max(sleeps) <= PACING.after_break_s[1]


def test_a_coordinator_that_is_away_for_long_is_asked_once_a_minute() -> None:
    assert slept([Wait(reason="none", min_s=0, max_s=0), *[REFUSED] * 40])[-1] == PACING.retry_most_s
    assert slept([REFUSED] * 10)[-1] == PACING.retry_most_s, "it never was there"


def test_an_error_page_of_a_proxy_is_a_restart_too_and_the_coordinators_own_word_counts() -> None:
    page = Problem(type="about:blank", title="Bad Gateway", status=502)
    wait = Wait(reason="none", min_s=0, max_s=0)
    assert max(slept([wait, *[page] * 8])) <= PACING.restart_most_s
    busy = problem("busy", "later").problem
    assert slept([wait, *[busy] * 8])[-1] == PACING.retry_most_s, "it asks for patience itself"
