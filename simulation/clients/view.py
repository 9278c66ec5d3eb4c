"""Selects the contents of a picture of clients: which clients, which labels, and the captions.

``picture`` draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.clients.holdings import Holdings
from simulation.clients.naming import Names

MOST_COLUMNS = 100
MOST_COLOURS = 10
"""Labels that colours can tell apart; more are drawn as rows."""
MOST_ROWS = 26
OTHERS = "others"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One client."""

    label: str
    """Its id, and its name in the data where that differs."""
    train: int
    held_out: int
    counts: tuple[int, ...]
    """Examples of each of the view's labels, held-out ones included; empty where there are no labels."""
    level: float | None
    """The noise on its features."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The contents of a picture."""

    title: str
    lines: tuple[str, ...]
    caption: str
    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    """The labels' names, as many as a column's counts."""

    @property
    def stacked(self) -> bool:
        """Whether labels are few enough for colours."""
        return len(self.labels) <= MOST_COLOURS


def view_of(
    names: Names, holdings: Holdings, *, lines: Sequence[str], classes: Sequence[str] | None, by_size: bool
) -> View:
    """The contents of the picture of these clients: all up to 100, else 100 at even distances (of their numbers, or
    of their ranks by size, largest first). ``lines``: the lines below the title; ``classes``: the labels' names."""
    count = len(names)
    order = np.argsort(-holdings.sizes, kind="stable") if by_size else np.arange(count)
    shown = order if count <= MOST_COLUMNS else order[np.linspace(0, count - 1, MOST_COLUMNS).round().astype(np.int64)]
    numbers = [int(number) for number in shown]
    counters = _counters(holdings, numbers)
    kinds, rest = _kinds(counters)
    columns = tuple(
        Column(
            label=_called(names, number),
            train=holdings.examples(number),
            held_out=holdings.held_out(number),
            counts=_counts(counter, kinds, rest),
            level=holdings.level(number),
        )
        for number, counter in zip(numbers, counters, strict=True)
    )
    labels = [_class_name(classes, kind) for kind in kinds]
    return View(
        title=f"Who holds what: {count:,} client{'s' * (count != 1)}",
        lines=tuple(lines),
        caption=_caption(names, numbers, by_size=by_size),
        columns=columns,
        labels=(*labels, OTHERS) if rest else tuple(labels),
    )


def _counters(holdings: Holdings, numbers: list[int]) -> list[Counter[int]]:
    """Label -> examples, for each client; all empty unless every one of them has labels."""
    held = [holdings.labels(number) for number in numbers]
    if any(labels is None for labels in held):
        return [Counter() for _ in numbers]
    return [Counter(labels.tolist()) for labels in held if labels is not None]


def _kinds(counters: list[Counter[int]]) -> tuple[list[int], bool]:
    """(the labels to show, ascending; whether there are others): the most frequent ones where there are too many."""
    total = sum(counters, Counter[int]())
    if len(total) <= MOST_ROWS:
        return sorted(total), False
    return sorted(kind for kind, _ in total.most_common(MOST_ROWS - 1)), True


def _counts(counter: Counter[int], kinds: list[int], rest: bool) -> tuple[int, ...]:
    counts = [counter[kind] for kind in kinds]
    return (*counts, counter.total() - sum(counts)) if rest else tuple(counts)


def _class_name(classes: Sequence[str] | None, kind: int) -> str:
    return str(classes[kind]) if classes is not None and 0 <= kind < len(classes) else str(kind)


def _called(names: Names, number: int) -> str:
    made, name = names.id(number), names.name(number)
    return made if name == made else f"{made} ({name})"


def _caption(names: Names, numbers: list[int], *, by_size: bool) -> str:
    if len(names) == 1:
        return f"One column: {names.id(0)}."
    order = "largest first" if by_size else f"{names.id(numbers[0])} to {names.id(numbers[-1])}"
    if len(numbers) == len(names):
        return f"One column a client, {order}."
    return f"One column a client, {order}: {len(numbers)} of {len(names):,}, at even distances."
