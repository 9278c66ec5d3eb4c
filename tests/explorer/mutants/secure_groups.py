"""Bugs in secure rounds of several groups: who is in which, what one of them costs, and what of it counts in others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from client_sdk.secagg import roster
from client_sdk.secagg.roster import Roster
from coordinator.engine.event_fields import Group
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.secure import attempts, masking, unmasking
from coordinator.engine.secure.attempts import under_way
from coordinator.engine.secure.state import FOR_THE_SUM, SecureRound
from coordinator.engine.selection import Choice
from coordinator.runtime import drawing
from coordinator.secure import performing
from coordinator.secure.attempt import Attempts
from coordinator.secure.requests import SecureRequests
from tests.explorer.mutants.registry import mutant
from tests.explorer.mutants.secure import CALM, LYING, VANISHING, Patches

VANISHING_GROUPS: dict[str, Any] = {**VANISHING, "groups": 3}
CALM_GROUPS: dict[str, Any] = {**CALM, "groups": 3}
LYING_GROUPS: dict[str, Any] = {**LYING, "groups": 3}
GARBAGE: dict[str, Any] = {**LYING_GROUPS, "only_lie": "canary", "storm_s": 300.0}
"""One device sends vectors with which no sum is possible."""


@mutant("groups-in-order-of-ids", "groups", **CALM_GROUPS)
def _groups_in_order_of_ids() -> Patches:
    """Who is in which group follows from the devices' names, which a coordinator knows before: both ends do so."""

    def dealt(nonces: Sequence[bytes], groups: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(range(len(nonces))[group::groups]) for group in range(groups))

    return [(roster, "groups_of", dealt)]


@mutant("one-digest-for-all-groups", "groups", **CALM_GROUPS)
def _one_digest_for_all_groups() -> Patches:
    """What is signed and sealed in one group holds in all: both ends bind it to the roster alone."""
    divided = Roster.divided

    def alike(self: Roster, header: Any) -> tuple[tuple[Roster, bytes], ...]:
        return tuple((group, self.h(header)) for group, _ in divided(self, header))

    return [(Roster, "divided", alike)]


@mutant("threshold-of-the-whole-roster", "log", **CALM_GROUPS)
def _threshold_of_the_whole_roster() -> Patches:
    """A group's threshold is that of a single group of all devices."""
    numbers = performing.numbers_of

    def of_all(cohort: Any) -> Group:
        whole = cohort.header.rule.parameters(cohort.n * cohort.header.groups)
        return replace(numbers(cohort), threshold=whole.threshold)

    return [(performing, "numbers_of", of_all)]


@mutant("shares-of-the-first-group", "unmasked", **CALM_GROUPS)
def _shares_of_the_first_group() -> Patches:
    """Every group is given what was dealt in the first one."""
    dealt = Attempts.dealt
    return [(Attempts, "dealt", lambda self, secure, attempt: dealt(self, secure, self.groups(secure)[0]))]


@mutant("list-of-another-group", "barred", "liveness", focus=("secure-vanish", "masking"), **VANISHING_GROUPS)
def _list_of_another_group() -> Patches:
    """Devices are shown the list of survivors of the group after theirs."""
    answer = SecureRequests._while_masking

    def another(self: SecureRequests, state: Any, secure: Any, device: str) -> bytes | None:
        found = answer(self, state, secure, device)
        if found is None or state.phase not in ("agreeing", "unmasking"):
            return found
        standing, groups = sorted(secure.standing), self._attempts.groups(secure)
        after = standing.index(self._attempts.of(secure, device).group) + 1
        return groups[standing[after % len(standing)]].survivors(secure).encoded

    return [(SecureRequests, "_while_masking", another)]


@mutant("one-group-costs-the-round", "claims", "log", focus=("secure-vanish", "sharing"), **VANISHING_GROUPS)
def _one_group_costs_the_round() -> Patches:
    """A round goes on with all of its groups, or not at all."""
    return [(SecureRound, "fewest_groups", property(lambda self: max(1, len(self.groups))))]


@mutant(
    "half-of-the-groups-is-enough",
    "deadline",
    "one-end",
    "log",
    focus=("secure-vanish", "sharing"),
    **{**VANISHING_GROUPS, "groups": 2},
)
def _half_of_the_groups_is_enough() -> Patches:
    """A round goes on with one group of two."""
    return [(SecureRound, "fewest_groups", 1)]


@mutant(
    "impossible-sum-costs-the-round",
    "offer",
    "claims",
    "log",
    "one-end",
    focus=("secure-lie", "masking"),
    **LYING_GROUPS,
)
def _impossible_sum_costs_the_round() -> Patches:
    """One group whose sum cannot be opened abandons the round."""
    go_on = unmasking.go_on_with

    def all_or_none(state: Any, at: float, groups: Any, reasons: Sequence[str], *rest: Any) -> Any:
        if under_way(state)[0].opening:
            return abandon(state, at, reasons[0])
        return go_on(state, at, groups, reasons, *rest)

    return [(unmasking, "go_on_with", all_or_none)]


@mutant("fallen-group-stays", "named", "log", "public", focus=("secure-vanish", "agreeing"), **VANISHING_GROUPS)
def _fallen_group_stays() -> Patches:
    """Vectors of a group that has fallen are counted with those of the others."""
    return [(attempts, "FOR_THE_SUM", tuple(exchange for exchange in FOR_THE_SUM if exchange != "masked"))]


@mutant("one-group-forgotten", "same-bits", **CALM_GROUPS)
def _one_group_forgotten() -> Patches:
    """The commit lacks the sum of the first group."""
    commit = performing.commit_sums

    def without(aggregator: Any, round: int, parent: str, quantizer: Any, totals: Any, *rest: Any, **about: Any) -> Any:
        return commit(aggregator, round, parent, quantizer, totals[-2:], *rest, **about)

    return [(performing, "commit_sums", without)]


@mutant("dealer-out-in-all-groups", "claims", "log", focus=("secure-lie", "sharing"), **LYING_GROUPS)
def _dealer_out_in_all_groups() -> Patches:
    """With a dealer that has not answered a complaint, those at its place in the other groups are out."""
    put_out = masking.put_out

    def everywhere(state: Any, at: float, dealers: Iterable[str]) -> Any:
        groups = under_way(state)[0].groups
        places = {group.order.index(dealer) for dealer in dealers for group in groups if dealer in group.order}
        alike = {group.order[place] for group in groups for place in places if place < len(group.order)}
        return put_out(state, at, {*alike, *dealers} - state.current.excluded.keys())

    return [(masking, "put_out", everywhere)]


@mutant("nobody-rests", "draw", focus=("secure-lie", "masking"), **GARBAGE)
def _nobody_rests() -> Patches:
    """Who was on the list of an impossible sum is drawn as often as others."""
    draw = Choice.draw

    def careless(self: Choice, *about: Any, **more: Any) -> list[str]:
        return draw(self, *about, **{**more, "suspicion": {}})

    return [(Choice, "draw", careless), (drawing, "resting", lambda *about, **more: set())]


@mutant("all-groups-suspected", "draw", focus=("secure-lie", "masking"), **GARBAGE)
def _all_groups_suspected() -> Patches:
    """An impossible sum makes the devices of all groups suspected."""
    return [(unmasking, "_listed", lambda secure, group: set(secure.masked))]
