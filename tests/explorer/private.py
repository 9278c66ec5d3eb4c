"""Private runs: which streams of noise went into which sums, what each run must have in its ledger, and the mean that a
round's updates and its noise give.

What must hold, of all processes together and also where the coordinator's folder was set back: no stream of noise is in
two sums; a sum has one stream, as long as the folder goes forwards; and what is counted is in the ledger first, of the
coordinator and of each device.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np

from client_sdk.device.data_ledger import DataLedger
from client_sdk.privacy.accounting import epsilon_of, rho_for
from coordinator.engine.plan import Plan
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.store.port import LedgerRow
from tests.explorer.faults import Broken
from tests.explorer.marks import Lanes, Made

SHARED = "explorer"
"""The ledger that some plans name."""
BUDGET = 1.5
"""Its budget, in runs that a device may be in as often as the plan allows."""
ROUNDING = 1 + 2.0**-40
"""What adding up floats may add."""
UNIT = 2.0**32
"""Units of the exact sum in 1."""
WITHIN = 1 - 2.0**-20
"""Of the clip, to which longer updates are scaled."""
Spent = defaultdict[str, dict[str, float]]
"""Ledger -> device -> what it has lost there, by the logs of all runs."""


class Streams:
    """Which streams of noise went into which sums."""

    def __init__(self) -> None:
        self._sums: dict[bytes, tuple[str, int, str, bytes]] = {}
        """Key of a stream -> run, round, parent and digest of the sum that it went into."""
        self.keys: dict[tuple[str, int, str, bytes], bytes] = {}
        """The same, the other way round, since the coordinator's folder was set back last."""

    def see(self, key: bytes, sum: tuple[str, int, str, bytes]) -> None:
        run, number = sum[:2]
        if self._sums.setdefault(key, sum)[2:] != sum[2:]:
            raise Broken("noise", f"round {number} of {run}: one stream of noise is in two sums")
        if self.keys.setdefault(sum, key) != key:
            raise Broken("noise", f"round {number} of {run}: one sum has two streams of noise")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the block runs, each key that the product makes is seen."""
        made = RoundSeed.key

        def key(seed: RoundSeed, parent: str, total: bytes, mechanism: str = "gaussian") -> bytes:
            found = made(seed, parent, total, mechanism)
            self.see(found, (seed.run, seed.round, parent, total))
            return found

        with patch.object(RoundSeed, "key", key):
            yield


@lru_cache(maxsize=64)
def _parsed(plan: str) -> Plan:
    return Plan.parse(json.loads(plan))


def shared_ledger(plan: dict[str, Any]) -> LedgerRow | None:
    """The ledger that the plan names; None where it names none."""
    parsed = _parsed(json.dumps(plan))
    privacy = parsed.privacy
    if privacy is None or privacy.ledger is None:
        return None
    epsilon = epsilon_of(BUDGET * privacy.rho(parsed), privacy.delta)
    return LedgerRow(ledger=SHARED, epsilon=epsilon, delta=privacy.delta, created_at=0.0, created_by="explorer")


@dataclass(slots=True)
class PrivateAccount:
    """What the rounds of one run have cost, by its log. ``spent``: of all runs."""

    run: str
    spent: Spent
    cost: float
    """The zCDP of one round."""
    ledger: str
    budget: float
    most_rounds: int
    """In how many rounds a device counts at most, by its plan;"""
    answers: int
    """in how many it answers, where apart leaves room for fewer."""
    apart: int
    plan: Plan
    seed: str = ""
    """SHA-256 of the seed of the round under way."""
    seeds: dict[int, str] = field(default_factory=dict)
    """Those of committed rounds."""
    lists: set[frozenset[tuple[str, str]]] = field(default_factory=set)
    """Of the round under way, those that were paid for: (device, digest of its update)."""
    times: Counter[str] = field(default_factory=Counter)
    """Device -> on how many of these it was, over all rounds."""
    debits: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    """Device -> in how many rounds it counts, of all that the plan allows."""
    counted_at: dict[str, int] = field(default_factory=dict)
    """Device -> the last version that has its update."""
    noise: list[bytes] = field(default_factory=list)
    """The keys of the noise of committed rounds."""

    @classmethod
    def of(cls, run: str, plan: dict[str, Any], spent: Spent) -> PrivateAccount | None:
        """Of this run; None where its plan has no noise."""
        if not plan.get("privacy"):
            return None
        parsed = _parsed(json.dumps(plan))
        privacy, row = parsed.privacy, shared_ledger(plan)
        assert privacy is not None
        budget = privacy.rho(parsed) if row is None else rho_for(row.epsilon, row.delta)
        ledger, cohort = privacy.ledger_of(run), parsed.cohort
        most = cohort.most_rounds or 0
        answers = privacy.participations(parsed)
        return cls(run, spent, privacy.cost(parsed), ledger, budget, most, answers, cohort.apart or 1, parsed)

    def out(self, version: int) -> set[str]:
        """Who cannot be drawn on this version."""
        done = {device for device, times in self.counted.items() if times >= self.most_rounds}
        rest = {device for device, last in self.counted_at.items() if version + 1 - last < self.apart}
        return done | rest | {device for lost in self.spent.values() for device in lost if self.is_spent(device)}

    def is_spent(self, device: str) -> bool:
        """Whether the device has no room for one more round, or has lost something by another ledger."""
        elsewhere = any(device in lost for ledger, lost in self.spent.items() if ledger != self.ledger)
        return elsewhere or self.spent[self.ledger].get(device, 0.0) + self.cost > self.budget * ROUNDING

    def opens(self) -> None:
        """A round begins."""
        self.seed, self.lists = "", set()

    def debit(self, reported: Mapping[str, tuple[str, int]]) -> bool:
        """This list is paid for. False: it was before."""
        these = frozenset((device, digest) for device, (digest, _) in reported.items())
        if these in self.lists:
            return False
        self.lists.add(these)
        self.debits += 1
        mine = self.spent[self.ledger]
        for device in reported:
            self.times[device] += 1
            mine[device] = mine.get(device, 0.0) + self.cost
        return True

    def counts(self, devices: Iterable[str]) -> None:
        """These devices count in one more round."""
        self.counted.update(list(devices))

    def committed(self, round: int, devices: Iterable[str], version: int) -> None:
        """A plain round has made this version of these devices' updates."""
        self.counts(devices)
        self.counted_at |= dict.fromkeys(devices, version)
        self.seeds[round] = self.seed

    def require_rows(self, reader: Any) -> None:
        """The ledger has what the log says, and nobody has lost more than is allowed: but for one round more under
        masks, where a list cannot be taken back once it was shown."""
        rows = {row.device: row for row in reader.privacy_spending_in(self.ledger) if row.run == self.run}
        if {device: row.times for device, row in rows.items()} != dict(self.times):
            lacking = sorted(
                device for device, times in self.times.items() if device not in rows or rows[device].times < times
            )
            raise Broken("ledger", f"the ledger of {self.run} does not have what its log tells; it lacks {lacking}")
        if wrong := [device for device, row in rows.items() if not math.isclose(row.rho, row.times * self.cost)]:
            raise Broken("ledger", f"{self.run} cost {wrong[0]} {rows[wrong[0]].rho} in {rows[wrong[0]].times} rounds")
        if len(reader.privacy_debits(self.run)) != self.debits:
            raise Broken("ledger", f"the ledger has not the {self.debits} lists of {self.run}")
        most = (self.budget + (self.cost if self.plan.secure is not None else 0.0)) * ROUNDING
        for device, lost in reader.privacy_totals(self.ledger).items():
            if lost > most:
                raise Broken("ledger", f"{device} has lost {lost} in the ledger {self.ledger}, which allows {most}")

    def mean(self, streams: Streams, round: int, parent: str, updates: list[Made], lanes: int) -> Lanes:
        """The mean of these updates with the noise of the round, whose key is added to ``noise``."""
        privacy = self.plan.privacy
        assert privacy is not None
        total = np.zeros(lanes, np.int64)
        for made in updates:
            total += clipped(made, privacy.clip, lanes)
        digest = hashlib.sha256(total.astype("<i8").tobytes()).digest()
        key = streams.keys.get((self.run, round, parent, digest))
        if key is None:
            raise Broken("same-bits", f"no noise was drawn for the sum of round {round} of {self.run}")
        self.noise.append(key)
        before = self.noise if privacy.correlated else self.noise[-1:]
        noised = total + Noise(self.plan, privacy)._of(before, lanes)
        return (noised / np.float64(self.plan.cohort.goal * UNIT)).astype(np.float32)


def clipped(made: Made, clip: float, lanes: int) -> Any:
    """An update in whole units of the sum, scaled to the clip where it is longer, and rounded towards zero."""
    values = np.zeros(lanes, np.float64)
    for lane, value in made.lanes.items():
        values[lane] = value
    limit, norm = clip * WITHIN, math.sqrt(math.fsum(value * value for value in values))
    scaled = (values * (limit / norm) if norm > limit else values).astype(np.float32)
    return np.trunc(scaled.astype(np.float64) * UNIT).astype(np.int64)


def require_paid(name: str, ledger: DataLedger, run: str, told: set[tuple[int, str]], cost: float) -> None:
    """A device's own ledger has each answer of this run that has left it: (round, digest)."""
    mine = [one for one in ledger.spent if one.last.run == run]
    answers, rho = sum(one.answers for one in mine), sum(one.rho or 0.0 for one in mine)
    if answers < len(told) or rho * ROUNDING < len(told) * cost:
        raise Broken("ledger", f"{name} has sent {len(told)} answers to {run}; its own ledger has {answers}")
