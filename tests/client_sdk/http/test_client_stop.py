"""The client is stopped: in a long poll, asleep, in training, with a whole fleet."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http import transport
from client_sdk.http.client import Notice
from client_sdk.http.transport import Interrupted, open_http, until
from client_sdk.protocol.devices import Task
from client_sdk.update import Update
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_script import script, serving, train


def within(limit_s: float, run: Callable[[], object]) -> object:
    started = time.monotonic()
    result = run()
    assert time.monotonic() - started < limit_s
    return result


def test_stop_ends_a_long_poll_of_a_minute_at_once_and_the_coordinator_sees_it() -> None:
    stop = threading.Event()
    with serving(script(rounds=0)) as server, client(server, hold_s=60) as device:

        def stop_it() -> None:
            server.polling.wait(5)
            stop.set()

        threading.Timer(0.2, stop_it).start()
        assert within(20.0, lambda: device.run(stop=stop)) == 0
        device.close()
        assert server.left_early.wait(20)


def test_stop_ends_a_sleep_at_once() -> None:
    stop = threading.Event()

    def tell(notice: Notice) -> None:
        if notice.text == "No round needs this device now.":
            stop.set()

    with serving(script(rounds=0)) as server, client(server, hold_s=0, on_notice=tell) as device:
        assert within(20.0, lambda: device.run(stop=stop)) == 0


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


@pytest.mark.slow
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


def test_reads_can_be_interrupted_only_where_this_is_set() -> None:
    with serving(script()) as server, open_http(server.url) as http:
        with until(lambda: True), pytest.raises(Interrupted):
            http.get("/v1/checkpoints/x")
        assert http.get("/v1/checkpoints/x").status_code == 401


def test_a_read_that_waits_in_slices_waits_as_long_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SLICE_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as listener, until(lambda: False):
        with open_http(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    time.sleep(0.1)
                    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

            thread = threading.Thread(target=answer)
            thread.start()
            assert http.get("/", timeout=5).status_code == 204
            thread.join()
            began = time.monotonic()
            with pytest.raises(httpx2.ReadTimeout):  # nobody answers this one
                http.get("/", timeout=0.2)
            assert 0.2 <= time.monotonic() - began < 2
