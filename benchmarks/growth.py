"""Measures what costs grow with: clients of a round, waiting and registered devices, rounds played, runs, parameters.

``python -m benchmarks.growth [--quick] [--json]``. Each subject is measured at several sizes n; ``NAME_slope`` is the
exponent b of the least-squares line log(cost) = a + b log(n): 0 does not grow, 1 grows as n does. More than the aim
fails: 0.2 where a cost should not grow at all, 0.35 where it grows as log(n) does, 1.1 where it is of n things.

    round_N           CPU milliseconds for each of N clients of a simulated round that trains nothing (slope: of all)
    history_N         CPU milliseconds of a simulated round of 20 clients after N rounds
    check_in_N        CPU milliseconds of a held check-in, and of the look at all runs that it causes, with N devices
                      waiting that the selecting run cannot use
    ended_N           CPU milliseconds of the same with ten devices waiting, after N runs have ended; ``create_N``: of
                      creating a run and stopping it
    page_N            CPU milliseconds of a page of 50 devices of N registered
    by_state_N        CPU milliseconds of a request for devices in a state that none of N is in; ``by_text_N``: with a
                      text that none has. Both from the N on of which one request does not look at all
    participation_N   CPU milliseconds of who takes part in a run, of N registered devices; nothing is kept
    runs_N            CPU milliseconds of the list of runs, of which one stands still since none of N waiting devices
                      fits; ``standstill_N``: where nothing is kept of what was asked before
    draw_N            CPU milliseconds of drawing a cohort of 300 from N waiting devices; ``first_draw_N``: of the first
                      one in a process, which reads all of them
    sum_N             CPU milliseconds of adding 16 updates of N parameters exactly (slope: of all)
"""

from __future__ import annotations

import gc
import hashlib
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._progress import counted
from benchmarks._rounds import Played
from benchmarks.harness import Row, cost_s, main
from benchmarks.simulation import clients_of, untrained
from client_sdk.protocol.devices import CheckIn
from client_sdk.protocol.operators import CreateRun
from client_sdk.tensors import to_bytes
from client_sdk.tensors.exact_sum import ExactSum
from coordinator.blobs import MemoryBlobs
from coordinator.engine.eligibility import offer_of
from coordinator.runtime.clock import SystemClock
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.insight.fleet_views import DeviceFilter
from coordinator.store import DeviceRow, WaitingRow, open_store
from coordinator.store.paging import LOOKED_AT

FLAT, LOGARITHMIC, LINEAR = 0.2, 0.35, 1.1
HERE, ELSEWHERE = "benchmark:here", "benchmark:elsewhere"
COHORT = 300
FOREVER = 1e9


def slope(costs: Mapping[int, float]) -> float:
    """The exponent with which costs grow with n."""
    x, y = ([math.log(value) for value in side] for side in (costs.keys(), costs.values()))
    return statistics.linear_regression(x, y).slope


def rows_of(name: str, costs: Mapping[int, float], aim: float, *, each: bool = False) -> Iterator[Row]:
    """``costs``: CPU seconds by n. ``each``: they are shown for one of n."""
    for n, cost in costs.items():
        yield Row(name=f"{name}_{n}", value=1000 * cost / (n if each else 1), unit="ms")
    grows = slope(costs)
    yield Row(name=f"{name}_slope", value=grows, unit="exponent", aim=aim, met=grows <= aim)


def mean_s(call: Callable[[], object], times: int) -> float:
    """CPU seconds of one of many calls, after one that warms up."""
    call()
    return cost_s(lambda: [call() for _ in range(times)]) / times


def round_s(clients: int, rounds: int) -> list[float]:
    """CPU seconds of each round of so many clients, after one that warms up."""
    learner, model = untrained(10)
    with Played(learner, clients_of(clients), clients, init=model) as ours:
        ours.play()
        return [cost_s(ours.play) for _ in counted(f"rounds of {clients:,}", range(rounds))]


class BenchmarkClock(SystemClock):
    """``later``: seconds by which the time was moved on. ``keeps``: whether what took long is kept."""

    later, keeps = 0.0, True

    def now(self) -> float:
        return super().now() + self.later

    def elapsed(self) -> float:
        return super().elapsed() if self.keeps else FOREVER


@contextmanager
def fleet(waiting: int, learner: str, clock: BenchmarkClock) -> Iterator[Coordinator]:
    """A coordinator on SQLite in a file, with so many registered devices, which all wait and have the learner."""
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'growth.sqlite3'}")
        coordinator = Coordinator(Core(store, MemoryBlobs(), clock=clock))
        now = coordinator.core.clock.now()
        offer = offer_of(CheckIn(examples=10, learners={learner: "1"}))
        with store.transaction() as tx:
            for number in range(waiting):
                tx.insert_device(device_row(f"d-{number:07}", now))
            tx.put_waiting(
                WaitingRow(device=f"d-{number:07}", examples=10, offer=offer, since=now, expires=now + FOREVER)
                for number in range(waiting)
            )
        try:
            yield coordinator
        finally:
            store.close()


def device_row(name: str, now: float) -> DeviceRow:
    return DeviceRow(
        device=name, key_id=name, certificate="", label="", examples_cap=100, enrolled_at=now, last_seen_at=now
    )


def begin(coordinator: Coordinator, name: str) -> None:
    """A run that selects a cohort, and its first tasks."""
    body = to_bytes({"w": np.zeros(10, np.float32)})
    digest = hashlib.sha256(body).hexdigest()
    with coordinator.core.blobs.spool() as spool:
        spool.write(body)
        coordinator.operators.put_checkpoint(spool, digest)
    cohort = {"select": COHORT, "goal": COHORT, "select_s": 86_400}
    plan = {"name": name, "task": {"learner": HERE}, "cohort": cohort}
    coordinator.operators.create_run(CreateRun(plan=plan, init=digest, origin="a benchmark"))


def perform(coordinator: Coordinator) -> None:
    coordinator.tick()
    while (task := coordinator.core.take_task()) is not None:
        coordinator.perform(task)


def of_a_fleet(waiting: int) -> dict[str, float]:
    """CPU seconds by subject."""
    gc.collect()  # a server has begun with nothing (``service.process``), and this process has played rounds
    gc.freeze()
    clock = BenchmarkClock()
    with fleet(waiting, ELSEWHERE, clock) as coordinator:
        begin(coordinator, "growth")
        perform(coordinator)
        row = device_row("a-device", coordinator.core.clock.now())
        with coordinator.core.store.transaction() as tx:
            tx.insert_device(row)
        message = CheckIn(examples=10, learners={HERE: "1"})

        def check_in() -> None:
            coordinator.devices.check_in(row, message)()
            coordinator.tick()

        found = {
            "check_in": mean_s(check_in, 300),
            "page": mean_s(lambda: coordinator.insight.fleet.devices(50), 20),
        }
        clock.later = 60.0  # the run stands still
        found["runs"] = mean_s(coordinator.operators.runs, 20)
        clock.keeps = False
        insight = coordinator.insight
        for name, wanted in (("by_state", DeviceFilter(state="away")), ("by_text", DeviceFilter(q="no such text"))):
            found[name] = mean_s(partial(insight.fleet.devices, 50, "", wanted), 10)
        found["participation"] = mean_s(partial(insight.participation.of_run, "growth", "", 200, fleet=True), 10)
        return found | {"standstill": statistics.median(cost_s(coordinator.operators.runs) for _ in range(5))}


def after_runs_s(sizes: Sequence[int]) -> Iterator[dict[str, float]]:
    """CPU seconds by subject after so many runs have ended, of one plan and one first checkpoint."""
    with fleet(10, ELSEWHERE, BenchmarkClock()) as coordinator:
        begin(coordinator, "growth")
        row = device_row("a-device", coordinator.core.clock.now())
        with coordinator.core.store.transaction() as tx:
            tx.insert_device(row)
        ended = 0

        def create() -> None:
            nonlocal ended
            ended += 1
            begin(coordinator, "growth")
            coordinator.operators.stop(f"growth-{ended + 1}")
            perform(coordinator)

        def check_in() -> None:
            coordinator.devices.check_in(row, CheckIn(examples=10, learners={HERE: "1"}))()
            coordinator.tick()

        for runs in sizes:
            for _ in counted(f"{runs:,} runs that end", range(runs - ended - 20)):
                create()
            create_s = mean_s(create, 20)
            yield {"create": create_s, "ended": mean_s(check_in, 300)}


def draws_s(waiting: int) -> tuple[float, float]:
    """CPU seconds of the first draw, and of the next ones."""
    with fleet(waiting, HERE, BenchmarkClock()) as coordinator:
        spent = []
        for number in range(3):
            begin(coordinator, f"growth-{number}")
            spent.append(cost_s(lambda: perform(coordinator)))
        return spent[0], statistics.mean(spent[1:])


def sum_s(parameters: int) -> float:
    values = np.random.default_rng(0).normal(0, 0.01, parameters).astype(np.float32)

    def add() -> None:
        total: Any = ExactSum(parameters)
        for weight in range(1, 17):
            total.add(values, weight)

    return mean_s(add, 3)


def measure(quick: bool) -> Iterator[Row]:
    clients = (100, 300) if quick else (100, 1_000, 10_000)
    costs = {n: statistics.median(round_s(n, 3)) for n in clients}
    yield from rows_of("round", costs, LINEAR, each=True)
    spent = round_s(20, 60 if quick else 400)
    after = (20, 50) if quick else (20, 100, 390)
    yield from rows_of("history", {n: statistics.median(spent[n - 10 : n + 10]) for n in after}, FLAT)
    ended = (40, 120) if quick else (40, 200, 1_000)
    over = dict(zip(ended, after_runs_s(ended), strict=True))
    for subject in ("create", "ended"):
        aim = LINEAR if subject == "create" else FLAT  # it asks each run of this checkpoint for its roles
        yield from rows_of(subject, {n: over[n][subject] for n in ended}, aim)
    waiting = (100, 2_000) if quick else (100, 10_000, 100_000)
    found = {n: of_a_fleet(n) for n in waiting}
    for subject in ("by_state", "by_text"):
        searched = {n: found[n][subject] for n in waiting if n >= LOOKED_AT}
        if len(searched) > 1:
            yield from rows_of(subject, searched, FLAT)
    for subject in ("check_in", "page", "participation", "runs", "standstill"):
        aim = LINEAR if subject == "standstill" else FLAT
        yield from rows_of(subject, {n: found[n][subject] for n in waiting}, aim)
    drawn = (1_000, 3_000) if quick else (1_000, 10_000, 100_000)
    firsts, draws = zip(*map(draws_s, drawn), strict=True)
    yield from rows_of("first_draw", dict(zip(drawn, firsts, strict=True)), LINEAR)
    yield from rows_of("draw", dict(zip(drawn, draws, strict=True)), LOGARITHMIC)
    parameters = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    yield from rows_of("sum", {n: sum_s(n) for n in parameters}, LINEAR)


if __name__ == "__main__":
    main("growth", measure)
