"""The client, the operator's client and the evaluator against a real ``quorate serve``, also one that dies in
between."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import RolledBackList
from client_sdk.data import Data, Examples
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import FileStorage
from client_sdk.http import evaluator
from client_sdk.http.authority import leave, rotate
from client_sdk.http.client import Client, Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Score, Task
from client_sdk.protocol.operators import Funnel
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from client_sdk.update import Update
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = pytest.mark.slow

LEARNER = "tests:mark"
DEVICES = 4
ROUNDS = 3
WEIGHTS = (10, 20, 30, 40)
PLAN: dict[str, Any] = {
    "name": "marks",
    "task": {"learner": LEARNER, "learner_version": "1.0"},
    "cohort": {"select": DEVICES, "goal": DEVICES, "select_s": 30, "collect_s": 120},
    "finish": {"rounds": ROUNDS},
}
QUICK = Pacing(retry_s=0.05, retry_most_s=0.3)


class Mark:
    """A learner whose update is a one-hot mark of device and round: counting twice would show in the model."""

    version = "1.0"

    def __init__(self, slot: int, value: float = 1.0) -> None:
        self.slot = slot
        self.value = value
        self.trainings = 0

    def train(self, model: Tensors, data: Any, task: Task, *, round: int, **others: Any) -> Update:
        mark = np.zeros((DEVICES, ROUNDS), np.float32)
        self.trainings += 1
        mark[self.slot, round - 1] = self.value
        return Update({"marks": mark}, examples=len(data.x))


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def create(server: Server, **sections: Any) -> str:
    with OperatorClient(server.url) as operator:
        model = {"marks": np.zeros((DEVICES, ROUNDS), np.float32), "steps": np.array(5, np.int64)}
        return operator.create_run({**PLAN, **sections}, operator.upload_checkpoint(to_bytes(model)), "a test").run


class Fleet:
    """Devices in threads, each with a folder of its own."""

    def __init__(self, server: Server, folder: Path, value: float = 1.0) -> None:
        self.learners = [Mark(slot, value) for slot in range(DEVICES)]
        self.server = server
        self.folder = folder
        self.stop = threading.Event()
        self.notices: list[tuple[int, Notice]] = []
        self.threads = [threading.Thread(target=self._live, args=(slot,)) for slot in range(DEVICES)]
        for thread in self.threads:
            thread.start()

    def _live(self, slot: int) -> None:
        data = Data(Examples(np.zeros((WEIGHTS[slot], 1)), np.zeros(WEIGHTS[slot])))
        trainer = LearnerTrainer(Catalogue({LEARNER: self.learners[slot]}, installed=()), data)
        with (
            FileStorage(self.folder / f"d{slot}", durable=False) as storage,
            Client(
                self.server.url,
                storage,
                trainer,
                enrolment_token=self.server.token,
                pacing=QUICK,
                on_notice=lambda notice: self.notices.append((slot, notice)),
            ) as client,
        ):
            client.run(stop=self.stop)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self.threads)


def check_line(url: str, run: str, folder: Path) -> None:
    """Every device's mark of every round is in the last model once, by its weight; and every device remembers it."""
    with OperatorClient(url) as operator:
        line = operator.checkpoints(run)
        assert [checkpoint.version for checkpoint in line] == list(range(ROUNDS + 1))
        model = from_bytes(operator.checkpoint(line[-1].digest))
        total = sum(WEIGHTS)
        expected = np.repeat(np.array(WEIGHTS, np.float32)[:, None] / np.float32(total), ROUNDS, axis=1)
        np.testing.assert_allclose(model["marks"], expected, rtol=1e-6)
        assert model["steps"] == 5
        plan_digest = operator.run(run).plan_digest
    for slot in range(DEVICES):
        with FileStorage(folder / f"d{slot}") as storage:
            history = storage.history()
        assert [(entry.round, entry.result) for entry in history] == [(n + 1, "receipt") for n in range(ROUNDS)]
        assert {entry.plan_digest for entry in history} == {plan_digest}
        assert all(entry.weight == WEIGHTS[slot] or entry.reason for entry in history)


@on_day(0, of=2)
def test_a_run_with_an_evaluator_from_first_to_last(real: Server, tmp_path: Path) -> None:
    run = create(real)
    fleet = Fleet(real, tmp_path)
    try:
        with OperatorClient(real.url) as operator:
            scored: list[int] = []
            view = evaluator.follow(
                operator,
                run,
                lambda model: Score(examples=9, metrics={"marks": float(model["marks"].sum())}),
                on_score=lambda checkpoint, score: scored.append(checkpoint.version),
                poll_s=0.1,
            )
            assert view.status == "finished"
            assert scored == [0, 1, 2, 3]
            assert [round(metric.value, 4) for metric in operator.metrics(run)] == [0, 1, 2, 3]
            kinds = [event.kind for event in operator.events(run)]
            assert len(kinds) == view.seq
            assert {device.label for device in operator.devices()} == {""}
    finally:
        fleet.end()
    check_line(real.url, run, tmp_path)


@on_day(1, of=2)
def test_a_coordinator_that_is_killed_and_started_again_costs_only_time(real: Server, tmp_path: Path) -> None:
    run = create(real)
    fleet = Fleet(real, tmp_path)
    again: Server | None = None
    try:
        with OperatorClient(real.url) as operator:
            for event in operator.events(run):
                if event.kind == "reported" or operator.run(run).rounds_committed:
                    break
        real.stop(signal.SIGKILL)
        again = Server.start(real.folder, port=urlsplit(real.url).port or 0)
        with OperatorClient(again.url) as operator:
            for _ in operator.events(run):
                pass
            assert operator.run(run).status == "finished"
    finally:
        fleet.end()
    check_line(again.url, run, tmp_path)
    again.stop()


def test_repro_an_update_that_is_refused_as_invalid_is_trained_once(real: Server, tmp_path: Path) -> None:
    """Four devices trained it 789 times in two rounds, and the status said that nothing was refused."""
    sections = {"finish": {"rounds": ROUNDS, "abandoned": 1}, "aggregation": {"weight_cap": 2**20}}
    run = create(real, cohort={**PLAN["cohort"], "goal": 1}, **sections)
    fleet = Fleet(real, tmp_path, value=10_000)
    try:
        with OperatorClient(real.url) as operator:
            while operator.run(run).status == "running":
                time.sleep(0.05)
            time.sleep(0.5)
            view, (ended,) = operator.run(run), operator.rounds(run)
    finally:
        fleet.end()
    assert [learner.trainings for learner in fleet.learners] == [1] * DEVICES
    assert ended.funnel == Funnel(waiting=DEVICES, selected=DEVICES, training=DEVICES, refused=DEVICES)
    assert ended.departures.startswith(
        "4 updates were refused: the delta of 'marks': a value of magnitude 10000 is above "
    )
    assert view.status == "paused"
    assert view.reason == f"the round was abandoned, because {ended.reason}. {ended.departures}"
    for slot in range(DEVICES):
        with FileStorage(tmp_path / f"d{slot}") as storage:
            (entry,) = storage.history()
        assert entry.result == "refused"
        assert entry.reason.startswith("the delta of 'marks': a value of magnitude 10000 is above ")


def test_a_token_that_was_not_given_and_an_unknown_run_are_errors(real: Server, tmp_path: Path) -> None:
    trainer = LearnerTrainer(Catalogue({LEARNER: Mark(0)}, installed=()), ([0], [0]))
    known = EnrolmentToken.parse(real.token)
    guess = EnrolmentToken(known.url, known.authority, bytes(16)).text
    with FileStorage(tmp_path / "d") as storage, Client(real.url, storage, trainer, enrolment_token=guess) as client:
        with pytest.raises(ProblemError) as refused:
            client.run()
    assert refused.value.kind == "enrolment-refused"
    with OperatorClient(real.url) as operator, pytest.raises(ProblemError) as unknown:
        operator.run("nothing")
    assert unknown.value.kind == "unknown-run"


def test_the_list_is_served_on_and_a_device_takes_no_older_one_also_after_a_restart(
    real: Server, tmp_path: Path
) -> None:
    trainer = LearnerTrainer(Catalogue({LEARNER: Mark(0)}, installed=()), ([0], [0]))
    stop = threading.Event()

    def seen(notice: Notice) -> None:
        if notice.kind == "waiting":
            stop.set()

    with FileStorage(tmp_path / "d") as storage:
        with Client(
            real.url, storage, trainer, enrolment_token=real.token, on_notice=seen, hold_s=0, pacing=QUICK
        ) as client:
            client.run(stop=stop)
            first = client.revocations()
            first.require_current(time.time())
        assert storage.load_revocations() == first
        storage.save_revocations(replace(first, counter=first.counter + 10**9))
    with FileStorage(tmp_path / "d") as storage, Client(real.url, storage, trainer) as client:
        with pytest.raises(RolledBackList, match="is older than"):
            client.revocations()
        kept = storage.load_revocations()
        assert kept is not None
        assert kept.counter == first.counter + 10**9


def test_a_device_rotates_its_key_and_leaves_a_real_coordinator(real: Server, tmp_path: Path) -> None:
    trainer = LearnerTrainer(Catalogue({LEARNER: Mark(0)}, installed=()), ([0], [0]))

    def wait_once(storage: FileStorage) -> None:
        stop = threading.Event()
        with Client(
            real.url,
            storage,
            trainer,
            enrolment_token=real.token,
            label="ward 7",
            on_notice=lambda notice: stop.set() if notice.kind == "waiting" else None,
            hold_s=0,
        ) as client:
            client.run(stop=stop)

    with FileStorage(tmp_path / "d") as storage, OperatorClient(real.url) as operator:
        wait_once(storage)
        (before,) = operator.devices()
        assert (before.label, before.state) == ("ward 7", "away")
        rotate(storage)
        wait_once(storage)
        (after,) = operator.devices()
        assert after.device == before.device
        rotate(storage)
        kept = leave(storage)
        assert kept.coordinator.startswith("At the coordinator: the id,")
        (left,) = operator.devices()
        assert (left.device, left.label, left.state) == (before.device, "", "left")
        assert storage.load() is None
        wait_once(storage)
        assert len(operator.devices()) == 2
