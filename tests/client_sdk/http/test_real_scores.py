"""Metrics with a state over real devices: the coordinator adds the states up, and who has the learner computes them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torchmetrics.classification import MulticlassF1Score

from client_sdk.data import Data, Examples
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import FileStorage
from client_sdk.http import evaluator
from client_sdk.http.client import Client
from client_sdk.http.operator import OperatorClient
from client_sdk.learners import Catalogue, LearnerTrainer, values_of
from client_sdk.learning import Learner
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import from_bytes, to_bytes
from tests.client_sdk.learning.metrics import F1
from tests.coordinator.service.conftest import Server

pytestmark = pytest.mark.slow

NAME = "tests:scores"
LEARNER = Learner(
    model=lambda: nn.Linear(2, 3),
    loss=nn.functional.cross_entropy,
    metrics={"own": F1(), "macro": MulticlassF1Score(3)},
)
PLAN: dict[str, Any] = {
    "name": "scores",
    "task": {"learner": NAME, "score_held_out": True, "learning_rate": 0.5},
    "cohort": {"select": 2, "goal": 2, "select_s": 30, "collect_s": 120},
    "finish": {"rounds": 2},
}


def part(seed: int, size: int) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(rng.normal(size=(size, 2)).astype("f4"), np.full(size, seed) % 3)


PARTS = [part(1, 5), part(2, 11)]


def test_devices_scores_are_those_of_all_their_examples(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    try:
        with OperatorClient(server.url) as operator:
            run = operator.create_run(PLAN, operator.upload_checkpoint(to_bytes(LEARNER.initial(0))), "a test").run
            stop = threading.Event()
            threads = [threading.Thread(target=live, args=(server, tmp_path, n, stop)) for n in range(2)]
            for thread in threads:
                thread.start()

            def score(model: Any) -> Score:
                return LEARNER.evaluate(model, PARTS[0])

            evaluator.follow(operator, run, score, values=lambda states: values_of(LEARNER, states), poll_s=0.1)
            stop.set()
            for thread in threads:
                thread.join(10)
            line = operator.checkpoints(run)
            found = {(one.version, one.name): one.value for one in operator.metrics(run) if one.source == "devices"}
            whole = tuple(np.concatenate([getattr(one, side) for one in PARTS]) for side in ("x", "y"))
            for version in (0, 1):
                model = from_bytes(operator.checkpoint(line[version].digest))
                wanted = LEARNER.evaluate(model, whole).metrics
                got = {name: value for (of, name), value in found.items() if of == version}
                assert got == pytest.approx(wanted, rel=1e-5)
            assert operator.round(run, 1).states.keys() == {"own", "macro"}
            assert operator.rounds(run)[0].states == {}
            report = MetricReport(
                version=0, digest=line[0].digest, source="devices", score=Score(examples=1, metrics={"loss": 0.0})
            )
            with pytest.raises(ProblemError, match="reserved for the scores that devices report"):
                operator.report_metrics(run, report)
    finally:
        server.stop()


def live(server: Server, folder: Path, number: int, stop: threading.Event) -> None:
    data = Data(PARTS[number], PARTS[number])
    trainer = LearnerTrainer(Catalogue({NAME: LEARNER}, installed=()), data)
    with (
        FileStorage(folder / f"d{number}", durable=False) as storage,
        Client(
            server.url, storage, trainer, enrolment_token=server.token, pacing=Pacing(retry_s=0.05, retry_most_s=0.3)
        ) as client,
    ):
        client.run(stop=stop)
