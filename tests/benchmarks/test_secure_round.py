"""The benchmark of whole secure rounds: what it counts is what is sent, its floor answers as the round did, and a wrong
sum ends it."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from benchmarks import secure_round
from benchmarks._secure_fleet import VANISH, Fleet, Notes
from benchmarks._wire import Connection, ServerProcess
from benchmarks.secure_round import Rounds, bytes_beside_float32, cpu
from client_sdk.protocol.names import Route
from tests.rotating import on_day

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Long: " + b"y" * 90 + b"\r\n\r\nabc"


def test_counted_bytes_are_those_on_the_wire() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    came = bytearray()

    def serve() -> None:
        with listener.accept()[0] as connection:
            while not came.endswith(b"z" * 5000):
                came.extend(connection.recv(65536))
            connection.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    notes = Notes()
    with notes.http(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
        http.put("/v1/runs/x?y=1", content=b"z" * 5000, headers={"Quorate-Secure": "s" * 70})
    thread.join()
    listener.close()
    (noted,) = notes.requests
    assert (noted.sent, noted.received) == (len(came), len(ANSWER))
    assert (noted.body, noted.answer, noted.is_download) == (b"z" * 5000, b"abc", False)


def test_repro_an_answer_of_not_yet_has_no_length() -> None:
    """A device whose wait was in vain gets 204, without a body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"HTTP/1.1 204 No Content\r\n\r\n", ANSWER):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        await writer.drain()
        writer.close()

    async def ask() -> list[tuple[int, bytes]]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = Connection(server.sockets[0].getsockname()[1])
            answers = [await connection.request("GET", "/") for _ in range(2)]
            connection.close()
            return [(answer.status, answer.body) for answer in answers]

    assert asyncio.run(ask()) == [(204, b""), (200, b"abc")]


@on_day(1, of=4)
def test_a_round_beside_its_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_round, "EACH", 1)
    rounds = Rounds(tmp_path, 12, 20_000, 5.0, 1)
    assert sorted(rounds.vanishing.values()) == sorted(VANISH)
    rows = {row.name: row for row in cpu(rounds)}
    whole = rows["secure_round_server_cpu_s"]
    assert whole.value is not None
    assert whole.limit is not None
    assert rows["secure_round_server_cpu_vs_floor"].aim == 1.5
    assert whole.limit == rounds.empty[0] + rounds.opening[0]
    assert rows["secure_round_requests"].value == rounds.requests > 12 * 10

    routes = [noted.path.rsplit("/", 1)[1] for noted in rounds.stayed.requests if noted.method == "PUT"]
    assert routes == ["advertise", "share", "mask", "survivors", "unmask"]
    exchanged = {row.name: row for row in bytes_beside_float32(12, 20_000, rounds.stayed, rounds.plain)}
    assert 80_000 < rounds.plain.bytes < 80_000 + 6500, "the update, and the heads and answers of a round"
    large = exchanged["http_bytes_1m_q16_vs_float32"].value
    assert large is not None
    assert 20 / 32 < large < 20 / 32 + 0.01, "twelve devices sum lanes of 20 bits"


@on_day(0, of=2)
def test_a_wrong_sum_is_never_reported(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        fleet = Fleet(server, 6, 10_000, 20.0, 1)
        fleet.play({})
        first = fleet._last
        fleet.require_right(1, {})
        fleet._last = first
        with pytest.raises(SystemExit, match="wrong results"):
            fleet.require_right(1, {2: VANISH[1]})
        fleet._last = first
        fleet.members[5].multiple *= 1.01
        with pytest.raises(SystemExit, match="wrong results"):
            fleet.require_right(1, {})
        fleet.close()
        assert [noted.path for noted in fleet.members[0].notes.requests].count(Route.CHECK_IN) == 1
