"""The agreeing phase: the list of the devices that have masked, the survivors, is fixed, and they sign it.

::

    agreeing --> unmasking   every survivor can be sent enough signatures, and every secret can be rebuilt, or all have
                             signed, or the deadline
             --> abandoned   too few have signed

From here on no attempt under new keys is made: a device that has signed is spent on this checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.debiting import debit
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.secure import margin
from coordinator.engine.secure.attempts import (
    awaited,
    count_awaited,
    enter,
    exchange_deadline,
    go_on_with,
    route,
    under_way,
)
from coordinator.engine.secure.holders import lacking
from coordinator.engine.secure.marks import with_spent
from coordinator.engine.secure.messages import accepted, answered, with_message
from coordinator.engine.secure.unmasking import begin as begin_unmasking
from coordinator.engine.state import RunState


def begin(state: RunState, at: float) -> Step:
    """Fixes the list, and releases the devices that are not on it."""
    state = enter(state, "agreeing", at, exchange_deadline(state, at))
    secure, _ = under_way(state)
    state = _counted(margin.shown(state, secure), secure.masked)
    others = tuple(sorted(set(state.current.members) - secure.masked.keys()))
    free = [fx.Release(round=state.round_number, devices=others)] if others else []
    return state, [*free, record(state, "open"), *_debited(state), route(state, secure.masked)]


def _debited(state: RunState) -> list[fx.Effect]:
    """What a private round costs the devices on its list: from now on their sum may be opened, used or not."""
    privacy = state.plan.privacy
    if privacy is None:
        return []
    return [debit(state, kind_of(state.current).contributions(state.current), privacy.cost(state.plan))]


def _counted(state: RunState, listed: Iterable[str]) -> RunState:
    """The state in which a private round counts for the devices on its list."""
    if state.plan.privacy is None:
        return state
    found = dict(state.participation)
    for device in listed:
        selected, counted = found.get(device, (0, 0))
        found[device] = selected + 1, counted + 1
    return replace(state, participation=found)


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
    or no device is awaited that could help."""
    secure, _ = under_way(state)
    for group in secure.standing.values():
        listed, signed = secure.masked.keys() & set(group.order), secure.signed.keys() & set(group.order)
        have = len(signed)
        if have >= group.signers and not lacking(secure, secure.signed, secure.shared.keys() & set(group.order)):
            continue
        left = count_awaited(state, listed, signed, most=max(1, group.signers - have))
        if left and have + left >= group.signers:
            return state, []
    return agreed(state, at)


def agreed(state: RunState, at: float) -> Step:
    """Continue with the shares, in the groups where the survivors with enough signatures are enough to rebuild every
    secret."""
    secure, _ = under_way(state)
    blind = set(lacking(secure, secure.signed, secure.signed))
    unheld = set(lacking(secure, secure.signed.keys() - blind, secure.shared))
    groups, reasons = set[int](), list[str]()
    for number, group in secure.standing.items():
        have, listed = len(secure.signed.keys() & set(group.order)), len(secure.masked.keys() & set(group.order))
        if have < group.signers:
            reasons.append(f"{have} of {listed} survivors signed the list, and it takes {group.signers}")
        elif unheld.isdisjoint(group.order):
            groups.add(number)
        else:
            reasons.append(f"{have} of {listed} survivors signed the list, too few of them near one device")
    return go_on_with(state, at, groups, reasons, begin_unmasking, secure.masked.keys() - secure.signed.keys())


def pending(state: RunState) -> list[fx.Action]:
    secure, _ = under_way(state)
    return [route(state, awaited(state, secure.masked.keys(), secure.signed.keys()))]
