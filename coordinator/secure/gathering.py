"""Makes the roster of an attempt from the devices' advertisements.

Devices refuse a whole roster where one entry of it is invalid, so devices that would make it invalid are found here,
each with the reason: a certificate that was revoked meanwhile, or a key, commitment, nonce or identity that two devices
show. Then both are named, since its owner is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import MaskingCohort, Roster, RosterEntry, join
from client_sdk.secagg.statement import require_signed
from client_sdk.secagg.vouching import Vouching


class Spoiled(SecaggError):
    """Devices that a roster of this header cannot hold, each with the reason."""

    def __init__(self, devices: dict[str, str]) -> None:
        super().__init__(f"{len(devices)} devices spoil the roster")
        self.devices = dict(sorted(devices.items()))


def gather(header: AttemptHeader, entries: Iterable[RosterEntry], vouched: Vouching) -> MaskingCohort:
    """The cohort of these entries, whatever their order. Spoiled, which names all devices that make the roster invalid;
    SecaggError where there are too few."""
    spoiling: dict[str, str] = {}
    good: list[tuple[RosterEntry, str]] = []
    for entry in entries:
        try:
            good.append((entry, _identity(header, entry, vouched)))
        except SecaggError as error:
            spoiling[entry.advertisement.device] = str(error)
    seen = Counter(value for entry, identity in good for value in _marks(entry, identity))
    for entry, identity in good:
        if any(seen[value] > 1 for value in _marks(entry, identity)):
            spoiling[entry.advertisement.device] = "another device shows the same key, commitment, nonce or identity"
    if spoiling:
        raise Spoiled(spoiling)
    return join(header, Roster.of(header, [entry for entry, _ in good]), vouched)


def _identity(header: AttemptHeader, entry: RosterEntry, vouched: Vouching) -> str:
    shown = entry.advertisement
    identity = vouched(shown.device, entry.certificate)
    require_signed(identity, entry.signature, header.digest, "advertise", shown.encoded, f"device {shown.device}")
    return identity


def _marks(entry: RosterEntry, identity: str) -> list[tuple[str, bytes]]:
    """The values that may occur in a roster only once."""
    shown = entry.advertisement
    return [
        ("device", shown.device.encode()),
        ("identity", bytes.fromhex(identity)),
        ("key", shown.share_key),
        ("key", shown.mask_key),
        ("commitment", shown.commitment),
        ("nonce", shown.nonce),
    ]
