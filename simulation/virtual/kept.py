"""What a simulated device has kept of a secure round that gave no sum: its trained update, for a later roster on the
same checkpoint (``secure.keep_late``)."""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk.device.contribution import ClearContribution
from client_sdk.device.record import Record


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KeptUpdate:
    """The update of one device."""

    checkpoint: str
    """Digest of the file of the checkpoint from which it was trained."""
    contribution: ClearContribution
    record: Record | None = None
    """Of a masking device, after the round in which it trained."""
