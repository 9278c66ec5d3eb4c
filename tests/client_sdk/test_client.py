"""The client against a scripted coordinator behind a real socket."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.actions import Sleep
from client_sdk.asking import Pacing
from client_sdk.client import Client, Happening
from client_sdk.problems import ProblemError, problem
from client_sdk.protocol import (
    DIGEST_HEADER,
    PROTOCOL_HEADER,
    TENSORS_MEDIA_TYPE,
    CheckIn,
    Policy,
    Task,
    content_digest,
)
from client_sdk.record import StorageError
from client_sdk.secagg.memory import Memory
from client_sdk.storage import FileStorage, MemoryStorage
from client_sdk.tensors import from_bytes, read_header
from client_sdk.transport import Interrupted, open_http, until
from client_sdk.update import Update, decode_report
from tests.client_sdk.http_script import CHECKPOINT, HttpScript, script, serving, train, trainer
from tests.client_sdk.scripted import LEARNER, TOKEN
from tests.client_sdk.secagg.attempt import header
from tests.client_sdk.secagg.fleet import Coordinator, fleet, until_masked

QUICK = Pacing(retry_s=0.02, retry_most_s=0.1, withdrawn_s=(0.01, 0.02), soon_s=(0.01, 0.02))


def client(server: HttpScript, storage: Any = None, **changes: Any) -> Client:
    settings: dict[str, Any] = {"enrolment_token": TOKEN, "pacing": QUICK, "hold_s": 5.0}
    learner = changes.pop("learner", train)
    given = changes.pop("trainer", None) or trainer(learner)
    return Client(server.url, storage if storage is not None else MemoryStorage(), given, **(settings | changes))


def test_two_rounds_over_http(tmp_path: Path) -> None:
    told: list[Happening] = []
    with serving(script(rounds=2)) as server, FileStorage(tmp_path) as storage:
        with client(server, storage, on_happening=told.append, label="ward 7") as device:
            assert device.run(rounds=2) == 2
    first = server.script.rounds[0].update
    assert first is not None
    report = decode_report(read_header(first))
    assert (report.run, report.round, report.examples, report.codec) == ("run-1", 1, 60, "float32@1")
    assert report.train_s > 0
    assert report.encode_s > 0
    assert report.fetch_s > 0
    delta = from_bytes(first)["w"]
    np.testing.assert_array_equal(delta, (np.float32(1) - np.arange(6, dtype=np.float32)) * np.float32(0.1))
    assert [happening.kind for happening in told] == [
        "enrolled",
        "waiting",
        *["assigned", "training", "trained", "receipt"] * 2,
    ]
    assert (told[-1].run, told[-1].round) == ("run-1", 2)


def test_what_each_request_carries() -> None:
    with serving(script()) as server, client(server) as device:
        device.run(rounds=1)
    assert {sent[PROTOCOL_HEADER.lower()] for _, _, sent in server.headers} == {"1"}
    assert all("authorization" in sent for _, path, sent in server.headers if path != "/v1/devices")
    (put,) = [sent for method, _, sent in server.headers if method == "PUT"]
    body = server.script.rounds[0].update
    assert body is not None
    assert put["content-length"] == str(len(body))
    assert put["content-type"] == TENSORS_MEDIA_TYPE
    assert put[DIGEST_HEADER.lower()] == content_digest(hashlib.sha256(body).hexdigest())
    assert "transfer-encoding" not in put


def test_a_checkpoint_is_downloaded_once() -> None:
    with serving(script(rounds=3)) as server, client(server) as device:
        device.run(rounds=3)
    assert sum("/checkpoints/" in path for _, path, _ in server.headers) == 1


class Crash(Exception):
    pass


@pytest.mark.parametrize("kind", ["enrolled", "waiting", "assigned", "training", "trained", "receipt"])
def test_a_device_that_dies_goes_on_from_its_folder(tmp_path: Path, kind: str) -> None:
    trained: list[int] = []

    def counted(model: Any, data: Any, task: Task) -> Update:
        trained.append(1)
        return train(model, data, task)

    def die(happening: Happening) -> None:
        if happening.kind == kind:
            raise Crash

    with serving(script(rounds=2)) as server:
        with FileStorage(tmp_path) as storage, client(server, storage, on_happening=die, learner=counted) as device:
            with pytest.raises(Crash):
                device.run(rounds=2)
        with FileStorage(tmp_path) as storage, client(server, storage, learner=counted) as device:
            device.run(rounds=2 - len(storage.history()))
            assert [entry.result for entry in storage.history()] == ["receipt", "receipt"]
    for one in server.script.rounds:
        assert set(one.sent) == {one.update}
    assert len(server.script.keys) == 1
    assert len(trained) == (3 if kind == "trained" else 2)


def test_an_unreachable_coordinator_is_told_once_and_asked_until_it_answers() -> None:
    told: list[Happening] = []
    with serving(script()) as gone:
        port = gone.port
    running: list[HttpScript] = []

    def come_back(happening: Happening) -> None:
        told.append(happening)
        if happening.kind == "trouble":
            threading.Timer(0.2, lambda: running.append(HttpScript(gone.script, port))).start()

    with client(gone, on_happening=come_back) as device:
        assert device.run(rounds=1) == 1
    running[0].close()
    troubles = [happening.text for happening in told if happening.kind == "trouble"]
    assert len(troubles) == 1
    assert f"The coordinator at {gone.url} cannot be reached" in troubles[0]
    assert "\n" not in troubles[0]


def cut(handler: Any) -> bool:
    """Close the connection without a word."""
    import socket

    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
    return True


def test_a_connection_lost_inside_the_upload_sends_the_same_bytes_again(tmp_path: Path) -> None:
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        losses = iter(range(3))

        def lose(method: str, path: str, handler: Any) -> bool:
            if method == "PUT" and next(losses, None) is not None:
                handler.rfile.read(10)
                return cut(handler)
            return False

        server.accident = lose
        with client(server, storage) as device:
            device.run(rounds=1)
    assert [method for method, _, _ in server.headers].count("PUT") == 4
    assert len(set(server.script.rounds[0].sent)) == 1


def test_a_connection_gone_stale_is_no_trouble() -> None:
    told: list[Happening] = []
    with serving(script()) as server:
        seen: set[str] = set()

        def each_first_time(method: str, path: str, handler: Any) -> bool:
            if path in seen:
                return False
            seen.add(path)
            return cut(handler)

        server.accident = each_first_time
        with client(server, on_happening=told.append) as device:
            device.run(rounds=1)
    assert len(seen) == 5
    assert [happening.text for happening in told if happening.kind == "trouble"] == []


def test_a_checkpoint_that_broke_off_is_fetched_from_where_it_was(tmp_path: Path) -> None:
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        pieces = iter([20, 50])

        def break_off(method: str, path: str, handler: Any) -> bool:
            piece = next(pieces, None) if "/checkpoints/" in path else None
            if piece is None:
                return False
            start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            handler.send_response(206 if start else 200)
            if start:
                handler.send_header("Content-Range", f"bytes {start}-{len(CHECKPOINT) - 1}/{len(CHECKPOINT)}")
            handler.send_header("Content-Length", str(len(CHECKPOINT) - start))
            handler.end_headers()
            handler.wfile.write(CHECKPOINT[start:piece])
            return cut(handler)

        server.accident = break_off
        with client(server, storage) as device:
            device.run(rounds=1)
    asked = [sent.get("range") for _, path, sent in server.headers if "/checkpoints/" in path]
    assert asked == [None, "bytes=20-", "bytes=50-"]
    assert server.script.rounds[0].update is not None


@pytest.mark.parametrize("body", [CHECKPOINT[:-1] + b"!", CHECKPOINT + b"!", CHECKPOINT[:-1]])
def test_wrong_checkpoint_bytes_are_fetched_once_more_and_then_the_device_withdraws(body: bytes) -> None:
    coordinator = script()
    offered = coordinator.offered()
    coordinator.assignment["checkpoint"] = offered.checkpoint
    coordinator.checkpoint = body
    with serving(coordinator) as server, client(server) as device:
        assert device.run(rounds=1) == 1
    assert sum("/checkpoints/" in path for _, path, _ in server.headers) == 2
    (reason,) = coordinator.rounds[0].withdrawn
    assert reason.startswith("Twice the checkpoint was not what had been announced.")


def within(limit_s: float, run: Callable[[], object]) -> object:
    started = time.monotonic()
    result = run()
    assert time.monotonic() - started < limit_s
    return result


def test_stop_ends_a_long_poll_within_a_second_and_the_coordinator_sees_it() -> None:
    stop = threading.Event()
    with serving(script(rounds=0)) as server, client(server, hold_s=60) as device:

        def stop_it() -> None:
            server.polling.wait(5)
            stop.set()

        threading.Timer(0.2, stop_it).start()
        assert within(2.0, lambda: device.run(stop=stop)) == 0
        device.close()
        assert server.left_early.wait(2)


def test_stop_ends_a_sleep_at_once() -> None:
    stop = threading.Event()

    def tell(happening: Happening) -> None:
        if happening.text == "No round needs this device now.":
            stop.set()

    with serving(script(rounds=0)) as server, client(server, hold_s=0, on_happening=tell) as device:
        assert within(2.0, lambda: device.run(stop=stop)) == 0


def test_stop_in_training_ends_after_the_step_and_the_next_run_trains_anew() -> None:
    stop = threading.Event()
    steps: list[float] = []

    class Slow:
        version = "1.0"

        def train(self, model: Any, data: Any, task: Task, *, deadline: Callable[[], float], **others: Any) -> Update:
            while deadline() > 0 and len(steps) < 10:
                steps.append(deadline())
                if len(steps) == 3:
                    stop.set()
            update = train(model, data, task)
            return Update(update.delta, 60, work=update.work.model_copy(update={"complete": deadline() > 0}))

    storage = MemoryStorage()
    with serving(script()) as server, client(server, storage, learner=Slow()) as device:
        assert device.run(rounds=1, stop=stop) == 0
        assert len(steps) == 3
        assert server.script.rounds[0].sent == []
        assert server.script.rounds[0].withdrawn == []
        assert device.run(rounds=1) == 1
    assert len(steps) == 10
    assert server.script.rounds[0].update is not None
    assert 0 < steps[0] <= 600


def test_what_is_trained_when_stop_comes_is_kept_and_sent_later(tmp_path: Path) -> None:
    stop = threading.Event()
    trained: list[int] = []

    def last(model: Any, data: Any, task: Task) -> Update:
        trained.append(1)
        stop.set()
        return train(model, data, task)

    with serving(script()) as server:
        with FileStorage(tmp_path) as storage, client(server, storage, learner=last) as device:
            assert device.run(rounds=1, stop=stop) == 0
            assert server.script.rounds[0].sent == []
        with FileStorage(tmp_path) as storage, client(server, storage, learner=last) as device:
            assert device.run(rounds=1) == 1
    assert len(trained) == 1
    assert server.script.rounds[0].update is not None


def test_a_fleet_shares_one_http_client_without_a_limit_and_stops_together() -> None:
    stop = threading.Event()
    with serving(script(rounds=0)) as server, open_http(server.url) as http:
        fleet = [client(server, http=http, hold_s=60) for _ in range(120)]
        threads = [threading.Thread(target=device.run, kwargs={"stop": stop}) for device in fleet]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and sum(path == "/v1/checkins" for _, path, _ in server.headers) < 120:
            time.sleep(0.02)
        assert sum(path == "/v1/checkins" for _, path, _ in server.headers) >= 120
        stop.set()
        for thread in threads:
            thread.join(5)
        assert not any(thread.is_alive() for thread in threads)
        for device in fleet:
            device.close()
        assert not http.is_closed


def test_reads_can_be_interrupted_only_where_they_were_told_to() -> None:
    with serving(script()) as server, open_http(server.url) as http:
        with until(lambda: True), pytest.raises(Interrupted):
            http.get("/v1/checkpoints/x")
        assert http.get("/v1/checkpoints/x").status_code == 401


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


def test_a_learner_that_gives_no_update_is_told() -> None:
    with serving(script()) as server, client(server, learner=lambda model, data, task: {"w": 1}) as device:
        device.run(rounds=1)
    assert server.script.rounds[0].withdrawn == [f"LearnerError: The learner {LEARNER} gave a dict, not an Update."]


def test_an_assignment_with_an_unknown_field_is_declined() -> None:
    coordinator = script()
    genuine = coordinator.handle

    def newer(method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        status, answer = genuine(method, path, token, body)
        if path == "/v1/checkins" and coordinator.now is not None:
            answer = answer.replace(b'"learner":', b'"quantum":true,"learner":')
        return status, answer

    coordinator.handle = newer  # type: ignore[method-assign]
    stop = threading.Event()
    told: list[Happening] = []

    def tell(happening: Happening) -> None:
        told.append(happening)
        if happening.kind == "trouble":
            stop.set()

    with serving(coordinator) as server, client(server, on_happening=tell) as device:
        device.run(stop=stop)
    (reason,) = coordinator.rounds[0].withdrawn
    assert "task.quantum" in reason
    assert "does not know what the plan asks for" in told[-1].text


def test_an_answer_that_is_not_understood_is_asked_for_again() -> None:
    coordinator = script()
    genuine = coordinator.handle
    nonsense = iter([b"not json", b'{"kind": "dance"}', b"[]", b"{}"])

    def odd(method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
        answer = next(nonsense, None) if path == "/v1/checkins" else None
        return (200, answer) if answer is not None else genuine(method, path, token, body)

    coordinator.handle = odd  # type: ignore[method-assign]
    with serving(coordinator) as server, client(server) as device:
        assert device.run(rounds=1) == 1
    assert coordinator.rounds[0].update is not None


def test_policy_travels_with_the_check_in_and_holds_on_the_device() -> None:
    with serving(script()) as server, client(server, policy=Policy(secure_only=True)) as device:
        device.run(rounds=1)
    assert "secure aggregation only" in server.script.rounds[0].withdrawn[0]


def test_after_a_secure_round_of_a_learner_a_plain_plan_is_refused_and_said_so_at_check_in(tmp_path: Path) -> None:
    """What the device remembers, not what it is started with, decides; another coordinator makes no difference."""
    asked: list[CheckIn] = []
    with FileStorage(tmp_path) as storage:
        storage.save_secure(Memory(learners=frozenset({LEARNER, "not:installed"})))
        coordinator = script()
        genuine = coordinator.handle

        def listening(method: str, path: str, token: str, body: bytes) -> tuple[int, bytes]:
            if path == "/v1/checkins":
                asked.append(CheckIn.model_validate_json(body))
            return genuine(method, path, token, body)

        coordinator.handle = listening  # type: ignore[method-assign]
        with serving(coordinator) as server, client(server, storage) as device:
            device.run(rounds=1)
        assert asked[0].policy.secure_learners == (LEARNER,)
        assert "its owner alone can let it take a plain plan again" in coordinator.rounds[0].withdrawn[0]
        assert coordinator.rounds[0].started == 0
        storage.save_secure(storage.load_secure().plain_again(LEARNER))
        with serving(script()) as server, client(server, storage) as device:
            device.run(rounds=1)
        assert server.script.rounds[0].update is not None


def test_secrets_of_an_expired_attempt_go_when_the_device_starts(tmp_path: Path) -> None:
    members, authority = fleet(3)
    until_masked(Coordinator(header(dimension=5, expires_at=1000), authority, members))
    with serving(script()) as server, FileStorage(tmp_path) as storage:
        storage.save_secure(members[0].memory)
        with client(server, storage) as device:
            device.run(rounds=1)
        assert storage.load_secure().live == {}
        assert storage.load_secure().learners == members[0].memory.learners


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


def test_waits_are_drawn_from_their_window() -> None:
    slept: list[float] = []

    class Stop:
        def is_set(self) -> bool:
            return False

        def wait(self, seconds: float) -> bool:
            slept.append(seconds)
            return False

    with serving(script()) as server, client(server, chance=lambda: 0.25) as device:
        device._stop = Stop()  # type: ignore[assignment]
        device._perform(Sleep(min_s=2, max_s=6, reason="wait"))
    assert slept == [3.0]


def test_a_url_that_is_none_is_refused_in_a_sentence() -> None:
    for url in ("", "localhost:8470", "ftp://host", "http://"):
        with pytest.raises(ValueError, match="is not a coordinator's URL"):
            Client(url, MemoryStorage(), trainer())
