"""The roster of an attempt, out of what devices advertised.

Knows entries, certificates and a header. Has never heard of who is waited for. Devices refuse a roster whole where one
entry of it is bad, so whoever would spoil it is left out here, with the reason: a certificate that was revoked
meanwhile, or a key, commitment, nonce or identity that stands under two names, both of which go, since nobody can tell
whose it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.errors import SecaggError
from client_sdk.secagg.header import Header
from client_sdk.secagg.parameters import SMALLEST
from client_sdk.secagg.roster import Cohort, Entry, Roster, Vouching, join
from client_sdk.secagg.statement import SIGNATURE_BYTES, require_signed
from client_sdk.secagg.wire import Reader, Writer

_KIND = 96


class TooFew(SecaggError):
    """Too few devices are left for a roster."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What came of the advertisements."""

    left_out: tuple[tuple[str, str], ...]
    """(device, reason), by device."""
    cohort: Cohort | None
    """None where too few are left."""


def entry_bytes(entry: Entry) -> bytes:
    """An entry as it is kept until the roster is made."""
    out = Writer(_KIND).blob(entry.advertisement.encoded).fixed(entry.signature, SIGNATURE_BYTES)
    return out.blob(entry.certificate).done()


def parse_entry(data: bytes) -> Entry:
    """What ``entry_bytes`` gave. BadMessage otherwise."""
    read = Reader(data, _KIND, "kept advertisement")
    entry = Entry(Advertisement.parse(read.blob()), read.fixed(SIGNATURE_BYTES), read.blob())
    read.end()
    return entry


def gather(header: Header, entries: Iterable[Entry], vouched: Vouching) -> Gathered:
    """The cohort of these entries, in whatever order they come, and whom it had to leave out."""
    left_out: dict[str, str] = {}
    good: list[tuple[Entry, str]] = []
    for entry in entries:
        try:
            good.append((entry, _identity(header, entry, vouched)))
        except SecaggError as error:
            left_out[entry.advertisement.device] = str(error)
    seen = Counter(value for entry, identity in good for value in _marks(entry, identity))
    kept = []
    for entry, identity in good:
        if any(seen[value] > 1 for value in _marks(entry, identity)):
            left_out[entry.advertisement.device] = (
                "it shows a key, commitment, nonce or identity that stands there twice"
            )
        else:
            kept.append(entry)
    enough = len(kept) >= max(header.minimum_cohort, SMALLEST)
    cohort = join(header, Roster.of(header, kept), vouched) if enough else None
    return Gathered(left_out=tuple(sorted(left_out.items())), cohort=cohort)


def _identity(header: Header, entry: Entry, vouched: Vouching) -> str:
    shown = entry.advertisement
    identity = vouched(shown.device, entry.certificate)
    require_signed(identity, entry.signature, header.digest, "advertise", shown.encoded, f"device {shown.device}")
    return identity


def _marks(entry: Entry, identity: str) -> list[tuple[str, bytes]]:
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
