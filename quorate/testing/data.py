"""The contract of all data sets, also of packages: ``class TestMine(DataContract): load = staticmethod(mine)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class DataContract:
    """``load``: what the entry point gives."""

    load: Callable[[], Any]

    def parts(self) -> list[Any]:
        found = type(self).load()
        test = getattr(found, "test", None)
        return [found.train] if test is None else [found.train, test]

    def test_there_are_as_many_inputs_as_targets(self) -> None:
        for part in self.parts():
            x, y = np.asarray(part.x), np.asarray(part.y)
            assert len(x) == len(y) > 0

    def test_it_is_the_same_each_time(self) -> None:
        for one, other in zip(self.parts(), self.parts(), strict=True):
            assert np.asarray(one.x).tobytes() == np.asarray(other.x).tobytes()
            assert np.asarray(one.y).tobytes() == np.asarray(other.y).tobytes()

    def test_both_parts_are_of_one_kind(self) -> None:
        shapes = {np.asarray(part.x).shape[1:] for part in self.parts()}
        assert len(shapes) == 1
