"""Parameter servers that do not wait for everybody: how stale a gradient may be, who is left behind, who may die."""

from __future__ import annotations

import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner
from client_sdk.learning.parameter_servers import BROKEN, GOOD, STOPPED, Head, ParameterServer, Portion
from client_sdk.protocol.workers import DatacenterTask
from client_sdk.tensors import Tensors
from coordinator.datacenter.job import launch
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec, whole_steps
from coordinator.datacenter.training import Report, train
from tests.coordinator.datacenter import models
from tests.coordinator.datacenter.ranks import Group, attempt, together
from tests.rotating import on_day

pytestmark = [pytest.mark.datacenter]

PUSH = 0
BASE: dict[str, Any] = {"steps": 60, "batch_size": 32, "learning_rate": 0.1, "optimizer": "sgd", "momentum": 0.5}
NETWORK = models.learner_of(models.network)


class Workers:
    """Threads that are the workers of one server, which adds up the gradients it gets: each sends ones."""

    def __init__(self, count: int, groups: list[list[int]] | None = None, **rule: Any) -> None:
        self.weight = nn.Parameter(torch.zeros(3))
        self.moved: list[tuple[int, float]] = []

        def move(step: int, part: float) -> None:
            self.moved.append((step, part))
            with torch.no_grad():
                self.weight += self.weight.grad

        portion = Portion([self.weight], [])
        groups = groups or [list(range(count))]
        self.server = ParameterServer(portion, groups, step=0, move=move, rate=lambda step: 0.1, **rule)
        self.count = count

    def push(self, rank: int, step: int, value: float = 1.0) -> Callable[[], bool]:
        head = Head(PUSH, step, 0.5, 2.0, 2, 2 * self.count)
        return self.server.push(rank, head, [torch.full((3,), value)])

    def ask(self, rank: int, ready: Callable[[], bool]) -> Any:
        return self.server.answer(rank, ready, 0.0)


def test_a_synchronous_step_waits_for_all_and_takes_their_mean() -> None:
    workers = Workers(3)
    first, second = workers.push(0, 0, 1.0), workers.push(2, 0, 4.0)
    assert workers.ask(0, first) is workers.ask(2, second) is None
    workers.push(1, 0, 4.0)
    assert workers.moved == [(0, 1.0)]
    answer = workers.ask(0, first)
    assert (answer.status, answer.next, answer.total, answer.weight, answer.examples) == (GOOD, 1, 1.5, 6.0, 6)
    assert answer.weights[0].tolist() == [3.0, 3.0, 3.0]


def test_a_gradient_that_comes_after_its_step_is_discarded_and_its_worker_goes_on_at_the_current_one() -> None:
    workers = Workers(4, backup=1)
    for step in range(5):
        ready = [workers.push(rank, step) for rank in range(3)]
        assert [workers.ask(rank, one).next for rank, one in enumerate(ready)] == [step + 1] * 3
    late = workers.push(3, 0, 1000.0)
    assert workers.ask(3, late).next == 5
    assert workers.server.late == 1
    assert workers.weight.tolist() == [5.0] * 3
    workers.push(3, 5)
    assert workers.weight.tolist() == [5.0] * 3, "with all the others it counts again"
    workers.push(0, 5)
    workers.push(1, 5)
    assert workers.weight.tolist() == [6.0] * 3


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_worker_is_more_steps_ahead_of_the_slowest_than_allowed(staleness: int) -> None:
    workers = Workers(4, [[0], [1], [2], [3]], staleness=staleness)
    steps, done = 60, [0, 0, 0, 0]
    furthest, lock = [0], threading.Lock()

    def work(rank: int) -> None:
        chance = random.Random(rank)
        for step in range(steps):
            with lock:
                furthest[0] = max(furthest[0], step - min(done))
            time.sleep(chance.random() * (0.004 if rank == 3 else 0.001))
            ready = workers.push(rank, step)
            with lock:
                done[rank] = step + 1
            while workers.server.answer(rank, ready, 1.0) is None:
                pass

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [steps] * 4
    assert 1 <= furthest[0] <= staleness + 1, "one step more was pushed by the slowest and not yet noted here"
    assert sum(workers.server.ages.values()) == 4 * steps
    assert max(workers.server.ages) <= 3 * (2 * staleness + 1)
    assert all(part == 0.25 for _, part in workers.moved)


def test_groups_are_synchronous_inside_and_do_not_wait_for_each_other() -> None:
    workers = Workers(4, [[0, 1], [2, 3]], staleness=2)
    for step in range(3):
        workers.push(0, step)
        ready = workers.push(1, step)
        assert (workers.ask(1, ready) is None) == (step == 2), "the other group has not begun"
    assert workers.moved == [(0, 0.5), (1, 0.5), (2, 0.5)]
    workers.push(2, 0)
    workers.push(3, 0)
    assert workers.ask(1, ready).next == 3


def test_a_worker_that_is_lost_stops_nobody_where_its_gradients_can_be_spared_and_else_all() -> None:
    for rule in ({"backup": 1}, {"staleness": 1, "groups": [[0], [1], [2]]}, {}):
        workers = Workers(3, **rule)
        ready = [workers.push(rank, 0) for rank in (0, 1)]
        workers.server.lose(2, "Connection closed by peer")
        answers = [workers.ask(rank, one) for rank, one in enumerate(ready)]
        assert [one.status for one in answers] == [GOOD if rule else BROKEN] * 2
        assert workers.server.news == ["Worker 2 was lost (Connection closed by peer), and 2 go on."]
        if rule:
            met = [workers.server.settle(rank) for rank in (0, 1)]
            assert [workers.ask(rank, one).left for rank, one in enumerate(met)] == [[0, 1]] * 2


def test_a_failure_is_told_to_those_that_wait() -> None:
    workers = Workers(2)
    ready = workers.push(0, 0)
    workers.server.fail()
    assert workers.ask(0, ready).status == STOPPED
    met = workers.server.settle(0)
    assert workers.ask(0, met) is None, "until the others are here too"
    workers.server.settle(1)
    assert workers.ask(0, met).status == STOPPED
    assert not workers.moved


def test_rows_move_when_they_come_and_only_those_that_moved_are_sent() -> None:
    table, weight = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.zeros(3))
    portion = Portion([weight], [table])
    server = ParameterServer(portion, [[0, 1]], step=0, move=lambda step, part: None, rate=lambda step: 0.5)
    rows = [(torch.tensor([1, 4]), torch.ones(2, 2))]
    ready = server.push(0, Head(PUSH, 0, 0.0, 2.0, 2, 4), [torch.zeros(3)], rows)
    assert table.tolist() == [[0, 0], [-0.25, -0.25], [0, 0], [0, 0], [-0.25, -0.25], [0, 0]]
    assert server.answer(0, ready, 0.0) is None, "the rest is synchronous"
    server.push(1, Head(PUSH, 0, 0.0, 2.0, 2, 4), [torch.zeros(3)], [(torch.tensor([4]), torch.ones(1, 2))])
    found = server.answer(0, ready, 0.0)
    assert found is not None
    assert found.rows[0][0].tolist() == [1, 4]
    assert found.rows[0][1].tolist() == [[-0.25, -0.25], [-0.5, -0.5]]
    ready = server.push(0, Head(PUSH, 1, 0.0, 2.0, 2, 4), [torch.zeros(3)], [(torch.tensor([0]), torch.ones(1, 2))])
    server.push(1, Head(PUSH, 1, 0.0, 2.0, 2, 4), [torch.zeros(3)], [(torch.tensor([0]), torch.ones(1, 2))])
    found = server.answer(0, ready, 0.0)
    assert found is not None
    assert found.rows[0][0].tolist() == [0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"server": {"staleness": 2, "backup": 1}}, "are for synchronous servers: leave out server.staleness"),
        ({"server": {"groups": 2}}, "say how many steps one may be ahead, in server.staleness"),
        ({"server": {"backup": 1, "sparse": "async"}}, "leave out server.sparse"),
        ({"server": {}, "hogwild": True}, "take one of them"),
        (
            {"server": {}, "shard": "optimizer"},
            "server goes with no shard, no compress, no sync_every, no mesh and no float16",
        ),
        ({"server": {}, "compress": "1bit"}, "server goes with no shard"),
        ({"server": {}, "sync_every": 4}, "server goes with no shard"),
        ({"hogwild": True, "precision": "float16"}, "hogwild goes with no shard, no compress, no sync_every"),
    ],
)
@pytest.mark.parametrize("kind", [Recipe, partial(DatacenterTask, data="public", nproc=4)])
def test_what_does_not_go_together_is_refused_before_training(kind: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        kind(steps=3, **fields)


def test_a_plan_has_processes_enough_for_its_servers_and_a_clipped_gradient_is_whole() -> None:
    for server in ({"count": 3}, {"backup": 2}, {"staleness": 1, "groups": 3}):
        with pytest.raises(ValueError, match="than nproc"):
            DatacenterTask(data="public", nproc=2, server=server)
    with pytest.raises(ValueError, match="max_grad_norm is of a whole batch's gradient"):
        Recipe(steps=3, max_grad_norm=1.0, server={"staleness": 2})
    with pytest.raises(ValueError, match="processes that do not wait have none"):
        Recipe(steps=3, max_grad_norm=1.0, hogwild=True)


# ---------------------------------------------------------------- in groups of processes


def lagging(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if os.environ.get("RANK") == "3":
        time.sleep(0.1)
    return nn.functional.cross_entropy(outputs, targets)


LAGGING = Learner(model=models.network, loss=lagging)
RULES: dict[str, tuple[Learner, dict[str, Any]]] = {
    "asynchronous": (NETWORK, {"staleness": 4}),
    "asynchronous, two servers": (NETWORK, {"count": 2, "staleness": 4}),
    "two groups": (NETWORK, {"staleness": 2, "groups": 2}),
    "rows": (models.learner_of(models.Sparse), {"count": 2, "sparse": "async"}),
    "backup": (LAGGING, {"count": 2, "backup": 1}),
    "no backup": (LAGGING, {"count": 2}),
}


def failing(step: int, how: str) -> Learner:
    models.failing_loss.calls = 0  # type: ignore[attr-defined]
    return Learner(model=models.network, loss=partial(models.failing_loss, step=step, how=how))


def all_rules(group: Group, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def trying(name: str, learner: Learner, server: dict[str, Any], steps: int = 60, **more: Any) -> None:
        decay = "linear" if name in RULES else "constant"  # or the last steps would be most of the difference
        recipe, began = Recipe(**{**BASE, "steps": steps, "server": server, "decay": decay}), time.monotonic()
        first, data = learner.initial(1), models.examples(400)
        found[name] = attempt(train, learner, first, data, recipe, group=group, **more)
        found[f"{name} s"] = time.monotonic() - began

    for name, (learner, server) in RULES.items():
        trying(name, learner, server)
    for name in ("asynchronous, two servers", "backup"):
        server = RULES[name][1]
        trying(f"{name}: nan", failing(3, "nan"), server)
        trying(f"{name}: raise", failing(2, "raise"), server)
        trying(f"{name}: half", NETWORK, server, steps=20, checkpoints=folder / name, checkpoint_every=7)
        trying(f"{name}: on", NETWORK, server, checkpoints=folder / name, checkpoint_every=7, resume=True)
    trying("optimizer", models.plain(optimizer=torch.optim.LBFGS), {"count": 2, "staleness": 1})
    closure = {**BASE, "optimizer": "learner", "server": {"count": 2, "staleness": 1}}
    learner = models.plain(optimizer=torch.optim.LBFGS)
    found["optimizer"] = attempt(
        train, learner, learner.initial(1), models.examples(400), Recipe(**closure), group=group
    )
    trying("no rows", NETWORK, {"sparse": "async"})
    trying("too many", NETWORK, {"count": 5})
    trying("too many backup", NETWORK, {"backup": 4})
    trying("still good", NETWORK, {"count": 3})
    return found


@cache
def by_rule() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return together(4, all_rules, Path(folder))


@cache
def alone(name: str) -> tuple[Tensors, Report]:
    learner = RULES[name][0]
    return train(learner, learner.initial(1), models.examples(400), Recipe(**BASE, decay="linear"))


def loss_of(name: str, model: Tensors) -> float:
    """Of all examples, by the trained model: those of a last batch, by weights of several ages, say less."""
    return RULES[name][0].evaluate(model, models.examples(400)).metrics["loss"]


@on_day(0, of=2)
@pytest.mark.parametrize("name", RULES)
def test_the_loss_after_as_many_examples_is_that_of_one_process_or_near_it(name: str) -> None:
    wanted = alone(name)[1]
    models_, reports = zip(*(ranks[name] for ranks in by_rule()), strict=True)
    assert all(np.array_equal(models_[0][one], model[one]) for model in models_ for one in model), "all get one model"
    assert loss_of(name, models_[0]) == pytest.approx(loss_of(name, alone(name)[0]), rel=0.1)
    if name != "backup":
        assert [report.examples_seen for report in reports] == [wanted.examples_seen] * 4
    staleness = reports[0].staleness
    servers = RULES[name][1]
    bound = servers.get("staleness", 0)
    groups = servers.get("groups", 4)
    assert len(staleness) - 1 <= (groups - 1) * (2 * bound + 1) if bound else len(staleness) == 1
    assert sum(staleness) == {"backup": 180}.get(name, 240)


@on_day(0, of=2)
def test_a_slow_worker_slows_nobody_where_one_is_spare() -> None:
    """It takes 0.1 s a step: 6 s for all. Without it the others are done long before."""
    found = by_rule()[0]
    assert found["no backup s"] > 6
    assert found["backup s"] < 0.7 * found["no backup s"]
    assert found["backup"][1].examples_seen < found["no backup"][1].examples_seen


@on_day(0, of=2)
@pytest.mark.parametrize("name", ["asynchronous, two servers", "backup"])
def test_what_goes_wrong_on_one_rank_is_known_to_all_at_their_next_exchange(name: str) -> None:
    ranks = by_rule()
    third, second = (r"\d+", r"\d+") if name == "backup" else ("3", "2")  # there a late worker has skipped steps
    for case, kind, words in (
        ("nan", "Diverged", f"The loss at step {third} is not finite"),
        ("raise", "LearnerFailed", f"at step {second}, on a batch of 8: KeyError: 'label 7 is unknown'"),
    ):
        found = [rank[f"{name}: {case}"] for rank in ranks]
        assert [one[0] for one in found] == ["RankFailed", kind, "RankFailed", "RankFailed"]
        assert all(re.search(words, one[1]) and "\n" not in one[1] for one in found)


@on_day(0, of=2)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("optimizer", "at step 1, where its optimizer moves the weights: TypeError: LBFGS.step() missing 1"),
        ("no rows", "server.sparse = 'async' needs an embedding with sparse gradients"),
        ("too many", "server.count = 5 needs as many processes and trained tensors: there are 4 and 6"),
        ("too many backup", "server.backup must be below the 4 processes"),
    ],
)
def test_one_rank_says_what_is_refused(case: str, words: str) -> None:
    found = [rank[case] for rank in by_rule()]
    assert [one[0] for one in found] == ["LearnerFailed", "RankFailed", "RankFailed", "RankFailed"]
    assert all(words in one[1] for one in found)
    assert by_rule()[0]["still good"][1].steps == 60


@on_day(0, of=2)
@pytest.mark.parametrize("name", ["asynchronous, two servers", "backup"])
def test_asynchronous_training_goes_on_from_its_saved_steps(name: str) -> None:
    for rank in by_rule():
        half, on = rank[f"{name}: half"][1], rank[f"{name}: on"][1]
        assert (half.steps, on.began, on.steps) == (20, 20, 60)
        assert loss_of(name, rank[f"{name}: on"][0]) < 1.2 * loss_of(name, alone(name)[0])


def leaf(rank: str) -> psutil.Process:
    """The process of a rank that trains, not the one that watches it."""
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get("RANK") == rank and not process.children():
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no process is rank {rank}")


@pytest.mark.parametrize(
    ("victim", "restarts"),
    [pytest.param("2", 0, marks=on_day(1, of=4)), pytest.param("0", 1, marks=on_day(3, of=4))],
)
def test_a_dead_worker_stops_nobody_and_a_dead_server_starts_the_job_again(
    tmp_path: Path, victim: str, restarts: int
) -> None:
    x, y = models.examples(400)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    spec = JobSpec(
        learner="tests.coordinator.datacenter.models:steady",
        data=str(tmp_path / "data.npz"),
        recipe=Recipe(steps=80, batch_size=32, learning_rate=0.05, server={"staleness": 2}),
        out=tmp_path / "model.safetensors",
        checkpoints=tmp_path / "steps",
        checkpoint_every=20,
        nproc=3,
        device="cpu",
    )
    received: list[dict[str, Any]] = []

    def hear(message: dict[str, Any]) -> None:
        received.append(message)
        if message["event"] == "saved" and not any(one["event"] == "killed" for one in received):
            received.append({"event": "killed"})
            time.sleep(0.3)  # a process may still be in the last exchange of the save
            leaf(victim).kill()

    result = launch(spec, hear)
    assert (result.report["steps"], result.restarts) == (80, restarts)
    assert whole_steps(tmp_path / "steps") == [60, 80]
    lost = [message["reason"] for message in received if message["event"] == "worker_lost"]
    if restarts:
        assert not lost
    else:
        assert [one.partition(" (")[0] for one in lost] == ["Worker 2 was lost"]
        assert result.report["examples_seen"] < 80 / 13 * 400
