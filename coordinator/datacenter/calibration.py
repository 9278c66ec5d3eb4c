"""Measures what an all-reduce costs between two processes of this machine over Gloo, and how well the planner predicts.

A line alpha + beta n is fitted to sizes in steps of 4, and held against the sizes between them, which it has not seen;
then a step of a small model is predicted from it and measured. Noise is one-sided, since a scheduler's time slice only
ever adds: each time is the mean from the 10th to the 50th percentile of repetitions. Weights of 1/t make the fit one of
relative errors. On a busy machine the errors are those of its other work.

``python -m coordinator.datacenter.calibration RANK FILE SIZES`` is one of the two processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

from client_sdk.terminal import fail
from coordinator.datacenter.all_reduce_costs import Line, Link

SIZES = tuple(2**power for power in range(10, 27))
"""Bytes, 1 KiB to 64 MiB: every second one is fitted, the others are predicted."""
REPEATS, BATCH = 20, 64
LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was found."""

    alpha_s: float
    beta_s: float
    """Seconds for each byte."""
    fit_error: float
    """The largest relative error at the sizes that were fitted."""
    error: float
    """The largest relative error at the sizes between."""
    flops: float
    """What one process computes in a second while the other computes too."""
    step_s: float
    predicted_step_s: float

    @property
    def step_error(self) -> float:
        return abs(self.predicted_step_s / self.step_s - 1)

    @property
    def link(self) -> Link:
        """Between two ranks recursive doubling is one message each way, alpha + n beta."""
        return Link(self.alpha_s, self.beta_s)


def typical(times: Sequence[float]) -> float:
    """The mean of the times from the 10th to the 50th percentile."""
    ordered = sorted(times)
    kept = ordered[len(ordered) // 10 : max(1, (len(ordered) + 1) // 2)]
    return sum(kept) / len(kept)


def fitted(seconds: Mapping[int, float]) -> Line:
    """The line with the least sum of squared relative errors, neither part below 0.

    With x = 1/t and y = n/t it minimizes the sum of (alpha x + beta y - 1)^2.
    """
    xs, ys = [1 / t for t in seconds.values()], [n / t for n, t in seconds.items()]
    x, y = sum(xs), sum(ys)
    xx, xy, yy = sum(a * a for a in xs), sum(a * b for a, b in zip(xs, ys, strict=True)), sum(b * b for b in ys)
    if (rest := xx * yy - xy * xy) <= 1e-12 * xx * yy:
        raise ValueError("a line needs times of two sizes at least")
    alpha, beta = (x * yy - y * xy) / rest, (y * xx - x * xy) / rest
    if alpha < 0:
        return Line(0.0, y / yy)
    return Line(alpha, beta) if beta >= 0 else Line(x / xx, 0.0)


def largest_error(line: Line, seconds: Mapping[int, float]) -> float:
    return max(abs(line.seconds(n) / t - 1) for n, t in seconds.items())


def calibrate(sizes: Sequence[int] = SIZES) -> Calibration:
    """Start two processes, and hold the planner's prediction against them."""
    from coordinator.child_processes import SupervisedChild, SupervisedChildren
    from coordinator.datacenter.job import interface_towards
    from coordinator.datacenter.planning import Machines, Model, Plan, predict

    environment = {"GLOO_SOCKET_IFNAME": interface_towards("127.0.0.1:1") or "lo", **os.environ}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, SupervisedChildren(0.0) as children:
        command = [sys.executable, "-m", "coordinator.datacenter.calibration"]
        rest = [str(Path(folder) / "meet"), ",".join(map(str, sizes))]
        other = children.add(SupervisedChild([*command, "1", *rest], environment=environment, output=DEVNULL))
        first = children.add(SupervisedChild([*command, "0", *rest], environment=environment))
        until = time.monotonic() + LIMIT_S
        code = first.follow(lines.append, kill_when=lambda: time.monotonic() > until or bool(other.poll()))
    if code or not lines:
        fail("The two processes that measure did not end: is torch installed, with Gloo?")
    found = json.loads(lines[-1])
    seconds = {int(size): t for size, t in found["all_reduce"].items()}
    seen = dict(list(seconds.items())[::2])
    line = fitted(seen)
    flops = 6 * found["params"] * BATCH / found["compute_s"]
    model = Model(params=found["params"], global_batch=2 * BATCH, precision="float32", optimizer="sgd")
    pair = Machines(devices=2, per_machine=2, link=Link(*line), flops=flops, overlap=0.0)
    return Calibration(
        alpha_s=line.fixed_s,
        beta_s=line.per_byte_s,
        fit_error=largest_error(line, seen),
        error=largest_error(line, {n: t for n, t in seconds.items() if n not in seen}),
        flops=flops,
        step_s=found["step_s"],
        predicted_step_s=predict(model, pair, Plan(data=2)).step_s,
    )


def main(rank: int, meet: str, sizes: list[int]) -> None:
    """One process: prints the times of all-reduces by size, of computing alone, and of a whole step."""
    import torch
    import torch.distributed as dist
    from torch import nn

    dist.init_process_group("gloo", store=dist.FileStore(meet, 2), rank=rank, world_size=2)

    def timed(act: Callable[[], object]) -> float:
        dist.barrier()
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    buffers = {size: torch.zeros(size // 4) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(REPEATS + 1):
        for size, buffer in buffers.items():
            took = timed(partial(dist.all_reduce, buffer))
            times[size] += [took] if turn else []  # the first one also connects

    width = max(8, int((max(sizes) / 48) ** 0.5))  # three layers, whose gradients have a quarter of the largest size
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
    gradients = torch.zeros(3 * width * width)
    for parameter, gradient in zip(model.parameters(), gradients.split(width * width), strict=True):
        parameter.grad = gradient.view(width, width)
    x = torch.rand(BATCH, width, requires_grad=True)

    def compute() -> None:
        model(x).square().mean().backward()

    def step() -> None:
        compute()
        dist.all_reduce(gradients)

    alone, whole = [], []
    for turn in range(REPEATS + 1):
        pair = timed(compute), timed(step)
        if turn:
            alone.append(pair[0])
            whole.append(pair[1])
    if rank == 0:
        found = {"all_reduce": {size: typical(took) for size, took in times.items()}, "params": gradients.numel()}
        print(json.dumps({**found, "compute_s": typical(alone), "step_s": typical(whole)}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    from client_sdk.commands.long_running import exit_process
    from coordinator.child_processes import end_with_parent

    end_with_parent(0.0)
    main(int(sys.argv[1]), sys.argv[2], [int(size) for size in sys.argv[3].split(",")])
    exit_process(0)
