"""Bugs in what few secure rounds have: rings, codecs that draw or rotate, a datacenter beside them, a bar that an owner
lifts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from client_sdk.device import secure_round
from coordinator.engine.phases import opening
from coordinator.engine.secure import departures, marks, unmasking
from coordinator.secure import performing, requests
from tests.explorer.mutants.registry import mutant
from tests.explorer.mutants.secure import CALM, LYING, VANISHING, Patches


@mutant("ring-counted-as-if-complete", "log", "liveness", focus=("secure-vanish", "unmasking"), **VANISHING)
def _ring_counted_as_if_complete() -> Patches:
    """On a ring a sum is opened when as many have revealed as one secret takes, wherever they stand."""

    def short(secure: Any, present: Collection[str], wanted: Iterable[str]) -> tuple[str, ...]:
        return () if len(present) >= secure.groups[0].threshold else tuple(sorted(wanted))

    return [(unmasking, "lacking", short)]


@mutant("sum-decoded-by-another-seed", "same-bits", **CALM)
def _sum_decoded_by_another_seed() -> Patches:
    """The mean is decoded by another seed than that by which the devices have encoded."""
    commit = performing.commit_sums

    def decoded(*arguments: Any, seed: bytes, **about: Any) -> Any:
        return commit(*arguments, seed=bytes([seed[0] ^ 1]) + seed[1:], **about)

    return [(performing, "commit_sums", decoded)]


@mutant("plain-after-the-datacenter", "one-end", "log", "no-bug", "unmasked")
def _plain_after_the_datacenter() -> Patches:
    """A run with secure rounds that comes back from the datacenter goes on with plain ones."""
    open_next = opening.open_next

    def plain(state: Any, at: float, kept: Any) -> Any:
        following, effects = open_next(state, at, kept)
        if following.round.kind == "secure" and state.fallback.fleet_first:
            following = replace(following, round=replace(following.round, kind="federated"))
        return following, effects

    return [(opening, "open_next", plain)]


UNBARRING: dict[str, Any] = {**LYING, "rates": {"secure-lie": 0.6, "op-unbar": 0.8}}


@mutant("bar-not-lifted", "draw", "log", focus=("op-unbar", "collecting"), **UNBARRING)
def _bar_not_lifted() -> Patches:
    """An owner's lifting of a bar is answered and recorded, and has no effect."""
    lift = marks.unbarred

    def recorded(state: Any, event: Any) -> Any:
        following, effects = lift(state, event)
        return (following if following is state else replace(following, barred=state.barred)), effects

    return [(marks, "unbarred", recorded)]


SIGNED: dict[str, Any] = {**CALM, "signed": True}


@mutant("another-version-vouched", "log", **SIGNED)
def _another_version_vouched() -> Patches:
    """A signature is taken for a version that is not the run's newest one."""
    take = marks.vouched

    def any_version(state: Any, event: Any) -> Any:
        return take(replace(state, version=event.version), event)[0], []

    return [(marks, "vouched", any_version)]


@mutant("any-signature-taken", "origin", **SIGNED)
def _any_signature_taken() -> Patches:
    """A device does not look at the signature under a model."""
    return [(secure_round, "require_origin", lambda *given: None)]


@mutant("signature-asks-nobody-again", "draw", "liveness", **SIGNED)
def _signature_asks_nobody_again() -> Patches:
    """Who has declined a model is not asked again when somebody has signed it."""
    take = marks.vouched

    def declined_still(state: Any, event: Any) -> Any:
        following, effects = take(state, event)
        return (following if following is state else replace(following, declined=state.declined)), effects

    return [(marks, "vouched", declined_still)]


@mutant("late-decline-ignored", "named", **{**SIGNED, "rates": {"delay": 0.3, "lose-request": 0.02}})
def _late_decline_ignored() -> Patches:
    """What a device declines when its round is over counts for nothing."""
    return [(owner, "is_declined_late", lambda state, number: False) for owner in (departures, requests)]
