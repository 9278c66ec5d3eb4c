"""Which of a run's named tensors may be read again: the newest, and those with which a round was folded whose updates
are stored for an audit. All others are deleted with the updates of the round that read them.

They belong to the round that made them (``coordinator.engine.named_tensors``). The versions that carry them over
unchanged, made in a datacenter or by the run's owner, follow it directly, so the next version alone shows
whether they are still needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coordinator.store.port import CheckpointRow, Reader, RoundRow


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
