"""The pool in memory: who waits, and the tree from which each run draws.

A draw reads what has changed in the pool since the last one, and no more: the store numbers the changes, of all
replicas, in the order in which they were committed (``Transaction.hold_pool``). The first draw of a process reads the
whole pool, and so does one that comes after more changes than are stored; the first draw of a run makes its tree.

What is read stays. A transaction that draws may read too, since it reads before it writes: what it has read is
committed, whatever becomes of it. Nothing is read while the lock is held: who holds a transaction waits for this pool,
so nobody who has this pool may wait for a transaction.

Of the rows of the pool some are not free: a device that checked in while it was drawn, with whose claim no change of
the pool ends. Those few are read again each time. Time ends places too: it follows the clock, also where that falls.

Runs that may select the same devices, whatever they say, share a tree; those that one of them leaves out (spent,
resting, with a place) are taken out and put back, at the price of as many. A tree goes with the last of its runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

from coordinator.engine.pool_tree import PoolTree
from coordinator.store.port import Reader

_EXPIRED = 1000
"""So many of the places that ended last may come back when the clock falls; after that the pool is read again."""


class Place(NamedTuple):
    examples: int
    offer: str
    expires: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a store, or a transaction, has of the pool that is not in memory yet."""

    after: int
    """The change after which was read; -1: all."""
    end: int
    """The last change that is in it."""
    rows: Sequence[Sequence[Any]]
    """(device, examples, offer, expires)."""
    devices: Collection[str]
    """Of whom was read; those without a row do not wait. Of all: empty."""
    claimed: Collection[str]


@dataclass(slots=True)
class Eligible:
    """The devices in the pool that some runs may select."""

    named: frozenset[str]
    """Ids of all that may be selected; empty: any."""
    fewest: dict[str, int | None]
    """How many examples a device must have, by what it offers; None: it does not fit."""
    without: set[str]
    runs: set[str]
    tree: PoolTree = field(default_factory=PoolTree)
    changed: set[str] = field(default_factory=set)
    """Devices that may be in the tree, or lacking there, by mistake."""

    def fits(self, device: str, place: Place | None) -> bool:
        """Whether the runs may select it, were it not left out."""
        wanted = None if place is None else self.fewest.get(place.offer)
        named = not self.named or device in self.named
        return place is not None and wanted is not None and place.examples >= wanted and named


class WaitingPool:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = -1
        """The last change that is in it; -1: it is to be read as a whole."""
        self._now, self._floor = float("-inf"), float("-inf")
        """The latest time; from which time on it is known who has expired."""
        self._places: dict[str, Place] = {}
        """Of each device that waits and is free."""
        self._by_offer: dict[str, set[str]] = {}
        self._claimed: set[str] = set()
        """Those that wait and are not free."""
        self._due: list[tuple[float, str]] = []
        """A heap of (when a place ends, device), also of places that others have replaced."""
        self._expired: dict[str, Place] = {}
        """Places that time has ended, the latest last."""
        self._eligible: list[Eligible] = []

    def read(self, reader: Reader, *, whole: bool = False) -> Reading:
        """What the store, or the transaction, has that is not in this pool yet; ``whole``: all of it."""
        with self._lock:
            after, again = self._end, set(self._claimed)
        changes = None if after < 0 or whole else reader.pool_changes(after)
        if changes is None:
            end = reader.last_pool_change()
            return Reading(-1, end, reader.places(), (), reader.claimed())
        end, changed = changes
        devices = again.union(changed)
        rows = reader.places(devices) if devices else ()
        return Reading(after, end, rows, devices, reader.claimed([row[0] for row in rows]) if rows else ())

    @contextmanager
    def held(self, reading: Reading, now: float) -> Iterator[bool]:
        """Holds the pool as of this reading and time. It gives False where that cannot be: another thread has found
        that all is to be read again, or this one has, since the clock fell far."""
        with self._lock:
            if reading.after < 0:
                if self._end < reading.end or self._end < 0:
                    self._begin(reading)
            elif reading.after > self._end:
                yield False
                return
            elif self._end <= reading.end:
                self._take(reading)
            self._pass(now)
            yield self._end >= 0

    def eligible(
        self,
        run: str,
        running: Collection[str],
        named: frozenset[str],
        fewest: Callable[[str], int | None],
        without: set[str],
    ) -> Eligible:
        """Who may be selected for the run, in a pool that is held, but for those that are left out. ``running``: the
        runs whose trees are kept."""
        wanted = {offer: fewest(offer) for offer in self._by_offer}
        found = self._shared(run, running, named, wanted)
        for offer in wanted:
            if found.fewest.get(offer) != wanted[offer]:
                found.changed |= self._by_offer[offer]
        found.fewest = wanted
        found.changed |= found.without ^ without
        found.without = without
        if len(found.changed) > len(self._places) / 2:
            fit = (item for item in self._places.items() if found.fits(*item) and item[0] not in without)
            found.tree = PoolTree(sorted((device, place.examples) for device, place in fit))
        else:
            for device in found.changed:
                place = self._places.get(device)
                if place is not None and device not in without and found.fits(device, place):
                    found.tree.put(device, place.examples)
                else:
                    found.tree.drop(device)
        found.changed = set()
        return found

    def place(self, device: str) -> Place | None:
        """Of a device that waits and is free, in a pool that is held."""
        return self._places.get(device)

    def by_offer(self, reader: Reader, now: float) -> dict[str, int]:
        """How many devices wait and are free, by what they offer; as far as can be said while another thread reads
        all of the pool."""
        for whole in (False, True):
            with self.held(self.read(reader, whole=whole), now) as stands:
                if stands or whole:
                    return {offer: len(devices) for offer, devices in self._by_offer.items()}
        return {}

    def _shared(
        self, run: str, running: Collection[str], named: frozenset[str], wanted: dict[str, int | None]
    ) -> Eligible:
        """The tree of the same devices, or the run's own, or a new one."""
        mine = None
        for one in self._eligible:
            one.runs.intersection_update(running)
            if run in one.runs:
                mine = one
                one.runs.discard(run)
        alike = (one for one in self._eligible if one.named == named and (one.runs or one is mine))
        found = next((one for one in alike if all(one.fewest.get(offer) == wanted[offer] for offer in wanted)), None)
        if found is None and mine is not None and not mine.runs and mine.named == named:
            found = mine
        if found is None:
            found = Eligible(named, wanted, set(), set(), changed=set(self._places))
            self._eligible.append(found)
        found.runs.add(run)
        self._eligible = [one for one in self._eligible if one.runs]
        return found

    def _begin(self, reading: Reading) -> None:
        """Takes the whole pool anew."""
        offers = dict[str, str]()
        self._places = {
            device: Place(examples, offers.setdefault(offer, offer), expires)
            for device, examples, offer, expires in reading.rows
            if device not in reading.claimed
        }
        self._claimed = {row[0] for row in reading.rows if row[0] in reading.claimed}
        self._by_offer = {}
        for device, place in self._places.items():
            self._by_offer.setdefault(place.offer, set()).add(device)
        self._due = [(place.expires, device) for device, place in self._places.items()]
        heapify(self._due)
        self._expired, self._now, self._floor = {}, float("-inf"), float("-inf")
        for one in self._eligible:
            one.tree, one.changed = PoolTree(), set(self._places)
        self._end = reading.end

    def _take(self, reading: Reading) -> None:
        """Takes what has changed."""
        rows = {row[0]: Place(*row[1:]) for row in reading.rows}
        for device in reading.devices:
            free = device not in reading.claimed
            self._expired.pop(device, None)
            self._set(device, rows.get(device) if free else None)
            (self._claimed.discard if free else self._claimed.add)(device)
        self._end = reading.end

    def _set(self, device: str, place: Place | None) -> None:
        before = self._places.get(device)
        if before == place:
            return
        if before is not None:
            others = self._by_offer[before.offer]
            others.discard(device)
            if not others:
                del self._by_offer[before.offer]
            del self._places[device]
        if place is not None:
            self._places[device] = place
            self._by_offer.setdefault(place.offer, set()).add(device)
            heappush(self._due, (place.expires, device))
        if before is None or place is None or before[:2] != place[:2]:
            for one in self._eligible:
                one.changed.add(device)

    def _pass(self, now: float) -> None:
        """Ends the places whose time is over. Where the clock has fallen, those come back that are not over yet."""
        while self._due and self._due[0][0] <= now:
            expires, device = heappop(self._due)
            place = self._places.get(device)
            if place is not None and place.expires == expires:
                self._set(device, None)
                self._expired[device] = place
        if now < self._now:
            for device, place in [item for item in self._expired.items() if item[1].expires > now]:
                del self._expired[device]
                self._set(device, place)
        for device in [*islice(self._expired, max(0, len(self._expired) - _EXPIRED))]:
            self._floor = max(self._floor, self._expired.pop(device).expires)
        if now < self._floor:
            self._end = -1
        self._now = now
