"""Measures rounds of ``simulate`` beside a bare hand-written loop and other simulators, on Fashion-MNIST.

``python -m benchmarks.simulation [--quick] [--json]``. 1,000 clients (Dirichlet 0.3), 100 a round, one epoch, batches
of 10, SGD 0.1, one thread. A pair is some rounds of ours and as many of the other's, of the same clients; first rounds
are dropped. Both models are compared before a ratio is reported.

    mlp_vs_bare               CPU seconds of a round with ``steps="fast"`` over those of the bare loop; perceptron
                              784-200-200-10; ``mlp_exact_vs_bare``: with exact steps
    cnn_vs_bare               the same with the CNN of McMahan et al. 2017
    engine_ms_per_client      CPU milliseconds per client of a round without training: the learner returns a prepared
                              update of a tiny model. The cost is that of sessions, coordinator, log, store and sum:
                              all that a simulation does besides training
    engine_199k_ms_per_client the same with updates of 199,210 parameters, each checked, measured and added up
    quantized_vs_plain        CPU seconds of a round of 300 clients, 50,000 parameters, without training, that is secure
                              and only quantized, over those of a plain one
    start_s                   seconds of a fresh interpreter until the first client trains, with imports, data and
                              clients
    processes_2_speedup       wall seconds of a round of the serial engine over those of two worker processes; and
                              ``cnn_processes_2_speedup``
    two_processes_ceiling     speedup of two independent serial simulations at the same time over one. They share caches
                              and memory, so it is below 2, and it bounds any speedup by two processes
    million_registered_gib    peak memory of a process that plays rounds of 100 of 1,000,000 clients of 10 examples
    mlp_vs_flower             CPU seconds of a round, process tree, beside Flower's simulation with its default
                              backend: the same model, clients, epochs and batches, plain PyTorch in its client
    mlp_vs_pfl_research       CPU seconds of a round beside pfl-research in this process, where there is a release of
                              it for this Python

``--quick``: 20 clients a round, 2 for the CNN, fewer pairs, no Flower; ``met`` is null for aims that need the full run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._flower import Flower
from benchmarks._pfl import Pfl
from benchmarks._progress import counted
from benchmarks._rounds import BATCH, LEARNING_RATE, Bare, Played, furthest
from benchmarks.harness import Pairs, Row, Spread, cost_s, interleaved, main
from client_sdk.learning import Learner
from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import Clients, partition
from simulation.datasets import fashion_mnist
from simulation.learners import MnistCnn, MnistMlp200, mnist_cnn, mnist_mlp_200

CLIENTS = 1000
ALPHA = 0.3
TINY = 10
MLP = 199_210
QUANTIZED = 50_000
MILLION = 1_000_000
GIB = 2**30
MLP_AIM, CNN_AIM, PFL_AIM = 0.63, 0.88, 0.6
"""Of CPU seconds over those of the bare loop, and of pfl-research."""
MLP_SPEEDUP_AIM, CNN_SPEEDUP_AIM = 1.6, 1.9
"""Of two worker processes."""


def clients_of(count: int = CLIENTS) -> Clients:
    """Fashion-MNIST among ``count`` clients."""
    return partition(fashion_mnist().train, count, by="dirichlet", alpha=ALPHA, seed=0)


def beside_bare(
    learner: Learner,
    module: type[nn.Module],
    clients: Clients,
    select: int,
    pairs: int,
    rounds: int = 1,
    steps: str = "fast",
) -> Pairs:
    """``rounds`` of ours and of the bare loop in turn. SystemExit if the models differ. ``steps``: see ``simulate``."""
    initial = learner.initial(0)
    with Played(learner, clients, select, steps=steps) as ours:
        bare = Bare(module, clients, ours, initial)
        ours.play()
        first = ours.model()
        bare.play()
        if not furthest(first, bare.world) < 1e-5:
            raise SystemExit("the bare loop's model is another: wrong results are not reported")
        several(ours.play, rounds)  # it stays ahead, as the bare loop needs to know who counted
        found = interleaved(lambda: several(ours.play, rounds), lambda: several(bare.play, rounds), pairs + 1)
        same = Pairs(found.ours[:-1], found.other[1:])  # of the same rounds: cohorts hold more or fewer examples
        return each(same, rounds)


def several(play: Callable[[], None], rounds: int) -> None:
    """Plays ``rounds`` rounds."""
    for _ in range(rounds):
        play()


def each(found: Pairs, rounds: int) -> Pairs:
    """The cost of one round, from measurements of ``rounds`` at a time."""
    return Pairs(tuple(one / rounds for one in found.ours), tuple(one / rounds for one in found.other))


def ratio_row(name: str, found: Pairs, aim: float | None, claim: bool) -> Iterator[Row]:
    """The ratio and its parts. ``claim``: whether this run is long enough to say that the aim is met."""
    ratio = found.ratio
    yield Row(
        name=name,
        value=ratio.median,
        unit="ratio",
        ratio=ratio.median,
        aim=aim,
        met=None if aim is None or not claim else ratio.met(aim),
    )
    yield from quartiles(name, ratio, "ratio")
    cost = name.removesuffix("_vs_bare") + "_round_cpu_s"
    yield Row(name=cost, value=found.ours_median, unit="CPU s", limit=found.other_median, ratio=ratio.median)


def quartiles(name: str, spread: Spread, unit: str) -> Iterator[Row]:
    """Two rows: the quartiles."""
    yield Row(name=f"{name}_q1", value=spread.low, unit=unit)
    yield Row(name=f"{name}_q3", value=spread.high, unit=unit)


def untrained(parameters: int) -> tuple[Any, Tensors]:
    """A learner that returns a prepared update of so many parameters, and its first model."""
    delta = np.full(parameters, 0.001, np.float32)

    @cache
    def ready(examples: int) -> Update:
        return Update({"w": delta}, examples, work=Work(steps=6, steps_planned=6))

    def learner(model: Tensors, data: Any, task: Task) -> Update:
        return ready(len(data.y))

    return learner, {"w": np.zeros(parameters, np.float32)}


def engine_ms(parameters: int, clients: Clients, select: int, rounds: int) -> Spread:
    """CPU milliseconds per client of rounds without training."""
    learner, model = untrained(parameters)
    with Played(learner, clients, select, init=model) as ours:
        ours.play()
        return Spread.of([1000 * cost_s(ours.play) / select for _ in counted("rounds", range(rounds))])


def quantized(clients: Clients, select: int, pairs: int) -> Pairs:
    """CPU seconds of rounds without training: secure and only quantized, and plain, in turn."""
    learner, model = untrained(QUANTIZED)
    with (
        Played(learner, clients, select, init=model, quantized=True) as ours,
        Played(learner, clients, select, init=model) as plain,
    ):
        ours.play()
        plain.play()
        return interleaved(ours.play, plain.play, pairs)


def speedup(learner: Learner, clients: Clients, select: int, pairs: int, rounds: int = 1) -> Pairs:
    """Wall seconds of ``rounds`` of the serial engine and of two workers in turn. SystemExit if their bits differ."""
    with (
        Played(learner, clients, select) as serial,
        Played(learner, clients, select, engine="processes", workers=2) as two,
    ):
        clock = time.perf_counter
        found = interleaved(lambda: several(serial.play, rounds), lambda: several(two.play, rounds), pairs, clock)
        if any(array.tobytes() != two.model()[name].tobytes() for name, array in serial.model().items()):
            raise SystemExit("two workers give other bits: wrong results are not reported")
        return each(found, rounds)


def ceiling(clients: Clients, select: int, pairs: int, rounds: int = 1) -> Spread:
    """Speedup of two independent processes over one on this machine: serial engines, one alone and two at once."""
    with Played(mnist_mlp_200(), clients, select) as serial:
        several(serial.play, 4)  # the check for state has ended then: two processes cannot share its answers

        def both() -> None:
            other = os.fork()
            if not other:
                try:
                    several(serial.play, rounds)
                finally:
                    os._exit(0)
            several(serial.play, rounds)
            os.waitpid(other, 0)

        found = interleaved(lambda: several(serial.play, rounds), both, pairs, time.perf_counter)
        return Spread.of([2 * alone / two for alone, two in zip(found.ours, found.other, strict=True)])


def child(call: str) -> float:
    """The number that ``call``, a function of this module, prints in a fresh interpreter."""
    source = f"from benchmarks import simulation; simulation.{call}"
    output = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output.splitlines()[-1])


def start() -> None:
    """In a fresh interpreter: plays until the first client trains."""

    class First:
        def __init__(self) -> None:
            self.initial = mnist_mlp_200().initial

        def train(self, *_: Any, **__: Any) -> Update:
            print(time.time(), flush=True)
            raise SystemExit

    torch.set_num_threads(1)
    with Played(First(), clients_of(), 100) as ours:
        ours.play()


def start_s() -> float:
    """Seconds from starting an interpreter until a client trains in it."""
    began = time.time()
    return child("start()") - began


def million(rounds: int) -> None:
    """In a fresh interpreter: plays rounds of 100 of a million clients and prints its peak memory in bytes."""
    from simulation.clients.holdings import ArrayPool, Shares
    from simulation.clients.naming import Numbered

    torch.set_num_threads(1)
    examples = fashion_mnist().train
    pool = ArrayPool(examples.x, examples.y, None)
    positions = np.random.default_rng(0).integers(0, len(pool), 10 * MILLION)
    offsets = np.arange(MILLION + 1, dtype=np.int64) * 10
    clients = Clients(Numbered(MILLION), Shares(pool, positions, offsets, None, None))
    with Played(mnist_mlp_200(), clients, 100) as ours:
        for _ in range(rounds):
            ours.play()
    print(peak_bytes())


def peak_bytes() -> int:
    """Peak memory of this process, shared pages included. (``ru_maxrss`` would include its parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def flower(clients: Clients, select: int, pairs: int) -> tuple[Pairs, Pairs]:
    """Rounds of ours and of Flower's simulation in turn: (CPU seconds of the process trees, wall seconds)."""
    learner = mnist_mlp_200()
    with Played(learner, clients, select) as ours, Flower(select) as theirs:
        ours.play()
        theirs.play()
        cpu: tuple[list[float], list[float]] = ([], [])
        wall: tuple[list[float], list[float]] = ([], [])
        calls: tuple[tuple[Callable[[], None], Callable[[], float]], ...] = (
            (ours.play, time.process_time),
            (theirs.play, theirs.cpu_s),
        )
        for index in counted("pairs", range(pairs)):
            for who in (0, 1) if index % 2 == 0 else (1, 0):
                play, clock = calls[who]
                before, began = clock(), time.perf_counter()
                play()
                wall[who].append(time.perf_counter() - began)
                cpu[who].append(clock() - before)
        return tuple(Pairs(tuple(mine), tuple(other)) for mine, other in (cpu, wall))  # type: ignore[return-value]


def pfl_research(clients: Clients, select: int, pairs: int, rounds: int, steps: str) -> Pairs:
    """CPU seconds of a round of ours and of pfl-research's, ``rounds`` at a time in turn, in this process."""
    with Played(mnist_mlp_200(), clients, select, steps=steps) as ours:
        theirs = Pfl(MnistMlp200, clients, select, BATCH, LEARNING_RATE)
        found = interleaved(lambda: several(ours.play, rounds), lambda: several(theirs.play, rounds), pairs)
        return each(found, rounds)


def peer_rows(name: str, found: Pairs, unit: str, aim: float | None = None) -> Iterator[Row]:
    """Ours beside a peer's. ``aim``: of the ratio."""
    ratio = found.ratio
    met = None if aim is None else ratio.met(aim)
    yield Row(
        name=name, value=found.ours_median, unit=unit, peer=found.other_median, ratio=ratio.median, aim=aim, met=met
    )
    yield from quartiles(name, ratio, "ratio")


def measure(quick: bool) -> Iterator[Row]:
    """The rows, one after the other."""
    torch.set_num_threads(1)
    select, few, pairs, rounds = (20, 2, 7, 1) if quick else (100, 100, 21, 3)
    clients = clients_of()
    yield from ratio_row(
        "mlp_vs_bare", beside_bare(mnist_mlp_200(), MnistMlp200, clients, select, pairs, rounds), MLP_AIM, not quick
    )
    exact = beside_bare(mnist_mlp_200(), MnistMlp200, clients, select, pairs, rounds, "exact")
    yield from ratio_row("mlp_exact_vs_bare", exact, None, False)
    for name, parameters, aim in (("engine_ms_per_client", TINY, 0.3), ("engine_199k_ms_per_client", MLP, None)):
        spent = engine_ms(parameters, clients, select, 9 if quick else 21)
        met = None if aim is None or quick else spent.met(aim)
        yield Row(name=name, value=spent.median, unit="ms", aim=aim, met=met)
        yield from quartiles(name, spent, "ms")
    both = quantized(clients, 20 if quick else 300, 5 if quick else 15)
    yield Row(name="quantized_vs_plain", value=both.ratio.median, unit="ratio", ratio=both.ratio.median)
    yield from quartiles("quantized_vs_plain", both.ratio, "ratio")
    yield Row(name="quantized_round_cpu_s", value=both.ours_median, unit="CPU s", limit=both.other_median)
    faster = speedup(mnist_mlp_200(), clients, select, pairs, rounds)
    yield from speedup_rows("processes_2_speedup", faster.ratio, MLP_SPEEDUP_AIM, not quick)
    most = ceiling(clients, select, 3 if quick else 11, rounds)
    yield Row(name="two_processes_ceiling", value=most.median, unit="ratio")
    yield from quartiles("two_processes_ceiling", most, "ratio")
    yield Row(name="processes_2_round_s", value=faster.other_median, unit="s", limit=faster.ours_median)
    began = Spread.of([start_s() for _ in counted("starts", range(2 if quick else 7))])
    yield Row(name="start_s", value=began.median, unit="s", aim=5.0, met=began.met(5.0))
    yield from quartiles("start_s", began, "s")
    rounds_of_million, times = (1, 1) if quick else (5, 3)
    held = Spread.of([child(f"million({rounds_of_million})") / GIB for _ in range(times)])
    yield Row(name="million_registered_gib", value=held.median, unit="GiB", aim=1.0, met=held.met(1.0))
    yield from ratio_row(
        "cnn_vs_bare", beside_bare(mnist_cnn(), MnistCnn, clients, few, 3 if quick else 7), CNN_AIM, not quick
    )
    slower = speedup(mnist_cnn(), clients, few, 3 if quick else 7)
    yield from speedup_rows("cnn_processes_2_speedup", slower.ratio, CNN_SPEEDUP_AIM, not quick)
    yield from peers(clients, quick)


def speedup_rows(name: str, ratio: Spread, aim: float, claim: bool) -> Iterator[Row]:
    """A speedup, which should be ``aim`` or more."""
    met = ratio.met(aim, at_least=True) if claim else None
    yield Row(name=name, value=ratio.median, unit="ratio", ratio=ratio.median, aim=aim, met=met)
    yield from quartiles(name, ratio, "ratio")


def peers(clients: Clients, quick: bool) -> Iterator[Row]:
    """Other simulators; rows without numbers for those that are not installed, and with ``quick``."""
    if quick or any(importlib.util.find_spec(name) is None for name in ("flwr", "ray", "psutil")):
        yield Row(name="mlp_vs_flower", value=None, unit="CPU s")
    else:
        cpu, wall = flower(clients, 100, 7)
        for name, found, unit in (("mlp_vs_flower", cpu, "CPU s"), ("mlp_vs_flower_wall", wall, "s")):
            yield from peer_rows(name, found, unit)
    if quick or any(importlib.util.find_spec(name) is None for name in ("pfl", "multiprocess")):
        yield Row(name="mlp_vs_pfl_research", value=None, unit="CPU s")
    else:
        for name, steps, aim in (("mlp", "fast", PFL_AIM), ("mlp_exact", "exact", None)):
            yield from peer_rows(f"{name}_vs_pfl_research", pfl_research(clients, 100, 15, 3, steps), "CPU s", aim)


if __name__ == "__main__":
    main("simulation", measure)
