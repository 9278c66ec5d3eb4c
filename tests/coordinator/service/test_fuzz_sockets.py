"""Random bytes to a socket never cause a 5xx answer, a traceback in the log, or more memory than a stated bound.

What is drawn is mostly near HTTP: requests with odd header values, requests with bytes changed, words of HTTP in any
order, and some noise. Each search takes other examples than the one before.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks._wire import rss_bytes
from client_sdk.protocol.names import DIGEST_HEADER, PROTOCOL_HEADER, Route
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import model_bytes
from tests.coordinator.service.raw import RawConnection, head
from tests.rotating import on_day

EXAMPLES = 120
GROWTH_BYTES = 32 * 1024 * 1024
"""Growth of the server's resident memory while it is searched: caches, counters, freed blocks; nothing for each
request."""
WARM = 40
DIGEST = model_bytes()[1]

PATHS = [
    *("/healthz", "/readyz", "/metrics", "/openapi.json", "/", "*", Route.RUNS, Route.DEVICES, Route.CHECK_IN),
    *([Route.CHECKPOINT.format(digest=DIGEST)] * 4),
    *(Route.RUN.format(run="fuzzed"), Route.EVENTS.format(run="fuzzed") + "?follow=false"),
    *(Route.UPDATE.format(run="fuzzed", round=1, attempt=0), Route.RUN_ACTION.format(run="fuzzed", action="resume")),
]
NINES = "9" * 5000
HEADERS = {
    "Range": ["bytes=0-", "bytes=-", f"bytes={NINES}-", f"bytes=-{NINES}", f"bytes=0-{NINES}", "bytes=0-1,3-"],
    "If-Range": ['"x"', f'"{DIGEST}"'],
    "If-None-Match": ["*", 'W/"x"'],
    "Origin": ["http://[", "null", "http://localhost"],
    "Host": ["", "localhost", "LOCALHOST.", "[::1]", "[", "evil.example"],
    "Content-Length": ["0", "1", "5", "-1", "1, 1", NINES],
    "Transfer-Encoding": ["chunked", "identity", "gzip, chunked"],
    "Connection": ["close", "Upgrade", "keep-alive"],
    "Upgrade": ["h2c", "websocket"],
    "Expect": ["100-continue", "x"],
    "Last-Event-ID": ["0", NINES, "\xb2", "-1"],
    "Authorization": ["", "Bearer", "Bearer ", "Bearer x", "Basic eDp4"],
    "Content-Type": ["application/json", "text/plain; charset=x", "\xff"],
    "X-Forwarded-For": ["::1", "x, y"],
    "X-Forwarded-Proto": ["https", "\xff"],
    DIGEST_HEADER: ["sha-256=:AAAA:", f"sha-256=:{'A' * 43}=:"],
    PROTOCOL_HEADER: ["1", "0", NINES, "\xb2"],
}
WORDS = [
    *(
        b"GET ",
        b"POST ",
        b"PUT ",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"\0",
        b":",
        b" ",
        b"\t",
    ),
    *(b"Host: localhost\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"5;a=b\r\n"),
    *(b"hello", b"{}", b"%00", b"%ff", b"?", b"/", b"//", b"http://", b"x" * 5000, b"\xff" * 100),
]
METHODS = st.sampled_from(
    ["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"]
)

texts = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40)
odd_lines = st.sampled_from([f"{name}: {value}" for name, values in HEADERS.items() for value in values])
header_lines = st.one_of(odd_lines, odd_lines, st.builds("{}: {}".format, st.sampled_from(sorted(HEADERS)), texts))
requests = st.builds(
    lambda path, lines, method, body: head(path, *lines, method=method) + body,
    st.sampled_from(PATHS),
    st.lists(header_lines, max_size=6),
    METHODS,
    st.one_of(st.just(b""), st.just(b"5\r\nhello\r\n0\r\n\r\n"), st.binary(max_size=200)),
)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A request with some bytes replaced, removed or added."""
    sent = bytearray(draw(requests))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(sent)))
        sent[at : at + draw(st.integers(0, 3))] = draw(st.one_of(st.binary(max_size=3), st.sampled_from(WORDS)))
    return bytes(sent)


sendings = st.lists(
    st.one_of(
        requests,
        requests,
        changed(),
        st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=40)), max_size=30).map(b"".join),
        st.binary(max_size=300),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short times, and a run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEAD_S", "BODY_IDLE_S", "SEND_IDLE_S"):
            patch.setenv(f"QUORATE_{name}", "0.1")
        running = Server.start(tmp_path_factory.mktemp("fuzzed") / "data")
    running.create_run("fuzzed")
    log = running.log  # reads from now on
    yield running
    running.stop()
    text = log.text()
    assert "Traceback" not in text, text[-5000:]
    assert '"bug"' not in text, text[-5000:]
    assert "xception" not in text, text[-5000:]


def search(server: Server, examples: int) -> None:
    """Sends so many examples on connections of their own, and reads each to its end."""
    suppressed = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @settings(max_examples=examples, deadline=None, derandomize=False, database=None, suppress_health_check=suppressed)
    @given(parts=sendings, half_closed=st.booleans())
    def send(parts: list[bytes], half_closed: bool) -> None:
        with RawConnection(server.url) as connection:
            for part in parts:
                connection.send(part)
            received = connection.drain(0.3, half_closed=half_closed)
        assert re.search(rb"HTTP/1\.1 5\d\d", received) is None, received[:2000]

    send()


@on_day(2, of=3)
def test_random_bytes_cause_no_5xx_no_traceback_and_no_growth(fuzzed: Server) -> None:
    search(fuzzed, WARM)
    before = rss_bytes(fuzzed.process.pid)
    search(fuzzed, EXAMPLES)
    assert rss_bytes(fuzzed.process.pid) - before < GROWTH_BYTES
    assert fuzzed.http.get("/readyz").json()["ok"]
    assert fuzzed.process.poll() is None


@pytest.mark.soak
def test_soak(fuzzed: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """``make soak``: for SOAK_SECONDS. The bound is the same however long it takes."""
    seconds, began, sent = float(os.environ.get("SOAK_SECONDS", "600")), time.monotonic(), 0
    search(fuzzed, 5 * WARM)
    before = rss_bytes(fuzzed.process.pid)
    while time.monotonic() - began < seconds:
        search(fuzzed, 500)
        sent += 500
    growth = rss_bytes(fuzzed.process.pid) - before
    with capsys.disabled():
        print(f"\n{sent} connections of random bytes; resident memory grew by {growth / 1e6:.1f} MB")
    assert growth < GROWTH_BYTES
    assert Path(f"/proc/{fuzzed.process.pid}").exists()
