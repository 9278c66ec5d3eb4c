"""Who is selected: uniform draws are uniform, proportional ones are successive sampling, both can be repeated alone.

The figures of docs/selection.md are computed here again.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from client_sdk import chance as hashing
from coordinator.engine.selection import by_examples, draw, uniform
from tests.coordinator.engine import inclusion

DOCS = (Path(__file__).parents[3] / "docs" / "selection.md").read_text()
SIZES = [10, 20, 30, 40, 60, 80, 160, 400]


def pool(n: int, sizes: Sequence[int] | None = None) -> list[tuple[str, int]]:
    return [(f"d{i:05d}", sizes[i] if sizes else 10) for i in range(n)]


def chi_square(counts: Counter[object], cells: int, draws: int) -> float:
    assert len(counts) <= cells
    expected = draws / cells
    return sum((count - expected) ** 2 for count in counts.values()) / expected + (cells - len(counts)) * expected


# ---------------------------------------------------------------- uniform


@pytest.mark.parametrize(
    ("n", "k", "limit"),
    [  # limit: 99.9 % of chi-square with (n choose k) - 1 degrees of freedom. Fixed seeds: never flaky
        (5, 1, 18.47),
        (5, 2, 27.88),
        (5, 4, 18.47),
        (6, 3, 43.82),
    ],
)
def test_every_subset_is_equally_likely(n: int, k: int, limit: float) -> None:
    draws, waiting = 4000, pool(n)
    counts: Counter[object] = Counter(tuple(uniform(waiting, k, seed=11, round=number)) for number in range(draws))
    subsets = list(itertools.combinations([device for device, _ in waiting], k))
    assert set(counts) == set(subsets)
    assert chi_square(counts, len(subsets), draws) < limit


def test_rounds_are_drawn_independently_of_each_other() -> None:
    draws, waiting = 4000, pool(4)
    chosen = [uniform(waiting, 1, seed=3, round=number)[0] for number in range(draws + 1)]
    pairs: Counter[object] = Counter(itertools.pairwise(chosen))
    assert chi_square(pairs, 16, draws) < 37.70


@pytest.mark.parametrize("choose", ["uniform", "by_examples"])
@pytest.mark.parametrize(("n", "k", "wanted"), [(0, 3, 0), (2, 3, 2), (3, 3, 3), (4, 3, 3), (1, 1, 1)])
def test_a_pool_smaller_than_the_cohort_is_taken_whole(choose: str, n: int, k: int, wanted: int) -> None:
    chosen = draw(pool(n), k, choose=choose, seed=1, round=1)  # type: ignore[arg-type]
    assert len(chosen) == wanted
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= {device for device, _ in pool(n)}


@pytest.mark.parametrize("method", [uniform, by_examples])
def test_a_draw_is_a_function_of_seed_and_round(method: Callable[..., list[str]]) -> None:
    waiting = pool(50, list(range(1, 51)))
    first = method(waiting, 10, seed=7, round=137)
    assert first == method(list(waiting), 10, seed=7, round=137)
    assert first != method(waiting, 10, seed=8, round=137)
    assert first != method(waiting, 10, seed=7, round=138)


def test_golden_draws() -> None:
    """A cohort of an old round must come out again from its log: these values never change."""
    assert uniform(pool(1000), 3, seed=42, round=9) == ["d00071", "d00243", "d00682"]
    assert by_examples(pool(1000, list(range(1, 1001))), 3, seed=42, round=9) == ["d00642", "d00652", "d00993"]


def test_uniform_draws_places_in_the_sorted_pool_and_examples_draws_devices() -> None:
    """The caller sorts: the same devices in another order are other places. Keys belong to devices."""
    waiting = pool(30, list(range(1, 31)))
    renamed = [(device.replace("d", "e"), size) for device, size in waiting]
    chosen = uniform(waiting, 5, seed=2, round=2)
    assert [device.replace("e", "d") for device in uniform(renamed, 5, seed=2, round=2)] == chosen
    assert uniform(waiting[::-1], 5, seed=2, round=2) != chosen
    assert by_examples(waiting[::-1], 5, seed=2, round=2) == by_examples(waiting, 5, seed=2, round=2)


class Counting(Sequence[tuple[str, int]]):
    """A pool of a given size that is never written down, and counts how often it is looked at."""

    def __init__(self, n: int) -> None:
        self.n, self.looks = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[str, int]:  # type: ignore[override]
        self.looks += 1
        return f"d{index:08d}", 10

    def __iter__(self) -> Iterator[tuple[str, int]]:
        raise AssertionError("a uniform draw reads the whole pool")


def test_the_cost_of_a_uniform_draw_does_not_grow_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0
    sha256 = hashing.sha256

    def counting(data: bytes) -> object:
        nonlocal hashed
        hashed += 1
        return sha256(data)

    monkeypatch.setattr(hashing, "sha256", counting)
    costs = []
    for n in (1_000, 100_000, 10_000_000):
        hashed, waiting = 0, Counting(n)
        assert len(uniform(waiting, 300, seed=5, round=1)) == 300
        costs.append((hashed, waiting.looks))
    assert costs == [(75, 300)] * 3, "300 draws of 64 bits are 75 hashes; 300 devices are looked at"


# ---------------------------------------------------------------- by examples


def test_the_recursion_itself_agrees_with_a_case_by_hand() -> None:
    """Sizes 1, 1, 2 and two draws: P(1) = 1/4 + 1/4 * 1/3 + 1/2 * 1/2 = 7/12; P(2) = 1/2 + 2 * 1/4 * 2/3 = 5/6."""
    assert inclusion.exact([1, 1, 2], 2) == pytest.approx([7 / 12, 7 / 12, 5 / 6])
    assert inclusion.exact([5, 1, 4], 1) == pytest.approx([0.5, 0.1, 0.4])
    assert inclusion.exact(SIZES, 8) == pytest.approx([1.0] * 8)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_inclusion_probabilities_are_those_of_successive_sampling(k: int) -> None:
    draws, waiting = 4000, pool(8, SIZES)
    counts = Counter(device for number in range(draws) for device in by_examples(waiting, k, seed=21, round=number))
    for (device, _), chance in zip(waiting, inclusion.exact(SIZES, k), strict=True):
        deviation = (draws * chance * (1 - chance)) ** 0.5
        assert abs(counts[device] - draws * chance) < 4 * deviation + 1, (device, counts[device], draws * chance)


def test_the_approximation_for_large_pools_is_near_the_exact_recursion() -> None:
    sizes = inclusion.log_normal(14, 1.0)
    for exact, near in zip(inclusion.exact(sizes, 5), inclusion.nearly(sizes, 5), strict=True):
        assert near == pytest.approx(exact, abs=0.02)


def test_a_devices_key_does_not_depend_on_who_else_waits() -> None:
    waiting = pool(40, [1 + i % 7 for i in range(40)])
    chosen = by_examples(waiting, 10, seed=4, round=4)
    left = [entry for entry in waiting if entry[0] in chosen or entry[0] < "d00020"]
    assert by_examples(left, 10, seed=4, round=4) == chosen


def test_a_device_without_examples_counts_as_one_of_the_smallest() -> None:
    counts = Counter(by_examples([("a", 0), ("b", 9)], 1, seed=1, round=number)[0] for number in range(3000))
    assert counts["a"] / 3000 == pytest.approx(0.1, abs=0.025)


# ---------------------------------------------------------------- the page


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading of docs/selection.md, without its two first lines."""
    section = DOCS.split(heading)[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return rows[2:]


def test_the_pages_exact_figures_are_right() -> None:
    rows = table("## What is drawn, exactly")
    assert [int(row[0]) for row in rows] == SIZES
    for column, k in enumerate((1, 3, 6), start=1):
        wanted = [f"{chance:.3f}" for chance in inclusion.exact(SIZES, k)]
        assert [row[column] for row in rows] == wanted


def test_the_pages_figures_of_bias_are_right() -> None:
    rows = table("## What bias is left")
    assert len(rows) == 6
    pools = {sigma: inclusion.log_normal(1000, sigma) for sigma in (0.5, 1.0, 1.5)}
    for row in rows:
        k = int(row[0])
        wanted = [f"{100 * inclusion.distance(sizes, inclusion.nearly(sizes, k), k):.1f} %" for sizes in pools.values()]
        assert row[1:] == wanted


def test_the_page_says_how_small_pools_are_biased() -> None:
    found = re.search(r"k = 3: ([\d.]+) %; k = 6: ([\d.]+) %", DOCS)
    assert found is not None
    for text, k in zip(found.groups(), (3, 6), strict=True):
        assert text == f"{100 * inclusion.distance(SIZES, inclusion.exact(SIZES, k), k):.1f}"
