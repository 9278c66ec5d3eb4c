"""What happens at the edge when something else fails: a bug, a full disk, a busy database, a sender that goes away.

A scripted coordinator stands in where the real one cannot be made to fail; the sockets are real.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn

from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Assignment, CheckIn, CheckpointRef, Receipt, Task, Wait
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Page, Route
from coordinator.access import LOCAL_OWNER, Operator
from coordinator.blobs import DiskFull, FileBlobs
from coordinator.group_commit import GroupCommit
from coordinator.requests import Held
from coordinator.requests.devices import CHECK_IN
from coordinator.runtime.clock import SystemClock
from coordinator.runtime.fleet import PoolPlace
from coordinator.runtime.identities import Arrived, SignedBy
from coordinator.runtime.process_state import StorageErrors
from coordinator.runtime.signals import Signals
from coordinator.service import create_app
from coordinator.service.core import Service
from coordinator.service.routes import Holds
from coordinator.settings import Settings
from coordinator.store.port import DeviceRow, StoreError, StoreFull
from tests.coordinator.certified import signature
from tests.coordinator.service.devices import Signing
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until

pytestmark = pytest.mark.whole

HEADERS = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
SIGNING = Signing(DeviceKey.create())
"""Signs requests, of which these tests check the form only."""


def row_of(device: str) -> DeviceRow:
    return DeviceRow(device=device, key_id=device, certificate="", label="", examples_cap=1, enrolled_at=0)


DEVICE = row_of("d1")
WORK = Assignment(
    run="r",
    round=1,
    device="d1",
    checkpoint=CheckpointRef(version=0, digest="0" * 64, bytes=1),
    plan_digest="0" * 64,
    task=Task(learner="tests:scripted"),
    report_within_s=1,
    max_update_bytes=1,
)
UPDATE = Route.UPDATE.format(run="r", round=1, attempt=0)


class Scripted:
    """Gives the answers that a test sets, and records its requests."""

    def __init__(self, folder: Path) -> None:
        self.signals = Signals()
        self.blobs: Any = FileBlobs(folder / "blobs")
        self.work: Assignment | None = None
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.limit = 1 << 20
        self.storage_errors = StorageErrors(SystemClock())
        self.clock = SystemClock()
        self.core = self.devices = self.operators = self.workers = self.access = self.identities = self.signed = self
        self.insight = self.fleet = self.process = self
        """All collaborators of a coordinator in one, but for ``system``, which takes the service's own meters."""
        self.system = SimpleNamespace()
        self.commits: GroupCommit[Any, Any] = GroupCommit(list)
        self.arrivals = self.commits

    def log(self, run: str) -> Scripted:
        return self

    def recover(self) -> None: ...
    def note(self) -> None: ...
    def tick(self, *, pool_changed: bool = True) -> None: ...
    def take_task(self, *, openings: bool | None = None) -> None: ...

    def check(self, signature: RequestSignature, **arrived: object) -> SignedBy:
        return SignedBy(signature.key_id, 0)

    def device(self, signed: SignedBy) -> DeviceRow:
        return DEVICE

    def valid_s(self, signed: SignedBy) -> float:
        return 1e6

    def operator(self, key: str) -> Operator:
        return LOCAL_OWNER

    def check_in(self, device: DeviceRow, check_in: object) -> Callable[[], PoolPlace]:
        self.asked.append("check_in")
        return lambda: PoolPlace(device.device, 0.0)

    def assignment(self, device: str) -> Assignment | None:
        self.asked.append("assignment")
        return self.work

    def hold_over(self, device: str, check_in: object) -> Wait:
        self.asked.append("hold_over")
        return Wait(reason="the hold ran out", min_s=0, max_s=1)

    def leave(self, device: str) -> None:
        self.asked.append("leave")

    def update_limit(self, device: str, run: str, round_: int, attempt: int) -> int:
        return self.limit

    def report(self, device: DeviceRow, run: str, round_: int, attempt: int, spool: Any) -> Callable[[], Receipt]:
        self.asked.append("report")
        digest = spool.commit()
        return lambda: Receipt(run=run, round=round_, attempt=attempt, device="d1", digest=digest, weight=1)

    def runs(self, sees: object = None, after: str = "", limit: int = 0, *, newest_first: bool = False) -> Page[Any]:
        if self.failure is not None:
            raise self.failure
        return Page()

    def run_ids(self) -> list[str]:
        return []

    def rounds(self, run: str, after: int, limit: int) -> Page[Any]:
        return Page()

    def healthy(self) -> dict[str, object]:
        return {}

    @property
    def spooled(self) -> int:
        return len(list((self.blobs.folder / "spool").iterdir()))


@contextmanager
def serving(coordinator: Scripted, **settings: Any) -> Iterator[httpx2.Client]:
    """The service with this coordinator, in a thread, on a free port."""
    app = create_app(coordinator, Settings(**settings))  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", ws="none", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        url, key = f"http://127.0.0.1:{listener.getsockname()[1]}", {"Authorization": "Bearer a key"}
        with httpx2.Client(base_url=url, timeout=20, headers=key) as http:
            yield http
    finally:
        app.state.service.stop()
        server.should_exit = True
        thread.join()


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path)


@pytest.mark.slow
def test_a_bug_is_reported_without_a_stack_trace(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted.failure = RuntimeError("a secret detail")
    with serving(scripted) as http:
        response = http.get(Route.RUNS)
        detail = refused(response, 500, "internal")
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        assert http.get("/healthz").status_code == 200
    logged = capsys.readouterr()
    assert detail.split()[-1].strip(".") in logged.out + logged.err  # the reference leads to the log's line


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (StoreError("locked"), 503, "busy"),
        (StoreFull("no room"), 507, "disk-full"),
        (DiskFull("no room"), 507, "disk-full"),
        (OSError(errno.ENOSPC, "No space left on device"), 507, "disk-full"),
        (OSError(errno.EDQUOT, "Quota exceeded"), 507, "disk-full"),
    ],
)
def test_what_the_machine_cannot_do_may_be_asked_again(
    scripted: Scripted, failure: Exception, status: int, kind: str
) -> None:
    scripted.failure = failure
    with serving(scripted) as http:
        response = http.get(Route.RUNS)
        refused(response, status, kind)
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["retryable"] is True


def test_an_update_on_a_full_disk_leaves_nothing_and_may_be_sent_again(scripted: Scripted) -> None:
    class Full:
        def __init__(self, limit: int) -> None:
            self.real = real.spool(limit)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def write(self, chunk: bytes) -> None:
            raise DiskFull("no room for the spool")

    real = scripted.blobs
    with serving(scripted) as http:
        scripted.blobs = type("Blobs", (), {"spool": staticmethod(Full)})()
        refused(http.put(UPDATE, content=b"x" * 100_000, headers=HEADERS, auth=SIGNING), 507, "disk-full")
        scripted.blobs = real
        assert scripted.storage_errors.recent() == "no room for the spool", "it is said why runs stand still"
        assert scripted.spooled == 0
        assert http.put(UPDATE, content=b"x" * 100_000, headers=HEADERS, auth=SIGNING).status_code == 200


def raw_put(http: httpx2.Client, announced: int, sent: bytes) -> socket.socket:
    """Opens a connection and sends an update's head and the first bytes of its body."""
    connection = socket.create_connection((http.base_url.host, http.base_url.port))
    head = [f"PUT {UPDATE} HTTP/1.1", f"Host: 127.0.0.1:{http.base_url.port}", f"Content-Length: {announced}"]
    given = {**HEADERS, **SIGNING.headers("PUT", f"{http.base_url}{UPDATE}")}
    head += [f"{name}: {value}" for name, value in given.items()]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + sent)
    return connection


def read_answer(connection: socket.socket) -> bytes:
    """One whole answer: its head and a JSON body."""
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, answer
        answer += part
    return answer


def test_a_sender_that_goes_away_mid_body_leaves_nothing(scripted: Scripted) -> None:
    with serving(scripted) as http:
        connection = raw_put(http, 500_000, b"x" * 300_000)
        until(lambda: scripted.spooled == 1)
        connection.close()
        until(lambda: scripted.spooled == 0)
        until(lambda: "quorate_uploads 0.0" in http.get("/metrics").text)
        assert 'quorate_problems_total{kind="truncated"} 1.0' in http.get("/metrics").text
    assert "report" not in scripted.asked


def test_a_body_that_stops_is_refused_as_truncated(scripted: Scripted) -> None:
    with serving(scripted, body_idle_s=0.2) as http:
        connection = raw_put(http, 500_000, b"x" * 1000)
        answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"/problems/truncated" in answer
        connection.close()
        until(lambda: scripted.spooled == 0)
    assert "report" not in scripted.asked


def test_more_senders_than_slots_all_get_their_turn(scripted: Scripted) -> None:
    bodies = [bytes([n]) * (200_000 + n) for n in range(12)]
    with serving(scripted, uploads=2, uploads_per_caller=12) as http:
        answers: dict[int, httpx2.Response] = {}

        def put(n: int) -> None:
            answers[n] = http.put(UPDATE, content=bodies[n], headers=HEADERS, auth=SIGNING)

        threads = [threading.Thread(target=put, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, body in enumerate(bodies):
            assert answers[n].json()["digest"] == hashlib.sha256(body).hexdigest()
        found = re.search(r"(?m)^quorate_received_bytes_total (\S+)", http.get("/metrics").text)
        assert found is not None
        assert float(found[1]) == sum(map(len, bodies))


def test_a_body_without_a_length_is_refused(scripted: Scripted) -> None:
    with serving(scripted) as http:
        connection = socket.create_connection((http.base_url.host, http.base_url.port))
        given = {**HEADERS, **SIGNING.headers("PUT", f"http://localhost{UPDATE}")}
        head = [f"PUT {UPDATE} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in given.items())]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        assert b"/problems/length-required" in read_answer(connection)
        connection.close()


def test_a_held_check_in_reads_again_without_a_signal(scripted: Scripted) -> None:
    with serving(scripted, reread_s=0.05) as http:
        thread = threading.Timer(0.1, lambda: setattr(scripted, "work", WORK))
        thread.start()
        answer = http.post(Route.CHECK_IN, json={"hold_s": 20}, headers=HEADERS, auth=SIGNING)
        assert Assignment.model_validate_json(answer.content) == WORK
        assert "leave" not in scripted.asked


def test_a_check_in_is_held_no_longer_than_it_asks(scripted: Scripted) -> None:
    with serving(scripted) as http:
        answer = http.post(Route.CHECK_IN, json={"hold_s": 0.1}, headers=HEADERS, auth=SIGNING)
        assert answer.json()["reason"] == "the hold ran out"
        assert (scripted.asked[0], scripted.asked[-1]) == ("check_in", "hold_over")
        assert "leave" not in scripted.asked


@pytest.mark.slow
def test_ten_thousand_held_check_ins_hold_no_thread_and_wake_together(scripted: Scripted) -> None:
    """At the level of ``Holds``: sockets for so many are more than a test may open."""
    count = 10_000
    names = {f"t{n}": f"d{n}" for n in range(count)}
    scripted.check = lambda signature, **arrived: SignedBy(arrived["uri"], 0)  # type: ignore[method-assign]
    scripted.device = lambda signed: row_of(names[signed.key_id])  # type: ignore[method-assign]
    one = signature(SIGNING.key, at=time.time())

    async def scenario() -> int:
        service = Service(scripted, Settings(reread_s=60, threads=4), scripted.signals)  # type: ignore[arg-type]
        holds = Holds(service)

        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {}

        shape, message = CHECK_IN.shape, CheckIn(hold_s=50)
        assert isinstance(shape, Held)
        arrivals = [Arrived(signature=one, method="POST", uri=name, at=time.time()) for name in names]
        held = [holds.answer(CHECK_IN, shape, given, message, {}, receive) for given in arrivals]
        tasks = [asyncio.create_task(one) for one in held]
        while scripted.signals.waiting < count:
            await asyncio.sleep(0.01)
        threads = sum("quorate" in thread.name for thread in threading.enumerate())
        scripted.work = WORK
        await asyncio.to_thread(scripted.signals.wake_many, [f"device:{name}" for name in names.values()])
        answers = await asyncio.gather(*tasks)
        service.close()
        assert all(answer == WORK for answer in answers)
        return threads

    assert asyncio.run(scenario()) <= 4
    assert scripted.signals.waiting == 0
