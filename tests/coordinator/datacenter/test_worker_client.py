"""The worker against a real ``quorate serve``: trains, keeps its lease, commits, returns it, and gets errors."""

from __future__ import annotations

import hashlib
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.actions import Certify, Reply
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import read_record
from client_sdk.http.client import Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.workers import Lease, WorkerPoll
from client_sdk.tensors import from_bytes, to_bytes
from coordinator.datacenter.agent_folder import AgentFolder
from coordinator.datacenter.trainer import Halted, TrainedCheckpoint, TrainingFailed
from coordinator.datacenter.worker import DatacenterWorker
from tests.client_sdk.http.http_authority import authority
from tests.coordinator.service.conftest import Server, server

__all__ = ["server"]

pytestmark = pytest.mark.slow

QUICK = Pacing(retry_s=0.05, retry_most_s=0.3, withdrawn_s=(0.05, 0.1))
MODEL = {"weights": np.zeros(1000, np.float32), "batches": np.array(3, np.int64)}


class Trainer:
    """Adds one to each weight, in so many steps of 10 ms. ``spoils`` makes one training go wrong."""

    def __init__(self, folder: Path, run: str, steps: int = 3) -> None:
        self.folder = folder
        self.run = run
        self.steps = steps
        self.spoils: list[Callable[[], None]] = []
        self.leases: list[Lease] = []
        self.halted = False

    def offer(self, **polled: object) -> WorkerPoll:
        return WorkerPoll(learners={f"tests:{self.run}": "1"}, data=("proxy",), nproc=2, **polled)

    def train(
        self, lease: Lease, checkpoint: Path, note: Callable[[int, dict[str, float]], None], halted: Callable[[], bool]
    ) -> TrainedCheckpoint:
        self.leases.append(lease)
        if self.spoils:
            self.spoils.pop(0)()
        for step in range(self.steps):
            if halted():
                self.halted = True
                raise Halted
            note(step + 1, {"loss": 1 / (step + 1)})
            time.sleep(0.01)
        model = from_bytes(checkpoint.read_bytes())
        path = self.folder / "result.safetensors"
        trained = to_bytes({**model, "weights": model["weights"] + np.float32(1)})
        path.write_bytes(trained)
        parent = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
        digest = hashlib.sha256(trained).hexdigest()
        return TrainedCheckpoint(
            path=path, digest=digest, parent=parent, steps=self.steps, examples=99, metrics={"loss": 0.25}
        )


class Center:
    """A run whose rounds go to the datacenter, and a worker for it."""

    def __init__(self, server: Server, folder: Path, run: str, steps: int = 3, **plan: Any) -> None:
        self.operator = OperatorClient(server.url)
        init = self.operator.upload_checkpoint(to_bytes(MODEL))
        section = {"data": "proxy", "every": 1, "lease_s": 4, "wait_s": 60}
        body = {
            "name": run,
            "task": {"learner": f"tests:{run}"},
            "datacenter": section,
            "finish": {"rounds": 2},
            **plan,
        }
        self.run = self.operator.create_run(body, init).run
        self.trainer = Trainer(folder, run, steps)
        self.notices: list[Notice] = []
        self.folder = AgentFolder(folder / "worker")
        self.worker = DatacenterWorker(
            server.url,
            self.folder,
            self.trainer,
            enrolment_token=server.worker_token,
            label=run,
            pacing=QUICK,
            on_notice=self.notices.append,
        )

    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]


@pytest.fixture
def center(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Center]]:
    made: list[Center] = []

    def make(run: str, **more: Any) -> Center:
        made.append(Center(server, tmp_path, run, **more))
        return made[-1]

    yield make
    for one in made:
        one.worker.close()
        one.folder.close()
        one.operator.close()


def test_a_run_is_trained_to_its_end_in_the_datacenter(center: Callable[..., Center]) -> None:
    dc = center("trained")
    assert dc.worker.run(leases=2) == 2
    view = dc.operator.run(dc.run)
    assert (view.status, view.reason, view.version) == ("finished", "reached 2 rounds", 2)
    model = from_bytes(dc.operator.checkpoint(view.checkpoint))
    assert set(model["weights"].tolist()) == {2.0}
    assert model["batches"] == 3
    assert [lease.fence for lease in dc.trainer.leases] == [1, 2]
    assert dc.kinds()[0] == "enrolled"
    assert [kind for kind in dc.kinds() if kind in ("leased", "training", "committed")] == [
        "leased", "training", "committed", "leased", "training", "committed",
    ]  # fmt: skip
    rounds = dc.operator.rounds(dc.run)
    assert {(row.kind, row.because, row.status) for row in rounds} == {
        ("datacenter", "every version is made in the datacenter, by plan", "committed")
    }


def test_heartbeats_keep_a_lease_longer_than_it_lasts_without_them(center: Callable[..., Center]) -> None:
    dc = center("long", steps=550)
    assert dc.worker.run(leases=1) == 1
    assert dc.kinds()[-1] == "committed"
    assert "progress" in dc.kinds()
    view = dc.operator.round(dc.run, 1)
    assert view.attempt == 1, "one lease of 4 s was enough for 5.5 s of training"


def test_a_training_that_fails_is_reported_and_the_fleet_has_its_turn(center: Callable[..., Center]) -> None:
    dc = center("fails")

    def fail() -> None:
        raise TrainingFailed("the loss is not finite at step 7")

    dc.trainer.spoils = [fail]
    assert dc.worker.run(leases=1) == 1
    ended = dc.operator.round(dc.run, 1)
    assert (ended.status, ended.reason.partition(": ")[2]) == ("abandoned", "the loss is not finite at step 7")
    assert dc.operator.run(dc.run).kind == "federated"
    assert dc.kinds()[-1] in ("failed", "trouble")


def test_a_bug_of_the_trainer_is_a_failed_training_with_its_words(center: Callable[..., Center]) -> None:
    dc = center("bug")
    dc.trainer.spoils = [lambda: [][0]]  # type: ignore[list-item]
    dc.worker.run(leases=1)
    assert "IndexError: list index out of range" in dc.operator.round(dc.run, 1).reason


def test_a_worker_that_is_stopped_gives_its_round_back_at_once(center: Callable[..., Center]) -> None:
    dc = center("stopped", steps=100_000)
    stop = threading.Event()
    thread = threading.Thread(target=dc.worker.run, kwargs={"stop": stop})
    thread.start()
    until(lambda: dc.trainer.leases and dc.operator.run(dc.run).phase == "training")
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert dc.trainer.halted
    assert dc.operator.run(dc.run).phase == "leasing"
    assert dc.kinds()[-1] == "given-back"


def test_a_run_that_is_stopped_stops_the_training(center: Callable[..., Center]) -> None:
    dc = center("halted", steps=100_000)
    thread = threading.Thread(target=dc.worker.run, kwargs={"leases": 1})
    thread.start()
    until(lambda: bool(dc.trainer.leases))
    dc.operator.stop(dc.run)
    thread.join(10)
    assert not thread.is_alive()
    assert dc.trainer.halted
    assert dc.notices[-1].text.startswith("The lease of round 1 of halted is lost: ")


def test_a_restarted_worker_takes_its_round_over(server: Server, center: Callable[..., Center], tmp_path: Path) -> None:
    dc = center("again", steps=100_000)
    stop = threading.Event()
    thread = threading.Thread(target=dc.worker.run, kwargs={"stop": stop})
    thread.start()
    until(lambda: bool(dc.trainer.leases))
    trainer = Trainer(tmp_path, dc.run)
    with DatacenterWorker(server.url, dc.folder, trainer, pacing=QUICK) as second:
        assert second.run(leases=1) == 1
    assert [lease.fence for lease in trainer.leases] == [2]
    stop.set()
    thread.join(10)
    line = dc.operator.checkpoints(dc.run)
    assert [row.version for row in line][:2] == [0, 1]
    assert dc.operator.round(dc.run, 1).attempt == 2


def test_a_second_agent_with_the_same_certificate_waits_for_the_first_and_says_so(
    server: Server, center: Callable[..., Center], tmp_path: Path
) -> None:
    dc = center("twice", steps=100_000)
    stops = [threading.Event(), threading.Event()]
    threads = [threading.Thread(target=dc.worker.run, kwargs={"stop": stops[0]})]
    threads[0].start()
    until(lambda: bool(dc.trainer.leases))
    trainer, answer = Trainer(tmp_path, dc.run), list[Notice]()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "worker" / "record.json", other)
    with DatacenterWorker(
        server.url, AgentFolder(other), trainer, pacing=QUICK, hold_s=0.5, on_notice=answer.append
    ) as second:
        threads.append(threading.Thread(target=second.run, kwargs={"leases": 1, "stop": stops[1]}))
        threads[1].start()
        until(lambda: any("which another process has with this worker's certificate" in found.text for found in answer))
        assert dc.kinds().count("lost") == 0
        assert (trainer.leases, dc.operator.round(dc.run, 1).attempt) == ([], 1)
        stops[0].set()
        threads[1].join(15)
        assert [lease.fence for lease in trainer.leases] == [2], "given back by the first"
        stops[1].set()
    for thread in threads:
        thread.join(10)
    assert dc.operator.round(dc.run, 1).attempt == 2


def test_who_may_be_a_worker(server: Server, tmp_path: Path) -> None:
    folder, trainer = AgentFolder(tmp_path / "w"), Trainer(tmp_path, "none")
    with pytest.raises(ValueError, match="one begins with qe1_"):
        DatacenterWorker(server.url, folder, trainer, enrolment_token="guess")
    for token, sentence in ((server.token, "is for a device; a worker needs"), (None, "has no certificate")):
        with DatacenterWorker(server.url, folder, trainer, enrolment_token=token, pacing=QUICK) as worker:
            with pytest.raises(ProblemError, match=sentence):
                worker.run()


def test_a_worker_that_an_operator_revoked_is_refused_and_its_key_is_for_its_owner_only(
    server: Server, tmp_path: Path
) -> None:
    folder, trainer = tmp_path / "w", Trainer(tmp_path, "none")
    with DatacenterWorker(
        server.url, AgentFolder(folder), trainer, enrolment_token=server.worker_token, label="lab"
    ) as worker:
        worker.check()
        assert stat.S_IMODE((folder / "record.json").stat().st_mode) == 0o600
        record = read_record(folder)
        assert record is not None
        assert record.registered is not None
        with OperatorClient(server.url) as operator:
            (view,) = [one for one in operator.workers() if one.worker == record.registered.device]
            assert (view.label, view.state) == ("lab", "idle")
            operator.revoke_worker(view.worker)
        with pytest.raises(ProblemError, match="revoked by an operator"):
            worker.check()


def test_a_trouble_that_lasts_is_told_once_and_says_when_it_is_tried_again(tmp_path: Path) -> None:
    told: list[Notice] = []
    with authority("worker") as own, AgentFolder(tmp_path) as folder:
        with DatacenterWorker(
            "http://127.0.0.1:9",
            folder,
            Trainer(tmp_path, "none"),
            enrolment_token=own.text,
            pacing=QUICK,
            on_notice=told.append,
        ) as worker:
            stop = threading.Event()
            threading.Timer(1.0, stop.set).start()
            assert worker.run(stop=stop) == 0
    assert [notice.kind for notice in told] == ["enrolled", "trouble"]
    assert "cannot be reached" in told[1].text
    assert "Trying again in 0 s." in told[1].text


class StoppedOnceCertified(DatacenterWorker):
    def _certify(self, action: Certify) -> Reply:
        reply = super()._certify(action)
        self._stop.set()
        return reply


def test_what_a_stopped_worker_was_about_to_save_is_saved(tmp_path: Path) -> None:
    with authority("worker") as own, AgentFolder(tmp_path) as folder:
        trainer = Trainer(tmp_path, "none")
        with StoppedOnceCertified("http://127.0.0.1:9", folder, trainer, enrolment_token=own.text) as worker:
            assert worker.run() == 0
        record = folder.load()
    assert record is not None
    assert record.certificate


def test_check_does_not_wait_for_a_coordinator_that_does_not_answer(tmp_path: Path) -> None:
    with authority("worker") as own:
        with DatacenterWorker(
            "http://127.0.0.1:9", AgentFolder(tmp_path), Trainer(tmp_path, "none"), enrolment_token=own.text
        ) as one:
            with pytest.raises(ProblemError, match="cannot be reached") as refused:
                one.check()
    assert refused.value.kind == "busy"


def until(true: Callable[[], object], seconds: float = 15) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it does not come"
        time.sleep(0.02)
