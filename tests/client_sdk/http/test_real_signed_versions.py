"""Secure rounds after a round in a datacenter, over real HTTP: devices go on once somebody whom their owners trust has
signed what it made."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Policy
from client_sdk.protocol.operators import RunView
from client_sdk.protocol.problems import ProblemError
from client_sdk.protocol.workers import Lease, WorkerPoll
from client_sdk.tensors import from_bytes, to_bytes
from client_sdk.update import Update
from coordinator.datacenter.agent_folder import AgentFolder
from coordinator.datacenter.trainer import TrainedCheckpoint
from coordinator.datacenter.worker import DatacenterWorker
from tests import forks
from tests.client_sdk.bounds import any_work
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.client_sdk.http.secure_clients import LEARNER, SecureFleet
from tests.client_sdk.http.test_real_secure_rounds import DEVICES, PLAN, ROUNDS, Mark
from tests.coordinator.service.conftest import Server

pytestmark = pytest.mark.slow

FAR = "This model is further from the last one that this device knows than rounds move it"
UNTRUSTED = "is of no key that this device trusts, or is of another run, version or model"


class Leap:
    """A datacenter's training that moves the model by 50 in each value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def offer(self, **polled: object) -> WorkerPoll:
        return WorkerPoll(learners={LEARNER: "1.0"}, data=("proxy",), **polled)

    def train(self, lease: Lease, checkpoint: Path, note: Any, halted: Any) -> TrainedCheckpoint:
        read, path = checkpoint.read_bytes(), self.folder / "leap.safetensors"
        path.write_bytes(to_bytes({"marks": from_bytes(read)["marks"] + np.float32(50)}))
        made, parent = hashlib.sha256(path.read_bytes()).hexdigest(), hashlib.sha256(read).hexdigest()
        return TrainedCheckpoint(path=path, digest=made, parent=parent, steps=1, examples=9, metrics={})


class Again(Mark):
    """Marks the first round in each."""

    def train(self, model: Any, data: Any, task: Any, *, round: int, **others: Any) -> Update:
        return super().train(model, data, task, round=1, **others)


def work_once(server: Server, folder: Path) -> None:
    folder.mkdir()
    with AgentFolder(folder / "worker") as agent:
        worker = DatacenterWorker(server.url, agent, Leap(folder), enrolment_token=server.worker_token, label="dc")
        worker.run(leases=1)
        worker.close()


def quorate(*words: str) -> str:
    done = forks.run(list(words))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until(look: Callable[[], RunView], holds: Callable[[RunView], object]) -> RunView:
    deadline = time.monotonic() + 60
    while not holds(view := look()):
        assert time.monotonic() < deadline, (view.exhausted, view.stalled)
        time.sleep(0.1)
    return view


def test_a_run_waits_until_what_the_datacenter_made_is_signed_and_then_goes_on(tmp_path: Path) -> None:
    server = Server.start(tmp_path / "data")
    plan = {
        **PLAN,
        "cohort": {**PLAN["cohort"], "select_s": 2},
        "datacenter": {"data": "proxy", "every": 2, "wait_s": 60},
        "finish": {"rounds": 3},
    }
    run = create(server, plan, {"marks": np.zeros((DEVICES, ROUNDS), np.float32)})
    owned = Policy(secure_only=True, secure=any_work(smallest_cohort=3, origins="usual", largest_move=3.0))
    worker = threading.Thread(target=work_once, args=(server, tmp_path / "dc"))
    worker.start()
    fleet = SecureFleet(server, tmp_path / "devices", [Again(slot) for slot in range(DEVICES)], policy=owned)
    file = tmp_path / "model.safetensors"
    try:
        with OperatorClient(server.url) as operator:

            def look() -> RunView:
                return operator.run(run)

            def signed(of: str, version: int) -> str:
                where = ("--data", str(tmp_path / "data" / "authority"))
                return quorate("authority", "sign", str(file), "--run", of, "--version", str(version), *where)

            view = until(look, lambda found: "have declined this checkpoint" in found.exhausted)
            assert view.version == 2
            file.write_bytes(operator.checkpoint(view.checkpoint))
            assert FAR in until(look, lambda found: FAR in found.stalled).stalled
            with pytest.raises(ProblemError, match="is at version 2: only that can be signed"):
                operator.sign(run, 1, signed(run, 1))
            for wrong in (signed("another", 2), signed(run, 3)):
                before = fleet.said(UNTRUSTED)
                operator.sign(run, 2, wrong)
                fleet.wait_for(None, UNTRUSTED, times=before + 6)  # told and rested, of three devices
                until(look, lambda found: UNTRUSTED in found.stalled)
                assert look().version == 2
            assert "told of the signature under version 2" in quorate(
                "run", "sign", run, signed(run, 2), "--version", "2", "--coordinator", server.url
            )
            view = wait_for_end(server, run)
        assert (view.status, view.version) == ("finished", 3)
        assert np.all(model_of(server, run)["marks"] >= 50)
    finally:
        fleet.end()
        worker.join(20)
        server.stop()
