"""Strategies of which devices run a half, in simulated rounds: closed forms, what is kept, and for which round."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.strategies import DeviceStrategy, Learn, Local, Shared
from client_sdk.protocol.devices import Score, Task, Work
from client_sdk.tensors import Manifest, Tensors, named
from client_sdk.tensors.manifest import is_shared
from client_sdk.update import Update
from coordinator.engine.aggregation.strategy import Strategy
from coordinator.engine.plan_file import PlanError
from simulation import Behaviour, ClientFailed, History, simulate
from tests.rotating import on_day, taking_turns
from tests.simulation.test_selections import require_valid

pytestmark = pytest.mark.whole

TARGETS = {"a": -1.0, "b": 2.0, "c": 5.0}
"""A client's minimum: its loss is half the squared distance to it, times its steepness."""
STEEP = {"a": 1.0, "b": 0.5, "c": 0.25}
CLIENTS = {name: (np.full((4, 1), place, np.float32), np.zeros(4)) for place, name in enumerate(TARGETS)}
INIT = {"w": np.zeros(2, np.float32), "head": np.zeros(1, np.float32)}
RATE, STEPS = 0.1, 5


class Quadratic:
    """Plain SGD on a client's quadratic, with what strategies ask of a learner."""

    version = "1"

    def train(self, model: Tensors, data: Any, task: Task, *, offset: Tensors | None = None, **_: Any) -> Update:
        name = list(TARGETS)[int(data[0][0, 0])]
        steps = task.steps or (task.epochs or 1) * STEPS
        now = {one: model[one].copy() for one in sorted(named(model, task.averaged))}
        for _step in range(steps):
            for one, weight in now.items():
                gradient = np.float32(STEEP[name]) * (weight - np.float32(TARGETS[name]))
                gradient = gradient + (offset or {}).get(one, np.float32(0))
                gradient = gradient + np.float32(task.mu) * (weight - model[one])
                now[one] = weight - np.float32(task.learning_rate) * gradient
        work = Work(steps=steps, steps_planned=steps, epochs=1.0, examples_seen=4)
        delta = {one: now[one] - model[one] for one in now}
        return Update(delta, 4, work=work, metrics={"loss": 1.0}, model=Manifest.of(model))

    def evaluate(self, model: Tensors, data: Any, *, device: str = "") -> Score:
        return Score(examples=1, metrics={"w": float(model["w"][0]), "head": float(model["head"][0])})


def plan(strategy: dict[str, Any] | None, rounds: int = 6, **task: Any) -> dict[str, Any]:
    return {
        "name": "kept",
        "task": {"learning_rate": RATE, "steps": STEPS, **task},
        "cohort": {"select": 3, "goal": 3, "quorum": 0.5, "collect_s": 60},
        "aggregation": {"weighting": "equal"},
        "finish": {"rounds": rounds},
        **({"strategy": strategy} if strategy else {}),
    }


def played(
    strategy: dict[str, Any] | None, rounds: int = 6, options: Mapping[str, Any] | None = None, **task: Any
) -> History:
    asked = plan(strategy, rounds, **task)
    return simulate(asked, Quadratic(), CLIENTS, init=INIT, progress=False, **(options or {}))


SCAFFOLD = {"name": "scaffold", "parameters": {"population": 3}}
FEDDYN = {"name": "feddyn", "parameters": {"population": 3}}
BEST = sum(STEEP[name] * TARGETS[name] for name in TARGETS) / sum(STEEP.values())
"""The minimum of the clients' losses together."""


def descended(y: float, name: str, *, offset: float = 0.0, mu: float = 0.0, to: float = 0.0, steps: int = 5) -> float:
    for _ in range(steps):
        y -= RATE * (STEEP[name] * (y - TARGETS[name]) + offset + mu * (y - to))
    return y


def test_scaffold_is_the_papers_algorithm_and_reaches_the_minimum_of_all() -> None:
    history = played(SCAFFOLD, rounds=120)
    x, c, own = 0.0, 0.0, dict.fromkeys(TARGETS, 0.0)
    line = [x]
    for _ in range(120):
        ends = {name: descended(x, name, offset=c - own[name]) for name in TARGETS}
        after = {name: own[name] - c + (x - ends[name]) / (STEPS * RATE) for name in TARGETS}
        c += sum(after[name] - own[name] for name in TARGETS) / 3
        x, own = sum(ends.values()) / 3, after
        line.append(x)
    for version in (1, 2, 3, 10, 120):
        assert history.checkpoint(version)["w"] == pytest.approx(np.full(2, line[version]), rel=1e-4, abs=1e-5)
    assert history.checkpoint()["w"] == pytest.approx(np.full(2, BEST), abs=1e-3)
    plain = played(None, rounds=120)
    assert abs(float(plain.checkpoint()["w"][0]) - BEST) > 0.05, "plain averaging drifts on these clients"


def test_the_control_variate_of_all_moves_by_the_devices_of_a_round_over_all() -> None:
    """With a population of 30, three devices move it by a tenth of their mean change."""
    few, many = (played({**SCAFFOLD, "parameters": {"population": count}}, rounds=1) for count in (3, 30))
    moved = _shared(few._checkpoint_bytes(1))
    assert (moved != 0).all()
    assert _shared(many._checkpoint_bytes(1)) == pytest.approx(moved / 10, rel=1e-5)
    assert few.checkpoint().keys() == INIT.keys(), "who uses the model does not see it"


def _shared(body: bytes) -> Any:
    from client_sdk.tensors import from_bytes

    return np.concatenate([one for name, one in sorted(from_bytes(body).items()) if is_shared(name)])


def test_feddyn_is_the_papers_algorithm_and_reaches_the_minimum_of_all() -> None:
    history = played(FEDDYN, rounds=150, mu=0.5)
    x, h, own = 0.0, 0.0, dict.fromkeys(TARGETS, 0.0)
    line = [x]
    for _ in range(150):
        ends = {name: descended(x, name, offset=-own[name], mu=0.5, to=x) for name in TARGETS}
        own = {name: own[name] - 0.5 * (ends[name] - x) for name in TARGETS}
        h -= 0.5 * sum(end - x for end in ends.values()) / 3
        x = sum(ends.values()) / 3 - h / 0.5
        line.append(x)
    for version in (1, 2, 3, 10, 150):
        assert history.checkpoint(version)["w"] == pytest.approx(np.full(2, line[version]), rel=1e-3, abs=1e-4)
    assert history.checkpoint()["w"] == pytest.approx(np.full(2, BEST), abs=1e-2)


def test_dittos_own_models_are_drawn_to_that_of_all_and_scored() -> None:
    options = {"score_clients": "all", "test": None}
    parts = {name: _WithTest(*data) for name, data in CLIENTS.items()}
    asked = plan({"name": "ditto", "parameters": {"lambda": 0.5}}, rounds=3)
    history = simulate(asked, Quadratic(), parts, init=INIT, progress=False, **options)  # type: ignore[arg-type]
    x, mine = 0.0, dict.fromkeys(TARGETS, 0.0)
    for _ in range(3):
        mine = {name: descended(mine[name], name, mu=0.5, to=x) for name in TARGETS}
        x = sum(descended(x, name) for name in TARGETS) / 3
    assert history.checkpoint()["w"] == pytest.approx(np.full(2, x), rel=1e-5)
    assert history.final("w", "clients") == pytest.approx(sum(mine.values()) / 3, rel=1e-5)


class _WithTest:
    def __init__(self, x: Any, y: Any) -> None:
        self.train, self.test = (x, y), (x, y)


@pytest.mark.parametrize("name", ["fedper", "fedbn", "fedrep"])
def test_devices_keep_their_own_part_which_nobody_else_gets(name: str) -> None:
    parts = {client: _WithTest(*data) for client, data in CLIENTS.items()}
    asked = plan({"name": name}, rounds=4, averaged=["!head"])
    history = simulate(asked, Quadratic(), parts, init=INIT, score_clients="all", progress=False)
    own = dict.fromkeys(TARGETS, 0.0)
    for _ in range(4):
        own = {client: descended(value, client) for client, value in own.items()}
    assert history.checkpoint()["head"] == 0, "what is not averaged stays as it was"
    assert history.final("head", "clients") == pytest.approx(sum(own.values()) / 3, rel=1e-5)


def test_what_is_kept_belongs_to_the_updates_that_count() -> None:
    """Of devices that vanish or come too late nothing is kept: whichever engine trains, the bits are the same."""
    options = {"behaviour": Behaviour(dropout=0.2, stragglers=0.3, speed_sigma=2.0), "seed": 5}
    serial = played(SCAFFOLD, rounds=8, options=options)
    pooled = played(SCAFFOLD, rounds=8, options={**options, "engine": "processes", "workers": 2})
    assert _digests(serial) == _digests(pooled)


def test_of_rounds_that_are_abandoned_no_client_keeps_anything() -> None:
    """Two of three report, and are no quorum: what is committed is as if such rounds had not been."""
    asked = plan(SCAFFOLD, rounds=5)
    asked["cohort"] |= {"quorum": 1.0}
    many = simulate(
        asked, Quadratic(), CLIENTS, init=INIT, behaviour=Behaviour(dropout=0.2), seed=2, progress=False, rounds=30
    )
    committed = [view for view in many.rounds if view.status == "committed"]
    assert len(committed) == 5
    assert len(many.rounds) > 6, "some are abandoned"
    assert _digests(many) == _digests(simulate(asked, Quadratic(), CLIENTS, init=INIT, progress=False))


def _digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


def kept_by(name: str, folder: Path | None = None) -> History:
    """Eight rounds in which server and devices both keep something: with FedAdam, or by a codec with a state."""
    options = {"folder": folder}
    if name == "error-feedback":
        feedback = {"name": name, "parameters": {"momentum": 0.5}}
        return played(feedback, rounds=8, options=options, codec="top-tenth@1")
    asked = plan(SCAFFOLD, rounds=8)
    asked["aggregation"] |= {"server_optimizer": "fedadam", "server_learning_rate": 0.1}
    return simulate(asked, Quadratic(), CLIENTS, init=INIT, progress=False, folder=folder)


KILLED = """
import os, signal, sys
from pathlib import Path
from simulation.engines.kernel import Kernel
from tests.simulation.test_device_strategies import kept_by

train, trained = Kernel.train, []

def killed(self, model, job):
    found = train(self, model, job)
    trained.append(job.device)
    if job.round == 4 and len([one for one in trained]) % 3 == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

Kernel.train = killed
kept_by(sys.argv[2], Path(sys.argv[1]))
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param("scaffold", marks=on_day(1, of=4)), pytest.param("error-feedback", marks=on_day(3, of=4))],
)
def test_a_kill_in_the_middle_of_a_round_changes_no_bit(tmp_path: Path, name: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed"), name], check=False)
    assert killed.returncode == -signal.SIGKILL
    with History.open(tmp_path / "killed") as before:
        assert 1 <= len(before) < 8
    with kept_by(name, tmp_path / "killed") as found, kept_by(name) as whole:
        assert _digests(found) == _digests(whole)
    require_valid(tmp_path / "killed")


SCORED = """
import os, signal, sys
from pathlib import Path
from simulation.virtual.simulation import Simulation
from tests.simulation.test_device_strategies import personal

keep, kept = Simulation.keep, []

def killed(self):
    kept.append(self)
    if len(kept) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    keep(self)

Simulation.keep = killed
personal(Path(sys.argv[1]))
"""


def personal(folder: Path | None) -> History:
    parts = {name: _WithTest(*data) for name, data in CLIENTS.items()}
    asked = plan({"name": "ditto", "parameters": {"lambda": 0.5}}, rounds=6)
    return simulate(asked, Quadratic(), parts, init=INIT, score_clients="all", folder=folder, progress=False)


@on_day(0, of=2)
def test_a_kill_after_clients_were_scored_and_before_the_round_is_written_changes_no_score(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SCORED, str(tmp_path / "killed")], check=False)
    assert killed.returncode == -signal.SIGKILL
    with personal(tmp_path / "killed") as found, personal(None) as whole:
        scores = [list(one.metric("w", "clients").values) for one in (found, whole)]
        assert scores[0] == scores[1]
        assert len(scores[0]) == 7


def test_a_run_that_goes_on_later_has_the_same_bits(tmp_path: Path) -> None:
    for rounds in (2, 1, 9):
        history = played(SCAFFOLD, rounds=6, options={"folder": tmp_path, "rounds": rounds})
    assert _digests(history) == _digests(played(SCAFFOLD, rounds=6))


def test_under_masks_it_is_the_same_algorithm() -> None:
    many = {f"{name}{at}": data for at in range(4) for name, data in CLIENTS.items()}
    size = {"select": 12, "goal": 12, "quorum": 0.5, "collect_s": 60}
    secure = {"max_norm": 100.0, "max_abs": 8.0, "minimum_cohort": 4}
    whole = {**SCAFFOLD, "parameters": {"population": 12}}
    asked = {**plan(whole, rounds=3), "cohort": size, "aggregation": {"weighting": "equal", "partial": "refuse"}}
    plain = simulate(asked, Quadratic(), many, init=INIT, progress=False)
    for way in ("masked", "quantized"):
        masked = simulate({**asked, "secure": secure}, Quadratic(), many, init=INIT, secure=way, progress=False)  # type: ignore[arg-type]
        assert masked.checkpoint()["w"] == pytest.approx(plain.checkpoint()["w"], abs=2e-3)


@pytest.mark.parametrize(
    ("strategy", "task", "sentence"),
    [
        (SCAFFOLD | {"parameters": {}}, {}, "needs population"),
        (SCAFFOLD | {"parameters": {"population": 2}}, {}, r"population \(2\) is below cohort.goal \(3\)"),
        (FEDDYN, {}, "task.mu is its alpha"),
        ({"name": "fedper"}, {}, "keep what task.averaged leaves out"),
    ],
)
def test_a_plan_that_cannot_have_it_is_refused_in_a_sentence(
    strategy: dict[str, Any], task: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError, match=sentence):
        played(strategy, **task)


def test_a_plan_does_not_say_what_the_coordinator_puts_into_the_task() -> None:
    with pytest.raises(PlanError, match=r"section \[strategy\], not in task.strategy"):
        simulate(
            plan(None) | {"task": {"steps": 5, "strategy": {"name": "scaffold", "version": "1"}}}, Quadratic(), CLIENTS,
            init=INIT, progress=False,
        )  # fmt: skip


def plain(model: Tensors, data: Any, task: Task) -> Update:
    return Update({name: np.ones_like(array) for name, array in model.items()}, 4)


def test_a_learner_that_takes_no_offset_is_named() -> None:
    with pytest.raises(ClientFailed, match="does not let it: an object with train"):
        simulate(plan(SCAFFOLD), plain, CLIENTS, init=INIT, progress=False)


class Halved(DeviceStrategy):
    """Sends half of each change, and keeps the other half until its next turn."""

    keeps = "committed"

    def train(
        self, learn: Learn, model: Tensors, shared: Shared, state: Tensors, task: Task, settings: Mapping[str, float]
    ) -> Local:
        update = learn(model, task)
        whole = {name: change + state.get(name, np.zeros_like(change)) for name, change in update.delta.items()}
        half = {name: change / 2 for name, change in whole.items()}
        return Local(update=Update(half, update.examples, work=update.work, model=update.model), state=half)


class Half(Strategy):
    device = Halved()


def test_a_strategy_of_a_notebook_has_both_halves() -> None:
    history = simulate(plan(None, rounds=2), Quadratic(), CLIENTS, init=INIT, strategy=Half(), progress=False)
    assert history.plan.strategy is not None
    assert history.plan.strategy.devices
    x, own = 0.0, dict.fromkeys(TARGETS, 0.0)
    for _ in range(2):
        own = {name: (descended(x, name) - x + own[name]) / 2 for name in TARGETS}
        x += sum(own.values()) / 3
    assert history.checkpoint()["w"] == pytest.approx(np.full(2, x), rel=1e-5)


class Wild(Halved):
    def train(self, *given: Any) -> Local:
        made = super().train(*given)
        return Local(update=made.update, state={"w": np.full(2, np.nan, np.float32)})


class WildOne(Strategy):
    device = Wild()


def test_a_state_of_numbers_that_are_not_finite_is_refused() -> None:
    with pytest.raises(ClientFailed, match="gives numbers in w that are not finite"):
        simulate(plan(None), Quadratic(), CLIENTS, init=INIT, strategy=WildOne(), progress=False)


class Diverging(Quadratic):
    def train(self, model: Tensors, data: Any, task: Task, *, offset: Tensors | None = None, **_: Any) -> Update:
        made = super().train(model, data, task, offset=offset)
        if int(data[0][0, 0]):
            return made
        wrong = {name: np.full_like(change, self.wrong) for name, change in made.delta.items()}
        return Update(wrong, 4, work=made.work, metrics=made.metrics, model=made.model)

    def __init__(self, wrong: float) -> None:
        self.wrong = wrong


@pytest.mark.parametrize("wrong", [np.nan, 1e30])
@pytest.mark.parametrize(
    ("strategy", "task"),
    [
        (FEDDYN, {"mu": 0.5}),
        ({"name": "ditto", "parameters": {"lambda": 0.5}}, {}),
        ({"name": "error-feedback"}, {"codec": "top-tenth@1"}),
    ],
)
def test_repro_a_client_whose_training_diverges_costs_nobody_else_a_round(
    strategy: dict[str, Any], task: dict[str, Any], wrong: float
) -> None:
    """Deployed, the device withdraws; simulated, the run ended."""
    asked = plan(strategy, rounds=2, **task)
    asked["cohort"] |= {"select": 3, "goal": 2}
    history = simulate(asked, Diverging(wrong), CLIENTS, init=INIT, progress=False)
    for number in (1, 2):
        rows = history._store.contributions(history.run, number)
        assert [row.device for row in rows] == ["b", "c"]


def test_one_client_of_a_later_round_cannot_be_played_alone() -> None:
    with pytest.raises(ValueError, match="what 'a' kept before round 2 is gone"):
        simulate(plan(SCAFFOLD), Quadratic(), CLIENTS, init=INIT, only="a", round=2)


@pytest.mark.parametrize("momentum", taking_turns(0.0, 0.5))
def test_what_the_codec_leaves_out_comes_with_the_next_update(momentum: float) -> None:
    """Top-k by hand: of 20 values the two largest of what has gathered are sent."""
    size = 20
    start = {"w": np.zeros(size, np.float32)}
    aims = {name: np.linspace(0.1, 1, size, dtype=np.float32) * np.float32(at) for name, at in TARGETS.items()}

    def learner(model: Tensors, data: Any, task: Task) -> Update:
        name = list(TARGETS)[int(data[0][0, 0])]
        return Update({"w": (aims[name] - model["w"]) * np.float32(0.04)}, 4, work=Work(steps=1))

    feedback = {"name": "error-feedback", "parameters": {"momentum": momentum}}
    asked = plan(feedback, rounds=3 if momentum else 150, codec="top-tenth@1")
    history = simulate(asked, learner, CLIENTS, init=start, progress=False)
    x, error, pace = (np.zeros(size, np.float32) for _ in range(3))
    errors, paces = dict.fromkeys(TARGETS, error), dict.fromkeys(TARGETS, pace)
    for version in range(1, 4):
        total = np.zeros(size, np.float64)
        for name in TARGETS:
            moved = (aims[name] - x) * np.float32(0.04) + np.float32(momentum) * paces[name]
            whole = moved + errors[name]
            sent = np.zeros(size, np.float32)
            largest = np.argsort(-np.abs(whole), kind="stable")[:2]
            sent[largest] = whole[largest]
            errors[name], paces[name] = whole - sent, np.where(sent == 0, moved, np.float32(0))
            total += sent
        x = (x + total / 3).astype(np.float32)
        assert history.checkpoint(version)["w"] == pytest.approx(x, rel=1e-5, abs=1e-6)
    if momentum:
        return
    without = simulate(plan(None, rounds=150, codec="top-tenth@1"), learner, CLIENTS, init=start, progress=False)
    best = sum(aims.values()) / 3
    misses = [float(np.linalg.norm(one.checkpoint()["w"] - best)) for one in (history, without)]
    assert misses[0] < 0.5 * misses[1], "biased codecs stop short of it"
