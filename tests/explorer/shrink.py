"""Shrinks a failing schedule to a short trace: leaves out faults, and whole parts of the world, while it still fails.

Faults are left out by name, in halves and then one by one (delta debugging: Zeller and Hildebrandt 2002,
doi 10.1109/32.988498); all other draws of the schedule stay what they were.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from tests.explorer.search import PRODUCT, Product, play
from tests.explorer.shape import Shape

QUIET = (" receives wait", " receives noted", " receives registered", " lies: ")
"""Lines that a short trace leaves out."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A failing schedule with the fewest faults and parts that were found."""

    shape: Shape
    without: frozenset[str]
    faults: tuple[str, ...]
    """The faults that are still needed."""
    trace: tuple[str, ...]


def shrink(shape: Shape, invariant: str, *, product: Product = PRODUCT, seconds: float = 20.0) -> Shrunk:
    """Returns the smallest schedule found in this time that still breaks the invariant."""
    until = time.time() + seconds

    def struck(candidate: Shape, without: frozenset[str]) -> list[str] | None:
        """Returns the faults of a schedule that still fails; None where it does not, or where no time is left."""
        if time.time() > until:
            return None
        world, broken = play(candidate, product=product, without=without)
        return list(world.chance.struck) if broken is not None and broken.invariant == invariant else None

    for change in ({"replicas": 1, "lost_replicas": 0}, {"liars": 0}, {"dead": 0}, {"enrolments": 0}, {"wire": False}):
        smaller = replace(shape, **change)
        if smaller != shape and struck(smaller, frozenset()) is not None:
            shape = smaller
    without: frozenset[str] = frozenset()
    faults = struck(shape, without) or []
    size = max(1, len(faults) // 2)
    while faults and time.time() < until:
        for start in range(0, len(faults), size):
            fewer = without | frozenset(faults[start : start + size])
            left = struck(shape, fewer)
            if left is not None:
                without, faults = fewer, left
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    trace: list[str] = []
    world, broken = play(shape, product=product, without=without, trace=trace)
    trace = [line for line in trace if not any(quiet in line for quiet in QUIET)]
    if broken is not None:
        trace.append(f"BROKEN  {broken}")
    return Shrunk(shape, without, tuple(world.chance.struck), tuple(trace))
