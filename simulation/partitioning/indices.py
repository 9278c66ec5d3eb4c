"""Splits a data set by its labels alone: labels in, lists of positions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.partitioning import methods, niid_bench
from simulation.partitioning.methods import Indices
from simulation.partitioning.options import NEEDS_LABELS, By, PartitionOptions, check_counts


def split_indices(
    labels: Sequence[int] | npt.NDArray[np.integer],
    clients: int,
    by: By = "dirichlet",
    *,
    alpha: float | None = None,
    seed: int = 0,
    min_examples: int = 1,
    size_sigma: float | None = None,
    shards_per_client: int | None = None,
    labels_per_client: int | None = None,
) -> list[Indices]:
    """The positions of each client's examples: like ``partition``, without the data.

    ``labels``: integers [n]. ``by``: any method but ``natural`` (``noise`` splits like ``iid``). Other arguments: see
    ``partition``. Returns ``clients`` arrays of positions (int64, ascending). Raises ``ValueError`` for arguments that
    cannot be met.
    """
    options = PartitionOptions(
        by=by,
        alpha=alpha,
        seed=seed,
        min_examples=min_examples,
        size_sigma=size_sigma,
        shards_per_client=shards_per_client,
        labels_per_client=labels_per_client,
    )
    if by == "natural":
        raise ValueError("a natural partition has no labels to split by: partition(..., users=...) makes it")
    y = checked_labels(labels)
    positions, offsets = grouped(owners(len(y), y, clients, options), clients)
    return np.split(positions, offsets[1:-1])


def owners(n: int, y: Indices | None, clients: int, options: PartitionOptions) -> Indices:
    """The client of each example, [n]. ``y``: the labels, for the methods that need them.

    Raises ``ValueError`` where the options cannot be met.
    """
    check_counts(n, clients, options.min_examples)
    rng = np.random.Generator(np.random.PCG64(options.seed))
    least = options.min_examples
    if options.by in NEEDS_LABELS:
        if y is None:
            raise ValueError(f"by={options.by!r} needs labels: integers [n], in .y or given as labels=")
        owner_N = _by_labels(y, clients, options, rng)
    elif options.by == "quantity" and options.size_sigma is None:
        owner_N = methods.quantity(n, clients, least, options.value("alpha"), rng)
    elif options.by == "niid-quantity":
        owner_N = niid_bench.quantity(n, clients, least, options.value("alpha"), rng)
    else:
        owner_N = methods.iid(n, clients, least, options.value("size_sigma"), rng)
    if (smallest := int(np.bincount(owner_N, minlength=clients).min())) < least:
        raise ValueError(
            f"by={options.by!r} gives a client only {smallest} examples here: fewer clients, or a lower min_examples"
        )
    return owner_N


def grouped(owner_N: Indices, clients: int) -> tuple[Indices, Indices]:
    """Owners as groups: (positions [n], client after client and ascending in each; offsets [clients + 1])."""
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(owner_N, minlength=clients), out=offsets[1:])
    return np.argsort(owner_N, kind="stable"), offsets


def checked_labels(labels: Any) -> Indices:
    """Labels as int64 [n]. ``ValueError`` for anything else."""
    y = np.asarray(labels)
    if y.ndim != 1 or not (np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_):
        raise ValueError(
            f"labels must be integers of shape [n], not {y.dtype} of shape {list(y.shape)}; labels= can give others"
        )
    return y.astype(np.int64, copy=False)


def _by_labels(y: Indices, clients: int, options: PartitionOptions, rng: np.random.Generator) -> Indices:
    match options.by:
        case "dirichlet":
            sizes_K = methods.log_normal_sizes(len(y), clients, options.min_examples, options.value("size_sigma"), rng)
            return methods.dirichlet(y, sizes_K, options.value("alpha"), rng)
        case "niid-dirichlet":
            return niid_bench.dirichlet(y, clients, options.min_examples, options.value("alpha"), rng)
        case "niid-labels":
            return niid_bench.labels(y, clients, int(options.value("labels_per_client")), rng)
        case "shards":
            return methods.shards(y, clients, int(options.value("shards_per_client")), rng)
        case _:
            return methods.labels(y, clients, int(options.value("labels_per_client")), rng)
