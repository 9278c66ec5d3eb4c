"""A fleet of any size over one data set: each client draws its own examples, when somebody asks for them.

A partition gives each example to one client, so a data set of 60,000 has 60,000 clients at most, and all are made at
once. Here several clients may hold the same example. What a client holds is a function of (seed, number) alone, so of a
million clients those exist which a round selects.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from simulation.clients import Clients
from simulation.clients.holdings import ClientData, Indices, Pool
from simulation.clients.naming import Numbered
from simulation.partitioning.front import check_fraction, source_of
from simulation.partitioning.indices import PartitionOptions, check_counts

_BLOCK = 4
"""Words that Philox makes of one counter."""


class Sampled:
    """``Holdings`` that are drawn at each access: no memory for a client."""

    at_hand = False

    def __init__(
        self,
        pool: Pool,
        clients: int,
        examples: int,
        alpha: float | None,
        size_sigma: float,
        held_out: float,
        seed: int,
    ) -> None:
        self._pool, self._clients, self._median = pool, clients, examples
        self._alpha, self._sigma, self._held_out, self._seed = alpha, size_sigma, held_out, seed
        self._order_N = self._counts_C = np.zeros(0, np.int64)
        if alpha is not None and pool.labels is not None:
            self._order_N = np.argsort(pool.labels, kind="stable")
            self._counts_C = np.unique(pool.labels, return_counts=True)[1]

    @property
    def sizes(self) -> Indices:
        return self._split(self._wholes(0, self._clients))[0]

    def examples(self, number: int) -> int:
        return int(self._split(self._wholes(number, 1))[0][0])

    def held_out(self, number: int) -> int:
        return int(self._split(self._wholes(number, 1))[1][0])

    def data(self, number: int) -> ClientData:
        take, middle = partial(self._gather, number), self.examples(number)
        return ClientData(partial(take, 0, middle), partial(take, middle, None) if self.held_out(number) else None)

    def labels(self, number: int) -> Indices | None:
        return None if self._pool.labels is None else self._pool.labels[self._positions(number)]

    def level(self, number: int) -> float | None:
        return None

    def _gather(self, number: int, start: int, end: int | None) -> Any:
        return self._pool.take(self._positions(number)[start:end])

    def _wholes(self, first: int, count: int) -> Indices:
        """How many examples each of these clients holds, held-out ones included: median * exp(sigma * z), at least 1,
        z by Box and Muller of the first two words of the block of its number."""
        if not self._sigma:
            return np.full(count, self._median, np.int64)
        words = np.random.Philox(key=[self._seed, 0], counter=first).random_raw(_BLOCK * count).reshape(count, _BLOCK)
        unit = (words[:, :2] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        z = np.sqrt(-2.0 * np.log1p(-unit[:, 0])) * np.cos(math.tau * unit[:, 1])
        wholes: Indices = np.maximum(1, np.rint(self._median * np.exp(self._sigma * z))).astype(np.int64)
        return wholes

    def _split(self, wholes: Indices) -> tuple[Indices, Indices]:
        """(how many to train on, how many held out): the fraction rounded, at least one stays to train on."""
        held = np.minimum(np.floor(self._held_out * wholes + 0.5).astype(np.int64), wholes - 1)
        return wholes - held, held

    def _positions(self, number: int) -> Indices:
        """Where the client's examples are in the pool, in the order in which they were drawn."""
        rng = np.random.Generator(np.random.Philox(key=[self._seed, 1], counter=[0, 0, 0, number]))
        whole = int(self._wholes(number, 1)[0])
        if self._alpha is None:
            return rng.integers(0, len(self._pool), whole, np.int64)
        counts_C = self._counts_C
        mixture_C = rng.dirichlet(self._alpha * len(counts_C) * counts_C / len(self._pool))
        labels = rng.choice(len(counts_C), whole, p=mixture_C)
        places = (np.cumsum(counts_C) - counts_C)[labels] + rng.integers(0, counts_C[labels])
        positions: Indices = self._order_N[places]
        return positions


def sampled(
    dataset: Any,
    clients: int,
    *,
    examples: int = 50,
    alpha: float | None = None,
    size_sigma: float = 0.0,
    held_out: float = 0.0,
    seed: int = 0,
) -> Clients:
    """``clients`` clients, up to any number, each with its own random examples of ``dataset``; two may share some.

    - ``examples``: how many a client has, the median with ``size_sigma`` (log-normal, 0: all alike, to 5).
    - ``alpha``: a client's labels are a mixture of its own, q ~ Dir(alpha * C * p), as of ``partition``; None: they are
      like the whole.
    - ``held_out``: the fraction of its examples that becomes its ``.test``.
    - ``seed``: from 0, below 2^63. A client is a function of it and of its number.

    ValueError, in one sentence, for data and arguments that do not fit together.
    """
    by = "iid" if alpha is None else "dirichlet"
    PartitionOptions(by=by, alpha=alpha, seed=seed, size_sigma=size_sigma, min_examples=examples)
    check_fraction(held_out)
    pool = source_of(dataset, by_labels=alpha is not None).pool
    check_counts(len(pool), clients, 0)
    if examples < 1:
        raise ValueError(f"examples={examples}: a client has at least one")
    how = f"Examples drawn by each, {'labels alike' if alpha is None else f'alpha {alpha:g}'}, seed {seed}"
    return Clients(Numbered(clients), Sampled(pool, clients, examples, alpha, size_sigma, held_out, seed), how=how)
