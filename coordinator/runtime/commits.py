"""Commits the checkpoint of a round, and deletes the blobs of a round: the only code that does either.

A commit runs under a fence: the committing thread raises the run's fence, and only the thread that raised it last may
append the event.

Of a run's named tensors the newest may be read again, and those with which a round was folded whose updates are stored
for an audit. All others are deleted with the updates of the round that read them. They belong to the round that made
them (``coordinator.engine.named_tensors``). The versions that carry them over unchanged, made in a datacenter or by the
run's owner, follow it directly, so the next version alone shows whether they are still needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import pairwise

from client_sdk.protocol.names import copied
from coordinator.blobs import Gone
from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.rounds import KINDS, pending
from coordinator.engine.state import RunState
from coordinator.folding.aggregator import CannotAggregate, LostUpdate, NewCheckpoint
from coordinator.runtime.core import Core
from coordinator.runtime.marks import tensors_of
from coordinator.runtime.run_log import RunLog
from coordinator.store.port import (
    RUN_ROUND,
    STEP_BYTES,
    CheckpointRow,
    FenceLost,
    MessageRow,
    Reader,
    RoundRow,
    Transaction,
)


def ask_again(log: RunLog, round: int, error: LostUpdate, *, fence: int | None = None) -> bool:
    """Asks the device for another update in place of the lost one. False where it cannot be asked: it was before, it
    works for another run, or the time is over."""
    item = error.item

    def lost(tx: Transaction, state: RunState, at: float) -> ev.UpdateLost | None:
        again = KINDS[state.plan.kind].keeps_claims  # another device takes its place
        if (tx.claim(item.device) is not None and not again) or state.ending is not None:
            return None
        return ev.UpdateLost(at=at, round=round, attempt=0, device=item.device, digest=item.digest)

    return any(isinstance(effect, fx.Wake) for effect in log.submit(lost, fence=fence))


MakeCheckpoint = Callable[[], NewCheckpoint]
"""Writes a checkpoint durably. CannotAggregate where the round can have none."""


class Commits:
    """Safe from any thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._under_way: set[str] = set()

    def under_way(self, run: str) -> bool:
        """Whether a thread of this process commits a round of the run."""
        return run in self._under_way

    def commit(self, run: str, action: fx.Commit | fx.CommitSum | fx.Advance, make: MakeCheckpoint) -> bool:
        """Commits the checkpoint that ``make`` writes, under a fence of its own, or records why there is none.

        Returns False where this replica may not do so, or may not any more, and where the run has come to something
        else: to the end of the round, or to other updates of it, where a lost one was asked for again. BlobError, such
        as Damaged for the parent: the round stays, and is committed once the right bytes are back. Of a run that was
        stopped it fails without them.
        """
        with self._at(run):
            log = self._core.log(run)
            fence = log.take_fence(lambda state: action in pending(state))
            if fence is None:
                return False
            try:
                made = make()
                tensors = tensors_of(self._core.blobs, log.state.plan, made.digest)
            except (CannotAggregate, Gone) as error:
                if isinstance(error, Gone) and (log.state.ending is None or log.state.ending[0] != "stopped"):
                    raise
                if isinstance(error, LostUpdate) and ask_again(log, action.round, error, fence=fence):
                    return True
                failed = partial(ev.CommitFailed, round=action.round, reason=str(error))
                log.submit(lambda tx, state, at: failed(at=at) if action in pending(state) else None, fence=fence)
            else:
                key = noise_key_row(run, log.state.version + 1, made.noise_key)
                committed = partial(
                    copied,
                    ev.Committed,
                    made,
                    round=action.round,
                    named_tensors=dict(made.named_tensors),
                    tensors=tensors,
                    noise="" if key is None else key.digest,
                )

                def record(tx: Transaction, state: RunState, at: float) -> ev.Committed | None:
                    if action not in pending(state):
                        return None
                    if key is not None:
                        tx.insert_messages([key])
                    return committed(at=at)

                try:
                    return bool(log.submit(record, fence=fence))
                except FenceLost:
                    return False  # another replica commits, to the same bits
            return True

    def discard(self, run: str, action: fx.Discard) -> None:
        """Deletes the raw updates of a round whose retention is over, the named tensors that they were
        folded with, and every blob of a secure round that has ended.

        The deletion of the latter is logged: until then the action is issued again. That event's transaction deletes
        the round's messages that are rows.
        """
        store = self._core.store
        messages = store.message_rounds(run, None if action.blobs else action.round)
        for digest in [*self._updates(run, action.round), *replaced_by(store, run, store.round(run, action.round))]:
            if digest not in messages:
                self._core.blobs.delete(digest)
        if messages and not action.blobs:
            with store.transaction() as tx:
                tx.drop_messages(run, action.round)
        if action.blobs:
            for digest in action.blobs:
                if digest not in messages:
                    self._core.blobs.delete(digest)
            self._core.log(run).submit(lambda tx, state, at: ev.Discarded(at=at, round=action.round))

    def _updates(self, run: str, round: int) -> list[str]:
        """The raw updates of a round that were acknowledged. A refused one was never stored, or is deleted already: its
        digest is what a device made of it, maybe that of a checkpoint. Other rounds than plain ones have none."""
        store = self._core.store
        row = store.round(run, round)
        if row is not None and not KINDS[row.kind].single_updates:
            return []
        digests = {row.digest for row in store.contributions(run, round)}
        digests |= {row.digest for row in store.refusals(run, round) if row.digest and row.kind == "abandoned"}
        return sorted(digests)

    @contextmanager
    def _at(self, run: str) -> Iterator[None]:
        self._under_way.add(run)
        try:
            yield
        finally:
            self._under_way.discard(run)


def noise_key_row(run: str, step: int, key: bytes) -> MessageRow | None:
    """What is stored of the key of a step's noise; None: there is none."""
    if not key:
        return None
    content = step.to_bytes(STEP_BYTES, "big") + key
    return MessageRow(run=run, digest=sha256(content).hexdigest(), round=RUN_ROUND, content=content)


def replaced_by(store: Reader, run: str, row: RoundRow | None) -> set[str]:
    """Returns the digests of the tensors that only this round and earlier ones have read."""
    version = None if row is None else row.body.get("version")
    if row is None or row.status != "committed" or not isinstance(version, int):
        return set()
    before, after = store.checkpoint(run, version - 1), store.checkpoint(run, version)
    if before is None or after is None:
        return set()
    return set(before.named_tensors.values()) - set(after.named_tensors.values())


def needed(line: Sequence[CheckpointRow], forgotten: int) -> set[str]:
    """Returns the digests of the tensors that may be read again. ``forgotten``: the last round whose updates are
    deleted."""
    readable = list(line[-1:])
    readable += [before for before, after in pairwise(line) if after.round is not None and after.round > forgotten]
    return {digest for row in readable for digest in row.named_tensors.values()}
