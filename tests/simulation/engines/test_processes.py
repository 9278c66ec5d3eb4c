"""The engine ``processes``: the bits of the serial one, whatever the number of workers, a clear end when one dies."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from client_sdk.learning import Learner, accuracy
from client_sdk.protocol.devices import Score, Task, Work
from client_sdk.tensors import Layout, Manifest, ManifestMismatch, Tensors
from client_sdk.update import Update
from coordinator.engine.plan import Plan
from simulation import Behaviour, ClientFailed, Clients, History, SimulationError, partition, simulate
from simulation.engines import CannotTrain, Done, Engine, EngineName, Job, Kernel, Result, SerialEngine, engine_called
from simulation.engines.processes import ProcessEngine
from simulation.history.rounds import RoundSummary
from simulation.simulator.checks import plan_of
from tests.rotating import on_day

pytestmark = pytest.mark.whole

FOUR = {"w": np.zeros(4, np.float32)}
CHOICES: list[dict[str, Any]] = [
    {},
    {"task": {"codec": "float16@1"}},
    {"aggregation": {"clip_norm": 0.05}},
    {"aggregation": {"rule": "median", "weighting": "equal"}},
    {"aggregation": {"partial": "refuse"}, "cohort": {"quorum": 0.25}},
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


NET = Learner(model=mlp, loss=nn.functional.cross_entropy, metrics={"accuracy": accuracy})


def examples(count: int = 240) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, 4)).astype(np.float32) + 3 * np.eye(3, 4, dtype=np.float32)[y]
    return x, y.astype(np.int64)


def clients(count: int = 12) -> Clients:
    return partition(examples(), count, alpha=0.5, seed=1, held_out=0.2)


def plan(**more: Any) -> Plan:
    cohort = {"select": 7, "goal": 6, "quorum": 0.5, "collect_s": 60.0, **more.pop("cohort", {})}
    task = {"batch_size": 4, "learning_rate": 0.1, "epochs": 1, **more.pop("task", {})}
    return plan_of({"name": "test", "task": task, "cohort": cohort, "finish": {"rounds": 3}, **more})


def fate(found: RoundSummary) -> RoundSummary:
    """What became of a round, without when."""
    return replace(found, opened_at=0.0, closed_at=None, seconds=None, wall_s=None)


def digests(history: History) -> list[str]:
    return [view.digest for _, view in sorted(history.checkpoints.items())]


def inputs(data: Any) -> Any:
    return data[0] if isinstance(data, tuple) else data.x


def mark(model: Tensors, data: Any, task: Task) -> Update:
    """A learner without torch, whose update shows the client's number, from any data: [count, number]."""
    number = int(inputs(data)[0, 0])
    if task.seed == number:
        raise RuntimeError(f"client {number} is not well")
    delta = np.zeros(16, np.float32)
    delta[number] = 1.0 + float(model["w"][number])
    return Update({"w": delta}, len(inputs(data)), work=Work(steps=1), metrics={"loss": 0.1 * number})


class Marks:
    """Sixteen clients, client k with k + 1 examples, and a kernel whose updates are their marks."""

    def __init__(self, learner: Any = mark, **more: Any) -> None:
        held = [(np.full((k + 1, 1), k, np.float32), np.zeros(k + 1, np.int64)) for k in range(16)]
        self.clients = Clients.of(held)
        self.model: Tensors = {"w": np.zeros(16, np.float32), "steps": np.zeros(1, np.int64)}
        manifest = Manifest.of(self.model)
        more["task"] = {"seed": 99, **more.pop("task", {})}
        self.kernel = Kernel(plan(**more), learner, self.clients, Layout.of(manifest, ("*",), {}))

    def job(self, number: int, **more: Any) -> Job:
        asked: dict[str, Any] = {"run": "r", "round": 1, "attempt": 0, "cost": number + 1, **more}
        return Job(device=self.clients.id(number), **asked)

    def weights(self, *numbers: int) -> dict[str, int]:
        return {self.clients.id(number): number + 1 for number in numbers}

    def mean_of(self, engine: Engine, *numbers: int) -> list[float]:
        """What the clients' updates add up to, lane by lane."""
        total = engine.total(self.weights(*numbers))
        assert (total.count, total.total_weight) == (len(numbers), sum(n + 1 for n in numbers))
        return [float(round(x)) for x in total.mean() * total.total_weight]


def results(engine: Engine, jobs: list[Job]) -> list[Result]:
    engine.submit(jobs)
    return [engine.result(job) for job in jobs]


def happened(history: History) -> list[tuple[str, float, object]]:
    """Every event of the run: what, how many seconds after the first, and whom it was about."""
    events = history._store.events(history.run, 0, 1_000_000)
    return [(event.kind, round(event.at - events[0].at, 3), event.body.get("device")) for event in events]


def gone(pid: int) -> bool:
    """Whether the process has ended and was waited for."""
    return not Path(f"/proc/{pid}").exists()


def children() -> set[int]:
    """The processes that this one has started and not waited for, running or dead. Other tests' may be among them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended since
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """No test leaves a child behind, running or dead."""
    before = children()
    yield
    assert children() <= before


@pytest.fixture
def started() -> Iterator[Callable[[Kernel, int], ProcessEngine]]:
    """Makes engines, and closes them."""
    made: list[ProcessEngine] = []

    def start(kernel: Kernel, workers: int) -> ProcessEngine:
        made.append(ProcessEngine(kernel, workers))
        return made[-1]

    yield start
    for engine in made:
        engine.close()


Started = Callable[[Kernel, int], ProcessEngine]


# ------------------------------------------------------------ the same bits


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: str(sorted(choice)))
def test_whole_runs_have_the_bits_of_the_serial_engine(choice: dict[str, Any]) -> None:
    behaviour = Behaviour(dropout=0.1, stragglers=0.4, speed_sigma=1.0, step_s=0.5)

    def run(**engine: Any) -> History:
        return simulate(
            plan(**choice),
            NET,
            clients(),
            test=examples(60),
            behaviour=behaviour,
            score_clients=5,
            progress=False,
            **engine,
        )

    reference = run()
    assert len(set(digests(reference))) == 4
    others = [{"engine": name} for name in get_args(EngineName) if name not in ("serial", "processes", "ray")]
    for engine in (*({"engine": "processes", "workers": count} for count in ((2,) if choice else (1, 2, 3))), *others):
        found = run(**engine)
        assert digests(found) == digests(reference)
        assert [*map(fate, found.rounds)] == [*map(fate, reference.rounds)]
        assert happened(found) == happened(reference)
        for source in ("evaluator", "clients", "clients.p10"):
            for ours, theirs in zip(
                found.metric("accuracy", source), reference.metric("accuracy", source), strict=True
            ):
                assert ours.tolist() == theirs.tolist()


def test_parents_that_have_used_many_threads_get_the_same_bits() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        image = torch.randn(8, 3, 32, 32, requires_grad=True)
        nn.functional.conv2d(image, torch.randn(8, 3, 5, 5)).sum().backward()
        many = simulate(plan(), NET, clients(), progress=False)
        forked = simulate(plan(), NET, clients(), progress=False, engine="processes", workers=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    one = simulate(plan(), NET, clients(), progress=False)
    assert digests(many) == digests(forked) == digests(one)


def test_each_update_is_in_the_sum_once(started: Started) -> None:
    marks = Marks()
    engine = started(marks.kernel, 3)
    engine.begin(1, marks.model)
    jobs = [marks.job(number) for number in range(10)]
    engine.submit(jobs)
    engine.submit(jobs[:4])
    for job in [*reversed(jobs), *jobs[:3], marks.job(11)]:
        result = engine.result(job)
        assert isinstance(result, Done)
        assert result.report.metrics["loss"] == 0.1 * (result.weight - 1)
    assert marks.mean_of(engine, *range(10), 11) == [float(k + 1) if k != 10 and k < 12 else 0.0 for k in range(16)]


def test_who_would_only_wait_does_something_else_meanwhile(started: Started, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def waits(model: Tensors, data: Any, task: Task) -> Update:
        while not go.exists():
            time.sleep(0.001)
        return mark(model, data, task)

    marks = Marks(waits)
    engine = started(marks.kernel, 1)
    engine.begin(1, marks.model)
    called: list[int] = []

    def meanwhile() -> None:
        called.append(1)
        go.touch()

    assert isinstance(engine.result(marks.job(1), meanwhile), Done)
    assert called == [1]
    engine.submit([marks.job(2), marks.job(4)])
    engine.result(marks.job(4))
    engine.result(marks.job(2))
    called.clear()
    engine.result(marks.job(2), meanwhile)
    assert not called, "its answer was there"


def test_results_are_those_of_the_serial_engine(started: Started) -> None:
    marks = Marks(task={"seed": 3})
    engine, serial = started(marks.kernel, 2), SerialEngine(marks.kernel)
    for one in (engine, serial):
        one.begin(1, marks.model)
    for number in range(5):
        job = marks.job(number, fetch_s=0.1, train_s=1 / 3, attempt=2, round=1, cost=np.int64(3))
        ours, theirs = engine.result(job), serial.result(job)
        if isinstance(theirs, CannotTrain):
            assert isinstance(ours, CannotTrain)
            assert (number, ours.reason) == (3, theirs.reason)
            assert "client 3 is not well" in ours.trace
            assert "in mark" in ours.trace
        else:
            assert ours == theirs


def test_updates_that_do_not_count_are_left_out(started: Started) -> None:
    marks = Marks()
    for workers in (1, 2):
        engine = started(marks.kernel, workers)
        engine.begin(1, marks.model)
        for number in range(6):
            engine.result(marks.job(number))
        assert marks.mean_of(engine, 0, 2, 5) == [1.0, 0, 3.0, 0, 0, 6.0, *[0.0] * 10]
        with pytest.raises(ManifestMismatch, match="never trained here"):
            engine.total(marks.weights(0, 9))
        with pytest.raises(ManifestMismatch, match="never trained here"):
            engine.total({marks.clients.id(0): 2})


def test_a_device_trained_twice_counts_once(started: Started) -> None:
    marks = Marks()
    engine = started(marks.kernel, 2)
    engine.begin(1, marks.model)
    jobs = [marks.job(number) for number in range(4)]
    again = [replace(job, attempt=1) for job in jobs]
    engine.submit(jobs + again)
    for job in jobs + again:
        assert isinstance(engine.result(job), Done)
    assert marks.mean_of(engine, 0, 1, 2, 3) == [1.0, 2.0, 3.0, 4.0, *[0.0] * 12]


def test_each_round_starts_from_its_own_model_and_an_empty_sum(started: Started) -> None:
    marks = Marks()
    engine = started(marks.kernel, 2)
    for number in (1, 2, 3):
        marks.model["w"][:] = number
        engine.begin(number, marks.model)
        jobs = [marks.job(client, round=number) for client in range(4)]
        engine.submit(jobs)
        for job in jobs:
            engine.result(job)
        total = engine.total(marks.weights(0, 1, 2, 3))
        expected = [(1 + number) * weight / 10 for weight in (1, 2, 3, 4)]
        assert total.mean()[:5].tolist() == [*np.array(expected, np.float32).tolist(), 0.0]
    engine.begin(4, marks.model)
    with pytest.raises(ManifestMismatch, match="never trained here"):
        engine.total(marks.weights(0))


def test_a_round_that_is_over_leaves_nothing_to_the_next(started: Started) -> None:
    """Twelve jobs of a round that nobody asked for are dropped: those begun are finished, no more."""

    def slow(model: Tensors, data: Any, task: Task) -> Update:
        time.sleep(0.05 if model["w"][0] == 0 else 0.0)
        return mark(model, data, task)

    marks = Marks(slow)
    engine = started(marks.kernel, 2)
    engine.begin(1, marks.model)
    engine.submit([marks.job(number) for number in range(12)])
    began = time.monotonic()
    marks.model["w"][0] = 1
    engine.begin(2, marks.model)
    assert time.monotonic() - began < 0.3
    jobs = [marks.job(number, round=2) for number in (0, 1)]
    for job in jobs:
        engine.result(job)
    assert marks.mean_of(engine, 0, 1) == [2.0, 2.0, *[0.0] * 14]


def test_the_longest_go_first_and_nobody_hoards(started: Started) -> None:
    read, write = os.pipe()

    def tell(model: Tensors, data: Any, task: Task) -> Update:
        os.write(write, bytes([int(inputs(data)[0, 0])]))
        time.sleep(0.01)
        return mark(model, data, task)

    marks = Marks(tell)
    engine = started(marks.kernel, 1)
    engine.begin(1, marks.model)
    order = [3, 9, 1, 15, 7, 0]
    engine.submit([marks.job(number) for number in order])
    engine.result(marks.job(12))
    for number in order:
        engine.result(marks.job(number))
    found = list(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert [number for number in found if number != 12] == [15, 9, 7, 3, 1, 0]
    assert found.index(12) <= 2


def test_rules_that_need_all_updates_get_them(started: Started) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((16, 700)).astype(np.float32)

    def row(model: Tensors, data: Any, task: Task) -> Update:
        mine = values[int(inputs(data)[0, 0])]
        return Update({"a": mine[:300].reshape(3, 100), "b": mine[300:]}, 1, work=Work(steps=1))

    marks = Marks(row, aggregation={"rule": "median", "weighting": "equal"})
    marks.model = {"b": np.zeros(400, np.float32), "a": np.zeros((3, 100), np.float32)}
    marks.kernel = Kernel(marks.kernel.plan, row, marks.clients, Layout.of(Manifest.of(marks.model), ["*"], {}))
    engine = started(marks.kernel, 3)
    for number_of_round, numbers in ((1, (4, 0, 9, 2)), (2, (1, 9))):
        engine.begin(number_of_round, marks.model)
        jobs = [marks.job(number, round=number_of_round) for number in range(10)]
        engine.submit(jobs)
        for job in jobs:
            engine.result(job)
        devices = [marks.clients.id(number) for number in numbers]
        engine.total(dict.fromkeys(devices, 1))
        found = np.concatenate(list(engine.columns(devices)), axis=1)
        assert found.tobytes() == values[list(numbers)].tobytes()
        with pytest.raises(ManifestMismatch, match="never trained here"):
            engine.columns([marks.clients.id(15)])


def test_sums_are_not_asked_for_columns(started: Started) -> None:
    marks = Marks()
    engine = started(marks.kernel, 1)
    engine.begin(1, marks.model)
    with pytest.raises(ManifestMismatch, match="adds updates up"):
        engine.columns([])


# ------------------------------------------------------------ scores


class Scorer:
    """Scores a client by its number; client 5 cannot be scored."""

    train = staticmethod(lambda *_, **__: None)

    def evaluate(self, model: Tensors, data: Any) -> Score:
        number = int(inputs(data)[0, 0])
        if number == 5:
            raise ValueError("five is no score")
        return Score(examples=1, metrics={"number": number + float(model["w"][0])})


def test_scores_come_in_the_order_of_the_devices(started: Started) -> None:
    marks = Marks()
    halves = [(np.full((2, 1), k, np.float32), np.zeros(2, np.int64)) for k in range(10)]
    held = Clients.of([SimpleNamespace(train=h, test=h if k != 3 else None) for k, h in enumerate(halves)])
    engine = started(Kernel(marks.kernel.plan, Scorer(), held, marks.kernel.layout), 3)
    marks.model["w"][0] = 0.5
    order = [7, 3, 0, 9, 1]
    scores = engine.score(marks.model, [held.id(number) for number in order])
    assert [None if s is None else s.metrics["number"] for s in scores] == [7.5, None, 0.5, 9.5, 1.5]
    with pytest.raises(SimulationError, match=r"could not be scored: ValueError: five is no score\n\nTraceback"):
        engine.score(marks.model, [held.id(4), held.id(5)])
    assert engine.score(marks.model, [held.id(4)])[0] is not None


# ------------------------------------------------------------ when things go wrong


def test_own_errors_come_back_with_their_traceback() -> None:
    def broken(model: Tensors, data: Any, task: Task) -> Update:
        raise ZeroDivisionError("no such luck")

    with pytest.raises(ClientFailed, match="ZeroDivisionError: no such luck") as caught:
        simulate(plan(), broken, clients(), init=FOUR, progress=False, engine="processes", workers=2)
    assert "in broken" in str(caught.value)
    assert caught.value.history is not None


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"was ended by SIGKILL, as the system does"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"was ended by SIGSEGV"),
        (lambda: os._exit(7), r"ended by itself, with exit status 7,"),
        (lambda: sys.exit(3), r"ended by itself, with exit status 3,"),
    ],
    ids=["SIGKILL", "SIGSEGV", "_exit", "sys.exit"],
)
def test_the_error_for_a_worker_that_dies_names_its_client(
    started: Started, end: Callable[[], None], words: str
) -> None:
    def dies(model: Tensors, data: Any, task: Task) -> Update:
        if int(inputs(data)[0, 0]) == 6:
            faulthandler.disable()
            end()
        return mark(model, data, task)

    marks = Marks(dies)
    engine = started(marks.kernel, 3)
    engine.begin(1, marks.model)
    pids = engine.pids
    jobs = [marks.job(number) for number in range(8)]
    reason = f"a worker process {words}.* while it trained client {marks.job(6).device!r} in round 1"
    with pytest.raises(SimulationError, match=reason):
        results(engine, jobs)
    assert all(gone(pid) for pid in pids)
    with pytest.raises(SimulationError, match="a worker process"):
        engine.result(jobs[0])


def test_a_worker_killed_while_idle_is_noticed(started: Started) -> None:
    marks = Marks()
    engine = started(marks.kernel, 2)
    engine.begin(1, marks.model)
    engine.result(marks.job(1))
    pids = engine.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(SimulationError, match=r"SIGKILL.* while it (had nothing to do|trained)"):
        results(engine, [marks.job(number) for number in range(10)])
    assert all(gone(pid) for pid in pids)


def test_a_dying_worker_ends_the_run_with_its_history() -> None:
    def dies(model: Tensors, data: Any, task: Task) -> Update:
        if model["w"][0] > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return Update({"w": np.ones(4, np.float32)}, 1, work=Work(steps=1))

    with pytest.raises(SimulationError, match="SIGKILL") as caught:
        simulate(plan(), dies, clients(), init=FOUR, progress=False, engine="processes", workers=2)
    assert caught.value.history is not None
    assert sorted(caught.value.history.checkpoints) == [0, 1]


def test_closing_ends_workers_in_the_middle_of_a_client() -> None:
    def endless(model: Tensors, data: Any, task: Task) -> Update:
        while True:
            time.sleep(60)

    marks = Marks(endless)
    engine = ProcessEngine(marks.kernel, 2)
    engine.begin(1, marks.model)
    engine.submit([marks.job(number) for number in range(6)])
    pids, began = engine.pids, time.monotonic()
    assert len(pids) == 2
    engine.close()
    engine.close()
    assert time.monotonic() - began < 1.0
    assert all(gone(pid) for pid in pids)
    with pytest.raises(SimulationError, match="closed"):
        engine.begin(2, marks.model)


CHILD = """
import os, sys, time, threading
import numpy as np
from client_sdk.protocol.devices import Work
from client_sdk.update import Update
from simulation import simulate

def learner(model, data, task):
    print(f"pid {{os.getpid()}}\\n", end="")
    {act}
    return Update({{"w": np.ones(4, np.float32)}}, 1, work=Work(steps=1))

plan = {{"name": "t", "task": {{"batch_size": 4, "learning_rate": 0.1}}, "finish": {{"rounds": {rounds}}},
        "cohort": {{"select": 4, "goal": 4, "quorum": 0.5, "collect_s": 60.0}}}}
data = [(np.zeros((2, 1), np.float32), np.zeros(2, np.int64))] * 6
print("begins")
init = {{"w": np.zeros(4, np.float32)}}
found = simulate(plan, learner, data, init=init, engine="processes", workers=2, progress=False)
print("rounds", len(found), found.interrupted)
"""


def child(act: str, rounds: int = 2) -> subprocess.Popen[str]:
    source = textwrap.dedent(CHILD).format(act=act, rounds=rounds)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, start_new_session=True)


def until_gone(pids: set[int], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < until, "workers outlive their parent"
        time.sleep(0.01)


def printed_pids(lines: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in lines if line.startswith("pid")}


@pytest.mark.slow
def test_what_learners_print_is_seen_once() -> None:
    found, _ = child("pass").communicate(timeout=60)
    lines = found.splitlines()
    assert lines.count("begins") == 1
    assert len([line for line in lines if line.startswith("pid")]) == 8
    assert lines[-1] == "rounds 2 False"
    assert len(printed_pids(lines)) == 2


@on_day(1, of=2)
def test_ctrl_c_returns_the_history_and_leaves_no_worker() -> None:
    process = child("sys.stdout.flush(); time.sleep(60 if model['w'][0] else 0)")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(7)]
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert rest.splitlines()[-1] == "rounds 1 True"
    assert process.returncode == 0
    until_gone(printed_pids(lines + rest.splitlines()))


@on_day(0, of=2)
def test_workers_end_with_a_parent_that_is_killed() -> None:
    process = child("sys.stdout.flush(); time.sleep(60)")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(printed_pids(lines)) == 2
    until_gone(printed_pids(lines))
    process.stdout.close()


def test_two_engines_side_by_side_end_by_themselves(started: Started) -> None:
    """The second's workers hold no end of the first's channels."""
    marks = Marks()
    one, other = started(marks.kernel, 2), started(marks.kernel, 2)
    for engine in (one, other):
        engine.begin(1, marks.model)
        engine.result(marks.job(1))
    pids = one.pids
    one.close()
    assert all(gone(pid) for pid in pids)
    assert marks.mean_of(other, 1) == [0.0, 2.0, *[0.0] * 14]


def test_where_nothing_can_be_forked_the_user_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(SimulationError, match='engine="serial" does the same'):
        simulate(plan(), NET, clients(), progress=False, engine="processes")


def test_as_many_workers_as_cores_but_no_more_than_clients_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    marks = Marks(cohort={"select": 2, "goal": 2})
    engine = engine_called("processes")(marks.kernel)
    assert isinstance(engine, ProcessEngine)
    engine.begin(1, marks.model)
    assert len(engine.pids) == 2
    engine.close()
    with pytest.raises(ValueError, match="at least one worker"):
        engine_called("processes", 0)
