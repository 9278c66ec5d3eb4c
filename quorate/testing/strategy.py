"""The contract of all strategies, also of packages.

A package that brings one runs it too: ``class TestMine(StrategyContract): strategy = MINE; given = {...}``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from client_sdk import codecs
from client_sdk.device.strategies import DeviceStrategy, Learn, Local, train_by
from client_sdk.protocol.devices import Task, TaskStrategy, Work
from client_sdk.protocol.wire import canonical
from client_sdk.tensors import Manifest, Tensors, TensorSpec, from_bytes, to_bytes
from client_sdk.tensors.manifest import shared_name
from client_sdk.update import Update
from coordinator.engine.aggregation.combining import Blocks, Sources, Updates, flat
from coordinator.engine.aggregation.registry import Installed, Registry
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.aggregation.strategy import Algorithm, Strategy
from coordinator.engine.named_tensors import MOST_SMALL
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from quorate.testing.aggregation import require_parameters

ROUNDS, DEVICES, PARAMETERS, STATISTICS = 4, 6, 40, 10


class StrategyContract:
    """``strategy``, ``given``: parameters as a plan sets them, and ``sections``: those of a plan that it goes with."""

    strategy: Strategy
    given: ClassVar[Mapping[str, float]] = {}
    sections: ClassVar[Mapping[str, Any]] = {}

    def plan(self, **sections: Any) -> Plan:
        built_in = next((name for name, one in STRATEGIES.items() if one is self.strategy), None)
        named = {"name": built_in} if built_in else {"name": "contract:it", "version": "1"}
        whole = {
            "name": "contract",
            "task": {"learner": "contract:learner", "epochs": 3},
            "cohort": {"select": DEVICES, "goal": DEVICES},
            "strategy": {**named, "parameters": dict(self.given)},
        }
        for section, fields in {**self.sections, **sections}.items():
            whole[section] = {**whole.get(section, {}), **fields}  # type: ignore[dict-item]
        return Plan.parse(whole)

    def chosen(self, plan: Plan) -> Algorithm:
        return algorithm(plan, Registry(strategies={"contract:it": Installed("1", self.strategy)}))

    def bits(self, order: Sequence[int] = tuple(range(DEVICES)), width: int = 50, masked: bool = False) -> str:
        """A digest of rounds that are played with these rows in this order: tasks, models, tensors and small states.
        ``masked``: with sums alone."""
        plan, digest, small = self.plan(), hashlib.sha256(), dict[str, Any]()
        chosen, rng = self.chosen(plan), np.random.default_rng(5)
        manifest = _manifest(chosen.shared)
        count = manifest.elements
        model = rng.normal(size=count).astype(np.float32)
        tensors = {name: np.tile(np.array(one, np.float32), (PARAMETERS, 1)) for name, one in chosen.keeps.items()}
        for version in range(ROUNDS):
            for device_class in ("", "phone"):
                digest.update(chosen.task(plan, version, small, device_class).model_dump_json().encode())
            rows = (rng.normal(size=(DEVICES, count)) * 10.0 ** rng.integers(-4, 1, (DEVICES, count))).astype(
                np.float32
            )
            weights = rng.integers(1, 30, DEVICES)
            reports = [{"steps": 1.0 + place, "loss": float(loss)} for place, loss in enumerate(rng.random(DEVICES))]
            here = list(order)
            sources: Sources = Updates.of(rows[here], width, PARAMETERS, weights[here])
            sources.tensors = manifest
            if masked:
                total = Updates.of(rows, width, PARAMETERS, weights).sum()
                sources = Sources(lambda total=total: total, manifest, PARAMETERS, DEVICES)  # type: ignore[misc]
            else:
                sources.reports = [reports[place] for place in order]
            stored = {name: flat(values) for name, values in tensors.items()}
            made = chosen.combine(flat(model), sources, stored, small, plan.settings_at(version), bytes([version]) * 32)
            assert made.tensors.keys() == chosen.keeps.keys(), "combine returns the tensors that keeps() names"
            text = canonical(dict(made.small))
            assert len(text) <= MOST_SMALL
            following = _read(made.model, width, manifest)
            tensors = {name: _read(one, width) for name, one in made.tensors.items()}
            assert (following.dtype, following.shape) == (np.float32, (count,))
            assert {name: one.shape for name, one in tensors.items()} == {
                name: (PARAMETERS, len(one)) for name, one in chosen.keeps.items()
            }
            assert all(np.isfinite(one).all() for one in (following, *tensors.values()))
            model, small = following, json.loads(text)
            for part in (model, *tensors.values()):
                digest.update(part.tobytes())
            digest.update(text)
        return digest.hexdigest()

    def test_it_says_what_it_needs(self) -> None:
        assert self.strategy.needs in ("sum", "whole")
        assert isinstance(self.strategy.version, str)
        assert self.strategy.version
        given = require_parameters(self.strategy.parameters, self.given)
        assert self.strategy.against(self.plan()) == ""
        for first in self.strategy.keeps(given).values():
            assert len(first)
            assert np.isfinite(np.array(first, np.float32)).all()

    def test_rounds_are_functions_of_their_updates_in_any_order_and_by_blocks_of_any_width(self) -> None:
        """A commit is made again after a crash, by another replica and by an audit."""
        wanted = self.bits()
        assert self.bits() == wanted, "the second time it gives other bits"
        assert self.bits(order=(3, 0, 5, 1, 4, 2)) == wanted, "the order of the updates changes bits"
        assert self.bits(width=7) == wanted, "the width of blocks changes bits"

    def test_it_has_no_state_of_its_own(self) -> None:
        before = copy.deepcopy(getattr(self.strategy, "__dict__", {}))
        self.bits()
        assert getattr(self.strategy, "__dict__", {}) == before, "what lasts is the small state and named tensors"

    def test_another_process_gives_the_same_bits(self) -> None:
        kind = type(self)
        code = f"from {kind.__module__} import {kind.__qualname__} as Its; print(Its().bits())"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        made = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.strip() == self.bits()

    def test_it_goes_with_masked_rounds_or_is_refused_before_round_1(self) -> None:
        """Of a masked round it gets the sum alone, and the same sum gives the same bits as in a plain one."""
        size = {"select": 100, "goal": 100}
        secure = {"max_norm": 1.0, "max_abs": 0.25}
        try:
            plan = self.plan(secure=secure, cohort=size, aggregation={"partial": "refuse"})
            self.chosen(plan)
        except PlanError as error:
            sentence = str(error)
        else:
            assert self.bits(masked=True) == self.bits()
            return
        assert "\n" not in sentence, "a plan that cannot have it is refused in one sentence"


def _manifest(shared: Sequence[str]) -> Manifest:
    """Of an update: its parameters, then its statistics, of which the last are the strategy's shared tensors."""
    sizes = {"parameters": PARAMETERS, "statistics": STATISTICS}
    sizes |= {shared_name(name, "parameters"): PARAMETERS for name in sorted(shared)}
    return Manifest({name: TensorSpec("F32", (size,)) for name, size in sizes.items()})


def _read(blocks: Blocks, width: int, manifest: Manifest | None = None) -> Any:
    """By blocks of one tensor at a time. ``manifest``: the tensors; None: the parameters alone."""
    places = [slice(0, PARAMETERS)] if manifest is None else manifest.slices().values()
    return np.concatenate(
        [
            blocks.read(at, min(width, place.stop - at))
            for place in places
            for at in range(place.start, place.stop, width)
        ]
    )


def _coarse(delta: Tensors) -> Tensors:
    """What a codec leaves of deltas."""
    codec = codecs.get("top-tenth@1")
    return codec.decode(codec.encode(delta, codecs.Origin(seed=0, round=1, device="d1")))


class DeviceStrategyContract:
    """The contract of the halves that devices run, also of packages: ``half``, and ``given``, every parameter."""

    half: DeviceStrategy
    given: ClassVar[Mapping[str, float]] = {}
    averaged: ClassVar[tuple[str, ...]] = ("!head.*",)

    def play(self, rounds: int = 3) -> list[Local]:
        """Rounds of one device whose updates all count, from a model of four tensors, of which one has no dimensions
        and one no values, a head, and a counter."""
        rng = np.random.default_rng(7)
        sizes = {"a.weight": (3, 4), "b.weight": (5,), "head.bias": (2,), "none": (0, 3), "scale": ()}
        model: Tensors = {name: np.asarray(rng.normal(size=size), np.float32) for name, size in sizes.items()}
        model["steps"] = np.array(3, np.int64)
        target = {name: np.asarray(rng.normal(size=size), np.float32) for name, size in sizes.items()}
        strategy = TaskStrategy(name="contract:it", version="1", parameters=dict(self.given), keeps=self.half.keeps)
        task = Task(
            learner="contract:learner", steps=4, learning_rate=0.1, mu=0.5, averaged=self.averaged, strategy=strategy
        )
        sent = Manifest.of(model).select(task.averaged)
        shared = {shared_name(name, one): np.zeros(sizes[one], np.float32) for name in self.half.shared for one in sent}

        def learn(model: Tensors, task: Task, *, offset: Tensors | None = None) -> Update:
            assert offset is None or self.half.corrects, "it corrects gradients: say corrects = True"
            for name, one in (offset or {}).items():
                assert isinstance(one, np.ndarray)
                assert one.shape == sizes[name]
            trained = Manifest.of(model).select(task.averaged)
            now = {name: model[name].copy() for name in trained}
            for _ in range(task.steps or 4 * (task.epochs or 1)):
                for name, weight in now.items():
                    gradient = weight - target[name] + np.float32(task.mu) * (weight - model[name])
                    now[name] = weight - np.float32(task.learning_rate) * (gradient + (offset or {}).get(name, 0))
            work = Work(steps=4, steps_planned=4, epochs=1.0, examples_seen=8)
            return Update({name: now[name] - model[name] for name in now}, 8, work=work, model=Manifest.of(model))

        state: Tensors = {}
        found = []
        for _ in range(rounds):
            given = {**model, **shared, **{f"kept {name}": array for name, array in state.items()}}
            before = {name: array.copy() for name, array in given.items()}
            local = train_by(self.half, Learn(learn, _coarse), {**model, **shared}, state, task)
            assert all(np.array_equal(before[name], array) for name, array in given.items()), "it changes what it gets"
            assert local.update.delta.keys() == {*sent, *shared}
            size = sum(array.nbytes for array in local.state.values())
            assert size <= self.half.state_bytes(Manifest.of(model), task), "state_bytes() says less than it keeps"
            own = self.half.own(model, local.state, task)
            assert Manifest.of(own) == Manifest.of(model)
            for name, change in local.update.delta.items():
                place = shared if name in shared else model
                place[name] = place[name] + change
            state = local.state
            found.append(local)
        return found

    def test_it_is_a_function_of_what_it_gets(self) -> None:
        before = copy.deepcopy(getattr(self.half, "__dict__", {}))
        first, second = self.play(), self.play()
        for one, other in zip(first, second, strict=True):
            assert one.update == other.update
            assert one.state.keys() == other.state.keys()
            assert all(np.array_equal(array, other.state[name]) for name, array in one.state.items())
        assert getattr(self.half, "__dict__", {}) == before, "what lasts is the state that it returns"

    def test_its_state_is_read_back_as_it_was(self) -> None:
        for local in self.play():
            assert bool(local.state) == (self.half.keeps != "nothing")
            again = from_bytes(to_bytes(local.state))
            assert all(np.array_equal(array, again[name]) for name, array in local.state.items())
