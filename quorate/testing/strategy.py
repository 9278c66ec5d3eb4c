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

from client_sdk.protocol.wire import canonical
from coordinator.engine.aggregation.combining import Blocks, Sources, Updates, flat
from coordinator.engine.aggregation.registry import Installed, Registry
from coordinator.engine.aggregation.strategies import STRATEGIES
from coordinator.engine.aggregation.strategy import Algorithm, Strategy
from coordinator.engine.named_tensors import MOST_SMALL
from coordinator.engine.plan import Plan, algorithm
from coordinator.engine.plan_file import PlanError
from quorate.testing.aggregation import require_parameters

ROUNDS, DEVICES, PARAMETERS, VALUES = 4, 6, 40, 50


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

    def bits(self, order: Sequence[int] = tuple(range(DEVICES)), width: int = VALUES, masked: bool = False) -> str:
        """A digest of rounds that are played with these rows in this order: tasks, models, tensors and small states.
        ``masked``: with sums alone."""
        plan, digest, small = self.plan(), hashlib.sha256(), dict[str, Any]()
        chosen, rng = self.chosen(plan), np.random.default_rng(5)
        model = rng.normal(size=VALUES).astype(np.float32)
        tensors = {name: np.tile(np.array(one, np.float32), (PARAMETERS, 1)) for name, one in chosen.keeps.items()}
        for version in range(ROUNDS):
            for device_class in ("", "phone"):
                digest.update(chosen.task(plan, version, small, device_class).model_dump_json().encode())
            rows = (rng.normal(size=(DEVICES, VALUES)) * 10.0 ** rng.integers(-4, 1, (DEVICES, VALUES))).astype(
                np.float32
            )
            weights = rng.integers(1, 30, DEVICES)
            reports = [{"steps": 1.0 + place, "loss": float(loss)} for place, loss in enumerate(rng.random(DEVICES))]
            here = list(order)
            sources: Sources = Updates.of(rows[here], width, PARAMETERS, weights[here])
            if masked:
                total = Updates.of(rows, width, PARAMETERS, weights).sum()
                sources = Sources(lambda total=total: total, sources.tensors, PARAMETERS)  # type: ignore[misc]
            else:
                sources.reports = [reports[place] for place in order]
            stored = {name: flat(values) for name, values in tensors.items()}
            made = chosen.combine(flat(model), sources, stored, small, plan.settings_at(version), bytes([version]) * 32)
            assert made.tensors.keys() == chosen.keeps.keys(), "combine returns the tensors that keeps() names"
            text = canonical(dict(made.small))
            assert len(text) <= MOST_SMALL
            following = _read(made.model, width)
            tensors = {name: _read(one, width, PARAMETERS) for name, one in made.tensors.items()}
            assert (following.dtype, following.shape) == (np.float32, (VALUES,))
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


def _read(blocks: Blocks, width: int, count: int = VALUES) -> Any:
    """By blocks of one tensor at a time, parameters first."""
    parts = []
    for start, stop in ((0, PARAMETERS), (PARAMETERS, count)):
        parts += [blocks.read(at, min(width, stop - at)) for at in range(start, stop, width)]
    return np.concatenate(parts)
