"""Images that a crafted first model prints into a sum, with the rules of devices off and on: by the stock perceptron,
and once over the wire, with stock ``quorate serve`` and clients."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import cli
from client_sdk.data import Data, Examples
from client_sdk.device.contribution import first_made, sketch_for
from client_sdk.device.policy import work_refusal
from client_sdk.device.requests import Pacing
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client, Notice
from client_sdk.http.operator import OperatorClient
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import Policy, Task
from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg.consent import SecurePolicy
from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import GraphRule, Terms
from client_sdk.secagg.memory import Known
from client_sdk.secagg.origin import First, require_origin, require_reachable
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from simulation.learners import mnist_mlp
from tests.attacks.imprint import HIDDEN, Images, crafted, data_of, read_out, summed
from tests.client_sdk.bounds import any_work
from tests.coordinator.service.conftest import Server
from tests.rotating import on_day

DEVICES, EXAMPLES = 64, 20
LEARNER = "quorate:mnist-mlp"
ONE = Task(learner=LEARNER, steps=1, batch_size=1, learning_rate=1.0)
"""One step on one image of each device."""
WHOLE = Task(learner=LEARNER, epochs=1, batch_size=EXAMPLES // 2, learning_rate=0.001)
"""What the floors under the work leave: whole passes over 20 images, in two steps that move the model hardly at all."""
SECRET = b"s" * 32
SEEDS = range(10)


def first_model() -> Tensors:
    found: Tensors = mnist_mlp().initial(0)
    return found


def printed(task: Task, seed: int, rows: int = HIDDEN) -> int:
    """How many images of how many devices' data are read out of one sum."""
    examples = 1 if task is ONE else EXAMPLES
    private, first = data_of(seed, DEVICES, examples), first_model()
    model = crafted(first, DEVICES * examples, rows)
    return read_out(model, summed(mnist_mlp(), model, private, task), private, rows)


def first_seen(model: Tensors, version: int) -> First:
    return first_made(first_model(), to_bytes(model), version, sketch_for(SECRET, to_bytes(first_model())))


def rows_taken(max_norm: float, version: int, policy: SecurePolicy) -> int:
    """How many rows of a model can imprint that a device takes for this version of an honest run, at first sight."""
    rule, far = GraphRule(profile="strict"), {"move": max_norm, "move_each": max_norm}
    terms = Terms(q=16, max_norm=max_norm, max_abs=1.0, weight_cap=1, rule=rule, minimum_cohort=64, **far)
    most = 0
    for rows in range(1, HIDDEN + 1):
        model = crafted(first_model(), DEVICES * EXAMPLES, rows)
        now = Known(version=version, at=0.0, sketch=sketch_for(SECRET, to_bytes(model)))
        try:
            require_reachable(terms, policy, None, first_seen(model, version), now, 50_890)
        except Refusal:
            continue
        most = rows
    return most


@pytest.mark.slow
def test_without_rules_single_images_are_in_a_sum() -> None:
    assert printed(ONE, 0) >= 10
    assert printed(WHOLE, 0) >= 10, "the floors under the work do not stop a layer that is made for them"


@on_day(1, of=2)
def test_the_crafted_work_and_the_crafted_first_model_are_refused() -> None:
    assert work_refusal(ONE, SecureBounds(), EXAMPLES)
    assert not work_refusal(WHOLE, SecureBounds(), EXAMPLES)
    model = crafted(first_model(), DEVICES * EXAMPLES)
    with pytest.raises(Refusal, match="not the one that the learner makes"):
        require_origin(first_seen(model, 0), b"", SecurePolicy(), bytes(32))
    with pytest.raises(Refusal, match="does not know where"):
        require_origin(First(can_make=True), b"", SecurePolicy(), bytes(32))


@pytest.mark.slow
def test_a_crafted_later_model_is_as_strong_as_it_may_be_far() -> None:
    """An attacker that knows the rules says that rounds have led to it. docs/secure-promises.md has the figures."""
    near = rows_taken(0.5, 1, SecurePolicy())
    assert near <= 2
    assert near == 0 or printed(WHOLE, 0, near) <= 1
    wide = rows_taken(6.0, 1, SecurePolicy())
    assert wide == HIDDEN, "the demo's clip is wider than this model"


@pytest.mark.soak
def test_the_figures_of_ten_seeds() -> None:
    assert all(printed(task, seed) >= 10 for task in (ONE, WHOLE) for seed in SEEDS)
    for max_norm, version in ((0.5, 1), (1.0, 1), (2.0, 1), (6.0, 1), (0.5, 10), (1.0, 10)):
        rows = rows_taken(max_norm, version, SecurePolicy())
        found = [printed(WHOLE, seed, rows) if rows else 0 for seed in SEEDS]
        assert max(found) <= rows
        assert max_norm > 0.5 or version > 1 or max(found) <= 1


# ------------------------------------------------------------ over the wire


def plan(task: Task, devices: int, **secure: Any) -> dict[str, Any]:
    work = task.model_dump(include={"learner", "steps", "epochs", "batch_size", "learning_rate"}, exclude_none=True)
    return {
        "name": "imprint",
        "task": work,
        "cohort": {"select": devices, "goal": devices, "quorum": 1.0, "select_s": 60, "collect_s": 120},
        "aggregation": {"partial": "refuse"},
        "secure": {"max_norm": 50.0, "max_abs": 1.0, "q": 24, "minimum_cohort": devices, "reserve": 0, **secure},
        "finish": {"rounds": 1},
    }


class Fleet:
    """Stock clients of these data, in threads."""

    def __init__(self, server: Server, data: list[tuple[Images, Any]], bounds: SecureBounds) -> None:
        self.told: list[Notice] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._live, args=(server, one, bounds)) for one in data]
        for thread in self._threads:
            thread.start()

    def _live(self, server: Server, data: tuple[Images, Any], bounds: SecureBounds) -> None:
        trainer = LearnerTrainer(Catalogue([LEARNER]), Data(Examples(*data)))
        with Client(
            server.url,
            MemoryStorage(),
            trainer,
            enrolment_token=server.token,
            policy=Policy(secure=bounds),
            pacing=Pacing(retry_s=0.05, retry_most_s=0.3),
            on_notice=self.told.append,
        ) as client:
            client.run(stop=self._stop)

    def wait_for(self, text: str, times: int) -> None:
        deadline = time.monotonic() + 120
        while sum(text in str(told) for told in list(self.told)) < times:
            assert time.monotonic() < deadline, [str(told) for told in self.told]
            time.sleep(0.05)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)


@on_day(1, of=2)
def test_over_the_wire_images_are_in_the_sum_without_rules_and_no_device_trains_with_them(tmp_path: Path) -> None:
    devices, server = 8, Server.start(tmp_path / "data")
    model = crafted(first_model(), devices)
    try:
        with OperatorClient(server.url) as operator:
            digest = operator.upload_checkpoint(to_bytes(model))
            run = operator.create_run(plan(ONE, devices), digest, "made").run
            private = data_of(0, devices, 1)
            fleet = Fleet(server, private, any_work(smallest_cohort=devices, largest_batch=1.0))
            try:
                fleet.wait_for("under masks.", devices)
            finally:
                fleet.end()
            after = from_bytes(operator.checkpoint(operator.checkpoints(run)[-1].digest))
            assert read_out(model, after, private) >= 3

            run = operator.create_run(plan(WHOLE, devices, first_seed=0), digest, "made").run
            fleet = Fleet(server, data_of(0, devices, EXAMPLES), SecureBounds(smallest_cohort=devices))
            try:
                fleet.wait_for("not the one that the learner makes", devices)
            finally:
                fleet.end()
            assert [one.version for one in operator.checkpoints(run)] == [0]
    finally:
        server.stop()


@on_day(0, of=2)
def test_a_signed_model_is_answered_also_by_devices_that_join_later_and_one_that_another_key_signed_by_none(
    tmp_path: Path,
) -> None:
    devices, server, far = 3, Server.start(tmp_path / "data"), {"largest_move": 3.0, "origins": "usual"}
    file, first = tmp_path / "model.safetensors", first_model()
    file.write_bytes(to_bytes({name: array * np.float32(1.01) for name, array in first.items()}))
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main(["authority", "sign", str(file), "--data", str(server.folder / "authority")])
    signature = out.getvalue().strip()
    bounds = any_work(smallest_cohort=devices, **far)
    two = {"cohort": {"select": 3, "goal": 3, "quorum": 1.0, "select_s": 5, "collect_s": 20}, "finish": {"rounds": 2}}
    made = {**plan(WHOLE, devices, max_norm=2.0, exchange_s=5.0, first_signature=signature), **two}
    try:
        with OperatorClient(server.url) as operator:
            digest = operator.upload_checkpoint(file.read_bytes())
            run = operator.create_run(made, digest, "signed").run
            for version in (1, 2):  # other devices in each round, of which the second ones see version 1 first
                fleet = Fleet(server, data_of(version, devices, EXAMPLES), bounds)
                try:
                    fleet.wait_for("under masks.", devices)
                finally:
                    fleet.end()
                assert operator.checkpoints(run)[-1].version == version
            forged = {**made, "secure": {**made["secure"], "first_signature": "00" * 64}}
            run = operator.create_run(forged, digest, "forged").run
            fleet = Fleet(server, data_of(3, devices, EXAMPLES), bounds)
            try:
                fleet.wait_for("of no key that this device trusts", devices)
            finally:
                fleet.end()
    finally:
        server.stop()
