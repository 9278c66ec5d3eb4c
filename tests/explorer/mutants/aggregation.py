"""Bugs between the updates of a round and the next checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from client_sdk.tensors import TensorError, read_header
from client_sdk.tensors.exact_sum import ExactSum
from client_sdk.update import decode_report
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation import section
from coordinator.engine.effects import Contribution
from coordinator.engine.phases import collecting
from coordinator.engine.state import RunState
from coordinator.folding import aggregator as aggregators
from coordinator.folding import named_tensors, validation
from coordinator.folding.aggregator import Aggregator, NewCheckpoint, SpooledSums
from coordinator.runtime import commits
from tests.explorer.mutants.registry import mutant

Patches = list[tuple[Any, str, Any]]


@mutant("double-count", "counts-once", focus=("duplicate", "collecting"))
def _double_count() -> Patches:
    """An update that is sent twice is added twice."""
    reported = collecting.reported

    def again(state: RunState, event: ev.Reported) -> Any:
        following, effects = reported(state, event)
        member = None if state.round is None else state.round.members.get(event.device)
        if following is state and member is not None and any(isinstance(e, fx.Accepted) for e in effects):
            item = Contribution(device=event.device, digest=event.digest, weight=member.weight)
            effects = [*effects, fx.Fold(round=state.round_number, contribution=item)]
        return following, effects

    def fold(self: SpooledSums, round: int, item: Contribution, clip: float = 0.0) -> None:
        if not (self._current is not None and self._current.round > round):
            self._add(self._sum_of(round, clip), item)

    return [(collecting, "reported", again), (SpooledSums, "fold", fold)]


@mutant("order-dependent-fold", "same-bits")
def _order_dependent_fold() -> Patches:
    """Updates are added in float32, in the order in which they arrive."""

    def add_blocks(self: Any, blocks: Iterable[Any], weight: int, peak: float) -> None:
        flat = np.concatenate([np.asarray(block, np.float32) for block in blocks])
        self.floats = getattr(self, "floats", np.zeros(self.dimension, np.float32)) + np.float32(weight) * flat
        self.count += 1
        self.total_weight += weight

    def mean_block(self: Any, start: int, stop: int) -> Any:
        return self.floats[start:stop] / np.float32(self.total_weight)

    return [(ExactSum, "add_blocks", add_blocks), (ExactSum, "mean_block", mean_block)]


@mutant("lost-update", "named")
def _lost_update() -> Patches:
    """The sum leaves out one of the updates that the commit names."""
    total = SpooledSums.total

    def short(self: SpooledSums, round: int, items: tuple[Contribution, ...], clip: float = 0.0) -> Any:
        self._current = None
        return total(self, round, items[1:] if len(items) > 1 else items, clip)

    return [(SpooledSums, "total", short)]


@mutant("stale-sum", "counts-once", "same-bits", "named")
def _stale_sum() -> Patches:
    """A running sum is kept when the next round begins."""

    def sum_of(self: SpooledSums, round: int, clip: float) -> Any:
        if self._current is None:
            self._current = aggregators._RoundSum(round, clip, ExactSum(self._layout.elements))
        self._current.round = round
        self._current.folded.clear()
        return self._current

    def keep(self: SpooledSums, round: int) -> None:
        self._measures.clear()

    return [(SpooledSums, "_sum_of", sum_of), (SpooledSums, "forget", keep)]


@mutant("blob-before-write", "whole-blob")
def _blob_before_write() -> Patches:
    """A checkpoint is announced before its bytes are durable."""
    write = Aggregator._write

    def announce(self: Aggregator, *commit: Any) -> NewCheckpoint:
        made = write(self, *commit)
        self._blobs.delete(made.digest)
        return made

    return [(Aggregator, "_write", announce)]


ADAM = {
    "weighting": "equal",
    "clip_norm": None,
    "server_optimizer": "fedadam",
    "server_optimizer_parameters": {"beta1": 0.5, "tau": 0.25},
}


@mutant("optimizer-state-not-read", "same-bits", plan={"aggregation": ADAM})
def _optimizer_state_not_read() -> Patches:
    """Each round begins with the server optimizer's first state."""
    carried = named_tensors.carried

    def forgetful(blobs: Any, before: str | None, *rest: Any) -> Any:
        return carried(blobs, None, *rest)

    return [(aggregators, "carried", forgetful)]


@mutant("optimizer-state-deleted", "whole-blob", "liveness", plan={"aggregation": ADAM})
def _optimizer_state_deleted() -> Patches:
    """A round's optimizer state is deleted with its updates, in place of the state that it read."""

    def made(store: Any, run: str, row: Any) -> set[str]:
        version = row.body.get("version") if row is not None else None
        found = store.checkpoint(run, version) if version is not None else None
        return set(found.named_tensors.values()) if found is not None else set()

    return [(commits, "replaced_by", made)]


@mutant("wrong-round-body", "counts-once", focus=("lie", "collecting"))
def _wrong_round_body() -> Patches:
    """The round in an update's header is not checked."""
    check = validation.check

    def trusting(path: Path, manifest: Any, plan: Any, *, run: str, round: int, attempt: int) -> Any:
        try:
            made = decode_report(read_header(path))
        except TensorError:
            return check(path, manifest, plan, run=run, round=round, attempt=attempt)
        report, measures = check(path, manifest, plan, run=made.run, round=made.round, attempt=made.attempt)
        return report.model_copy(update={"run": run, "round": round, "attempt": attempt}), measures

    return [(validation, "check", trusting)]


@mutant("uncapped-weight", "ack-durable", "named")
def _uncapped_weight() -> Patches:
    """A device's weight is not capped as the plan requires."""

    def weight_of(aggregation: Any, unit: int, *, examples: int, **work: Any) -> int:
        return (
            unit * (examples + 100_000)
            if aggregation.weighting == "examples"
            else section.weight_of(aggregation, unit, examples=examples, **work)
        )

    return [(collecting, "weight_of", weight_of)]


@mutant("no-number-counts-as-zero", "counts-once", focus=("device-invalid", "collecting"))
def _no_number_counts_as_zero() -> Patches:
    """An update whose last value is no number is added, with a zero in its place."""
    measure, added = validation.measure_blocks, SpooledSums._blocks

    def measured(found: Callable[[], Iterable[Any]], *given: Any) -> Any:
        return measure(lambda: map(np.nan_to_num, found()), *given)

    def blocks(self: SpooledSums, *given: Any) -> Any:
        return map(np.nan_to_num, added(self, *given))

    return [(validation, "measure_blocks", measured), (SpooledSums, "_blocks", blocks)]
