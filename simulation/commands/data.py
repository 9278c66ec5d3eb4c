"""Loads a data set by name, or a file, and makes clients and a central test set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from client_sdk.data import Examples, installed, is_file, load_data
from simulation.clients import Clients
from simulation.partitioning import By, partition, sampled

if TYPE_CHECKING:
    from simulation.commands.simulate import ShareOptions

MOST_CLIENTS_BY_DEFAULT = 100


def shared_out(data: str, options: ShareOptions, seed: int = 0) -> tuple[Clients, Any | None]:
    """(the clients, the data set's test part or None).

    Data with users is partitioned by user unless a method or a number of clients is given; other data by Dirichlet
    among 100 clients. Raises DataSourceError and ValueError.
    """
    found: Any = load_data(data) if is_file(data) else installed(data)
    test = getattr(found, "test", None)
    has_users = bool(getattr(found, "user_names", None))
    if options.by == "sampled":
        return _sampled(found, options, seed), test
    if options.examples is not None:
        raise ValueError("--examples is for --by sampled: the other methods deal all examples")
    by = options.by or ("natural" if has_users and options.clients is None else "dirichlet")
    if by == "natural" and has_users:
        return _by_user(found, data, options), test
    made = partition(
        found,
        options.clients if options.clients is not None or by == "natural" else MOST_CLIENTS_BY_DEFAULT,
        by=cast("By", by),
        alpha=options.alpha,
        seed=seed,
        min_examples=1 if options.min_examples is None else options.min_examples,
        size_sigma=options.size_sigma,
        shards_per_client=options.shards_per_client,
        labels_per_client=options.labels_per_client,
        noise_sigma=options.noise_sigma,
        held_out=options.held_out or 0.0,
    )
    return made, test


def _sampled(found: Any, options: ShareOptions, seed: int) -> Clients:
    """A fleet whose clients draw their examples."""
    for name in ("shards_per_client", "labels_per_client", "noise_sigma", "min_examples"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} has no effect with --by sampled")
    return sampled(
        found,
        MOST_CLIENTS_BY_DEFAULT if options.clients is None else options.clients,
        examples=50 if options.examples is None else options.examples,
        alpha=options.alpha,
        size_sigma=options.size_sigma or 0.0,
        held_out=options.held_out or 0.0,
        seed=seed,
    )


def some_of(test: Any | None, count: int | Literal["all"], seed: int) -> Any | None:
    """``count`` examples of the test part, drawn by ``seed``; None for 0, or where there is no test part."""
    if test is None or count == 0:
        return None
    if count == "all" or count >= len(test.x):
        return test
    rng = np.random.Generator(np.random.PCG64([seed, 1]))
    chosen = np.sort(rng.choice(len(test.x), count, replace=False))
    return Examples(np.asarray(test.x[chosen]), np.asarray(test.y[chosen]))


def _by_user(found: Any, data: str, options: ShareOptions) -> Clients:
    """A client for each user, with the user's examples of the data set's test part as held-out data."""
    for name in ("clients", "alpha", "size_sigma", "shards_per_client", "labels_per_client", "noise_sigma", "held_out"):
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            reason = "users have held-out examples already" if name == "held_out" else "a client is a user"
            raise ValueError(f"--{option} has no effect with --by natural of {data}: {reason}")
    return Clients.of(found.clients(**({} if options.min_examples is None else {"min_examples": options.min_examples})))
