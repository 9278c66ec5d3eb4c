"""``Clients``: the clients of a simulation and their data, from ten clients to a million.

``holdings`` has their data, ``naming`` their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client_sdk.data import is_torch_dataset
from simulation.clients.holdings import ClientData, Given, Holdings, Shares, parts_of
from simulation.clients.naming import Listed, Names, Numbered
from simulation.clients.picture import Picture, View, draw, view_of

MOST_FOR_SKEW = 2_000_000
"""Summaries leave the label skew out where there are more examples than this: it would take seconds."""


class Clients(Mapping[str, ClientData]):
    """Clients by id, in the order of their numbers 0, 1, .... Read-only.

    ``clients[id]`` has parts ``.train`` and ``.test`` (None where nothing is held out), gathered at the first
    access: a million clients need memory for their positions only. ``partition`` makes clients of a data set,
    ``Clients.of`` of the user's own data. A notebook shows a picture of their data, which ``draw`` makes.
    """

    def __init__(
        self,
        names: Names,
        holdings: Holdings,
        *,
        how: str = "",
        classes: Sequence[str] | None = None,
        by_size: bool = False,
    ) -> None:
        """``how``: a phrase for captions. ``classes``: the labels' names. ``by_size``: pictures sort by size."""
        self._names, self.holdings, self._how, self._classes, self._by_size = names, holdings, how, classes, by_size

    @classmethod
    def of(cls, clients: Mapping[str, Any] | Sequence[Any]) -> Clients:
        """The user's own clients: a mapping id -> data, or a sequence of data, whose ids are made.

        Data of a client: (x, y), an object with .x and .y, a torch Dataset with a length, a list of pairs, or an object
        with .train and perhaps .test (or .held_out), each one of these. Of a mapping that is no dict, values are
        read only when they are needed. Raises ``ValueError`` that names the client whose id or data is not valid.
        """
        if isinstance(clients, Clients):
            return clients
        if isinstance(clients, Mapping):
            names = Listed(clients)
            keys: Sequence[Any] = [names.id(number) for number in range(len(names))]
            made = cls(names, Given(clients, keys))
        elif isinstance(clients, Sequence) and not isinstance(clients, str | bytes):
            keys = range(len(clients))
            made = cls(Numbered(len(clients)), Given(clients, keys))
        else:
            fix = ": partition(dataset, 100) makes clients of one" if is_torch_dataset(clients) else ""
            raise ValueError(
                f"clients are a mapping of ids to data, a sequence of data, or what partition() makes of a data set; "
                f"a {type(clients).__name__} is none of these{fix}"
            )
        if not keys:
            raise ValueError("there are no clients")
        if isinstance(clients, dict | list | tuple):
            for key in keys:
                parts_of(clients[key], f"client {key!r}")
        return made

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return map(self._names.id, range(len(self._names)))

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._names.number(id) is not None

    def __getitem__(self, id: str) -> ClientData:
        return self.holdings.data(self.number(id))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def id(self, number: int) -> str:
        """The id of client ``number``, 0 to len - 1. Raises ``IndexError`` outside."""
        if not 0 <= number < len(self):
            raise IndexError(f"there is no client number {number}: they run from 0 to {len(self) - 1}")
        return self._names.id(number)

    def number(self, id: str) -> int:
        """The inverse of ``id``. Raises ``KeyError`` for an unknown id."""
        number = self._names.number(id) if isinstance(id, str) else None
        if number is None:
            raise KeyError(f"there is no client {id!r}; the first of {len(self):,} is {self._names.id(0)!r}")
        return number

    def name(self, id: str) -> str:
        """The client's name in the data: the user's name in a natural partition, else the id."""
        return self._names.name(self.number(id))

    def examples(self, id: str) -> int:
        """How many training examples the client holds; no data is gathered."""
        return self.holdings.examples(self.number(id))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training examples of each client, [clients], in the order of their numbers."""
        return self.holdings.sizes

    @property
    def label_skew(self) -> float | None:
        """How much the clients' labels differ from those of all data, 0 to almost 1 (see
        ``partitioning.label_skew``); None where there are no labels."""
        if isinstance(self.holdings, Shares):
            if (labels := self.holdings.pool.labels) is None:
                return None
            return skew_of(labels[self.holdings.positions], np.diff(self.holdings.offsets))
        held = [self.holdings.labels(number) for number in range(len(self))]
        known = [labels for labels in held if labels is not None]
        if len(known) < len(held) or not sum(map(len, known)):
            return None
        return skew_of(np.concatenate(known), np.array([len(labels) for labels in known], dtype=np.int64))

    def view(self, *, by_size: bool) -> View:
        """The contents of the picture, as data."""
        lines = [line for line in (self._how, self.summary().split(", ", 1)[1]) if line]
        return view_of(self._names, self.holdings, lines=lines, classes=self._classes, by_size=by_size)

    def draw(self, path: str | Path | None = None, *, by_size: bool | None = None) -> Picture:
        """A picture of the clients' data: one column per client (a sample where there are more than 100), sizes above,
        labels below. ``path``: the ``.svg`` file to which it is also written. ``by_size``: largest first (None: for
        natural partitions and uneven quantities).

        A notebook shows the picture; ``str`` of it is the SVG. Raises ``ValueError`` for a path that is no ``.svg``.
        """
        picture = draw(self.view(by_size=self._by_size if by_size is None else by_size))
        if path is not None:
            picture.save(path)
        return picture

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the labels 0, 1, ..., where the data set gives them."""
        return self._classes

    @property
    def how(self) -> str:
        """How the clients were made, in a phrase; empty for the user's own."""
        return self._how

    def summary(self) -> str:
        """One line: how many clients, how many examples, how uneven."""
        sizes = self.sizes
        text = f"{len(self):,} client{'s' * (len(self) != 1)}, {int(sizes.sum()):,} training examples"
        low, middle, high = int(sizes.min()), float(np.median(sizes)), int(sizes.max())
        text += f", {low:,} each" if low == high else f", {low:,} to {high:,} each (median {middle:,.0f})"
        skew = self.label_skew if sizes.sum() <= MOST_FOR_SKEW else None
        return text if skew is None else f"{text}, label skew {skew:.2f}"

    def __repr__(self) -> str:
        return f"<Clients: {len(self):,}{'; ' + self._how if self._how else ''}>"

    def _repr_html_(self) -> str:
        return f"<p>{self.summary()}</p>{self.draw()}"


def label_skew(labels: Sequence[int] | npt.NDArray[np.integer], parts: Sequence[npt.NDArray[np.integer]]) -> float:
    """How much the clients' labels differ from those of all data: 0 (not at all) to almost 1.

    The mean over clients, weighted by their examples, of the total variation distance between the labels:
    sum_k (n_k / n) * (1/2) sum_c |q_kc - p_c|, with q_k the label shares of client k, p those of all data and n_k
    the client's size. ``labels``: integers [n]; ``parts``: the positions of each client's examples. Accumulated in
    float64. Raises ``ValueError`` when the clients hold no examples at all.
    """
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if not sizes.sum():
        raise ValueError("no client holds any example: there is no skew to measure")
    held = np.asarray(labels)[np.concatenate([np.asarray(part) for part in parts]).astype(np.int64)]
    return skew_of(held, sizes)


def skew_of(labels: npt.NDArray[Any], sizes_K: npt.NDArray[np.int64]) -> float:
    """``label_skew`` of ``labels`` [n] in the order of their clients: the first ``sizes_K[0]`` are client 0's.

    Only the pairs (client, label) that occur are counted, so that a million clients cost memory of order n:
    sum_c |n_kc - n_k p_c| is summed where n_kc > 0, and is n_k times the mass of p elsewhere.
    """
    kinds, codes = np.unique(labels, return_inverse=True)
    whole_C = np.bincount(codes, minlength=len(kinds)) / len(codes)
    owners = np.repeat(np.arange(len(sizes_K), dtype=np.int64), sizes_K)
    pairs, counts = np.unique(owners * len(kinds) + codes, return_counts=True)
    client, label = np.divmod(pairs, len(kinds))
    expected = sizes_K[client] * whole_C[label]
    met = np.abs(counts - expected).sum()
    missed = float(sizes_K.sum()) - expected.sum()
    return max(0.0, float(met + missed) / (2 * float(sizes_K.sum())))
