"""``quorate explore``: one schedule with its story, or as many as there is time for.

Knows the command line; what a schedule is, ``world`` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.terminal import Json, fail, note, say, say_json, say_table, spoken

if TYPE_CHECKING:
    from simulation.explorer.search import Report

STORY_LINES = 60
MOST_TOLD = 3


@spoken
def explore(
    seed: Annotated[
        int, typer.Option(min=0, help="The schedule to play; with --schedules or --seconds, the first of them.")
    ] = 0,
    trace: Annotated[bool, typer.Option("--trace", help="Tell the whole story of one schedule.")] = False,
    schedules: Annotated[int | None, typer.Option(min=1, help="How many schedules to play.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="How long to go on, at most.")] = None,
    mutant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Play with a seeded bug, which must be found; 'list' lists them.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = 1,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="How often each event and fault met each phase.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for schedules of faults that break an invariant. One seed is one schedule, the same each time.

    Exit code 1 where an invariant broke: its name, and the shortest story that was found, go to standard error.
    """
    from simulation.explorer.search import explore as search
    from simulation.explorer.shape import PHASES
    from tests.faults.mutants import MUTANTS

    if mutant == "list":
        say_table(("mutant", "breaks", "what"), [(m.name, " or ".join(m.breaks), m.story) for m in MUTANTS.values()])
        return
    if mutant is not None and mutant not in MUTANTS:
        fail(f"There is no mutant {mutant}; there are {', '.join(MUTANTS)}.")
    if schedules is None and seconds is None:
        _one(seed, mutant, trace, as_json)
        return
    if trace:
        fail("--trace tells of one schedule: leave out --schedules and --seconds.")

    def progress(report: Report) -> None:
        done, broken = report.tally.schedules, len(report.findings)
        note(f"{done} schedules in {report.seconds:.0f} s, {broken} broken, {report.tally.crashes} crashes survived")

    report = search(seed, schedules, seconds=seconds, mutant=mutant, jobs=jobs, progress=_seldom(progress))
    if coverage:
        say_table(("event or fault", *PHASES), report.coverage.table())
    for finding in report.findings[:MOST_TOLD]:
        note(f"BROKEN  {finding.invariant}: {finding.what}  (quorate explore --seed {finding.seed} --trace)")
    if len(report.findings) > MOST_TOLD:
        note(f"and {len(report.findings) - MOST_TOLD} more")
    if report.findings:
        _tell_shortest(report.findings[0].seed, report.findings[0].invariant, mutant)
    _say_count(report, as_json)
    if report.findings:
        raise typer.Exit(1)


def _one(seed: int, mutant: str | None, trace: bool, as_json: bool) -> None:
    import time

    from simulation.explorer.search import Finding, Report, play, shape_of

    story: list[str] = []
    began = time.time()
    world, broken = play(shape_of(seed, mutant), mutant=mutant, story=story if trace else None)
    report = Report(tally=world.tally, seconds=time.time() - began)
    for line in story:
        (note if as_json else say)(line)
    if broken is not None:
        report.findings.append(Finding(seed, broken.invariant, broken.what))
        note(f"BROKEN  {broken}")
        if not trace:
            _tell_shortest(seed, broken.invariant, mutant)
    _say_count(report, as_json)
    if broken is not None:
        raise typer.Exit(1)


def _tell_shortest(seed: int, invariant: str, mutant: str | None) -> None:
    from simulation.explorer.invariants import INVARIANTS
    from simulation.explorer.search import shape_of
    from simulation.explorer.shrink import shrink

    shrunk = shrink(shape_of(seed, mutant), invariant, mutant=mutant)
    shape = shrunk.shape
    note(f"\nThe shortest story found, of seed {seed} ({invariant}: {INVARIANTS[invariant]})")
    note(f"{shape.devices} devices, {shape.replicas} replicas, store {shape.store}, blobs {shape.blobs}: {shape.plan}")
    note(f"What has to happen: {', '.join(shrunk.faults) or 'nothing special'}")
    for line in shrunk.story[-STORY_LINES:]:
        note(line)


def _say_count(report: Report, as_json: bool) -> None:
    count = report.to_json()
    if as_json:
        say_json(count)
    else:
        say(", ".join(f"{name} {value}" for name, value in count.items()))


def _seldom(tell: Callable[[Report], None], every_s: float = 5.0) -> Callable[[Report], None]:
    """The same, but not more often than this."""
    told_at = 0.0

    def seldom(report: Report) -> None:
        nonlocal told_at
        if report.seconds - told_at >= every_s:
            told_at = report.seconds
            tell(report)

    return seldom
