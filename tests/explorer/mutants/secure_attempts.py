"""Bugs in the attempts of secure rounds: whose message is accepted and when, who takes part, when an exchange ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from coordinator.engine.events import Recovered
from coordinator.engine.phases import lifecycle
from coordinator.engine.secure import attempts, masking, messages, sharing, unmasking
from coordinator.engine.secure import events as ev
from coordinator.engine.secure.marks import with_barred
from coordinator.engine.secure.plan import Secure
from coordinator.runtime import drawing, fleet
from coordinator.runtime.timekeeping import Timekeeping
from coordinator.secure import performing
from tests.explorer.mutants.registry import mutant
from tests.explorer.mutants.secure import LYING, VANISHING, Patches

SLOW: dict[str, Any] = {**VANISHING, "rates": {"delay": 0.15, "lose-request": 0.05}}
"""Messages come late, or not."""
CRASHING: dict[str, Any] = {**VANISHING, "rates": {"crash": 0.02, "delay": 0.1}}
"""The coordinator is away again and again."""


@mutant("second-message-accepted", "counts-once", secure=True, replicas=1, liars=2, storm_s=150.0)
def _second_message_accepted() -> Patches:
    """A second message of a device in one exchange takes the place of the first."""
    sent = messages.sent

    class Never(dict[str, str]):
        """Whom the check of repetitions finds in no exchange."""

        def __contains__(self, device: object) -> bool:
            return False

        def get(self, device: str, default: Any = None) -> Any:
            return default

    def unseen(secure: Any, message: Any) -> Mapping[str, str]:
        return Never(sent(secure, message))

    return [(messages, "sent", unseen)]


@mutant("barred-drawn", "draw", "spent", focus=("secure-lie", "sharing"), **LYING)
def _barred_drawn() -> Patches:
    """A device that is barred is drawn again."""
    unspendable = drawing.unspendable

    def let_in(reader: Any, state: Any) -> dict[str, str]:
        return unspendable(reader, replace(state, barred={}))

    return [(drawing, "unspendable", let_in), (fleet, "unspendable", let_in)]


PROVEN: dict[str, Any] = {**LYING, "only_lie": "polynomial"}


@mutant("barred-for-one-round", "draw", "log", "one-end", focus=("secure-lie", "sharing"), **PROVEN)
def _barred_for_one_round() -> Patches:
    """A proven liar is let in again at the next round."""

    def one_round(state: Any, devices: Any, why: str) -> Any:
        found = with_barred(state, devices, why)
        new = {device: replace(found.barred[device], until_round=state.round_number + 1) for device in devices}
        return replace(found, barred={**found.barred, **new})

    return [(unmasking, "with_barred", one_round)]


@mutant("accuser-barred", "draw", "barred", "spent", focus=("secure-lie", "sharing"), **LYING)
def _accuser_barred() -> Patches:
    """Whom a dealer's proven lie has harmed is barred in the dealer's place."""

    def other(state: Any, devices: Any, why: str) -> Any:
        secure = state.secure
        return with_barred(state, [one for one in secure.group_of if one not in devices][:1], why)

    return [(unmasking, "with_barred", other)]


@mutant("outage-eats-the-exchange", "deadline", focus=("crash", "masking"), **CRASHING)
def _outage_eats_the_exchange() -> Patches:
    """A restart gives no time back: the exchange that devices could not take part in is over."""
    return [(lifecycle, "recovered", lambda state, event: (state, []))]


@mutant("time-given-back-for-nothing", "deadline", focus=("secure-vanish", "masking"), **VANISHING)
def _time_given_back_for_nothing() -> Patches:
    """Each look at the clock gives the exchange its whole time again, until the attempt expires."""
    tick = Timekeeping.tick

    def generous(self: Timekeeping) -> float | None:
        for log in self._core.logs():
            log.submit(lambda tx, state, at: Recovered(at=at))
        return tick(self)

    return [(Timekeeping, "tick", generous)]


@mutant("list-without-margin", "deadline", "log", "late-report", focus=("secure-vanish", "masking"), **VANISHING)
def _list_without_margin() -> Patches:
    """A list is shown that fails with the first device that vanishes."""
    return [(sharing, "margin", lambda state, n, signers: 0)]


@mutant("margin-of-more-than-half", "deadline", "log", "late-report", focus=("secure-vanish", "masking"), **VANISHING)
def _margin_of_more_than_half() -> Patches:
    """A list of few devices has a margin that they cannot have, so it is never shown."""
    return [(Secure, "margin_of", lambda self, n, signers, share=0: 1 if self.margin is None else self.margin)]


@mutant("too-few-shared", "log", "deadline", focus=("secure-vanish", "sharing"), **VANISHING)
def _too_few_shared() -> Patches:
    """An exchange goes on with fewer devices than the plan's quorum, or the threshold, asks for."""
    return [(attempts, "enough", lambda quorum, secure, present, sharers: True)]


@mutant("left-out-comes-back", "log", "public", focus=("secure-lie", "sharing"), **LYING)
def _left_out_comes_back() -> Patches:
    """Who was left out after an attempt may join the next one."""
    begin = attempts.fresh

    def forgiving(state: Any, at: float, reason: str, silent: tuple[str, ...] = ()) -> Any:
        following, effects = begin(state, at, reason, silent)
        if following.round is not None:
            following = following.with_round(replace(following.current, excluded={}))
        return following, effects

    return [(place, "fresh", forgiving) for place in (attempts, sharing, masking) if hasattr(place, "fresh")]


@mutant("late-message-accepted", "late-report", focus=("delay", "agreeing"), **SLOW)
def _late_message_accepted() -> Patches:
    """A masked vector is accepted after the list of survivors was fixed."""
    exchanges = {**messages._EXCHANGES, ev.Masked: ("masked", ("masking", "agreeing", "unmasking"))}
    return [(messages, "_EXCHANGES", exchanges)]


@mutant("header-again", "log", **{**VANISHING, "rates": {"lose-request": 0.02, "secure-vanish": 0.2}})
def _header_again() -> Patches:
    """A further attempt has the header of the first."""
    announce, first = performing.announce, dict[tuple[str, int], Any]()

    def again(state: Any, **more: Any) -> Any:
        return first.setdefault((state.run, state.current.number), announce(state, **more))

    return [(performing, "announce", again)]
