"""Checkpoints over HTTP: cached for ever, in ranges, and never bytes of another digest."""

from __future__ import annotations

import asyncio
import hashlib
import time
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.types import Message

from client_sdk.device.actions import Fetch, Fetched
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.exchange import Exchange, RequestSigner
from client_sdk.http.transport import open_http
from client_sdk.protocol.devices import CheckpointRef
from client_sdk.protocol.names import (
    BASE_HEADER,
    DELTA_MEDIA_TYPE,
    DIGEST_HEADER,
    HOLDS_HEADER,
    PROBLEM_MEDIA_TYPE,
    TENSORS_MEDIA_TYPE,
    Route,
    content_digest,
)
from client_sdk.tensors import to_bytes
from client_sdk.tensors.checkpoint_delta import decode
from coordinator.blobs import Missing
from coordinator.service.downloads import NO_BYTES, Deltas, FilePart, parse_range
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device, plan
from tests.coordinator.service.test_edge import refused


def upload(server: Server, body: bytes, name: str) -> str:
    """Makes the body the first checkpoint of a run, so that it is served; returns its path."""
    digest = hashlib.sha256(body).hexdigest()
    path = Route.CHECKPOINT.format(digest=digest)
    response = server.http.put(path, content=body, headers={DIGEST_HEADER: content_digest(digest)})
    assert response.status_code == 201, response.text
    created = server.http.post(Route.RUNS, json={"plan": plan(name), "init": digest})
    assert created.status_code == 201, created.text
    assert created.headers["location"] == f"/v1/runs/{name}"
    return path


@pytest.fixture(scope="module", params=[100, 500_000], ids=["small", "large"])
def stored(request: pytest.FixtureRequest, server: Server) -> tuple[str, bytes]:
    """A checkpoint read whole, and one that is streamed: (path, bytes)."""
    values = np.arange(request.param, dtype=np.float32)
    body = to_bytes({"x": values})
    return upload(server, body, f"stored-{request.param}"), body


def test_a_checkpoint_is_what_its_digest_says_and_may_be_cached_for_ever(server: Server, stored: tuple) -> None:
    path, body = stored
    response = server.http.get(path)
    assert response.content == body
    assert response.headers["content-length"] == str(len(body))
    assert response.headers["content-type"] == TENSORS_MEDIA_TYPE
    assert response.headers["etag"] == f'"{path.rsplit("/", 1)[1]}"'
    assert "immutable" in response.headers["cache-control"]


def test_who_has_it_gets_no_bytes(server: Server, stored: tuple) -> None:
    path, _ = stored
    etag = server.http.head(path).headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        response = server.http.get(path, headers={"If-None-Match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == etag
    assert server.http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_says_the_same_without_bytes(server: Server, stored: tuple) -> None:
    path, body = stored
    response = server.http.head(path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == str(len(body))
    assert response.headers["accept-ranges"] == "bytes"


def test_an_interrupted_download_goes_on_where_it_was(server: Server, stored: tuple) -> None:
    path, body = stored
    half = len(body) // 2
    response = server.http.get(path, headers={"Range": f"bytes={half}-"})
    assert response.status_code == 206
    assert response.headers["content-range"] == f"bytes {half}-{len(body) - 1}/{len(body)}"
    assert body[:half] + response.content == body
    assert server.http.get(path, headers={"Range": "bytes=8-11"}).content == body[8:12]
    assert server.http.get(path, headers={"Range": "bytes=-5"}).content == body[-5:]
    changed = server.http.get(path, headers={"Range": "bytes=8-11", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, body)


def test_a_range_outside_of_the_file_is_refused(server: Server, stored: tuple) -> None:
    path, body = stored
    response = server.http.get(path, headers={"Range": f"bytes={len(body)}-"})
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(body)}"
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert f"has {len(body)} bytes" in response.json()["detail"]
    head = server.http.head(path, headers={"Range": "bytes=8-11"})
    assert (head.status_code, head.headers["content-length"], head.content) == (206, "4", b"")


def test_a_receiver_that_has_gone_costs_no_more_reading(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(10_000_000))
    reads: list[int] = []
    sent: list[int] = []
    gone = asyncio.Event()

    async def work(task: Any, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        found = task(*arguments)
        if isinstance(found, bytes):
            reads.append(len(found))
        return found

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        """As uvicorn does: nothing is raised when nobody receives."""
        sent.append(len(message.get("body", b"")))
        if sum(sent) >= 1_000_000:
            gone.set()

    response = FilePart(work, partial(file.open, "rb"), 0, 10_000_000, 200, {}, TENSORS_MEDIA_TYPE)
    asyncio.run(response({"type": "http"}, receive, send))
    assert 1_000_000 <= sum(reads) < 2_000_000
    assert 0 <= sum(reads) - sum(sent) <= reads[0], "one piece is read ahead"


def test_a_download_of_a_file_that_has_become_shorter_ends(tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_bytes(bytes(10))

    async def work(task: Any, *arguments: Any) -> Any:
        return task(*arguments)

    async def receive() -> Message:
        return await asyncio.Future()

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    response = FilePart(work, partial(file.open, "rb"), 5, 11, 200, {}, TENSORS_MEDIA_TYPE)
    with pytest.raises(OSError, match="a file ends at 10, and its bytes up to 11 were promised"):
        asyncio.run(asyncio.wait_for(response({"type": "http"}, receive, send), 5))


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=90-200", (90, 100)),
        ("bytes=99-", (99, 100)),
        ("bytes=-30", (70, 100)),
        ("bytes=-300", (0, 100)),
        ("bytes=-0", NO_BYTES),
        ("bytes=100-", NO_BYTES),
        ("bytes=5-3", None),
        ("bytes=-", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-9", None),
        ("BYTES=0-9", (0, 10)),
        ("bytes=" + "9" * 5000 + "-", NO_BYTES),
        ("bytes=0-" + "9" * 5000, (0, 100)),
        ("bytes=-" + "9" * 5000, (0, 100)),
        ("bytes=" + "9" * 5000 + "-" + "9" * 5000, NO_BYTES),
        ("bytes=" + "0" * 5000 + "7-" + "0" * 5000 + "9", (7, 10)),
        ("bytes=18446744073709551616-", NO_BYTES),
        ("bytes=--5", None),
        ("bytes=-1-5", None),
        ("bytes=+1-5", None),
        ("bytes=1-5 0", None),
        ("bytes=1.5-2", None),
        ("bytes=0x1-5", None),
        ("bytes=\u0661-5", None),
        ("bytes=\xb2-5", None),
        ("bytes=", None),
        ("bytes 0-9/100", None),
        ("bytes=0-9," * 1000, None),
        ("", None),
    ],
)
def test_ranges_are_read_as_rfc_9110_says(header: str, span: tuple | None) -> None:
    assert parse_range(header, 100) == span


def test_repro_a_range_of_5000_digits_is_no_bug(server: Server, stored: tuple) -> None:
    path, body = stored
    digits = "9" * 5000
    beyond = server.http.get(path, headers={"Range": f"bytes={digits}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(body)}")
    last = server.http.get(path, headers={"Range": f"bytes=-{digits}"})
    assert (last.status_code, last.content) == (206, body)
    for ignored in (f"bytes={digits}-0", "bytes=0-1,4-5", "bytes=one-two", "lines=0-1"):
        whole = server.http.get(path, headers={"Range": ignored})
        assert (whole.status_code, whole.content) == (200, body), ignored


def test_a_checkpoint_of_no_run_is_unknown(server: Server) -> None:
    refused(server.http.get(Route.CHECKPOINT.format(digest="0" * 64)), 404, "unknown-checkpoint")
    body = to_bytes({"x": np.ones(3, np.float32)})
    path = Route.CHECKPOINT.format(digest=hashlib.sha256(body).hexdigest())
    assert server.http.put(path, content=body).status_code == 201
    refused(server.http.get(path), 404, "unknown-checkpoint")


def test_bytes_of_another_digest_are_not_kept(server: Server) -> None:
    body = to_bytes({"x": np.ones(4, np.float32)})
    refused(server.http.put(Route.CHECKPOINT.format(digest="1" * 64), content=body), 422, "digest-mismatch")
    refused(server.http.put(Route.CHECKPOINT.format(digest="1" * 64), content=b"no model"), 422, "invalid-request")
    digest = hashlib.sha256(body).hexdigest()
    assert not list((server.folder / "blobs").rglob(digest))


def test_a_checkpoint_with_nan_is_refused(server: Server) -> None:
    body = to_bytes({"x": np.array([1, np.nan], np.float32)})
    path = Route.CHECKPOINT.format(digest=hashlib.sha256(body).hexdigest())
    assert "NaN" in refused(server.http.put(path, content=body), 422, "invalid-request")


def test_a_rotten_checkpoint_is_served_to_nobody_named_and_repaired_by_a_put(server: Server) -> None:
    body = to_bytes({"x": np.full(600_000, 3.0, dtype=np.float32)})
    path = upload(server, body, "rotten")
    digest = path.rsplit("/", 1)[1]
    with (server.folder / "blobs" / digest[:2] / digest).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"\x01")
    with pytest.raises(httpx2.RemoteProtocolError):  # right blocks were sent when the wrong one was found
        server.http.get(path)
    again = server.http.get(path)
    assert (again.status_code, again.json()["type"].rsplit("/", 1)[-1]) == (503, "busy")
    assert again.json()["detail"].startswith(f"Blob {digest} is damaged")
    assert again.json()["detail"].endswith("Store the right bytes again.")
    assert server.http.get(path, headers={"Range": "bytes=0-99"}).status_code == 503
    assert digest in server.http.get("/readyz").json()["damaged"]
    assert digest in server.http.get("/v1/runs/rotten").json()["stalled"]
    announced = {DIGEST_HEADER: content_digest(digest)}
    assert server.http.put(path, content=body, headers=announced).json() == {"ok": True, "repaired": True}
    assert server.http.put(path, content=body, headers=announced).json() == {"ok": True, "repaired": False}
    assert server.http.get(path).content == body
    assert "damaged" not in server.http.get("/readyz").json()


# ------------------------------------------------------------ differences


@pytest.fixture(scope="module")
def two(server: Server) -> tuple[Device, str, str, str]:
    """A device, its run's first and second checkpoint, and the first one of another run."""
    name = server.create_run("differences")
    device = server.device("differences")
    work = device.wait_for_work()
    device.put(work, device.body(work)).raise_for_status()
    first, second = work.checkpoint.digest, device.wait_for_work().checkpoint.digest
    other = upload(server, to_bytes({"marks": np.ones(64, np.float32), "steps": np.zeros((), np.int64)}), "elsewhere")
    assert name
    return device, first, second, other.rsplit("/", 1)[1]


def asked(device: Device, digest: str, *held: str, method: str = "GET", **more: str) -> httpx2.Response:
    headers = {HOLDS_HEADER: ", ".join(held), **more}
    return device.send(method, Route.CHECKPOINT.format(digest=digest), headers=headers)


def test_a_device_that_has_an_earlier_checkpoint_gets_the_difference(server: Server, two: Any) -> None:
    device, first, second, other = two
    whole, base = asked(device, second), asked(device, first).content
    assert whole.headers["vary"] == HOLDS_HEADER
    before = server.meter("quorate_sent_bytes_total")
    for held in ([first], [other, first], ["nothing", first]):
        found = asked(device, second, *held)
        assert (found.headers["content-type"], found.headers[BASE_HEADER]) == (DELTA_MEDIA_TYPE, first)
        assert b"".join(decode(BytesIO(base), BytesIO(found.content))) == whole.content
        assert len(found.content) < len(whole.content) / 2
    sent = server.meter("quorate_sent_bytes_total") - before
    assert 3 * len(found.content) <= sent < 3 * len(found.content) + 3 * 64_000, "what is counted is what was sent"


def test_who_has_none_of_the_runs_checkpoints_gets_the_whole(two: Any) -> None:
    device, first, second, other = two
    whole = asked(device, second).content
    for held in ([other], [], ["0" * 64], ["../x"], [other, other, first]):
        found = asked(device, second, *held)
        assert found.content == whole
        assert found.headers["content-type"] == TENSORS_MEDIA_TYPE
    assert asked(device, second, first, Range="bytes=8-11").content == whole[8:12]
    assert asked(device, second, first, method="HEAD").headers["content-length"] == str(len(whole))


def test_the_clients_own_exchange_takes_the_difference(
    server: Server, two: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, first, second, _ = two
    storage, restored = MemoryStorage(), []

    def noting(exchange: Exchange, *args: Any) -> bool:
        restored.append(own(exchange, *args))
        return restored[-1]

    own = Exchange._restored
    monkeypatch.setattr(Exchange, "_restored", noting)
    signing = RequestSigner(server.url, time.time)
    signing.signer = device.auth.key
    with open_http(server.url) as http:
        exchange = Exchange(http, server.url, storage, time.time, signing)
        for digest in (first, second):
            ref = CheckpointRef(version=0, digest=digest, bytes=len(asked(device, digest).content))
            assert isinstance(exchange.fetch(Fetch(checkpoint=ref)), Fetched)
    assert storage.checkpoints.get(second) == asked(device, second).content
    assert restored == [True]


class Counting:
    """Blobs that count how often they are opened."""

    def __init__(self, **blobs: bytes) -> None:
        self.blobs, self.opened = blobs, 0

    def size(self, digest: str) -> int:
        return len(self.blobs[digest])

    def open(self, digest: str) -> BytesIO:
        self.opened += 1
        if digest not in self.blobs:
            raise Missing("none", digest)
        return BytesIO(self.blobs[digest])


def models(count: int) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    return {f"m{n}": to_bytes({"w": rng.normal(size=1000).astype(np.float32)}) for n in range(count)}


def test_a_difference_is_made_once_and_one_at_a_time() -> None:
    blobs, running = Counting(**models(2), steps=to_bytes({"w": np.zeros(1000, np.float32)})), []

    async def work(task: Any, *args: Any) -> Any:
        running.append(1)
        assert len(running) == 1
        await asyncio.sleep(0.01)
        running.pop()
        return task(*args)

    async def ask() -> None:
        deltas = Deltas(work, blobs, 10**6)  # type: ignore[arg-type]
        found = await asyncio.gather(*(deltas.get(("steps", f"m{n % 2}")) for n in range(8)))
        assert b"".join(decode(BytesIO(blobs.blobs["steps"]), BytesIO(found[1]))) == blobs.blobs["m1"]
        assert blobs.opened == 4
        assert await deltas.get(("gone", "m0")) == b"", "a base that is not there any more"

    asyncio.run(ask())


def test_differences_stay_within_their_memory() -> None:
    blobs = Counting(**models(5))

    async def work(task: Any, *args: Any) -> Any:
        return task(*args)

    async def ask(most: int) -> list[bool]:
        deltas = Deltas(work, blobs, most)  # type: ignore[arg-type]
        pairs = [(f"m{n}", f"m{n + 1}") for n in range(4)]
        for pair in pairs:
            assert len(await deltas.get(pair)) == (0 if most < 4000 else len(await deltas.get(pair)))
        return [pair in deltas for pair in pairs]

    assert asyncio.run(ask(9000)) == [False, False, True, True]
    assert asyncio.run(ask(100_000)) == [True] * 4
    opened = blobs.opened
    asyncio.run(ask(3000))
    assert blobs.opened == opened, "a checkpoint that is longer is not read"
