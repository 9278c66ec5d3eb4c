"""The events of secure rounds alone.

Devices' messages have been verified and are durable as blobs: an event holds their digests, never a key, a share or
a vector. All but ``Discarded``, ``Advanced``, ``Unbarred`` and ``Vouched`` belong to one attempt; those of another
attempt are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.engine.event_fields import Group, OfAttempt, OfDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(OfDevice):
    """A device's message, durable as a blob."""

    digest: str
    """Of the blob."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced(OfAttempt):
    """The result of ``effects.Announce``: devices may be given this header. The first one of an attempt is valid."""

    kind: ClassVar[str] = "Announced"
    header: str
    """Its canonical bytes, in hexadecimal."""
    expires_at: int
    """The header's: Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised(Sent):
    """Exchange 1: a device that has trained advertised its keys, signed over the header. It replaces Reported; the blob
    is the device's entry of the roster."""

    kind: ClassVar[str] = "Advertised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rostered(OfAttempt):
    """The result of ``effects.Gather``: the roster of all that advertised, divided into groups."""

    kind: ClassVar[str] = "Rostered"
    digest: str
    """Of the roster's blob."""
    groups: tuple[Group, ...]
    """They have all of the devices that the action named, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Sent):
    """Exchange 2: a device's sealed shares for its neighbours."""

    kind: ClassVar[str] = "Shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked(Sent):
    """Exchange 3: a device's masked vector."""

    kind: ClassVar[str] = "Masked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complained(Sent):
    """Between exchanges 2 and 3: the rows of these dealers do not open at the device, which has signed so. It masks
    once each dealer has opened its pair or is out."""

    kind: ClassVar[str] = "Complained"
    dealers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsOpened(Sent):
    """A dealer has opened the pairs of these holders, which have complained of its rows; each is the one whose digests
    it signed."""

    kind: ClassVar[str] = "PairsOpened"
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted(OfDevice):
    """Before exchange 4 a device sent a message that no honest device sends. The round goes on without it."""

    kind: ClassVar[str] = "Faulted"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(Sent):
    """Exchange 4: a device's signature of the survivor list. The device is spent on this checkpoint, for all runs."""

    kind: ClassVar[str] = "Signed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed(Sent):
    """Exchange 5: a device's shares, one of each dealer."""

    kind: ClassVar[str] = "Revealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(OfAttempt):
    """The result of ``effects.Open``: the sum of the lanes of a group's survivors is unmasked and durable."""

    kind: ClassVar[str] = "Opened"
    group: int = 0
    """The group's number, from 0."""
    digest: str
    """Of the sum's blob."""
    bytes: int
    weight: int
    """The total of the survivors' weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningFailed(OfAttempt):
    """The result of ``effects.Open``: there is no sum of a group."""

    kind: ClassVar[str] = "OpeningFailed"
    group: int = 0
    """The group's number, from 0."""
    lost: tuple[str, ...]
    """Dealers that are proven to be at fault: as many shares as rebuild a secret match what they signed, and give
    another secret. Empty: every secret was rebuilt, but the sum is impossible."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """The result of an ``effects.Discard`` that names blobs: all blobs of this secure round are deleted."""

    kind: ClassVar[str] = "Discarded"
    at: float
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """The owner advances an exhausted run: this round commits the model with one value moved by one unit."""

    kind: ClassVar[str] = "Advanced"
    at: float
    round: int
    """The round under way, which is selecting."""
    by: str
    """The operator, for the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent(OfDevice):
    """A device reports that it has signed a survivor list on this checkpoint: the signature was lost, or came after its
    round had ended. It contributes to this checkpoint no more, and leaves this round."""

    kind: ClassVar[str] = "Spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined(OfDevice):
    """A device reports that it takes part in no attempt on this checkpoint any more, for another reason than that it is
    spent. It leaves this round, and is selected by this run no more on this checkpoint."""

    kind: ClassVar[str] = "Declined"
    reason: str
    """The device's own, in one sentence."""
    late: bool = False
    """The round is over, and the run's model is still the one that was declined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbarred:
    """The owner lets a barred device take part in the run's secure rounds again."""

    kind: ClassVar[str] = "Unbarred"
    at: float
    device: str
    by: str
    """The operator, for the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """An operator gives the signature of the authority, or of another key that devices' owners trust, under the run's
    newest model: devices measure later ones from there, and who has declined this one is asked again."""

    kind: ClassVar[str] = "Vouched"
    at: float
    version: int
    signature: str
    """64 bytes in hexadecimal. The coordinator does not know whom owners trust, so devices check it."""


SecureEvent = (
    Announced
    | Advertised
    | Rostered
    | Shared
    | Masked
    | Complained
    | PairsOpened
    | Faulted
    | Signed
    | Spent
    | Declined
    | Revealed
    | Opened
    | OpeningFailed
    | Discarded
    | Advanced
    | Unbarred
    | Vouched
)
