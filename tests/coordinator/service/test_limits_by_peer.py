"""What one address and one caller may use, over real sockets: others go on, and the answer says when to return."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from client_sdk.protocol.names import Route
from coordinator.limits.admission import MOST_KEYS, SMALL
from coordinator.network_settings import NetworkSettings
from coordinator.settings import Settings
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device
from tests.coordinator.service.raw import RawAnswer, RawConnection, ask, head
from tests.coordinator.service.test_rounds import until

KIB = 1024
FEW = {
    "REQUESTS_PER_ADDRESS": "0.0005",
    "BURST_PER_ADDRESS": "12",
    "REFUSALS_PER_ADDRESS": "0.0005",
    "REFUSAL_BURST_PER_ADDRESS": "3",
    "CONNECTIONS_PER_ADDRESS": "3",
    "REQUESTS_PER_CALLER": "0.0005",
    "BURST_PER_CALLER": "8",
    "UPLOADS_PER_CALLER": "2",
    "MESSAGE_MEMORY_BYTES": str(1024 * KIB),
}
"""Settings under which a test needs few requests, and no bucket gets a token back while it runs."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with low limits. Each test has addresses and devices of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FEW.items():
            patch.setenv(f"QUORATE_{name}", value)
        running = Server.start(tmp_path_factory.mktemp("strict") / "data")
    yield running
    running.stop()


def too_many(answer: RawAnswer) -> float:
    """Checks that it is a refusal that says when to return; returns the seconds."""
    assert (answer.status, answer.kind()) == (429, "too-many-requests")
    assert answer.json()["retryable"] is True
    assert int(answer.headers["retry-after"]) >= answer.json()["retry_after_s"]
    return float(answer.json()["retry_after_s"])


def test_the_limits_are_those_that_security_states() -> None:
    chosen = NetworkSettings()
    assert (chosen.requests_per_address, chosen.burst_per_address, chosen.connections_per_address) == (100, 1000, 512)
    assert (chosen.requests_per_caller, chosen.burst_per_caller) == (20, 400)
    assert (chosen.message_memory_bytes, SMALL, MOST_KEYS) == (256 * KIB * KIB, 16 * KIB, 65_536)
    assert (chosen.refusals_per_address, chosen.refusal_burst_per_address) == (1, 50)
    assert (Settings().uploads, Settings().uploads_per_caller, Settings().upload_disk_bytes) == (64, 4, 256 * KIB**3)
    assert [str(network) for network in chosen.unlimited] == ["127.0.0.1/32", "::1/128"]


@pytest.mark.slow
def test_requests_of_an_address_are_counted_before_they_are_routed(strict: Server) -> None:
    source = "127.0.0.2"
    for _ in range(12):
        assert ask(strict.url, head(), source).status == 200
    with RawConnection(strict.url, source) as connection:
        connection.send(head("/v1/nowhere"))
        answer = connection.read()
        assert 1900 <= too_many(answer) <= 4000
        assert answer.headers["connection"] == "close"
        assert connection.closed()
    assert ask(strict.url, head(), "127.0.0.3").status == 200
    assert strict.http.get("/healthz").status_code == 200
    assert strict.meter('quorate_problems_total{kind="too-many-requests"}') >= 1


@pytest.mark.slow
def test_who_goes_on_is_closed_without_an_answer(strict: Server) -> None:
    source, answered = "127.0.0.4", 0
    for _ in range(40):
        with RawConnection(strict.url, source) as connection:
            connection.send(head())
            answered += b"HTTP" in connection.drain(5, half_closed=True)
    assert answered == 24


@pytest.mark.slow
def test_many_bad_credentials_end_the_connection_and_there_is_no_new_one(strict: Server) -> None:
    source = "127.0.0.5"
    bad = ("Quorate-Protocol: 2", "Authorization: Bearer nobody", "Content-Length: 2")
    with RawConnection(strict.url, source) as before, RawConnection(strict.url, source) as connection:
        for number in range(4):
            connection.send(head(Route.CHECK_IN, *bad, method="POST") + b"{}")
            answer = connection.read()
            assert (answer.status, answer.headers.get("connection")) == (401, "close" if number == 3 else None)
        assert connection.closed()
        assert RawConnection(strict.url, source).closed()
        before.send(head())
        assert before.read().status == 200


@pytest.mark.slow
def test_connections_of_an_address_are_bounded(strict: Server) -> None:
    source = "127.0.0.6"
    idle = [RawConnection(strict.url, source) for _ in range(3)]
    assert RawConnection(strict.url, source).closed()
    assert ask(strict.url, head(), "127.0.0.7").status == 200
    for connection in idle:
        connection.socket.close()
    for _ in range(100):  # the server notices
        with RawConnection(strict.url, source) as connection:
            connection.send(head())
            if connection.drain(0.2, half_closed=False):
                break
    else:
        raise AssertionError("the places were not given back")


@pytest.mark.slow
def test_requests_of_a_device_are_counted_wherever_it_is(strict: Server) -> None:
    device, other = strict.device(), strict.device()
    for _ in range(7):  # after its registration
        assert device.check_in().status_code == 200
    answer = device.check_in()
    assert answer.status_code == 429
    assert "The device sends too many requests" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 20
    assert other.check_in().status_code == 200


def begin(server: Server, device: Device, path: str, body: bytes, sent: bytes) -> RawConnection:
    """A request of a device whose body is not complete."""
    connection = RawConnection(server.url)
    lines = [f"Content-Length: {len(body)}", *device.lines("PUT", path, body)]
    connection.send(head(path, *lines, method="PUT") + sent)
    return connection


@pytest.mark.slow
def test_a_device_has_a_few_bodies_under_way(strict: Server) -> None:
    run = strict.create_run("several-bodies")
    device = strict.device(run)
    work = device.wait_for_work()
    path = Route.UPDATE.format(run=run, round=work.round, attempt=work.attempt)
    body = device.body(work)
    first = begin(strict, device, path, body, body[:10])
    second = begin(strict, device, path, body, body[:10])
    until(lambda: strict.meter("quorate_uploads") == 2)
    third = begin(strict, device, path, body, body)
    too_many(third.read())
    second.socket.close()
    first.send(body[10:])
    assert first.read().status == 200


@pytest.mark.slow
def test_long_messages_of_one_address_are_bounded_together(strict: Server) -> None:
    device = strict.device()
    long = b" " * (60 * KIB)

    def open_one(source: str) -> RawConnection:
        connection, lines = RawConnection(strict.url, source), device.lines("POST", Route.CHECK_IN)
        connection.send(head(Route.CHECK_IN, "Content-Length: 100000", *lines, method="POST") + long)
        return connection

    first = open_one("127.0.0.8")
    refused = open_one("127.0.0.8")
    answers = [found for found in (received(refused), received(first)) if found is not None]
    assert [answer.status for answer in answers] == [429]
    assert "long messages" in answers[0].json()["detail"]
    assert received(open_one("127.0.0.9")) is None


def received(connection: RawConnection) -> RawAnswer | None:
    """The answer, if there is one within half a second."""
    connection.socket.settimeout(0.5)
    try:
        return connection.read()
    except TimeoutError:
        return None


def test_nothing_is_decompressed(server: Server) -> None:
    device = server.device()
    bomb = gzip.compress(b" " * 1024 * KIB)
    answer = device.send("POST", Route.CHECK_IN, content=bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/compressed")
    message = b'{"examples": 1, "learners": {}, "hold_s": 0}'
    plain = device.send("POST", Route.CHECK_IN, content=message, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200, plain.text
