"""``quorate plan cohort``: how many devices to select, how many reports to wait for, and how long to train, from how
long devices took.

A selected device reports by time t with chance (1 - dropout) F(t), where F is the distribution of the devices' times.
So of n selected ones a binomial number has reported by then, and the goal-th fastest is there by t with the chance that
this number is the goal or more. The sizes of ``[cohort]`` follow from that chance, and so does the expected wait::

    P(T <= t) = P(Bin(n, (1 - dropout) F(t)) >= goal)         E[min(T, D)] = integral from 0 to D of P(T > t) dt

(order statistics; David and Nagaraja 2003, chapter 2). Devices count as independent, and those of a round as a sample
of those that were measured. The draw itself, and who waits, are the business of a plan's selection.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, median
from typing import Annotated

import typer

from client_sdk.terminal import Json, fail, say, say_json, say_table

CHANCE = 0.99
"""With which a round shall reach its goal by its deadline."""
QUANTILES = 1000
"""Times that stand for a log-normal distribution."""
MOST = 100_000
"""Devices that a plan may select."""
TRAINING = 0.8
"""The least part of the median device's time that training should have, rather than what is the same for any number of
steps: downloads, uploads, start."""
LATEST = 0.95
"""The quantile of the times that is the deadline, where none is given."""
EPILOG = "Example: quorate plan cohort --median 40 --sigma 0.6 --dropout 0.1 --deadline 120 --goal 256"


@dataclass(frozen=True)
class CohortSize:
    """One number of selected devices, and what it does."""

    select: int
    chance: float
    """Of as many reports as the goal by the deadline."""
    wait_s: float
    """Expected seconds until the round closes, by its goal or by its deadline."""
    beside: float
    """Reports that are expected by the deadline beyond the goal, and do not count."""


def at_least(n: int, q: float, k: int) -> float:
    """P(Bin(n, q) >= k), summed over the terms within 12 standard deviations of the mean."""
    if k <= 0 or q >= 1:
        return 1.0 if k <= n else 0.0
    if q <= 0 or k > n:
        return 0.0
    mean, reach = n * q, 12 * math.sqrt(n * q * (1 - q)) + 12
    first, last = max(k, math.floor(mean - reach), 0), min(n, math.ceil(mean + reach))
    logs = math.lgamma(n + 1), math.log(q), math.log1p(-q)
    terms = (
        logs[0] - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * logs[1] + (n - i) * logs[2]
        for i in range(first, last + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def smallest_select(goal: int, reporting: float, chance: float = CHANCE) -> int | None:
    """The fewest devices of which ``goal`` report with this chance, where each does with ``reporting``. None: more than
    a plan may select."""
    if at_least(MOST, reporting, goal) < chance:
        return None
    return goal + bisect_left(range(goal, MOST), True, key=lambda n: at_least(n, reporting, goal) >= chance)


def log_normal(median_s: float, sigma: float) -> list[float]:
    """Equally likely times of a log-normal distribution, ascending."""
    normal = NormalDist()
    return [median_s * math.exp(sigma * normal.inv_cdf((i + 0.5) / QUANTILES)) for i in range(QUANTILES)]


def with_steps(times: Sequence[float], steps: int, overhead_s: float, wanted: int) -> list[float]:
    """The times with another number of local steps: what is beyond ``overhead_s`` grows with them."""
    return [overhead_s + (t - overhead_s) * wanted / steps for t in times]


def fewest_steps(times: Sequence[float], steps: int, overhead_s: float) -> int:
    """The fewest local steps with which TRAINING of the median device's time is training."""
    step_s = (median(times) - overhead_s) / steps
    return max(1, math.ceil(TRAINING / (1 - TRAINING) * overhead_s / step_s - 1e-9))


def outcome(times: Sequence[float], dropout: float, deadline_s: float, goal: int, select: int) -> CohortSize:
    """What a round of ``select`` devices does. ``times`` ascend."""
    wait, before = 0.0, 0.0
    late = 1.0
    for place, t in enumerate(times):
        if t > deadline_s:
            break
        wait += (t - before) * late
        before, late = t, 1 - at_least(select, (1 - dropout) * (place + 1) / len(times), goal)
        if late < 1e-12:
            late = 0.0
            break
    wait += (deadline_s - before) * late
    reporting = (1 - dropout) * bisect_right(times, deadline_s) / len(times)
    chance = at_least(select, reporting, goal)
    return CohortSize(select, chance, wait, max(0.0, select * reporting - goal))


def cohort(
    seconds: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Measured times of devices in a round, in seconds, one a line."),
    ] = None,
    median_s: Annotated[
        float | None, typer.Option("--median", help="Instead of a file: half of the devices are faster. Log-normal.")
    ] = None,
    sigma: Annotated[float, typer.Option(help="The standard deviation of the times' logarithms.")] = 0.5,
    dropout: Annotated[float, typer.Option(help="The part of the selected devices that never report.")] = 0.1,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds for reports, collect_s (default: the 95th percentile).")
    ] = None,
    goal: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Reports (default: 256, or what --devices can reach).")
    ] = None,
    devices: Annotated[int | None, typer.Option(min=1, max=MOST, help="Devices that can be selected at most.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Local steps that the times are of.")] = None,
    overhead: Annotated[float, typer.Option(help="Seconds of them that do not grow with the steps.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Recommend goal, over-selection, deadline and local steps from how long devices take.

    With the recommended number of devices a round reaches its goal by its deadline with a chance of 99 %.
    """
    times = _times(seconds, median_s, sigma)
    if not 0 <= dropout < 1:
        fail(f"--dropout is a part from 0 to below 1, not {dropout:g}.")
    if deadline is not None and not 0 < deadline < math.inf:
        fail("--deadline must be above 0.")
    advised = None
    if overhead or steps:
        if steps is None or not 0 <= overhead < times[0]:
            fail("--overhead needs --steps, and must be below the fastest device's time.")
        advised = max(steps, fewest_steps(times, steps, overhead))
        times = with_steps(times, steps, overhead, advised)
    limit = times[min(len(times) - 1, math.ceil(LATEST * len(times)) - 1)] if deadline is None else deadline
    reporting = (1 - dropout) * bisect_right(times, limit) / len(times)
    if goal is None:
        goal = 256 if devices is None else _reachable(devices, reporting)
    select = smallest_select(goal, reporting) if goal else None
    if select is None or (devices is not None and select > devices):
        fail(
            f"{reporting:.0%} of the selected devices report within {limit:.3g} s: the goal cannot be reached with "
            f"{CHANCE:.0%}. Give a later --deadline, a smaller --goal, or more --devices."
        )
    tried = sorted({goal, select, *(n for n in (round(1.3 * goal), 2 * goal) if n <= (devices or MOST))})
    sizes = [outcome(times, dropout, limit, goal, n) for n in tried]
    section = ["[cohort]", f"select = {select}", f"goal = {goal}", f"collect_s = {math.ceil(limit)}"]
    section += ["[task]", f"steps = {advised}"] if advised else []
    if as_json:
        say_json({"section": section, "reporting": reporting, "sizes": [asdict(one) for one in sizes]})
        return
    say(f"{reporting:.1%} of the selected devices report within {limit:.4g} s; half of all take {median(times):.4g} s.")
    rows = [(f"  {one.select}", f"{one.chance:.2%}", f"{one.wait_s:.4g}", f"{one.beside:.0f}") for one in sizes]
    say_table(["  select", f"{goal} by the deadline", "wait_s", "reports too many"], rows)
    say("For the plan:")
    for line in section:
        say(f"  {line}")


def _reachable(devices: int, reporting: float) -> int:
    """The largest goal that so many selected devices reach with CHANCE; 0 where there is none."""
    return bisect_left(range(1, devices + 1), True, key=lambda goal: at_least(devices, reporting, goal) < CHANCE)


def _times(file: Path | None, median_s: float | None, sigma: float) -> list[float]:
    if (file is None) == (median_s is None):
        fail("Give a file of times, or --median: one of the two.")
    if file is None or median_s is not None:
        if not (median_s and 0 < median_s < math.inf and 0 <= sigma <= 10):
            fail("--median must be above 0, and --sigma from 0 to 10.")
        return log_normal(median_s, sigma)
    try:
        times = sorted(float(line) for line in file.read_text("utf-8").splitlines() if line.strip())
    except ValueError:
        times = []
    if not times or not all(0 < t < math.inf for t in times):
        fail(f"{file} must hold times in seconds above 0, one a line.")
    return times
