"""A ``Combine`` of another kind: it draws by the round's seed, keeps tensors of its own and a small state, and its
commits are repeated from the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from client_sdk.tensors import from_bytes
from coordinator.engine.aggregation.combining import Blocks, Combined, Computed, Sources
from coordinator.engine.named_tensors import MOST_SMALL
from coordinator.folding import aggregator
from coordinator.verify import verify
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World

START = 4
"""Devices of the world, and values of its model."""


class Rounds:
    """w += mean + drift * rounds, where the drift is the sum of the means before, and rounds is how many there were.
    ``small`` makes the small state of the one before."""

    needs = "sum"
    keeps: ClassVar[Mapping[str, tuple[float, ...]]] = {"drift": (0.0,), "drawn": (0.0, 1.0)}

    def __init__(self) -> None:
        self.small: Any = lambda before: {"rounds": before.get("rounds", 0) + 1}

    def combine(
        self,
        parent: Blocks,
        sources: Sources,
        tensors: Mapping[str, Blocks],
        small: Mapping[str, Any],
        settings: Mapping[str, float],
        seed: bytes,
    ) -> Combined:
        mean, rounds = sources.sum(), small.get("rounds", 0)
        drawn = np.float32([seed[0], tensors["drawn"].read(0, START)[0, 0]])

        def model(start: int, count: int) -> Any:
            drift = tensors["drift"].read(start, count)[:, 0]
            return parent.read(start, count) + mean.read(start, count) + drift * np.float32(rounds)

        found: Any = Computed(model)
        made = type("Model", (), {"read": staticmethod(found.read), "zero_sum": False})()
        return Combined(
            made,
            {
                "drift": Computed(lambda at, count: tensors["drift"].read(at, count) + mean.read(at, count)[:, None]),
                "drawn": Computed(lambda at, count: np.tile(drawn, (count, 1))),
            },
            self.small(small),
        )


@pytest.fixture
def combine(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds()
    monkeypatch.setattr(aggregator, "algorithm", lambda plan, registry: made)
    return made


def begun(make_world: MakeWorld) -> World:
    world = make_world(START)
    whole = {"weighting": "equal", "partial": "full"}
    world.create(aggregation=whole, cohort={"select": 4, "goal": 4, "quorum": 1.0}, retention={"rounds": 9})
    return world


def test_what_it_keeps_goes_from_round_to_round_and_over_a_crash(make_world: MakeWorld, combine: Rounds) -> None:
    world = begun(make_world)
    marks, drift = np.zeros(START, np.float32), np.zeros(START, np.float32)
    for number in (1, 2, 3):
        world.play_round(number)
        world.boot()
        mean = np.full(START, 2.0**number / 4, np.float32)
        marks, drift = marks + mean + drift * np.float32(number - 1), drift + mean
        state = world.coordinator.core.state("marks")
        assert (state.version, state.small) == (number, {"rounds": number})
        assert world.checkpoint()["marks"].tolist() == marks.tolist()
        assert state.named_tensors.keys() == {"drift", "drawn"}
        kept = {name: from_bytes(world.blobs.open(one).read())["marks"] for name, one in state.named_tensors.items()}
        assert kept["drift"][:, 0].tolist() == drift.tolist()
    assert kept["drawn"][0, 0] != kept["drawn"][0, 1], "each round has a seed of its own"
    assert list(verify(world.store, world.blobs)) == []


def test_another_small_state_than_the_logs_is_named(make_world: MakeWorld, combine: Rounds) -> None:
    world = begun(make_world)
    world.play_round(1)
    combine.small = lambda before: {"rounds": 7}
    found = [str(one) for one in verify(world.store, world.blobs)]
    assert ["its updates give another small state than the log has" in one for one in found] == [True], found


@pytest.mark.parametrize(
    ("small", "sentence"),
    [
        ({"x": float("nan")}, "the small state is no JSON"),
        ({"x": b"1"}, "the small state is no JSON"),
        ({"x": "y" * MOST_SMALL}, "the small state has 65,544 bytes, more than 65,536"),
    ],
)
def test_a_small_state_that_a_log_cannot_hold_ends_the_round(
    make_world: MakeWorld, combine: Rounds, small: Any, sentence: str
) -> None:
    world = begun(make_world)
    combine.small = lambda before: small
    world.play_round(1)
    assert sentence in world.coordinator.operators.round("marks", 1).reason
    assert world.coordinator.core.state("marks").version == 0


def test_a_small_state_is_what_its_json_says(make_world: MakeWorld, combine: Rounds) -> None:
    world = begun(make_world)
    combine.small = lambda before: {"b": (1, 2), "a": 0.1}
    world.play_round(1)
    assert json.dumps(world.coordinator.core.state("marks").small) == '{"a": 0.1, "b": [1, 2]}'
