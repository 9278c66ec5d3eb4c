"""A worker's session against any order of troubles: each lease goes its way once, and ends with one result."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from client_sdk.device.actions import Failed, Fetched
from client_sdk.protocol.devices import Noted, Wait
from client_sdk.protocol.problems import Problem, ProblemError, problem
from client_sdk.protocol.workers import Heartbeat, LeaseEnd, LeaseRenewed, ResultReport
from coordinator.datacenter.worker_session import Unable
from tests.coordinator.datacenter.test_worker_session import LEASE, RECEIPT, TRAINED, Script, lost, progress

PAGE = ProblemError(Problem(type="about:blank", title="Not Found", status=404))
PASSING = st.sampled_from(["no route", problem("busy", "later", retry_after_s=1), problem("internal", "oh"), PAGE])
"""After these, the same request may succeed."""
FINAL = st.sampled_from([lost(), problem("invalid-update", "no"), problem("duplicate", "another was first")])

LIFE = re.compile(
    r"(poll )+(fetch )+"
    r"(halt lost |lost |(end )+given-back "
    r"|train (halt lost |(end )+(failed|given-back) |(result )+(committed |lost |(end )+refused )))"
)
"""What a lease may go through, without heartbeats and sleeps."""


def troubled(passing: st.SearchStrategy[Any], *ends: Any) -> st.SearchStrategy[list[Any]]:
    """Passing troubles, and then one of the ends for good."""
    return st.builds(lambda first, end: [*first, end], st.lists(passing, max_size=3), st.sampled_from(ends))


RULES = st.fixed_dictionaries(
    {
        "poll": troubled(PASSING | st.just(Wait(reason="none", min_s=1, max_s=2)), LEASE),
        "fetch": troubled(
            PASSING | st.just(problem("digest-mismatch", "changed")), Fetched(1.0), Failed("the disk is full", 2.0)
        ),
        "train": st.lists(
            st.builds(
                lambda steps, end: [*map(progress, range(1, 1 + steps)), end],
                st.integers(0, 3),
                st.sampled_from([TRAINED, Failed("not finite", 9.0), Unable("a machine has gone", 9.0)]),
            ),
            min_size=8,
            max_size=8,
        ),
        "heartbeat": st.lists(PASSING | FINAL | st.just(LeaseRenewed(ends_in_s=40)), max_size=6).map(
            lambda first: [*first, LeaseRenewed(ends_in_s=40)]
        ),
        "result": st.builds(lambda first, end: [*first, end, RECEIPT], st.lists(PASSING, max_size=2), FINAL | PASSING),
        "end": troubled(PASSING, Noted(), lost()),
    }
)


@given(RULES, st.integers(1, 3))
def test_each_lease_ends_once_and_a_result_is_sent_only_of_a_training_that_kept_its_lease(
    rules: dict[str, list[Any]], leases: int
) -> None:
    script = Script(**rules)
    ended = script.play(leases)
    assert len(ended) == leases
    story = " ".join(word for word in script.log if word not in ("heartbeat", "sleep")) + " "
    lives = list(LIFE.finditer(story))
    assert "".join(life[0] for life in lives) == story
    assert [life[0].split()[-1] for life in lives] == [end.result for end in ended]
    fences = {
        send.message.fence for send in script.sent if isinstance(send.message, Heartbeat | LeaseEnd | ResultReport)
    }
    assert fences <= {LEASE.fence}, "the coordinator would refuse another lease's"
