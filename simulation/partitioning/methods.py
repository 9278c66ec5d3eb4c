"""The partition methods as pure functions: labels and a random generator in, the client of every example out.

The result is one array ``owner_N``: the client of example i is ``owner_N[i]``. So each example has exactly one client
with every method. The methods of NIID-Bench follow its authors' code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def iid(n: int, clients: int, least: int, sigma: float, rng: np.random.Generator) -> Indices:
    """Every example to a client at random; sizes as in ``log_normal_sizes``."""
    order = rng.permutation(n)
    return _dealt(order, log_normal_sizes(n, clients, least, sigma, rng))


def quantity(n: int, clients: int, least: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Li, Diao, Chen, He 2022, arXiv:2102.02079, quantity skew: shares of the whole q ~ Dir(alpha, ..., alpha).

    A client gets ``least`` examples and the share q_k of the rest; the paper's code draws again until no client has
    too few.
    """
    order = rng.permutation(n)
    return _dealt(order, _by_shares(n, rng.dirichlet(np.full(clients, alpha)), least))


def dirichlet(y: Indices, sizes_K: Indices, alpha: float, rng: np.random.Generator) -> Indices:
    """Hsu, Qi, Brown 2019, arXiv:1909.06335: client k draws q_k ~ Dir, then its examples' labels from q_k.

    Drawn without replacement: once a label is used up, q_k is renormalized over the others. Drawing one by one and
    dropping draws of used-up labels is the same as drawing the missing ones in batches and capping them, which is what
    the loop does. With a tiny alpha, q_k is 0 in float64 for all labels but one; if that label is used up, q_k is drawn
    anew over the others, which is how a renormalized Dirichlet is distributed. The last clients get the remaining
    examples, so the order of clients is random.
    """
    kinds, codes = np.unique(y, return_inverse=True)
    left_C = np.bincount(codes)
    concentration_C = alpha * len(kinds) * left_C / len(y)
    pools = [rng.permutation(np.flatnonzero(codes == c)) for c in range(len(kinds))]
    owner_N = np.empty(len(y), np.int64)
    for k in rng.permutation(len(sizes_K)):
        q_C = rng.dirichlet(concentration_C)
        taken_C = np.zeros_like(left_C)
        while (missing := int(sizes_K[k] - taken_C.sum())) > 0:
            open_C = np.where(taken_C < left_C, q_C, 0.0)
            if open_C.sum() <= 0.0:
                others = np.flatnonzero(taken_C < left_C)
                q_C[others] = open_C[others] = rng.dirichlet(concentration_C[others])
            drawn_C = rng.multinomial(missing, open_C / open_C.sum())
            taken_C = np.minimum(taken_C + drawn_C, left_C)
        for c in np.flatnonzero(taken_C):
            owner_N[pools[c][left_C[c] - taken_C[c] : left_C[c]]] = k
        left_C = left_C - taken_C
    return owner_N


def shards(y: Indices, clients: int, each: int, rng: np.random.Generator) -> Indices:
    """McMahan et al. 2017, arXiv:1602.05629, section 3: sort by label, cut into ``each`` shards per client,
    and assign them at random.

    Shards differ by at most one example, the longer ones first.
    """
    in_label_order = np.argsort(y, kind="stable")
    count = each * clients
    sizes = np.full(count, len(y) // count)
    sizes[: len(y) % count] += 1
    owner_S = np.empty(count, np.int64)
    owner_S[rng.permutation(count)] = np.repeat(np.arange(clients), each)
    owner_N = np.empty(len(y), np.int64)
    owner_N[in_label_order] = np.repeat(owner_S, sizes)
    return owner_N


def labels(y: Indices, clients: int, each: int, rng: np.random.Generator) -> Indices:
    """Li, Diao, Chen, He 2022, arXiv:2102.02079, "#C = k": every client has examples of exactly ``each`` labels.

    A label's examples are divided evenly among the clients that have it. The number of these clients differs by at most
    one between labels, except for a label with fewer examples than that: it has as many clients as examples. (The paper
    draws a client's labels freely, so that some labels have more clients than others.)

    Clients choose in random order. Each takes the labels that still need the most clients, ties at random. A client
    takes every label that needs all remaining clients, so no client ends with too few labels. Raises ``ValueError``
    where the labels do not suffice.
    """
    kinds, codes, counts_C = np.unique(y, return_inverse=True, return_counts=True)
    owed_C = _owed(counts_C, clients, each)
    turns = rng.permutation(clients)
    choices = np.empty((clients, each), np.int64)
    for turn in range(clients):
        ranked_C = owed_C + rng.random(len(kinds))
        choices[turn] = np.argpartition(ranked_C, len(kinds) - each)[len(kinds) - each :]
        owed_C[choices[turn]] -= 1
    owner_N = np.empty(len(y), np.int64)
    owners, chosen = np.repeat(turns, each), choices.ravel()
    for c in range(len(kinds)):
        pool = rng.permutation(np.flatnonzero(codes == c))
        sharers = owners[chosen == c]
        sizes = np.full(len(sharers), len(pool) // len(sharers))
        sizes[: len(pool) % len(sharers)] += 1
        owner_N[pool] = np.repeat(sharers, sizes)
    return owner_N


def log_normal_sizes(n: int, clients: int, least: int, sigma: float, rng: np.random.Generator) -> Indices:
    """How many examples each client gets, [clients], summing to n: ``least`` each, the rest by shares exp(sigma z_k).

    z_k ~ N(0, 1). The synthetic data of Li et al. 2020 (FedProx, arXiv:1812.06127) has such sizes, in its code:
    exp(4 + 2 z) + 50.
    """
    shares_K = np.exp(sigma * rng.standard_normal(clients))
    return _by_shares(n, shares_K / shares_K.sum(), least)


def _by_shares(n: int, shares_K: npt.NDArray[np.float64], least: int) -> Indices:
    """Sizes that sum to n: ``least`` each, the rest in proportion to the shares, largest remainders first."""
    rest = n - len(shares_K) * least
    exact_K = rest * shares_K
    sizes_K: Indices = np.floor(exact_K).astype(np.int64)
    short = rest - int(sizes_K.sum())
    sizes_K[np.argsort(sizes_K - exact_K, kind="stable")[:short]] += 1
    sizes_K += least
    return sizes_K


def _owed(counts_C: Indices, clients: int, each: int) -> Indices:
    """How many clients have each label, [labels]: they sum to clients * each, and are even except for the caps."""
    if each > len(counts_C):
        raise ValueError(f"labels_per_client={each}, but there are only {len(counts_C)} labels")
    if clients * each < len(counts_C):
        raise _nobody_has(clients, each, len(counts_C))
    caps_C = np.minimum(counts_C, clients)
    if caps_C.sum() < clients * each:
        raise ValueError(
            f"some labels have too few examples for {clients} clients with {each} labels each: fewer of either"
        )
    owed_C = np.zeros_like(caps_C)
    while short := clients * each - int(owed_C.sum()):
        room = np.flatnonzero(owed_C < caps_C)
        step = max(1, short // len(room))
        chosen = room if short >= len(room) else room[np.argsort(-counts_C[room], kind="stable")[:short]]
        owed_C[chosen] = np.minimum(owed_C[chosen] + step, caps_C[chosen])
    return owed_C


def _nobody_has(clients: int, each: int, labels: int) -> ValueError:
    return ValueError(
        f"{clients} client{'s' * (clients > 1)} with {each} of {labels} labels each leave labels to nobody: "
        "more clients, or more labels_per_client"
    )


def _dealt(order: Indices, sizes_K: Indices) -> Indices:
    """Client 0 gets the first ``sizes_K[0]`` of ``order``, and so on."""
    owner_N = np.empty(len(order), np.int64)
    owner_N[order] = np.repeat(np.arange(len(sizes_K)), sizes_K)
    return owner_N


# ------------------------------------------------------------ niid-bench
# The partitions of NIID-Bench, by the rules of its authors' code, for comparisons with results on that benchmark.
#
# Li, Diao, Chen, He 2022, "Federated Learning on Non-IID Data Silos: An Experimental Study", arXiv:2102.02079, section
# 4, and ``partition_data`` of the code that its authors publish. The partitions above of the same names fix what these
# leave to chance: equal numbers of clients for each label, sizes that are chosen, no second draws.
#
# ============================ ================== ======================================================================
# in the paper                 here               rule
# ============================ ================== ======================================================================
# #C = k                       ``niid-labels``    client i has label i mod C and k - 1 others at random; the examples
#                                                 of a label are divided evenly among its clients
# p_k ~ Dir_N(beta)            ``niid-dirichlet`` label by label, shares p over the clients are drawn; a client that
#                                                 has n / N examples or more gets none of this label; all is drawn again
#                                                 until each client has enough examples
# q ~ Dir_N(beta)              ``niid-quantity``  shares q of all examples; drawn again until each client has enough
# x + Gau(sigma * i / N)       ``noise``          see ``simulation.clients.holdings``
# synthetic                    ``fcube`` of       the points of a cube, by octant: ``partition(fcube(), by="natural")``
#                              ``simulation.datasets``
# real world                   ``natural``        one client for each user
# ============================ ================== ======================================================================
#
# The paper has at least 10 examples for each client: ``min_examples=10``. Its draws are from another generator, so the
# splits are of the same distribution and not the same.


_DRAWS = 10_000
"""Draws after which a partition gives up."""


def niid_labels(y: Indices, clients: int, each: int, rng: np.random.Generator) -> Indices:
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
            raise _nobody_has(clients, each, len(kinds))
        for client, part in zip(sharers, np.array_split(_shuffled(codes, label, rng), len(sharers)), strict=True):
            owner_N[part] = client
    return owner_N


def niid_dirichlet(y: Indices, clients: int, least: int, beta: float, rng: np.random.Generator) -> Indices:
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


def niid_quantity(n: int, clients: int, least: int, beta: float, rng: np.random.Generator) -> Indices:
    """q ~ Dir_N(beta) over the clients. ValueError where no draw gives each client ``least``."""
    order = rng.permutation(n)
    for _ in range(_DRAWS):
        ends = (np.cumsum(rng.dirichlet(np.full(clients, beta))) * n).astype(np.int64)[:-1]
        sizes_K = np.diff(ends, prepend=0, append=n)
        if sizes_K.min() >= least:
            return _dealt(order, sizes_K)
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
