"""The contract of all ways to draw cohorts, also of packages.

A package that brings one runs this on it too: ``class TestMine(SelectionContract): selection = MINE; given = {...}``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest

from coordinator.engine.selection import READS, Choice, Known, Row, Selection
from quorate.testing.aggregation import require_parameters

_ELSEWHERE = """
import importlib, json, sys
print(json.dumps(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])().cohorts()))
"""


class SelectionContract:
    """``selection``, and ``given``: parameters as a plan sets them."""

    selection: Selection
    given: ClassVar[Mapping[str, float]] = {}

    @property
    def choice(self) -> Choice:
        given = require_parameters(self.selection.parameters, self.given)
        return Choice(name="contract:selection", selection=self.selection, settings=given)

    def rows(self, count: int) -> Sequence[Row]:
        """A pool of so many devices. Of a third of them nothing is known."""
        devices = [f"device-{number:03d}" for number in range(count)]
        known = {
            name: Known(number * 37 % 11 / 8, 1.0 + number * 17 % 13, 1 + number % 4, 1 + number % 5)
            for number, name in enumerate(devices)
            if number % 3
        }
        return self.choice.rows([(name, 1 + number * 29 % 50) for number, name in enumerate(devices)], known)

    def cohorts(self) -> list[list[str]]:
        """Of several pools and rounds."""
        sizes = ((0, 3), (1, 3), (5, 5), (40, 8), (40, 1))
        return [
            self.choice.draw(self.rows(count), k, seed=11, round=number) for count, k in sizes for number in (6, 7, 99)
        ]

    def test_it_says_what_it_reads(self) -> None:
        assert set(self.selection.reads) <= set(READS)
        assert len(set(self.selection.reads)) == len(self.selection.reads)
        assert isinstance(self.selection.varies, bool)
        require_parameters(self.selection.parameters, self.given)

    @pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40])
    def test_a_cohort_is_of_devices_that_wait_and_as_large_as_it_says(self, count: int) -> None:
        rows = self.rows(count)
        for number in (6, 7, 8, 1000):
            found = self.choice.draw(rows, 8, seed=3, round=number)
            assert found == sorted(set(found))
            assert {row[0] for row in rows}.issuperset(found)
            assert len(found) == min(8, count) or self.selection.varies

    def test_the_order_of_the_pool_changes_nothing(self) -> None:
        rows = self.rows(40)
        for other in (rows[::-1], [*rows[17:], *rows[:17]]):
            for number in (6, 7):
                draws = (self.choice.draw(pool, 8, seed=3, round=number) for pool in (rows, other))
                assert next(draws) == next(draws)

    def test_a_draw_can_be_repeated_here_and_in_another_process(self) -> None:
        here = self.cohorts()
        assert self.cohorts() == here
        kind = type(self)
        command = [sys.executable, "-c", _ELSEWHERE, kind.__module__, kind.__name__]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
        elsewhere = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=120)
        assert json.loads(elsewhere.stdout) == here
