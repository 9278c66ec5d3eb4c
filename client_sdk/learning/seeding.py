"""Random numbers on a device: the seeds of shuffles and dropout, and the restoring of torch's global generator.

The *order of examples* is drawn from a private generator seeded by SHA-256 of (seed, round, device), so it depends on
nothing else, such as the order in which devices train. The *random numbers of layers* (initial weights, dropout) come
from torch's global generator, of which a process has one: ``private_chance`` seeds it and restores its old state.
Therefore one lock serialises everything in this package that may draw: two threads of one process train one after
another. Devices that train at the same time need separate processes.

Python's ``random``, numpy's generator and torch's on GPUs are seeded by who calls a learner, in processes of this
package's own (``client_sdk.isolation``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from client_sdk.chance import derive_seed
from client_sdk.isolation import ONE_AT_A_TIME


def batch_order(
    examples: int,
    batch_size: int,
    *,
    seed: int,
    round: int,
    device: str,
    drop_last: bool = False,
) -> Iterator[torch.Tensor]:
    """The indices of every step's batch, without end: epoch after epoch, each a fresh permutation of
    ``range(examples)``.

    Yields int64 tensors of shape [batch_size]; the last batch of an epoch holds the rest (shape [examples %
    batch_size]), unless ``drop_last`` leaves it out. Fewer examples than a batch are one batch in any case. The same
    (seed, round, device) gives the same batches, on every machine with the same torch.
    """
    generator = torch.Generator().manual_seed(derive_seed("shuffle", seed, round, device))
    while True:
        batches = torch.randperm(examples, generator=generator).split(batch_size)
        yield from batches[:-1] if drop_last and len(batches) > 1 and len(batches[-1]) < batch_size else batches


@contextmanager
def private_chance(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator with ``seed``, and restore its state on exit. No other thread of this package
    draws meanwhile."""
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        yield
