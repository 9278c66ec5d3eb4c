"""What an exchange reports of a connection that broke: whether the request had been with a coordinator."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from io import BytesIO
from pathlib import Path

import httpx2
import numpy as np
import pytest

from client_sdk.device.actions import Answered, Fetch, Fetched, RequestRefused, Send, Unreachable
from client_sdk.device.storage import FileStorage, MemoryStorage
from client_sdk.http import exchange
from client_sdk.http.exchange import ANSWER_S, Exchange
from client_sdk.http.transport import open_http
from client_sdk.protocol.devices import CheckIn, CheckpointRef, Noted, Wait
from client_sdk.protocol.names import (
    BASE_HEADER,
    DELTA_MEDIA_TYPE,
    DIGEST_HEADER,
    HOLDS_HEADER,
    Route,
    content_digest,
)
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE, SECURE_HEADER, NotReady, Octets, SecureSigned, SecureWait
from client_sdk.tensors import to_bytes
from client_sdk.tensors.checkpoint_delta import encode

CHECK_IN = Send(method="POST", route=Route.CHECK_IN, answers=(Wait,), message=CheckIn(hold_s=20))


@pytest.mark.parametrize("held_s", [None, 0.0, 0.3])
def test_how_long_a_request_was_held_when_the_coordinator_died(held_s: float | None) -> None:
    """None: nothing listens. Otherwise one connection is taken, and closed with the listener after so long."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(65536)
        time.sleep(held_s or 0.0)
        listener.close()
        connection.close()

    thread = threading.Thread(target=die)
    if held_s is None:
        listener.close()
    else:
        thread.start()
    url = f"http://127.0.0.1:{port}"
    with open_http(url) as http:
        reply = Exchange(http, url, MemoryStorage(), time.monotonic).send(CHECK_IN)
    assert isinstance(reply, Unreachable)
    if held_s is None:
        assert reply.held_s == 0
    else:
        thread.join()
        assert held_s <= reply.held_s < held_s + 0.3


class Answering:
    """A coordinator that answers every request with these bytes, and remembers what it was sent."""

    def __init__(self, status: int, body: bytes) -> None:
        self.requests: list[httpx2.Request] = []
        self.status, self.body = status, body

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.requests.append(request)
        return httpx2.Response(self.status, content=self.body)

    def send(self, action: Send) -> object:
        with httpx2.Client(base_url="https://c.example", transport=httpx2.MockTransport(self)) as http:
            return Exchange(http, "https://c.example", MemoryStorage(), lambda: 7.0).send(action)


WHERE: dict[str, str | int] = {"run": "r", "round": 3, "attempt": 1, "stage": "mask"}
WAITING = Send(
    method="POST", route=Route.SECURE_ANSWER, answers=(Octets, NotReady), path=WHERE, message=SecureWait(hold_s=9)
)


def test_a_message_of_a_secure_round_travels_as_bytes_with_what_is_signed_beside_it() -> None:
    signed = SecureSigned(signature="ab" * 64, body="cd")
    message = Send(
        method="PUT", route=Route.SECURE_MESSAGE, answers=(Noted,), path=WHERE, message=signed, octets=b"vector"
    )
    coordinator = Answering(200, b'{"ok":true}')
    assert coordinator.send(message) == Answered(Noted(), 7.0)
    (request,) = coordinator.requests
    assert (request.method, request.url.path) == ("PUT", "/v1/runs/r/rounds/3/attempts/1/secure/mask")
    assert request.content == b"vector"
    assert request.headers["content-type"] == OCTETS_MEDIA_TYPE
    assert request.headers["content-length"] == "6"
    assert SecureSigned.model_validate_json(request.headers[SECURE_HEADER]) == signed
    assert request.headers[DIGEST_HEADER] == content_digest(hashlib.sha256(b"vector").hexdigest())
    assert "vector" not in repr(message)


def test_an_answer_of_a_secure_round_is_bytes_or_not_there_yet() -> None:
    assert Answering(200, b"{roster}").send(WAITING) == Answered(Octets(content=b"{roster}"), 7.0)
    assert Answering(200, b"").send(WAITING) == Answered(Octets(content=b""), 7.0)
    coordinator = Answering(204, b"")
    assert coordinator.send(WAITING) == Answered(NotReady(), 7.0)
    assert coordinator.requests[0].extensions["timeout"]["read"] == 9 + ANSWER_S


def test_an_answer_without_an_end_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "OCTETS_LIMIT", 1000)
    assert isinstance(Answering(200, bytes(1000)).send(WAITING), Answered)
    refused = Answering(200, bytes(1001)).send(WAITING)
    assert isinstance(refused, RequestRefused)
    assert not refused.problem.is_ours
    assert "too long" in str(refused.problem)


# ------------------------------------------------------------ a checkpoint as a difference


OLD, NEW = (to_bytes({"w": np.arange(5000, dtype=np.float32) + step}) for step in (0, np.float32(0.25)))
DELTA = b"".join(encode(BytesIO(OLD), BytesIO(NEW)))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Serving:
    """A coordinator with NEW, which a device that has OLD gets as ``delta``."""

    def __init__(self, delta: bytes, base: str = digest(OLD)) -> None:
        self.delta, self.base = delta, base
        self.sent: list[tuple[str | None, str | None, int]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        holds = request.headers.get(HOLDS_HEADER)
        given = {BASE_HEADER: self.base, "Content-Type": DELTA_MEDIA_TYPE} if holds else {}
        content = self.delta if given else NEW
        self.sent.append((holds, request.headers.get("range"), len(content)))
        return httpx2.Response(200, content=content, headers=given)

    def fetch(self, storage: MemoryStorage, place: str | None = None) -> object:
        with httpx2.Client(base_url="https://c.example", transport=httpx2.MockTransport(self)) as http:
            exchange = Exchange(http, "https://c.example", storage, lambda: 7.0)
            ref = CheckpointRef(version=1, digest=digest(NEW), bytes=len(NEW))
            return exchange.fetch(Fetch(checkpoint=ref, place=place))


def holding(*contents: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    for content in contents:
        ref = CheckpointRef(version=0, digest=digest(content), bytes=len(content))
        with storage.checkpoints.download(ref) as download:
            download.write(content)
    return storage


def test_a_device_that_has_an_earlier_checkpoint_gets_the_difference() -> None:
    storage, served = holding(b"another", OLD), Serving(DELTA)
    assert isinstance(served.fetch(storage), Fetched)
    assert storage.checkpoints.get(digest(NEW)) == NEW
    assert served.sent == [(f"{digest(OLD)}, {digest(b'another')}", None, len(DELTA))]
    assert len(DELTA) < len(NEW) / 50


WRONG = {
    "cut off": (DELTA[:-1], digest(OLD)),
    "longer": (DELTA + b"!", digest(OLD)),
    "of other values": (b"".join(encode(BytesIO(OLD), BytesIO(OLD))), digest(OLD)),
    "no difference": (NEW, digest(OLD)),
    "too long": (NEW + NEW, digest(OLD)),
    "of what is not held": (DELTA, digest(NEW)),
    "of no base": (DELTA, ""),
}


@pytest.mark.parametrize(("delta", "base"), WRONG.values(), ids=WRONG)
def test_a_wrong_difference_is_followed_by_the_whole(delta: bytes, base: str) -> None:
    storage, served = holding(OLD), Serving(delta, base)
    assert isinstance(served.fetch(storage), Fetched)
    assert storage.checkpoints.get(digest(NEW)) == NEW
    assert served.sent == [(digest(OLD), None, len(delta)), (None, None, len(NEW))]


def test_what_is_no_checkpoint_and_the_rest_of_a_download_are_asked_for_as_they_are(tmp_path: Path) -> None:
    served = Serving(DELTA)
    served.fetch(holding(OLD), place="/v1/contents")
    with FileStorage(tmp_path) as storage:
        folder = tmp_path / "checkpoints"
        folder.mkdir()
        (folder / f"{digest(OLD)}.safetensors").write_bytes(OLD)
        (folder / f"{digest(NEW)}.part").write_bytes(NEW[:100])
        served.fetch(storage)  # type: ignore[arg-type]
        assert storage.checkpoints.get(digest(NEW)) == NEW
    assert served.sent == [(None, None, len(NEW)), (None, "bytes=100-", len(NEW))]
