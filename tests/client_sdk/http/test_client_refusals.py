"""What the client refuses, and what goes wrong around it: learners, answers that cannot be read, disks, policy."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.record import StorageError
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http.client import Client, Notice
from client_sdk.protocol.devices import CheckIn, Policy, Task
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.secagg.memory import Memory
from client_sdk.update import Update
from tests.client_sdk.device.scripted import LEARNER
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_script import script, serving, trainer
from tests.client_sdk.secagg.attempt import header
from tests.client_sdk.secagg.fleet import Coordinator, fleet, until_masked


def test_a_device_too_old_ends_with_the_coordinators_sentence() -> None:
    coordinator = script()
    sentence = "This coordinator speaks protocol 2 to 3, the device 1: upgrade the device's quorate package."
    coordinator.interfere = lambda method, path: problem("protocol-version", sentence)
    with serving(coordinator) as server, client(server) as device:
        with pytest.raises(ProblemError, match="upgrade the device"):
            device.run()
    assert len(server.headers) == 1


def test_something_else_at_that_address_ends_a_new_device_with_a_sentence() -> None:
    with serving(script()) as server:

        def page(method: str, path: str, handler: Any) -> bool:
            handler.send_response(404)
            handler.send_header("Content-Length", "13")
            handler.end_headers()
            handler.wfile.write(b"<html></html>")
            return True

        server.accident = page
        with client(server) as device, pytest.raises(ProblemError, match="HTTP status 404"):
            device.run()


def test_failing_training_withdraws_with_type_and_words_and_logs_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(model: Any, data: Any, task: Task) -> Update:
        raise FloatingPointError("the loss is\nnot finite")

    with (
        caplog.at_level(logging.ERROR, "quorate.device"),
        serving(script()) as server,
        client(server, learner=broken) as device,
    ):
        assert device.run(rounds=1) == 1
    assert server.script.rounds[0].withdrawn == ["FloatingPointError: the loss is not finite"]
    assert "raise FloatingPointError" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_never_leaves_the_device(value: float) -> None:
    delta = np.array([0, 1, 2, value, 4, 5], np.float32)

    def diverging(model: Any, data: Any, task: Task) -> Update:
        return Update({"w": delta}, examples=60)

    with serving(script()) as server, client(server, learner=diverging) as device:
        device.run(rounds=1)
    assert server.script.rounds[0].sent == []
    (reason,) = server.script.rounds[0].withdrawn
    assert reason.startswith("NotFinite: ")


def test_a_learner_that_gives_no_update_is_an_error() -> None:
    with serving(script()) as server, client(server, learner=lambda model, data, task: {"w": 1}) as device:
        device.run(rounds=1)
    assert server.script.rounds[0].withdrawn == [f"LearnerError: The learner {LEARNER} gave a dict, not an Update."]


def test_an_assignment_with_an_unknown_field_is_declined() -> None:
    coordinator = script()
    genuine = coordinator.handle

    def newer(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
        status, answer = genuine(method, path, signer, body)
        if path == "/v1/checkins" and coordinator.now is not None:
            answer = answer.replace(b'"learner":', b'"quantum":true,"learner":')
        return status, answer

    coordinator.handle = newer  # type: ignore[method-assign]
    stop = threading.Event()
    found: list[Notice] = []

    def tell(notice: Notice) -> None:
        found.append(notice)
        if notice.kind == "trouble":
            stop.set()

    with serving(coordinator) as server, client(server, on_notice=tell) as device:
        device.run(stop=stop)
    (reason,) = coordinator.rounds[0].withdrawn
    assert "task.quantum" in reason
    assert "does not know what the plan asks for" in found[-1].text


def test_an_answer_that_is_not_understood_is_asked_for_again() -> None:
    coordinator = script()
    genuine = coordinator.handle
    nonsense = iter([b"not json", b'{"kind": "dance"}', b"[]", b"{}"])

    def odd(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
        answer = next(nonsense, None) if path == "/v1/checkins" else None
        return (200, answer) if answer is not None else genuine(method, path, signer, body)

    coordinator.handle = odd  # type: ignore[method-assign]
    with serving(coordinator) as server, client(server) as device:
        assert device.run(rounds=1) == 1
    assert coordinator.rounds[0].update is not None


def test_policy_travels_with_the_check_in_and_holds_on_the_device() -> None:
    with serving(script()) as server, client(server, policy=Policy(secure_only=True)) as device:
        device.run(rounds=1)
    assert "secure aggregation only" in server.script.rounds[0].withdrawn[0]


def test_after_a_secure_round_a_plain_plan_is_refused_and_the_check_in_tells_it(tmp_path: Path) -> None:
    """What the device remembers, not what it is started with, decides; another coordinator makes no difference."""
    asked: list[CheckIn] = []
    with FileStorage(tmp_path) as storage:
        storage.keep(lambda _: Memory(plain=frozenset({"not:installed"})))
        coordinator = script()
        genuine = coordinator.handle

        def listening(method: str, path: str, signer: str, body: bytes) -> tuple[int, bytes]:
            if path == "/v1/checkins":
                asked.append(CheckIn.model_validate_json(body))
            return genuine(method, path, signer, body)

        coordinator.handle = listening  # type: ignore[method-assign]
        with serving(coordinator) as server, client(server, storage) as device:
            device.run(rounds=1)
        assert asked[0].policy.plain == ()
        assert "its owner alone can let its data go in clear for" in coordinator.rounds[0].withdrawn[0]
        assert coordinator.rounds[0].started == 0
        storage.keep(lambda newest: newest.plain_again(LEARNER))
        with serving(script()) as server, client(server, storage) as device:
            device.run(rounds=1)
        assert server.script.rounds[0].update is not None


def test_secrets_of_an_expired_attempt_go_when_the_device_starts(tmp_path: Path) -> None:
    members, authority = fleet(3)
    until_masked(Coordinator(header(dimension=5, expires_at=1000), authority, members))
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        storage.keep(lambda _: members[0].memory)
        with client(server, storage) as device:
            device.run(rounds=1)
        assert storage.load_secure().live == {}
        assert storage.load_secure().plain == members[0].memory.plain == frozenset()


def test_a_full_disk_on_the_device_withdraws(tmp_path: Path) -> None:
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        (tmp_path / "checkpoints").write_text("in the way")
        with client(server, storage) as device:
            device.run(rounds=1)
    assert server.script.rounds[0].withdrawn[0].startswith("This device cannot keep the checkpoint: ")


def test_a_storage_that_fails_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        (tmp_path / "record.json.tmp").mkdir()
        with client(server, storage) as device, pytest.raises(StorageError, match="cannot be used"):
            device.run(rounds=1)
    assert server.headers == []


def test_a_url_that_is_none_is_refused_in_a_sentence() -> None:
    for url in ("", "localhost:8470", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="is not a coordinator's URL"):
            Client(url, MemoryStorage(), trainer())
