"""Buffered rounds in virtual time: the same run twice, resumed, with slow and vanishing devices, and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_sdk.codecs import FLOAT16
from coordinator.blobs import BlobFolder
from coordinator.datafolder import BLOBS_FOLDER, DATABASE_FILE
from coordinator.store import open_store
from coordinator.verify import verify
from simulation import Behaviour, History, SimulationError, simulate
from tests.simulation.test_simulate import NET, clients, digests, examples, plan

pytestmark = pytest.mark.whole
SLOW: dict[str, Any] = {"behaviour": Behaviour(speed_sigma=1.5, jitter_sigma=0.5, dropout=0.1), "progress": False}


def buffered(rounds: int = 8, **more: Any) -> dict[str, Any]:
    section = {"concurrency": 6, "most_stale": 3, **more.pop("buffered", {})}
    cohort = {"select": 300, "goal": 3, "quorum": 0.85, "collect_s": 600.0, **more.pop("cohort", {})}
    return {**plan(rounds, **more), "cohort": cohort, "buffered": section}


def staleness(history: History) -> list[int]:
    """How many reports were so many versions behind, over all rounds."""
    found = [0] * 10
    for view in history.staleness.values():
        for behind, reports in enumerate(view):
            found[behind] += reports
    return found


def test_it_learns_and_is_the_same_run_twice() -> None:
    first, again = (simulate(buffered(20), NET, clients(), test=examples(seed=9), **SLOW) for _ in range(2))
    assert (first.status, len(first)) == ("finished", 20)
    assert digests(first) == digests(again)
    _, values = first.metric("accuracy")
    assert values[-1] > 0.9 > values[0]
    assert [(found.reported, found.downloaded) for found in first.rounds] == [(3, None)] * 20
    counts = staleness(first)
    assert sum(counts) == 60
    assert min(counts[:2]) > 0
    assert not any(counts[4:])


def test_a_single_place_is_never_behind() -> None:
    history = simulate(buffered(9, cohort={"goal": 1}, buffered={"concurrency": 1}), NET, clients(), progress=False)
    assert staleness(history) == [9, *[0] * 9]


def test_a_resumed_run_goes_on_with_the_devices_that_train_and_verify_finds_nothing(tmp_path: Path) -> None:
    wanted = buffered(9)
    whole = simulate(wanted, NET, clients(), **SLOW)
    while (part := simulate(wanted, NET, clients(), folder=tmp_path, rounds=2, **SLOW)).status != "finished":
        pass
    assert digests(part) == digests(whole)
    assert [one.selected for one in part.rounds] == [one.selected for one in whole.rounds]
    store = open_store(f"sqlite:///{tmp_path / DATABASE_FILE}")
    try:
        assert list(verify(store, BlobFolder(tmp_path / BLOBS_FOLDER))) == []
    finally:
        store.close()


@pytest.mark.parametrize(
    "sections",
    [
        {"aggregation": {"rule": "median", "weighting": "equal"}},
        {"aggregation": {"server_optimizer": "fedadam", "server_learning_rate": 0.05}},
        {"task": {"codec": FLOAT16.name}},
        {"task": {"codec": "top-tenth@1"}},
        {"schedule": {"learning_rate": {"shape": "linear"}}},
        {"aggregation": {"partial": "examples_seen"}},
        {"strategy": {"name": "fednova"}},
    ],
)
def test_with_what_else_a_plan_may_have(sections: dict[str, Any]) -> None:
    history = simulate(buffered(4, **sections), NET, clients(), **SLOW)
    assert history.status == "finished"


def test_what_cannot_be_played_is_said_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="straggler_share"):
        simulate(buffered(), NET, clients(), behaviour=Behaviour(straggler_share=0.5), progress=False)
    with pytest.raises(ValueError, match=r"buffered\.concurrency \(60\)"):
        simulate(buffered(buffered={"concurrency": 60}), NET, clients(), progress=False)


def test_clients_that_never_report_end_the_simulation_with_a_sentence() -> None:
    with pytest.raises(SimulationError, match="no round can close"):
        simulate(buffered(), NET, clients(), behaviour=Behaviour(dropout=1.0), progress=False)
