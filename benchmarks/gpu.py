"""Measures datacenter training on one GPU beside a bare torch loop: seconds, samples and memory of each way to train.

``python -m benchmarks.gpu [--tiny] [--cpu] [--minutes 8] [--out FILE]``. It needs no network and no data: images and
tokens are drawn. It prints one table, writes the same numbers as JSON, and begins nothing new after three quarters of
its minutes. ``--tiny`` runs the same on small models, on a CPU unless there is a GPU, for a test.

Each row trains the same model from the same weights on the same data. *bare* is a plain loop as in PyTorch's
tutorials: autocast where bf16 is said, SGD with momentum, no value read back. The other rows are
``coordinator.datacenter.training.train`` in a process group of one rank (NCCL on a GPU, Gloo on a CPU), so that
DistributedDataParallel and ``fully_shard`` do all that they do between ranks. Rows take turns, three times each; the
median counts. Memory is ``torch.cuda.max_memory_allocated`` on a GPU. On a CPU it is what the first forward pass stores
for the backward pass, where ours reports it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from client_sdk.learning import Learner
from client_sdk.learning.group import Group
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.training import train

OUT = Path("build") / "gpu.json"
TURNS = 3


class Sizes(NamedTuple):
    """Of one model and its training. ``steps``: of one turn, in which a GPU takes a second or more."""

    width: int
    layers: int
    length: int
    """Tokens of a sequence, or pixels of an image's side."""
    batch: int
    steps: int


LARGE = {"cnn": Sizes(128, 8, 64, 128, 20), "transformer": Sizes(1024, 12, 512, 16, 10)}
TINY = {"cnn": Sizes(8, 2, 8, 8, 3), "transformer": Sizes(16, 2, 8, 8, 3)}
VOCABULARY, CLASSES, HEAD = 8192, 10, 64
"""Tokens, classes of images, and the width of an attention head."""

WAYS: dict[str, dict[str, Any]] = {
    "bare": {},
    "bare, bf16": {"precision": "bfloat16"},
    "DDP": {},
    "DDP, bf16": {"precision": "bfloat16"},
    "DDP, bf16, recompute": {"precision": "bfloat16", "recompute": True},
    "FSDP2": {"shard": "full"},
    "FSDP2, bf16": {"shard": "full", "precision": "bfloat16"},
    "FSDP2, bf16, recompute": {"shard": "full", "precision": "bfloat16", "recompute": True},
}
"""Row -> fields of the recipe."""


class OneOfMany(Group):
    """A group of one rank that trains as one of several would: with a process group behind it."""

    @property
    def alone(self) -> bool:
        return False


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(min(8, width), width)
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = images + self.second(torch.relu(self.first(self.norm(images))))
        return out


class Cnn(nn.Module):
    """Images [n, 3, side, side] -> logits [n, CLASSES]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, sizes.width, 3, padding=1)
        self.blocks = nn.ModuleList(ConvBlock(sizes.width) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.first(images)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden.mean((2, 3)))
        return logits


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.inward(self.norm(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = hidden + self.down(nn.functional.gelu(self.up(self.after(hidden))))
        return out


class Transformer(nn.Module):
    """Tokens [n, length] -> logits of the next [n, VOCABULARY, length]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, sizes.width)
        self.places = nn.Parameter(torch.zeros(sizes.length, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits.transpose(1, 2)


def learner_of(name: str, sizes: Sizes) -> Learner:
    kind = Cnn if name == "cnn" else Transformer
    return Learner(model=lambda: kind(sizes), loss=nn.functional.cross_entropy, blocks=("blocks.*",))


def data_of(name: str, sizes: Sizes) -> tuple[Any, Any]:
    """Four batches."""
    generator, count = torch.Generator().manual_seed(0), 4 * sizes.batch
    if name == "cnn":
        images = torch.rand((count, 3, sizes.length, sizes.length), generator=generator)
        return images.numpy(), torch.randint(0, CLASSES, (count,), generator=generator).numpy()
    tokens = torch.randint(0, VOCABULARY, (count, sizes.length + 1), generator=generator)
    return tokens[:, :-1].numpy().copy(), tokens[:, 1:].numpy().copy()


@contextmanager
def group_of_one(device: torch.device) -> Iterator[Group]:
    """A process group with this process alone in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if device.type == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if platform.system() == "Linux" else "lo0")
    store = dist.TCPStore("127.0.0.1", port, 1, is_master=True, timeout=timedelta(seconds=60))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timedelta(seconds=300))
    try:
        yield OneOfMany(device=device)
    finally:
        dist.destroy_process_group()


Measured = dict[str, float | None]


def ours(way: str, learner: Learner, first: Any, data: Any, sizes: Sizes, steps: int, group: Group) -> Measured:
    options: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.01, "unused_parameters": True, **WAYS[way]}
    recipe = Recipe(steps=steps, batch_size=sizes.batch, **options)
    _, report = train(learner, first, data, recipe, group=group)
    peak = report.peak_bytes if report.peak_bytes is not None else report.saved_bytes
    return {"step_s": report.seconds / steps, "bytes": float(peak), "loss": report.loss}


def bare(way: str, learner: Learner, first: Any, data: Any, sizes: Sizes, steps: int, group: Group) -> Measured:
    """What a reader of PyTorch's tutorials writes."""
    device, batch = group.device, sizes.batch
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    module = learner.load(first).to(device).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    x, y = (torch.from_numpy(part) for part in data)
    half = WAYS[way].get("precision") == "bfloat16"
    began = time.perf_counter()
    for step in range(steps):
        start = step * batch % len(x)
        inputs, targets = x[start : start + batch].to(device), y[start : start + batch].to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
            loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
    if cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    peak = float(torch.cuda.max_memory_allocated(device)) if cuda else None
    return {"step_s": seconds / steps, "bytes": peak, "loss": float(loss.detach())}


def measured(name: str, sizes: Sizes, group: Group, late: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """The rows of one model; a row that fails has the reason in place of numbers, and the others go on."""
    learner, data = learner_of(name, sizes), data_of(name, sizes)
    first = learner.initial(0)
    found: dict[str, list[Measured]] = {}
    failed: dict[str, str] = {}
    for turn in range(TURNS + 1):  # the first one warms up
        for way in [key for key in WAYS if key not in failed]:
            if late():
                break
            call = bare if way.startswith("bare") else ours
            try:
                one = call(way, learner, first, data, sizes, 2 if turn == 0 else sizes.steps, group)
            except Exception as error:  # noqa: BLE001  (one way that this GPU cannot do must not lose the others)
                failed[way] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                continue
            finally:
                if group.device.type == "cuda":
                    torch.cuda.empty_cache()
            if turn:
                found.setdefault(way, []).append(one)
    for way in WAYS:
        row: dict[str, Any] = {"model": name, "way": way, "batch": sizes.batch, "turns": len(found.get(way, ()))}
        if way in failed or way not in found:
            yield {**row, "failed": failed.get(way, "no time was left")}
            continue
        step_s = statistics.median(one["step_s"] or 0.0 for one in found[way])
        plain = found.get("bare, bf16" if "bf16" in way else "bare", [])
        ratio = step_s / statistics.median(one["step_s"] or 0.0 for one in plain) if plain else None
        last = found[way][-1]
        numbers = {"step_s": step_s, "samples_per_s": sizes.batch / step_s, "ratio": ratio}
        yield {**row, **numbers, "bytes": last["bytes"], "loss": last["loss"]}


def line_of(row: dict[str, Any]) -> str:
    begin = f"{row['model']:<12}{row['way']:<26}"
    if "failed" in row:
        return f"{begin}failed: {row['failed']}"
    memory = "-" if row["bytes"] is None else f"{row['bytes'] / 2**20:,.1f}"
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    return f"{begin}{row['step_s']:>11.5f}{row['samples_per_s']:>12,.1f}{memory:>12}{ratio:>10}{row['loss']:>10.4f}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table and write it. Returns 1 where a row failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Datacenter training on one GPU.")
    parser.add_argument("--tiny", action="store_true", help="small models, seconds in all")
    parser.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    parser.add_argument("--minutes", type=float, default=8.0, help="the most that it takes (default: 8)")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where to write the numbers (default: {OUT})")
    options = parser.parse_args(arguments)
    ends_at = time.monotonic() + 0.75 * 60 * options.minutes
    gpu = torch.cuda.is_available() and not options.cpu
    if not gpu and not options.tiny:
        parser.error("there is no GPU that torch can use: --tiny runs the same on a CPU")
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    about = {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "memory": "max_memory_allocated" if gpu else "stored for the backward pass",
    }
    print(f"{about['device']}, torch {about['torch']}, Python {about['python']}; memory: {about['memory']}")
    print(
        f"{'model':<12}{'way':<26}{'s a step':>11}{'samples/s':>12}{'MiB':>12}{'to bare':>10}{'loss':>10}", flush=True
    )
    rows: list[dict[str, Any]] = []
    models = TINY if options.tiny else LARGE
    with group_of_one(device) as group:
        for number, (name, sizes) in enumerate(models.items(), 1):
            share = time.monotonic() + (ends_at - time.monotonic()) / (len(models) - number + 1)
            for row in measured(name, sizes, group, lambda share=share: time.monotonic() > share):  # type: ignore[misc]
                rows.append(row)
                print(line_of(row), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", "utf-8")
    print(f"Written to {options.out}.")
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
