"""Measures datacenter training beside a bare torchrun script, the cost of exchanging gradients, and the restart after a
killed rank.

``python -m benchmarks.datacenter [--quick] [--json]``. Two processes on the CPU over Gloo; with GPUs also on up to two
of them over NCCL (rows ``*_gpu``; null without GPU). Starting takes most of the time.

- ``ddp_vs_bare_torchrun``: samples in a second of ``coordinator.datacenter.training.train`` over those of a plain DDP
  loop, in turn in the same processes, for a CNN (0.8 M parameters), a small transformer (0.9 M) and a perceptron (0.05
  M, where what is done once a step weighs most). Ours has the options of a run's rounds. Turns last seconds, because
  other work of a machine comes in fractions of one; ``_q1`` and ``_q3`` are the quartiles of the ratio.
- ``cpu_STRATEGY``: CPU seconds of a step, of both processes together, of a strategy of a plan's section
  ``[datacenter]``; ``peer`` is a bare torch script of the same strategy in the same processes (see
  ``_datacenter_strategies``; where torch has none, plain DDP, and there is no aim).
- ``allreduce_share``: the part of a step of the bare loop that is saved when gradients are not exchanged.
- ``resume_s``: seconds from SIGKILL of one of two ranks until the group trains again from its last saved step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import _datacenter_ranks as ranks
from benchmarks._progress import counted
from benchmarks.harness import Pairs, Row, Spread, main
from coordinator.datacenter.job import launch
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec

AIM = 0.98
SIZES = {"cnn": (128, 80), "transformer": (64, 24), "mlp": (256, 600)}
"""Global batch and steps of a turn on the CPU."""
QUICK_STEPS = 12
PAIRS, QUICK_PAIRS = 13, 5
GPU_SIZES = {"cnn": (2048, 200), "transformer": (1024, 100), "mlp": (2048, 400)}


def measured(module: str, nproc: int, *arguments: object) -> list[dict[str, Any]]:
    """Starts a group of ranks and returns the lines of JSON that it prints. SystemExit if it fails."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", str(nproc), "-m", f"benchmarks.{module}", *map(str, arguments)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=1800)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command[8:])} failed: {done.stderr[-2000:]}")
    return [json.loads(line) for line in lines]


def rows_of(name: str, device: str, nproc: int, sizes: tuple[int, int], pairs: int) -> Iterator[Row]:
    ending = ("" if name == "cnn" else f"_{name}") + ("_gpu" if device == "cuda" else "")
    if nproc == 0:
        yield Row(name=f"ddp_vs_bare_torchrun{ending}", value=None, unit="ratio", aim=AIM)
        yield Row(name=f"ddp_vs_bare_torchrun{ending}_q1", value=None, unit="ratio")
        yield Row(name=f"ddp_vs_bare_torchrun{ending}_q3", value=None, unit="ratio")
        yield Row(name=f"samples_per_s{ending}", value=None, unit="1/s")
        yield Row(name=f"allreduce_share{ending}", value=None, unit="share")
        return
    found = measured("_datacenter_ranks", nproc, name, device, *sizes, pairs)[-1]
    both = Pairs(tuple(found["ours"]), tuple(found["bare"]))
    yield Row(
        name=f"ddp_vs_bare_torchrun{ending}",
        value=both.ratio.median,
        unit="ratio",
        ratio=both.ratio.median,
        aim=AIM,
        met=both.ratio.met(AIM, at_least=True),
    )
    yield Row(name=f"ddp_vs_bare_torchrun{ending}_q1", value=both.ratio.low, unit="ratio")
    yield Row(name=f"ddp_vs_bare_torchrun{ending}_q3", value=both.ratio.high, unit="ratio")
    ours, bare = both.ours_median, both.other_median
    yield Row(name=f"samples_per_s{ending}", value=ours, unit="1/s", peer=bare, ratio=both.ratio.median)
    shares = [1 - with_it / without for with_it, without in zip(found["bare"], found["alone"], strict=True)]
    share = Spread.of(shares).median if found["world"] > 1 else None
    yield Row(name=f"allreduce_share{ending}", value=share, unit="share")


def strategies(batch: int, steps: int, pairs: int) -> Iterator[Row]:
    """Of few pairs nothing is claimed."""
    for found in measured("_datacenter_strategies", 2, batch, steps, pairs):
        both = Pairs(tuple(found["ours"]), tuple(found["bare"]))
        met = None if found["aim"] is None or pairs < QUICK_PAIRS else both.ratio.met(found["aim"])
        yield Row(
            name=f"cpu_{found['name']}",
            value=both.ours_median / steps,
            unit="s",
            peer=both.other_median / steps,
            ratio=both.ratio.median,
            aim=found["aim"],
            met=met,
        )


def resume_s(folder: Path) -> float:
    """Kills rank 1 once; seconds until the group trains again. SystemExit if it did not resume."""
    x, y = ranks.data_of("cnn")
    np.savez(folder / "data.npz", x=x, y=y)
    spec = JobSpec(
        learner="benchmarks._datacenter_ranks:cnn",
        data=str(folder / "data.npz"),
        recipe=Recipe(steps=20, batch_size=128),
        checkpoints=folder / "steps",
        checkpoint_every=5,
        nproc=2,
        device="cpu",
    )
    moments: dict[str, float] = {}

    def on_message(message: dict[str, Any]) -> None:
        if message["event"] == "saved" and message["step"] == 10 and "killed" not in moments:
            victim = next(p for p in psutil.Process().children(recursive=True) if is_rank(p, "1"))
            moments["killed"] = time.perf_counter()
            victim.kill()
        if message["event"] == "started" and "killed" in moments:
            moments["back"] = time.perf_counter()

    result = launch(spec, on_message)
    if result.restarts != 1 or result.report["began"] not in (10, 15):
        raise SystemExit(f"the killed job did not resume at its last saved step: {result}")
    return moments["back"] - moments["killed"]


def is_rank(process: psutil.Process, rank: str) -> bool:
    try:
        return process.environ().get("RANK") == rank
    except psutil.Error:
        return False


def measure(quick: bool) -> Iterator[Row]:
    """The rows: CPU, GPU, and the restart after a kill."""
    import torch

    gpus = min(2, torch.cuda.device_count())
    pairs = QUICK_PAIRS if quick else PAIRS
    for name, (batch, steps) in SIZES.items():
        yield from rows_of(name, "cpu", 2, (batch, min(steps, QUICK_STEPS) if quick else steps), pairs)
    for name, sizes in GPU_SIZES.items():
        yield from rows_of(name, "cuda", gpus, sizes, pairs)
    yield from strategies(*((16, 2, 1) if quick else (64, 16, 7)))
    times = []
    for _ in counted("restarts", range(1 if quick else 5)):
        with tempfile.TemporaryDirectory() as folder:
            times.append(resume_s(Path(folder)))
    yield Row(name="resume_s", value=statistics.median(times), unit="s")


if __name__ == "__main__":
    main("datacenter", measure)
