"""A group of processes that train one model together: who is in it, what they exchange, how they stop as one.

The processes are started by torchrun, which says in the environment who is who (RANK, WORLD_SIZE, LOCAL_RANK). Without
it, or with a world of one, there is no process group at all and everything here is a plain call.

Numbers travel by Gloo on CPUs and by NCCL on GPUs; sentences and decisions always by Gloo, as bytes. Nothing is
pickled.

::

    LearningError
      NoDevice        a GPU was asked for, and there is none for this rank
      RankFailed      another rank said why it cannot go on; its sentence is inside
      RanksDiffer     the ranks hold different models or data
      GroupLost       a rank died, hangs or broke off in the middle: the group is of no use any more; leave the process
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from client_sdk.learning.errors import LearningError

CPU = torch.device("cpu")
DEFAULT_HANG_S = 300.0
"""Seconds without an answer after which a rank counts as hung. Must exceed the slowest step and the slowest scoring."""

START_S = 120.0
"""Seconds that the ranks have to come together: one may load its programs much slower than another."""


class NoDevice(LearningError):
    """A GPU was asked for, and there is none for this rank."""


class RankFailed(LearningError):
    """Another rank cannot go on; that rank tells why. Who catches this says nothing more to people."""


class RanksDiffer(LearningError):
    """The ranks do not hold the same model or the same data, so their gradients cannot be averaged."""


class GroupLost(LearningError):
    """A collective failed: a rank died or hangs. No further one can work; the launcher starts the group anew."""


@dataclass(frozen=True, eq=False)
class Group:
    """The ranks that train together, seen from one of them. A world of 1 has no process group behind it."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    store: dist.Store | None = None
    """Keys and values that all ranks see, for whoever has to wait longer than a collective may."""
    hang_s: float = DEFAULT_HANG_S

    @property
    def alone(self) -> bool:
        return self.world == 1

    def gather(self, text: str) -> list[str]:
        """What every rank says, in the order of ranks. All ranks call it."""
        if self.alone:
            return [text]
        content = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        size = torch.tensor([len(text.encode())])
        with self.unbroken():
            sizes = [torch.zeros_like(size) for _ in range(self.world)]
            dist.all_gather(sizes, size)
            longest = max(1, *(int(one) for one in sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(content)] = content[:longest]
            gathered = [torch.zeros_like(padded) for _ in range(self.world)]
            dist.all_gather(gathered, padded)
        return [bytes(one[: int(n)].tolist()).decode() for one, n in zip(gathered, sizes, strict=True)]

    def agree(self, error: Exception | None) -> None:
        """Go on only if all ranks can. All ranks call it, each with what hinders it, or None.

        Where any has an error, the lowest such rank raises its own and every other rank raises RankFailed, so that one
        process speaks.
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
        """The word of rank 0, which all ranks get. All ranks call it."""
        if self.alone:
            return yes
        word = torch.tensor([yes], dtype=torch.uint8)
        with self.unbroken():
            dist.broadcast(word, src=0)
        return bool(word.item())

    def hand_out(self, content: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank. Rank 0 gives them, the others None."""
        if self.alone:
            return content or b""
        mine = content or b""
        size = torch.tensor([len(mine)])
        with self.unbroken():
            dist.broadcast(size, src=0)
            if not int(size):
                return b""
            data = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if self.rank == 0 else torch.empty(0)
            if self.rank != 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, src=0)
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

    def first_to(self, word: str) -> bool:
        """Whether this rank is the first to come here with ``word``: for what ranks find without the others, and one
        of them should tell."""
        if self.store is None:
            return self.rank == 0
        with self.unbroken():
            return self.store.add(f"first/{word}", 1) == 1

    def unlike(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
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
def joined(device: str = "cpu", hang_s: float = DEFAULT_HANG_S) -> Iterator[Group]:
    """This process's place in its group, as torchrun's environment says; a group of one where it says nothing.

    ``device``: ``cpu``, ``cuda`` (GPU number LOCAL_RANK), or ``auto``: a GPU where there is one. ``hang_s``: a rank
    that is silent for so long breaks the group. Raises NoDevice on one rank and RankFailed on the others where GPUs are
    lacking; GroupLost where the group does not come together.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    kind = device if device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if world == 1:
        if (error := _lacking(kind, local)) is not None:
            raise error
        yield Group(device=_place(kind, local), hang_s=hang_s)
        return
    timeout = timedelta(seconds=hang_s)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" and torch.cuda.is_available() else "gloo"
    with Group(rank, world, hang_s=hang_s).unbroken():
        store = _store(timedelta(seconds=max(hang_s, START_S)))
        meeting = meet(dist.PrefixStore("quorate/meet", store), rank, world, max(hang_s, START_S))
        # torchrun may keep one store over restarts: what an earlier group left there (addresses, work) is not ours.
        store = dist.PrefixStore(f"quorate/{meeting}", store)
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


def sentence(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def meet(store: dist.Store, rank: int, world: int, patience_s: float) -> str:
    """Wait until every rank is there, and none of an earlier group is taken for one: a word that is this meeting's
    alone, the same on all ranks.

    How long starting takes says nothing of hanging, so this has a patience of its own; RuntimeError where it ends.

    Each rank puts down a word of its own. Rank 0 reads all of them and puts down the list; who finds its word there
    says so; and when all have, rank 0 lets them go. A word that an earlier process left is overwritten by its
    successor, which finds the list without its word and waits for a better one. The launchers' counts of restarts would
    not do: where several machines start again, they differ.
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
            meeting = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
            store.set(f"{meeting}/seen/{rank}", "yes")
            if rank == 0 and store.check([f"{meeting}/seen/{other}" for other in range(world)]):
                store.set(f"{meeting}/go", "yes")
            if store.check([f"{meeting}/go"]):
                return meeting
        time.sleep(0.03)
    raise RuntimeError(f"not all ranks came within {patience_s:g} s")


def _value(store: dist.Store, key: str) -> str:
    """The value of a key; empty where there is none yet."""
    return store.get(key).decode() if store.check([key]) else ""


def _store(patience: timedelta) -> dist.Store:
    """What all ranks can reach: torchrun's own, or one that rank 0 keeps."""
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
        return NoDevice("A GPU was asked for, and torch finds none on this machine: take --device cpu.")
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
    """Of rank 0's (name, kind, digest) triples and another rank's: what differs first."""
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
