"""What one thread adds up: at once what a user's function gives, later and together what our own learners give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.protocol import Task, Work
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from simulation import simulate
from simulation.engines import SerialEngine, partial
from simulation.engines.kernel import Kernel
from tests.simulation.engines.test_processes import NET, Marks, clients, digests, inputs, plan


def test_a_learner_may_use_its_buffer_again() -> None:
    """What is handed over counts with the values that it has then."""
    buffer = np.zeros(16, np.float32)

    def reusing(model: Tensors, data: Any, task: Task) -> Update:
        number = int(inputs(data)[0, 0])
        buffer[:] = 0
        buffer[number] = 1.0
        return Update({"w": buffer}, len(inputs(data)), work=Work(steps=1))

    marks = Marks(reusing)
    engine = SerialEngine(marks.kernel)
    engine.begin(1, marks.model)
    for number in (3, 5):
        engine.result(marks.job(number))
    mean = engine.total(marks.weights(3, 5)).mean()
    assert mean.tolist() == [pytest.approx({3: 4 / 10, 5: 6 / 10}.get(lane, 0.0)) for lane in range(16)]


@pytest.mark.parametrize("held", [0, 100, 1 << 20])
def test_how_many_wait_changes_no_bit(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    expected = digests(simulate(plan(), NET, clients(), progress=False))
    monkeypatch.setattr(partial, "_HELD", held)
    added: list[int] = []
    together = partial.ExactSum.add_together

    def counted(total: Any, updates: Any) -> None:
        added.append(len(updates))
        together(total, updates)

    monkeypatch.setattr(partial.ExactSum, "add_together", counted)
    assert digests(simulate(plan(), NET, clients(), progress=False)) == expected
    assert (max(added) > 1) == (held > 100), "67 values an update"
    assert sum(added) == 3 * 6


def test_a_decoded_update_is_ours_and_a_users_is_not() -> None:
    assert not Marks().kernel._makes_its_own
    assert Marks(task={"codec": "float16@1"}).kernel._makes_its_own
    assert Kernel(plan(), NET, clients(), Marks().kernel.delta)._makes_its_own
