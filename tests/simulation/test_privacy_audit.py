"""The audit finds most of the epsilon that a sound mechanism gives away, and more than is claimed of a broken one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.secagg.noise import BLOCK, DiscreteGaussian
from coordinator.engine.plan import Plan
from coordinator.engine.privacy import Privacy
from coordinator.folding import validation
from coordinator.folding.noise import Noise, RoundSeed
from coordinator.folding.validation import Bounds
from simulation.simulator import privacy_audit
from simulation.simulator.privacy_audit import _epsilon_of_gap, audit
from tests.rotating import on_day, taking_turns

PLAN: dict[str, Any] = {
    "name": "private",
    "task": {"learner": "a:b"},
    "cohort": {"most_rounds": 4},
    "aggregation": {"weighting": "equal"},
    "privacy": {"clip": 0.5, "noise": 1.5, "delta": 1e-5},
}


def played(**more: Any) -> privacy_audit.Audited:
    return audit(Plan.parse(PLAN), canaries=200, **more)


@pytest.mark.parametrize("seed", taking_turns(0, 1))
def test_of_sound_noise_it_finds_most_of_the_claim_and_no_more(seed: int) -> None:
    found = played(seed=seed)
    assert found.rounds == 4
    assert found.holds
    assert 0.6 * found.claimed <= found.low <= found.claimed <= found.high
    assert 0.7 * found.claimed < found.estimate < 1.3 * found.claimed


@pytest.mark.parametrize(
    "mechanism", [pytest.param(name, marks=on_day(2 * n, of=4)) for n, name in enumerate(("tree", "blt"))]
)
def test_of_sound_correlated_noise_it_finds_most_of_the_claim_and_no_more(mechanism: str) -> None:
    found = correlated(mechanism)
    assert (found.rounds, found.holds) == (8, True)
    assert 0.6 * found.claimed <= found.low <= found.claimed
    assert found.claimed <= found.high or mechanism == "tree", "of a tree nodes count that are never drawn"


def correlated(mechanism: str) -> privacy_audit.Audited:
    sections = {"cohort": {"most_rounds": 4, "apart": 5}, "finish": {"rounds": 40}}
    privacy = {**PLAN["privacy"], "mechanism": mechanism, "noise": 2.0}
    return audit(Plan.parse({**PLAN, **sections, "privacy": privacy}), canaries=300)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    deviation = Privacy.deviation
    patch.setattr(Privacy, "deviation", lambda self, plan: deviation(self, plan) // 2)


def wrong_denominator(patch: pytest.MonkeyPatch) -> None:
    """The sum is divided by the goal, and its noise by those that were selected, twice as many."""
    drawn = Noise._of
    patch.setattr(Noise, "_of", lambda self, keys, size: drawn(self, keys, size) * self._goal // (2 * self._goal))


def no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(validation, "_WITHIN", 1000.0)


def one_stream_for_all_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundSeed, "key", lambda self, parent, total, mechanism: bytes(32))


def noise_in_the_first_block_alone(patch: pytest.MonkeyPatch) -> None:
    draw = DiscreteGaussian.draw

    def first(self: DiscreteGaussian, key: bytes, size: int, begin: int = 0) -> Any:
        found = draw(self, key, size, begin)
        found[BLOCK // 16 :] = 0
        return found

    patch.setattr(DiscreteGaussian, "draw", first)


def statistics_outside_the_noise(patch: pytest.MonkeyPatch) -> None:
    """Of a tenth of the values, as if these were a model's statistics, added beside."""
    draw = DiscreteGaussian.draw

    def parameters(self: DiscreteGaussian, key: bytes, size: int, begin: int = 0) -> Any:
        found = draw(self, key, size, begin)
        found[size - size // 10 :] = 0
        return found

    patch.setattr(DiscreteGaussian, "draw", parameters)


BROKEN = (
    half_the_noise,
    wrong_denominator,
    no_clip,
    one_stream_for_all_rounds,
    noise_in_the_first_block_alone,
    statistics_outside_the_noise,
)


@pytest.mark.parametrize(
    "break_it",
    [pytest.param(broken, marks=on_day(n % 2, of=2)) for n, broken in enumerate(BROKEN)],
    ids=lambda broken: broken.__name__,
)
def test_a_broken_mechanism_gives_away_more_than_it_claims(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    found = played()
    assert not found.holds
    assert found.low > found.claimed


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param((half_the_noise, "tree"), marks=on_day(1, of=6)),
        pytest.param((half_the_noise, "blt"), marks=on_day(3, of=6)),
        pytest.param((one_stream_for_all_rounds, "blt"), marks=on_day(5, of=6)),
    ],
)
def test_broken_correlated_noise_gives_away_more_than_it_claims(
    broken: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it, mechanism = broken
    break_it(monkeypatch)
    found = correlated(mechanism)
    assert not found.holds


@pytest.mark.parametrize(("gap", "delta", "epsilon"), [(1.0, 1e-5, 4.377), (0.2, 1e-5, 0.7255), (2.0, 1e-5, 9.997)])
def test_the_epsilon_of_a_gap(gap: float, delta: float, epsilon: float) -> None:
    """Those of dp-accounting's PLD for noise multipliers of 1, 5 and 0.5."""
    assert _epsilon_of_gap(gap, delta) == pytest.approx(epsilon, rel=2e-3)


def test_no_gap_gives_nothing_away() -> None:
    same = np.random.default_rng(0).standard_normal(500)
    low, estimate, high = privacy_audit._epsilons(same, same, 1e-5, 0.95)
    assert (low, estimate) == (0, 0)
    assert high < 1


def test_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    text = Plan.parse(PLAN).written_out
    lines = ['name = "private"']
    for section in ("task", "cohort", "aggregation", "privacy"):
        lines += [f"[{section}]", *(f"{key} = {value!r}".replace("'", '"') for key, value in PLAN[section].items())]
    path.write_text("\n".join(lines))
    assert text["privacy"]["noise"] == 1.5
    found = CliRunner().invoke(app, ["privacy", "audit", str(path), "--canaries", "64"])
    assert found.exit_code == 0, found.output
    assert "what was found is no proof against the claim" in found.output
    path.write_text("\n".join(lines[: lines.index("[privacy]")]))
    found = CliRunner().invoke(app, ["privacy", "audit", str(path)])
    assert found.exit_code == 1
    assert "the plan has no section [privacy]" in found.output


ADAPTS = {**PLAN, "privacy": {**PLAN["privacy"], "adapt": {"rate": 1.0, "lowest": 0.01, "highest": 3.0}}}


@on_day(1, of=2)
def test_a_clip_that_adapts_is_audited_in_the_units_of_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    found = audit(Plan.parse(ADAPTS), canaries=200)
    assert found.holds
    assert 0.5 * found.claimed <= found.low
    at = Bounds.at
    monkeypatch.setattr(Bounds, "at", lambda self, measures, clip: replace(at(self, measures, clip), scale=1.0))
    assert not audit(Plan.parse(ADAPTS), canaries=200).holds, "updates as long as they are"
