"""Checks each draw of a cohort: the pool had exactly the devices that waited and were free, with their examples as far
as their caps allow, and the cohort is what the pool, the run's seed and the round give again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable
from functools import lru_cache

from client_sdk.protocol.devices import CheckIn
from coordinator.store.port import EventRow, Reader, WaitingRow
from tests.explorer import invariants
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.offers import fits

EVER = float("-inf")
"""A time at which no row has expired."""


def free(reader: Reader) -> list[WaitingRow]:
    """The rows of the pool whose device works for no run, also expired ones."""
    return [row for row in reader.waiting(EVER) if reader.claim(row.device) is None]


def eligible(run: TrackedRun, rows: Iterable[WaitingRow], unfit: Container[str] | None = None) -> list[WaitingRow]:
    """The rows of devices that the run may use. ``unfit``: those that it may not; None: by the log so far."""
    left_out = run.unfit if unfit is None else unfit
    fit = (row for row in rows if row.device not in left_out)
    return [row for row in fit if fits(run.plan, _learners(row.offer), row.examples)]


@lru_cache(maxsize=64)
def _learners(offer: str) -> frozenset[str]:
    """The learners that a device has, from its row in the pool."""
    return frozenset(json.loads(offer)["learners"])


def drawn(durable: Durable, run: TrackedRun, event: EventRow, waiting: list[WaitingRow]) -> None:
    """Checks the draw of this event. ``waiting``: the unclaimed rows of the pool before it, expired ones too."""
    body, cohort = event.body, run.plan["cohort"]
    pool = sorted((row.device, row.examples) for row in eligible(run, waiting, run.left_out) if row.expires > event.at)
    for device, examples in pool:
        found = durable.store.device(device)
        if found is None or examples > found.examples_cap:
            raise Broken("draw", f"{device} waits with {examples} examples, above its cap")
    if body["waiting"] != len(pool):
        raise Broken("draw", f"round {body['round']} of {run.run} counted {body['waiting']} devices, {len(pool)} wait")
    if body["pool"] is None:
        return
    digest = str(body["pool"])
    listed = [(device, examples) for device, examples in json.loads(invariants.read(durable, digest, "a pool"))]
    if listed != pool:
        wrong = sorted(set(listed) ^ set(pool))
        raise Broken("draw", f"the pool of round {body['round']} of {run.run} differs from who waits in {wrong}")
    seed, number = run.row.selection_seed, int(str(body["round"]))
    chosen = cohort_of(pool, cohort["select"], cohort["choose"], seed, number)
    sizes = dict(pool)
    again = [[device, sizes[device]] for device in chosen]
    if [list(pair) for pair in body["cohort"]] != again:  # type: ignore[attr-defined]
        raise Broken("draw", f"round {number} of {run.run} drew {body['cohort']}; its pool gives {again}")


def cohort_of(pool: list[tuple[str, int]], select: int, choose: str, seed: int, number: int) -> list[str]:
    """The cohort of a round, sorted: written from ``docs/selection.md``, and not from the engine."""
    if choose == "by_examples":

        def key(entry: tuple[str, int]) -> tuple[float, str]:
            word = _hashed(f"quorate selection by examples v1\n{seed}\n{number}\n{entry[0]}")[0]
            return -math.log((word + 0.5) / 2**64) / max(1, entry[1]), entry[0]

        return sorted(device for device, _ in sorted(pool, key=key)[:select])
    counter, words, chosen = 0, list[int](), set[int]()
    for top in range(max(0, len(pool) - select), len(pool)):  # Floyd 1987: each subset alike
        while True:
            if not words:
                words = _hashed(f"quorate selection v1\n{seed}\n{number}\n{counter}")
                counter += 1
            word = words.pop(0)
            if word < 2**64 - 2**64 % (top + 1):
                break
        index = word % (top + 1)
        chosen.add(top if index in chosen else index)
    return sorted(pool[index][0] for index in chosen)


def _hashed(text: str) -> list[int]:
    """The four 64-bit words of a text's SHA-256."""
    whole = hashlib.sha256(text.encode()).digest()
    return [int.from_bytes(whole[start : start + 8], "big") for start in range(0, 32, 8)]


def checked_in(durable: Durable, device: str, message: CheckIn, now: float, waiting_s: float) -> None:
    """A device that was taken into the pool, and has not left, waits there, with as many examples as it says and its
    cap allows, while its request is held and ``waiting_s`` longer. ``now``: by the clock of the replica."""
    row, found = durable.store.device(device), waiting_row(durable, device)
    if row is not None and row.left_at is not None:
        if found is not None:
            raise Broken("draw", f"{device} has left, and waits in the pool")
    elif found is None or row is None:
        if durable.store.claim(device) is None:
            raise Broken("draw", f"{device} was taken into the pool, and is not there")
    elif found.examples != min(message.examples, row.examples_cap):
        raise Broken("draw", f"{device} waits with {found.examples} examples; its cap is {row.examples_cap}")
    elif abs(found.expires - (now + message.hold_s + waiting_s)) > 1e-6:
        raise Broken("draw", f"{device} has its place for {found.expires - now} s, with a hold of {message.hold_s} s")


def left(durable: Durable, device: str, expires: float) -> None:
    """A device that has disconnected waits no more, unless it has checked in again."""
    found = waiting_row(durable, device)
    if found is not None and found.expires == expires:
        raise Broken("draw", f"{device} has gone, and waits in the pool until {expires}")


def newer_stays(durable: Durable, device: str, expires: float, before: WaitingRow | None) -> None:
    """The place of a newer check-in outlasts the end of an older one, whose place was until ``expires``."""
    if before is not None and before.expires != expires and waiting_row(durable, device) is None:
        raise Broken("draw", f"{device} has left the pool by the end of an older request than the one that it holds")


def waiting_row(durable: Durable, device: str) -> WaitingRow | None:
    """The device's row in the pool, an expired one too."""
    return next((row for row in durable.store.waiting(EVER) if row.device == device), None)
