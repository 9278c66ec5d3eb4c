"""``simulate()`` with secure rounds: really masked, or quantized; devices that vanish at each exchange."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from coordinator.engine.plan_file import PlanError
from simulation import Behaviour, History, SimulationError, Stalled, simulate
from simulation.errors import SimulationWarning
from simulation.history.rounds import read_events
from simulation.virtual.behaviour import Habits
from tests.rotating import on_day

pytestmark = pytest.mark.whole

D = 40
INIT = {"w": np.zeros(D, np.float32)}


def learner(model: Tensors, data: Any, task: Task) -> Update:
    """Towards the mean of its inputs. Its metric must not leave the device."""
    x, _ = data if isinstance(data, tuple) else (data.x, data.y)
    delta = {"w": (np.mean(x, axis=0) - model["w"]).astype(np.float32)}
    return Update(delta, len(x), work=Work(steps=1), metrics={"loss": float(np.abs(delta["w"]).max())})


def clients(count: int = 24) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        f"c{k:03d}": (rng.standard_normal((5 + k % 7, D)).astype(np.float32), np.zeros(5 + k % 7)) for k in range(count)
    }


def plan(rounds: int = 2, *, select: int = 10, goal: int = 8, **secure: Any) -> dict[str, Any]:
    return {
        "name": "test",
        "task": {"batch_size": 8},
        "cohort": {"select": select, "goal": goal, "quorum": 0.5, "collect_s": 60.0},
        "aggregation": {"weighting": "examples", "partial": "refuse"},
        "finish": {"rounds": rounds},
        "secure": {"max_norm": 100.0, "max_abs": 4.0, "minimum_cohort": 4, "reserve": 2, **secure},
    }


def play(way: str, *, data: Any = None, asked: Any = None, learn: Any = None, **options: Any) -> History:
    """Also of a run that stalls, as the smaller ones here may."""
    try:
        return simulate(
            asked or plan(), learn or learner, data or clients(), init=INIT, secure=way, progress=False, **options
        )
    except Stalled as stalled:
        return cast("History", stalled.history)


def digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


def log(history: History) -> list[tuple[float, str, Any]]:
    """What happened and when; and of messages, of whom and how long."""
    return [
        (event.at, event.kind, event.body.get("device"), event.body.get("bytes"), event.body.get("attempt"))
        for event in read_events(history._store, history.run)
    ]


def both(**options: Any) -> History:
    """The masked history, of which the quantized one has the same checkpoints and the same events."""
    masked, quantized = (play(way, **options) for way in ("masked", "quantized"))
    assert log(masked) == log(quantized)
    assert digests(masked) == digests(quantized)
    assert (masked.unmasked, quantized.unmasked) == (False, True)
    return masked


def exchanges(history: History, round: int = 1) -> dict[str, tuple[int, int]]:
    """(expected, came) of each exchange of a round."""
    row = next(row for row in history._store.rounds(history.run) if row.round == round)
    body: Any = row.body["secure"]
    return {one["exchange"]: (one["expected"], one["came"]) for one in body["exchanges"]}


def test_both_ways_give_the_weighted_mean() -> None:
    data = clients(10)
    history = both(data=data, asked=plan(1, weight_cap=50))
    first = history.rounds[0]
    assert (first.kind, first.status, first.counted, first.weight) == (
        "secure",
        "committed",
        10,
        sum(5 + k % 7 for k in range(10)),
    )
    mean = sum(x.sum(axis=0) for x, _ in data.values()) / first.weight
    step = 2 * 4.0 / (2**16 - 2) * 50 / first.weight  # of the mean
    np.testing.assert_allclose(history.checkpoint()["w"], mean, atol=10 * step)


@pytest.mark.parametrize("exchange", range(5))
def test_one_device_vanishes_before_each_exchange(exchange: int) -> None:
    kinds = {name: "leaver" if name == "c003" else "" for name in clients(8)}
    behaviour = {"": Behaviour(), "leaver": Behaviour(dropout=1.0)}
    seed = next(
        seed
        for seed in range(100)
        if Habits(behaviour, kinds.__getitem__, seed).conducts(["c003"], 1)["c003"].exchange == exchange
    )
    asked = plan(1, select=8, goal=8, reserve=0)
    history = both(asked=asked, data=clients(8), behaviour=behaviour, classes=kinds, seed=seed)
    assert history.rounds[0].status == "committed"
    found = exchanges(history)
    came = [came for _, came in found.values()]
    assert came[:4] == [8 - (exchange <= stage) for stage in range(4)]
    assert 5 <= came[4] <= 7, "the sum is opened as soon as every secret has enough shares"
    assert history.rounds[0].counted == 8 - (exchange <= 2)


@pytest.mark.parametrize(("secure", "lasts_s"), [({}, 2 + 60 / 4), ({"quiet_s": 60}, 60)])
def test_a_device_that_is_silent_is_waited_for_a_quarter_of_the_exchange_where_the_plan_says_nothing(
    secure: dict[str, Any], lasts_s: float
) -> None:
    """Of ten devices nine come into the roster, one of them above the goal; eight mask, two seconds after it began."""
    kinds = {name: "leaver" if name == "c003" else "" for name in clients(10)}
    behaviour = {"": Behaviour(network_s=2.0), "leaver": Behaviour(dropout=1.0, network_s=2.0)}
    seed = next(
        seed
        for seed in range(100)
        if Habits(behaviour, kinds.__getitem__, seed).conducts(["c003"], 1)["c003"].exchange == 2
    )
    asked = plan(1, **secure)
    del asked["secure"]["reserve"]
    history = play("quantized", asked=asked, data=clients(10), behaviour=behaviour, classes=kinds, seed=seed)
    found = exchanges(history)
    assert (found["advertise"][1], found["mask"]) == (9, (9, 8))
    assert history.rounds[0].status == "committed"
    body: Any = history._store.rounds(history.run)[0].body["secure"]
    mask = next(one for one in body["exchanges"] if one["exchange"] == "mask")
    assert mask["ended_at"] - mask["began_at"] == pytest.approx(lasts_s)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.2, 0.5])
def test_both_ways_are_alike_where_devices_vanish_and_attempts_are_made_again(dropout: float) -> None:
    history = both(asked=plan(4, select=12, goal=10), data=clients(40), behaviour=Behaviour(dropout=dropout))
    assert {row.kind for row in history.rounds} == {"secure"}


@on_day(1, of=2)
def test_an_attempt_is_made_again_without_those_who_vanished() -> None:
    """Too few share: the others advertise again, after the pause that each keeps."""
    asked = plan(3, select=12, goal=12, reserve=0, minimum_cohort=6)
    found = [both(asked=asked, data=clients(12), behaviour=Behaviour(dropout=0.55), seed=seed) for seed in range(3)]
    again = [event for history in found for event in log(history) if event[1] == "Advertised" and event[4]]
    assert again, "in none of these runs an attempt was made again"


def test_who_trains_longer_comes_too_late_for_the_roster() -> None:
    asked = plan(3, select=12, goal=6)
    history = both(asked=asked, data=clients(30), behaviour=Behaviour(speed_sigma=1.5, step_s=2.0))
    assert [row.counted for row in history.rounds] == [8, 8, 8]
    assert all(row.dropped == 4 for row in history.rounds)


def test_partial_work_that_the_plan_refuses_is_withdrawn() -> None:
    asked = plan(1, select=12, goal=10) | {"aggregation": {"weighting": "examples", "partial": "refuse"}}
    behaviour = Behaviour(stragglers=0.3, step_s=12.0)
    history = both(asked=asked, data=clients(12), behaviour=behaviour, seed=1)
    assert history.rounds[0].withdrawn > 0
    assert history.rounds[0].status == "committed"
    assert "the plan refuses partial work" in history.withdrawals[0].reason


def test_nothing_of_one_device_is_in_the_history() -> None:
    history = play("masked", asked=plan(1))
    assert history.rounds[0].metrics == {}
    assert not any(source == "training" for source, _ in history.curves)


def test_the_history_says_that_masks_were_left_out() -> None:
    quantized, masked = play("quantized", asked=plan(1)), play("masked", asked=plan(1))
    assert "simulated without masks" in quantized.summary()
    assert "without masks" not in masked.summary()


@pytest.mark.slow
def test_a_folder_continues_to_the_same_bits(tmp_path: Path) -> None:
    options: Any = {"behaviour": Behaviour(dropout=0.1, speed_sigma=0.5), "data": clients(40)}
    whole = play("quantized", asked=plan(4), **options)
    for way in ("masked", "quantized"):
        first = play(way, asked=plan(4), rounds=2, folder=tmp_path / way, **options)
        assert len(first.rounds) >= 2
        continued = play(way, asked=plan(4), folder=tmp_path / way, **options)
        assert digests(continued) == digests(whole)
        assert continued.unmasked == (way == "quantized")
    with pytest.raises(SimulationError, match='begun with secure="masked"'):
        play("quantized", asked=plan(4), folder=tmp_path / "masked", **options)


@pytest.mark.slow
def test_processes_give_the_same_bits() -> None:
    serial = play("quantized", behaviour=Behaviour(dropout=0.1))
    assert digests(play("quantized", behaviour=Behaviour(dropout=0.1), engine="processes", workers=2)) == digests(
        serial
    )
    assert digests(play("masked", behaviour=Behaviour(dropout=0.1), engine="processes", workers=2)) == digests(serial)


@on_day(0, of=2)
def test_fast_rounds_are_alike_in_both_ways() -> None:
    asked = plan(2, select=70, goal=64, reserve=6, profile="fast", drop=10, minimum_cohort=50)
    history = both(asked=asked, data=clients(90), behaviour=Behaviour(dropout=0.05))
    assert [row.status for row in history.rounds] == ["committed", "committed"]


@pytest.mark.parametrize("codec", ["rotated@1", "sampled-half-rotated@1"])
def test_linear_codecs_are_alike_in_both_ways(codec: str) -> None:
    asked = plan(2, q=8, weight_cap=12)
    asked["task"]["codec"] = codec
    assert [row.status for row in both(asked=asked).rounds] == ["committed", "committed"]


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="'masked', 'quantized'"):
        simulate(plan(), learner, clients(), init=INIT, secure="plain", progress=False)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="at most 40 letters"):
        simulate(plan(), learner, {**clients(), "a" * 41: clients(1)["c000"]}, init=INIT, progress=False)
    with pytest.raises(ValueError, match="there are 3 clients"):
        simulate(plan(), learner, clients(3), init=INIT, progress=False)


@pytest.mark.parametrize(
    "words",
    [
        {"secure": {"primitives": "null"}}, {"secure": {"masked": False}}, {"secure": {"masker": "null"}},
        {"task": {"primitives": "null"}}, {"primitives": "null"},
    ],
    ids=str,
)  # fmt: skip
def test_no_plan_names_primitives(words: dict[str, Any]) -> None:
    asked = plan() | {"task": {"learner": "clinic:risk"}, "name": "test"}
    Plan.parse(asked)
    with pytest.raises(PlanError, match="no such field"):
        Plan.parse(
            {**asked, **{name: {**asked[name], **more} if name in asked else more for name, more in words.items()}}
        )


@on_day(1, of=2)
def test_what_hides_nothing_is_loaded_by_no_device_and_no_coordinator() -> None:
    code = (
        "import sys, client_sdk.cli, client_sdk.http.client, coordinator.service, coordinator.runtime.coordinator\n"
        "from client_sdk.secagg.actions import Primitives\n"
        "from client_sdk.secagg import masks, shares, shamir\n"
        "found = Primitives()\n"
        "assert (found.split, found.seal, found.unseal, found.masker, found.pair_seed) == (\n"
        "    shamir.split, shares.seal_pair, shares.unseal_pair, masks.Masker, masks.pair_seed)\n"
        "assert not [name for name in sys.modules if name.startswith('simulation')]\n"
    )
    names = ("PRIMITIVES", "SECURE", "MASKED", "MASKER", "NULL", "SECURE_PRIMITIVES")
    environment = os.environ | {f"QUORATE_{name}": "null" for name in names} | {"QUORATE_SECURE": "quantized"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_no_message_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are deleted before the folder's rows are written, which are what a power loss leaves."""
    synced: list[int] = []
    fsync = os.fsync

    def counted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    history = play("masked", data=clients(20), asked=plan(1, select=20, goal=20, reserve=0), folder=tmp_path)
    assert history.rounds[0].status == "committed"
    assert len(synced) < sum(came for _, came in exchanges(history).values())
    for digest in digests(history):
        assert (tmp_path / "blobs" / digest[:2] / digest).stat().st_ino in synced, "a checkpoint is on the disk"


def small(size: float) -> Any:
    """A learner whose updates have this size."""
    return lambda model, data, task: Update({"w": np.full(D, size, np.float32)}, len(data[0]), work=Work(steps=1))


def test_rounding_that_is_a_large_part_of_what_a_round_learns_is_said_once_while_it_runs() -> None:
    asked = plan(3, max_abs=60.0, max_norm=100.0)
    with pytest.warns(
        SimulationWarning, match=r"secure round 1: rounding is about [0-9.]+ of the step: lower max_abs"
    ) as said:
        play("quantized", asked=asked, learn=small(0.01))
    assert len([one for one in said if "secure round" in str(one.message)]) == 1


def test_a_run_that_stalls_after_a_sum_of_zero_says_that_it_was_zero() -> None:
    asked = plan(3, max_abs=1000.0, max_norm=1000.0)
    with (
        pytest.warns(SimulationWarning, match="secure round 1: the sum of the updates was zero"),
        pytest.raises(Stalled, match=r"The sum of round 1 was zero, so the model has not changed.* Raise secure\.q"),
    ):
        simulate(asked, small(1e-6), clients(10), init=INIT, secure="quantized", progress=False)
