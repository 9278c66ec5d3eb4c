"""What dashboards cost the coordinator, and how soon a person sees something.

    viewers_200_core_share    what 200 viewers, logged in, of two scopes, add to the server's CPU, in cores
    viewers_2000_core_share   the same of ten times as many: a control, which costs more if the number is real
    viewers_0_server_share    the server's CPU without viewers, in cores
    first_paint_s             from the opening of a login link to the browser's first contentful paint
    first_numbers_s           from there to the first numbers of a run on the page

Viewers watch one round of 300 devices. In it nothing happens but that each second another device begins to train, so
that the load is steady and each frame has a change. Windows with no, 200 and 2,000 viewers follow each other, their
order rotates, and the values are medians of what a turn's windows differ by.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

import httpx2

from benchmarks._first_paint import first_paint
from benchmarks._progress import counted
from benchmarks._wire import ServerProcess, enrol
from benchmarks.coordinator import Federation, on_a_server
from benchmarks.harness import Row, Spread, main
from client_sdk.protocol.access import REQUEST_HEADER, REQUEST_VALUE
from client_sdk.protocol.names import Route

VIEWERS = 200
SCOPES = ("*", "live*")
SESSIONS = 10
"""Of each key: an operator may have 16."""
DEVICES = 300
ADDRESSES = 20
"""From which viewers come: one address may have so many connections."""
MANY = 10 * VIEWERS
COUNTS = (0, VIEWERS, MANY)
PAUSE_S = 1.0
"""Between two devices that begin to train."""
SETTLE_S = 1.0
"""After all viewers have their first frame, before the window begins: to connect costs more than to view."""
WINDOW_S = 6.0
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


async def view(server: ServerProcess, number: int, cookie: str, seen: list[int]) -> None:
    """Reads one stream until it is cancelled, and counts its frames."""
    source = f"127.2.0.{number % ADDRESSES + 1}"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0))
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


async def start_one_by_one(federation: Federation) -> None:
    """A round of which nothing happens but that a device begins to train, at a fixed rate: each changes the funnel."""
    for peer, work in zip(federation.peers, await federation.gather(), strict=True):
        where = {name: work[name] for name in ("run", "round", "attempt")}
        peer.connection.close()  # the server may have closed it: minutes have passed
        await peer.request("POST", Route.STARTED.format(**where), b'{"attempt": 0}')
        await asyncio.sleep(PAUSE_S)


async def windows(server: ServerProcess, times: int) -> tuple[dict[int, list[float]], float]:
    """(The server's CPU by the number of viewers, in cores; frames that a viewer got in a second.)"""
    federation = Federation(server, await enrol(server, DEVICES), 16)
    await federation.create("live")
    sessions = await asyncio.to_thread(cookies, server)
    starting = asyncio.create_task(start_one_by_one(federation))
    shares: dict[int, list[float]] = {count: [] for count in COUNTS}
    frames, viewed_s = 0, 0.0
    for turn in counted("windows of each number of viewers", range(times)):
        for place in range(len(COUNTS)):
            count, seen = COUNTS[(turn + place) % len(COUNTS)], [0]
            viewers = [asyncio.create_task(view(server, n, sessions[n % VIEWERS], seen)) for n in range(count)]
            while seen[0] < count:
                await asyncio.sleep(0.1)
                raise_failures(viewers)
            await asyncio.sleep(SETTLE_S)
            spent, began, before = server.cpu_s(), time.perf_counter(), seen[0]
            await asyncio.sleep(WINDOW_S)
            took = time.perf_counter() - began
            shares[count].append((server.cpu_s() - spent) / took)
            if count == VIEWERS:
                frames, viewed_s = frames + seen[0] - before, viewed_s + took
            await ended(viewers)
            await gone(federation)
    if starting.done():
        raise RuntimeError("all devices had started before the last window: nothing changed in it")
    await ended([starting])
    await federation.stop()
    return shares, frames / VIEWERS / viewed_s


async def gone(federation: Federation) -> None:
    """Returns when the server has no viewer any more: to part from them costs something too."""
    federation.operator.connection.close()  # the server may have closed it: on a busy machine a turn takes minutes
    while (await federation.operator.request("GET", Route.SYSTEM)).json()["viewers"]:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    """Raises what one of them has raised."""
    for task in tasks:
        if task.done():
            task.result()


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels them. Raises what one of them has raised before."""
    raise_failures(tasks)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)


def added(shares: dict[int, list[float]], count: int) -> Spread:
    """What so many viewers add, of the windows of each turn, in cores."""
    return Spread.of([more - none for more, none in zip(shares[count], shares[0], strict=True)])


def measure(quick: bool) -> Iterator[Row]:
    """The rows of this benchmark."""
    os.environ["QUORATE_VIEWERS"] = str(MANY)  # the server's limit
    shares, rate = on_a_server(lambda server: windows(server, 2 if quick else 7))
    share = added(shares, VIEWERS)
    yield Row(
        name="viewers_200_core_share",
        value=share.median,
        unit="cores",
        aim=AIM,
        met=share.met(AIM),
    )
    yield Row(name="viewers_2000_core_share", value=added(shares, MANY).median, unit="cores")
    yield Row(name="viewers_0_server_share", value=Spread.of(shares[0]).median, unit="cores")
    yield Row(name="viewers_200_frames_per_s", value=rate, unit="1/s", aim=1.0)
    yield from first_paint(1 if quick else 9)


if __name__ == "__main__":
    main("dashboard", measure)
