"""Private runs that die at each durable step; and seeded bugs, each of which one of these schedules must find."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from client_sdk.chance import labelled
from client_sdk.secagg.agreement import derive
from coordinator.engine import effects as fx
from coordinator.engine.phases import committing
from coordinator.folding.noise import RoundSeed
from coordinator.runtime import actions, records
from coordinator.runtime.actions import Actions
from tests.coordinator.runtime.private_schedules import Broken, Schedule, What, schedules
from tests.rotating import DAY, on_day


def test_a_schedule_without_a_death_is_sound() -> None:
    assert Schedule(0, "before", "restart").play() > 20


def every() -> list[Schedule]:
    correlated = [schedule for name in ("tree", "blt") for schedule in schedules("lose", mechanism=name)]
    return [*schedules(), *correlated, *schedules("restart", "lose", adapts=True)]


@pytest.mark.slow
def test_whatever_a_process_dies_at_the_noise_and_the_ledger_are_right() -> None:
    """Another sixth of the deaths each day; the soak tests play all."""
    played = [schedule.play() for schedule in every()[DAY % 6 :: 6]]
    assert len(played) > 65


@pytest.mark.soak
def test_whatever_a_process_dies_at_all_of_it() -> None:
    assert len([schedule.play() for schedule in every()]) > 400


# ------------------------------------------------------------ seeded bugs

Patch = Callable[[pytest.MonkeyPatch], None]


def a_stream_that_does_not_hang_on_the_sum(patch: pytest.MonkeyPatch) -> None:
    def key(seed: RoundSeed, parent: str, total: bytes, mechanism: str) -> bytes:
        return derive(seed.seed, salt=b"", info=labelled("noise", seed.run, seed.round, parent))

    patch.setattr(RoundSeed, "key", key)


def a_seed_that_hangs_on_the_round_alone(patch: pytest.MonkeyPatch) -> None:
    """As if it were computed from the run's name and the round: it is the same where the folder was set back."""
    key = RoundSeed.key

    def fixed(seed: RoundSeed, parent: str, total: bytes, mechanism: str) -> bytes:
        return key(RoundSeed(seed.run, seed.round, bytes(32)), "", b"")

    patch.setattr(RoundSeed, "key", fixed)


def a_seed_that_is_drawn_anew_for_each_try(patch: pytest.MonkeyPatch) -> None:
    drawn = Actions._seed

    def fresh(acting: Any, run: str, action: fx.Commit) -> RoundSeed:
        drawn(acting, run, action)
        return RoundSeed(run, action.round, acting._core.noise_seed(run, action.round))

    patch.setattr(Actions, "_seed", fresh)


def a_debit_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """In a transaction of its own."""
    write, perform, kept = records.write, Actions._commit, list[tuple[float, fx.Record]]()

    def without(tx: Any, run: str, found: Any) -> None:
        kept.extend((at, one) for at, one in found if isinstance(one, fx.RecordDebit))
        write(tx, run, [(at, one) for at, one in found if not isinstance(one, fx.RecordDebit)])

    def later(acting: Any, run: str, action: fx.Commit) -> None:
        kept.clear()
        perform(acting, run, action)
        with acting._core.store.transaction(run) as tx:
            write(tx, run, list(kept))

    patch.setattr(records, "write", without)
    patch.setattr(Actions, "_commit", later)


def another_list_that_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    """A round costs once, whatever is counted in the end."""
    debit = committing.debit

    def once(*arguments: Any) -> fx.RecordDebit:
        return replace(debit(*arguments), counted=hashlib.sha256(b"the round").hexdigest())

    patch.setattr(committing, "debit", once)


def a_debit_for_half_of_what_it_costs(patch: pytest.MonkeyPatch) -> None:
    debit = committing.debit
    patch.setattr(committing, "debit", lambda state, counted, rho: debit(state, counted, rho / 2))


def a_budget_that_a_changed_list_is_not_held_to(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actions, "reason_against_list", lambda *of: "")


BUGS: dict[Patch, What] = {
    a_stream_that_does_not_hang_on_the_sum: "lose",
    a_seed_that_hangs_on_the_round_alone: "set-back",
    a_seed_that_is_drawn_anew_for_each_try: "restart",
    a_debit_after_the_commit: "restart",
    another_list_that_costs_nothing: "lose",
    a_debit_for_half_of_what_it_costs: "again",
    a_budget_that_a_changed_list_is_not_held_to: "lose",
}
"""Bug -> what follows the death that shows it."""


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=on_day(n % 2, of=2)) for n, bug in enumerate(BUGS)],
    ids=lambda bug: bug.__name__.replace("_", "-"),
)
def test_a_seeded_bug_of_private_rounds_is_found(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(Broken):
        deque(map(Schedule.play, schedules(BUGS[bug])), maxlen=0)
