"""Private rounds whose clip adapts: a function of noised bits alone, durable with the commit, whoever crashes."""

from __future__ import annotations

import hashlib
import math
from itertools import count
from typing import Any

import numpy as np
import pytest

from client_sdk.secagg.clip_bit import beta_of, next_clip
from coordinator.commands.tables import print_run
from coordinator.folding.aggregator import Aggregator
from coordinator.folding.noise import Noise
from tests.coordinator.runtime.test_private_rounds import create, logged, violations
from tests.coordinator.world import World

ADAPT = {"quantile": 0.5, "rate": 0.5, "lowest": 0.5, "highest": 64.0}
QUIET = 1e-6
EACH = pytest.mark.parametrize("mechanism", ["gaussian", "tree", "blt"])


@pytest.fixture
def world() -> World:
    return World()


def adaptive(world: World, *, noise: float = QUIET, rounds: int = 5, mechanism: str = "gaussian", **adapt: Any) -> None:
    privacy = {"mechanism": mechanism, "clip": 4.0, "noise": noise, "adapt": {**ADAPT, **adapt}}
    create(world, cohort={"most_rounds": rounds}, finish={"rounds": rounds}, privacy=privacy)


def small(world: World) -> list[Any]:
    return [body.get("small") for body in logged(world, "Committed")]


def after(clip: float, within: float) -> float:
    return next_clip(clip, within, **ADAPT)


@EACH
def test_updates_are_clipped_to_the_rounds_clip_which_follows_their_bits(world: World, mechanism: str) -> None:
    """The update of round k is 2^k long."""
    adaptive(world, mechanism=mechanism)
    clip = 4.0
    for number in range(1, 6):
        before = world.checkpoint()["marks"].astype(np.float64)
        counted = world.play_round(number)
        step = world.checkpoint()["marks"].astype(np.float64) - before
        wanted = np.zeros(world.size)
        wanted[counted] = min(2.0**number, clip) / 3
        assert step == pytest.approx(wanted, rel=1e-4, abs=1e-4)
        within = small(world)[-1]["within"]
        assert within == pytest.approx(1.0 if 2.0**number <= clip else 0.0, abs=1e-3)
        clip = after(clip, within)
        assert small(world)[-1] == {"clip": clip, "within": within}
    assert violations(world) == []


def test_a_part_of_the_devices_is_within(world: World) -> None:
    adaptive(world)
    world.check_in()
    for device, length in zip(world.cohort()[:3], (3.9, 4.0, 4.1), strict=True):
        marks = np.zeros(world.size, np.float32)
        marks[device] = length
        world.send(device, world.body(device, delta={"marks": marks}))
    assert small(world)[0]["within"] == pytest.approx(2 / 3, abs=1e-3)
    assert violations(world) == []


def test_a_plan_that_does_not_adapt_has_nothing_of_it_in_its_log(world: World) -> None:
    create(world)
    world.play_round(1)
    assert small(world) == [None]
    view = world.coordinator.operators.run("marks")
    assert view.privacy is not None
    assert (view.privacy.clip, view.privacy.within) == (1.0, None)
    assert {row.clip_after for row in world.coordinator.operators.rounds("marks")} == {None}


@EACH
def test_the_bits_are_in_no_log_without_noise_of_the_plan(world: World, mechanism: str) -> None:
    adaptive(world, noise=5.0, mechanism=mechanism)
    found = []
    for number in range(1, 6):
        world.play_round(number)
        found.append(small(world)[-1]["within"])
    assert all(min(abs(one), abs(one - 1.0)) > 1e-3 for one in found), "each device's bit is the same"
    assert violations(world) == []


def others(run: int) -> Any:
    """Entropy that another run has not."""
    calls = count()
    return lambda size: hashlib.shake_256(f"{run} {next(calls)}".encode()).digest(size)


def test_the_noise_of_a_bit_has_the_deviation_of_the_plan() -> None:
    """A chance test: 40 rounds, each of another seed."""
    noise, errors = 2.0, []
    for run in range(8):
        world = World()
        world.entropy = others(run)
        world.boot()
        adaptive(world, noise=noise, lowest=4.0, highest=4.0)
        for number in range(1, 6):
            world.play_round(number)
            errors.append(small(world)[-1]["within"] - (1.0 if number <= 2 else 0.0))
    wanted = noise / (2 * beta_of(noise, 3) * 3)
    assert 0.7 < math.sqrt(float(np.mean(np.square(errors)))) / wanted < 1.35
    assert len({round(one, 6) for one in errors}) > 35


def test_an_abandoned_round_changes_no_clip_and_a_process_that_starts_again_knows_it(world: World) -> None:
    adaptive(world)
    world.play_round(1)
    clip = small(world)[-1]["clip"]
    world.check_in()
    world.pass_time(61)  # nobody reports
    world.boot()
    view = world.coordinator.operators.run("marks")
    assert view.privacy is not None
    assert view.privacy.clip == clip < 4.0
    world.check_in()
    cohort = world.cohort()[:3]
    before = world.checkpoint()["marks"].astype(np.float64)
    world.report(*cohort[:2], round=3)
    world.boot()  # the sum so far is lost, and folded again with the same clip
    world.settle()
    world.report(cohort[2], round=3)
    step = world.checkpoint()["marks"].astype(np.float64) - before
    assert step[cohort] == pytest.approx([clip / 3] * 3, rel=1e-4)
    assert small(world)[-1]["clip"] == after(clip, small(world)[-1]["within"])
    assert violations(world) == []


# ------------------------------------------------------------ what is shown


def test_the_status_the_rounds_and_the_page_of_a_run_tell_the_clips(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    adaptive(world)
    world.play_round(1)
    world.play_round(2)
    first, second = (one["clip"] for one in small(world))
    view = world.coordinator.operators.run("marks")
    assert view.privacy is not None
    assert (view.privacy.clip, view.privacy.within) == (second, small(world)[1]["within"])
    print_run(view)
    assert f"  clip        {second:.4g}; about 0% of the last updates were within theirs" in capsys.readouterr().out
    rows = world.coordinator.operators.rounds("marks")
    assert {row.round: row.clip_after for row in rows if row.clip_after} == {1: first, 2: second}
    found = world.coordinator.ledgers.of_run("marks")
    assert [(one.round, one.clip) for one in found.clips] == [(1, 4.0), (2, first), (3, second)]


# ------------------------------------------------------------ seeded bugs


def test_verify_names_a_wrong_clip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    adaptive(world)
    with monkeypatch.context() as patch:
        with_clip = Aggregator.with_clip

        def twice(aggregator: Any, made: Any, before: Any, within: Any) -> Any:
            found = with_clip(aggregator, made, before, within)
            return found._replace(small={**found.small, "clip": 2 * found.small["clip"]})

        patch.setattr(Aggregator, "with_clip", twice)
        world.play_round(1)
    said = violations(world)
    assert any("the clip after it is" in one and "and its noised bits give" in one for one in said)
    assert any("its updates give another small state than the log has" in one for one in said)


def test_a_clip_from_bits_without_noise_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    adaptive(world, noise=5.0)
    with monkeypatch.context() as patch:
        mean = Noise.mean

        def bare(noise: Any, total: Any, *rest: Any) -> Any:
            exact = 0.5 + int(total.whole_totals()[-1]) / (2 * noise._bit * noise._goal)
            return (*mean(noise, total, *rest)[:2], exact)

        patch.setattr(Noise, "mean", bare)
        world.play_round(1)
    assert any("its updates give another small state" in one for one in violations(world))
