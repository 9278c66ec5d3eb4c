"""The partitions of NIID-Bench, by the rules of its authors' code, for comparisons with results on that benchmark.

Li, Diao, Chen, He 2022, "Federated Learning on Non-IID Data Silos: An Experimental Study", arXiv:2102.02079, section 4,
and ``partition_data`` of the code that its authors publish. ``methods`` has partitions of the same names that fix what
these leave to chance: equal numbers of clients for each label, sizes that are chosen, no second draws.

============================ ================== ======================================================================
in the paper                 here               rule
============================ ================== ======================================================================
#C = k                       ``niid-labels``    client i has label i mod C and k - 1 others at random; the examples
                                                of a label are divided evenly among its clients
p_k ~ Dir_N(beta)            ``niid-dirichlet`` label by label, shares p over the clients are drawn; a client that
                                                has n / N examples or more gets none of this label; all is drawn again
                                                until each client has enough examples
q ~ Dir_N(beta)              ``niid-quantity``  shares q of all examples; drawn again until each client has enough
x + Gau(sigma * i / N)       ``noise``          see ``simulation.clients.holdings``
synthetic                    ``fcube`` of       the points of a cube, by octant: ``partition(fcube(), by="natural")``
                             ``simulation.datasets``
real world                   ``natural``        one client for each user
============================ ================== ======================================================================

The paper has at least 10 examples for each client: ``min_examples=10``. Its draws are from another generator, so the
splits are of the same distribution and not the same.
"""

from __future__ import annotations

import numpy as np

from simulation.partitioning.methods import Indices

_DRAWS = 10_000
"""Draws after which a partition gives up."""


def labels(y: Indices, clients: int, each: int, rng: np.random.Generator) -> Indices:
    """#C = k, with k = ``each``. Labels of no client are an error: their examples would have no place. ValueError."""
    kinds, codes = np.unique(y, return_inverse=True)
    if each > len(kinds):
        raise ValueError(f"labels_per_client={each}, but there are only {len(kinds)} labels")
    chosen: list[list[int]] = [[] for _ in kinds]
    for client in range(clients):
        own = client % len(kinds)
        others = rng.choice(len(kinds) - 1, each - 1, replace=False)
        for label in (own, *(int(other) + (other >= own) for other in others)):
            chosen[label].append(client)
    owner_N = np.empty(len(y), np.int64)
    for label, sharers in enumerate(chosen):
        if not sharers:
            raise ValueError(
                f"{clients} client{'s' * (clients > 1)} with {each} of {len(kinds)} labels each leave labels to "
                "nobody: more clients, or more labels_per_client"
            )
        for client, part in zip(sharers, np.array_split(_shuffled(codes, label, rng), len(sharers)), strict=True):
            owner_N[part] = client
    return owner_N


def dirichlet(y: Indices, clients: int, least: int, beta: float, rng: np.random.Generator) -> Indices:
    """p_k ~ Dir_N(beta) over the clients, for each label k. ValueError where no draw gives each client ``least``."""
    kinds, codes = np.unique(y, return_inverse=True)
    owner_N = np.empty(len(y), np.int64)
    for _ in range(_DRAWS):
        sizes_K = np.zeros(clients, np.int64)
        for label in range(len(kinds)):
            examples = _shuffled(codes, label, rng)
            shares_K = rng.dirichlet(np.full(clients, beta)) * (sizes_K < len(y) / clients)
            if not shares_K.sum() > 0.0:  # the float64 shares of all clients with room are 0
                break
            parts = np.split(examples, (np.cumsum(shares_K / shares_K.sum()) * len(examples)).astype(np.int64)[:-1])
            for client, part in enumerate(parts):
                owner_N[part] = client
                sizes_K[client] += len(part)
        else:
            if sizes_K.min() >= least:
                return owner_N
    raise _no_draw(clients, least, beta)


def quantity(n: int, clients: int, least: int, beta: float, rng: np.random.Generator) -> Indices:
    """q ~ Dir_N(beta) over the clients. ValueError where no draw gives each client ``least``."""
    order = rng.permutation(n)
    for _ in range(_DRAWS):
        ends = (np.cumsum(rng.dirichlet(np.full(clients, beta))) * n).astype(np.int64)[:-1]
        sizes_K = np.diff(ends, prepend=0, append=n)
        if sizes_K.min() >= least:
            owner_N = np.empty(n, np.int64)
            owner_N[order] = np.repeat(np.arange(clients), sizes_K)
            return owner_N
    raise _no_draw(clients, least, beta)


def _shuffled(codes: Indices, label: int, rng: np.random.Generator) -> Indices:
    """The positions of the examples of a label, in random order."""
    found: Indices = rng.permutation(np.flatnonzero(codes == label))
    return found


def _no_draw(clients: int, least: int, beta: float) -> ValueError:
    return ValueError(
        f"in {_DRAWS:,} draws with alpha={beta:g} not one gave each of {clients} clients {least} examples: "
        "fewer clients, a larger alpha, or a lower min_examples"
    )
