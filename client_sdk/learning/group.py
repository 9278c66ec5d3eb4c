"""A group of processes that train one model together: its members, their exchanges, and their common stop.

torchrun starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK. Without torchrun, or with a world of one, there
is no process group and every method is a local call.

Numbers are exchanged by Gloo on CPUs and by NCCL on GPUs; texts and decisions always by Gloo, as bytes. Nothing is
pickled.

::

    LearningError
      NoDevice        a GPU was asked for, and there is none for this rank; or a backend that this torch has not
      RankFailed      another rank failed; the message contains its error
      RanksDiffer     the ranks hold different models or data
      GroupLost       a rank died, hangs or stopped in the middle: the group is unusable; exit the process
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

from client_sdk.learning.errors import LearningError

CPU = torch.device("cpu")
DEFAULT_HANG_S = 300.0
"""Seconds without an answer after which a rank counts as hung. Must exceed the slowest step and the slowest scoring."""

START_S = 120.0
"""Seconds that the ranks have to connect: some may load their programs much slower than others."""

_ANSWER_S = 5.0
"""Seconds in which a store answers where it does at all."""


class NoDevice(LearningError):
    """A GPU was asked for, and there is none for this rank; or a backend that this torch has not."""


class RankFailed(LearningError):
    """Another rank failed, and that rank reports the error. A caller that catches this prints nothing."""


class RanksDiffer(LearningError):
    """The ranks do not hold the same model or the same data, so their gradients cannot be averaged."""


class GroupLost(LearningError):
    """A collective failed: a rank died or hangs. No further collective can work; the launcher starts the group
    again."""


@dataclass(eq=False)
class Group:
    """The ranks that train together, seen from one of them. A world of 1 has no process group behind it."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    store: dist.Store | None = None
    """Keys and values that all ranks see, for waits longer than a collective allows."""
    hang_s: float = DEFAULT_HANG_S
    only: Any = None
    """The process group of these ranks, where they are some of all that began. None: all."""

    @property
    def alone(self) -> bool:
        return self.world == 1

    def go_on_with(self, ranks: list[int]) -> None:
        """Leave out all but ``ranks``, which are numbered as when the group began. All that are left call it; they are
        numbered anew."""
        if len(ranks) == self.world:
            return
        with self.unbroken():
            if len(ranks) > 1:
                limit = timedelta(seconds=self.hang_s)
                self.only = dist.new_group(ranks, limit, use_local_synchronization=True)
            self.rank, self.world = ranks.index(dist.get_rank()), len(ranks)

    def neighbours(self, count: int) -> Group:
        """This rank's group among groups of so many ranks, which divide all. All ranks call it."""
        if count == 1:
            return Group(device=self.device, hang_s=self.hang_s)
        first = self.rank // count * count
        store = None if self.store is None else dist.PrefixStore(f"from {first}", self.store)
        found = Group(self.rank, self.world, self.device, store, self.hang_s)
        found.go_on_with(list(range(first, first + count)))
        return found

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in the order of ranks. All ranks call it."""
        return [part.decode() for part in self.gather_bytes(text.encode())]

    def gather_bytes(self, part: bytes) -> list[bytes]:
        """The bytes of all ranks, in the order of ranks. All ranks call it."""
        if self.alone:
            return [part]
        content = torch.frombuffer(bytearray(part or b" "), dtype=torch.uint8)
        size = torch.tensor([len(part)])
        with self.unbroken():
            sizes = [torch.zeros_like(size) for _ in range(self.world)]
            dist.all_gather(sizes, size, group=self.only)
            longest = max(1, *(int(one) for one in sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(content)] = content[:longest]
            gathered = [torch.zeros_like(padded) for _ in range(self.world)]
            dist.all_gather(gathered, padded, group=self.only)
        return [one[: int(n)].numpy().tobytes() for one, n in zip(gathered, sizes, strict=True)]

    def agree(self, error: Exception | None) -> None:
        """Continue only if all ranks can. All ranks call it, each with its error, or None.

        Where any has an error, the lowest such rank raises its own and every other rank raises RankFailed, so that one
        process reports.
        """
        if self.alone:
            if error is not None:
                raise error
            return
        errors = [json.loads(text) for text in self.gather(json.dumps(None if error is None else sentence(error)))]
        failed = next((rank for rank, text in enumerate(errors) if text is not None), None)
        if failed is None:
            return
        if failed == self.rank and error is not None:
            raise error
        raise RankFailed(f"Rank {failed} stopped: {errors[failed]}")

    def decide(self, yes: bool) -> bool:
        """Rank 0's decision, on every rank. All ranks call it."""
        if self.alone:
            return yes
        flag = torch.tensor([yes], dtype=torch.uint8)
        with self.unbroken():
            dist.broadcast(flag, src=0, group=self.only)
        return bool(flag.item())

    def hand_out(self, content: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank. Rank 0 passes them, the others None."""
        if self.alone:
            return content or b""
        mine = content or b""
        size = torch.tensor([len(mine)])
        with self.unbroken():
            dist.broadcast(size, src=0, group=self.only)
            if not int(size):
                return b""
            data = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if self.rank == 0 else torch.empty(0)
            if self.rank != 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, src=0, group=self.only)
        return data.numpy().tobytes()

    def same_data(self, examples: int) -> None:
        """Raise RanksDiffer on rank 0, and RankFailed on the others, unless all have as many examples. All ranks call
        it."""
        counts = [int(text) for text in self.gather(str(examples))]
        other = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
        error = None
        if other is not None and self.rank == 0:
            error = RanksDiffer(
                f"The ranks hold different data: rank 0 has {counts[0]} examples and rank {other} has {counts[other]}; "
                "give every rank all of it."
            )
        self.agree(error)

    def first_to(self, key: str) -> bool:
        """Whether this rank is the first to call it with ``key``: for an error that each rank finds by itself, and one
        of them should report."""
        if self.store is None:
            return self.rank == 0
        with self.unbroken():
            return self.store.add(f"first/{key}", 1) == 1

    def first_unequal(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
        """The name of the first of ``tensors`` that has other values on some rank; None where all are equal. All ranks
        call it, with the same names, and get the same answer."""
        if self.alone or not tensors:
            return None
        of_all = [json.loads(text) for text in self.gather(json.dumps([_digest(t) for t in tensors.values()]))]
        by_name = zip(tensors, zip(*of_all, strict=True), strict=True)
        return next((name for name, digests in by_name if len(set(digests)) > 1), None)

    def same_everywhere(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compare names, types, shapes and values of ``tensors`` between ranks, by digests. All ranks call it.

        DDP alone would overwrite what differs with the values of rank 0, silently. Rank 0 raises RanksDiffer, naming
        the first tensor that differs and the rank that has it; the others RankFailed.
        """
        if self.alone:
            return
        mine = [[name, f"{str(t.dtype)[6:]} {list(t.shape)}", _digest(t)] for name, t in tensors.items()]
        everyone = self.gather(hashlib.sha256(json.dumps(mine).encode()).hexdigest())
        if len(set(everyone)) == 1:
            return
        of_all = [json.loads(text) for text in self.gather(json.dumps(mine))]
        error = None
        if self.rank == 0:
            other = next(rank for rank in range(self.world) if of_all[rank] != of_all[0])
            error = RanksDiffer(_difference(of_all[0], of_all[other], other))
        self.agree(error)

    def leave(self, error: Exception) -> Exception:
        """Tell why this rank ends in the middle of a step, in which the others cannot go on without it; what it is to
        raise. The group is unusable then: the process must end."""
        if self.store is None:
            return error
        if not self.first_to("left"):
            return RankFailed(self.why_left() or "Another rank stopped.")
        self.store.set("left", f"Rank {self.rank} stopped: {sentence(error)}")
        return error

    def why_left(self) -> str | None:
        """What a rank that has left has told; None where none has, or the store does not answer: who hosts it may have
        died, or stand still."""
        found: list[str] = []

        def look() -> None:
            with suppress(RuntimeError):
                if self.store is not None and self.store.check(["left"]):
                    found.append(self.store.get("left").decode())

        looking = Thread(target=look, name="quorate-left", daemon=True)
        looking.start()
        looking.join(_ANSWER_S)
        return found[0] if found else None

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Turns what a failed collective raises into GroupLost."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            line = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
            line = re.sub(r"^\[/\S+\] ", "", line).split(". This is typically", 1)[0].rstrip(".")  # Gloo's own lines
            raise GroupLost(
                f"The group of {self.world} ranks broke at rank {self.rank}: a rank died, or was silent for "
                f"{self.hang_s:g} s ({line[:200]})."
            ) from error


@contextmanager
def joined(device: str = "cpu", hang_s: float = DEFAULT_HANG_S, backend: str = "auto") -> Iterator[Group]:
    """This process's group, from torchrun's environment; a group of one without it.

    ``device``: ``cpu``, ``cuda`` (GPU number LOCAL_RANK), or ``auto``: a GPU where there is one. ``hang_s``: a rank
    that is silent for so long breaks the group. ``backend``: the library of collectives, one of BACKENDS; ``auto``:
    NCCL between GPUs and Gloo between CPUs. Raises NoDevice on one rank and RankFailed on the others where GPUs are
    missing, NoDevice where this torch has no such backend; GroupLost where the group does not connect.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    kind = device if device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    backend = _backend(backend, kind, rank)
    if world == 1:
        if (error := _lacking(kind, local)) is not None:
            raise error
        yield Group(device=_place(kind, local), hang_s=hang_s)
        return
    timeout = timedelta(seconds=hang_s)
    with Group(rank, world, hang_s=hang_s).unbroken():
        store = _store(timedelta(seconds=max(hang_s, START_S)))
        group_id = await_all_ranks(dist.PrefixStore("quorate/meet", store), rank, world, max(hang_s, START_S))
        # torchrun may keep one store over restarts: entries of an earlier group (addresses, work) are not ours.
        store = dist.PrefixStore(f"quorate/{group_id}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    try:
        waiting = Group(rank, world, hang_s=hang_s)
        waiting.agree(_lacking(kind, local))
        place = _place(kind, local)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        yield Group(rank, world, place, dist.PrefixStore("quorate", store), hang_s)
    except BaseException:
        if backend == "gloo":
            dist.destroy_process_group()
        raise
    else:
        dist.destroy_process_group()


BACKENDS: Mapping[str, Callable[[], bool]] = {
    "gloo": dist.is_gloo_available,
    "nccl": dist.is_nccl_available,
    "mpi": dist.is_mpi_available,
    "ccl": partial(dist.is_backend_available, "ccl"),
}
"""Library of collectives -> whether this torch has it. *ccl* is Intel's oneCCL, which its package adds to torch."""


def _backend(name: str, kind: str, rank: int) -> str:
    """The name of the backend for torch. No rank could tell the others before there is a group: rank 0 says it."""
    gpus = kind == "cuda" and torch.cuda.is_available()
    if name == "auto":
        return "cpu:gloo,cuda:nccl" if gpus else "gloo"
    lacking = f"backend is auto or one of {', '.join(BACKENDS)}, not {name!r}." if name not in BACKENDS else ""
    if not lacking and not BACKENDS[name]():
        lacking = f"The torch that is installed here has no backend {name!r}: take auto, which is Gloo or NCCL."
    elif name == "nccl" and not gpus:
        lacking = "NCCL joins GPUs, and there is none: take auto, which is Gloo here."
    if lacking:
        raise NoDevice(lacking) if rank == 0 else RankFailed(lacking)
    return f"cpu:gloo,cuda:{name}" if gpus and name == "nccl" else name


def sentence(error: Exception) -> str:
    """The text of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def await_all_ranks(store: dist.Store, rank: int, world: int, patience_s: float) -> str:
    """Wait until every rank has connected, and exclude ranks of an earlier group. Returns an id that is unique to this
    group, the same on all ranks.

    ``patience_s``: seconds to wait, separate from the limit for hangs, since starting may take long. RuntimeError
    where it passes.

    Each rank writes a random id. Rank 0 reads all ids and writes the list; each rank that finds its id there confirms
    it; when all have, rank 0 releases them. An id of an earlier process is overwritten by its successor, which finds
    the list without its id and waits for a newer list. The launchers' restart counts cannot serve as ids: where several
    machines start again, they differ.
    """
    mine, ends_at = os.urandom(8).hex(), time.monotonic() + patience_s
    store.set(f"here/{rank}", mine)
    while time.monotonic() < ends_at:
        if rank == 0:
            found = [_value(store, f"here/{other}") for other in range(world)]
            if found[0] == mine and all(found):
                store.set("list", " ".join(found))
        names = _value(store, "list").split()
        if len(names) == world and names[rank] == mine:
            group_id = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
            store.set(f"{group_id}/seen/{rank}", "yes")
            if rank == 0 and store.check([f"{group_id}/seen/{other}" for other in range(world)]):
                store.set(f"{group_id}/go", "yes")
            if store.check([f"{group_id}/go"]):
                return group_id
        time.sleep(0.03)
    raise RuntimeError(f"not all ranks came within {patience_s:g} s")


def _value(store: dist.Store, key: str) -> str:
    """The value of a key; empty where there is none yet."""
    return store.get(key).decode() if store.check([key]) else ""


def _store(patience: timedelta) -> dist.Store:
    """The store that all ranks can reach: torchrun's own, or one that rank 0 hosts."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(host, port, is_master=False, timeout=patience)
    store: dist.Store = next(rendezvous("env://", timeout=patience))[0]
    return store


def _lacking(kind: str, local: int) -> NoDevice | None:
    if kind == "cpu":
        return None
    if kind != "cuda":
        return NoDevice(f"{kind!r} is no device that can be trained on: cpu, cuda or auto.")
    if not torch.cuda.is_available():
        return NoDevice("A GPU was asked for, and torch finds none on this machine: use --device cpu.")
    if local >= torch.cuda.device_count():
        return NoDevice(
            f"{local + 1} ranks or more were asked for on a machine with {torch.cuda.device_count()} GPUs: "
            "one rank a GPU."
        )
    return None


def _place(kind: str, local: int) -> torch.device:
    return torch.device("cuda", local) if kind == "cuda" else torch.device("cpu")


def _digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the values' bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()


def _difference(first: list[list[str]], other: list[list[str]], rank: int) -> str:
    """Of rank 0's (name, kind, digest) triples and another rank's: the first difference as an error text."""
    theirs = {name: (kind, value) for name, kind, value in other}
    for name, kind, value in first:
        if name not in theirs:
            return f"The ranks hold different models: {name} is on rank 0 and not on rank {rank}."
        if theirs[name][0] != kind:
            return (
                f"The ranks hold different models: the parameter {name} is {kind} on rank 0 "
                f"and {theirs[name][0]} on rank {rank}."
            )
        if theirs[name][1] != value:
            return (
                f"The ranks hold different models: the parameter {name} has other values on rank {rank} than on rank 0."
            )
    more = next((name for name in theirs if name not in {row[0] for row in first}), None)
    if more is not None:
        return f"The ranks hold different models: {more} is on rank {rank} and not on rank 0."
    return f"The ranks hold different models: rank {rank} lists its tensors in another order than rank 0."


# ------------------------------------------------------------ unreached
# Parameters that a loss does not reach in a step: what a group of ranks does with them.
#
# DistributedDataParallel waits in backward until every parameter has had its gradient, and hangs on one that the loss
# never used. It can search the graph for those at every step, and then exchanges what it found, which costs a message
# more. ``reach_all`` needs neither: it is an identity on the loss whose backward also leads to every parameter, and
# hands each of them *no* gradient. Autograd then visits a parameter that nothing else reached, DDP takes zero for it,
# and a parameter that the loss did reach gets exactly the gradient of the loss. No number is multiplied or added, so
# a weight that is infinite or NaN changes nothing.
#
# What differs is seen only where *no* rank reached a parameter: its gradient is then zero, where the search leaves it
# absent. An optimizer with momentum or weight decay moves a weight by a gradient of zero, and leaves one without a
# gradient alone.
#
# ``find_unused_parameters`` searches the graph at every step: 1.36 of a bare step on a perceptron of 51,000
# parameters, where the mark takes 1.06. Adding 0 times a sum of the parameters to the loss computes with every
# weight, and gives NaN where one is infinite.


class Unreached(Enum):
    """What becomes of a parameter that the loss reaches on no rank."""

    REFUSED = "refused"
    """It is an error: it is named."""
    ZERO = "zero"
    """Its gradient is zero."""
    ABSENT = "absent"
    """It has no gradient, as in one process. Costs a search of the graph, and a message, at every step."""


def reach_all(objective: torch.Tensor, params: Iterable[nn.Parameter], sparse: frozenset[int]) -> torch.Tensor:
    """``objective`` (a scalar), with a graph that reaches all of ``params``. ``sparse``: the ids of those whose
    gradients are sparse, of which DDP requires one in any case; they get an empty one."""
    reached: torch.Tensor = _ReachAll.apply(objective, sparse, *params)  # type: ignore[no-untyped-call]
    return reached


def with_sparse_gradients(module: nn.Module) -> frozenset[int]:
    """The ids of the parameters whose gradients are sparse, by the layers that DDP looks for."""
    layers = (layer for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
    return frozenset(id(layer.weight) for layer in layers if layer.sparse)


class _ReachAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, objective: torch.Tensor, sparse: frozenset[int], *params: nn.Parameter) -> torch.Tensor:
        ctx.empty = [weight if id(weight) in sparse else None for weight in params]
        return objective.view_as(objective)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradients[0], None, *(None if weight is None else _no_rows(weight) for weight in ctx.empty)


def _no_rows(weight: nn.Parameter) -> torch.Tensor:
    """A sparse gradient of an embedding [rows, width] of which no row was used."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=weight.device)
    return torch.sparse_coo_tensor(indices, weight.new_empty((0, weight.shape[1])), weight.shape)
