"""Who is selected: uniform draws are uniform, proportional ones are successive sampling, both can be repeated alone.

The figures of docs/selection.md are computed here again.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk import chance as hashing
from client_sdk.chance import WordStream
from coordinator.engine.aggregation.parameters import ExtensionError, Parameter, Settings, settings
from coordinator.engine.pool_tree import PoolTree
from coordinator.engine.selection import NO_PACE, SELECTIONS, Candidate, Choice, Known, by_examples, uniform
from tests.coordinator.engine import inclusion

DOCS = (Path(__file__).parents[3] / "docs" / "selection.md").read_text()
SIZES = [10, 20, 30, 40, 60, 80, 160, 400]


def pool(n: int, sizes: Sequence[int] | None = None) -> list[tuple[str, int]]:
    return [(f"d{i:05d}", sizes[i] if sizes else 10) for i in range(n)]


def choice(name: str, **given: float) -> Choice:
    selection = SELECTIONS[name]
    return Choice(name=name, selection=selection, settings=settings(name, "here", selection.parameters, given))


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
    chosen = choice(choose).draw(pool(n), k, seed=1, round=1)
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
    assert by_examples(pool(1000, list(range(1, 1001))), 3, seed=42, round=9) == ["d00692", "d00883", "d00944"]


def test_uniform_draws_places_in_the_sorted_pool_and_examples_draws_devices() -> None:
    """The caller sorts: the same devices in another order are other places. A draw by examples sorts them itself."""
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


def test_pairs_of_devices_meet_as_often_as_successive_sampling_says_in_a_round_and_over_rounds() -> None:
    """In one round the two of a pair keep each other out; what a round draws says nothing of the next one."""
    rounds, k, waiting = 6000, 3, PoolTree(pool(8, SIZES))
    cohorts = [by_examples(waiting, k, seed=17, round=number) for number in range(rounds)]
    together = Counter(pair for cohort in cohorts for pair in combinations(cohort, 2))
    names, chances = [device for device, _ in waiting], inclusion.exact(SIZES, k)
    wanted = {tuple(names[at] for at in pair): chance for pair, chance in inclusion.pairs(SIZES, k).items()}
    assert sum(wanted.values()) == pytest.approx(3)
    for pair, chance in wanted.items():
        assert abs(together[pair] - rounds * chance) < 4 * (rounds * chance * (1 - chance)) ** 0.5 + 1, pair
    after = Counter(pair for one, other in pairwise(cohorts) for pair in product(one, other))
    for (one, p), (other, q) in product(zip(names, chances, strict=True), repeat=2):
        assert abs(after[one, other] - rounds * p * q) < 4.5 * (rounds * p * q) ** 0.5 + 1, (one, other)


@pytest.mark.parametrize("k", [0, 1, 7, 199, 200, 300])
@pytest.mark.parametrize("draw", [uniform, by_examples])
def test_a_tree_and_its_list_give_the_same_cohort(draw: Callable[..., list[str]], k: int) -> None:
    waiting = pool(200, [number % 11 for number in range(200)])
    assert draw(PoolTree(waiting), k, seed=5, round=k) == draw(waiting, k, seed=5, round=k)


def test_thousands_are_drawn_in_proportion_each_at_its_place() -> None:
    """Of all devices that are left, in order of id, the one at a place in their sum: repeated here from the list."""
    waiting = pool(1500, [1 + number * 7 % 23 for number in range(1500)])
    draws, left, drawn = WordStream(b"quorate selection by examples v1\n9\n4\n"), list(waiting), []
    for _ in range(1200):
        ends = [*accumulate(size for _, size in left)]
        drawn.append(left.pop(bisect_right(ends, draws.below(ends[-1])))[0])
    assert by_examples(PoolTree(waiting), 1200, seed=9, round=4) == sorted(drawn)


def test_a_device_without_examples_counts_as_one_of_the_smallest() -> None:
    counts = Counter(by_examples([("a", 0), ("b", 9)], 1, seed=1, round=number)[0] for number in range(3000))
    assert counts["a"] / 3000 == pytest.approx(0.1, abs=0.025)


# ---------------------------------------------------------------- power of choice


def test_power_of_choice_with_one_candidate_a_place_is_a_draw_by_examples() -> None:
    """Cho et al. 2020: with d = m the sampling is unbiased, in proportion to the data, whatever the losses are."""
    known = {f"d{number:05d}": Known(loss=number * 0.1) for number in range(0, 40, 2)}
    waiting, drawn = pool(40, [1 + number % 9 for number in range(40)]), choice("power-of-choice", factor=1)
    for number in range(1, 50):
        found = drawn.draw(drawn.rows(waiting, known), 7, seed=3, round=number)
        assert found == by_examples(waiting, 7, seed=3, round=number)


def test_power_of_choice_takes_the_unknown_and_then_the_highest_losses_of_its_candidates() -> None:
    drawn, waiting = choice("power-of-choice", factor=2), pool(30, [5] * 30)
    losses = {device: (number * 7) % 30 / 10 for number, (device, _) in enumerate(waiting)}
    known = {device: Known(loss=loss) for device, loss in losses.items() if device not in ("d00003", "d00011")}
    met = 0
    for number in range(1, 40):
        candidates = by_examples(waiting, 12, seed=5, round=number)
        found = drawn.draw(drawn.rows(waiting, known), 6, seed=5, round=number)
        order = sorted(candidates, key=lambda device: -losses[device] if device in known else -99)
        assert found == sorted(order[:6])
        met += "d00003" in found
    assert met > 5


def test_power_of_choice_with_as_many_candidates_as_devices_takes_the_highest_losses_of_all() -> None:
    drawn, waiting = choice("power-of-choice", factor=5), pool(20, [1 + number for number in range(20)])
    known = {device: Known(loss=float(number % 10)) for number, (device, _) in enumerate(waiting)}
    found = drawn.draw(drawn.rows(waiting, known), 4, seed=1, round=1)
    assert found == ["d00008", "d00009", "d00018", "d00019"]


def test_candidates_for_a_part_of_a_place_are_rounded_up() -> None:
    """1.5 for each of 3 places: the fifth that is drawn by examples is one, the sixth is none."""
    waiting = pool(12, [10 + 7 * at for at in range(12)])
    order = [set(by_examples(waiting, count, seed=4, round=2)) for count in (4, 5, 6)]
    (fifth,), (sixth,) = order[1] - order[0], order[2] - order[1]
    known = {name: Known(loss=1.0) for name, _ in waiting}
    drawn = choice("power-of-choice", factor=1.5)
    for name, there in ((fifth, True), (sixth, False)):
        rows = drawn.rows(waiting, {**known, name: Known(loss=9.0)})
        assert (name in drawn.draw(rows, 3, seed=4, round=2)) is there


# ---------------------------------------------------------------- oort


def oort_counts(known: dict[str, Known], n: int, k: int, rounds: int, **given: float) -> Counter[str]:
    drawn, waiting = choice("oort", **given), pool(n)
    rows = drawn.rows(waiting, known)
    return Counter(name for number in range(2, rounds + 2) for name in drawn.draw(rows, k, seed=9, round=number))


def test_oort_prefers_high_losses_of_fast_devices() -> None:
    """Ten each: high loss and fast, high loss and slow, low loss and fast, low loss and slow."""
    known = {
        f"d{number:05d}": Known(
            loss=2.0 if number < 20 else 0.1, seconds=10.0 if number // 10 % 2 else 1.0, last_round=1
        )
        for number in range(40)
    }
    counts = oort_counts(known, 40, 10, 200)
    assert [sum(counts[f"d{10 * kind + number:05d}"] for number in range(10)) for kind in range(4)] == [2000, 0, 0, 0]
    without_times = oort_counts(known, 40, 20, 50, alpha=0)
    assert [without_times[f"d{number:05d}"] for number in (0, 10, 20, 30)] == [50, 50, 0, 0]


def test_oorts_best_device_is_that_of_the_papers_utility() -> None:
    """Algorithm 1, with 1.0 as cutoff in all but name: of 30 devices the one with the largest utility is drawn."""
    rng, exact, slow = np.random.default_rng(3), 0, 0
    for number in range(2, 60):
        losses, seconds = rng.exponential(2.0, 30), rng.lognormal(1.0, 0.7, 30)
        last, sizes = rng.integers(1, number, 30), rng.integers(1, 60, 30)
        waiting = pool(30, sizes.tolist())
        known = {
            name: Known(loss=float(losses[at]), seconds=float(seconds[at]), selected=3, last_round=int(last[at]))
            for at, (name, _) in enumerate(waiting)
        }
        drawn = choice("oort", cutoff=0.9999999, explore=0, least=0, preferred=0.5)
        gain = sizes * losses
        gain = (np.minimum(gain, np.sort(gain)[int(0.95 * 29)]) - gain.min()) / (
            np.sort(gain)[int(0.95 * 29)] - gain.min()
        )
        preferred = np.sort(seconds)[15]
        utility = gain + np.sqrt(0.1 * np.log(number) / last)
        utility *= np.where(seconds > preferred, (preferred / seconds) ** 2, 1.0)
        best, second = np.argsort(-utility)[:2]
        if utility[second] < 0.9999 * utility[best]:
            found = drawn.draw(drawn.rows(waiting, known), 1, seed=1, round=number)
            assert found == [waiting[int(best)][0]]
            exact, slow = exact + 1, slow + bool(np.argmax(gain) != best)
    assert exact > 40
    assert slow > 20, "time and turn matter in many of them"


def test_oort_explores_a_share_that_decays_and_takes_those_drawn_seldom_first() -> None:
    known = {f"d{number:05d}": Known(loss=1.0, seconds=1.0, selected=1, last_round=1) for number in range(20)}
    known |= {f"d{number:05d}": Known(selected=3, last_round=1) for number in range(20, 30)}  # silent: never reported
    drawn, waiting = choice("oort"), pool(40)
    for number, share in ((2, 9), (30, 5), (400, 2)):  # 0.9 * 0.98^(round - 1), at least 0.2, of 10 places
        found = drawn.draw(drawn.rows(waiting, known), 10, seed=1, round=number)
        assert sum(name >= "d00030" for name in found) == share
        assert sum("d00020" <= name < "d00030" for name in found) == 0


def test_oort_comes_back_to_devices_that_it_has_not_drawn_for_long() -> None:
    known = {f"d{number:05d}": Known(loss=1.0, seconds=1.0, last_round=99) for number in range(20)}
    known["d00007"] = Known(loss=0.99, seconds=1.0, last_round=1)
    known["d00019"] = Known(loss=0.9, seconds=1.0, last_round=99)
    rows = choice("oort").rows(pool(20), known)
    assert "d00007" in choice("oort", cutoff=0.999).draw(rows, 1, seed=1, round=100)


def test_repro_losses_that_devices_made_up_leave_no_place_empty() -> None:
    known = {f"d{number:05}": Known(1e308 if number < 3 else 1.0, 1.0, 1, 1) for number in range(20)}
    rows = choice("oort").rows(pool(20, [1000] * 20), known)
    assert len(choice("oort").draw(rows, 19, seed=1, round=3)) == 19


def test_oort_draws_all_places_whoever_is_known() -> None:
    for known_of in range(13):
        known = {f"d{number:05d}": Known(loss=0.0, seconds=0.0, last_round=1) for number in range(known_of)}
        rows = choice("oort").rows(pool(12), known)
        for k in (1, 5, 12, 20):
            assert len(choice("oort").draw(rows, k, seed=1, round=3)) == min(k, 12)


def test_the_pacer_moves_when_a_window_has_less_utility_than_the_one_before() -> None:
    """Lai et al. 2021, section 4.3, with windows of two rounds."""
    pace, moved = NO_PACE, []
    for gain in (5.0, 5.0, 4.0, 4.0, 3.0, 6.0, 6.0, 2.0, 9.0, 9.0):
        pace = pace.after([(2, gain / 2), (7, None), (0, 3.0)], 2)
        moved.append(pace.moved)
    assert moved == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert pace.gains == (9.0, 9.0)
    assert pace.after([(2**31, 1e308)] * 3, 2).gains[-1] < float("inf")


class Theirs:
    """A package's selection."""

    varies = False
    reads = ("loss",)
    parameters: ClassVar[dict[str, Parameter]] = {"pace": Parameter(meaning="theirs", default=1, least=0, below=9)}

    def select(self, pool: Sequence[Candidate], k: int, **_: Any) -> list[str]:
        return [one.device for one in pool[:k]]


def test_oort_takes_slower_devices_when_its_pacer_has_moved() -> None:
    """Ten fast devices of low losses, and ten slow ones of high losses."""
    known = {f"d{n:05d}": Known(loss=1.0 + n // 10, seconds=1.0 + n // 10 * 9, last_round=1) for n in range(20)}
    drawn, waiting = choice("oort", explore=0, least=0, pace=0.3), pool(20)
    rows = drawn.rows(waiting, known)
    cohorts = [drawn.draw(rows, 5, seed=1, round=2, moved=moved) for moved in range(5)]
    assert [sum(name >= "d00010" for name in cohort) for cohort in cohorts] == [0, 5, 5, 5, 5]
    assert (drawn.window, choice("oort").window) == (20, 0)
    assert Choice(name="clinic:turn", selection=Theirs(), settings={"pace": 1}).window == 0, "a number of their own"


# ---------------------------------------------------------------- cyclic, fixed, poisson


def test_cyclic_takes_those_drawn_longest_ago_and_of_these_those_drawn_less_often() -> None:
    known = {f"d{at:05d}": Known(selected=often, last_round=last) for at, (often, last) in enumerate(TURNS)}
    drawn = choice("cyclic")
    rows = drawn.rows(pool(len(TURNS)), known)
    order = [set(drawn.draw(rows, k, seed=1, round=9)) for k in range(1, 6)]
    assert [sorted(now - before) for before, now in itertools.pairwise([set[str](), *order])] == [
        ["d00003"],
        ["d00001"],
        ["d00000"],
        ["d00004"],
        ["d00002"],
    ]


TURNS = ((5, 3), (2, 3), (1, 8), (9, 1), (1, 7))
"""(how often, in which round last)."""


def test_cyclic_draws_all_before_it_draws_any_twice() -> None:
    drawn, waiting, known = choice("cyclic"), pool(23), dict[str, Known]()
    counts: Counter[str] = Counter()
    for number in range(1, 24):
        found = drawn.draw(drawn.rows(waiting, known), 5, seed=6, round=number)
        counts.update(found)
        known |= {device: Known(selected=counts[device], last_round=number) for device in found}
        assert max(counts.values()) - min(counts[device] for device, _ in waiting) <= 1
    assert set(counts.values()) == {5}


def test_a_fixed_cohort_stays_as_long_as_it_waits() -> None:
    drawn, waiting = choice("fixed"), pool(30)
    first = drawn.draw(waiting, 6, seed=4, round=1)
    assert all(drawn.draw(waiting, 6, seed=4, round=number) == first for number in range(2, 30))
    assert drawn.draw(waiting, 6, seed=5, round=1) != first
    others = drawn.draw([row for row in waiting if row[0] != first[2]], 6, seed=4, round=2)
    assert set(first) - {first[2]} < set(others)


def test_a_poisson_cohort_has_each_device_by_itself_with_the_same_probability() -> None:
    draws, n, k = 4000, 12, 4
    drawn, waiting = choice("poisson"), pool(n)
    cohorts = [drawn.draw(waiting, k, seed=8, round=number) for number in range(1, draws + 1)]
    counts = Counter(device for cohort in cohorts for device in cohort)
    pairs = Counter(pair for cohort in cohorts for pair in itertools.combinations(cohort, 2))
    deviation = (draws * k / n * (1 - k / n)) ** 0.5
    assert all(abs(counts[device] - draws * k / n) < 4 * deviation for device, _ in waiting)
    deviation = (draws / 9 * (1 - 1 / 9)) ** 0.5
    assert all(abs(pairs[pair] - draws / 9) < 4 * deviation for pair in itertools.combinations(dict(waiting), 2))
    sizes = [len(cohort) for cohort in cohorts]
    mean = sum(sizes) / draws
    assert mean == pytest.approx(k, abs=0.1)
    assert sum((size - mean) ** 2 for size in sizes) / draws == pytest.approx(n * (1 / 3) * (2 / 3), rel=0.1)


# ---------------------------------------------------------------- what a draw is held to


class Wrong:
    reads = ()
    varies = False
    parameters: ClassVar[dict[str, Parameter]] = {}

    def __init__(self, found: Sequence[str] | Exception, **changed: object) -> None:
        self.found = found
        vars(self).update(changed)

    def select(self, pool: Sequence[Candidate], k: int, *, seed: int, round: int, settings: Settings) -> Sequence[str]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (["d00000", "d00000"], "gives a device twice, or one that does not wait"),
        (["d00000", "d00009"], "gives a device twice, or one that does not wait"),
        (["d00000"], "gives 1 devices where 2 are to be drawn"),
        (["d00000", "d00001", "d00002"], "gives 3 devices where 2 are to be drawn"),
        ([["d00000"], ["d00001"]], "failed: TypeError: unhashable type: 'list'"),
        (ZeroDivisionError("no"), "failed: ZeroDivisionError: no"),
    ],
)
def test_what_is_no_cohort_is_refused_in_a_sentence(found: Any, sentence: str) -> None:
    wrong = Choice(name="clinic:wrong", selection=Wrong(found), settings={})
    with pytest.raises(ExtensionError, match=f"the selection clinic:wrong {sentence}"):
        wrong.draw(pool(5), 2, seed=1, round=1)


def test_a_selection_that_says_so_may_give_another_number_and_no_selection_reads_what_is_not_kept() -> None:
    some = Choice(name="clinic:some", selection=Wrong(["d00003"], varies=True), settings={})
    assert some.draw(pool(5), 2, seed=1, round=1) == ["d00003"]
    with pytest.raises(ExtensionError, match="choose: clinic:age reads 'age', and there are loss, seconds"):
        Choice(name="clinic:age", selection=Wrong([], reads=("loss", "age")), settings={})


def test_a_selection_sees_of_devices_only_what_it_says_that_it_reads() -> None:
    seen: list[Candidate] = []

    class Looking(Wrong):
        def select(self, pool: Sequence[Candidate], k: int, **more: object) -> Sequence[str]:
            seen.extend(pool)
            return [one.device for one in pool[:k]]

    looking = Choice(name="clinic:look", selection=Looking([], reads=("selected", "loss")), settings={})
    rows = looking.rows(pool(2), {"d00001": Known(loss=0.5, seconds=3.0, selected=2, last_round=7)})
    assert rows == [("d00000", 10, 0, None), ("d00001", 10, 2, 0.5)]
    looking.draw(rows[::-1], 1, seed=1, round=8)
    assert seen == [Candidate("d00000", 10), Candidate("d00001", 10, loss=0.5, selected=2)]


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
