"""A device whose group's sum was bad rests: the coordinator draws without it, says so, and ``verify`` follows it."""

from __future__ import annotations

import pytest

from coordinator.commands.tables import print_run
from coordinator.engine import events as ev
from coordinator.engine.plan import selection_of
from coordinator.engine.secure import suspicion
from coordinator.verify import verify
from tests.client_sdk.bounds import any_work
from tests.coordinator.secure_runs import check_in, happens, says, secure_run, state, to_the_list
from tests.coordinator.world import World

SEED = 7
"""The run's selection seed."""


def test_the_coordinator_draws_without_who_rests_and_verify_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suspicion, "STEP", suspicion.MOST)
    world = World(8)
    secure_run(world, cohort={"select": 4, "goal": 4, "quorum": 0.6, "pool": 8})
    check_in(world)
    suspected = to_the_list(world)
    says(world, ev.Signed, *suspected)
    says(world, ev.Revealed, *suspected[:3])
    happens(world, ev.OpeningFailed, lost=(), reason="the canary lane sums to 5, not to the 4 survivors")
    assert state(world).suspicion == dict.fromkeys(suspected, 48)
    view = world.coordinator.operators.run("secret")
    assert view.suspicion == dict.fromkeys(suspected, 48)
    print_run(view)
    words = "rests in 48 of 64 rounds: sums of its groups were bad; good ones end it"
    assert f"suspected   {suspected[0]} {words}" in capsys.readouterr().out
    world.pass_time(600)
    world.check_in(*map(world.index, suspected), secure=any_work(smallest_cohort=3))
    world.pass_time(61)
    world.coordinator.operators.advance("secret", "olga")  # they have signed on the first model
    check_in(world)
    choice, rows = selection_of(state(world).plan), sorted((row.device, 10) for row in world.rows)
    drawn = sorted(state(world).current.members)
    number, held = state(world).round_number, dict.fromkeys(suspected, 48)
    assert drawn == choice.draw(rows, 4, seed=SEED, round=number, suspicion=held)
    assert drawn != choice.draw(rows, 4, seed=SEED, round=number)
    assert list(verify(world.store, world.blobs)) == []
    world.boot()
    assert state(world).suspicion == held, "it is folded from the log"
    monkeypatch.setattr(suspicion, "STEP", 0)
    found = {violation.what for violation in verify(world.store, world.blobs)}
    assert any("counts 8 waiting devices, and the tree has 5" in what for what in found), found
