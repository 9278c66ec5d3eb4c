"""``partition``: a data set in, ``Clients`` out.

It converts a data set of any kind to a pool of examples with labels, users and classes (``Source``), passes the
arguments to the chosen method, and decides which examples each client holds out. It copies no example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.data import is_torch_dataset
from simulation.clients import Clients
from simulation.clients.holdings import (
    ArrayPool,
    Indices,
    Noise,
    Pool,
    Shares,
    TorchPool,
    as_given,
    check_features,
    labels_of,
    labels_of_items,
)
from simulation.clients.naming import Names, Numbered, names_of
from simulation.partitioning.indices import (
    NEEDS_LABELS,
    By,
    PartitionOptions,
    checked_labels,
    grouped,
    owners,
    require_number,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples, with their labels, users and classes where these are known."""

    pool: Pool
    users: Any | None
    """The user of each example, as the data set has it; not yet checked."""
    user_names: Sequence[str] | None
    """The names of the users 0, 1, ..., where ``users`` are such numbers."""
    classes: Sequence[str] | None
    """The names of the labels 0, 1, ...."""


def source_of(dataset: Any, labels: Any | None = None, *, by_labels: bool = False) -> Source:
    """``dataset`` as examples to partition; ``labels`` [n] replace its own. ``by_labels``: labels are needed, so that a
    torch dataset without an attribute for them is read once. ``ValueError`` for an object that is no data set, or that
    has no labels where they are needed."""
    part = as_given(dataset)
    if not _is_part(part):
        part = as_given(getattr(dataset, "train", None))
        if not _is_part(part):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be partitioned{_fix(dataset)}; a data set is (x, y), an object "
                "with .x and .y, a torch Dataset, a list of pairs, or an object whose .train is one of these"
            )
    return Source(
        pool=_pool(part, labels, by_labels=by_labels),
        users=_attribute(part, dataset, "users"),
        user_names=_texts(_attribute(part, dataset, "user_names")) or None,
        classes=_texts(_attribute(part, dataset, "classes")),
    )


def user_numbers(users: Any, n: int) -> tuple[Indices, npt.NDArray[Any]]:
    """(the client of each example [n], the users' names in ascending order). Numbers sort as numbers, texts as texts.

    Raises ``ValueError`` for anything but n whole numbers or n texts.
    """
    column = np.asarray(users)
    if column.dtype == object and all(isinstance(user, str) for user in column.ravel()):
        column = column.astype(np.str_)
    if column.ndim != 1 or column.dtype.kind not in "iuU":
        raise ValueError(
            f"users must be whole numbers or texts of shape [n], not {column.dtype} of shape {list(column.shape)}"
        )
    if len(column) != n:
        raise ValueError(f"there are {n} examples and {len(column)} users: say whose each example is")
    names, numbers = np.unique(column, return_inverse=True)
    return numbers.astype(np.int64), names


def _pool(part: Any, labels: Any | None, *, by_labels: bool) -> Pool:
    found = labels_of(part) if labels is None else checked_labels(labels)
    pool: Pool
    if is_torch_dataset(part):
        tensors: Any = getattr(part, "tensors", ())
        pool = ArrayPool(tensors[0], tensors[1], found) if len(tensors) == 2 else TorchPool(part, found)
        if by_labels and pool.labels is None and isinstance(pool, TorchPool):
            found = pool.labels = labels_of_items(part)
    else:
        x, y = part if _pair(part) else (part.x, part.y)
        pool = ArrayPool(x, y, found)
    if found is not None and len(found) != len(pool):
        raise ValueError(f"there are {len(pool)} examples and {len(found)} labels: they must be as many")
    if by_labels and found is None and len(pool):
        raise ValueError(
            f"labels are needed to deal by them, integers [n]: {_instead(pool)}; labels= can give others, "
            'and by="iid" (--by iid on the command line) needs none'
        )
    return pool


def _instead(pool: Pool) -> str:
    """A phrase for the error: what the data has instead of labels."""
    if isinstance(pool, ArrayPool):
        return f"y is {pool.y.dtype} of shape {list(pool.y.shape)}"
    item = pool.take(np.zeros(1, np.int64))[0]
    if not _pair(item):
        return f"an item is a {type(item).__name__}, not a pair (input, target)"
    return f"an item's target is a {type(item[1]).__name__}, not a whole number"


def _fix(dataset: Any) -> str:
    """How to make a data set of an object that is often mistaken for one; empty for other objects."""
    if isinstance(dataset, Mapping):
        keys = [repr(key) for key in list(dataset)[:2]]
        return f": give two of its columns, (d[{keys[0]}], d[{keys[1]}])" if len(keys) == 2 else ""
    if is_torch_dataset(getattr(dataset, "dataset", None)):
        return ": give its .dataset"
    item = None
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and not isinstance(dataset, str | bytes):
        with suppress(Exception):
            item = dataset[0]
    if isinstance(item, Mapping) and len(item) > 1:
        keys = [repr(key) for key in list(item)[:2]]
        return f", its items are dicts: make pairs of them, [(d[{keys[0]}], d[{keys[1]}]) for d in dataset]"
    return ""


def _is_part(thing: Any) -> bool:
    return is_torch_dataset(thing) or _pair(thing) or _arrays(thing)


def _pair(thing: Any) -> bool:
    return isinstance(thing, tuple | list) and len(thing) == 2


def _arrays(thing: Any) -> bool:
    return hasattr(thing, "x") and hasattr(thing, "y")


def _attribute(part: Any, dataset: Any, name: str) -> Any | None:
    for holder in (part, dataset):
        found = None if isinstance(holder, tuple | list) else getattr(holder, name, None)
        if found is not None and not callable(found):
            return found
    return None


def _texts(found: Any | None) -> Sequence[str] | None:
    return tuple(map(str, found)) if isinstance(found, Sequence) and not isinstance(found, str) else None


def partition(
    dataset: Any,
    clients: int | None = None,
    by: By = "dirichlet",
    *,
    alpha: float | None = None,
    seed: int = 0,
    min_examples: int = 1,
    size_sigma: float | None = None,
    shards_per_client: int | None = None,
    labels_per_client: int | None = None,
    noise_sigma: float | None = None,
    users: Sequence[Any] | npt.NDArray[Any] | None = None,
    labels: Sequence[int] | npt.NDArray[Any] | None = None,
    held_out: float = 0.0,
) -> Clients:
    """Give every example of ``dataset`` to exactly one of ``clients`` clients.

    | by          | a client's labels                                | a client's size            | source           |
    |-------------|--------------------------------------------------|----------------------------|------------------|
    | `iid`       | like the whole                                   | equal, or `size_sigma`     |                  |
    | `dirichlet` | its own mixture; the smaller `alpha`, the purer  | equal, or `size_sigma`     | arXiv:1909.06335 |
    | `shards`    | those of `shards_per_client` runs of sorted data | equal                      | arXiv:1602.05629 |
    | `labels`    | exactly `labels_per_client`                      | follows its labels         | arXiv:2102.02079 |
    | `quantity`  | like the whole                                   | `alpha`, or `size_sigma`   | arXiv:2102.02079 |
    | `noise`     | like the whole; `noise_sigma` on the features    | equal, or `size_sigma`     | arXiv:2102.02079 |
    | `natural`   | its user's                                       | its user's                 |                  |

    `niid-labels`, `niid-dirichlet` and `niid-quantity` follow the code of NIID-Bench (arXiv:2102.02079) to the letter:
    see `simulation.partitioning.methods`.

    - `dataset`: `(x, y)`, an object with `.x` and `.y`, a map-style torch `Dataset`, a list of pairs, or an object
      whose `.train` is one of these (its test part is left alone). Nothing is copied: clients gather theirs when used.
    - `clients`: how many; with `natural` it may be left out, as each user is a client.
    - `alpha`: from 1e-6 to 1e6. For `dirichlet` (0.3) the concentration per label: 100 is nearly even, 0.3 leaves a
      client about three of ten labels that matter, 0.01 mostly one. The label mixture of a client is
      q ~ Dir(alpha * C * p) with p the labels' shares in the whole and C their number, so that balanced labels give
      the common Dir(alpha, ..., alpha). Hsu et al. write Dir(α p): their α is `alpha * C`.
      For `quantity` (0.5) clients' shares of the whole are ~ Dir(alpha, ..., alpha). For `niid-dirichlet` and
      `niid-quantity` (0.5) it is the paper's beta.
    - `seed`: any integer from 0; PCG64's stream. Equal arguments give equal answers with one release of numpy.
    - `min_examples`: how few a client may get, from 0, held-out ones included.
    - `size_sigma`: 0 gives sizes that differ by at most one. Above 0 (to 5), what clients hold beyond `min_examples` is
      proportional to a log-normal draw exp(size_sigma * N(0, 1)), as in the code of arXiv:1812.06127. With `quantity`
      it takes the place of `alpha`.
    - `shards_per_client` (2), `labels_per_client` (2): from 1.
    - `noise_sigma` (0.1): client number k of K gets Gaussian noise of standard deviation `noise_sigma * (k + 1) / K`,
      k from 0, on features of a floating type, made when its data is read.
    - `users`: for `natural`, the user of each example: whole numbers or texts [n]; by default the data set's own
      `.users` (with `.user_names`, if it has them). Clients are in the order of the users, ascending. The users' names
      are the ids if all of them are valid ids; otherwise ids are made and `clients.name(id)` is the user's name.
    - `labels`: integers [n] in place of the data set's own (`.y`, or a torch Dataset's `.targets` or `.labels`; where
      it has neither and labels are needed, all its items are read once).
    - `held_out`: the fraction of each client's examples that becomes its `.test`; at least one stays for training.

    Every method is a function of its arguments alone. Raises `ValueError`, in one sentence, for data and arguments that
    do not fit together, also for an option that the method does not use.
    """
    options = PartitionOptions(
        by=by,
        alpha=alpha,
        seed=seed,
        min_examples=min_examples,
        size_sigma=size_sigma,
        shards_per_client=shards_per_client,
        labels_per_client=labels_per_client,
        noise_sigma=noise_sigma,
    )
    check_fraction(held_out)
    source = source_of(dataset, labels, by_labels=by in NEEDS_LABELS)
    names: Names
    if by == "natural":
        owner_N, names = _by_users(source, users, clients, options)
    else:
        if users is not None:
            raise ValueError(f"users has no effect with by={by!r}; it applies to natural")
        if clients is None:
            raise ValueError(f"by={by!r} needs to know among how many clients: partition(dataset, 100, ...)")
        if by == "noise":
            check_features(source.pool)
        owner_N, names = owners(len(source.pool), source.pool.labels, clients, options), Numbered(clients)
    positions, offsets = grouped(owner_N, len(names))
    train_ends: Indices | None = None
    if held_out:
        positions, train_ends = hold_out(positions, offsets, held_out, seed)
    noise = Noise(sigma=options.value("noise_sigma"), clients=len(names), seed=seed) if by == "noise" else None
    return Clients(
        names,
        Shares(source.pool, positions, offsets, train_ends, noise),
        how=options.phrase() + (f", {held_out:.0%} held out" if held_out else ""),
        classes=source.classes,
        by_size=by in ("natural", "quantity"),
    )


def _by_users(
    source: Source, users: Any | None, clients: int | None, options: PartitionOptions
) -> tuple[Indices, Names]:
    column = source.users if users is None else users
    if column is None:
        raise ValueError("by='natural' needs users=, whose each example is: the data set has no .users")
    owner_N, names = user_numbers(column, len(source.pool))
    if users is None and source.user_names is not None and names.dtype.kind in "iu" and len(names):
        if not 0 <= names[0] <= names[-1] < len(source.user_names):
            raise ValueError(f"users run from {names[0]} to {names[-1]}; there are {len(source.user_names)} user_names")
        names = np.array(source.user_names)[names]
    if not len(names):
        raise ValueError("there are no examples to partition")
    if clients is not None and clients != len(names):
        raise ValueError(f"clients={clients}, but the data has {len(names)} users; leave clients out")
    smallest = int(np.bincount(owner_N).min())
    if smallest < options.min_examples:
        raise ValueError(f"a user has only {smallest} examples, less than min_examples={options.min_examples}")
    return owner_N, names_of(names)


def hold_out(positions: Indices, offsets: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """(positions with each client's held-out ones last, where each client's training ones end [clients]).

    Client k holds out floor(fraction * n_k + 1/2) of its n_k examples, at most n_k - 1, drawn uniformly by a stream of
    its own: the seed gives the same examples to the same clients with any fraction. Positions ascend in both parts.
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
    """``ValueError`` unless ``fraction`` is a fraction that a client can hold out."""
    require_number("held_out", fraction)
    if fraction is None or not (math.isfinite(fraction) and 0.0 <= fraction < 1.0):
        raise ValueError(
            f"held_out={fraction} must be from 0 (nothing) to below 1: a client keeps examples to train on"
        )
