"""What the floors of the coordinator's rounds stand on: the barest FastAPI app that a device of the protocol can ask.

Each request's Ed25519 signature, the digest of its body, its times and its nonce are checked on the event loop. What
is acknowledged is durable: SQLite with synchronous=FULL, by one thread that commits whatever has come since its last
transaction (in a crowd after the coordinator's pause).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import FastAPI, Request, Response

from client_sdk.credentials.identity_keys import key_id
from client_sdk.protocol.names import PROTOCOL_HEADER
from coordinator.group_commit import LONGEST_PAUSE_S, PAUSES

Statement = tuple[str, tuple[Any, ...]]


class Committer:
    """One thread that commits all statements that have come since its last transaction."""

    def __init__(self, file: Path, tables: str) -> None:
        self._file, self._tables = file, tables
        self._queue: SimpleQueue[tuple[list[Statement], asyncio.Future[None]]] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    async def durable(self, *statements: Statement) -> None:
        """Returns once these are committed."""
        done = self._loop.create_future()
        self._queue.put((list(statements), done))
        await done

    def _run(self) -> None:
        database = sqlite3.connect(self._file, isolation_level=None)
        database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + self._tables)
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            began = time.monotonic()
            database.execute("BEGIN IMMEDIATE")
            for statements, _ in batch:
                for text, values in statements:
                    database.execute(text, values)
            database.execute("COMMIT")
            took_s = time.monotonic() - began
            self._loop.call_soon_threadsafe(_done, [future for _, future in batch])
            if len(batch) > 1:
                time.sleep(min(LONGEST_PAUSE_S, PAUSES * took_s))


def _done(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


class BareApp:
    """The devices' keys, and a database file. ``TABLES``: its schema."""

    TABLES = ""

    def __init__(self, origin: str, file: Path, keys: list[str]) -> None:
        """``keys``: the public keys of all devices, in hexadecimal."""
        self._origin, self._file = origin, file
        self._keys = {key_id(raw).hex(): Ed25519PublicKey.from_public_bytes(raw) for raw in map(bytes.fromhex, keys)}
        self._nonces: set[str] = set()
        self._committer: Committer | None = None

    async def _durable(self, *statements: Statement) -> None:
        if self._committer is None:
            self._committer = Committer(self._file, self.TABLES)
        await self._committer.durable(*statements)

    async def _body(self, request: Request) -> tuple[str, bytes]:
        """The key id of who has signed the request, and its body. ValueError, InvalidSignature."""
        body, headers = await request.body(), request.headers
        parameters = headers["signature-input"].removeprefix("quorate=")
        fields = dict(part.partition("=")[::2] for part in parameters.split(";")[1:])
        uri, digest = self._origin + request.url.path, headers["content-digest"]
        base = f'"@method": {request.method}\n"@target-uri": {uri}\n"content-digest": {digest}\n'
        base += f'"@signature-params": {parameters}'
        key, nonce = fields["keyid"].strip('"'), fields["nonce"]
        signature = b64decode(headers["signature"].removeprefix("quorate=:")[:-1])
        self._keys[key].verify(signature, base.encode())
        if digest != f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:":
            raise ValueError("another body was signed")
        if not int(fields["created"]) - 10 <= time.time() <= int(fields["expires"]) or nonce in self._nonces:
            raise ValueError("this request is old")
        self._nonces.add(nonce)
        return key, body


def json_answer(content: bytes) -> Response:
    """JSON as the coordinator sends it."""
    return Response(content, media_type="application/json", headers={PROTOCOL_HEADER: "1"})


class _Server(uvicorn.Server):
    """Says its address once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(json.dumps({"url": f"http://127.0.0.1:{sockets[0].getsockname()[1]}"}), flush=True)


def serve(app: Callable[[str], FastAPI]) -> None:
    """Serves the app of an origin on a free port, which is said as JSON on the first line of output."""
    config = uvicorn.Config(
        lambda *_: None, port=0, access_log=False, log_level="error", backlog=1024, timeout_keep_alive=75
    )
    listener = config.bind_socket()
    config.app = app(f"http://127.0.0.1:{listener.getsockname()[1]}")
    _Server(config).run(sockets=[listener])
