"""Measures a coordinator: the server as a process of its own, over real sockets, on SQLite with synchronous=FULL.

    noop_round_300_server_cpu_s   CPU of the server for one whole round: 300 devices check in (held), fetch a tiny
                                  model, send *started* and an update; all count; commit. Median without the first.
                                  *limit*: the same round of the barest FastAPI app (``_noop_floor``), in turn with ours
    noop_round_300_vs_floor       the median of the pairs' ratios, with its quartiles
    noop_round_300_s              wall seconds of the same round, from the first check-in to the commit
    checkins_per_s                check-ins answered in a second while no run is open; each is a durable row
    checkin_p50_s                 seconds until half of them have been answered
    checkin_server_cpu_s          CPU seconds of the server for one; *peer* is the load generator's, on the same cores
    enrol_server_cpu_s            CPU seconds of the server, which has the authority inside, for the first certificate
                                  of a key, where 64 connections ask; *register* is of its registration
    upload_mb_per_s               from the first byte of a 4 MB update to the last receipt: hashed, synced, validated
    upload_100mb_vs_bare_app      CPU seconds of the server for an update of 100 MB, over those of a bare ASGI app that
                                  receives, hashes, writes and syncs the same bytes; *value* is ours
    round_256x1m_peak_models      growth of the server's peak memory over a round of 256 updates of 1M float32,
                                  in models of 4 MB

From the check-ins on, medians of five fresh servers. ``--quick``: fewer rounds, one server each; the same names. The
peer is Flower 1.41's SuperLink: 155 to 230 ms of CPU a device in a no-op round, extrapolated to 300.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from benchmarks import _noop_floor
from benchmarks._bare_upload import BareApp
from benchmarks._progress import counted
from benchmarks._wire import (
    Answer,
    Connection,
    Credentials,
    MeasuredProcess,
    Peer,
    ServerProcess,
    bearer,
    enrol,
    enrolment,
    signing,
)
from benchmarks.harness import Pairs, Row, Spread, main
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import AuthorityRoute
from client_sdk.protocol.devices import CheckIn, Registration, Work
from client_sdk.protocol.names import Route
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Seconds, Update, encode_update

DEVICES = 300
LARGE = 1_000_000
"""Float32 parameters of the large model: 4 MB."""
LONG = 25_000_000
"""Of the longest: 100 MB."""
SENDERS = 16
"""Connections that send large updates at the same time."""
WARM_ROUNDS = 3
"""Rounds of a tiny model before memory is measured, which load code, connections and the database's caches."""
FLOWER_ROUND_CPU_S = 48.0
CPU_AIM_S, FLOOR_AIM = 0.55, 1.4
"""CPU seconds of the server for a round of 300, and how many times its floor."""
SAMPLES = 5
"""Fresh servers, each measured once, of which the median counts."""
LEARNER = "benchmarks:noop"
CHECK_IN = CheckIn(examples=100, learners={LEARNER: "1"}, hold_s=50).model_dump_json().encode()

T = TypeVar("T")


class Federation:
    """One run on one server, with devices that take part in all of its rounds."""

    def __init__(self, server: MeasuredProcess, peers: list[Peer], parameters: int, run: str = "") -> None:
        """``run``: one that is there already."""
        self.server = server
        self.peers = peers
        key = server.key if isinstance(server, ServerProcess) else ""
        self.operator = Peer(Connection(server.port), bearer(key))
        self.model: Tensors = {"x": np.zeros(parameters, np.float32)}
        self.run = run

    async def create(self, name: str) -> None:
        """Creates a run that selects all devices in each round."""
        body = to_bytes(self.model)
        digest = hashlib.sha256(body).hexdigest()
        await self.operator.request("PUT", Route.CHECKPOINT.format(digest=digest), body)
        count = len(self.peers)
        plan = {
            "name": name,
            "task": {"learner": LEARNER},
            "cohort": {"select": count, "goal": count, "select_s": 600, "collect_s": 600},
        }
        request = CREATE.replace(b"PLAN", _json(plan)).replace(b"INIT", digest.encode())
        self.run = (await self.operator.request("POST", Route.RUNS, request)).json()["run"]

    async def gather(self) -> list[dict[str, Any]]:
        """All devices check in and are held until the last one has; returns their assignments."""

        async def check_in(peer: Peer) -> dict[str, Any]:
            while (answer := (await peer.request("POST", Route.CHECK_IN, CHECK_IN)).json())["kind"] != "assignment":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return dict(answer)

        return await asyncio.gather(*map(check_in, self.peers))

    async def report(self, work: list[dict[str, Any]], *, at_once: int) -> None:
        """Every device fetches, starts, and sends an update of its own; at most ``at_once`` at the same time."""
        template = bytearray(self.update(work[0]))
        slots = asyncio.Semaphore(at_once)

        async def one(number: int, peer: Peer, task: dict[str, Any]) -> None:
            async with slots:
                where = _place(task)
                await peer.request("GET", Route.CHECKPOINT.format(digest=task["checkpoint"]["digest"]))
                await peer.request("POST", Route.STARTED.format(**where), b'{"attempt": 0}')
                body = bytes(template[:-4]) + np.float32(number / 1024).tobytes()
                await peer.request("PUT", Route.UPDATE.format(**where), body)

        await asyncio.gather(*(one(n, peer, task) for n, (peer, task) in enumerate(zip(self.peers, work, strict=True))))

    def update(self, task: dict[str, Any]) -> bytes:
        update = Update(self.model, 100, work=Work(steps=1, steps_planned=1))
        return encode_update(update, "float32@1", task["run"], task["round"], task["attempt"], Seconds())

    async def committed(self, version: int) -> None:
        """Returns when the run has this version."""
        while (await self.operator.request("GET", Route.RUN.format(run=self.run))).json()["version"] < version:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        await self.operator.request("POST", Route.RUN_ACTION.format(run=self.run, action="stop"))
        self.leave()

    def leave(self) -> None:
        for connection in (peer.connection for peer in (self.operator, *self.peers)):
            connection.close()


CREATE = b'{"plan": PLAN, "init": "INIT", "origin": "a benchmark"}'


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


class NoopRounds(NamedTuple):
    """Of each round but the first, and of the floor's round beside it."""

    cpu: Pairs
    """CPU seconds of the servers."""
    wall_s: list[float]


async def noop_rounds(server: ServerProcess, rounds: int) -> NoopRounds:
    """Rounds of ours and of the floor's in turn, by devices that send the same."""
    keys = [DeviceKey.create() for _ in range(DEVICES)]
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder, _floor(Path(folder), keys) as floor:
        ours = Federation(server, await enrol(server, DEVICES), 16)
        await ours.create("noop")
        peers = [Peer(Connection(floor.port), signing(floor.url, key)) for key in keys]
        barest = Federation(floor, peers, 16, _noop_floor.RUN)
        cpu: tuple[list[float], list[float]] = ([], [])
        wall: tuple[list[float], list[float]] = ([], [])
        for version in counted("rounds without training", range(1, rounds + 2)):
            for who, federation in enumerate((ours, barest)) if version % 2 else ((1, barest), (0, ours)):
                spent, began = federation.server.cpu_s(), time.perf_counter()
                await federation.report(await federation.gather(), at_once=DEVICES)
                await federation.committed(version)
                wall[who].append(time.perf_counter() - began)
                cpu[who].append(federation.server.cpu_s() - spent)
        await ours.stop()
        barest.leave()
    return NoopRounds(Pairs(tuple(cpu[0][1:]), tuple(cpu[1][1:])), wall[0][1:])


def _floor(folder: Path, keys: list[DeviceKey]) -> MeasuredProcess:
    public = folder / "keys.json"
    public.write_text(json.dumps([key.public_hex for key in keys]))
    return MeasuredProcess(sys.executable, "-m", "benchmarks._noop_floor", str(folder), str(public))


class CheckIns(NamedTuple):
    """Of 64 connections that check in without a pause."""

    per_s: float
    p50_s: float
    server_cpu_s: float
    """Of one check-in."""
    own_cpu_s: float
    """Of one check-in, for this process, which shares the cores with the server."""


async def checkins(server: ServerProcess, seconds: float) -> CheckIns:
    peers = await enrol(server, 64)
    body = CheckIn(examples=100, learners={LEARNER: "1"}, hold_s=0).model_dump_json().encode()
    until = time.perf_counter() + seconds
    waited = []

    async def check_in(peer: Peer) -> None:
        while (sent := time.perf_counter()) < until:
            await peer.request("POST", Route.CHECK_IN, body)
            waited.append(time.perf_counter() - sent)

    began, spent, own = time.perf_counter(), server.cpu_s(), time.process_time()
    await asyncio.gather(*map(check_in, peers))
    took_s, own = time.perf_counter() - began, time.process_time() - own
    spent, count = server.cpu_s() - spent, len(waited)
    for peer in peers:
        peer.connection.close()
    return CheckIns(count / took_s, statistics.median(waited), spent / count, own / count)


async def newcomers(server: ServerProcess, count: int) -> tuple[float, float]:
    """CPU seconds of the server for (an enrolment, a registration) of so many new devices on 64 connections. What they
    send is made before."""
    keys = [DeviceKey.create() for _ in range(count)]
    asked = [enrolment(server.token, key) for key in keys]
    connections = [Connection(server.port) for _ in range(64)]

    async def each(requests: Sequence[tuple[str, bytes, Credentials | None]]) -> tuple[list[Answer], float]:
        """The answers, and what one cost."""
        left, found = iter(enumerate(requests)), dict[int, Answer]()

        async def send(connection: Connection) -> None:
            for number, (path, body, credentials) in left:
                found[number] = (await connection.request("POST", path, body, credentials)).ok()

        spent = server.cpu_s()
        await asyncio.gather(*map(send, connections))
        return [found[number] for number in range(len(requests))], (server.cpu_s() - spent) / len(requests)

    answers, enrolled = await each([(AuthorityRoute.CERTIFICATES, body, None) for body in asked])
    messages = [Registration(certificate=answer.json()["certificate"], examples=100) for answer in answers]
    bodies = [message.model_dump_json().encode() for message in messages]
    _, registered = await each(
        [(Route.REGISTER, body, signing(server.url, key)) for body, key in zip(bodies, keys, strict=True)]
    )
    for connection in connections:
        connection.close()
    return enrolled, registered


async def large_round(server: ServerProcess, updates: int) -> tuple[float, float]:
    """(MB of updates in a second, growth of the server's peak memory in models) over one round of a 4 MB model."""
    peers = await enrol(server, updates)
    warm = Federation(server, peers, 16)
    await warm.create("warm")
    for version in range(1, WARM_ROUNDS + 1):
        await warm.report(await warm.gather(), at_once=SENDERS)
        await warm.committed(version)
    await warm.stop()
    federation = Federation(server, peers, LARGE)
    before = server.rss_bytes()
    server.reset_peak()
    await federation.create("large")
    work = await federation.gather()
    began = time.perf_counter()
    await federation.report(work, at_once=SENDERS)
    took_s = time.perf_counter() - began
    await federation.committed(1)
    growth = server.rss_bytes(peak=True) - before
    await federation.stop()
    return updates * LARGE * 4 / 1e6 / took_s, growth / (LARGE * 4)


async def long_uploads(server: ServerProcess, bare: BareApp, pairs: int) -> Pairs:
    """Rounds of two devices, of which the first sends its update here and to the bare app, in turn."""
    federation = Federation(server, await enrol(server, 2), LONG)
    await federation.create("long")
    ours, theirs = list[float](), list[float]()
    for number in counted("pairs of 100 MB", range(pairs + 1)):
        work = await federation.gather()
        for peer, task in zip(federation.peers, work, strict=True):
            await peer.request("POST", Route.STARTED.format(**_place(task)), b'{"attempt": 0}')
        body = federation.update(work[0])

        async def send(peer: Peer, body: bytes = body, work: list[dict[str, Any]] = work) -> None:
            await peer.request("PUT", Route.UPDATE.format(**_place(work[federation.peers.index(peer)])), body)

        for mine in (True, False) if number % 2 else (False, True):
            before = server.cpu_s() if mine else bare.cpu_s()
            await (send(federation.peers[0]) if mine else bare.connection.request("PUT", "/", body))
            (ours if mine else theirs).append((server.cpu_s() if mine else bare.cpu_s()) - before)
            await asyncio.sleep(0.5)  # the update is added meanwhile
        await send(federation.peers[1])
        await federation.committed(number + 1)
    await federation.stop()
    return Pairs(tuple(ours[1:]), tuple(theirs[1:]))


def _place(task: dict[str, Any]) -> dict[str, Any]:
    return {name: task[name] for name in ("run", "round", "attempt")}


def on_a_server(measure: Callable[[ServerProcess], Awaitable[T]]) -> T:
    """Measures on a fresh server in a fresh folder."""
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder, ServerProcess(Path(folder) / "data") as server:

        async def run() -> T:
            return await measure(server)

        return asyncio.run(run())


def measure(quick: bool) -> Iterator[Row]:
    """The rows of this benchmark."""
    noop = on_a_server(lambda server: noop_rounds(server, 3 if quick else 9))
    spent, ratio = Spread.of(noop.cpu.ours), noop.cpu.ratio
    name = "noop_round_300"
    yield Row(
        name=f"{name}_server_cpu_s",
        value=spent.median,
        unit="s",
        peer=FLOWER_ROUND_CPU_S,
        limit=noop.cpu.other_median,
        ratio=ratio.median,
        aim=CPU_AIM_S,
        met=spent.met(CPU_AIM_S),
    )
    met = ratio.met(FLOOR_AIM)
    yield Row(name=f"{name}_vs_floor", value=ratio.median, unit="ratio", ratio=ratio.median, aim=FLOOR_AIM, met=met)
    yield Row(name=f"{name}_vs_floor_q1", value=ratio.low, unit="ratio")
    yield Row(name=f"{name}_vs_floor_q3", value=ratio.high, unit="ratio")
    clock = Spread.of(noop.wall_s)
    yield Row(name=f"{name}_s", value=clock.median, unit="s", aim=3.0, met=clock.met(3.0))
    crowds = [on_a_server(lambda server: checkins(server, 2)) for _ in range(1 if quick else SAMPLES)]
    speed = Spread.of([crowd.per_s for crowd in crowds])
    yield Row(name="checkins_per_s", value=speed.median, unit="1/s", aim=1500.0, met=speed.met(1500.0, at_least=True))
    half = Spread.of([crowd.p50_s for crowd in crowds])
    yield Row(name="checkin_p50_s", value=half.median, unit="s", aim=0.03, met=half.met(0.03))
    each, own = (Spread.of([getattr(crowd, name) for crowd in crowds]).median for name in ("server_cpu_s", "own_cpu_s"))
    yield Row(name="checkin_server_cpu_s", value=each, unit="s", peer=own)
    for who, spent_s in zip(("enrol", "register"), on_a_server(lambda server: newcomers(server, 1_000)), strict=True):
        yield Row(name=f"{who}_server_cpu_s", value=spent_s, unit="s", aim=0.001, met=spent_s <= 0.001)
    with BareApp() as bare:
        long = on_a_server(lambda server: long_uploads(server, bare, 5 if quick else 9))
    yield Row(
        name="upload_100mb_vs_bare_app",
        value=long.ours_median,
        unit="CPU s",
        limit=long.other_median,
        ratio=long.ratio.median,
    )
    large = [on_a_server(lambda server: large_round(server, 256)) for _ in range(1 if quick else SAMPLES)]
    yield Row(name="upload_mb_per_s", value=Spread.of([speed for speed, _ in large]).median, unit="MB/s")
    models = Spread.of([grown for _, grown in large])
    yield Row(name="round_256x1m_peak_models", value=models.median, unit="models", aim=3.0, met=models.met(3.0))


if __name__ == "__main__":
    main("coordinator", measure)
