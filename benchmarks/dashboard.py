"""What dashboards cost the coordinator: 200 viewers, logged in, of two scopes, of a live round of 300 devices.

Each sample is one whole round, stretched over so many seconds that something happens all the time, once with the
viewers and once without them, in turn. The value is what the viewers add to the server's CPU, in cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import httpx2

from benchmarks._wire import ServerProcess, enrol
from benchmarks.coordinator import Federation, on_a_server
from benchmarks.harness import Row, Spread, main
from client_sdk.protocol.names import Route
from client_sdk.protocol.sessions import REQUEST_HEADER, REQUEST_VALUE

VIEWERS = 200
SCOPES = ("*", "live*")
SESSIONS = 10
"""Of each key: an operator may have 16."""
DEVICES = 300
AIM = 0.05


def cookies(server: ServerProcess) -> list[str]:
    """The cookies of so many sessions as there are viewers, half of them of each scope."""
    found = []
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url) as http:
        for number in range(VIEWERS // SESSIONS):
            asked = {"role": "viewer", "scope": SCOPES[number % len(SCOPES)]}
            key = http.post(Route.KEYS, json=asked, headers=headers).raise_for_status().json()["text"]
            for _ in range(SESSIONS):
                proof = {"Origin": server.url, REQUEST_HEADER: REQUEST_VALUE}
                answer = http.post(Route.SESSIONS, json={"key": key}, headers=proof)
                found.append(answer.raise_for_status().headers["set-cookie"].partition(";")[0])
                http.cookies.clear()
    return found


async def view(server: ServerProcess, cookie: str, seen: list[int]) -> None:
    """Reads one stream until it is cancelled, and counts its frames."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(
            f"GET {Route.STREAM} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"a viewer was refused: {status!r}")
        while line := await reader.readline():
            seen[0] += line.startswith(b"id:")
        raise RuntimeError("a stream has ended")
    finally:
        writer.close()


async def live_round(federation: Federation, version: int, seconds: float) -> float:
    """Plays one round over so many seconds. The server's CPU while it lasted, in cores."""
    work = await federation.gather()
    spent, began = federation.server.cpu_s(), time.perf_counter()
    body = federation.update(work[0])

    async def one(number: int) -> None:
        where = {name: work[number][name] for name in ("run", "round", "attempt")}
        await asyncio.sleep(seconds * number / (2 * DEVICES))
        await federation.peers[number].request("POST", Route.STARTED.format(**where), b'{"attempt": 0}')
        await asyncio.sleep(seconds / 2)
        await federation.peers[number].request("PUT", Route.UPDATE.format(**where), body)

    await asyncio.gather(*map(one, range(DEVICES)))
    await federation.committed(version)
    return (federation.server.cpu_s() - spent) / (time.perf_counter() - began)


async def pairs(server: ServerProcess, count: int, seconds: float) -> tuple[list[float], float]:
    """(What the viewers add in each pair, in cores; frames that a viewer got in a second.)"""
    federation = Federation(server, await enrol(server, DEVICES), 16)
    await federation.create("live")
    await live_round(federation, 1, seconds / 4)
    sessions = await asyncio.to_thread(cookies, server)
    version, added, seen, viewed_s = 1, [], [0], 0.0
    for pair in range(count):
        found = {}
        for viewed in (True, False) if pair % 2 == 0 else (False, True):
            version += 1
            viewers = [asyncio.create_task(view(server, cookie, seen)) for cookie in sessions] if viewed else []
            if viewed:
                await asyncio.sleep(2)
                viewed_s -= time.perf_counter()
            found[viewed] = await live_round(federation, version, seconds)
            viewed_s += time.perf_counter() if viewed else 0.0
            for viewer in viewers:
                if viewer.done():
                    viewer.result()
                viewer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*viewers)
        added.append(found[True] - found[False])
    await federation.stop()
    return added, seen[0] / VIEWERS / viewed_s


def measure(quick: bool) -> Iterator[Row]:
    """The rows of this benchmark."""
    added, rate = on_a_server(lambda server: pairs(server, 2 if quick else 9, 8 if quick else 20))
    spread = Spread.of(added)
    yield Row(name="viewers_200_core_share", value=spread.median, unit="cores", aim=AIM, met=spread.met(AIM))
    yield Row(name="viewers_200_frames_per_s", value=rate, unit="1/s", aim=1.0)


if __name__ == "__main__":
    main("dashboard", measure)
