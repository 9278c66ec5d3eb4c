"""``simulate()`` as a user meets it: what it returns, what it refuses, what happens when things go wrong."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from client_sdk.learning import Learner, accuracy
from client_sdk.protocol.devices import Task, Work
from client_sdk.protocol.operators import Funnel, RoundView
from client_sdk.tensors import Layout, Tensors, from_bytes, to_bytes
from client_sdk.update import Update, encode_update
from coordinator.cli import app as coordinator_app
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train
from coordinator.datafolder import locked
from coordinator.engine.phases import opening
from coordinator.engine.plan_file import PlanError
from coordinator.store.port import StoreFull
from simulation import Behaviour, ClientFailed, Clients, History, SimulationError, Stalled, partition, simulate
from simulation.history.ledger import follow
from simulation.simulator.simulate import RoundProgress
from simulation.virtual.simulation import UpdateSizes

pytestmark = pytest.mark.whole

torch.set_num_threads(1)
NET = Learner(
    model=lambda: nn.Linear(4, 3),
    loss=nn.functional.cross_entropy,
    metrics={"accuracy": accuracy},
)


def examples(count: int = 240, seed: int = 0) -> tuple[Any, Any]:
    """Three classes that a line can tell apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, 4)).astype(np.float32) + 3 * np.eye(3, 4, dtype=np.float32)[y]
    return x, y.astype(np.int64)


def plan(rounds: int = 3, *, select: int = 4, goal: int | None = None, **more: Any) -> dict[str, Any]:
    cohort = {"select": select, "goal": goal or select, "quorum": 0.5, "collect_s": 60.0, **more.pop("cohort", {})}
    task = {"batch_size": 8, "learning_rate": 0.1, **more.pop("task", {})}
    return {"name": "test", "task": task, "cohort": cohort, "finish": {"rounds": rounds}, **more}


def clients(count: int = 10, **options: Any) -> Clients:
    return partition(examples(), count, by="iid", seed=1, **options)


def digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


def plain(model: Tensors, data: Any, task: Task) -> Update:
    """A learner without torch: towards the mean of its inputs."""
    x, _ = data if isinstance(data, tuple) else (data.x, data.y)
    return Update({"w": (np.mean(x, axis=0) - model["w"]).astype(np.float32)}, len(x), work=Work(steps=1))


# ------------------------------------------------------------ what it returns


def test_couple_of_lines_learn() -> None:
    history = simulate(plan(8), NET, clients(), test=examples(seed=9), progress=False)
    assert (len(history), history.status) == (8, "finished")
    versions, values = history.metric("accuracy")
    assert versions.tolist() == list(range(9))
    assert values[-1] > 0.9 > values[0]
    assert [found.reported for found in history.rounds] == [4] * 8
    assert sum(history.participation.values()) == 32
    assert all(found.bytes > 0 for found in history.rounds)


def test_same_arguments_give_the_same_bits_and_another_seed_does_not() -> None:
    behaviour = Behaviour(dropout=0.2, stragglers=0.3, speed_sigma=1.0)
    first = simulate(plan(), NET, clients(), behaviour=behaviour, progress=False)
    again = simulate(plan(), NET, clients(), behaviour=behaviour, progress=False)
    other = simulate(plan(), NET, clients(), behaviour=behaviour, seed=1, progress=False)
    assert digests(first) == digests(again)
    assert digests(first)[1:] != digests(other)[1:]


def test_round_is_the_exact_mean_of_its_updates() -> None:
    data = clients(5)
    history = simulate(plan(1, select=5), NET, data, progress=False)
    first = NET.initial(0)
    task = history.plan.task
    updates = [NET.train(first, data[name].train, task, device=name, round=1) for name in data]
    mean = reduce(add, updates).mean()
    for name, tensor in history.checkpoint().items():
        assert np.array_equal(tensor, (first[name] + mean[name]).astype(np.float32))


def test_plain_function_and_given_first_model() -> None:
    data = [(np.full((2, 3), float(number), np.float32), np.zeros(2)) for number in range(4)]
    history = simulate(plan(2), plain, data, init={"w": np.zeros(3, np.float32)}, progress=False)
    assert history.checkpoint()["w"].tolist() == [1.5, 1.5, 1.5]
    with pytest.raises(ValueError, match="makes no first checkpoint"):
        simulate(plan(2), plain, data, progress=False)


def test_every_client_gets_its_turn_and_none_comes_twice_in_a_round() -> None:
    history = simulate(plan(60), NET, clients(), progress=False)
    assert set(history.participation) == set(clients())
    assert min(history.participation.values()) >= 10
    for found in history.rounds:
        assert found.selected == 4


def test_median_reads_all_updates() -> None:
    rule = {"rule": "median", "weighting": "equal"}
    data = [(np.full((2, 3), value, np.float32), np.zeros(2)) for value in (1.0, 2.0, 900.0)]
    history = simulate(plan(1, select=3, aggregation=rule), plain, data, init={"w": np.zeros(3, np.float32)})
    assert history.checkpoint()["w"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("codec", ["float32@1", "float16@1"])
def test_bytes_of_an_update_are_those_of_its_real_body(codec: str) -> None:
    update = NET.train(NET.initial(0), examples(20), Task(learner="a:b", batch_size=7), device="d", round=1)
    body = encode_update(update, codec, "a-run", 12)
    from client_sdk.update import report_of

    sizes = UpdateSizes(Layout.of(update.manifest, ("*",), {}), codec)
    assert sizes(report_of(update, codec, "a-run", 12).model_dump_json()) == len(body)


# ------------------------------------------------------------ scores


def test_scores_centrally_on_clients_and_by_class() -> None:
    data = clients(held_out=0.25)
    kinds = {name: "phone" if number % 2 else "tablet" for number, name in enumerate(data)}
    history = simulate(
        plan(3), NET, data, test=examples(seed=9), score_clients="all", classes=kinds, score_every=2, progress=False
    )
    found = {source for source, _ in history.curves}
    assert {"evaluator", "clients", "clients.p10", "class.phone", "class.tablet"} <= found
    assert history.metric("accuracy", "clients").versions.tolist() == [0, 2, 3]
    scores = [NET.evaluate(history.checkpoint(), data[name].test) for name in data]
    weighted = sum(s.metrics["accuracy"] * s.examples for s in scores) / sum(s.examples for s in scores)
    assert history.final("accuracy", "clients") == pytest.approx(weighted)
    spread = np.percentile([s.metrics["accuracy"] for s in scores], 10)
    assert history.final("accuracy", "clients.p10") == pytest.approx(spread)


def test_target_on_clients_scores_ends_the_run() -> None:
    more = {"metric": "accuracy", "source": "clients", "target": 0.5, "rounds": 50}
    history = simulate({**plan(), "finish": more}, NET, clients(held_out=0.25), score_clients=5, progress=False)
    assert history.status == "finished"
    assert len(history) < 50
    assert {found.status for found in history.rounds} == {"committed"}, "no round that nobody began"
    assert "abandoned" not in history.summary()


# ------------------------------------------------------------ behaviour


def test_dropouts_and_late_devices_show_in_the_funnel() -> None:
    behaviour = Behaviour(dropout=0.3, speed_sigma=1.5)
    history = simulate(plan(30, select=6, goal=3), NET, clients(40), behaviour=behaviour, progress=False)
    funnels = history.rounds
    dropped, late = sum(f.dropped for f in funnels), sum(f.late for f in funnels)
    assert 20 < dropped + late < 120
    assert late > 0
    assert all(f.reported == 3 for f in funnels if f.reported >= 3)


def test_slow_class_counts_less_often_when_the_fast_close_the_round() -> None:
    data = clients(20)
    kinds = {name: "slow" if number < 10 else "fast" for number, name in enumerate(data)}
    by_class = {"slow": Behaviour(step_s=2.0), "fast": Behaviour(step_s=0.1)}
    history = simulate(plan(30, select=8, goal=4), NET, data, behaviour=by_class, classes=kinds, progress=False)
    counted = {
        kind: sum(history.participation.get(name, 0) for name in data if kinds[name] == kind) for kind in by_class
    }
    assert counted["fast"] > 3 * counted["slow"]


@pytest.mark.parametrize(("partial", "reported"), [("full", 4), ("refuse", 0)])
def test_partial_work_of_stragglers_is_the_plans_to_judge(partial: str, reported: int) -> None:
    more = {"task": {"epochs": 5}, "aggregation": {"partial": partial}}
    history = simulate(plan(1, **more), NET, clients(4), behaviour=Behaviour(stragglers=1.0), rounds=1, progress=False)
    funnel = history.rounds[0]
    assert (funnel.reported, funnel.withdrawn) == (reported, 4 - reported if reported else funnel.withdrawn)
    assert reported or funnel.withdrawn >= 3


def test_straggler_does_the_steps_that_its_time_allows() -> None:
    """Eight steps of one second, and a budget of three: the update is that of a device that stopped after three."""
    more = {"task": {"epochs": 2, "time_budget_s": 3.0}}
    data = clients(4)
    history = simulate(plan(1, **more), NET, data, behaviour=Behaviour(step_s=1.0), progress=False)
    steps = history.plan.task.model_copy(update={"epochs": None, "steps": 3, "time_budget_s": None})
    first = NET.initial(0)
    mean = reduce(add, (NET.train(first, data[name].train, steps, device=name, round=1) for name in data)).mean()
    for name, tensor in history.checkpoint().items():
        assert np.array_equal(tensor, (first[name] + mean[name]).astype(np.float32))


def test_device_too_slow_for_one_step_withdraws_and_the_run_stalls() -> None:
    with pytest.raises(Stalled, match="25 rounds in a row were abandoned") as stalled:
        simulate(plan(), NET, clients(), behaviour=Behaviour(step_s=100.0), progress=False)
    history = stalled.value.history
    assert history is not None
    assert len(history) == 0
    assert all(found.status == "abandoned" for found in history.rounds[:25])


def test_plan_says_after_how_many_abandoned_rounds_the_run_stalls(tmp_path: Path) -> None:
    asked = plan(finish={"rounds": 2, "abandoned": 2})
    for after in (2, 4):
        with pytest.raises(Stalled, match=r"^2 rounds in a row were abandoned, the last one because 3 of 4") as stalled:
            simulate(asked, NET, clients(), behaviour=Behaviour(step_s=100.0), progress=False, folder=tmp_path)
        assert stalled.value.history is not None
        assert len(stalled.value.history.rounds) == after
    history = simulate(asked, NET, clients(), progress=False, folder=tmp_path)
    assert [found.status for found in history.rounds] == ["abandoned"] * 4 + ["committed"] * 2


def test_run_of_which_no_round_opens_stalls_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    against = opening.NotOpened("budget", "the budget is spent")
    monkeypatch.setattr(opening, "reason_against", lambda state, at: against if state.version else None)
    for _ in range(2):
        with pytest.raises(Stalled, match=r"^no round opens: the budget is spent$") as stalled:
            simulate(plan(3), NET, clients(), progress=False, folder=tmp_path)
        assert stalled.value.history is not None
        assert [found.status for found in stalled.value.history.rounds] == ["committed"]
    monkeypatch.undo()
    history = simulate(plan(3), NET, clients(), progress=False, folder=tmp_path)
    assert [found.status for found in history.rounds] == ["committed"] * 3


def test_diverging_client_withdraws_and_the_others_make_the_round() -> None:
    x, y = examples(40)
    bad = (np.full((8, 4), np.inf, np.float32), np.zeros(8, np.int64))
    data = {"good-1": (x[:20], y[:20]), "good-2": (x[20:], y[20:]), "bad": bad}
    history = simulate(plan(2, select=3), NET, data, progress=False)
    assert [found.withdrawn for found in history.rounds] == [1, 1]
    assert {name: counted > 0 for name, counted in history.participation.items()} == {
        "bad": False, "good-1": True, "good-2": True,
    }  # fmt: skip


# ------------------------------------------------------------ datacenter rounds


@pytest.mark.slow
def test_rounds_alternate_between_fleet_and_datacenter_on_one_line(tmp_path: Path) -> None:
    section = {"data": "proxy", "steps": 5, "batch_size": 16, "learning_rate": 0.1, "every": 2}
    asked: dict[str, Any] = {"datacenter": {"proxy": examples(60, seed=4)}, "progress": False}
    history = simulate(plan(5, datacenter=section), NET, clients(), folder=tmp_path, **asked)
    assert [found.kind for found in history.rounds if found.status == "committed"] == [
        "federated", "datacenter", "federated", "datacenter", "federated",
    ]  # fmt: skip
    assert digests(history) == digests(simulate(plan(5, datacenter=section), NET, clients(), **asked))
    assert CliRunner().invoke(coordinator_app, ["verify", str(tmp_path)]).exit_code == 0
    recipe = Recipe(steps=5, batch_size=16, learning_rate=0.1, optimizer="sgd", seed=1)
    alone, _ = train(NET, history.checkpoint(1), examples(60, seed=4), recipe)
    assert to_bytes(alone) == to_bytes(history.checkpoint(2))


@pytest.mark.slow
def test_fleet_that_cannot_make_a_quorum_falls_back_and_returns() -> None:
    section = {"data": "proxy", "steps": 3, "batch_size": 8, "patience": 2}
    history = simulate(
        plan(6, cohort={"quorum": 1.0}, datacenter=section),
        NET,
        clients(),
        behaviour=Behaviour(dropout=0.3),
        datacenter={"proxy": examples(60, seed=4)},
        progress=False,
    )
    kinds = [(found.kind, found.status) for found in history.rounds if found.status != "open"]
    assert len(history) == 6
    fallen = [number for number, found in enumerate(kinds) if found == ("datacenter", "committed")]
    assert fallen
    assert kinds[fallen[0] - 2 : fallen[0]] == [("federated", "abandoned")] * 2
    assert ("federated", "committed") in kinds


def test_datacenter_of_plan_and_call_must_agree() -> None:
    section = {"data": "proxy", "steps": 1, "every": 2}
    with pytest.raises(ValueError, match="give datacenter="):
        simulate(plan(datacenter=section), NET, clients())
    with pytest.raises(ValueError, match="has no section"):
        simulate(plan(), NET, clients(), datacenter={"proxy": examples(8)})


# ------------------------------------------------------------ folder, resume, Ctrl-C


@pytest.mark.slow
def test_interrupted_run_goes_on_in_its_folder_to_the_same_bits(tmp_path: Path) -> None:
    behaviour = Behaviour(dropout=0.1, stragglers=0.2)
    asked: dict[str, Any] = {"behaviour": behaviour, "test": examples(seed=9), "progress": False}
    whole = simulate(plan(6), NET, clients(), **asked)
    simulate(plan(6), NET, clients(), folder=tmp_path / "run", rounds=2, **asked)
    part = simulate(plan(6), NET, clients(), folder=tmp_path / "run", rounds=1, **asked)
    assert (len(part), part.status) == (3, "running")
    rest = simulate(plan(6), NET, clients(), folder=tmp_path / "run", **asked)
    assert digests(rest) == digests(whole)
    with History.open(tmp_path / "run") as opened:
        assert digests(opened) == digests(whole)
        assert opened.metric("accuracy").values.tolist() == whole.metric("accuracy").values.tolist()
    done = simulate(plan(6), NET, clients(), folder=tmp_path / "run", **asked)
    assert len(done) == 6


def test_folder_keeps_runs_of_other_plans_beside(tmp_path: Path) -> None:
    simulate(plan(1), NET, clients(), folder=tmp_path, progress=False)
    other = simulate(plan(2), NET, clients(), folder=tmp_path, progress=False)
    assert (other.run, len(other)) == ("test-2", 2)


def test_ctrl_c_returns_the_history_so_far(tmp_path: Path) -> None:
    trained = 0

    class Slow:
        def initial(self, seed: int) -> Tensors:
            return NET.initial(seed)

        def train(self, *arguments: Any, **more: Any) -> Update:
            nonlocal trained
            trained += 1
            if trained == 10:
                signal.raise_signal(signal.SIGINT)
            return NET.train(*arguments, **more)

    assert threading.current_thread() is threading.main_thread()
    history = simulate(plan(6), Slow(), clients(), folder=tmp_path, progress=False)
    assert history.interrupted
    assert len(history) == 2
    assert digests(simulate(plan(6), NET, clients(), folder=tmp_path, progress=False)) == digests(
        simulate(plan(6), NET, clients(), progress=False)
    )


def test_repro_folder_that_cannot_be_used_is_a_simulation_error(tmp_path: Path) -> None:
    """Errors of the storage once passed through, with types that a user does not know."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SimulationError, match="cannot be used"):
        simulate(plan(), NET, clients(), folder=tmp_path / "file", progress=False)
    with locked(tmp_path / "busy"), pytest.raises(SimulationError, match="Another coordinator or simulation"):
        simulate(plan(), NET, clients(), folder=tmp_path / "busy", progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "quorate.sqlite3").write_text("no database" * 99)
    with pytest.raises(SimulationError, match="other: The file is not a SQLite database"):
        simulate(plan(), NET, clients(), folder=tmp_path / "other", progress=False)


def test_repro_full_disk_ends_the_run_with_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0

    def write(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == 4:
            raise StoreFull("The database could not be written: the disk is full.")
        follow(*arguments)

    monkeypatch.setattr("simulation.virtual.simulation.follow", write)
    with pytest.raises(SimulationError, match=r"could not be stored: .*disk is full") as failed:
        simulate(plan(6), NET, clients(), folder=tmp_path / "run", progress=False)
    assert failed.value.history is not None
    assert len(failed.value.history) == 3
    rest = simulate(plan(6), NET, clients(), folder=tmp_path / "run", progress=False)
    assert digests(rest) == digests(simulate(plan(6), NET, clients(), progress=False))


def test_run_begins_from_a_checkpoint_file(tmp_path: Path) -> None:
    before = simulate(plan(2), NET, clients(), progress=False)
    path = before.save_checkpoint(tmp_path / "model.safetensors")
    after = simulate(plan(1), NET, clients(), init=path, progress=False)
    assert digests(after)[0] == digests(before)[-1]
    (tmp_path / "no.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        simulate(plan(1), NET, clients(), init=tmp_path / "no.safetensors")
    with pytest.raises(ValueError, match="cannot be read"):
        simulate(plan(1), NET, clients(), init=tmp_path / "gone.safetensors")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_refused_with_what_converts_it(tmp_path: Path, zipped: bool) -> None:
    state = NET.load(NET.initial(5)).state_dict()
    file = tmp_path / "m.pt"
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"m\.pt is not a checkpoint: this is a .*, as torch\.save .*make") as refused:
        simulate(plan(1), NET, clients(), init=file, progress=False)
    (arrays,) = re.findall(r"here (torch\.load\(.*?\))", str(refused.value))
    converted = to_bytes(eval(arrays, {"torch": torch, "FILE": file}))
    (tmp_path / "m.safetensors").write_bytes(converted)
    run = simulate(plan(1), NET, clients(), init=tmp_path / "m.safetensors", progress=False)
    assert digests(run) == digests(simulate(plan(1), NET, clients(), init=state, progress=False))


def test_an_init_file_that_does_not_fit_the_learner_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(to_bytes({"w": np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match="init does not fit the learner"):
        simulate(plan(1), NET, clients(), init=other, progress=False)


def test_repro_run_begins_from_a_state_dict() -> None:
    """A PyTorch user's first checkpoint: it was an AttributeError about dtypes."""
    module = NET.load(NET.initial(5))
    given = module.state_dict()
    history = simulate(plan(2), NET, clients(), init=given, progress=False)
    assert digests(history) == digests(simulate(plan(2), NET, clients(), init=NET.initial(5), progress=False))
    with torch.no_grad():
        module.weight += 1
    assert np.array_equal(history.checkpoint(0)["weight"], NET.initial(5)["weight"])


# ------------------------------------------------------------ a failing client


def broken(outputs: Any, targets: Any) -> torch.Tensor:
    if int(targets.sum()) == 0 and len(targets) > 1:
        raise KeyError("a mistake of the user's")
    return nn.functional.cross_entropy(outputs, targets)


BROKEN = Learner(model=lambda: nn.Linear(4, 3), loss=broken)


def test_failing_client_shows_the_users_traceback_and_can_be_run_again() -> None:
    x, _ = examples(40)
    data = {"good": (x[10:20], np.ones(10, np.int64)), "bad": (x[:10], np.zeros(10, np.int64))}
    with pytest.raises(ClientFailed) as failed:
        simulate(plan(3, select=2), BROKEN, data, progress=False)
    error = failed.value
    assert (error.client, error.round) == ("bad", 1)
    assert "client 'bad' failed in round 1" in str(error)
    assert 'raise KeyError("a mistake of the user' in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert error.history is not None
    reason = str(error).rsplit("simulate(..., ", 1)[1].removesuffix(")")
    options = dict(item.split("=", 1) for item in reason.split(", "))
    assert (options["only"], options["round"]) == ("'bad'", "1")
    init = options["init"].strip("'")
    with pytest.raises(Exception, match="a mistake of the user's"):
        simulate(plan(3, select=2), BROKEN, data, only="bad", round=1, init=init)
    update = simulate(plan(3, select=2), BROKEN, data, only="good", round=1, init=init)
    assert update.examples == 10


def test_client_of_a_later_round_is_run_again_from_the_folder(tmp_path: Path) -> None:
    data = clients(4)
    history = simulate(plan(2), NET, data, folder=tmp_path, progress=False)
    first = history.checkpoint(1)
    updates = [simulate(plan(2), NET, data, only=name, round=2, folder=tmp_path) for name in data]
    mean = reduce(add, updates).mean()
    for name, tensor in history.checkpoint(2).items():
        assert np.array_equal(tensor, (first[name] + mean[name]).astype(np.float32))
    alone = simulate(plan(2), NET, data, only="client-1", round=1)
    assert alone.examples == simulate(plan(2), NET, data, only="client-1", round=1, folder=tmp_path).examples > 0
    with pytest.raises(ValueError, match="which model did round 2 start from"):
        simulate(plan(2), NET, data, only="client-1", round=2)
    with pytest.raises(ValueError, match="there is no client 'nobody'"):
        simulate(plan(2), NET, data, only="nobody", round=1)
    with pytest.raises(ValueError, match="go together"):
        simulate(plan(2), NET, data, only="client-1")  # type: ignore[call-overload]


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": clients(1)}, "the plan's quorum is 2 reports and there are 1 clients"),
        ({"clients": {}}, "there are no clients"),
        ({"clients": {"A B": examples(4)}}, "A B"),
        ({"engine": "warp"}, "there is no engine 'warp'"),
        ({"engine": "serial", "workers": 2}, "workers are those of"),
        ({"engine": "processes", "workers": 0}, "at least one worker"),
        ({"rounds": 0}, "rounds=0 must be a whole number, 1 or more"),
        ({"rounds": 1.5}, "rounds=1.5 must be a whole number"),
        ({"rounds": True}, "rounds=True must be a whole number"),
        ({"seed": -1}, "seed=-1 must be a whole number, 0 or more"),
        ({"seed": "a"}, "seed='a' must be a whole number"),
        ({"score_every": 0}, "score_every=0 must be a whole number, 1 or more"),
        ({"learner": nn.Linear(4, 3)}, "a Linear is a torch module"),
        ({"learner": Learner}, "Learner is a class"),
        ({"learner": None}, "a NoneType is none"),
        ({"classes": lambda client: 3}, "the class 3, which is no text"),
        ({"init": {"weight": [[1.0]]}}, "'weight' is a list"),
        ({"init": {"w": np.zeros(3, np.float32)}}, "init does not fit the learner: .* lacks 'bias', 'weight'"),
        ({"init": {"w": np.zeros(3, np.complex64)}}, "init will not do"),
        ({"init": {"weight": torch.full((3, 4), torch.nan), "bias": torch.zeros(3)}}, "NaN or infinity in weight"),
        ({"score_clients": -1}, "a number of clients"),
        ({"classes": {"client-00": "a"}}, "gives client 'client-01' no class"),
        ({"behaviour": {"a": Behaviour()}}, "for which no behaviour is given"),
        ({"behaviour": 3}, "behaviour is a Behaviour"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(change: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"plan": plan(), "learner": NET, "clients": clients(), **change}
    with pytest.raises(ValueError, match=words):
        simulate(asked.pop("plan"), asked.pop("learner"), asked.pop("clients"), **asked)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"cohort": {"selct": 3}}, "there is no such field"),
        ({"cohort": {"select": 3, "goal": 4}}, "a round could never reach it"),
        (7, "is none of these"),
        ("no-such.toml", "cannot read the plan"),
    ],
)
def test_bad_plans_are_refused_in_a_sentence(bad: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        simulate(bad, NET, clients())


@pytest.mark.parametrize("name", ["dropout", "stragglers", "speed_sigma", "jitter_sigma", "step_s", "network_s"])
def test_behaviour_out_of_range_is_refused(name: str) -> None:
    for value in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=name):
            Behaviour(**{name: value})


def test_plan_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'name = "filed"\n[task]\nlearner = "my:net"\n[cohort]\nselect = 2\ngoal = 2\n[finish]\nrounds = 1\n'
    )
    history = simulate(path, NET, clients(), progress=False)
    assert (history.run, len(history)) == ("filed", 1)


# ------------------------------------------------------------ progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(stream: io.StringIO, wanted: bool | None, rounds: Sequence[Any]) -> str:
    progress = RoundProgress(4, wanted, stream)
    for found in rounds:
        progress.training(found.round, 1, 4)
        progress.ended(found, {"accuracy": 0.5})
    progress.close()
    return stream.getvalue()


def test_progress_is_a_line_a_round_and_quiet_in_logs() -> None:
    committed = {"status": "committed", "opened_at": 1.0, "closed_at": 9.0, "funnel": Funnel(selected=4, reported=4)}
    abandoned = {"status": "abandoned", "opened_at": 1.0, "closed_at": 9.0, "reason": "2 of 4 devices reported"}
    views = [RoundView(round=number, **kind) for number, kind in enumerate((committed, abandoned, committed), 1)]
    assert shown_on(io.StringIO(), None, views) == ""
    lines = shown_on(io.StringIO(), True, views).splitlines()
    assert len(lines) == len(views)
    assert lines[1] == "round 2: abandoned: 2 of 4 devices reported"
    assert "4 of 4 clients in" in lines[-1]
    assert "accuracy 0.5" in lines[-1]
    assert "left" in lines[-1]
    live = shown_on(Terminal(), None, views)
    assert live.count("\n") == len(views)
    assert "\r" in live
    assert json.dumps(live)  # no odd characters


def test_a_notebook_has_a_live_line_that_leaves_nothing_behind() -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    progress = RoundProgress(4, None, stream)
    progress._often_s = 0.0
    view = RoundView(round=10, status="abandoned", opened_at=1.0, closed_at=9.0, reason="late")
    for done in (3, 4):
        progress.training(10, done, 4)
    progress.ended(view, {})
    progress.training(11, 1, 4)
    progress.close("ended")
    assert "\x1b" not in stream.getvalue()
    seen = [line for line in map(overwritten, stream.getvalue().split("\n")) if line]
    assert seen == ["round 10: abandoned: late", "ended"]


def overwritten(text: str) -> str:
    """What is read of a line whose parts were written over each other."""
    line: list[str] = []
    for part in text.split("\r"):
        line[: len(part)] = part
    return "".join(line).rstrip()


def test_repro_whatever_stands_for_stderr_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    plain = Plain()
    monkeypatch.setattr("sys.stderr", plain)
    assert len(simulate(plan(2), NET, clients(), progress=True)) == 2
    assert plain.text.count("\n") == 2
    monkeypatch.setattr("sys.stderr", None)
    assert len(simulate(plan(2), NET, clients(), progress=True)) == 2


def test_checkpoints_survive_the_simulation() -> None:
    history = simulate(plan(2), NET, clients(), progress=False)
    body = to_bytes(history.checkpoint(0))
    assert np.array_equal(from_bytes(body)["weight"], NET.initial(0)["weight"])


# ------------------------------------------------------------ scores that cannot be had


def scored_parts(test: Any) -> list[Any]:
    x, y = examples(60)
    return [SimpleNamespace(train=(x[k::6], y[k::6]), test=test if k else (x[:5], y[:5])) for k in range(6)]


def test_repro_client_with_nothing_held_out_is_left_out_of_the_scores() -> None:
    x, y = examples(10)
    history = simulate(plan(1), NET, scored_parts((x[:0], y[:0])), score_clients="all", progress=False)
    assert {view.examples for view in history.metrics if view.source == "clients"} == {5}
    with pytest.raises(ValueError, match="none of them has held-out examples"):
        simulate(plan(1), NET, clients(), score_clients="all", progress=False)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_repro_scoring_that_fails_names_the_client(engine: Any) -> None:
    """The serial engine let the learner's own error through, which says nothing of a client, and no history."""
    wrong = (np.zeros((5, 9), np.float32), np.zeros(5, np.int64))
    with pytest.raises(SimulationError, match="client 'client-1' could not be scored: The learner failed") as failed:
        simulate(plan(1), NET, scored_parts(wrong), score_clients="all", engine=engine, progress=False)
    assert "Traceback" not in str(failed.value), "no line of it is the user's own"
    assert "RuntimeError" in str(failed.value)
    assert failed.value.history is not None
    with pytest.raises(SimulationError, match="could not be scored on the test data: The learner failed"):
        simulate(plan(1), NET, clients(), test=wrong, engine=engine, progress=False)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("evaluator", "give test="),
        ("clients", "give score_clients="),
        ("clients.p10", "give score_clients="),
        ("class.phone", "give score_clients="),
        ("somebody", "there are evaluator, clients"),
    ],
)
def test_repro_plan_whose_end_hangs_on_no_score_is_refused(source: str, words: str) -> None:
    """It ran to its last round, and the target was never looked at."""
    finish = {"metric": "accuracy", "source": source, "target": 0.5, "rounds": 50}
    with pytest.raises(ValueError, match=f"accuracy of '{source}', which nothing here would score: {words}"):
        simulate({**plan(), "finish": finish}, NET, clients(), progress=False)


def test_repro_lazy_clients_are_made_when_they_are_needed() -> None:
    """All of them were, to see that there are enough."""

    class Lazy(Mapping[str, Any]):
        asked: ClassVar[set[str]] = set()

        def __len__(self) -> int:
            return 1000

        def __iter__(self) -> Iterator[str]:
            return (f"c{number}" for number in range(1000))

        def __getitem__(self, name: str) -> Any:
            self.asked.add(name)
            return examples(10)

    simulate(plan(2), NET, Lazy(), progress=False)
    assert len(Lazy.asked) <= 2 + 2 * 4
