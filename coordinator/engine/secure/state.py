"""Where one attempt of a secure round stands: whose messages of which exchange are there, by digest.

Ids, digests and numbers that everybody may read. Keys, shares and masked vectors are blobs, which this state only
names: nothing of it can be unmasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureRound:
    """One attempt, from its header to its sum. A fresh attempt begins with an empty one, but for ``older``."""

    header: str = ""
    """Canonical bytes in hexadecimal; empty until it is announced."""
    expires_at: int = 0
    """Unix seconds after which no device signs or reveals anything for it."""
    roster: str = ""
    """Digest of the roster's blob; empty until it is there."""
    order: tuple[str, ...] = ()
    """Devices by place in the roster."""
    threshold: int = 0
    signers: int = 0
    fewest: int = 0
    """See ``events.Rostered`` for these three."""
    ring: tuple[int, ...] = ()
    """Places around the ring; empty: a complete graph."""
    neighbours: int = 0

    advertised: Mapping[str, str] = field(default_factory=dict)
    """Device -> digest of its message, here and in the four below."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Its devices are the *sharers* once masking began: with whom peers mask."""
    masked: Mapping[str, str] = field(default_factory=dict)
    """Its devices are the *survivors* once agreeing began: the list is fixed from then on."""
    signed: Mapping[str, str] = field(default_factory=dict)
    revealed: Mapping[str, str] = field(default_factory=dict)
    complaints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Device -> dealers whose shares it could not open."""

    opening: int = 0
    """How many had revealed when the opening that is in flight was asked for; 0: none is."""
    failed: int = 0
    """How many had revealed when an opening failed; 0: none did. There are two openings of an attempt at most."""
    lost: tuple[str, ...] = ()
    """Dealers that could not be rebuilt then."""
    failure: str = ""
    sum: str = ""
    """Digest of the unmasked sum's blob; empty until it is there."""
    weight: int = 0
    """Its total."""
    set_aside: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(dealer, holders) of wrong shares that the opening did without."""
    older: tuple[str, ...] = ()
    """Blobs of what is over: of former attempts, and of devices that were left out. Deleted when the round ends."""

    @property
    def blobs(self) -> tuple[str, ...]:
        """Every blob of the round that this attempt and those before it made, sorted."""
        messages = (self.advertised, self.shared, self.masked, self.signed, self.revealed)
        mine = {digest for of_exchange in messages for digest in of_exchange.values()}
        return tuple(sorted({*mine, *self.older, self.roster, self.sum} - {""}))
