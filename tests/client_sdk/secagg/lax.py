"""Devices with one rule switched off each: what the oracles are held against, so that a test shows that they see."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from client_sdk.secagg.actions import DeviceContribution, DevicePart
from client_sdk.secagg.consent import Expected
from client_sdk.secagg.device import SecureDevice, Steps, _Attempt
from client_sdk.secagg.header import AttemptHeader
from client_sdk.secagg.memory import Live, Memory, Step
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shares import Bundle
from client_sdk.secagg.survivors import GONE, SURVIVED, RevealedShares, Survivors
from tests.client_sdk.secagg.fleet import Member


class Lax(_Attempt):
    """Remembers, outside its memory, what it should have deleted."""

    me: LaxDevice

    @property
    def stash(self) -> dict[Any, Any]:
        return self.me.stash

    def play(self) -> DevicePart:
        yield from self._keep(self.back)
        return (yield from super().play())

    def back(self, newest: Memory) -> Memory:
        """What it does to its own memory before it begins."""
        return newest

    def live(self, newest: Memory) -> Live | None:
        live = newest.live.get(self.expected.tensors)
        return live if live is not None and live.header == self.header.encoded else None

    def put(self, newest: Memory, live: Live) -> Memory:
        return replace(newest, live={**newest.live, self.expected.tensors: live})


@dataclass(frozen=True, kw_only=True, slots=True)
class LaxDevice(SecureDevice):
    """A device that plays by other rules."""

    rules: type[Lax]
    stash: dict[Any, Any] = field(default_factory=dict)

    def attempt(self, header: bytes, expected: Expected, put_in: DeviceContribution, at: float) -> DevicePart:
        return self.rules(self, AttemptHeader.parse(header), expected, put_in, at).play()


def relax(member: Member, rules: type[Lax]) -> None:
    """Makes the member's device one that lacks a rule."""
    kept = {one.name: getattr(member.device, one.name) for one in fields(SecureDevice)}
    member.device = LaxDevice(**kept, rules=rules)


class ForgetsRosters(Lax):
    """*One roster for one advertisement* off: started again, it takes another roster for the keys that it showed."""

    def back(self, newest: Memory) -> Memory:
        live = self.live(newest)
        if live is None or live.step not in (Step.SHARED, Step.MASKED):
            return newest
        return self.put(newest, self.stash[live.advertised])

    def _share(self, live: Live, cohort: MaskingCohort, roster: bytes) -> Steps[Live]:
        self.stash[live.advertised] = live
        return (yield from super()._share(live, cohort, roster))


class KeepsOlderAttempts(Lax):
    """*Advertising anew deletes the older attempt* off: it goes on with whichever is asked for."""

    def back(self, newest: Memory) -> Memory:
        older = newest.live.get(self.header.digest)
        return newest if older is None else self.put(newest, older)

    def _open(self, older: Live | None) -> Steps[Live]:
        live = yield from super()._open(older)
        if older is not None:
            where = AttemptHeader.parse(older.header).digest
            yield from self._keep(lambda newest: replace(newest, live={**newest.live, where: older}))
        return live


class SignsAgain(Lax):
    """*One survivor list for one checkpoint* off: never spent, and asked again it takes another list."""

    def back(self, newest: Memory) -> Memory:
        newest, live = replace(newest, spent=frozenset()), self.live(newest)
        if live is not None and live.step is Step.SIGNED:
            return self.put(newest, self.stash[self.header.digest])
        return newest

    def _agree(self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors) -> Steps[Live]:
        self.stash[self.header.digest] = live
        found = yield from super()._agree(live, cohort, place, survivors)
        yield from self._keep(lambda newest: replace(newest, spent=frozenset()))
        return found


class ForgetsVectors(Lax):
    """*The masked vector is kept* off: started again, it masks again, with whomever it is told."""

    def back(self, newest: Memory) -> Memory:
        live = self.live(newest)
        if live is None or live.step is not Step.MASKED:
            return newest
        return self.put(newest, self.stash[self.header.digest])

    def _mask(self, live: Live, cohort: MaskingCohort, place: int, delivered: Bundle) -> Steps[Live]:
        self.stash[self.header.digest] = live
        return (yield from super()._mask(live, cohort, place, delivered))


class RevealsBoth(Lax):
    """*One one-way state for each peer* off: asked again, it gives the other kind of share."""

    def _agree(self, live: Live, cohort: MaskingCohort, place: int, survivors: Survivors) -> Steps[Live]:
        self.stash[self.header.digest], self.stash["listed"] = live, survivors.members
        return (yield from super()._agree(live, cohort, place, survivors))

    def play(self) -> DevicePart:
        found = yield from super().play()
        live = self.stash[self.header.digest]
        cohort = self._rejoined(live)
        place, listed = cohort.place_of(self.me.device), self.stash["listed"]
        other = tuple(
            (dealer, GONE if dealer in listed else SURVIVED, pair.mask_key if dealer in listed else pair.self_mask)
            for dealer, pair in sorted(live.held.items())
        )
        yield from self._transmit_signed(cohort, "unmask", RevealedShares(place, other).encoded)
        return found
