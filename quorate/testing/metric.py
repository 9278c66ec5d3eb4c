"""The contract of a learner's metrics, and of a loss as one: ``class TestMine(MetricContract): metric = ...; outputs =
...; targets = ...``."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.learning import states
from client_sdk.learning.measures import Measured, Measurement
from client_sdk.metrics import added


class MetricContract:
    """``metric``: an object with ``update`` and ``compute``, or a function of (outputs, targets), as a
    ``staticmethod``. ``outputs`` and ``targets``: of some ten examples or more, on which it has a value.
    ``on_devices``: whether devices may score it."""

    metric: Any
    outputs: Any
    targets: Any
    on_devices: bool = True

    def measured(self, *ends: int) -> Measured:
        """Of the examples up to the last end, in batches that end there."""
        measurement, start = Measurement({"mine": self.metric}), 0
        for stop in ends:
            measurement.update(self.outputs[start:stop], self.targets[start:stop], stop - start)
            start = stop
        return measurement.results()["mine"]

    def test_a_value_is_that_of_the_whole_set_in_any_batches(self) -> None:
        count = len(self.targets)
        whole = self.measured(count)
        assert whole.value == whole.value, "it has no value on these examples"
        for ends in ((1, 2, count), (count // 2, count), tuple(range(1, count + 1))):
            assert self.measured(*ends).value == pytest.approx(whole.value, rel=1e-5, abs=1e-7)

    def test_the_object_that_was_given_is_not_changed(self) -> None:
        first = self.measured(len(self.targets))
        assert self.measured(len(self.targets)) == first

    def test_what_devices_send_adds_up_to_the_value_of_all_their_examples(self) -> None:
        if not states.has_state(self.metric):
            return  # a function's values are averaged
        if not self.on_devices:
            assert self.measured(len(self.targets)).state is None
            return
        assert states.unaddable(self.metric) == ""
        sent, third = [], -(-len(self.targets) // 3)
        for start in range(0, len(self.targets), third):
            part = Measurement({"mine": self.metric})
            ours = slice(start, start + third)
            part.update(self.outputs[ours], self.targets[ours], len(self.targets[ours]))
            sent.append(part.results()["mine"].state)
        assert None not in sent, "its merge(other) does not add numbers of a fixed size"
        value = states.computed("mine", self.metric, added([state for state in sent if state is not None]))
        assert float(value) == pytest.approx(self.measured(len(self.targets)).value, rel=1e-5, abs=1e-7)
