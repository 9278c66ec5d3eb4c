"""Attackers for ``benchmarks.abuse``, as a process of their own: each kind of abuse, from addresses of its own.

``python -m benchmarks._attackers PORT`` reads lines from its input: ``on``, ``off``, ``report`` (one line of JSON: the
CPU seconds of this process so far, and what was tried and answered of each kind).

==================== ==============================================================================================
kind                 what it does, all of the time, from each of its addresses
==================== ==============================================================================================
slow-loris           holds connections on which half a head, or half a body, comes a byte a second
oversize             announces 100 MB for a check-in, or sends it in chunks without end
bad credentials      check-ins with tokens that nobody has
enrolment            enrolments with a good form and a wrong token, each with a key of its own
==================== ==============================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route

ADDRESSES = 4
"""Addresses of each kind."""
SLOW = 64
"""Connections that one slow address tries to hold."""
PAUSE_S = 0.02
"""Between two tries of one address: 50 a second, and 150 a second of each kind but the slow one."""
CHECK_IN = b'{"examples": 1, "learners": {}, "hold_s": 0}'
ENROL = json.dumps({"public_key": "11" * 32, "enrolment_token": "x" * 64, "proof": "22" * 64, "examples": 1}).encode()


class Attackers:
    """All kinds of abuse against one port. ``on`` says whether they attack now."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.on = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def start(self) -> list[asyncio.Task[None]]:
        kinds: dict[str, Callable[[str], Awaitable[None]]] = {
            "slow-loris": self._slow,
            "oversize": self._oversize,
            "bad credentials": self._stranger,
            "enrolment": self._enrol,
        }
        return [
            asyncio.create_task(self._repeat(kind, attack, f"127.2.{number}.{host}"))
            for number, (kind, attack) in enumerate(kinds.items())
            for host in range(1, ADDRESSES + 1)
        ]

    async def _repeat(self, kind: str, attack: Callable[[str], Awaitable[None]], source: str) -> None:
        while True:
            await self.on.wait()
            self.counts[f"{kind} tried"] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(5):
                    await attack(source)
            await asyncio.sleep(PAUSE_S)

    async def _slow(self, source: str) -> None:
        opened = []
        try:
            for number in range(SLOW):
                _, writer = await self._open(source)
                opened.append(writer)
                whole = self._head("POST", Route.CHECK_IN, 1000) + b"{"
                writer.write(whole if number % 2 else whole[:40])
            for drop in range(40):
                await asyncio.sleep(0.1)
                if not self.on.is_set():
                    return
                if drop % 10 == 9:
                    for writer in opened:
                        writer.write(b"x")
        finally:
            for writer in opened:
                writer.close()

    async def _oversize(self, source: str) -> None:
        await self._send(source, "oversize", self._head("POST", Route.CHECK_IN, 100_000_000) + b" " * 65_536)

    async def _stranger(self, source: str) -> None:
        head = self._head("POST", Route.CHECK_IN, len(CHECK_IN), os.urandom(32).hex())
        await self._send(source, "bad credentials", head + CHECK_IN)

    async def _enrol(self, source: str) -> None:
        await self._send(source, "enrolment", self._head("POST", Route.ENROL, len(ENROL)) + ENROL)

    async def _send(self, source: str, kind: str, request: bytes) -> None:
        reader, writer = await self._open(source)
        try:
            writer.write(request)
            line = await reader.readline()
            if line:
                self.counts[f"{kind} {line.split()[1].decode()}"] += 1
        finally:
            writer.close()

    async def _open(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))

    def _head(self, method: str, path: str, length: int, token: str = "x" * 64) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{PROTOCOL_HEADER}: {PROTOCOL_VERSION}\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


async def main(port: int) -> None:
    attackers = Attackers(port)
    tasks = attackers.start()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while order := (await lines.readline()).decode().strip():
        if order == "on":
            attackers.on.set()
        elif order == "off":
            attackers.on.clear()
        print(json.dumps({"cpu_s": time.process_time(), **attackers.counts}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
