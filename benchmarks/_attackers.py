"""Attackers for ``benchmarks.abuse``, as a process of their own: each kind of abuse, from addresses of its own.

``python -m benchmarks._attackers PORT AUTHORITY`` (the digest of the authority's key, in hexadecimal) reads lines from
its input. The first is the seed of a registered device's key, with which a request is made as if it was overheard. Then
``on``, ``off``, ``report``: each is answered with one line of JSON, the CPU seconds of this process so far, and what
was tried and answered of each kind.

==================== ==============================================================================================
kind                 what it does, all of the time, from each of its addresses
==================== ==============================================================================================
slow-loris           holds connections on which half a head, or half a body, comes a byte a second
oversize             announces 100 MB, or sends chunks without end, until it is refused
bad signature        check-ins in the name of a registered key: the real form, and a signature of other bytes
replay               one check-in that a registered device has signed, again and again
bad credentials      check-ins that a key has signed which is not registered
registration         registrations with a certificate of another authority, signed by its key
enrolment            requests for a certificate at the authority, with a token that it has not made and a valid proof
==================== ==============================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from client_sdk.credentials.certificate import certify
from client_sdk.credentials.enrolment_token import enrolment_statement
from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import AuthorityRoute, CertificateRequest
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route

ADDRESSES = 4
"""Addresses of each kind."""
SLOW = 64
"""Connections that one slow address tries to hold."""
PAUSE_S = 0.02
"""Between two tries of one address: 50 a second, and 200 a second of each kind but the slow one."""
OVERHEARD_S = 20
"""After so many seconds another request is overheard: the one before is still within its times."""
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
"""64 KiB of a body, as a chunk."""
CHUNKS = 8
"""Twice as long as any message may be."""
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

    def __init__(self, port: int, authority: bytes, victim: DeviceKey) -> None:
        self.port = port
        self._victim = victim
        self._overheard: tuple[float, bytes] = (0.0, b"")
        self._enrolment = _enrolment(authority)
        self.on = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self._turns = itertools.count()

    def start(self) -> list[asyncio.Task[None]]:
        kinds: dict[str, Callable[[str], Awaitable[None]]] = {
            "slow-loris": self._slow,
            "oversize": self._oversize,
            "bad signature": self._forger,
            "replay": self._replay,
            "bad credentials": self._stranger,
            "registration": self._register,
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
                whole = self._head("POST", AuthorityRoute.CERTIFICATES, 1000) + b"{"
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
        """Where no credentials are needed: elsewhere they are missed before a body is read."""
        path = AuthorityRoute.CERTIFICATES
        if next(self._turns) % 2:
            await self._send(source, "oversize", self._head("POST", path, 100_000_000) + CHUNK)
        else:
            await self._send(source, "oversize", self._head("POST", path, None), CHUNKS, CHUNK)

    async def _forger(self, source: str) -> None:
        """The signature of a request that was overheard, below another nonce."""
        nonce = b'nonce="'
        before, _, after = self._heard().partition(nonce)
        await self._send(source, "bad signature", before + nonce + os.urandom(NONCE_BYTES).hex().encode() + after[32:])

    async def _replay(self, source: str) -> None:
        await self._send(source, "replay", self._heard())

    async def _enrol(self, source: str) -> None:
        head = self._head("POST", AuthorityRoute.CERTIFICATES, len(self._enrolment))
        await self._send(source, "enrolment", head + self._enrolment)

    async def _stranger(self, source: str) -> None:
        await self._send(source, "bad credentials", self._signed(Route.CHECK_IN, CHECK_IN))

    async def _register(self, source: str) -> None:
        await self._send(source, "registration", self._signed(Route.REGISTER, REGISTRATION))

    def _heard(self) -> bytes:
        """A check-in that a registered device has signed. Who sends it first is answered with 200."""
        at, request = self._overheard
        if time.time() - at > OVERHEARD_S:
            request = self._signed(Route.CHECK_IN, CHECK_IN, self._victim)
            self._overheard = (time.time(), request)
        return request

    def _signed(self, path: str, body: bytes, key: DeviceKey = KEY) -> bytes:
        """A whole request, signed by a key; without one, by one that nobody knows."""
        headers = sign_request(
            key,
            method="POST",
            uri=f"http://127.0.0.1:{self.port}{path}",
            sha256=hashlib.sha256(body).digest(),
            at=time.time(),
            nonce=os.urandom(NONCE_BYTES),
        )
        return self._head("POST", path, len(body), headers) + body

    async def _send(self, source: str, kind: str, request: bytes, more: int = 0, part: bytes = b"") -> None:
        reader, writer = await self._open(source)
        try:
            writer.write(request)
            for _ in range(more):
                writer.write(part)
                await writer.drain()
            line = await reader.readline()
            if line:
                self.counts[f"{kind} {line.split()[1].decode()}"] += 1
        finally:
            writer.close()

    async def _open(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))

    def _head(self, method: str, path: str, length: int | None, more: Mapping[str, str] = UNSIGNED) -> bytes:
        """``length``: of the body; None: it comes in chunks."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"{PROTOCOL_HEADER}: {PROTOCOL_VERSION}",
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in more.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def _enrolment(authority: bytes) -> bytes:
    """A request that an authority must look up: its form and its proof are valid."""
    secret = os.urandom(16)
    statement = enrolment_statement(authority, hashlib.sha256(secret).digest(), bytes.fromhex(KEY.public_hex))
    asked = CertificateRequest(secret=secret.hex(), public_key=KEY.public_hex, proof=KEY.sign(statement).hex())
    return asked.model_dump_json().encode()


async def main(port: int, authority: bytes) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    attackers = Attackers(port, authority, DeviceKey(bytes.fromhex((await lines.readline()).decode())))
    tasks = attackers.start()
    while order := (await lines.readline()).decode().strip():
        if order == "on":
            attackers.on.set()
        elif order == "off":
            attackers.on.clear()
        print(json.dumps({"cpu_s": time.process_time(), **attackers.counts}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), bytes.fromhex(sys.argv[2])))
