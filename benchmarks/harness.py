"""Shared by all benchmarks: interleaved pairs, medians, CPU seconds, and the report.

A ratio is measured in pairs, ours and the other's in turn, with the order alternating from pair to pair, so that a
machine that slows down slows both. The median is reported; if the interquartile range contains the aim, nothing is
claimed (``met`` is null).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from benchmarks._progress import counted, erase


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report; None for a number that there is not.

    ``value`` is ours, in ``unit``. ``peer`` is another project's figure and ``limit`` the floor measured beside it,
    in the same unit. ``ratio`` is value over limit, or over peer where there is no limit. ``aim`` is what value
    should be at most (or at least); of a row with a peer that takes turns with ours it is what the ratio should be.
    """

    name: str
    value: float | None
    unit: str
    peer: float | None = None
    limit: float | None = None
    ratio: float | None = None
    aim: float | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """The spread of at least one sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)

    def met(self, aim: float, *, at_least: bool = False) -> bool | None:
        """Whether the aim is met: at most ``aim``, or ``at_least``. None when the quartiles are on both sides of it."""
        inside = (self.low >= aim, self.high >= aim) if at_least else (self.low <= aim, self.high <= aim)
        return inside[0] if inside[0] == inside[1] else None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Interleaved measurements of ours and the other's: sample i of both was measured in pair i."""

    ours: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def ratio(self) -> Spread:
        return Spread.of([mine / theirs for mine, theirs in zip(self.ours, self.other, strict=True)])

    @property
    def ours_median(self) -> float:
        return statistics.median(self.ours)

    @property
    def other_median(self) -> float:
        return statistics.median(self.other)


def cpu_s(*, children: bool = False) -> float:
    """CPU seconds of this process so far, user and system; with ``children``, of its finished children too."""
    spent = time.process_time()
    if children:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent += usage.ru_utime + usage.ru_stime
    return spent


def cost_s(call: Callable[[], object], clock: Callable[[], float] = cpu_s) -> float:
    """The cost of one call by ``clock``, in seconds."""
    start = clock()
    call()
    return clock() - start


def interleaved(
    ours: Callable[[], object], other: Callable[[], object], pairs: int, clock: Callable[[], float] = cpu_s
) -> Pairs:
    """Measure both ``pairs`` times (7 or more for a claim), after one unmeasured call of each."""
    ours()
    other()
    mine: list[float] = []
    theirs: list[float] = []
    for index in counted("pairs", range(pairs)):
        calls = [(mine, ours), (theirs, other)]
        for samples, call in calls if index % 2 == 0 else reversed(calls):
            samples.append(cost_s(call, clock))
    return Pairs(tuple(mine), tuple(theirs))


def main(topic: str, measure: Callable[[bool], Iterable[Row]], arguments: Sequence[str] | None = None) -> None:
    """Run ``measure(quick)`` and print its rows: as a table while they arrive, or with ``--json`` as one object on the
    last line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{topic}", description=f"Benchmark: {topic}.")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller, under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args(arguments)
    if not options.json:
        print(_line("", "value", "unit", "peer", "limit", "ratio", "aim", "met"), flush=True)
    rows = []
    for row in measure(options.quick):
        rows.append(asdict(row))
        erase()
        if not options.json:
            met = {True: "yes", False: "no", None: "-"}[row.met]
            numbers = [_number(n) for n in (row.value, row.peer, row.limit, row.ratio, row.aim)]
            print(_line(row.name, numbers[0], row.unit, *numbers[1:], met), flush=True)
    if options.json:
        json.dump({"results": rows}, sys.stdout)
        print()


def _line(name: str, value: str, unit: str, *rest: str) -> str:
    return f"{name:<44}{value:>10} {unit:<8}" + "".join(f"{text:>10}" for text in rest)


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"
