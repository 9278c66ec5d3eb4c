"""What the log shows of the tree of who waited proves the draw: each way to change it is named, also where the root is
made to fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.blobs import MemoryBlobs
from coordinator.engine.aggregation.parameters import settings
from coordinator.engine.pool_tree import PoolTree
from coordinator.engine.secure.suspicion import resting
from coordinator.engine.selection import SELECTIONS, Choice
from coordinator.verify.draws import DrawnCohort, against_draw, part_of

SEED, ROUND, SELECT = 11, 3, 5
WAITING = [(f"d{number:03}", number % 9) for number in range(60)]
SUSPICION = {"d004": 48, "d017": 48, "d033": 48, "d050": 48, "gone": 48}


def choice(name: str) -> Choice:
    return Choice(name=name, selection=SELECTIONS[name], settings=settings(name, "here", {}, {}))


class Draw:
    """An honest one, until somebody changes it."""

    def __init__(self, choose: str = "uniform", select: int = SELECT, suspicion: dict[str, int] | None = None) -> None:
        self.choice, self.select, self.blobs = choice(choose), select, MemoryBlobs()
        self.suspected = sorted({device for device, _ in WAITING} & (suspicion or {}).keys())
        rest = resting(suspicion or {}, self.suspected, len(WAITING) - select, seed=SEED, round=ROUND)
        self.tree = PoolTree(row for row in WAITING if row[0] not in rest)
        names = self.choice.draw(self.tree, select, seed=SEED, round=ROUND)
        self.ranks = [self.tree.rank(name) for name in names]
        cohort = tuple(self.tree[rank] for rank in self.ranks)
        said = {"examples": self.tree.total, "root": self.tree.root, "suspicion": suspicion or {}}
        self.drawn = DrawnCohort(ROUND, None, len(WAITING), cohort, **said)
        self.body: Any = {"tree": self.tree.shown(self.ranks)}
        if self.suspected:
            self.body["suspected"] = self.suspected

    def says(self, **fields: Any) -> None:
        self.drawn = replace(self.drawn, **fields)

    def fits(self) -> None:
        """The count, the sum and the root are those of the changed tree."""
        part = part_of(self.body["tree"])
        self.says(waiting=part.count, examples=part.total, root=part.hash.hex())

    def found(self) -> list[str]:
        drawn = replace(self.drawn, pool=self.blobs.put(json.dumps(self.body).encode()))
        return list(against_draw(self.blobs, self.select, self.choice, SEED, drawn, {}))


def hidden(shown: list[Any]) -> list[list[Any]]:
    """The subtrees that are not shown, from the left."""
    if len(shown) == 3:
        return [shown]
    return [] if isinstance(shown[0], str) else [*hidden(shown[0]), *hidden(shown[1])]


def leaves(shown: list[Any]) -> list[list[Any]]:
    if len(shown) == 3:
        return []
    return [shown] if isinstance(shown[0], str) else [*leaves(shown[0]), *leaves(shown[1])]


@pytest.mark.parametrize("select", [1, 2, 5, 59, 60, 90])
@pytest.mark.parametrize("choose", ["uniform", "by_examples"])
def test_an_honest_draw_is_repeated(choose: str, select: int) -> None:
    assert Draw(choose, select).found() == []


@pytest.mark.parametrize("choose", ["uniform", "by_examples"])
def test_an_honest_draw_without_who_rests_is_repeated(choose: str) -> None:
    draw = Draw(choose, suspicion=SUSPICION)
    assert 0 < len(WAITING) - len(draw.tree) <= 4
    assert draw.found() == []


def wrong_root(d: Draw) -> None:
    d.says(root=PoolTree(WAITING[1:]).root)


def wrong_count(d: Draw) -> None:
    d.says(waiting=61)


def wrong_sum(d: Draw) -> None:
    d.says(examples=d.drawn.examples + 1)


def wrong_path(d: Draw) -> None:
    hidden(d.body["tree"])[2][2] = "ab" * 32


def wrong_rank(d: Draw) -> None:
    """One more device before those that follow, one less at the end."""
    first, *_, last = hidden(d.body["tree"])
    first[0], first[1], last[0], last[1] = first[0] + 1, first[1] + 1, last[0] - 1, last[1] - 1
    d.fits()


def wrong_size_of_a_subtree(d: Draw) -> None:
    first = hidden(d.body["tree"])[0]
    first[1] += 40
    d.fits()


def wrong_examples_of_a_device(d: Draw) -> None:
    leaf = leaves(d.body["tree"])[0]
    leaf[1] += 100
    d.fits()
    d.says(cohort=tuple(map(tuple, leaves(d.body["tree"]))))


def undrawn_device_swapped_in(d: Draw) -> None:
    """With its own place in the same tree, in the log's cohort too."""
    other = next(rank for rank in range(60) if rank not in d.ranks)
    ranks = sorted([other, *d.ranks[1:]])
    d.body["tree"] = d.tree.shown(ranks)
    d.says(cohort=tuple(d.tree[rank] for rank in ranks))


def undrawn_device_in_a_drawn_place(d: Draw) -> None:
    """Under the name of the device that was drawn: the root is another one."""
    leaves(d.body["tree"])[1][0] += "x"
    d.says(cohort=tuple(map(tuple, leaves(d.body["tree"]))))


def drawn_device_left_out(d: Draw) -> None:
    d.body["tree"] = d.tree.shown(d.ranks[1:])
    d.says(cohort=d.drawn.cohort[1:])


def other_cohort_in_the_log(d: Draw) -> None:
    d.says(cohort=(("d001x", 3), *d.drawn.cohort[1:]))


def other_order(d: Draw) -> None:
    d.body["tree"].reverse()
    d.fits()
    d.says(cohort=tuple(map(tuple, leaves(d.body["tree"]))))


def no_tree(d: Draw) -> None:
    d.body = WAITING


def cut_tree(d: Draw) -> None:
    hidden(d.body["tree"])[0].pop()


def empty_subtree(d: Draw) -> None:
    hidden(d.body["tree"])[0][:2] = [0, 0]


def endless_tree(d: Draw) -> None:
    """Of so many devices that no word of 64 bits gives a rank."""
    d.body["tree"] = [2**65, 2**65, "ab" * 32]
    d.says(waiting=2**65, examples=2**65, root="ab" * 32, cohort=())


ANOTHER = "the draw from the tree of who waited gives another cohort than the log"
DOCTORINGS: dict[Callable[[Draw], None], str] = {
    wrong_root: "the log has another root of the tree of who waited than what it shows of that tree",
    wrong_count: "the log counts 61 waiting devices, and the tree has 60",
    wrong_sum: "examples of waiting devices, and the tree has",
    wrong_path: "the log has another root",
    wrong_rank: ANOTHER,
    undrawn_device_swapped_in: "would not have been selected",
    undrawn_device_in_a_drawn_place: "the log has another root",
    drawn_device_left_out: ANOTHER,
    other_cohort_in_the_log: "shows another cohort than the log: it shows no d001x",
    other_order: "not in order of id",
    no_tree: "the tree of who waited cannot be read",
    cut_tree: "the tree of who waited cannot be read",
    empty_subtree: "the tree of who waited cannot be read",
    endless_tree: "the tree of who waited cannot be read",
}
OF_SUMS = {wrong_size_of_a_subtree: ANOTHER, wrong_examples_of_a_device: ANOTHER}


@pytest.mark.parametrize(
    ("choose", "doctor"),
    [(choose, one) for choose in ("uniform", "by_examples") for one in DOCTORINGS]
    + [("by_examples", one) for one in OF_SUMS],
)
def test_a_change_of_what_the_log_has_of_a_draw_is_named(choose: str, doctor: Callable[[Draw], None]) -> None:
    draw = Draw(choose)
    doctor(draw)
    assert any((DOCTORINGS | OF_SUMS)[doctor] in what for what in draw.found()), draw.found()


@pytest.mark.parametrize("suspected", [["d004", "d017", "d033"], ["d001", *sorted(SUSPICION)[:4]], []])
def test_other_suspected_devices_are_named(suspected: list[str]) -> None:
    draw = Draw(select=50, suspicion=SUSPICION)
    draw.body["suspected"] = suspected
    assert any("the log names other suspected devices" in what or "of which" in what for what in draw.found())


def test_a_list_has_no_root() -> None:
    draw = Draw()
    draw.choice, draw.body = choice("fixed"), WAITING
    draw.says(cohort=tuple(row for row in WAITING if row[0] in draw.choice.draw(WAITING, 5, seed=SEED, round=ROUND)))
    (found,) = draw.found()
    assert "fixed draws from a list" in found
    draw.says(examples=0, root="")
    assert draw.found() == []
