"""Which states of a run's server optimizer may be read again: the newest, and those with which a round was folded whose
updates are stored for an audit. All others are deleted with the updates of the round that read them.

A state belongs to the round that made it (``coordinator.folding.optimizer_state``). The versions that carry it over
unchanged, made in a datacenter or by the run's owner, follow it directly, so the next version alone shows
whether it is still needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coordinator.store.port import CheckpointRow, Reader, RoundRow


def optimizer_state_before(store: Reader, run: str, row: RoundRow | None) -> str | None:
    """Returns the digest of the state that only this round and earlier ones have read; None where there is none."""
    version = None if row is None else row.body.get("version")
    if row is None or row.status != "committed" or not isinstance(version, int):
        return None
    before, after = store.checkpoint(run, version - 1), store.checkpoint(run, version)
    if before is None or after is None or before.optimizer == after.optimizer:
        return None
    return before.optimizer


def optimizer_states(line: Sequence[CheckpointRow], forgotten: int) -> set[str]:
    """Returns the digests of the states that may be read again. ``forgotten``: the last round whose updates are
    deleted."""
    needed = {row.optimizer for row in line[-1:]}
    for before, after in pairwise(line):
        if after.round is not None and after.round > forgotten:
            needed.add(before.optimizer)
    return {digest for digest in needed if digest is not None}
