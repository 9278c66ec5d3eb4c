"""The roster of an attempt, out of what devices advertised.

Knows entries, certificates and a header. Devices refuse a roster whole where one entry of it is bad, so whoever would
spoil it is named here instead, with the reason: a certificate that was revoked meanwhile, or a key, commitment, nonce
or identity that stands under two names, and then both, since nobody can tell whose it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.roster import MaskingCohort, Roster, RosterEntry, Vouching, join
from client_sdk.secagg.statement import require_signed


class Spoiled(SecaggError):
    """Devices that no roster of this header can hold, each with the reason."""

    def __init__(self, devices: dict[str, str]) -> None:
        super().__init__(f"{len(devices)} devices spoil the roster")
        self.devices = dict(sorted(devices.items()))


def gather(header: AttemptHeader, entries: Iterable[RosterEntry], vouched: Vouching) -> MaskingCohort:
    """The cohort of these entries, in whatever order they come. Spoiled, which names everybody that keeps it from
    being; SecaggError where they are too few."""
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
    """What may stand in a roster once."""
    shown = entry.advertisement
    return [
        ("device", shown.device.encode()),
        ("identity", bytes.fromhex(identity)),
        ("key", shown.share_key),
        ("key", shown.mask_key),
        ("commitment", shown.commitment),
        ("nonce", shown.nonce),
    ]
