"""``python -m tests.explorer``: plays one schedule with its trace, or many within a time.

``play_one`` and ``play_many`` serve the seeded bugs (``python -m tests.explorer.mutants``) as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.commands.long_running import exit_process
from client_sdk.commands.stopping import handling
from client_sdk.terminal import Json, errors_as_sentences, fail, note, say, say_json, say_table

if TYPE_CHECKING:
    from tests.explorer.search import Finding, Product, SearchReport

TRACE_LINES = 60
MOST_SHOWN = 3

Seed = Annotated[
    int, typer.Option(min=0, help="The schedule to play; with --schedules or --seconds, the first of them.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Show the whole trace of one schedule.")]
Schedules = Annotated[int | None, typer.Option(min=1, help="How many schedules to play.")]
Seconds = Annotated[float | None, typer.Option(min=0.1, help="The longest time to search.")]
Jobs = Annotated[int, typer.Option(min=1, max=256, help="Processes.")]


@errors_as_sentences
def explore(
    seed: Seed = 0,
    trace: Trace = False,
    schedules: Schedules = None,
    seconds: Seconds = None,
    jobs: Jobs = 1,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Show how often each event and fault met each phase.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for schedules of faults that break an invariant. One seed is one schedule, the same each time.

    Exit code 1 where an invariant broke: its name, and the shortest trace that was found, go to standard error.
    """
    from tests.explorer.search import PRODUCT
    from tests.explorer.shape import PHASES

    # An exception in the middle of a schedule would be swallowed by whatever code it interrupts.
    with handling(lambda number, frame: exit_process(130), SIGINT) if jobs == 1 else nullcontext():
        if schedules is None and seconds is None:
            report = play_one(PRODUCT, seed, trace=trace, as_json=as_json)
        else:
            if trace:
                fail("--trace shows one schedule: leave out --schedules and --seconds.")
            report = play_many(PRODUCT, seed, schedules, seconds, jobs)
            if coverage:
                say_table(("event or fault", *PHASES), report.coverage.table())
    show_count(report, as_json)
    if report.findings:
        raise typer.Exit(1)


def play_one(product: Product, seed: int, *, trace: bool, as_json: bool) -> SearchReport:
    """Play one schedule; show its trace where asked, and the shortest one where an invariant broke."""
    import time

    from tests.explorer.search import Finding, SearchReport, play

    lines: list[str] = []
    began = time.time()
    world, broken = play(product.shape(seed), product=product, trace=lines if trace else None)
    report = SearchReport(tally=world.tally, seconds=time.time() - began)
    for line in lines:
        (note if as_json else say)(line)
    if broken is not None:
        report.findings.append(Finding(seed, broken.invariant, broken.what))
        note(f"BROKEN  {broken}")
        if not trace:
            _show_shortest(product, report.findings[0])
    return report


def play_many(
    product: Product, seed: int, schedules: int | None, seconds: float | None, jobs: int, enough: int = 5
) -> SearchReport:
    """Search, with a line on standard error now and then; show what broke and the shortest trace of the first."""
    from tests.explorer.search import explore as search

    def progress(report: SearchReport) -> None:
        done, broken = report.tally.schedules, len(report.findings)
        note(f"{done} schedules in {report.seconds:.0f} s, {broken} broken, {report.tally.crashes} crashes survived")

    report = search(
        seed, schedules, seconds=seconds, product=product, jobs=jobs, enough=enough, progress=_seldom(progress)
    )
    for finding in report.findings[:MOST_SHOWN]:
        note(f"BROKEN  {finding.invariant}: {finding.what}  ({product.again(finding.seed)})")
    if len(report.findings) > MOST_SHOWN:
        note(f"and {len(report.findings) - MOST_SHOWN} more")
    if report.findings:
        _show_shortest(product, report.findings[0])
    return report


def _show_shortest(product: Product, finding: Finding) -> None:
    from tests.explorer.invariants import INVARIANTS
    from tests.explorer.shrink import shrink

    invariant = finding.invariant
    shrunk = shrink(product.shape(finding.seed), invariant, product=product)
    shape = shrunk.shape
    note(f"\nThe shortest trace found, of seed {finding.seed} ({invariant}: {INVARIANTS[invariant]})")
    note(f"{shape.devices} devices, {shape.replicas} replicas, store {shape.store}, blobs {shape.blobs}: {shape.plan}")
    note(f"What has to happen: {', '.join(shrunk.faults) or 'nothing special'}")
    for line in shrunk.trace[-TRACE_LINES:]:
        note(line)


def show_count(report: SearchReport, as_json: bool) -> None:
    """Show how much was played, as one line of text or JSON."""
    count = report.to_json()
    if as_json:
        say_json(count)
    else:
        say(", ".join(f"{name} {value}" for name, value in count.items()))


def _seldom(show: Callable[[SearchReport], None], every_s: float = 5.0) -> Callable[[SearchReport], None]:
    """Returns the same function, called at most once in this time."""
    last = 0.0

    def seldom(report: SearchReport) -> None:
        nonlocal last
        if report.seconds - last >= every_s:
            last = report.seconds
            show(report)

    return seldom


if __name__ == "__main__":
    typer.run(explore)
