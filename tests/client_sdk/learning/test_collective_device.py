"""A torchrun group takes part in a real run as one device, and loses one of its processes in the middle of a round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from client_sdk.device.storage import read_history
from client_sdk.http.operator import OperatorClient
from client_sdk.protocol.devices import Task
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from tests.coordinator.datacenter.models import examples, steady
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

pytestmark = [pytest.mark.datacenter, pytest.mark.slow]

LEARNER = "tests.coordinator.datacenter.models:steady"
ROUNDS = 2
TASK: dict[str, Any] = {"learner": LEARNER, "batch_size": 12, "steps": 25, "learning_rate": 0.05, "seed": 4}
PLAN = {
    "name": "silo",
    "task": TASK,
    "cohort": {"select": 1, "goal": 1, "select_s": 60, "collect_s": 120},
    "finish": {"rounds": ROUNDS},
}


def ranks_of(torchrun: int) -> dict[str, psutil.Process]:
    found = {}
    for process in psutil.Process(torchrun).children(recursive=True):
        try:
            found[process.environ()["RANK"]] = process
        except (psutil.Error, KeyError):
            continue
    return found


def by_one_process(parent: Tensors, device: str, number: int) -> Tensors:
    """One round by one process: the only device's update moves the model by itself."""
    update = steady().train(parent, examples(), Task(**TASK), device=device, round=number)
    return {name: array + update.delta[name] for name, array in parent.items()}


@on_day(1, of=2)
def test_a_group_is_one_device_and_survives_the_death_of_a_rank(tmp_path: Path) -> None:
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    first = steady().initial(2)
    server = Server.start(tmp_path / "coordinator")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
        *("--nproc-per-node", "2", "--max-restarts", "2", "--monitor-interval", "0.1", "-m"),
        *("client_sdk.learning.collective", "--url", server.url, "--json", "--device", "cpu"),
        *("--token-file", server.token_file),
        *("--learner", LEARNER, "--data", str(tmp_path / "data.npz"), "--folder", str(tmp_path / "device")),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    group = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = []
    try:
        with OperatorClient(server.url) as operator:
            run = operator.create_run(PLAN, operator.upload_checkpoint(to_bytes(first)), "a test").run
            for line in group.stdout or ():
                found.append(json.loads(line))
                if found[-1]["kind"] == "training" and sum(t["kind"] == "training" for t in found) == 1:
                    time.sleep(0.2)
                    ranks_of(group.pid)["1"].kill()
                if sum(t["kind"] == "receipt" for t in found) == ROUNDS:
                    break
            while operator.run(run).status != "finished":
                time.sleep(0.05)
            line_of = operator.checkpoints(run)
            models = [from_bytes(operator.checkpoint(one.digest)) for one in line_of]
            devices = operator.devices()
        group.send_signal(signal.SIGTERM)
        group.communicate(timeout=60)
    finally:
        for process in ranks_of(group.pid).values() if group.poll() is None else ():
            process.kill()
        group.kill()
        group.wait()
        server.stop()
    assert [one.version for one in line_of] == [0, 1, 2]
    assert len(devices) == 1
    rounds = [t["round"] for t in found if t["kind"] == "training"]
    assert rounds == [1, 1, 2], "the first round was begun anew after the restart"
    assert [t["kind"] for t in found].count("withdrawn") == 0
    assert [entry.result for entry in read_history(tmp_path / "device")] == ["receipt"] * ROUNDS
    # Each round is compared from the parent that was committed: what is rounded to the checkpoint's float32 in the
    # first would grow in the steps of the second, twentyfold for some orders of the examples.
    for number, (parent, model) in enumerate(pairwise(models), start=1):
        for name, array in by_one_process(parent, devices[0].device, number).items():
            np.testing.assert_allclose(model[name], array, rtol=1e-6, atol=1e-7)
            assert np.abs(array - parent[name]).max() > 1e-3
