"""Which of its examples a client holds out for its own evaluation.

This file knows positions and chance. It has never heard of labels or data.
"""

from __future__ import annotations

import math

import numpy as np

from simulation.clients.pool import Indices
from simulation.partitioning.options import require_number


def hold_out(positions: Indices, offsets: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """(positions with each client's held-out ones last, where each client's training ones end [clients]).

    Client k holds out floor(fraction * n_k + 1/2) of its n_k examples, at most n_k - 1, drawn uniformly by a stream of
    its own: the seed deals the same examples to the same clients with any fraction. Positions ascend in both parts.
    """
    sizes_K = np.diff(offsets)
    held_K = np.clip(np.floor(fraction * sizes_K + 0.5).astype(np.int64), 0, np.maximum(sizes_K - 1, 0))
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(1,))))
    owner_N = np.repeat(np.arange(len(sizes_K)), sizes_K)
    drawn = np.lexsort((rng.random(len(positions)), owner_N))
    is_held_N = np.arange(len(positions)) - np.repeat(offsets[:-1], sizes_K) < np.repeat(held_K, sizes_K)
    chosen = positions[drawn]
    return chosen[np.lexsort((chosen, is_held_N, owner_N))], offsets[1:] - held_K


def check_fraction(fraction: float) -> None:
    """``ValueError`` unless a client can hold out this fraction."""
    require_number("held_out", fraction)
    if fraction is None or not (math.isfinite(fraction) and 0.0 <= fraction < 1.0):
        raise ValueError(
            f"held_out={fraction} must be from 0 (nothing) to below 1: a client keeps examples to train on"
        )
