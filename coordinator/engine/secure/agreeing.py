"""The agreeing phase: the list of the devices that have masked, the survivors, is fixed, and they sign it.

::

    agreeing --> unmasking   every survivor can be sent enough signatures, and every secret can be rebuilt, or all have
                             signed, or the deadline
             --> abandoned   too few have signed

From here on no attempt under new keys is made: a device that has signed is spent on this checkpoint.
"""

from __future__ import annotations

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.secure import margin
from coordinator.engine.secure.attempts import awaited, count_awaited, enter, exchange_deadline, route, under_way
from coordinator.engine.secure.holders import lacking
from coordinator.engine.secure.marks import with_spent
from coordinator.engine.secure.messages import accepted, answered, with_message
from coordinator.engine.secure.unmasking import begin as begin_unmasking
from coordinator.engine.state import RunState


def begin(state: RunState, at: float) -> Step:
    """Fixes the list, and releases the devices that are not on it."""
    state = enter(state, "agreeing", at, exchange_deadline(state, at))
    secure, _ = under_way(state)
    state = margin.shown(state, secure)
    others = tuple(sorted(set(state.current.members) - secure.masked.keys()))
    free = [fx.Release(round=state.round_number, devices=others)] if others else []
    return state, [*free, record(state, "open"), route(state, secure.masked)]


def signed(state: RunState, event: ev.Signed) -> Step:
    """The device is spent, whatever the round's result: so a late signature is accepted too."""
    answer = answered(state, event)
    if answer is not None:
        return answer
    state, mark = with_spent(with_message(state, event), event.device)
    if state.phase == "agreeing":
        following, more = agree_if_complete(state, event.at)
        return following, [accepted(event), mark, *more]
    shown = [route(state, [event.device])] if state.phase == "unmasking" else []
    return state, [accepted(event), mark, *shown]


def agree_if_complete(state: RunState, at: float) -> Step:
    """End the exchange when every survivor can be sent enough signatures and those who signed can rebuild every secret,
    or no device is awaited."""
    secure, _ = under_way(state)
    have = len(secure.signed)
    if have >= secure.signers and not lacking(secure, secure.signed, secure.shared):
        return agreed(state, at)
    left = count_awaited(state, secure.masked.keys(), secure.signed.keys(), most=max(1, secure.signers - have))
    if not left:
        return agreed(state, at)
    if have + left < secure.signers:
        return _too_few_signed(state, at)
    return state, []


def agreed(state: RunState, at: float) -> Step:
    """Continue with the shares, where the survivors with enough signatures are enough to rebuild every secret."""
    secure, _ = under_way(state)
    blind = set(lacking(secure, secure.signed, secure.signed))
    if len(secure.signed) < secure.signers or lacking(secure, secure.signed.keys() - blind, secure.shared):
        return _too_few_signed(state, at)
    return begin_unmasking(state, at)


def _too_few_signed(state: RunState, at: float) -> Step:
    secure, _ = under_way(state)
    reason = f"{len(secure.signed)} of {len(secure.masked)} survivors signed the list, and it takes {secure.signers}"
    if len(secure.signed) >= secure.signers:
        reason = (
            f"{len(secure.signed)} of {len(secure.masked)} survivors signed the list, too few of them near one device"
        )
    state = margin.ended(state, secure, len(secure.masked.keys() - secure.signed.keys()))
    return abandon(state, at, reason)


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    return [route(state, awaited(state, secure.masked.keys(), secure.signed.keys()))]
