"""A private run of a real coordinator, which dies between rounds: a device is in a noised sum, and nowhere else."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.data import Data, Examples
from client_sdk.device.data_ledger import LedgerFile
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import FileStorage
from client_sdk.http.client import Client
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.privacy.accounting import rho_of
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.blobs import FileBlobs
from coordinator.store import open_store
from coordinator.verify import verify
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

LEARNER, DEVICES, ROUNDS, VALUES = "tests:whole", 5, 3, 400
PLAN: dict[str, Any] = {
    "name": "private",
    "task": {"learner": LEARNER},
    "cohort": {
        "select": DEVICES, "goal": DEVICES, "quorum": 0.8, "select_s": 3, "collect_s": 15, "most_rounds": ROUNDS
    },
    "aggregation": {"weighting": "equal"},
    "finish": {"rounds": ROUNDS},
    "retention": {"rounds": 100},
    "privacy": {"clip": 1.0, "noise": 2.0, "delta": 1e-6},
}  # fmt: skip


class Whole:
    """A learner whose update is far longer than the clip; the last device's fails, and tells what it has seen."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        if self.slot == DEVICES - 1:
            raise ValueError("the secret is xylophone")
        return Update({"w": np.full(VALUES, 5.0, np.float32)}, examples=17 + self.slot, metrics={"loss": 0.125})


@on_day(0, of=2)
def test_a_private_run_that_is_killed_between_its_rounds(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    port = int(server.url.rsplit(":", 1)[1])
    run = create(server, PLAN, {"w": np.zeros(VALUES, np.float32)})
    stop, url, token = threading.Event(), server.url, server.token

    def live(slot: int) -> None:
        data = Data(Examples(np.zeros((17 + slot, 1)), np.zeros(17 + slot)))
        trainer = LearnerTrainer(Catalogue({LEARNER: Whole(slot)}, installed=()), data)
        with (
            FileStorage(tmp_path / f"d{slot}", durable=False) as storage,
            Client(
                url, storage, trainer, enrolment_token=token, pacing=Pacing(retry_s=0.05, retry_most_s=0.3)
            ) as client,
        ):
            client.run(stop=stop)

    threads = [threading.Thread(target=live, args=(slot,)) for slot in range(DEVICES)]
    for thread in threads:
        thread.start()
    try:
        server.stop(signal.SIGKILL)
        server = Server.start(tmp_path / "data", port=port)
        view = wait_for_end(server, run)
        assert (view.status, view.version) == ("finished", ROUNDS)
        assert (view.privacy.rounds, view.privacy.rounds_planned) == (ROUNDS, ROUNDS)
        assert view.privacy.epsilon == pytest.approx(4.44, abs=0.01)
        events = server.http.get(f"/v1/runs/{run}/events").text
        rounds = server.http.get(f"/v1/runs/{run}/rounds").text
        metrics = server.http.get(f"/v1/runs/{run}/metrics").text
        model = model_of(server, run)["w"]
    finally:
        stop.set()
        server.stop()
        for thread in threads:
            thread.join(60)
    for shown in (events, rounds, metrics):
        assert "xylophone" not in shown
        assert "loss" not in shown
    step = np.linalg.norm(model)
    noise = 2.0 / DEVICES * np.sqrt(VALUES * ROUNDS)
    assert 0.7 * noise < step < 1.3 * noise + ROUNDS, "clipped to 1 a device and round, with noise in each value"
    store = open_store(f"sqlite:///{tmp_path / 'data' / 'quorate.sqlite3'}")
    try:
        assert list(verify(store, FileBlobs(tmp_path / "data" / "blobs"))) == []
        logged = [(row.kind, row.body) for row in store.events(run, 0)]
        seeds = [body["digest"] for kind, body in logged if kind == "Seeded"]
        assert len(seeds) == len(set(seeds)) == ROUNDS
        reports = [body for kind, body in logged if kind == "Reported"]
        assert {(body["examples"], str(body.get("metrics", {}))) for body in reports} == {(1, "{}")}
        spent = [LedgerFile(tmp_path / f"d{slot}" / "ledger.json", durable=False).read() for slot in range(DEVICES)]
        assert [one.rho for one in spent] == [rho_of(2.0, one.answers) if one.answers else 0 for one in spent]
        assert sum(one.answers for one in spent) >= len(reports) == ROUNDS * (DEVICES - 1), "never less than was sent"
        assert spent[-1].answers == 0, "what failed to train costs nothing"
        left = {body["reason"] for kind, body in logged if kind == "Withdrew"}
        assert left == {"This device does not take part in this round."}
    finally:
        store.close()
