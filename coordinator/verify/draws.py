"""Repeats each draw of a cohort from the list of who waited, the run's selection seed and the round."""

from __future__ import annotations

import json
from collections.abc import Iterator

from coordinator.blobs import BlobError
from coordinator.engine import selection
from coordinator.engine.plan import Plan
from coordinator.folding.refold import Readable
from coordinator.verify.replay import DrawnCohort


def against_draw(blobs: Readable, plan: Plan, seed: int, drawn: DrawnCohort) -> Iterator[str]:
    """Yields what speaks against a draw. The bytes of the list have been held against their digest before."""
    if drawn.pool is None:
        if drawn.cohort:
            yield "its cohort was drawn from a list that the log does not name"
        return
    try:
        pool = _pool(blobs, drawn.pool)
    except BlobError:
        return  # named where the blobs are read
    except (ValueError, TypeError):
        yield "the list of who waited cannot be read"
        return
    names = [device for device, _ in pool]
    if names != sorted(set(names)):
        yield "the list of who waited names a device twice, or is not sorted"
        return
    if drawn.waiting != len(pool):
        yield f"the log counts {drawn.waiting} waiting devices, and the list has {len(pool)}"
    chosen = selection.draw(pool, plan.cohort.select, choose=plan.cohort.choose, seed=seed, round=drawn.round)
    sizes = dict(pool)
    if tuple((device, sizes[device]) for device in chosen) != drawn.cohort:
        strangers = sorted({device for device, _ in drawn.cohort} - set(chosen))
        who = f": {', '.join(strangers[:3])} would not have been selected" if strangers else ""
        yield f"the draw from the list of who waited gives another cohort than the log{who}"


def _pool(blobs: Readable, digest: str) -> list[tuple[str, int]]:
    with blobs.open(digest) as file:
        return [(str(device), int(examples)) for device, examples in json.loads(file.read())]
