"""A private run under masks over real HTTP: the coordinator opens sums with their noise, and reads nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.protocol.devices import Task
from client_sdk.secagg.header import AttemptHeader
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.store import open_store
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.client_sdk.http.secure_clients import LEARNER, SecureFleet
from tests.coordinator.service.conftest import Server
from tests.coordinator.verify.history import violations
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

DEVICES, ROUNDS, VALUES, NOISE = 6, 2, 2000, 3.0
PLAN: dict[str, Any] = {
    "name": "private",
    "task": {"learner": LEARNER, "learner_version": "1.0"},
    "cohort": {
        "select": DEVICES, "goal": DEVICES - 1, "quorum": 0.8, "select_s": 20, "collect_s": 60, "most_rounds": ROUNDS
    },
    "aggregation": {"partial": "refuse"},
    "finish": {"rounds": ROUNDS},
    "secure": {"max_norm": 1.0, "max_abs": 0.2, "minimum_cohort": 3, "reserve": 0, "margin": 0, "exchange_s": 20},
    "privacy": {"mechanism": "distributed", "clip": 1.0, "noise": NOISE, "delta": 1e-6},
}  # fmt: skip


class Whole:
    """A learner whose update is longer than the clip; the last device's fails, and tells what it has seen."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        if self.slot == DEVICES - 1:
            raise ValueError("the secret is xylophone")
        return Update({"w": np.full(VALUES, 5.0, np.float32)}, examples=len(data.x), metrics={"loss": 0.125})


@on_day(1, of=2)
def test_a_private_run_under_masks(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    try:
        run = create(server, PLAN, {"w": np.zeros(VALUES, np.float32)})
        fleet = SecureFleet(server, tmp_path / "devices", [Whole(slot) for slot in range(DEVICES)])
        try:
            view = wait_for_end(server, run)
        finally:
            fleet.end()
        assert (view.status, view.version) == ("finished", ROUNDS)
        assert (view.privacy.rounds, view.privacy.rounds_planned) == (ROUNDS, ROUNDS)
        model = model_of(server, run)["w"].astype(np.float64)
        events = server.http.get(f"/v1/runs/{run}/events").text
    finally:
        server.stop()
    for secret in ("xylophone", "loss"):
        assert secret not in events
    # Of 5 devices 4 must sign and 2 may collude: 2 have all of the noise, and 5 have added theirs.
    goal = DEVICES - 1
    assert float(model.mean()) == pytest.approx(ROUNDS / math.sqrt(VALUES), abs=0.3), "each is clipped to 1"
    assert float(model.std()) == pytest.approx(NOISE * math.sqrt(goal / 2 * ROUNDS) / goal, rel=0.1)
    store = open_store(f"sqlite:///{tmp_path / 'data' / 'quorate.sqlite3'}")
    try:
        logged = [(row.kind, row.body) for row in store.events(run, 0)]
    finally:
        store.close()
    headers = [AttemptHeader.parse(bytes.fromhex(body["header"])) for kind, body in logged if kind == "Announced"]
    assert {(header.noise, header.divisor) for header in headers} == {(NOISE, goal)}
    left = {body["reason"] for kind, body in logged if kind in ("Withdrew", "Declined")}
    assert left == {"This device does not take part in this round."}
    assert violations(tmp_path / "data") == []
