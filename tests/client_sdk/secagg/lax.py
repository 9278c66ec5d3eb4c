"""Devices with one rule switched off each: what the oracles are held against, so that a test shows that they see."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from client_sdk.secagg.consent import Expected
from client_sdk.secagg.device import (
    DeviceContribution,
    DevicePart,
    Persist,
    SecureDevice,
    ServerAnswer,
    Transmit,
    _Attempt,
)
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Live, Memory
from client_sdk.secagg.roster import MaskingCohort, Roster
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.unmask import GONE, SURVIVED, RevealedShares
from tests.client_sdk.secagg.fleet import Member


class Lax(_Attempt):
    """Remembers, outside its memory, what it should have deleted."""

    me: LaxDevice

    @property
    def stash(self) -> dict[Any, Any]:
        return self.me.stash

    @property
    def live(self) -> Live | None:
        live = self.memory.live.get(self.header.model)
        return live if live is not None and live.header == self.header.encoded else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaxDevice(SecureDevice):
    """A device that plays by other rules."""

    rules: type[Lax]
    stash: dict[Any, Any] = field(default_factory=dict)

    def attempt(
        self, memory: Memory, header: bytes, expected: Expected, put_in: DeviceContribution, at: float
    ) -> DevicePart:
        return self.rules(self, memory, AttemptHeader.parse(header), expected, put_in, at).play()


def relax(member: Member, rules: type[Lax]) -> None:
    """The same device without one rule."""
    kept = {one.name: getattr(member.device, one.name) for one in fields(SecureDevice)}
    member.device = LaxDevice(**kept, rules=rules)


Steps = Generator[Persist | Transmit, ServerAnswer | None, Any]


class ForgetsRosters(Lax):
    """*One roster for one advertisement* off: started again, it takes another roster for the keys that it showed."""

    def play(self) -> DevicePart:
        live = self.live
        if live is not None:
            self.stash.setdefault(live.advertised, live.secrets)
            if live.roster and not live.survivors:
                fresh = Live(header=live.header, advertised=live.advertised, secrets=self.stash[live.advertised])
                self.memory = self.memory.going_on(self.header.model, fresh)
        return (yield from super().play())

    def _share(self, live: Live, cohort: MaskingCohort) -> Steps:
        self.stash[live.advertised] = live.secrets
        return (yield from super()._share(live, cohort))


class KeepsOlderAttempts(Lax):
    """*Advertising anew deletes the older attempt* off: it goes on with whichever is asked for."""

    def play(self) -> DevicePart:
        older = self.memory.live.get(self.header.digest)
        if older is not None and older.header == self.header.encoded:
            self.memory = self.memory.going_on(self.header.model, older)
        return (yield from super().play())

    def _open(self) -> Steps:
        older = self.memory.live.get(self.header.model)
        live = yield from super()._open()
        if older is not None:
            yield from self._persist(self.memory.going_on(AttemptHeader.parse(older.header).digest, older))
        return live


class SignsAgain(Lax):
    """*One survivor list for one checkpoint* off: never spent, and asked again it takes another list."""

    def play(self) -> DevicePart:
        self.memory = replace(self.memory, spent={})
        live = self.live
        if live is not None and live.survivors:
            self.memory = self.memory.going_on(self.header.model, self.stash[self.header.digest])
        return (yield from super().play())

    def _agree(self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors) -> Steps:
        self.stash[self.header.digest] = live
        found = yield from super()._agree(live, cohort, place, survivors)
        yield from self._persist(replace(self.memory, spent={}))
        return found


class ForgetsVectors(Lax):
    """*The masked vector is kept* off: started again, it masks again, with whomever it is told."""

    def play(self) -> DevicePart:
        live = self.live
        if live is not None and live.vector:
            self.memory = self.memory.going_on(self.header.model, self.stash[self.header.digest])
        return (yield from super().play())

    def _mask(self, live: Live, cohort: MaskingCohort, place: int, delivered: Bundle) -> Steps:
        self.stash[self.header.digest] = live
        return (yield from super()._mask(live, cohort, place, delivered))


class RevealsBoth(Lax):
    """*One one-way state for each peer* off: asked again, it gives the other kind of share."""

    def _agree(self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors) -> Steps:
        self.stash[self.header.digest], self.stash["listed"] = live, survivors.members
        return (yield from super()._agree(live, cohort, place, survivors))

    def play(self) -> DevicePart:
        found = yield from super().play()
        live = self.stash[self.header.digest]
        cohort = self._joined(live, Roster.parse(live.roster))
        place, listed = cohort.place_of(self.me.device), self.stash["listed"]
        other = tuple(
            (dealer, GONE if dealer in listed else SURVIVED, pair.mask_key if dealer in listed else pair.self_mask)
            for dealer, pair in sorted(live.held.items())
        )
        yield from self._transmit_signed(cohort, "unmask", RevealedShares(place, other).encoded)
        return found
