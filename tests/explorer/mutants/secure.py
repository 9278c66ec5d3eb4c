"""Bugs in secure rounds: of the device's part, the engine's phases, the sum, and of what is stored and shown."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from dataclasses import replace
from typing import Any

from client_sdk.device.storage import MemoryStorage
from client_sdk.secagg.lanes import LaneSum
from client_sdk.secagg.masks import Masker
from client_sdk.secagg.memory import Memory
from client_sdk.secagg.opening import OpenedSum, Opening
from client_sdk.secagg.shares import SharePair
from coordinator.engine import effects as fx
from coordinator.engine.event_fields import Group
from coordinator.engine.kinds import secure as secure_kind
from coordinator.engine.phases import opening
from coordinator.engine.secure import agreeing, attempts, collecting, holders, masking
from coordinator.engine.secure.plan import Secure
from coordinator.engine.state import RunState
from coordinator.runtime import drawing, fleet, marks
from coordinator.runtime.commits import Commits
from coordinator.runtime.run_log import RunLog
from coordinator.secure import opening as sums
from coordinator.secure import performing, validation
from coordinator.secure.opening import Lost
from coordinator.secure.requests import SecureRequests
from coordinator.secure.routing import DealtShares
from coordinator.store.memory import MemoryTransaction
from coordinator.store.port import Transaction
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]
VANISHING: dict[str, Any] = {
    "secure": True,
    "replicas": 1,
    "liars": 0,
    "storm_s": 150.0,
    "rates": {"lose-request": 0.02, "device-crash": 0.01},
}
"""Devices vanish in the exchange that the schedule focuses on."""
CALM: dict[str, Any] = {**VANISHING, "rates": {"lose-request": 0.01}, "storm_s": 60.0}
LYING: dict[str, Any] = {**VANISHING, "rates": {"secure-lie": 0.6}, "liars": 1}
SIGNING = ("secure-vanish", "agreeing")


@mutant("vectors-without-masks", "unmasked", **CALM)
def _vectors_without_masks() -> Patches:
    """No mask is added to a vector, and none is removed from the sum."""
    return [(Masker, "apply", lambda self, vector, seed, sign, first=0: None)]


@mutant("rebuilt-secret-stored", "unmasked", **CALM)
def _rebuilt_secret_stored() -> Patches:
    """The blob of a sum ends in a secret that was rebuilt for it."""
    rebuilt, pack_sum, found = Opening.open, performing.sum_bytes, [b""]

    def remembered(self: Opening) -> OpenedSum:
        opened = rebuilt(self)
        found[0] = next(iter(opened.secrets.values()))
        return opened

    return [
        (Opening, "open", remembered),
        (performing, "sum_bytes", lambda packed, h: pack_sum(packed, h) + found[0]),
    ]


@mutant("spent-forgotten", "spent", focus=SIGNING, **VANISHING)
def _spent_forgotten() -> Patches:
    """A device does not ask its memory whether it has signed on the checkpoint."""
    return [(Memory, "is_spent", lambda self, tensors: False)]


@mutant("memory-not-kept", "spent", "no-bug", focus=SIGNING, **VANISHING)
def _memory_not_kept() -> Patches:
    """A device's memory forgets which checkpoints are spent when a round ends."""
    keep = MemoryStorage.keep

    def forgetting(self: MemoryStorage, change: Any) -> Memory:
        def changed(newest: Memory) -> Memory:
            found = change(newest)
            return replace(found, spent=frozenset()) if len(found.live) < len(newest.live) else found

        return keep(self, changed)

    return [(MemoryStorage, "keep", forgetting)]


@mutant("spent-drawn", "spent", "draw", focus=SIGNING, **VANISHING)
def _spent_drawn() -> Patches:
    """Devices that have signed on a model are drawn for it again."""

    def barred_alone(reader: Any, state: Any) -> dict[str, str]:
        return dict.fromkeys(state.barred, "barred")

    return [(drawing, "unspendable", barred_alone), (fleet, "unspendable", barred_alone)]


@mutant("sum-altered", "same-bits", **CALM)
def _sum_altered() -> Patches:
    """The opened sum has one more in its first lane."""
    pack = performing.pack

    def packed(lanes: Any, bits: int) -> bytes:
        other = lanes.copy()
        other[0] += 1
        return pack(other, bits)

    return [(performing, "pack", packed)]


@mutant("vector-twice-in-the-sum", "liveness", "same-bits", **CALM)
def _vector_twice_in_the_sum() -> Patches:
    """The first survivor's masked vector is added twice."""
    added = sums._added

    def twice(cohort: Any, survivors: Any, vectors: Any) -> Any:
        first, *rest = map(bytes, vectors)
        again = LaneSum(cohort.header.lanes, cohort.roster.lane_bits)
        again.add(first)
        return added(cohort, survivors, [first, *rest]) + again.total()

    return [(sums, "_added", twice)]


@mutant("holder-does-not-compare", "barred", focus=("secure-lie", "sharing"), **LYING)
def _holder_does_not_compare() -> Patches:
    """A holder masks with shares that are not those that their dealer signed for."""
    return [(SharePair, "require_dealt", lambda self, h, dealer, holder, digests: None)]


@mutant(
    "dispute-ignored",
    "one-end",
    "claims",
    "log",
    focus=("secure-vanish", "masking"),
    **{**LYING, "rates": {"secure-lie": 0.8, "secure-vanish": 0.1}},
)
def _dispute_ignored() -> Patches:
    """A fresh attempt has the same devices, whoever is in dispute with several others."""
    return [(attempts, "at_fault", lambda complaints, before: {})]


@mutant("opened-pair-unchecked", "barred", focus=("secure-lie", "masking"), **LYING)
def _opened_pair_unchecked() -> Patches:
    """The pair that an accused dealer opens goes to its holder as it is."""
    return [(validation, "pairs_opened", lambda cohort, place, body, signature, holders, dealt: None)]


@mutant("list-before-complaints-settle", "deadline", "log", "late-report", focus=("secure-lie", "masking"), **LYING)
def _list_before_complaints_settle() -> Patches:
    """An exchange does not wait for a dealer that has masked and owes an answer."""
    return [(masking, "accused", lambda state: frozenset())]


@mutant("holder-without-pair-counts", "log", focus=("secure-lie", "masking"), **LYING)
def _holder_without_pair_counts() -> Patches:
    """A device that lacks the pair of a dealer which is out is counted as a holder of that dealer's secrets."""
    return [(holders, "Counter", lambda dealers: Counter())]


@mutant("roster-closed-early", "log", "deadline", "late-report", **CALM)
def _roster_closed_early() -> Patches:
    """The roster is closed with the fewest devices that it may have."""
    return [(Secure, "most_advertisers", Secure.fewest_advertisers)]


@mutant("one-signature-is-enough", "log", **CALM)
def _one_signature_is_enough() -> Patches:
    """The shares are asked for once a single survivor has signed the list."""
    numbers = performing.numbers_of
    return [(performing, "numbers_of", lambda cohort: replace(numbers(cohort), signers=1))]


@mutant("lower-threshold", "log", **CALM)
def _lower_threshold() -> Patches:
    """The engine counts on one share fewer than it takes."""
    numbers = performing.numbers_of

    def lower(cohort: Any) -> Group:
        found = numbers(cohort)
        return replace(found, threshold=found.threshold - 1)

    return [(performing, "numbers_of", lower)]


@mutant("messages-left", "retention", **CALM)
def _messages_left() -> Patches:
    """The blobs of a secure round stay when it has ended."""
    discard = Commits.discard

    def one_left(self: Commits, run: str, action: fx.Discard) -> None:
        rows = self._core.store.message_rounds(run)
        files = [digest for digest in action.blobs if digest not in rows]
        discard(self, run, replace(action, blobs=tuple(rows) + tuple(files[1:])))

    return [(Commits, "discard", one_left)]


@mutant("short-messages-left", "retention", **CALM)
def _short_messages_left() -> Patches:
    """The rows of a secure round's messages stay when it has ended."""

    def left(self: Any, run: str, round: int) -> None:
        pass

    return [(Transaction, "drop_messages", left)]


@mutant("short-messages-unwritten", "liveness", **CALM)
def _short_messages_unwritten() -> Patches:
    """A message is acknowledged, and only its event is stored."""
    enter = RunLog.enter

    def without(self: RunLog, make: Any, **given: Any) -> Any:
        return enter(self, make, **{**given, "message": None})

    return [(RunLog, "enter", without)]


@mutant("late-maskers-held", "claims", focus=("secure-vanish", "masking"), **VANISHING)
def _late_maskers_held() -> Patches:
    """A device that has not masked in time is not released when the list is fixed."""
    begin = agreeing.begin

    def held(state: Any, at: float) -> Any:
        following, effects = begin(state, at)
        return following, [effect for effect in effects if not isinstance(effect, fx.Release)]

    return [(masking, "begin_agreeing", held)]


@mutant("exhausted-unsaid", "operator", "liveness", "deadline", focus=SIGNING, **VANISHING)
def _exhausted_unsaid() -> Patches:
    """A run that too few devices can continue does not say so, and cannot be advanced."""
    return [(collecting, "why_exhausted", lambda state, event, fewest: "")]


@mutant("exhausted-looks-on", "deadline", "log", focus=SIGNING, **VANISHING)
def _exhausted_looks_on() -> Patches:
    """An exhausted run counts a missed selection each time that its wait is over, for ever."""
    missed = collecting.missed
    return [(collecting, "missed", lambda state, at, reason, waits=False: missed(state, at, reason))]


@mutant("exhausted-woken-by-any", "deadline", "log", focus=SIGNING, **VANISHING)
def _exhausted_woken_by_any() -> Patches:
    """An exhausted run draws again whenever a device comes, however few there are then."""
    return [(RunState, "drawn_from", property(lambda self: 0 if self.waits else self.plan.pool_count))]


@mutant("record-names-devices", "unmasked", "public", **CALM)
def _record_names_devices() -> Patches:
    """The public record of a secure round says who has masked."""
    shown = secure_kind.progress

    def named(current: Any, secure: Any, plan: Any, cohort: Any) -> dict[str, object]:
        return {**shown(current, secure, plan, cohort), "masked": sorted(secure.masked)}

    return [(secure_kind, "progress", named)]


@mutant("mark-not-recorded", "spent", "draw", "rows", two_runs=True, **CALM)
def _mark_not_recorded() -> Patches:
    """That a device has signed is known to its own run alone."""
    return [(MemoryTransaction, "insert_marks", lambda self, rows: None)]


@mutant("model-goes-by-its-file", "spent", "draw", two_runs=True, **CALM)
def _model_goes_by_its_file() -> Patches:
    """Marks go by the file of a model: the same tensors in another file are another model."""
    return [(marks, "canonical_digest", lambda file: hashlib.sha256(file.read()).hexdigest())]


@mutant("mean-by-another-cap", "same-bits", **CALM)
def _mean_by_another_cap() -> Patches:
    """The mean is scaled by another weight cap than the devices' lanes."""
    commit = performing.commit_sums

    def scaled(aggregator: Any, round: int, parent: str, quantizer: Any, *rest: Any, **about: Any) -> Any:
        other = replace(quantizer, weight_cap=quantizer.weight_cap + 1)
        return commit(aggregator, round, parent, other, *rest, **about)

    return [(performing, "commit_sums", scaled)]


@mutant("vector-acknowledged-that-never-came", "liveness", **CALM)
def _vector_acknowledged_that_never_came() -> Patches:
    """Any vector is taken for the one that counts already, and so is never read."""
    return [(SecureRequests, "has_come", lambda self, *about: True)]


@mutant("wrong-shares-count", "barred", focus=("secure-lie", "unmasking"), **LYING)
def _wrong_shares_count() -> Patches:
    """Revealed shares are not compared with the digests that their dealers signed."""
    return [(DealtShares, "wrong", lambda self, message: ())]


@mutant("innocent-barred", "barred", focus=("secure-lie", "sharing"), **LYING)
def _innocent_barred() -> Patches:
    """Where one dealer has cheated, others are barred with it."""

    class Everybody(Lost):
        def __init__(self, places: tuple[int, ...]) -> None:
            super().__init__((0, 1, 2))

    return [(sums, "Lost", Everybody)]


@mutant("barred-for-ever", "draw", "log", focus=("secure-lie", "sharing"), **LYING)
def _barred_for_ever() -> Patches:
    """A bar does not end."""
    return [(opening, "still_barred", lambda barred, number: barred)]


@mutant("rebuilt-secret-logged", "unmasked", **CALM)
def _rebuilt_secret_logged() -> Patches:
    """The coordinator's log has a secret that was rebuilt for a sum."""
    rebuilt = Opening.open

    def told(self: Opening) -> OpenedSum:
        opened = rebuilt(self)
        logging.getLogger("quorate.secure").info("opened with %s", next(iter(opened.secrets.values())).hex())
        return opened

    return [(Opening, "open", told)]
