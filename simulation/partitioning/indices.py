"""Splits a data set by its labels alone: labels in, lists of positions out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from simulation.partitioning import methods
from simulation.partitioning.methods import Indices

# ------------------------------------------------------------ options
# The options of each partition method, with the checks of their names and ranges.


By = Literal[
    "iid",
    "dirichlet",
    "shards",
    "labels",
    "quantity",
    "noise",
    "natural",
    "niid-labels",
    "niid-dirichlet",
    "niid-quantity",
]

DEFAULTS: dict[str, dict[str, float]] = {
    "iid": {"size_sigma": 0.0},
    "dirichlet": {"alpha": 0.3, "size_sigma": 0.0},
    "shards": {"shards_per_client": 2},
    "labels": {"labels_per_client": 2},
    "quantity": {"alpha": 0.5},
    "noise": {"noise_sigma": 0.1, "size_sigma": 0.0},
    "natural": {},
    "niid-labels": {"labels_per_client": 2},
    "niid-dirichlet": {"alpha": 0.5},
    "niid-quantity": {"alpha": 0.5},
}
"""Method -> its options and their defaults. ``quantity`` takes ``size_sigma`` in place of ``alpha``."""

NEEDS_LABELS = ("dirichlet", "shards", "labels", "niid-labels", "niid-dirichlet")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """All arguments of a partition except the data. ``None``: not given. See ``partition`` for their meaning.

    Raises ``ValueError``, in a sentence, for an unknown method, an option that the method does not use, and values out
    of range.
    """

    by: str
    alpha: float | None = None
    seed: int = 0
    min_examples: int = 1
    size_sigma: float | None = None
    shards_per_client: int | None = None
    labels_per_client: int | None = None
    noise_sigma: float | None = None

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"by={self.by!r} is no partition method; known are: {', '.join(get_args(By))}")
        self._refuse_unused()
        _whole("seed", self.seed, 0)
        _whole("min_examples", self.min_examples, 0)
        for name in ("alpha", "size_sigma", "noise_sigma"):
            require_number(name, getattr(self, name))
        if self.alpha is not None and not (math.isfinite(self.alpha) and 1e-6 <= self.alpha <= 1e6):
            raise ValueError(f"alpha={self.alpha} must be from 1e-6 (most uneven) to 1e6 (even)")
        if self.size_sigma is not None and not (math.isfinite(self.size_sigma) and 0.0 <= self.size_sigma <= 5.0):
            raise ValueError(f"size_sigma={self.size_sigma} must be from 0 (equal sizes) to 5")
        if self.noise_sigma is not None and not (math.isfinite(self.noise_sigma) and 0.0 < self.noise_sigma <= 1e6):
            raise ValueError(f"noise_sigma={self.noise_sigma} must be above 0 and finite")
        if self.shards_per_client is not None:
            _whole("shards_per_client", self.shards_per_client, 1)
        if self.labels_per_client is not None:
            _whole("labels_per_client", self.labels_per_client, 1)

    def _refuse_unused(self) -> None:
        used = {*DEFAULTS[self.by], "size_sigma"} if self.by == "quantity" else set(DEFAULTS[self.by])
        for name in ("alpha", "size_sigma", "shards_per_client", "labels_per_client", "noise_sigma"):
            if getattr(self, name) is not None and name not in used:
                methods = ", ".join(method for method, options in DEFAULTS.items() if name in options)
                raise ValueError(f"{name} has no effect with by={self.by!r}; it applies to {methods}")
        if self.by == "quantity" and self.alpha is not None and self.size_sigma is not None:
            raise ValueError("sizes are drawn by alpha (Dirichlet) or by size_sigma (log-normal): give one of them")

    def value(self, name: str) -> float:
        """The option as given, or the method's default."""
        given = getattr(self, name)
        return float(DEFAULTS[self.by][name] if given is None else given)

    def phrase(self) -> str:
        """The method and its options in a phrase, for captions: ``Dirichlet over labels, alpha 0.3, seed 0``."""
        text = {
            "iid": "Labels alike",
            "dirichlet": "Dirichlet over labels",
            "shards": "Shards of the sorted labels",
            "labels": "A few labels each",
            "quantity": "Sizes uneven, labels alike",
            "noise": "Noise on the features, labels alike",
            "natural": "One client per user",
            "niid-labels": "NIID-Bench, a few labels each",
            "niid-dirichlet": "NIID-Bench, Dirichlet for each label",
            "niid-quantity": "NIID-Bench, sizes uneven",
        }[self.by]
        names = ["size_sigma"] if self.by == "quantity" and self.size_sigma is not None else list(DEFAULTS[self.by])
        for name in names:
            if name != "size_sigma" or self.value(name):
                text += f", {name.replace('_', ' ')} {self.value(name):g}"
        return text if self.by == "natural" else f"{text}, seed {self.seed}"


def require_number(name: str, value: object) -> None:
    """``ValueError`` unless ``value`` is a real number, or None."""
    if value is not None and (isinstance(value, bool | np.bool_) or not isinstance(value, Real)):
        raise ValueError(f"{name}={value!r} must be a number")


def check_counts(n: int, clients: int, min_examples: int) -> None:
    """``ValueError`` where ``n`` examples are too few for this number of clients."""
    _whole("clients", clients, None)
    if clients < 1:
        raise ValueError(f"clients={clients}: at least one client is needed")
    if n < 1:
        raise ValueError("there are no examples to partition")
    if clients * min_examples > n:
        raise ValueError(
            f"{n} examples cannot give each of {clients} clients {min_examples}: fewer clients, or a lower min_examples"
        )


def _whole(name: str, value: object, least: int | None) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r} must be a whole number")
    if least is not None and value.__index__() < least:
        raise ValueError(f"{name}={value} must be {least} or more")


# ------------------------------------------------------------ indices


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
        owner_N = methods.niid_quantity(n, clients, least, options.value("alpha"), rng)
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
            return methods.niid_dirichlet(y, clients, options.min_examples, options.value("alpha"), rng)
        case "niid-labels":
            return methods.niid_labels(y, clients, int(options.value("labels_per_client")), rng)
        case "shards":
            return methods.shards(y, clients, int(options.value("shards_per_client")), rng)
        case _:
            return methods.labels(y, clients, int(options.value("labels_per_client")), rng)
