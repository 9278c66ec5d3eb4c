"""Checks each draw of a cohort: the pool had exactly the devices that waited and were free, with their examples as far
as their caps allow, and the cohort is what the pool, the run's seed and the round give again. The log has all of the
pool in a list, or the root of its tree, which is made here from the rows, and what the tree shows of the cohort.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

from client_sdk.protocol.devices import CheckIn
from coordinator.store.port import EventRow, Reader, WaitingRow
from tests.explorer import invariants
from tests.explorer.durable import Durable
from tests.explorer.faults import Broken
from tests.explorer.follow import TrackedRun
from tests.explorer.offers import fits

EVER = float("-inf")
"""A time at which no row has expired."""
READS = {
    "power-of-choice": ("loss",),
    "oort": ("loss", "seconds", "selected", "last_round"),
    "cyclic": ("selected", "last_round"),
}
"""What the stored pool says of each device beside its examples, by the plan's selection."""


def free(reader: Reader) -> list[WaitingRow]:
    """The rows of the pool whose device works for no run, also expired ones."""
    return [row for row in reader.waiting(EVER) if reader.claim(row.device) is None]


def eligible(run: TrackedRun, rows: Iterable[WaitingRow], unfit: Container[str] | None = None) -> list[WaitingRow]:
    """The rows of devices that the run may use. ``unfit``: those that it may not; None: by the log so far."""
    left_out = run.unfit if unfit is None else unfit
    fit = (row for row in rows if row.device not in left_out)
    return [row for row in fit if fits(run, *_offered(row.offer), row.examples)]


@lru_cache(maxsize=64)
def _offered(offer: str) -> tuple[frozenset[str], Mapping[str, int]]:
    """The learners that a device has, and in which runs it rests, from its row in the pool."""
    found = json.loads(offer)
    return frozenset(found["learners"]), dict(found["policy"].get("rests", ()))


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
    choose, given = cohort["choose"], cohort["choose_parameters"]
    stored = json.loads(invariants.read(durable, digest, "a pool"))
    rows = [(*entry, *known_of(run, entry[0], READS.get(choose, ()))) for entry in pool]
    seed, number, select = run.row.selection_seed, int(str(body["round"])), cohort["select"]
    if run.buffered:
        select, seed = run.drawing[0], seed + run.drawing[1]
    rest = resting(run.suspicion, [device for device, _ in pool], len(rows) - select, seed, number)
    awake: list[tuple[Any, ...]] = [row for row in rows if row[0] not in rest]
    chosen = cohort_of(awake, select, choose, given, seed, number)
    if choose in ("uniform", "by_examples"):
        wanted: Any = {"tree": _shown(awake, {*chosen})}
        if suspected := [device for device, _ in pool if run.suspicion.get(device)]:
            wanted["suspected"] = suspected
        said = body["examples"], body["root"]
        if said != (sum(max(1, row[1]) for row in awake), _root(awake).hex()):
            raise Broken("draw", f"round {number} of {run.run} has the tree of others than those who wait")
    else:
        stored, wanted = [tuple(row) for row in stored], rows
    if stored != wanted:
        raise Broken("draw", f"the pool of round {number} of {run.run} is {stored}, and from who waits {wanted}")
    sizes = dict(pool)
    again = [[device, sizes[device]] for device in chosen]
    if [list(pair) for pair in body["cohort"]] != again:  # type: ignore[attr-defined]
        raise Broken("draw", f"round {number} of {run.run} drew {body['cohort']}; its pool gives {again}")


def resting(suspicion: dict[str, int], waiting: list[str], most: int, seed: int, number: int) -> set[str]:
    """Who rests in the round, written from ``docs/selection.md``."""
    words = {device: _word("selection resting", seed, number, device) for device in waiting}
    rest = [device for device in waiting if words[device] >> 58 < suspicion.get(device, 0)]
    return set(sorted(rest, key=lambda device: (-suspicion[device], words[device]))[: max(0, most)])


def known_of(run: TrackedRun, device: str, reads: tuple[str, ...]) -> list[float | None]:
    """What the rounds of the run that are over say of a device."""
    known: dict[str, float | None] = {"loss": None, "seconds": None, "selected": 0, "last_round": 0}
    for ending in run.ended.values():
        if device in ending.cohort:
            known["selected"], known["last_round"] = (known["selected"] or 0) + 1, ending.round
        if (report := ending.reports.get(device)) is not None:
            body: dict[str, Any] = report.body
            known["loss"], known["seconds"] = body["metrics"].get("loss"), max(0.0, report.at - ending.drawn_at)
    return [known[name] for name in reads]


def cohort_of(
    rows: list[tuple[Any, ...]], select: int, choose: str, given: dict[str, float], seed: int, number: int
) -> list[str]:
    """The cohort of a round, sorted: written from ``docs/selection.md``, and not from the engine. ``rows``: the pool as
    it is stored."""
    match choose:
        case "uniform":
            return _uniform([row[0] for row in rows], select, seed, number)
        case "by_examples":
            first = _by_examples(rows, select, seed, number)
        case "power-of-choice":
            most = math.ceil(given.get("factor", 2) * select)
            candidates = _by_examples(rows, most, seed, number)
            unknown = [row for row in candidates if row[2] is None]
            known = sorted((row for row in candidates if row[2] is not None), key=lambda row: -row[2])
            first = [*unknown, *known][:select]
        case "oort":
            return _oort(rows, select, given, seed, number)
        case "cyclic":
            first = sorted(rows, key=lambda row: (row[3], row[2], _word("selection in turn", seed, 0, row[0])))[:select]
        case "fixed":
            first = sorted(rows, key=lambda row: _word("selection fixed", seed, 0, row[0]))[:select]
        case _:
            words = {row[0]: _word("selection poisson", seed, number, row[0]) for row in rows}
            return sorted(name for name, word in words.items() if (word >> 11) / 2.0**53 < select / len(rows))
    return sorted(row[0] for row in first)


def _uniform(names: list[str], select: int, seed: int, number: int) -> list[str]:
    """Floyd 1987: each subset alike."""
    words, chosen = _words(f"quorate selection v1\n{seed}\n{number}"), set[int]()
    for top in range(max(0, len(names) - select), len(names)):
        index = _below(words, top + 1)
        chosen.add(top if index in chosen else index)
    return sorted(names[index] for index in chosen)


def _by_examples(rows: list[tuple[Any, ...]], most: int, seed: int, number: int) -> list[Any]:
    """One after another, each at a place in the sum of those that are left; the first that is drawn comes first."""
    words, left, found = _words(f"quorate selection by examples v1\n{seed}\n{number}"), list(rows), list[Any]()
    while left and len(found) < most:
        place = _below(words, sum(max(1, row[1]) for row in left))
        while place >= max(1, left[0][1]):
            place -= max(1, left[0][1])
            left.append(left.pop(0))
        found.append(left.pop(0))
        left.sort(key=lambda row: row[0])
    return found


def _words(text: str) -> Iterator[int]:
    return (word for counter in count() for word in _hashed(f"{text}\n{counter}"))


def _below(words: Iterator[int], bound: int) -> int:
    return next(word for word in words if word < 2**64 - 2**64 % bound) % bound


def _parted(rows: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Two or more devices by the first bit in which their ids differ."""
    bits = [int.from_bytes(row[0].encode().ljust(80, b"\0"), "big") for row in rows]
    first = 1 << (bits[0] ^ bits[-1]).bit_length() - 1
    sides = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for row, own in zip(rows, bits, strict=True):
        sides[bool(own & first)].append(row)
    return sides


def _root(rows: list[tuple[Any, ...]]) -> bytes:
    """Of the tree over these devices, which are in order of id, from ``docs/selection.md``."""
    if len(rows) == 1:
        return hashlib.sha256(struct.pack(">BQ", 0, rows[0][1]) + rows[0][0].encode()).digest()
    weight = sum(max(1, row[1]) for row in rows)
    return hashlib.sha256(struct.pack(">BQQ", 1, len(rows), weight) + b"".join(map(_root, _parted(rows)))).digest()


def _shown(rows: list[tuple[Any, ...]], drawn: set[str]) -> list[Any]:
    """What the tree shows of these."""
    if not drawn.intersection(row[0] for row in rows):
        return [len(rows), sum(max(1, row[1]) for row in rows), _root(rows).hex()]
    return list(rows[0][:2]) if len(rows) == 1 else [_shown(side, drawn) for side in _parted(rows)]


def _oort(rows: list[tuple[Any, ...]], select: int, given: dict[str, float], seed: int, number: int) -> list[str]:
    """Rows have (device, examples, loss, seconds, selected, last round). ``given``: numbers other than the defaults."""
    known = [row for row in rows if row[2] is not None]
    strange = sorted(
        (row for row in rows if row[2] is None),
        key=lambda row: (row[4], _word("selection exploring", seed, number, row[0])),
    )
    share = max(given.get("least", 0.2), given.get("explore", 0.9) * given.get("decay", 0.98) ** (number - 1))
    count = min(len(strange), max(int(share * select + 0.5), select - len(known)))
    chosen = [row[0] for row in strange[:count]]
    places = min(select, len(rows)) - count
    if places:
        gains = sorted(row[1] * row[2] for row in known)
        low, high = gains[0], gains[int(0.95 * (len(gains) - 1))]
        fast = sorted(row[3] for row in known)[int(given.get("preferred", 0.3) * len(known))]
        scores = []
        for device, examples, loss, seconds, _, last in known:
            score = (min(examples * loss, high) - low) / (high - low) if high > low else 1.0
            score += math.sqrt(0.1 * math.log(number) / last)
            if seconds > fast:
                score *= (fast / seconds) ** given.get("alpha", 2)
            scores.append((device, score))
        least = given.get("cutoff", 0.95) * sorted((score for _, score in scores), reverse=True)[places - 1]
        able = [(device, max(score, 1e-12)) for device, score in scores if score >= least]
        chosen += [row[0] for row in _in_proportion(able, places, "selection exploiting", seed, number)]
    return sorted(chosen)


def _in_proportion(rows: list[tuple[Any, ...]], most: int, purpose: str, seed: int, number: int) -> list[Any]:
    """Efraimidis and Spirakis 2006, by the second value of a row; the first that is drawn comes first."""

    def key(row: tuple[Any, ...]) -> tuple[float, str]:
        chance = (_word(purpose, seed, number, row[0]) + 0.5) / 2**64
        return -math.log(chance) / (max(1, row[1]) if isinstance(row[1], int) else row[1]), row[0]

    return sorted(rows, key=key)[:most]


def _word(purpose: str, seed: int, number: int, device: str) -> int:
    return _hashed(f"quorate {purpose} v1\n{seed}\n{number}\n{device}")[0]


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
