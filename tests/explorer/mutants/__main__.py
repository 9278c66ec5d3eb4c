"""``python -m tests.explorer.mutants``: runs schedules on a product with a seeded bug, which the explorer must find.

::

    python -m tests.explorer.mutants --list
    python -m tests.explorer.mutants double-count                       until it is found, 1,500 schedules at most
    python -m tests.explorer.mutants double-count --seed 4 --trace      the trace of one schedule
    python -m tests.explorer.mutants --jobs 2                           every mutant
"""

from __future__ import annotations

from typing import Annotated

import typer

from client_sdk.terminal import Json, errors_as_sentences, fail, note, say_json, say_table
from tests.explorer.__main__ import Jobs, Schedules, Seconds, Seed, Trace, play_many, play_one, show_count
from tests.explorer.mutants import MUTANTS, BuggyProduct
from tests.explorer.search import explore

BUDGET = 1500
"""Schedules in which a mutant must be found."""


@errors_as_sentences
def main(
    name: Annotated[str | None, typer.Argument(help="The mutant; without it, every one.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the mutants and what each breaks.")] = False,
    seed: Seed = 0,
    trace: Trace = False,
    schedules: Schedules = None,
    seconds: Seconds = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Run schedules on the product with a seeded bug. Exit code 1 where it was not found."""
    if list_them:
        rows = [(mutant.name, " or ".join(mutant.breaks), mutant.description) for mutant in MUTANTS.values()]
        say_table(("mutant", "breaks", "what"), rows)
        return
    if name is not None and name not in MUTANTS:
        fail(f"There is no mutant {name}; there are {', '.join(MUTANTS)}.")
    if trace and (name is None or schedules is not None or seconds is not None):
        fail("--trace shows one schedule of one mutant: name it, and leave out --schedules and --seconds.")
    most = schedules if schedules is not None or seconds is not None else BUDGET
    if name is None:
        survivors = _every(seed, most, seconds, jobs, as_json)
    else:
        buggy = BuggyProduct(name)
        if trace:
            report = play_one(buggy, seed, trace=True, as_json=as_json)
        else:
            report = play_many(buggy, seed, most, seconds, jobs, enough=1)
        show_count(report, as_json)
        survivors = [] if {finding.invariant for finding in report.findings} & set(buggy.mutant.breaks) else [name]
    for survivor in survivors:
        note(f"{survivor} was not found: {MUTANTS[survivor].description}")
    if survivors:
        raise typer.Exit(1)


def _every(seed: int, schedules: int | None, seconds: float | None, jobs: int, as_json: bool) -> list[str]:
    """Run each mutant until it is found; show one row for each; return those that were not."""
    rows, survivors = [], []
    for name, mutant in MUTANTS.items():
        report = explore(seed, schedules, seconds=seconds, product=BuggyProduct(name), jobs=jobs, enough=1)
        found = [finding for finding in report.findings if finding.invariant in mutant.breaks]
        if not found:
            survivors.append(name)
        invariant = found[0].invariant if found else None
        rows.append((name, invariant, report.tally.schedules, round(report.seconds, 1)))
        if as_json:
            say_json(dict(zip(("mutant", "found_by", "schedules", "seconds"), rows[-1], strict=True)))
    if not as_json:
        say_table(("mutant", "found by", "schedules", "seconds"), rows)
    return survivors


if __name__ == "__main__":
    typer.run(main)
