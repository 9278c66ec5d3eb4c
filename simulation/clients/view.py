"""What a picture of clients shows: which of them, which labels, in which words.

This file knows clients and counts. It has never heard of SVG, colours or pixels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulation.clients.clients import Clients

MOST_COLUMNS = 100
MOST_COLOURS = 10
"""Labels that colours can tell apart; more are drawn as rows."""
MOST_ROWS = 26
OTHERS = "others"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One client."""

    label: str
    """Its id, and its owner's name for it where that differs."""
    train: int
    held_out: int
    counts: tuple[int, ...]
    """Examples of each of the view's labels, held-out ones included; empty where there are no labels."""
    level: float | None
    """The noise on its features."""


@dataclass(frozen=True, kw_only=True)
class View:
    """All that is drawn."""

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


def view_of(clients: Clients, *, by_size: bool) -> View:
    """What to show of ``clients``: all up to 100, else 100 at even distances (of their numbers, or of their ranks by
    size, largest first)."""
    count = len(clients)
    order = np.argsort(-clients.sizes, kind="stable") if by_size else np.arange(count)
    shown = order if count <= MOST_COLUMNS else order[np.linspace(0, count - 1, MOST_COLUMNS).round().astype(np.int64)]
    numbers = [int(number) for number in shown]
    counters = _counters(clients, numbers)
    kinds, rest = _kinds(counters)
    columns = tuple(
        Column(
            label=_called(clients, number),
            train=clients.holdings.examples(number),
            held_out=clients.holdings.held_out(number),
            counts=_counts(counter, kinds, rest),
            level=clients.holdings.level(number),
        )
        for number, counter in zip(numbers, counters, strict=True)
    )
    names = [_class_name(clients, kind) for kind in kinds]
    return View(
        title=f"Who holds what: {count:,} client{'s' * (count != 1)}",
        lines=tuple(line for line in (clients.how, clients.summary().split(", ", 1)[1]) if line),
        caption=_caption(clients, numbers, by_size=by_size),
        columns=columns,
        labels=(*names, OTHERS) if rest else tuple(names),
    )


def _counters(clients: Clients, numbers: list[int]) -> list[Counter[int]]:
    """Label -> examples, for each client; all empty unless every one of them has labels."""
    held = [clients.holdings.labels(number) for number in numbers]
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


def _class_name(clients: Clients, kind: int) -> str:
    classes = clients.classes
    return str(classes[kind]) if classes is not None and 0 <= kind < len(classes) else str(kind)


def _called(clients: Clients, number: int) -> str:
    made = clients.id(number)
    name = clients.name(made)
    return made if name == made else f"{made} ({name})"


def _caption(clients: Clients, numbers: list[int], *, by_size: bool) -> str:
    if len(clients) == 1:
        return f"One column: {clients.id(0)}."
    order = "largest first" if by_size else f"{clients.id(numbers[0])} to {clients.id(numbers[-1])}"
    if len(numbers) == len(clients):
        return f"One column a client, {order}."
    return f"One column a client, {order}: {len(numbers)} of {len(clients):,}, at even distances."
