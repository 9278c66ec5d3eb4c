"""A value that one device plants in its update is searched for in everything that a server stores, logs and shows,
while a secure round runs and after it. Where the devices leave their masks out, the same search finds it."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.device import secure_round
from client_sdk.http import exchange
from client_sdk.http.client import Notice
from client_sdk.protocol.devices import CheckIn, Policy, Task
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SecureSigned
from client_sdk.secagg.actions import Primitives
from client_sdk.secagg.lanes import Lanes, lane_bits, pack
from client_sdk.secagg.masks import Masker, Sign
from client_sdk.tensors import Tensors
from client_sdk.update import Update
from coordinator.datafolder import DATABASE_FILE
from tests.client_sdk.bounds import any_work
from tests.client_sdk.http.crowd import Crowd
from tests.client_sdk.http.operated import create, model_of, wait_for_end
from tests.coordinator.service.conftest import Server

pytestmark = pytest.mark.slow

DEVICES, VALUES, Q = 5, 160, 16
HOT = 83
"""The coordinate that the first device plants: 1, the largest value of the plan's range. All others are 0."""
LEARNER = "tests:planted"
PLAN: dict[str, Any] = {
    "name": "planted",
    "task": {"learner": LEARNER},
    "cohort": {"select": DEVICES, "goal": DEVICES, "quorum": 0.5, "select_s": 30, "collect_s": 60},
    "aggregation": {"weighting": "equal", "partial": "refuse"},
    "finish": {"rounds": 1, "abandoned": 1},
    "secure": {"max_norm": 2.0, "max_abs": 1.0, "minimum_cohort": 3, "exchange_s": 60, "q": Q},
}
MASKED = "Has sent its update"
MESSAGE = "messages/"


class Planting:
    """Its update is one-hot."""

    version = "1.0"

    def __init__(self, slot: int) -> None:
        self.slot = slot

    def train(self, model: Tensors, data: Any, task: Task, **others: Any) -> Update:
        planted = np.zeros(VALUES, np.float32)
        planted[8 * self.slot or HOT] = 1.0  # others have it at another place among the eight lanes of a group
        return Update({"w": planted}, examples=len(data.x))


class NoMasks(Masker):
    """The control: adds nothing."""

    def apply(self, vector: Lanes, seed: bytes, sign: Sign, first: int = 0) -> None:
        pass


def needles() -> dict[str, bytes]:
    """The planted value and its neighbours: as lanes of the packed vector, and as floats of a plain update. All these
    lanes are whole numbers, so nothing of them is rounded."""
    bits, levels = lane_bits(DEVICES, Q), (1 << Q) - 2
    lanes = np.full(VALUES, levels // 2, np.uint32)
    lanes[HOT] = levels
    first = HOT // 8 * 8
    packed = pack(lanes[first : first + 8], bits)
    floats = np.zeros(3, np.float32)
    floats[1] = 1.0
    return {
        "packed": packed,
        "packed as hexadecimal": packed.hex().encode(),
        "packed as base64": base64.b64encode(packed[: len(packed) // 3 * 3]),
        "floats": floats.tobytes(),
    }


class Search:
    """Everything that a server has, gives and writes, as bytes by place."""

    def __init__(self, server: Server, run: str) -> None:
        self._server, self._run = server, run
        self._stream = bytearray()
        self._log = server.log
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        path = Route.EVENTS.format(run=self._run)
        with suppress(httpx2.HTTPError), self._server.http.stream("GET", path, timeout=120) as response:
            for chunk in response.iter_bytes():
                self._stream += chunk

    def await_stream(self, text: bytes, times: int) -> None:
        """Waits until the event stream has shown this so often."""
        deadline = time.monotonic() + 30
        while self._stream.count(text) < times:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def places(self) -> dict[str, bytes]:
        found = {}
        for path in sorted(self._server.folder.rglob("*")):
            try:
                if path.is_file():
                    found[str(path.relative_to(self._server.folder))] = path.read_bytes()
            except FileNotFoundError:
                continue
        found |= self._messages()
        for route in (f"/v1/runs/{self._run}", f"/v1/runs/{self._run}/rounds", "/metrics"):
            found[route] = self._server.http.get(route).content
        return found | {"event stream": bytes(self._stream), "log": "".join(self._log._lines).encode()}

    def _messages(self) -> dict[str, bytes]:
        """The short messages, row by row: in the database's file, a long one is divided among pages."""
        database = f"file:{self._server.folder / DATABASE_FILE}?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as connection:
            rows = connection.execute("SELECT digest, content FROM messages").fetchall()
        return {MESSAGE + digest: content for digest, content in rows}

    def found(self) -> list[tuple[str, str]]:
        """(place, form) of each occurrence."""
        return [
            (place, form)
            for place, text in self.places().items()
            for form, needle in needles().items()
            if needle in text
        ]


class Pause:
    """Holds every device back once its vector is stored: none of them signs, so the round goes on running."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, slot: int, notice: Notice) -> None:
        if MASKED in notice.text and not self.go_on.is_set():
            self.reached.release()
            self.go_on.wait(60)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.go_on.set()

    def wait(self) -> None:
        for _ in range(DEVICES):
            assert self.reached.acquire(timeout=60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server.start(tmp_path / "data")
    yield running
    running.stop()


def play(server: Server) -> tuple[Search, str, Any, list[tuple[str, str]]]:
    """The search, the run, its end, and what was found while the masked vectors were stored."""
    run = create(server, PLAN, {"w": np.zeros(VALUES, np.float32)})
    search, pause = Search(server, run), Pause()
    policy = Policy(secure_only=True, secure=any_work(smallest_cohort=3))
    with Crowd(server, LEARNER, [Planting(slot) for slot in range(DEVICES)], policy, pause), pause:
        pause.wait()
        search.await_stream(b'"kind":"Masked"', DEVICES)
        places = search.places()
        blobs = [place for place in places if place.startswith("blobs/")]
        assert len(blobs) > DEVICES, "vectors and the roster are stored now"
        assert sum(place.startswith(MESSAGE) for place in places) == 2 * DEVICES, "advertisements and bundles too"
        assert any(b"Masked" in text for place, text in places.items() if place.startswith(DATABASE_FILE))
        meanwhile = search.found()
        pause.go_on.set()
        view = wait_for_end(server, run)
    return search, run, view, meanwhile


def test_a_planted_value_is_nowhere_on_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment, a header, a check-in, an attempt's message or an answer says of masks: nothing on this
    wire takes them away, and no plan can ask for it."""
    sent, dumped, headers, understood = [], CheckIn.model_dump_json, exchange.headers, exchange.understood
    asks = {"primitives": "quantized", "quantized": True}

    def dump(message: Any) -> str:
        sent.append(type(message).__name__)
        return json.dumps({**json.loads(dumped(message)), **asks})

    for message in (CheckIn, SecureSigned):
        monkeypatch.setattr(message, "model_dump_json", dump)
    told = {"Quorate-Primitives": "quantized", "Quorate-Secure-Primitives": "quantized", "Quorate-Simulate": "1"}
    monkeypatch.setattr(exchange, "headers", lambda: {**headers(), **told})
    monkeypatch.setattr(
        exchange, "understood", lambda one, of, at: understood(one, json.dumps({**json.loads(of), **asks}).encode(), at)
    )
    for name in ("PRIMITIVES", "SECURE", "MASKED", "MASKER", "SIMULATE"):
        monkeypatch.setenv(f"QUORATE_{name}", "quantized")
    for more in ({"quantized": {}}, asks, {"secure": {**PLAN["secure"], **asks}}, {"task": {**PLAN["task"], **asks}}):
        answer = server.http.post(Route.RUNS, json={"plan": {**PLAN, **more}, "init": "0" * 64, "origin": "a test"})
        assert (answer.status_code, any(name in answer.text for name in asks)) == (422, True), answer.text
    search, run, view, meanwhile = play(server)
    assert meanwhile == []
    assert {"CheckIn", "SecureSigned"} <= set(sent)
    assert (view.status, view.version) == ("finished", 1)
    assert model_of(server, run)["w"][HOT] == pytest.approx(1 / DEVICES, abs=1e-4)
    assert search.found() == []


def test_the_search_finds_it_where_the_devices_leave_their_masks_out(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_round, "Primitives", lambda: Primitives(masker=NoMasks))
    _, _, view, meanwhile = play(server)
    assert [form for _, form in meanwhile] == ["packed"]
    assert meanwhile[0][0].startswith("blobs/"), "in one device's vector"
    assert view.version == 0, "the coordinator takes masks off that are not there, and sees that the sum is impossible"
