"""Chance on a device: where shuffles and dropout get their seeds, and how torch's global generator is left as it was
found.

Two kinds of chance. *Which examples come when* is drawn from a private generator seeded by SHA-256 of (seed, round,
device), so it depends on nothing else: not on the order in which devices train, nor on who else draws. *What layers
draw* (initial weights, dropout) comes from torch's global generator, which is one for the whole process:
``private_chance`` seeds it, and puts the old state back. That swap is why one lock serialises everything in this
package that may draw: two threads of one process train one after another. Devices that shall train at the same time
need processes of their own.

Layers on a GPU, Python's ``random`` and numpy's global generator are not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from client_sdk.chance import derive_seed

_ONE_AT_A_TIME = threading.RLock()
"""Held while torch's global generator is swapped. Re-entrant: a learner's loss may use another learner."""


def batch_order(
    examples: int,
    batch_size: int,
    *,
    seed: int,
    round: int,
    device: str,
) -> Iterator[torch.Tensor]:
    """The indices of every step's batch, without end: epoch after epoch, each a fresh permutation of
    ``range(examples)``.

    Yields int64 tensors of shape [batch_size]; the last batch of an epoch holds what is left (shape [examples %
    batch_size]). The same (seed, round, device) gives the same batches, on every machine with the same torch.
    """
    generator = torch.Generator().manual_seed(derive_seed("shuffle", seed, round, device))
    while True:
        yield from torch.randperm(examples, generator=generator).split(batch_size)


@contextmanager
def private_chance(seed: int) -> Iterator[None]:
    """Within it torch's global CPU generator starts from ``seed`` and no other thread of this package draws;
    afterwards it is as before."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield
