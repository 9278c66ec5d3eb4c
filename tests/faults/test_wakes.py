"""What the explorer requires of those who wait: a worker is woken for a round that it can take, and for no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_sdk.protocol.workers import WorkerPoll
from simulation.virtual.agenda import Agenda
from tests.explorer.faults import Broken
from tests.explorer.plans import DATA, LEARNER
from tests.explorer.search import play
from tests.explorer.wakeup_checks import WakeupChecks
from tests.faults.corpus import Known


def wait_while_a_round_is_leasing(data: tuple[str, ...]) -> None:
    """A worker with this data waits, a run asks for a worker, and nobody is woken."""
    poll = WorkerPoll(instance="one", installation="one", learners={LEARNER: "1"}, data=data, hold_s=25.0)
    held = SimpleNamespace(peer="worker-1", message=poll)
    replica = SimpleNamespace(held_for=lambda key: [held], held_by=lambda peer: held, now=lambda: 0.0)
    agenda = Agenda(0.0)
    world = SimpleNamespace(agenda=agenda, stormy=False, calm_since=float("-inf"))
    plan = {"task": {"learner": LEARNER}, "datacenter": {"data": DATA}, "cohort": {"select_s": 1.0, "collect_s": 1.0}}
    run: Any = SimpleNamespace(
        run="a", plan=plan, round=1, attempt=0, phase="leasing", deadline=1e9, quorum=1, fewest=1, lease_ends_at=1e9
    )
    WakeupChecks(cast("Any", world), cast("Any", None), cast("Any", [replica])).moved(run)
    while agenda.next_at < 10.0:
        do, arguments = agenda.take()
        do(*arguments)


def test_worker_that_can_take_the_round_must_be_woken() -> None:
    with pytest.raises(Broken, match="it is not woken"):
        wait_while_a_round_is_leasing((DATA,))


def test_repro_worker_that_lacks_the_data_need_not_be_woken() -> None:
    """Seed 1104: it came while all runs were paused, and was held. Who has nothing to do is told when its hold ends."""
    wait_while_a_round_is_leasing(())


def test_repro_schedule_with_a_worker_that_began_to_wait_in_a_pause() -> None:
    _, broken = play(Known(1104, "", "idle").shape())
    assert broken is None, broken
