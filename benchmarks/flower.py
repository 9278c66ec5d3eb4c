"""Measures three rounds of one Flower app on Quorate beside Flower itself: its simulation, and its deployment.

``python -m benchmarks.flower [--quick] [--json]``. The app (``benchmarks/flower_app``) is FedAvg of 50,240 parameters
with numpy and little training, so what is measured is what surrounds a ClientApp. A sample is a whole command, from its
start to its end, with the CPU of everything that it started; both sides train the same model, and the last loss is
compared before a ratio is reported. The order of the two alternates from pair to pair.

    flower_4_cpu_ratio         CPU seconds of ``quorate flower run --simulation 4`` over Flower's simulation of 4 nodes
                               with its default backend (Ray, one core for each client)
    flower_100_cpu_ratio       the same with 100 nodes
    flower_deployed_cpu_ratio  a coordinator, 4 devices and the run, over a SuperLink, 4 SuperNodes and ``flwr run``;
                               all of them start and end within the sample
    ..._s                      wall seconds of ours; ``peer``: of Flower's
    flower_per_message_ms      CPU milliseconds for each message of ours that 100 nodes need more than 4 do: without
                               what the start of the processes costs
    load                       the machine's load average over a minute, at the end

``--quick``: one pair with 4 nodes, no deployment; ``met`` is null.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import _flower_runs as runs
from benchmarks.harness import Pairs, Row, main

PAIRS = 3
ROUNDS = 3
AIM = 0.5
SAME = 1e-5
"""Relative difference of the last losses, at most."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Samples of ours and of Flower's, in pairs."""

    cpu: Pairs
    wall: Pairs


Measure = Callable[[Path], runs.Sample]


def beside(ours: Measure, theirs: Measure, pairs: int) -> Beside:
    """Measure both in turn. SystemExit where they have not trained the same model."""
    mine: list[runs.Sample] = []
    other: list[runs.Sample] = []
    for pair in range(pairs):
        calls = [(mine, ours), (other, theirs)]
        for samples, call in calls if pair % 2 == 0 else reversed(calls):
            with TemporaryDirectory(prefix="quorate-benchmark-") as folder:
                samples.append(call(Path(folder)))
        if not abs(mine[-1].loss - other[-1].loss) <= SAME * abs(other[-1].loss):
            raise SystemExit(f"the losses are {mine[-1].loss} and {other[-1].loss}: wrong results are not reported")
    return Beside(
        Pairs(tuple(one.cpu_s for one in mine), tuple(one.cpu_s for one in other)),
        Pairs(tuple(one.seconds for one in mine), tuple(one.seconds for one in other)),
    )


def rows_of(name: str, found: Beside, aim: float | None, claim: bool) -> Iterator[Row]:
    """The ratio of CPU seconds with its parts, and the wall seconds."""
    ratio = found.cpu.ratio
    met = ratio.met(aim) if aim is not None and claim else None
    yield Row(name=f"{name}_cpu_ratio", value=ratio.median, unit="ratio", ratio=ratio.median, aim=aim, met=met)
    for what, pairs, unit in (("cpu_s", found.cpu, "CPU s"), ("s", found.wall, "s")):
        peer = pairs.other_median
        yield Row(name=f"{name}_{what}", value=pairs.ours_median, unit=unit, peer=peer, ratio=pairs.ratio.median)


def measure(quick: bool) -> Iterator[Row]:
    """The rows, as they are measured."""
    pairs = 1 if quick else PAIRS
    few = beside(*runs.simulations(4), pairs)
    yield from rows_of("flower_4", few, None, not quick)
    if not quick:
        many = beside(*runs.simulations(100), pairs)
        yield from rows_of("flower_100", many, AIM, True)
        more = (100 - 4) * ROUNDS
        each = 1000 * (many.cpu.ours_median - few.cpu.ours_median) / more
        peer = 1000 * (many.cpu.other_median - few.cpu.other_median) / more
        yield Row(name="flower_per_message_ms", value=each, unit="CPU ms", peer=peer, ratio=each / peer)
        yield from rows_of("flower_deployed", beside(runs.our_deployment, runs.flowers_deployment, pairs), None, True)
    yield Row(name="load", value=os.getloadavg()[0], unit="")


if __name__ == "__main__":
    main("flower", measure)
