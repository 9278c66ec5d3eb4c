"""Validates a device's message of an exchange: its format, the device's signature over this attempt, its place, its
length and its peers.

Everything is checked before a message is acknowledged, so an attempt never fails later because of a message that could
have been refused. Errors::

    SecaggError    the message is refused; it is not proven that the device made it
    '- Faulty      the device signed what no honest device signs: before exchange 4 the round goes on without it
"""

from __future__ import annotations

from collections.abc import Collection

from client_sdk.protocol.secure import Stage
from client_sdk.secagg.complaints import Complaint, OpenedPairs, row_digest
from client_sdk.secagg.errors import BadMessage, BadShare, SecaggError
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.lanes import packed_bytes
from client_sdk.secagg.masks import MaskedInput
from client_sdk.secagg.roster import Advertisement, MaskingCohort, RosterEntry, Vouching
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.statement import require_signed
from client_sdk.secagg.survivors import RevealedShares, Survivors
from coordinator.secure.routing import DealtShares


class Faulty(SecaggError):
    """The device signed something that no honest device signs."""


def advertised(
    header: AttemptHeader, vouched: Vouching, device: str, body: bytes, signature: bytes, certificate: bytes
) -> RosterEntry:
    """Exchange 1: the roster's entry of ``device``. SecaggError unless the authority certified the device and it signed
    the advertisement for this header."""
    shown = Advertisement.parse(body)
    if shown.device != device:
        raise BadMessage(f"the advertisement is of device {shown.device}, but device {device} sent it")
    identity = vouched(device, certificate)
    require_signed(identity, signature, header.digest, "advertise", body, f"device {device}")
    return RosterEntry(shown, signature, certificate)


def shared(cohort: MaskingCohort, place: int, body: bytes, signature: bytes) -> None:
    """Exchange 2: one sealed pair of shares for each holder but the device itself, and the digests of all shares.
    SecaggError, Faulty."""
    _require_own(cohort, place, "share", body, signature)
    try:
        bundle = Bundle.parse(body, cohort.n)
        if bundle.owner != place:
            raise BadMessage("the shares stand under another device's place")
        bundle.require_for(cohort.graph.holders(place))
    except BadMessage as error:
        raise Faulty(str(error)) from None


def complained(cohort: MaskingCohort, place: int, body: bytes, signature: bytes, dealt: DealtShares) -> None:
    """Between exchanges 2 and 3: a complaint of rows that were delivered to this device. SecaggError, Faulty; not
    Faulty for another row, which a device may have been given on the way."""
    _require_own(cohort, place, "complain", body, signature)
    try:
        complaint = Complaint.parse(body, cohort.n)
    except BadMessage as error:
        raise Faulty(str(error)) from None
    if complaint.place != place:
        raise Faulty("the complaint stands under another device's place")
    delivered = dealt.rows_to(place)
    for dealer, digest in complaint.rows:
        if dealer not in delivered or digest != row_digest(cohort.h, dealer, place, *delivered[dealer]):
            whose = f"device {cohort.device(dealer)}"
            raise BadMessage(f"it complains of other shares of {whose} than were delivered to it")


def pairs_opened(
    cohort: MaskingCohort, place: int, body: bytes, signature: bytes, holders: Collection[int], dealt: DealtShares
) -> None:
    """The pairs of ``holders`` that have complained of this device's rows, each with the digests that it signed.
    SecaggError, Faulty."""
    _require_own(cohort, place, "open", body, signature)
    try:
        opened = OpenedPairs.parse(body, cohort.n)
    except (BadMessage, BadShare) as error:
        raise Faulty(str(error)) from None
    if opened.place != place:
        raise Faulty("the opened shares stand under another device's place")
    if not opened.pairs.keys() <= set(holders):
        raise Faulty("it opens shares of which nobody has complained")
    for holder, pair in opened.pairs.items():
        try:
            pair.require_dealt(cohort.h, place, holder, dealt.rows_to(holder)[place][1])
        except BadShare:
            raise Faulty(
                f"the shares that it opened for device {cohort.device(holder)} are not those whose digests it signed"
            ) from None


def masked(
    cohort: MaskingCohort, place: int, body: bytes, signature: bytes, *, digest: str, size: int, last: int
) -> None:
    """Exchange 3: a packed vector with this SHA-256 ``digest``, ``size`` in bytes and ``last`` byte. SecaggError,
    Faulty."""
    _require_own(cohort, place, "mask", body, signature)
    lanes, bits = cohort.header.lanes, cohort.roster.lane_bits
    try:
        message = MaskedInput.parse(body)
    except BadMessage as error:
        raise Faulty(str(error)) from None
    if message.place != place:
        raise Faulty("the masked vector stands under another device's place")
    if (message.lanes, message.lane_bits) != (lanes, bits):
        raise Faulty(
            f"the masked vector has {message.lanes} lanes of {message.lane_bits} bits; "
            f"the round takes {lanes} of {bits}"
        )
    if message.digest.hex() != digest:
        raise BadMessage("the bytes that came are not those that the device signed for")
    if size != packed_bytes(lanes, bits):
        raise Faulty(f"{lanes} lanes of {bits} bits are {packed_bytes(lanes, bits)} bytes, not {size}")
    if (lanes * bits) % 8 and last >> ((lanes * bits) % 8):
        raise Faulty("the bits behind the last lane are not zero")


def is_description(cohort: MaskingCohort, place: int, body: bytes, signature: bytes, digest: str) -> bool:
    """Whether ``body`` describes the vector of this SHA-256 (hexadecimal), and this ``signature`` of the device at
    ``place`` stands under it."""
    try:
        _require_own(cohort, place, "mask", body, signature)
        return MaskedInput.parse(body).digest.hex() == digest
    except SecaggError:
        return False


def agreed(cohort: MaskingCohort, place: int, body: bytes, signature: bytes, survivors: Survivors) -> None:
    """Exchange 4: the device's signature of this list. SecaggError."""
    _require_own(cohort, place, "survivors", body, signature)
    if body != survivors.encoded:
        raise BadMessage("the device signed another survivor list than the one that it was shown")


def revealed(
    cohort: MaskingCohort,
    place: int,
    body: bytes,
    signature: bytes,
    survivors: Survivors,
    dealt: DealtShares,
    lacks: Collection[int] = (),
) -> None:
    """Exchange 5: one share of each dealer whose shares the device holds, of the kind that fits the list, each the one
    that its dealer signed the digest of. ``lacks``: the dealers of which it has complained, and which are out.
    SecaggError; never for what an honest device reveals, since it compared the same digests before it masked."""
    _require_own(cohort, place, "unmask", body, signature)
    message = RevealedShares.parse(body, survivors, cohort.n)
    if message.place != place:
        raise BadMessage("the shares are revealed under another device's place")
    owed = sorted(dealt.dealers & set(cohort.graph.holders(place)) - set(lacks))  # holding shares is symmetric
    if [dealer for dealer, _, _ in message.shares] != owed:
        raise BadMessage(f"the device owes a share of each of {len(owed)} dealers, and revealed others")
    wrong = dealt.wrong(message)
    if wrong:
        raise BadShare(
            f"{len(wrong)} of {len(owed)} revealed shares are not those that were dealt; "
            f"the first is of device {cohort.device(wrong[0])}"
        )


def _require_own(cohort: MaskingCohort, place: int, stage: Stage, body: bytes, signature: bytes) -> None:
    whose = f"device {cohort.device(place)}"
    require_signed(cohort.identities[place], signature, cohort.h, stage, body, whose)
