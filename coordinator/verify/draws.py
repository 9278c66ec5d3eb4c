"""Repeats each draw of a cohort from the tree or the list of who waited, the run's selection seed and the round; and
holds what a list says of devices, where the plan's selection reads it, against the reports and draws before it in the
log. Draws from a tree are repeated by code of this file, those from a list by the plan's selection.
"""

from __future__ import annotations

import hashlib
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

# ------------------------------------------------------------ the tree
# From what the log has of the tree of who waited: its count, its sum of examples, its root, and that part of it around
# those who were drawn. Written from ``docs/selection.md``: the tree and the draw are not the engine's.
#
# The part is a leaf ``[device, examples]``, a subtree that is not shown ``[count, sum, hash]``, or a fork of two parts.


@dataclass(frozen=True, slots=True)
class Leaf:
    device: str
    examples: int
    rank: int
    start: int
    """Where it begins in the sum of examples."""

    @property
    def weight(self) -> int:
        return max(1, self.examples)


@dataclass(frozen=True, slots=True)
class Part:
    """Of a tree: its devices and their sum, its hash, and the leaves that are shown."""

    count: int
    total: int
    hash: bytes
    leaves: list[Leaf]


def part_of(shown: Any, rank: int = 0, start: int = 0) -> Part:
    """What a part proves. ``rank``, ``start``: of its first device. ValueError, TypeError where it is none."""
    if not isinstance(shown, list):
        raise TypeError("a part of a tree is a list")
    if len(shown) == 3:
        count, total, hashed = int(shown[0]), int(shown[1]), bytes.fromhex(shown[2])
        if not 0 < count <= total < 2**64 or len(hashed) != 32:
            raise ValueError("a subtree has devices, each weighs at least 1, and a hash; a sum has 8 bytes")
        return Part(count, total, hashed, [])
    if isinstance(shown[0], str):
        device, examples = shown[0], int(shown[1])
        leaf = Leaf(device, examples, rank, start)
        return Part(1, leaf.weight, _hash(0, examples, tail=device.encode()), [leaf])
    left = part_of(shown[0], rank, start)
    right = part_of(shown[1], rank + left.count, start + left.total)
    count, total = left.count + right.count, left.total + right.total
    return Part(count, total, _hash(1, count, total, tail=left.hash + right.hash), left.leaves + right.leaves)


def against_tree(part: Part, select: int, choose: str, seed: int, round: int) -> Iterator[str]:
    """Yields what speaks against the leaves that are shown: they are those that are drawn."""
    names = [leaf.device for leaf in part.leaves]
    if names != sorted(set(names)):
        yield "the tree of who waited is not in order of id"
    words = _words(f"quorate selection{' by examples' * (choose == 'by_examples')} v1\n{seed}\n{round}\n")
    most = min(select, part.count)
    if choose == "uniform":
        ranks = _ranks(words, most, part.count)
        wrong = [leaf.device for leaf in part.leaves if leaf.rank not in ranks]
        lacks = len(ranks) > len(names) - len(wrong)
    else:
        drawn = _by_examples(words, most, part)
        wrong = [leaf.device for leaf in part.leaves if leaf.device not in drawn]
        lacks = len(drawn) < most
    if wrong or lacks:
        who = f": {', '.join(wrong[:3])} would not have been selected" if wrong else ""
        yield f"the draw from the tree of who waited gives another cohort than the log{who}"


def _ranks(words: Iterator[int], select: int, count: int) -> set[int]:
    """Floyd's sampling (Bentley and Floyd 1987, doi 10.1145/30401.315746)."""
    found = set[int]()
    for top in range(count - select, count):
        rank = _below(words, top + 1)
        found.add(top if rank in found else rank)
    return found


def _by_examples(words: Iterator[int], select: int, part: Part) -> set[str]:
    """The shown leaves that are drawn, up to a draw of a device that is not shown.

    Of what is left of the sum each draw takes a place. Before it lie ``passed`` of the parts that are taken: the most
    for which the next leaf would begin behind that place. The sums of taken weights stand in a Fenwick tree.
    """
    leaves, found = part.leaves, set[str]()
    sums = [0] * (len(leaves) + 1)
    left = part.total
    for _ in range(select):
        place, passed, taken = _below(words, left), 0, 0
        for step in (1 << bit for bit in reversed(range(len(leaves).bit_length()))):
            until = passed + step
            if until <= len(leaves) and leaves[until - 1].start - _before(sums, until - 1) <= place:
                passed, taken = until, taken + sums[until]
        leaf = leaves[passed - 1] if passed else None
        if leaf is None or place + taken >= leaf.start + leaf.weight or leaf.device in found:
            return found
        found.add(leaf.device)
        left -= leaf.weight
        while passed < len(sums):
            sums[passed] += leaf.weight
            passed += passed & -passed
    return found


def _before(sums: list[int], count: int) -> int:
    """What is taken of the first leaves."""
    total = 0
    while count:
        total += sums[count]
        count &= count - 1
    return total


def _below(words: Iterator[int], bound: int) -> int:
    return next(word for word in words if word < 2**64 - 2**64 % bound) % bound


def _words(text: str) -> Iterator[int]:
    counter = 0
    while True:
        block = hashlib.sha256(f"{text}{counter}".encode()).digest()
        yield from (int.from_bytes(block[at : at + 8], "big") for at in range(0, 32, 8))
        counter += 1


def _hash(kind: int, *numbers: int, tail: bytes) -> bytes:
    return hashlib.sha256(b"".join((bytes([kind]), *(n.to_bytes(8, "big") for n in numbers), tail))).digest()


# ------------------------------------------------------------ draws


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
