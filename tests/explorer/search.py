"""Plays many schedules, one after another in each process, and counts what happened and which schedules broke."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from signal import SIG_IGN, SIGINT

from client_sdk.commands.stopping import handling
from tests.explorer.counts import Coverage, ScheduleTally
from tests.explorer.faults import Broken
from tests.explorer.schedule import Schedule
from tests.explorer.shape import Shape
from tests.explorer.world import World

CHUNK = 40
"""Schedules that a process plays between two reports of its progress."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A schedule in which an invariant broke."""

    seed: int
    invariant: str
    what: str


@dataclass(slots=True)
class SearchReport:
    tally: ScheduleTally = field(default_factory=ScheduleTally)
    coverage: Coverage = field(default_factory=Coverage)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def __iadd__(self, other: SearchReport) -> SearchReport:
        self.tally += other.tally
        self.coverage += other.coverage
        self.findings += other.findings
        return self

    def to_json(self) -> dict[str, object]:
        """Returns the counts."""
        tally = self.tally
        return {
            "schedules": tally.schedules,
            "broken": len(self.findings),
            "seconds": round(self.seconds, 2),
            "events": tally.events,
            "crashes": tally.crashes,
            "lost": tally.lost,
            "duplicated": tally.duplicated,
            "commits": tally.commits,
            "abandoned": tally.abandoned,
        }


@dataclass(frozen=True, slots=True)
class Product:
    """The product that schedules are played on.

    A subclass may change the product while a schedule runs, and the shapes that are tried: tests seed bugs in this way.
    It is sent to other processes, so it can be pickled.
    """

    def shape(self, seed: int) -> Shape:
        return Shape.of(seed)

    def running(self) -> AbstractContextManager[object]:
        """Return the context in which a schedule is played."""
        return nullcontext()

    def again(self, seed: int) -> str:
        """Return the command that shows the trace of one schedule."""
        return f"python -m tests.explorer --seed {seed} --trace"


PRODUCT = Product()


def play(
    shape: Shape,
    *,
    product: Product = PRODUCT,
    without: frozenset[str] = frozenset(),
    trace: list[str] | None = None,
) -> tuple[World, Broken | None]:
    """Plays one schedule. Returns its world, and the invariant that broke, or None."""
    schedule = Schedule(shape, without=without, trace=trace)
    with product.running():
        try:
            schedule.play()
        except Broken as broken:
            return schedule.world, broken
        except Exception as error:  # of the product or of the explorer: a finding with its seed and trace
            schedule.world.log("".join(traceback.format_exception(error)))
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error}, in {place.name} ({Path(place.filename).name}:{place.lineno})"
            return schedule.world, Broken("no-bug", what)
    return schedule.world, None


def play_many(
    seeds: Iterable[int], product: Product = PRODUCT, until: float = float("inf"), enough: int = 10**9
) -> SearchReport:
    """Plays these schedules in this process, until the wall clock reaches ``until`` or ``enough`` of them broke."""
    report = SearchReport()
    with collected_between_schedules() as collect:
        for seed in seeds:
            if time.time() >= until or len(report.findings) >= enough:
                break
            _play_into(report, seed, product)
            collect()
    return report


def _play_into(report: SearchReport, seed: int, product: Product) -> None:
    world, broken = play(product.shape(seed), product=product)
    report.tally += world.tally
    report.coverage += world.coverage
    if broken is not None:
        report.findings.append(Finding(seed, broken.invariant, broken.what))


@cache
def _freeze() -> None:
    """Once, before the first schedule: frozen later, its garbage would never be freed."""
    if not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def collected_between_schedules() -> Iterator[Callable[[], object]]:
    """Yields what frees a schedule that is over. While one runs, nothing of it is garbage that is worth a search: its
    parts know each other. So the collector rests, which saves a tenth of the CPU time."""
    _freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: gc.collect(0)
    finally:
        gc.collect(1)  # whatever is older was there before
        if was_enabled:
            gc.enable()


def explore(
    first: int,
    schedules: int | None,
    *,
    seconds: float | None = None,
    product: Product = PRODUCT,
    jobs: int = 1,
    enough: int = 5,
    progress: Callable[[SearchReport], None] = lambda report: None,
) -> SearchReport:
    """Plays schedules ``first``, ``first + 1``, ...: so many, or for so long, or until ``enough`` of them broke."""
    began = time.time()
    until = began + seconds if seconds is not None else float("inf")
    report = SearchReport()

    def take_in(part: SearchReport) -> bool:
        nonlocal report
        report += part
        report.seconds = time.time() - began
        progress(report)
        return len(report.findings) < enough and time.time() < until

    if jobs == 1:
        for seeds in _chunks(first, schedules):
            if not take_in(play_many(seeds, product, until, enough)):
                break
    else:
        _in_processes(_chunks(first, schedules), jobs, product, until, enough, take_in)
    report.seconds = time.time() - began
    return report


def _in_processes(
    chunks: Iterator[range],
    jobs: int,
    product: Product,
    until: float,
    enough: int,
    take_in: Callable[[SearchReport], bool],
) -> None:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        running: set[Future[SearchReport]] = set()
        more = True
        try:
            while more or running:
                while more and len(running) < jobs + 1:
                    seeds = next(chunks, None)
                    if seeds is None:
                        more = False
                    else:
                        with handling(SIG_IGN, SIGINT):  # a worker that starts here inherits it: Ctrl-C is the parent's
                            running.add(pool.submit(play_many, seeds, product, until, enough))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    more = take_in(future.result()) and more
        except KeyboardInterrupt:
            for worker in active_children():
                worker.kill()
            raise


def _end_with_parent() -> None:
    """In a worker: the process ends when the search is killed."""
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _chunks(first: int, schedules: int | None) -> Iterator[range]:
    at, left = first, schedules if schedules is not None else 10**12
    while left > 0:
        size = min(CHUNK, left)
        yield range(at, at + size)
        at, left = at + size, left - size
