"""A round of several groups over real HTTP: a device that sends garbage in each round costs its group alone, and the
run goes on, though its pool is its cohort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task
from client_sdk.secagg import device as secure_device
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.client_sdk.http.secure_clients import LEARNER, SecureFleet
from tests.coordinator.service.conftest import Server
from tests.coordinator.verify.history import violations

pytestmark = pytest.mark.slow

DEVICES, ROUNDS, LIAR = 9, 2, 4
PLAN: dict[str, Any] = {
    "name": "grouped",
    "task": {"learner": LEARNER, "learner_version": "1.0"},
    "cohort": {"select": DEVICES, "goal": DEVICES, "quorum": 0.5, "select_s": 20, "collect_s": 60},
    "aggregation": {"partial": "refuse"},
    "finish": {"rounds": ROUNDS, "abandoned": 1},
    "secure": {
        "max_norm": 2.0,
        "max_abs": 1.0,
        "minimum_cohort": 3,
        "groups": 3,
        "reserve": 0,
        "margin": 0,
        "exchange_s": 20,
    },
}


class Mark:
    """A learner whose update is a one-hot mark of device and round."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        mark = np.zeros((DEVICES, ROUNDS), np.float32)
        mark[self.slot, round - 1] = 1.0
        return Update({"marks": mark}, examples=len(data.x))


def test_garbage_in_each_round_costs_one_group_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked = secure_device.masked_vector

    def of(cohort: Any, place: int, secrets: Any, peers: Any, put_in: Any, tools: Any) -> bytes:
        vector = masked(cohort, place, secrets, peers, put_in, tools)
        lies = int(np.argmax(put_in.values)) // ROUNDS == LIAR
        return bytes(len(vector)) if lies else vector

    monkeypatch.setattr(secure_device, "masked_vector", of)
    server = Server.start(tmp_path / "data")
    try:
        run = create(server, PLAN, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
        fleet = SecureFleet(server, tmp_path / "devices", [Mark(slot) for slot in range(DEVICES)])
        try:
            view = wait_for_end(server, run)
        finally:
            fleet.end()
        assert (view.status, view.version) == ("finished", ROUNDS)
        marks = model_of(server, run)["marks"]
    finally:
        server.stop()
    for number in range(ROUNDS):
        counted = marks[:, number] > 0.1
        assert counted.sum() == DEVICES - 3, marks
        assert not counted[LIAR]
        np.testing.assert_allclose(marks[counted, number], 1 / 6, atol=1e-3)
    assert violations(tmp_path / "data") == []
