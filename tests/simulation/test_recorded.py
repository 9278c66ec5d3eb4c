"""A live run is recorded through the API, and played again in virtual time: its rounds take as long."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Policy, Task
from client_sdk.protocol.insight import Lane
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Update
from simulation import History, simulate
from simulation.cli import app
from simulation.virtual.recorded import RecordedLane, RecordedRound, Recording
from tests.client_sdk.http.crowd import Crowd
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day
from tests.simulation.test_virtual_rounds import Stepping, clients, plan

REPORTS = [RecordedLane(end="reported", fetch_s=0.5, train_s=float(number), send_s=0.25) for number in range(1, 9)]


def recording(*rounds: RecordedRound) -> Recording:
    return Recording(run="live", select=8, rounds=rounds)


def recorded(*lanes: RecordedLane, select_s: float = 0.0) -> RecordedRound:
    return RecordedRound(round=1, status="committed", select_s=select_s, collect_s=1.0, lanes=lanes)


def played(made: Recording, rounds: int = 3, **cohort: Any) -> History:
    wanted = plan(rounds, cohort={"select_s": 60.0, **cohort})
    return simulate(wanted, Stepping(), clients(20), behaviour=made, progress=False)


def seconds(history: History) -> list[float]:
    return [round(one.seconds, 6) for one in history.rounds if one.seconds is not None]


def test_a_round_is_as_long_as_its_lanes_say() -> None:
    """The fifth report closes it: it trained for 5 s. Devices came 3 s after the round had opened."""
    assert seconds(played(recording(recorded(*REPORTS, select_s=3.0)))) == [8.75] * 3
    assert seconds(played(recording(recorded(*REPORTS), recorded(*REPORTS[:3], *REPORTS[5:], *REPORTS[:2])))) == [
        5.75, 3.75, 5.75,
    ]  # fmt: skip


def test_who_withdrew_or_vanished_in_the_recording_does_so_again() -> None:
    gone = RecordedLane(end="dropped", fetch_s=0.1)
    never = RecordedLane(end="dropped")
    left = RecordedLane(end="withdrawn", fetch_s=0.5, train_s=1.0)
    found = played(recording(recorded(*REPORTS[:5], gone, never, left))).rounds
    assert [(one.selected, one.started, one.reported, one.withdrawn) for one in found] == [(8, 6, 5, 1)] * 3
    few = played(recording(recorded(*REPORTS[:4], gone, gone, gone, left))).rounds
    assert [(one.reported, one.seconds) for one in few] == [(4, 60.0)] * 3, "four of a goal of five: until the deadline"


def test_a_cohort_that_was_small_is_small_again_and_drawn_at_the_end_of_its_selection() -> None:
    found = played(recording(recorded(*REPORTS[:6], select_s=60.0))).rounds
    assert [(one.selected, one.seconds) for one in found] == [(6, 65.75)] * 3


def test_a_larger_cohort_draws_its_lanes() -> None:
    found = played(recording(recorded(*REPORTS)), select=16, goal=8).rounds
    assert [one.selected for one in found] == [16] * 3
    assert len({one.seconds for one in found}) > 1
    assert all(one.seconds is not None and 1.75 < one.seconds <= 8.75 for one in found)


def test_a_lane_that_came_late_and_one_that_nobody_heard_of() -> None:
    common: dict[str, Any] = {"device": "d", "selected_at": 100.0, "started_at": 101.0}
    late = RecordedLane.of(Lane(**common, ended_at=109.0, end="late"))
    assert late == RecordedLane(end="reported", fetch_s=1.0, train_s=8.0)
    sent = RecordedLane.of(Lane(**common, ended_at=109.0, end="reported", fetch_s=0.5, train_s=5.0, encode_s=1.0))
    assert sent == RecordedLane(end="reported", fetch_s=1.0, train_s=6.0, send_s=2.0)
    assert RecordedLane.of(Lane(**common, ended_at=109.0, end="dropped")) == RecordedLane(end="dropped", fetch_s=1.0)
    assert RecordedLane.of(Lane(device="d", selected_at=1.0, end="waiting")) == RecordedLane(end="dropped")


def test_a_recording_is_read_as_it_was_written_and_nothing_else_is(tmp_path: Path) -> None:
    made = recording(recorded(*REPORTS, RecordedLane(end="dropped")))
    made.write(tmp_path / "a.json")
    assert Recording.read(tmp_path / "a.json") == made
    (tmp_path / "b.json").write_text(json.dumps({"recording": 2}))
    with pytest.raises(ValueError, match=r"b\.json is no recording that quorate record has written"):
        Recording.read(tmp_path / "b.json")
    with pytest.raises(ValueError, match="nothing to record"):
        Recording.of("run", 8, [])


def test_secure_and_buffered_plans_have_no_lanes_to_follow() -> None:
    wanted = {"name": "b", "cohort": {"goal": 3}, "buffered": {"concurrency": 8}, "finish": {"rounds": 2}}
    with pytest.raises(ValueError, match="has lanes of plain rounds"):
        simulate(wanted, Stepping(), clients(20), behaviour=recording(recorded(*REPORTS)))


# ------------------------------------------------------------ a live run

DEVICES, ROUNDS = 10, 5


class Sleeping:
    """Trains for as long as its slot and the round say; in each round it fails in one slot."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        time.sleep(0.3 + 0.25 * ((self.slot * 7 + round * 3) % DEVICES))
        if self.slot == round:
            raise ValueError("the data is gone")
        return Update({"w": np.ones(2, np.float32)}, examples=len(data.x))


@on_day(0, of=2)
def test_a_live_run_played_again_takes_as_long_in_each_round(tmp_path: Path) -> None:
    """Within 5 % and 0.15 s: what the coordinator itself takes is not in a recording."""
    server = Server.start(tmp_path / "data")
    live: dict[str, Any] = {
        "name": "live",
        "task": {"learner": "tests:sleep", "learner_version": "1.0"},
        "cohort": {"select": DEVICES - 2, "goal": 5, "quorum": 0.6, "select_s": 3, "collect_s": 30},
        "finish": {"rounds": ROUNDS},
    }
    try:
        with OperatorClient(server.url) as operator:
            first = operator.upload_checkpoint(to_bytes({"w": np.zeros(2, np.float32)}))
            run = operator.create_run(live, first, "a test").run
            done = threading.Event()
            with Crowd(server, "tests:sleep", [Sleeping(slot) for slot in range(DEVICES)], Policy()):
                until = time.monotonic() + 90.0
                while operator.run(run).status == "running" and time.monotonic() < until:
                    done.wait(0.2)
            assert operator.run(run).status == "finished"
            views = [view for view in operator.rounds(run) if view.closed_at is not None]
        file = tmp_path / "live.json"
        answer = CliRunner().invoke(app, ["record", run, "--coordinator", server.url, "--out", str(file)])
        assert answer.exit_code == 0, answer.output
    finally:
        server.stop()
    made = Recording.read(file)
    assert len(made.rounds) == len(views)
    text = file.read_text()
    assert '"device"' not in text
    assert '"label"' not in text
    history = simulate(live, Stepping(), clients(2 * DEVICES), behaviour=made, progress=False)
    took = [view.closed_at - (view.missed_at or view.opened_at) for view in views if view.closed_at is not None]
    again = [one.seconds for one in history.rounds if one.seconds is not None]
    assert len(again) == len(took) >= ROUNDS
    for mine, theirs, view, one in zip(again, took, views, history.rounds, strict=True):
        print(f"round {view.round}: live {theirs:.3f} s, played {mine:.3f} s")
        assert mine == pytest.approx(theirs, rel=0.05, abs=0.15)
        assert (one.status, one.selected, one.reported) == (view.status, view.funnel.selected, view.funnel.reported)
