"""Attackers for ``benchmarks.abuse``, as a process of their own: each kind of abuse, from addresses of its own.

``python -m benchmarks._attackers PORT`` reads lines from its input: ``on``, ``off``, ``report`` (one line of JSON: the
CPU seconds of this process so far, and what was tried and answered of each kind).

==================== ==============================================================================================
kind                 what it does, all of the time, from each of its addresses
==================== ==============================================================================================
slow-loris           holds connections on which half a head, or half a body, comes a byte a second
oversize             announces 100 MB for a check-in, or sends it in chunks without end
bad credentials      check-ins that a key has signed which is not registered
registration         registrations with a certificate of another authority, signed by its key
==================== ==============================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from client_sdk.credentials.certificate import certify
from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route

ADDRESSES = 4
"""Addresses of each kind."""
SLOW = 64
"""Connections that one slow address tries to hold."""
PAUSE_S = 0.02
"""Between two tries of one address: 50 a second, and 150 a second of each kind but the slow one."""
CHECK_IN = b'{"examples": 1, "learners": {}, "hold_s": 0}'
KEY = DeviceKey.create()
CERTIFICATE = certify(
    DeviceKey.create(),
    id="stranger",
    holder="device",
    public_key=bytes.fromhex(KEY.public_hex),
    not_before=0,
    not_after=2**40,
)
UNSIGNED: Mapping[str, str] = {}
REGISTRATION = json.dumps({"certificate": CERTIFICATE.encoded.hex(), "examples": 1}).encode()


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
            "registration": self._register,
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
        await self._send(source, "bad credentials", self._signed(Route.CHECK_IN, CHECK_IN))

    async def _register(self, source: str) -> None:
        await self._send(source, "registration", self._signed(Route.REGISTER, REGISTRATION))

    def _signed(self, path: str, body: bytes) -> bytes:
        """A whole request, signed by a key that nobody knows."""
        headers = sign_request(
            KEY,
            method="POST",
            uri=f"http://127.0.0.1:{self.port}{path}",
            sha256=hashlib.sha256(body).digest(),
            at=time.time(),
            nonce=os.urandom(NONCE_BYTES),
        )
        return self._head("POST", path, len(body), headers) + body

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

    def _head(self, method: str, path: str, length: int, more: Mapping[str, str] = UNSIGNED) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"{PROTOCOL_HEADER}: {PROTOCOL_VERSION}",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in more.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


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
