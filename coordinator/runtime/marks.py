"""Who may not contribute to a run's current model: devices that are spent on its tensors, in whichever run, and devices
that have declined it in this one or are barred from it. Digests of tensors are computed here too; plain rounds need
neither.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from client_sdk.tensors import canonical_digest
from coordinator.blobs import Blobs
from coordinator.engine.plan import Plan
from coordinator.engine.state import RunState
from coordinator.store.port import Reader

Why = Literal["spent", "declined", "barred"]


def unspendable(reader: Reader, state: RunState) -> dict[str, Why]:
    """Device -> why it is unspendable, that is, not selected for this run's secure rounds now. A device with several
    reasons has the first of *spent*, *declined*, *barred*."""
    if state.plan.secure is None:
        return {}
    found: dict[str, Why] = dict.fromkeys(state.barred, "barred")
    found |= dict.fromkeys(state.declined, "declined")
    found |= dict.fromkeys((*state.spent, *(row.device for row in reader.marks(state.marked_on))), "spent")
    return found


def helped_by_another_model(counts: Counter[Why]) -> int:
    """How many devices are unspendable, where another model would bring some of them back; 0 where all of them are
    barred: that ends by itself."""
    return counts.total() if counts["spent"] + counts["declined"] else 0


def tensors_of(blobs: Blobs, plan: Plan, checkpoint: str) -> str:
    """The digest of a checkpoint's canonical tensors, by which devices know a model; empty where the plan has no secure
    rounds. Reads the whole file. Gone, BlobError."""
    if plan.secure is None:
        return ""
    with blobs.open(checkpoint) as file:
        return canonical_digest(file)
