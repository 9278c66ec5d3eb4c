"""Devices that lie about rows: a dealer that deals garbage to a holder, a holder that accuses an honest dealer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.complaints import Accusations, Complaint, OpenedPairs, is_accusation
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Live
from client_sdk.secagg.roster import Roster, rejoin
from client_sdk.secagg.shares import Bundle, SharePair
from client_sdk.secagg.statement import signed
from tests.client_sdk.secagg.fleet import Member
from tests.coordinator.secure.test_cheats import cheating, resigned
from tests.coordinator.secure.world import Phone, World

Answer = Callable[[SharePair], SharePair | None]


def right(pair: SharePair) -> SharePair:
    return pair


def wrong(pair: SharePair) -> SharePair:
    return SharePair(pair.mask_key, pair.self_mask)


def nothing(pair: SharePair) -> None:
    return None


def deals_garbage_to(phone: Phone, victims: set[int], answer: Answer) -> None:
    """The sealed bytes of these holders (of its first one, where none is named) are zeros, their digests right; when it
    is accused it opens what ``answer`` makes of the accusers' pairs, or says nothing any more."""

    def bend(message: Transmit, world: World) -> Transmit:
        mine = Bundle.parse(message.body, world.n)
        if not victims:
            victims.add(mine.rows[0][0])
        rows = tuple((to, bytes(82) if to in victims else sealed, found) for to, sealed, found in mine.rows)
        return resigned(phone, world, message, replace(mine, rows=rows).encoded)

    cheating(phone, "share", bend)
    member = phone.member
    honest = member.tell

    def tell(body: bytes, at: float = 0.0) -> Transmit | None:
        if not is_accusation(body):
            return honest(body, at)
        live = live_of(phone)
        n = Roster.size_of(live.roster)
        accusers = [Complaint.parse(complaint, n).place for complaint, _ in Accusations.parse(body).complaints]
        opened = {holder: answer(pair_for(member, live, holder)) for holder in accusers}
        pairs = {holder: pair for holder, pair in opened.items() if pair is not None}
        if not pairs:
            phone.gone = True
            return None
        return says(phone, live, "open", OpenedPairs(place_of(member, live), pairs).encoded)

    member.tell = tell  # type: ignore[method-assign]


def accuses(phone: Phone, dealers: set[int]) -> None:
    """It says of these right rows that they do not open; when that is settled it masks."""
    member = phone.member
    honest = member.tell
    kept: dict[bytes, bytes] = {}

    def tell(body: bytes, at: float = 0.0) -> Transmit | None:
        said = member.outgoing
        assert phone.head is not None
        if said is not None and said.stage == "share":
            live = live_of(phone)
            kept[phone.head.encoded] = body
            rows = [row for row in Bundle.parse(body, Roster.size_of(live.roster)).rows if row[0] in dealers]
            h = rejoin(phone.head, Roster.parse(live.roster)).h
            return says(phone, live, "complain", Complaint.of(h, place_of(member, live), rows).encoded)
        if said is not None and said.stage == "complain" and not is_accusation(body):
            return honest(kept[phone.head.encoded], at)
        return honest(body, at)

    member.tell = tell  # type: ignore[method-assign]


def live_of(phone: Phone) -> Live:
    assert phone.head is not None
    return phone.member.live(phone.head)


def place_of(member: Member, live: Live) -> int:
    names = [entry.advertisement.device for entry in Roster.parse(live.roster).entries]
    return names.index(member.device.device)


def pair_for(member: Member, live: Live, holder: int) -> SharePair:
    """The pair that the device has dealt to this holder."""
    roster = Roster.parse(live.roster)
    place, tools = place_of(member, live), member.device.primitives
    cohort = rejoin(AttemptHeader.parse(live.header), roster)
    sealed = {to: row for to, row, _ in Bundle.parse(live.bundle, cohort.n).rows}[holder]
    assert live.secrets is not None
    agreed = live.secrets.share_key.agree(roster.entries[holder].advertisement.share_key)
    return tools.unseal(agreed, cohort.h, (place, cohort.device(place)), (holder, cohort.device(holder)), sealed)


def says(phone: Phone, live: Live, stage: Any, body: bytes) -> Transmit:
    """This message is the next that the device sends."""
    assert phone.head is not None
    h = rejoin(phone.head, Roster.parse(live.roster)).h
    message = Transmit(stage, body, signed(phone.member.device.signer, h, stage, body))
    phone.member.outgoing = message
    phone.member.log.append(message)
    return message
