"""A run whose plan names a strategy: what its devices are told and what it keeps, over crashes and for replicas, and as
the log gives it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task, Work
from client_sdk.tensors import from_bytes
from coordinator.engine.aggregation.combining import Combined, Computed
from coordinator.engine.aggregation.parameters import ExtensionError
from coordinator.engine.aggregation.registry import Installed, Registry
from coordinator.engine.aggregation.strategy import Strategy
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.runtime.extensions import MissingExtension
from coordinator.verify import verify
from tests.coordinator.certified import key_of
from tests.coordinator.conftest import MakeWorld
from tests.coordinator.world import World


class Halving(Strategy):
    """Half the rate with each round, half of that for phones, and fewer steps for them; keeps the sum of the means."""

    fails = False

    def keeps(self, settings: Any) -> Mapping[str, tuple[float, ...]]:
        return {"moved": (0.0,)}

    def decide(self, task: Task, version: int, small: Any, settings: Any, device_class: str) -> Mapping[str, float]:
        if self.fails:
            raise RuntimeError("no idea")
        phone = device_class == "phone"
        return {
            "learning_rate": task.learning_rate / 2 ** small.get("rounds", 0) / (2 if phone else 1),
            "steps": 3 if phone else 6,
        }

    def combine(
        self, parent: Any, sources: Any, tensors: Any, small: Any, settings: Any, seed: bytes, usual: Any
    ) -> Combined:
        made = usual.combine(parent, sources, tensors, small, settings, seed)
        mean = sources.sum()

        def moved(start: int, count: int) -> Any:
            return tensors["moved"].read(start, count) + mean.read(start, count)[:, None]

        return made._replace(
            tensors={**made.tensors, "moved": Computed(moved)},
            small={"rounds": small.get("rounds", 0) + 1, "losses": sorted(sources.reported("loss"))},
        )


HALVING = Halving()
HAVING = Registry(strategies={"lab:halving": Installed("1", HALVING)})
NAMED = {"name": "lab:halving", "version": "1"}


def replica(world: World, registry: Registry = HAVING) -> Coordinator:
    return Coordinator(
        Core(
            world.store,
            world.blobs,
            clock=world.clock,
            settings=world.settings,
            entropy=world.entropy,
            extensions=lambda plan: registry,
        )
    )


def begun(make_world: MakeWorld, **sections: Any) -> World:
    world = make_world(3)
    world.coordinator = replica(world)
    world.keys.append(key_of("a phone"))
    certificate = world.authority.certificate(world.keys[-1], at=world.clock.at)
    world.rows.append(world.coordinator.identities.register_device(certificate, examples=1000, label="phone/mine")())
    world.size = 4
    sections = {"strategy": NAMED, "task": {"steps": 6, "learning_rate": 0.5}, **sections}
    world.create(cohort={"select": 4, "goal": 4, "quorum": 1.0}, retention={"rounds": 9}, **sections)
    return world


def tasks(world: World) -> list[tuple[float, int | None]]:
    found = [world.assignment(number) for number in world.cohort()]
    return [(one.task.learning_rate, one.task.steps) for one in found if one is not None]


def test_devices_are_told_by_class_and_by_what_the_last_round_left(make_world: MakeWorld) -> None:
    world = begun(make_world)
    world.check_in()
    assert sorted(tasks(world)) == [(0.25, 3), *[(0.5, 6)] * 3]
    world.report(*world.cohort())
    world.check_in()
    assert sorted(tasks(world)) == [(0.125, 3), *[(0.25, 6)] * 3]
    world.coordinator = replica(world)
    world.coordinator.recover()
    assert sorted(tasks(world)) == [(0.125, 3), *[(0.25, 6)] * 3], "another replica tells the same"


def test_what_it_keeps_goes_over_a_crash_and_is_folded_again_from_the_log(make_world: MakeWorld) -> None:
    world = begun(make_world)
    for number in (1, 2, 3):
        world.check_in()
        for place, device in enumerate(world.cohort()):
            world.report(device, round=number, metrics={"loss": float(place)})
        world.coordinator = replica(world)
        world.coordinator.recover()
    state = world.coordinator.core.state("marks")
    assert (state.version, state.small) == (3, {"rounds": 3, "losses": [0.0, 1.0, 2.0, 3.0]})
    moved = from_bytes(world.blobs.open(state.named_tensors["moved"]).read())["marks"][:, 0]
    assert moved.tolist() == world.checkpoint()["marks"].tolist()
    assert [str(one) for one in verify(world.store, world.blobs, lambda plan: HAVING)] == []


def test_a_report_that_was_changed_in_the_log_gives_another_model(make_world: MakeWorld) -> None:
    """What a strategy reads of the reports is in the log, so an audit sees that it was another."""
    world = begun(make_world, strategy={"name": "fednova"})
    world.check_in()
    for place, device in enumerate(world.cohort(), 1):
        work = Work(steps=place, steps_planned=place, epochs=1.0, examples_seen=10)
        world.report(device, work=work)
    assert [str(one) for one in verify(world.store, world.blobs)] == []
    marks, tau = world.checkpoint()["marks"], np.mean([1, 2, 3, 4])
    wanted = [2.0 / 4 / steps * tau for steps in (1, 2, 3, 4)]
    np.testing.assert_allclose(sorted(marks, reverse=True), wanted, rtol=1e-6)


def test_a_coordinator_without_it_says_so(make_world: MakeWorld) -> None:
    world = begun(make_world)
    world.coordinator = replica(world, Registry())
    with pytest.raises(MissingExtension, match="the strategy lab:halving 1 is not installed here"):
        world.coordinator.recover()


def test_a_strategy_that_cannot_decide_leaves_devices_waiting_with_the_reason(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = begun(make_world)
    world.check_in()
    monkeypatch.setattr(HALVING, "fails", True)
    with world.refuses("busy", "the strategy of the plan failed: RuntimeError: no idea"):
        world.cohort()
    monkeypatch.setattr(HALVING, "fails", False)
    assert len(world.cohort()) == 4


def test_repro_no_cohort_is_drawn_where_the_strategy_cannot_decide(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = begun(make_world)
    world.check_in()
    world.report(*world.cohort())
    monkeypatch.setattr(HALVING, "fails", True)
    with pytest.raises(ExtensionError, match="the strategy of the plan failed: RuntimeError: no idea"):
        world.check_in()
    assert world.coordinator.core.state("marks").phase == "selecting"
    monkeypatch.setattr(HALVING, "fails", False)
    world.check_in()
    assert len(world.cohort()) == 4


@pytest.mark.parametrize(
    ("model", "moved", "against"),
    [
        (np.zeros(5), None, r"gives float64 [5] for a block of float32 [5]"),
        (np.zeros(4, np.float32), None, "gives float32 [4] for a block of float32 [5]"),
        ([0.0] * 5, None, "gives list for a block of float32 [5]"),
        (KeyError("mine"), None, "failed: KeyError: 'mine'"),
        (None, np.zeros(5, np.float32), "gives float32 [5] for a block of float32 [5, 1]"),
        (None, KeyError("mine"), "failed: KeyError: 'mine'"),
    ],
)
def test_a_block_that_is_none_ends_the_round_with_that_reason(
    make_world: MakeWorld, model: Any, moved: Any, against: str
) -> None:
    """It was a file that is no checkpoint, or an error that was tried again for ever."""

    def blocks(usual: Any, given: Any) -> Any:
        def read(start: int, count: int) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

        return usual if given is None else Computed(read)

    class Odd(Halving):
        def combine(self, *given: Any) -> Combined:
            made = super().combine(*given)
            tensors = {"moved": blocks(made.tensors["moved"], moved)}
            return made._replace(model=blocks(made.model, model), tensors=tensors)

    world = make_world(5)
    world.coordinator = replica(world, Registry(strategies={"lab:odd": Installed("1", Odd())}))
    cohort, named = {"select": 4, "goal": 4, "quorum": 1.0}, {"name": "lab:odd", "version": "1"}
    world.create(cohort=cohort, strategy=named, task={"steps": 6, "learning_rate": 0.5})
    world.check_in()
    world.report(*world.cohort())
    first = world.coordinator.operators.round("marks", 1)
    assert first.status == "abandoned"
    assert f"the strategy of the plan {against}" in first.reason
