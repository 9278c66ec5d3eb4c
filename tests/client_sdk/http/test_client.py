"""The client against a scripted coordinator behind a real socket: rounds, crashes, connections that break."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.device.actions import Failed, Sketch, Sketched, Sleep
from client_sdk.device.states import Candidate, key_of
from client_sdk.device.storage import FileStorage
from client_sdk.http.client import Notice
from client_sdk.protocol.devices import CheckpointRef, Policy, Task, TaskStrategy
from client_sdk.protocol.names import (
    DIGEST_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    TENSORS_MEDIA_TYPE,
    content_digest,
)
from client_sdk.secagg.nearness import distance
from client_sdk.tensors import from_bytes, read_header, to_bytes
from client_sdk.update import Update, decode_report
from tests.client_sdk.device.test_policy import assignment
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_script import CHECKPOINT, LEARNER, HttpScript, script, serving, train


def test_two_rounds_over_http(tmp_path: Path) -> None:
    found: list[Notice] = []
    with serving(script(rounds=2)) as server, FileStorage(tmp_path) as storage:
        with client(server, storage, on_notice=found.append, label="ward 7") as device:
            began = time.monotonic()
            assert device.run(rounds=2) == 2
            took_s = time.monotonic() - began
    first = server.script.rounds[0].update
    assert first is not None
    report = decode_report(read_header(first))
    assert (report.run, report.round, report.examples, report.codec) == ("run-1", 1, 60, "float32@1")
    assert report.train_s > 0
    assert report.encode_s > 0
    assert report.fetch_s > 0
    assert report.fetch_s + report.train_s + report.encode_s < took_s
    delta = from_bytes(first)["w"]
    np.testing.assert_array_equal(delta, (np.float32(1) - np.arange(6, dtype=np.float32)) * np.float32(0.1))
    assert [notice.kind for notice in found] == [
        "enrolled",
        "waiting",
        *["assigned", "training", "trained", "receipt"] * 2,
    ]
    assert (found[-1].run, found[-1].round) == ("run-1", 2)


def test_what_each_request_carries() -> None:
    with serving(script()) as server, client(server) as device:
        device.run(rounds=1)
    assert {sent[PROTOCOL_HEADER.lower()] for _, _, sent in server.headers} == {str(PROTOCOL_VERSION)}
    assert not [sent for _, _, sent in server.headers if "authorization" in sent]
    assert len(server.signatures) == len(server.headers)
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

    def die(notice: Notice) -> None:
        if notice.kind == kind:
            raise Crash

    with serving(script(rounds=2)) as server:
        with FileStorage(tmp_path) as storage, client(server, storage, on_notice=die, learner=counted) as device:
            with pytest.raises(Crash):
                device.run(rounds=2)
        with FileStorage(tmp_path) as storage, client(server, storage, learner=counted) as device:
            device.run(rounds=2 - len(storage.history()))
            assert [entry.result for entry in storage.history()] == ["receipt", "receipt"]
    for one in server.script.rounds:
        assert set(one.sent) == {one.update}
    assert len(server.script.known) == 1
    assert len(trained) == (3 if kind == "trained" else 2)


def test_an_unreachable_coordinator_is_reported_once_and_asked_until_it_answers() -> None:
    found: list[Notice] = []
    with serving(script()) as gone:
        port = gone.port
    running: list[HttpScript] = []

    def come_back(notice: Notice) -> None:
        found.append(notice)
        if notice.kind == "trouble":
            threading.Timer(0.2, lambda: running.append(HttpScript(gone.script, port))).start()

    with client(gone, on_notice=come_back) as device:
        assert device.run(rounds=1) == 1
    running[0].close()
    troubles = [notice.text for notice in found if notice.kind == "trouble"]
    assert len(troubles) == 1
    assert f"The coordinator at {gone.url} cannot be reached" in troubles[0]
    assert "\n" not in troubles[0]


def test_trouble_that_lasts_is_reported_again_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    asleep = Sleep(min_s=0, max_s=0, reason="It is full.", trouble=True)
    with serving(script()) as server, client(server, on_notice=lambda _: found.append(now)) as device:
        monkeypatch.setattr(device, "_now", lambda: now)
        for now in (1000.0, 1059.5, 1061.0, 1100.0):  # noqa: B007
            device._perform(asleep)
    assert found == [1000.0, 1061.0]


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
    found: list[Notice] = []
    with serving(script()) as server:
        seen: set[str] = set()

        def each_first_time(method: str, path: str, handler: Any) -> bool:
            if path in seen:
                return False
            seen.add(path)
            return cut(handler)

        server.accident = each_first_time
        with client(server, on_notice=found.append) as device:
            device.run(rounds=1)
    assert len(seen) == 5
    assert [notice.text for notice in found if notice.kind == "trouble"] == []


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


@pytest.mark.parametrize("given", [f"bytes 0-{len(CHECKPOINT) - 1}/{len(CHECKPOINT)}", None])
def test_a_part_that_begins_elsewhere_is_not_appended(tmp_path: Path, given: str | None) -> None:
    """A cache between gives the whole file in answer to a range, with status 206: it takes the place of the part."""
    with serving(script()) as server, FileStorage(tmp_path) as storage:

        def answer(method: str, path: str, handler: Any) -> bool:
            if "/checkpoints/" not in path:
                return False
            resumed = "Range" in handler.headers
            handler.send_response(206 if resumed else 200)
            if resumed and given is not None:
                handler.send_header("Content-Range", given)
            handler.send_header("Content-Length", str(len(CHECKPOINT)))
            handler.end_headers()
            handler.wfile.write(CHECKPOINT if resumed else CHECKPOINT[:20])
            return True if resumed else cut(handler)

        server.accident = answer
        with client(server, storage) as device:
            device.run(rounds=1)
    asked = [sent.get("range") for _, path, sent in server.headers if "/checkpoints/" in path]
    assert asked == [None, "bytes=20-"]
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


def test_a_checkpoint_that_is_no_model_ends_the_round_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that stopped here would stop again at each start, as long as the round is under way."""
    with serving(script()) as server, client(server) as device:
        monkeypatch.setattr(device._storage.checkpoints, "get", lambda digest: b"no tensors")
        reply = device._perform(Sketch(assignment=assignment(secure=True)))
    assert isinstance(reply, Failed)
    assert "this is not a safetensors file" in reply.reason


class Counts:
    """A learner that calls a tensor a statistic whose name does not say it."""

    def train(self, model: Any, data: Any, task: Task) -> Update:
        return train(model, data, task)

    def roles(self) -> dict[str, str]:
        return {"seen": "statistic"}


def sketched(storage: Any, learner: Any, **changes: Any) -> bytes:
    """What a new program of the device sketches of the model after these changes."""
    body = to_bytes({"w": np.ones(6, np.float32), "seen": np.ones(6, np.float32), **changes})
    ref = CheckpointRef(version=0, digest=hashlib.sha256(body).hexdigest(), bytes=len(body))
    with serving(script()) as server, client(server, storage, learner=learner) as device:
        with storage.checkpoints.download(ref) as file:
            file.write(body)
        about = assignment(secure=True, learner=LEARNER).changed(checkpoint=ref)
        reply = device._perform(Sketch(assignment=about))
    assert isinstance(reply, Sketched), reply
    return reply.sketch


def test_a_device_that_left_and_enrolled_again_knows_which_models_are_near(tmp_path: Path) -> None:
    with FileStorage(tmp_path) as storage:
        before = sketched(storage, train)
        storage.forget()
        after = sketched(storage, train, w=np.full(6, 1.001, np.float32))
        assert 0 < distance(before, after) < 0.01
    with FileStorage(tmp_path / "another") as storage:
        assert distance(before, sketched(storage, train)) > 0.1, "by a secret of its own"


def test_what_the_learner_calls_a_statistic_makes_no_model_look_far(tmp_path: Path) -> None:
    far = np.full(6, 1e3, np.float32)
    with FileStorage(tmp_path) as storage:
        assert sketched(storage, Counts()) == sketched(storage, Counts(), seen=far)
        assert distance(sketched(storage, train), sketched(storage, train, seen=far)) > 100, "a function says nothing"


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


@pytest.mark.parametrize(("report_within_s", "spare_s"), [(600, 10), (100, 5)])
def test_training_ends_early_enough_to_send_the_update(report_within_s: float, spare_s: float) -> None:
    """A twentieth of the time, at most 10 s, is left for encoding and sending: trained to the very end, it is late."""
    left: list[float] = []

    class Patient:
        version = "1.0"

        def train(self, model: Any, data: Any, task: Task, *, deadline: Callable[[], float], **others: Any) -> Update:
            left.append(deadline())
            return train(model, data, task)

    with serving(script(report_within_s=report_within_s)) as server, client(server, learner=Patient()) as device:
        assert device.run(rounds=1) == 1
    assert report_within_s - spare_s - 4 < left[0] <= report_within_s - spare_s


def test_no_caller_can_give_the_secrets_of_a_device() -> None:
    """Keys, nonces and the secrets of secure rounds come from the operating system."""
    with serving(script()) as server, pytest.raises(TypeError, match="entropy"):
        client(server, entropy=lambda count: bytes(count))


def test_a_long_wait_in_a_secure_round_is_said_again_with_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Notice] = []
    with serving(script()) as server, client(server, on_notice=told.append) as device:
        for at in (100.0, 130.0, 161.0, 170.0, 222.0):
            monkeypatch.setattr(device, "_now", lambda at=at: at)
            device._notify_wait("Waiting for the shares.")
        device._notify_wait("Waiting for the sum.")
    assert [(one.kind, one.text) for one in told] == [
        ("exchanging", "Waiting for the shares."),
        ("exchanging", "Waiting for the shares. 61 s so far."),
        ("exchanging", "Waiting for the shares. 122 s so far."),
        ("exchanging", "Waiting for the sum."),
    ]


def test_a_range_that_cannot_be_given_any_more_is_asked_for_once_and_the_download_begins_anew(tmp_path: Path) -> None:
    """A proxy answers the rest of a download with 416: the same range was asked for for ever."""
    with serving(script()) as server, FileStorage(tmp_path) as storage:

        def answer(method: str, path: str, handler: Any) -> bool:
            if "/checkpoints/" not in path:
                return False
            asks = sum("/checkpoints/" in asked for _, asked, _ in server.headers)
            if "Range" in handler.headers and asks < 3:  # and later what was asked for, so that this ends
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(CHECKPOINT)}")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return True
            first = asks == 1
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(CHECKPOINT)))
            handler.end_headers()
            handler.wfile.write(CHECKPOINT[:20] if first else CHECKPOINT)
            return cut(handler) if first else True

        server.accident = answer
        with client(server, storage) as device:
            device.run(rounds=1)
    asked = [sent.get("range") for _, path, sent in server.headers if "/checkpoints/" in path]
    assert asked == [None, "bytes=20-", None]
    assert server.script.rounds[0].update is not None


def test_a_state_that_is_too_large_or_too_old_is_not_kept(tmp_path: Path) -> None:
    strategy = TaskStrategy(name="ditto", version="1", parameters={"lambda": 0.1}, keeps="committed")
    task = Task(learner="clinic:risk", strategy=strategy)
    small = Policy(max_state_bytes=20)
    with serving(script(rounds=1, task=task)) as server, client(server, policy=small) as device:
        device.run(rounds=1)
        said = server.script.rounds[0].withdrawn
    assert said == ["StrategyError: The strategy ditto would keep 24 bytes on this device, whose owner allows 20."]
    found: list[Notice] = []
    with serving(script(rounds=2, task=task)) as server, FileStorage(tmp_path) as storage:
        with client(server, storage, state_days=1e-9, on_notice=found.append) as device:
            assert device.run(rounds=2) == 2
        assert all(one.update is not None for one in server.script.rounds)
    assert [one.text for one in found if one.kind == "trouble"] == [
        "Its state of round 1 is 0 days old, and is deleted as its owner wants."
    ]


@pytest.mark.parametrize(("first", "said"), [(100, []), (101, ["Its state is of round 1, 100 rounds ago."])])
def test_a_device_that_comes_back_after_100_rounds_says_so(first: int, said: list[str]) -> None:
    strategy = TaskStrategy(name="ditto", version="1", parameters={"lambda": 0.1}, keeps="committed")
    found: list[Notice] = []
    asked = script(rounds=first, task=Task(learner="clinic:risk", strategy=strategy))
    for one in asked.rounds[:-1]:
        one.open = False
    with serving(asked) as server, client(server, on_notice=found.append) as device:
        key = key_of(device.coordinator, "run-1")
        device._storage.states.put(key, Candidate(1, 0, "-"), from_bytes(CHECKPOINT), time.time())
        device._storage.states.settle(key, keep=True)
        assert device.run(rounds=1) == 1
    assert [one.text for one in found if one.kind == "returned"] == said


def test_a_device_that_waits_looks_once_an_hour_for_states_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(script()) as server, client(server, state_days=1 / 48) as device:
        device.run(rounds=1)
        began, kept, states = time.time(), [], device._storage.states
        states.put("key", Candidate(1, 0, "-"), from_bytes(CHECKPOINT), began)
        for minutes in (0, 31, 59, 61):
            monkeypatch.setattr(device, "_now", lambda minutes=minutes: began + 60 * minutes)
            device._offer()
            kept.append(states.candidate("key") is not None)
    assert kept == [True, True, True, False]


def test_repro_a_state_of_a_run_that_is_over_is_deleted_when_it_is_too_old(tmp_path: Path) -> None:
    """It was deleted only where the device trained for the same run again."""
    found: list[Notice] = []
    with serving(script(rounds=1)) as server, FileStorage(tmp_path) as storage:
        now = time.time()
        for run, days in (("over", 31), ("of yesterday", 1)):
            storage.states.put(
                key_of("https://elsewhere", run), Candidate(5, 0, "-"), from_bytes(CHECKPOINT), now - 86_400 * days
            )
            storage.states.settle(key_of("https://elsewhere", run), keep=True)
        with client(server, storage, state_days=30, on_notice=found.append) as device:
            device.run(rounds=1)
        kept = [storage.states.current(key_of("https://elsewhere", run)) for run in ("over", "of yesterday")]
    assert [one is not None for one in kept] == [False, True]
    assert [one.text for one in found if one.kind == "trouble"] == [
        "Its state of round 5 is 31 days old, and is deleted as its owner wants."
    ]
