"""The fault explorer finds no bug in the product, and finds every mutant.

The seeds rotate: each day begins at another seed. ``EXPLORE_SCHEDULES`` and ``EXPLORE_SEED`` override it. The seeds of
the corpus (``corpus.py``) are played every other day, until every event and every fault has met every phase.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FunctionType

import pytest
import typer
from typer.testing import CliRunner

from tests.explorer.__main__ import explore as explore_command
from tests.explorer.counts import Coverage
from tests.explorer.invariants import INVARIANTS
from tests.explorer.mutants import MUTANTS, BuggyProduct
from tests.explorer.mutants.__main__ import BUDGET as MUTANT_BUDGET
from tests.explorer.mutants.__main__ import main as mutants_command
from tests.explorer.schedule import Schedule
from tests.explorer.search import PRODUCT, SearchReport, explore, play, play_many
from tests.explorer.shape import Shape
from tests.explorer.shrink import shrink
from tests.faults import corpus
from tests.faults.corpus import ANEW, Corpus, Known, complete, cover, shows
from tests.faults.soak_page import add_to_count
from tests.rotating import in_parts, on_day

pytestmark = pytest.mark.whole

SCHEDULES = int(os.environ.get("EXPLORE_SCHEDULES", "120"))
SEED = int(os.environ.get("EXPLORE_SEED", str(int(time.time() // 86_400) * 1_000_000)))
SOAK_PAGE = Path(__file__).parents[2] / "docs" / "soak.md"


def failures(report: SearchReport) -> str:
    """The broken invariants, each with the command that repeats it."""
    lines = [f"{item.invariant}: {item.what} ({PRODUCT.again(item.seed)})" for item in report.findings]
    return "\n".join(lines)


@on_day(0, of=2)
def test_repro_a_schedule_is_the_same_whatever_the_order_of_sets() -> None:
    """Devices of a Flower run were woken in the order of a set of texts, which differs from process to process."""

    def trace(order: str) -> str:
        words = [sys.executable, *shlex.split(PRODUCT.again(20786000011))[1:]]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONHASHSEED": order, "PYTHONPATH": root}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=True)
        return re.sub(r"quorate-explorer-\w+|seconds [0-9.]+", "", done.stdout)

    assert trace("0") == trace("3") != ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_invariant_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    report = explore(SEED, SCHEDULES)
    with capsys.disabled():
        print(f"\nexplorer, from seed {SEED}: {report.to_json()}")
    assert not report.findings, failures(report)
    assert report.tally.schedules == SCHEDULES


@on_day(1, of=2)
@pytest.mark.timeout(1800)
def test_every_event_and_fault_meets_every_phase() -> None:
    never = complete(Coverage(), Corpus.read().schedules).never()
    assert not never, f"never met: {never}; {ANEW}"


@pytest.mark.slow
@pytest.mark.parametrize("name", in_parts(MUTANTS, of=2))
def test_mutant_is_caught_by_the_invariant_it_breaks(name: str) -> None:
    known = Corpus.read().mutants.get(name)
    if known is not None and shows(name, known):
        return
    warnings.warn(f"seed {known} does not show {name}, which costs a search; {ANEW}", stacklevel=1)
    report = play_many(range(MUTANT_BUDGET), BuggyProduct(name), enough=1)
    assert report.findings, f"{name} survived {MUTANT_BUDGET} schedules: {MUTANTS[name].description}"
    assert report.findings[0].invariant in MUTANTS[name].breaks, failures(report)


def test_corpus_has_a_seed_for_most_mutants() -> None:
    """A mutant without one costs a search in each run of the tests."""
    lacking = MUTANTS.keys() - Corpus.read().mutants.keys()
    assert len(lacking) <= 3, f"{sorted(lacking)}: {ANEW}"


def test_cover_takes_the_seeds_that_meet_most_of_what_is_missing() -> None:
    a, b, c = ("tick", "idle"), ("crash", "idle"), ("pause", "idle")
    one, two, three, four = map(Known, range(1, 5))
    met = {one: frozenset({a}), two: frozenset({a, b}), three: frozenset({b, c}), four: frozenset({a, b, c})}
    assert cover(met, times=1) == [four]
    assert cover(met, times=2) == [four, two, three], "those that meet all once come first"
    assert cover({one: frozenset({a})}, times=2) == [one], "met as often as it can be"


def test_a_search_for_a_corpus_that_is_interrupted_has_written_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes long, and never came to its end: then nothing of it was there."""
    pair, later = ("tick", "idle"), ("tick", "selecting")
    monkeypatch.setattr(corpus, "FILE", tmp_path / "corpus.json")
    monkeypatch.setattr(corpus, "FIRST", 0)
    monkeypatch.setattr(corpus, "MUTANTS", {})
    monkeypatch.setattr(Coverage, "never", lambda self: [pair, later])

    def played(known: Known) -> Coverage:
        if known.phase == "selecting":
            raise KeyboardInterrupt
        met = Coverage()
        met.event(*pair)
        return met

    monkeypatch.setattr(corpus, "_played", played)
    with pytest.raises(typer.Exit):
        corpus.main(write=True)
    found = Corpus.read().schedules
    assert len(found) == corpus.TIMES
    assert {known.phase for known in found} == {"idle"}


def test_there_are_enough_mutants_and_each_names_what_it_breaks() -> None:
    assert len(MUTANTS) >= 20
    assert "double-count" in MUTANTS
    for mutant in MUTANTS.values():
        assert mutant.description
        assert mutant.breaks
        assert set(mutant.breaks) <= set(INVARIANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_finds_what_it_patches(name: str) -> None:
    """A name that was changed in the product fails here at once, not only in the slow search; and so does a function
    that does not take what the product gives it, which would be found for that alone."""
    for owner, place, instead in MUTANTS[name].patches():
        given = inspect.getattr_static(owner, place)
        if isinstance(given, FunctionType) and isinstance(instead, FunctionType):
            parameters = inspect.signature(given).parameters.values()
            positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
            named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
            inspect.signature(instead).bind(*positional, **named)
    with MUTANTS[name].on():
        pass


def test_an_exception_is_a_finding_with_its_seed_and_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the whole search, and no seed was said."""

    def lacks(*_: object) -> None:
        raise KeyError("what the explorer should know")

    monkeypatch.setattr(Schedule, "_settle", lacks)
    trace: list[str] = []
    _, broken = play(Shape.of(3), trace=trace)
    assert broken is not None
    assert (broken.invariant, broken.what[:43]) == ("no-bug", "KeyError: 'what the explorer should know', ")
    assert "in lacks (test_explorer.py:" in broken.what
    assert "Traceback (most recent call last)" in trace[-1]
    assert [found.seed for found in play_many(range(3, 5)).findings] == [3, 4]


@pytest.mark.parametrize("seed", [3, 7, 11, 18, 148])
def test_one_seed_is_one_schedule(seed: int) -> None:
    """Also where calls stand still on threads of their own (148)."""
    first: list[str] = []
    second: list[str] = []
    play(Shape.of(seed), trace=first)
    play(Shape.of(seed), trace=second)
    assert first == second
    assert len(first) > 20


def test_fault_that_is_left_out_leaves_all_other_draws_as_they_were() -> None:
    shape = Shape.of(7)
    world, _ = play(shape)
    last = world.chance.struck[-1]
    again, _ = play(shape, without=frozenset([last]))
    assert again.chance.struck[: len(world.chance.struck) - 1] == world.chance.struck[:-1]


@pytest.mark.slow
def test_failing_schedule_is_shrunk_to_a_short_trace() -> None:
    buggy = BuggyProduct("no-takeover")
    found = play_many(range(1, 400), buggy, enough=1).findings[0]
    shape = buggy.shape(found.seed)
    world, _ = play(shape, product=buggy)
    shrunk = shrink(shape, found.invariant, product=buggy, seconds=10)
    assert 1 <= len(shrunk.faults) <= 5
    assert len(shrunk.faults) < len(world.chance.struck)
    assert shrunk.trace[-1].startswith("BROKEN  liveness")


def test_repro_storm_ends_though_something_always_stands_still() -> None:
    """Seed 20018973 of an older version: the storm waited for a moment without pauses, while new pauses began."""
    shape = replace(Shape.of(1), replicas=2, devices=5, rates={"pause": 0.9}, storm_s=6.0)
    world, broken = play(shape)
    assert broken is None, broken
    assert world.tally.commits
    assert world.chance.struck


def test_schedules_have_different_shapes() -> None:
    shapes = [Shape.of(seed) for seed in range(4000)]
    assert {shape.store for shape in shapes} == {"memory", "sqlite", "sqlite-file"}
    assert {shape.blobs for shape in shapes} == {"memory", "files"}
    assert {shape.replicas for shape in shapes} == {1, 2, 3}
    assert {shape.wire for shape in shapes} == {True, False}
    assert min(shape.devices for shape in shapes) == 3
    assert max(shape.devices for shape in shapes) > 60
    assert sorted(shape.devices for shape in shapes)[2000] <= 7
    centers = [shape for shape in shapes if shape.datacenter]
    assert 0.07 < len(centers) / len(shapes) < 0.13
    assert {shape.workers for shape in centers} == {0, 1, 2, 3}
    assert {shape.alike for shape in centers} == {True, False}
    assert not any(shape.workers for shape in shapes if not shape.datacenter)
    private = [shape for shape in shapes if shape.private]
    assert 0.08 < len(private) / len(shapes) < 0.16
    mechanisms = Counter(shape.plan["privacy"]["mechanism"] for shape in private)
    assert min(mechanisms[name] for name in ("gaussian", "tree", "blt", "distributed")) > 40
    assert sum(shape.set_back for shape in private) > 60


@pytest.mark.slow
def test_schedules_with_a_datacenter_show_lease_takeover_and_return() -> None:
    """In the traces, not only in the counts."""
    wanted = {" Leased: ", " Heartbeat: ", " LeaseEnded: ", " Delivered: ", " FleetReturned: ", "fence 2 "}
    for seed in range(1000):
        if Shape.of(seed).datacenter:
            trace: list[str] = []
            _, broken = play(Shape.of(seed), trace=trace)
            assert broken is None, (seed, broken)
            wanted -= {words for words in wanted if any(words in line for line in trace)}
            if not wanted:
                return
    raise AssertionError(f"never seen: {wanted}")


def command(function: Callable[..., None]) -> Callable[..., tuple[int, str, str]]:
    """Return what calls the command with arguments: exit code, output, errors."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(function)

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments))
        return result.exit_code, result.stdout, result.stderr

    return run


def test_command_counts() -> None:
    code, out, _ = command(explore_command)("--schedules", "5", "--json")
    assert code == 0
    keys = ("schedules", "broken", "seconds", "events", "crashes", "lost", "duplicated", "commits", "abandoned")
    assert out.startswith('{"schedules":5,"broken":0,')
    assert [part.split('"')[1] for part in out.strip()[1:-1].split(",")] == list(keys)


def test_repro_log_is_silent_about_failures_that_are_faults(caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator's log has each failure of the disk; those of schedules filled the terminal."""
    assert play_many(range(100, 112)).tally.schedules == 12
    assert not caplog.records


def test_command_shows_the_trace_of_a_seed() -> None:
    code, out, _ = command(explore_command)("--seed", "11", "--trace")
    assert code == 0
    assert "r0 starts" in out
    assert "Created" in out


@pytest.fixture
def mutants() -> Callable[..., tuple[int, str, str]]:
    return command(mutants_command)


def test_mutants_are_listed(mutants: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = mutants("--list")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == set(MUTANTS)


def test_mutant_is_found_and_its_trace_shown(mutants: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = mutants("double-count", "--schedules", "60", "--json")
    assert code == 0
    assert "BROKEN  counts-once" in err
    assert "(python -m tests.explorer.mutants double-count --seed " in err
    assert "The shortest trace found" in err
    assert '"broken":1' in out
    seed = err.partition("double-count --seed ")[2].split()[0]
    code, out, err = mutants("double-count", "--seed", seed, "--trace")
    assert code == 0
    assert "BROKEN  counts-once" in err
    assert "r0 starts" in out


def test_mutant_that_survives_is_named(mutants: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = mutants("fence-not-checked", "--schedules", "1", "--seed", "1")
    assert code == 1
    assert f"fence-not-checked was not found: {MUTANTS['fence-not-checked'].description}" in err


def test_unknown_mutant_is_refused(mutants: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = mutants("no-such", "--schedules", "1")
    assert code == 1
    assert "There is no mutant no-such" in err


@on_day(1, of=2)
def test_mutant_travels_to_other_processes() -> None:
    report = explore(0, 80, product=BuggyProduct("double-count"), jobs=2, enough=1)
    assert report.findings[0].invariant == "counts-once"


def test_count_so_far_grows(tmp_path: Path) -> None:
    page = tmp_path / "soak.md"
    report = play_many(range(3))
    add_to_count(page, report, first=0, day="2026-01-02")
    add_to_count(page, report, first=3, day="2026-01-03")
    text = page.read_text()
    assert "**6 schedules**" in text
    assert "| 2026-01-03 | 3 |" in text


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: for SOAK_SECONDS, from seeds that were never used before; adds a row to ``docs/soak.md``."""
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    first = int(time.time()) * 1000
    report = explore(first, None, seconds=seconds, jobs=2)
    add_to_count(SOAK_PAGE, report, first=first, day=datetime.now(UTC).date().isoformat())
    with capsys.disabled():
        print(f"\nexplorer, from seed {first}: {report.to_json()}")
    assert not report.findings, failures(report)
