"""Simulated private runs: the bits of any engine and of any number of calls, and no metric of a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.blobs import FileBlobs
from coordinator.datafolder import BLOBS_FOLDER
from coordinator.verify import verify
from simulation import SimulationError, simulate
from tests.rotating import on_day
from tests.simulation.test_folder import INIT, clients, learner, opened, plan
from tests.simulation.test_simulate import digests

PRIVATE: dict[str, Any] = {
    "aggregation": {"weighting": "equal"},
    "privacy": {"clip": 2.0, "noise": 1.0, "delta": 1e-5},
}


def private(rounds: int = 4, most_rounds: int = 4, **more: Any) -> dict[str, Any]:
    made = plan(rounds, **{**PRIVATE, **more})
    return {**made, "cohort": {**made["cohort"], "most_rounds": most_rounds}}


def play(seed: int = 0, **more: Any) -> Any:
    return simulate(more.pop("plan", private()), learner, clients(), init=INIT, progress=False, seed=seed, **more)


def test_it_has_the_bits_of_any_engine_and_noise_of_its_seed(tmp_path: Path) -> None:
    found = digests(play())
    assert digests(play(engine="processes", workers=2)) == found
    assert digests(play(seed=1)) != found
    for rounds in (1, 2, None):
        history = play(folder=tmp_path, rounds=rounds)
    assert digests(history) == found
    with opened(tmp_path) as store:
        assert list(verify(store, FileBlobs(tmp_path / BLOBS_FOLDER))) == []
        (row,) = store.runs()
        assert "its noise follows from the simulation's seed and protects nobody" in row.origin
        reports = [event.body for event in store.events(row.run, 0) if event.kind == "Reported"]
    assert {body["examples"] for body in reports} == {1}


@pytest.mark.parametrize("mechanism", ["tree", "blt"])
def test_correlated_noise_has_the_bits_of_any_engine_and_of_any_number_of_calls(tmp_path: Path, mechanism: str) -> None:
    correlated = private(4, 2, privacy={**PRIVATE["privacy"], "mechanism": mechanism})
    correlated["cohort"]["apart"] = 2
    found = digests(play(plan=correlated))
    assert digests(play(plan=correlated, engine="processes", workers=2)) == found
    for rounds in (1, 2):
        play(plan=correlated, folder=tmp_path, rounds=rounds)
    with opened(tmp_path) as store:
        assert list(verify(store, FileBlobs(tmp_path / BLOBS_FOLDER))) == []
    assert digests(play(plan=correlated, folder=tmp_path)) == found


@on_day(1, of=2)
def test_the_noise_is_as_large_as_the_plan_says() -> None:
    steps = []
    for seed in range(30):
        quiet, loud = (
            play(seed=seed, plan=private(1, privacy={**PRIVATE["privacy"], "noise": noise})) for noise in (1e-6, 3.0)
        )
        steps.append(loud.checkpoint()["w"] - quiet.checkpoint()["w"])
    deviation = float(np.std(np.array(steps)))
    assert deviation == pytest.approx(3.0 * 2.0 / 6, rel=0.2), "over the goal of 6"


def test_clients_that_rest_or_have_done_all_leave_their_place_to_others() -> None:
    """As many clients as are drawn arrive, and some of those that do have just counted."""
    resting = private(4, 2)
    resting["cohort"] |= {"apart": 2, "select": 6, "goal": 6, "quorum": 1.0}
    history = play(plan=resting)
    assert [row.status for row in history.rounds] == ["committed"] * 4
    assert {one.counted for one in history.participants} <= {0, 1, 2}


def test_a_run_whose_clients_have_done_all_says_why_it_stands() -> None:
    with pytest.raises(SimulationError, match=r"all that cohort\.most_rounds allows"):
        play(plan=private(8, most_rounds=1))
