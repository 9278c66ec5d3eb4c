"""Bugs of private runs: which noise goes into a sum, what a round costs and when, and who may be drawn for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from client_sdk.chance import labelled
from client_sdk.device.data_ledger import Spending
from client_sdk.device.storage import MemoryStorage
from client_sdk.secagg import device
from client_sdk.secagg.agreement import derive
from coordinator.engine import effects as fx
from coordinator.engine.phases import committing
from coordinator.engine.secure import agreeing
from coordinator.engine.state import RunState
from coordinator.folding import validation
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.runtime import actions, fleet, records
from coordinator.runtime.actions import Actions
from coordinator.secure import performing
from coordinator.store.memory import MemoryTransaction
from tests.explorer.mutants.registry import mutant
from tests.explorer.mutants.secure import CALM as SECURE_CALM

Patches = list[tuple[Any, str, Any]]
DYING: dict[str, Any] = {"private": True, "rates": {"crash": 0.02, "store-lost-ack": 0.01, "lose-request": 0.01}}
"""Processes die between the steps of a commit."""
FLIPPING: dict[str, Any] = {
    "private": True,
    "flips": True,
    "rates": {"bit-flip": 0.01, "crash": 0.02},
    "storm_s": 120.0,
}
"""A round's list changes after it was paid for."""
SET_BACK: dict[str, Any] = {
    "private": True,
    "set_back": True,
    "store": "memory",
    "blobs": "memory",
    "replicas": 1,
    "lost_replicas": 0,
    "enrolments": 0,
    "leavers": 0,
    "rates": {"lose-request": 0.02, "device-slow": 0.1},
}
UNDER_MASKS: dict[str, Any] = {**SECURE_CALM, "private": True}
CALM: dict[str, Any] = {"private": True, "rates": {"lose-request": 0.01}}


@mutant("noise-without-the-sum", "noise", **FLIPPING)
def _noise_without_the_sum() -> Patches:
    """The stream of a round's noise does not hang on the sum."""

    def key(seed: RoundSeed, parent: str, total: bytes, mechanism: str = "gaussian") -> bytes:
        return derive(seed.seed, salt=b"", info=labelled("noise", seed.run, seed.round, parent))

    return [(RoundSeed, "key", key)]


@mutant("noise-by-the-round-alone", "noise", **SET_BACK)
def _noise_by_the_round_alone() -> Patches:
    """The stream hangs on the names of run and round alone: it is the same where the folder was set back."""
    made = RoundSeed.key

    def key(seed: RoundSeed, parent: str, total: bytes, mechanism: str = "gaussian") -> bytes:
        return made(RoundSeed(seed.run, seed.round, bytes(32)), "", b"")

    return [(RoundSeed, "key", key)]


@mutant("seed-drawn-for-each-try", "noise", **DYING)
def _seed_drawn_for_each_try() -> Patches:
    """A commit that is made again draws another seed than the one that is stored."""
    stored = Actions._seed

    def fresh(self: Any, run: str, action: fx.Commit) -> RoundSeed:
        found = stored(self, run, action)
        return replace(found, seed=self._core.noise_seed(run, action.round))

    return [(Actions, "_seed", fresh)]


@mutant("seed-not-stored", "noise", "liveness", "ack-durable", **CALM)
def _seed_not_stored() -> Patches:
    """The log says that a round has a seed, and it is not stored with that."""
    insert = MemoryTransaction.insert_messages

    def without(self: MemoryTransaction, rows: Any) -> None:
        insert(self, [row for row in rows if len(row.content) != 32])

    return [(MemoryTransaction, "insert_messages", without)]


@mutant("debit-after-the-commit", "ledger", **DYING)
def _debit_after_the_commit() -> Patches:
    """What a round costs is written in a transaction of its own, when its model is there."""
    write, perform = records.write, Actions._commit
    under_way: list[list[tuple[float, fx.Record]]] = []

    def without(tx: Any, run: str, found: Any) -> None:
        debits = [(at, one) for at, one in found if isinstance(one, fx.RecordDebit)] if under_way else []
        write(tx, run, [one for one in found if one not in debits])
        for later in under_way[-1:]:
            later += debits

    def commit(self: Any, run: str, action: fx.Commit) -> None:
        under_way.append([])
        try:
            perform(self, run, action)
        finally:
            debits = under_way.pop()
        with self._core.store.transaction(run) as tx:
            write(tx, run, debits)

    return [(records, "write", without), (Actions, "_commit", commit)]


@mutant("another-list-costs-nothing", "ledger", "log", **FLIPPING)
def _another_list_costs_nothing() -> Patches:
    """A round costs once, whatever is counted in the end."""
    debit = committing.debit

    def once(*given: Any) -> fx.RecordDebit:
        return replace(debit(*given), counted=hashlib.sha256(b"the round").hexdigest())

    return [(committing, "debit", once)]


@mutant("debit-for-half", "ledger", **CALM)
def _debit_for_half() -> Patches:
    """A round costs half of what it should."""
    debit = committing.debit
    return [(committing, "debit", lambda state, counted, rho: debit(state, counted, rho / 2))]


@mutant("list-beyond-the-budget", "ledger", **{**CALM, "two_runs": True})
def _list_beyond_the_budget() -> Patches:
    """A list is not held to the ledger, in which a device may have lost its last room since it was drawn."""
    return [(actions, "reason_against_list", lambda *of: "")]


@mutant("budget-spent-and-drawn", "draw", **{**CALM, "two_runs": True})
def _budget_spent_and_drawn() -> Patches:
    """Who has no room in the ledger is drawn."""
    return [(fleet, "kept_out", lambda *of: {})]


@mutant("resting-device-drawn", "draw", **CALM)
def _resting_device_drawn() -> Patches:
    """A device is drawn for the rounds in which it should rest."""
    return [(RunState, "rests", lambda self, device: False)]


@mutant("most-rounds-ignored", "draw", **CALM)
def _most_rounds_ignored() -> Patches:
    """A device is drawn that has counted as often as the plan allows."""
    return [(RunState, "has_done_all", lambda self, device: False)]


@mutant("long-update-counts", "same-bits", **CALM)
def _long_update_counts() -> Patches:
    """An update that is longer than the clip is not scaled to it."""
    measured = validation._measured
    return [(validation, "_measured", lambda *given: replace(measured(*given), scale=None))]


@mutant("noise-restarts-with-the-process", "same-bits", **DYING)
def _noise_restarts_with_the_process() -> Patches:
    """A process that has started again draws correlated noise as if its first round were the run's."""
    drawn = Noise._of

    def of(self: Any, keys: Any, size: int) -> Any:
        self._ended = self._ended or [b""] * (len(keys) - 1)
        return drawn(self, keys[len(keys) - 1 - len(self._ended) :] if not any(self._ended) else keys, size)

    return [(Noise, "_of", of)]


@mutant("answer-leaves-unpaid", "ledger", **CALM)
def _answer_leaves_unpaid() -> Patches:
    """A device's own ledger does not have what the device sends."""
    return [(MemoryStorage, "spend", lambda self, debit, bounds, ahead=False: self.ledger.declines(debit, bounds))]


@mutant("answer-paid-once-a-round", "ledger", **{**CALM, "focus": ("device-old-record", "collecting")})
def _answer_paid_once_a_round() -> Patches:
    """Another answer in the same round costs a device nothing."""
    return [(Spending, "pays", lambda self, debit: debit.round == self.last.round)]


@mutant("shown-list-unpaid", "ledger", **UNDER_MASKS)
def _shown_list_unpaid() -> Patches:
    """Under masks a list is paid for nowhere."""
    return [(agreeing, "_debited", lambda state: [])]


@mutant("shown-list-uncounted", "draw", "spent", **UNDER_MASKS)
def _shown_list_uncounted() -> Patches:
    """A list that was shown is no round in which its devices count."""
    return [(agreeing, "_counted", lambda state, listed: state)]


@mutant("share-of-noise-left-out", "same-bits", **UNDER_MASKS)
def _share_of_noise_left_out() -> Patches:
    """A device adds no noise before it masks."""
    return [(device, "add_noise", lambda vector, share, key: None)]


@mutant("share-by-the-roster-alone", "noise", "same-bits", **UNDER_MASKS)
def _share_by_the_roster_alone() -> Patches:
    """All devices of a roster add the same noise: its key is made of nothing that is secret."""
    made = device.noise_key
    return [(device, "noise_key", lambda secrets, h: made(replace(secrets, dealing=bytes(32)), h))]


@mutant("mean-of-who-is-there", "same-bits", **UNDER_MASKS)
def _mean_of_who_is_there() -> Patches:
    """A sum with noise is divided by how many devices are in it."""
    mean = performing._mean
    return [(performing, "_mean", lambda quantizer, *more: mean(replace(quantizer, noise=0.0, divisor=0), *more))]


@mutant("masked-vector-unpaid", "ledger", **UNDER_MASKS)
def _masked_vector_unpaid() -> Patches:
    """A device's own ledger does not have the vectors that it masks."""
    return [(MemoryStorage, "spend", lambda self, debit, bounds, ahead=False: self.ledger.declines(debit, bounds))]
