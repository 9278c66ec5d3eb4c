"""Repeats each draw of a cohort from the tree or the list of who waited, the run's selection seed and the round; and
holds what a list says of devices, where the plan's selection reads it, against the reports and draws before it in the
log. Draws from a tree are repeated by code of this room (``drawn_tree``), those from a list by the plan's selection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.blobs import BlobError
from coordinator.engine import events as ev
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.plan import Plan
from coordinator.engine.secure.suspicion import Suspicion, resting
from coordinator.engine.selection import Choice, Known, Pace
from coordinator.folding.refold import Readable
from coordinator.verify.drawn_tree import against_tree, part_of


@dataclass(frozen=True, slots=True)
class DrawnCohort:
    """What the log says of a draw."""

    round: int
    pool: str | None
    waiting: int
    cohort: tuple[tuple[str, int], ...]
    examples: int = 0
    root: str = ""
    before: int = 0
    """Draws of the same buffered round before it: each has a seed of its own."""
    suspicion: Suspicion = field(default_factory=dict)
    """Of the run before it."""


class Draws:
    """``add`` takes the events of a log, in order."""

    def __init__(self, plan: Plan) -> None:
        self.all: list[DrawnCohort] = []
        self._plan = plan
        self._heard: list[dict[str, tuple[float | None, float]]] = []
        """For each draw: device -> (loss, seconds since the draw) of its update in that round."""
        self._at = 0.0

    def add(self, event: ev.Event, suspicion: Suspicion) -> None:
        """``suspicion``: the run's before it."""
        if isinstance(event, ev.Drawn):
            last, before = self.all[-1] if self.all else None, 0
            if self._plan.buffered is not None and last is not None and last.round == event.round:
                before = last.before + 1
            said = event.round, event.pool, event.waiting, event.cohort, event.examples, event.root
            self.all.append(DrawnCohort(*said, before, suspicion))
            self._heard.append({})
            self._at = event.at
        elif isinstance(event, ev.Reported) and self._plan.cohort.remembers:
            self._heard[-1][event.device] = event.metrics.get("loss"), max(0.0, event.at - self._at)
        elif isinstance(event, ev.UpdateLost) and self._plan.cohort.remembers:
            self._heard[-1].pop(event.device, None)

    def with_known(self, window: int = 0) -> Iterator[tuple[DrawnCohort, Mapping[str, Known], int]]:
        """Each draw, and device -> what was known of it then, for plans whose selection reads it; and how often its
        pacer had moved, of such a ``window``."""
        known, pace = dict[str, Known](), Pace()
        for drawn, heard in zip(self.all, self._heard, strict=True):
            yield drawn, known, pace.moved
            if self._plan.cohort.remembers and len(drawn.cohort) >= self._plan.fewest_devices:
                if window:
                    sizes = dict(drawn.cohort)
                    pace = pace.after(((sizes[device], loss) for device, (loss, _) in heard.items()), window)
                for device, _ in drawn.cohort:
                    before = known.get(device, Known())
                    loss, seconds = heard.get(device, before[:2])
                    loss = before.loss if loss is None else loss
                    known[device] = Known(loss, seconds, before.selected + 1, drawn.round)


def against_draw(
    blobs: Readable,
    select: int,
    choice: Choice,
    seed: int,
    drawn: DrawnCohort,
    known: Mapping[str, Known],
    moved: int = 0,
) -> Iterator[str]:
    """Yields what speaks against a draw. ``known``, ``moved``: of devices and the pacer, by the log before it. The
    bytes of the list have been held against their digest before."""
    if drawn.pool is None:
        if drawn.cohort:
            yield "its cohort was drawn from a list that the log does not name"
        return
    if choice.ranked:
        yield from _against_tree(blobs, select, choice, seed, drawn)
        return
    if drawn.root or drawn.examples:
        yield f"the log has the root or the sum of a tree, and {choice.name} draws from a list"
    try:
        rows = _read(blobs, drawn.pool)
        pool = [(str(row[0]), int(row[1])) for row in rows]
    except BlobError:
        return  # named where the blobs are read
    except (ValueError, TypeError, LookupError):
        yield "the list of who waited cannot be read"
        return
    names = [device for device, _ in pool]
    if names != sorted(set(names)):
        yield "the list of who waited names a device twice, or is not sorted"
        return
    if drawn.waiting != len(pool):
        yield f"the log counts {drawn.waiting} waiting devices, and the list has {len(pool)}"
    for row, wanted in zip(rows, choice.rows(pool, known), strict=True):
        if row[2:] != list(wanted[2:]):
            yield f"the list of who waited says of {row[0]} {row[2:]}, and the log gives {list(wanted[2:])}"
            return
    try:
        chosen = choice.draw(rows, select, seed=seed, round=drawn.round, moved=moved, suspicion=drawn.suspicion)
    except ExtensionError as error:
        yield f"the draw cannot be repeated: {error}"
        return
    sizes = dict(pool)
    if tuple((device, sizes[device]) for device in chosen) != drawn.cohort:
        strangers = sorted({device for device, _ in drawn.cohort} - set(chosen))
        who = f": {', '.join(strangers[:3])} would not have been selected" if strangers else ""
        yield f"the draw from the list of who waited gives another cohort than the log{who}"


def _against_tree(blobs: Readable, select: int, choice: Choice, seed: int, drawn: DrawnCohort) -> Iterator[str]:
    try:
        body = _read(blobs, drawn.pool or "")
        part, suspected = part_of(body["tree"]), [str(device) for device in body.get("suspected", ())]
    except BlobError:
        return  # named where the blobs are read
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        yield "the tree of who waited cannot be read"
        return
    rest = resting(drawn.suspicion, suspected, drawn.waiting - select, seed=seed, round=drawn.round)
    shown = {leaf.device for leaf in part.leaves}
    if suspected != sorted({*suspected} & drawn.suspicion.keys()) or not shown.isdisjoint(
        rest | drawn.suspicion.keys() - suspected
    ):
        yield "the log names other suspected devices that waited than the draw goes by"
    if part.count != drawn.waiting - len(rest):
        rested = f", of which {len(rest)} rest" if rest else ""
        yield f"the log counts {drawn.waiting} waiting devices{rested}, and the tree has {part.count}"
    if part.total != drawn.examples:
        yield f"the log has {drawn.examples} examples of waiting devices, and the tree has {part.total}"
    if part.hash.hex() != drawn.root:
        yield "the log has another root of the tree of who waited than what it shows of that tree"
    yield from against_tree(part, select, choice.name, seed, drawn.round)
    if tuple((leaf.device, leaf.examples) for leaf in part.leaves) != drawn.cohort:
        strangers = sorted({device for device, _ in drawn.cohort} - shown)
        who = f": it shows no {', '.join(strangers[:3])}" if strangers else ""
        yield f"the tree of who waited shows another cohort than the log{who}"


def _read(blobs: Readable, digest: str) -> Any:
    with blobs.open(digest) as file:
        return json.loads(file.read())
