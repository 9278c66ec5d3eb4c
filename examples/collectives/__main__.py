"""Prints what each all-reduce sends, or, under torchrun, plays each and compares it with the library's.

python -m examples.collectives --ranks 6 --elements 1000
torchrun --nproc-per-node 4 -m examples.collectives --elements 1000000
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from examples.collectives.counts import everything
from examples.collectives.transport import Torch, available, counted


def count(ranks: int, elements: int) -> None:
    """A line for each way, counted over threads."""
    print(f"{'':<34}messages   bytes/n  rounds    most bytes/n of one rank")
    inputs, n = [np.full(elements, rank) for rank in range(ranks)], 8 * elements
    for name, (way, _) in everything(ranks).items():
        _, done = counted(way, inputs)
        messages, sent = sum(rank.messages for rank in done), sum(rank.bytes for rank in done) / n
        rounds, most = max(rank.clock for rank in done), max(rank.bytes for rank in done) / n
        print(f"{name:<34}{messages:>8}{sent:>10.2f}{rounds:>8.0f}{most:>12.2f}")


def play(backend: str, elements: int) -> None:
    """A line for each way, played by the ranks that torchrun has started."""
    dist.init_process_group(available(backend), timeout=timedelta(seconds=60))
    transport = Torch()
    mine = np.random.default_rng(transport.rank).random(elements)
    expected = torch.from_numpy(mine.copy())
    dist.all_reduce(expected)
    for name, (way, _) in everything(transport.size).items():
        dist.barrier()
        start = time.perf_counter()
        difference = np.abs(way(transport, mine) / expected.numpy() - 1).max()
        if transport.rank == 0:
            print(f"{name:<34}{1e3 * (time.perf_counter() - start):>8.1f} ms, {difference:.0e} from dist.all_reduce")
    transport.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.collectives")
    parser.add_argument("--ranks", type=int, default=6, help="without torchrun: threads of this process")
    parser.add_argument("--elements", type=int, default=1000)
    parser.add_argument("--backend", default="gloo", help="under torchrun; also mpi or ccl where torch has them")
    options = parser.parse_args()
    if "WORLD_SIZE" not in os.environ:
        count(options.ranks, options.elements)
    else:
        try:
            play(options.backend, options.elements)
        except ValueError as error:
            sys.exit(str(error) if os.environ["RANK"] == "0" else 1)
