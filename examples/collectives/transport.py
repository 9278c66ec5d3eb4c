"""What the algorithms of this folder are written on: a port with ``send`` and ``recv``, and three implementations.

==========  ========================================================================================================
Counting    ranks are threads of one process; counts messages and bytes, and what they take by a model of the links
Torch       ranks are processes of a group of ``torch.distributed``
Among       some ranks of another port, numbered anew from 0
==========  ========================================================================================================
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

Array = np.ndarray


class Transport(Protocol):
    """One rank's way to the others. Arrays are flat."""

    rank: int
    size: int

    def send(self, to: int, array: Array) -> None:
        """Hand over a copy of ``array``, without waiting for the receiver."""

    def recv(self, frm: int) -> Array:
        """Wait for the next array from rank ``frm``: those of one sender come in the order in which they were sent."""


class Counting:
    """A rank whose messages are counted. A message of x bytes takes alpha + beta x on a link, a rank sends one and
    receives one at a time, both directions at once, and sums cost nothing: ``clock`` is then the time at which this
    rank has what it waited for. With alpha 1 and beta 0, the defaults, that is the number of rounds."""

    def __init__(self, rank: int, size: int, mail: dict, alpha: float, beta: float) -> None:
        self.rank, self.size = rank, size
        self.messages, self.clock = 0, 0.0
        self.sent: Counter[int] = Counter()
        """Bytes, by the rank that they went to."""
        self._mail, self._alpha, self._beta = mail, alpha, beta
        self._sends_until = self._receives_until = 0.0

    @property
    def bytes(self) -> int:
        return self.sent.total()

    def send(self, to: int, array: Array) -> None:
        start = max(self.clock, self._sends_until)
        self._sends_until = start + self._alpha + self._beta * array.nbytes
        self.messages += 1
        self.sent[to] += array.nbytes
        self._mail[self.rank, to].put((start, array.copy()))

    def recv(self, frm: int) -> Array:
        start, array = self._mail[frm, self.rank].get(timeout=30)
        self._receives_until = max(start, self._receives_until) + self._alpha + self._beta * array.nbytes
        self.clock = max(self.clock, self._receives_until)
        return array


def counted(
    work: Callable[[Transport, Any], Any], inputs: Sequence[Any], alpha: float = 1, beta: float = 0
) -> tuple[list[Any], list[Counting]]:
    """What ``work(transport, inputs[rank])`` gives on each of ``len(inputs)`` ranks, and the ranks and their counts."""
    size = len(inputs)
    mail: dict = {(frm, to): SimpleQueue() for frm in range(size) for to in range(size)}
    ranks = [Counting(rank, size, mail, alpha, beta) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        results = list(threads.map(work, ranks, inputs))
    return results, ranks


class Torch:
    """A rank of the running process group. A header of two numbers, type and length, goes before each array."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._sent: list[tuple[dist.Work, torch.Tensor]] = []

    def send(self, to: int, array: Array) -> None:
        header = torch.tensor([ord(array.dtype.char), array.size])
        self._sent = [(work, part) for work, part in self._sent if not work.is_completed()]
        for part in (header, torch.from_numpy(array.copy().view(np.uint8))):
            if part.numel():  # Gloo keeps no copy: the memory must live until the message is gone
                self._sent.append((dist.isend(part, to), part))

    def recv(self, frm: int) -> Array:
        header = torch.empty(2, dtype=torch.int64)
        dist.recv(header, frm)
        kind, length = header.tolist()
        array = np.empty(length, np.dtype(chr(kind)))
        if length:
            dist.recv(torch.from_numpy(array.view(np.uint8)), frm)
        return array

    def close(self) -> None:
        """Wait until all that was sent has been received."""
        for work, _ in self._sent:
            work.wait()


class Among:
    """The ranks ``members`` of ``transport``, to which this rank belongs, numbered by their places in the list."""

    def __init__(self, transport: Transport, members: Sequence[int]) -> None:
        self.rank, self.size = members.index(transport.rank), len(members)
        self._transport, self._members = transport, members

    def send(self, to: int, array: Array) -> None:
        self._transport.send(self._members[to], array)

    def recv(self, frm: int) -> Array:
        return self._transport.recv(self._members[frm])


def available(backend: str) -> str:
    """The backend, where this machine's torch has it; a ValueError that says what to do where it has not."""
    if backend == "mpi" and not dist.is_mpi_available():
        raise ValueError(
            "This torch was built without MPI, as all its packages are: build it where an MPI is, or use gloo."
        )
    if backend == "ccl":
        if importlib.util.find_spec("oneccl_bindings_for_pytorch") is None:
            raise ValueError(
                "This torch has no oneCCL: oneccl_bindings_for_pytorch is not installed; use gloo on CPUs."
            )
        importlib.import_module("oneccl_bindings_for_pytorch")  # it registers the name
    if backend == "nccl":
        raise ValueError("NCCL joins GPUs alone, and arrays of numpy are on the CPU: use gloo.")
    if not dist.is_backend_available(backend):
        raise ValueError(f"This torch has no backend {backend!r}: use gloo.")
    return backend
