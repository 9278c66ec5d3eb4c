"""What one connection may cost: bytes of its head, framing of its body, seconds of everything."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Iterator
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from benchmarks._wire import rss_bytes
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from client_sdk.tensors import to_bytes
from coordinator.limits import Admission, AdmittedConnection
from coordinator.service.sockets.protocol import BoundedHttp, Limits
from coordinator.service.sockets.server import SmallReads
from coordinator.settings import Settings
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.raw import RawAnswer, RawConnection, ask, head
from tests.coordinator.service.test_checkpoints import upload
from tests.coordinator.service.test_rounds import until
from tests.rotating import in_parts

pytestmark = pytest.mark.whole

KIB = 1024
MIB = 1024 * KIB
SHORT = {"HEAD_S": "0.4", "BODY_IDLE_S": "0.4", "SEND_IDLE_S": "0.4", "BODY_RATE_MIN": "1000000"}
"""Settings under which a test does not wait."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short times."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setenv(f"QUORATE_{name}", value)
        running = Server.start(tmp_path_factory.mktemp("hasty") / "data")
    yield running
    running.stop()


def padded(size: int) -> bytes:
    """A request whose line and headers have this size, counted as the limit counts them."""
    plain = head("/healthz", "X: ")
    counted = len("/healthz") + len("HostlocalhostX") + 2 * len(": \r\n")
    return plain.replace(b"X: ", b"X: " + b"x" * (size - counted))


@pytest.mark.slow
def test_a_head_may_have_32_kib_and_no_byte_more(server: Server) -> None:
    assert Settings().max_head_bytes == 32 * KIB
    assert ask(server.url, padded(32 * KIB)).json() == {"ok": True}
    answer = ask(server.url, padded(32 * KIB + 1))
    assert (answer.status, answer.kind()) == (431, "headers-too-large")
    assert "32768 bytes" in answer.json()["detail"]


@pytest.mark.parametrize(
    "sent",
    in_parts(
        [
            pytest.param(padded(16 * MIB), id="a-header-of-16-mb"),
            pytest.param(padded(100 * KIB)[:-4], id="a-header-without-an-end"),  # all of it may come at once
            pytest.param(head("/" + "x" * 64 * KIB), id="a-long-target"),
            pytest.param(head("/healthz", "x" * 64 * KIB + ": 1"), id="a-long-name"),
            pytest.param(head("/healthz", *(f"X{n}: 1" for n in range(100))), id="many-headers"),
            pytest.param(head("/healthz", *(["X: " + "1" * 1000] * 40)), id="many-long-headers"),
        ],
        of=2,
    ),
)
def test_a_long_head_is_refused_and_the_connection_closes(server: Server, sent: bytes) -> None:
    with RawConnection(server.url) as connection:
        connection.send(sent)
        answer = connection.read()
        assert (answer.status, answer.kind()) == (431, "headers-too-large")
        assert answer.headers["connection"] == "close"
        assert connection.closed()


def test_99_headers_and_a_host_are_read(server: Server) -> None:
    assert ask(server.url, head("/healthz", *(f"X{n}: 1" for n in range(99)))).status == 200


def test_a_head_in_single_bytes_is_read(server: Server) -> None:
    with RawConnection(server.url) as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head():
            connection.send(bytes([byte]))
        assert connection.read().status == 200


@pytest.mark.slow
def test_heads_without_end_take_no_memory(server: Server) -> None:
    """One socket that sends for ever, and 200 that send half a head and wait: 96 KiB each at most."""
    ask(server.url, padded(32 * KIB))
    before = rss_bytes(server.process.pid)
    with RawConnection(server.url) as endless:
        endless.send(b"GET /healthz HTTP/1.1\r\nX: ")
        for _ in range(256):
            if not endless.send(b"x" * 256 * KIB):
                break
        assert rss_bytes(server.process.pid) - before < 4 * MIB
    waiting = [RawConnection(server.url) for _ in range(200)]
    for connection in waiting:
        connection.send(padded(32 * KIB)[:-4])
    assert ask(server.url, head()).status == 200
    assert rss_bytes(server.process.pid) - before < 200 * 96 * KIB
    for connection in waiting:
        connection.socket.close()


# ------------------------------------------------------------ seconds


def test_the_limits_are_those_that_security_states() -> None:
    chosen, limits = Settings(), Limits.of(Settings())
    assert (limits.head_bytes, limits.headers, limits.pipelined) == (32 * KIB, 100, 16)
    assert (limits.framing_bytes, limits.framing_ratio) == (64 * KIB, 16)
    assert (limits.head_s, limits.keep_alive_s, limits.linger_s, limits.send_idle_s) == (20, 75, 5, 60)
    assert (chosen.body_idle_s, chosen.body_rate_min, chosen.max_message_bytes) == (30, 4 * KIB, 256 * KIB)


def admit(admission: Admission) -> AdmittedConnection:
    found = admission.admit("127.0.0.1")
    assert found is not None
    return found


def test_an_idle_connection_is_closed_in_the_end() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("here")(scope, receive, send)

    async def scenario() -> tuple[list[Problem], bytes]:
        config, refused = Config(app, log_config=None, ws="none"), list[Problem]()
        config.load()
        admission = Admission(Settings(), 100)
        limits = Limits(head_bytes=KIB, head_s=20, send_idle_s=20, keep_alive_s=0)
        options = {"config": config, "server_state": ServerState(), "app_state": {}}
        listening = await asyncio.get_running_loop().create_server(
            lambda: SmallReads(BoundedHttp(limits, admission, admit(admission), refused.append, [], **options)),
            "127.0.0.1",
        )
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(head())
        received = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        listening.close()
        return refused, received

    refused, received = asyncio.run(scenario())
    assert received.endswith(b"here")
    assert refused == []


def test_few_connections_read_large_pieces_and_many_hold_little_together() -> None:
    connections: list[object] = []
    reads = SmallReads(cast("BoundedHttp", Mock(connections=connections)))
    sizes = {}
    for count in (0, 1, 100, 300, 513, 10_000):
        connections[:] = [None] * count
        sizes[count] = len(reads.get_buffer(-1))
    assert sizes[0] == sizes[1] == sizes[100] == 120 * KIB, "below 128 KiB, from which on each copy is mapped anew"
    assert all(size == 32 * KIB or size * count <= 16 * KIB**2 for count, size in sizes.items())
    assert 32 * KIB < sizes[300] < 120 * KIB
    assert sizes[513] == sizes[10_000] == 32 * KIB


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"G", head()[:-2], head() + head()[:-2]])
def test_half_a_head_is_refused_in_time(hasty: Server, begun: bytes) -> None:
    with RawConnection(hasty.url) as connection:
        connection.send(begun)
        if begun.startswith(head()):
            assert connection.read().status == 200
        answer = connection.read()
        assert (answer.status, answer.kind()) == (408, "request-timeout")
        assert connection.closed()


@pytest.mark.slow
def test_a_head_in_drops_has_no_more_time(hasty: Server) -> None:
    with RawConnection(hasty.url) as connection:
        connection.send(b"GET / HTTP/1.1\r\nX: ")
        assert drop_by_drop(connection).kind() == "request-timeout"


def drop_by_drop(connection: RawConnection) -> RawAnswer:
    """Sends a byte every 50 ms until there is an answer, and returns it."""
    began = time.monotonic()
    while time.monotonic() - began < 10:
        connection.send(b"x")
        if select.select([connection.socket], [], [], 0.05)[0]:
            return connection.read()
    raise AssertionError("there is no answer")


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n"])
def test_a_connection_without_a_request_closes(hasty: Server, sent: bytes) -> None:
    with RawConnection(hasty.url) as connection:
        connection.send(sent)
        assert connection.closed()


@pytest.mark.slow
def test_blank_lines_do_not_hold_an_answered_connection(hasty: Server) -> None:
    with RawConnection(hasty.url) as connection:
        connection.send(head())
        assert connection.read().status == 200
        connection.send(b"\r\n")
        assert connection.closed()


@pytest.mark.slow
def test_an_idle_connection_is_for_the_next_request(hasty: Server) -> None:
    with RawConnection(hasty.url) as connection:
        for _ in range(2):
            connection.send(head())
            assert connection.read().status == 200
            connection.socket.settimeout(0.6)
            with pytest.raises(TimeoutError):
                connection.closed()
            connection.socket.settimeout(5)


def lines(server: Server, *more: str, body: bytes = b"") -> list[str]:
    return [*more, *server.device().lines("POST", Route.CHECK_IN, body)]


@pytest.mark.slow
def test_a_message_that_never_comes_is_truncated(hasty: Server) -> None:
    with RawConnection(hasty.url) as connection:
        connection.send(head(Route.CHECK_IN, *lines(hasty, "Content-Length: 100"), method="POST") + b"{")
        answer = connection.read()
        assert (answer.status, answer.kind()) == (400, "truncated")
        assert "after 1 bytes" in answer.json()["detail"]


@pytest.mark.slow
def test_a_body_in_drops_is_too_slow(hasty: Server) -> None:
    """A byte every 50 ms: never idle, and below the slowest rate."""
    digest = "0" * 64
    with RawConnection(hasty.url) as connection:
        path = Route.CHECKPOINT.format(digest=digest)
        connection.send(head(path, hasty.key_line, "Content-Length: 100000", method="PUT"))
        answer = drop_by_drop(connection)
        assert answer.kind() == "truncated"
        assert "at less than 1e+06 bytes a second" in answer.json()["detail"]


def test_extensions_and_trailers_without_end_are_refused(server: Server) -> None:
    body = b'{"hold_s": 0}' + b" " * 100_000
    chunked = head(Route.CHECK_IN, *lines(server, "Transfer-Encoding: chunked", body=body), method="POST")
    for endless in (b"1;" + b"x" * 300_000, b"2\r\n{}\r\n0\r\nX: " + b"x" * 300_000):
        with RawConnection(server.url) as connection:
            connection.send(chunked + endless)
            assert connection.read().kind() == "malformed-request"
            assert connection.closed()
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    assert ask(server.url, chunked + small).json()["kind"] == "wait", "one byte a chunk is no attack"


def test_repro_the_end_of_a_long_body_and_the_next_head_in_one_read(server: Server) -> None:
    """The bytes of the first body are no framing of the second."""
    long = 1_000_000
    with RawConnection(server.url) as connection:
        connection.send(head(Route.CHECK_IN, *lines(server, f"Content-Length: {long}"), method="POST"))
        assert connection.read().kind() == "too-large"
        connection.send(b" " * (long - 10))
        chunked = lines(server, "Transfer-Encoding: chunked", body=b'{"hold_s":0}')
        connection.send(b" " * 10 + head(Route.CHECK_IN, *chunked, method="POST"))
        connection.send(b'c\r\n{"hold_s":0}\r\n0\r\n\r\n')
        assert connection.read().json()["kind"] == "wait"


@pytest.mark.parametrize("chunked", [False, True])
def test_repro_a_body_that_ends_like_a_head_gives_the_next_head_no_more_bytes(server: Server, chunked: bool) -> None:
    """They were taken off what the head was counted to have: as many more came in before it was refused."""
    body = b" " * (60 * KIB) + b"\r\n\r\n"
    framed = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if chunked else body
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    with RawConnection(server.url) as connection:
        connection.send(head(Route.CHECK_IN, length, method="POST") + framed + b"GET /healthz HTTP/1.1\r\nX: ")
        assert connection.read().status == 426
        connection.send(b"x" * 40 * KIB)
        assert connection.read().kind() == "headers-too-large"


@pytest.mark.slow
def test_the_rest_of_a_refused_body_is_read_for_some_seconds_only(server: Server) -> None:
    with RawConnection(server.url) as connection:
        connection.send(head(Route.CHECK_IN, "Content-Length: 1000000", method="POST"))
        assert connection.read().status == 426
        began = time.monotonic()
        assert connection.closed()
        assert 3 < time.monotonic() - began < 15
    with RawConnection(server.url) as connection:
        connection.send(head(Route.CHECK_IN, "Content-Length: 1000000", method="POST"))
        assert connection.read().status == 426
        connection.send(b"x" * 1_000_000 + head())
        assert connection.read().json() == {"ok": True}, "who sends the rest goes on"


@pytest.mark.slow
def test_a_receiver_that_reads_nothing_is_disconnected(hasty: Server) -> None:
    """The meter counts a download when its file and its socket are closed. The client sees nothing: its window is
    full."""
    path = upload(hasty, to_bytes({"x": np.zeros(4_000_000, np.float32)}), "large")
    ended = f'quorate_requests_total{{method="GET",route="{Route.CHECKPOINT}",status="200"}}'
    with RawConnection(hasty.url) as connection:
        connection.send(head(path, hasty.key_line))
        until(lambda: hasty.meter(ended) == 1)
    assert len(hasty.http.get(path).content) > 16_000_000
