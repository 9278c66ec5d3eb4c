"""A bare ASGI app that takes an upload: it receives, hashes, writes and syncs, as a coordinator must, and no more.

``python -m benchmarks._bare_upload FOLDER`` serves it on a free port, which it prints.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import uvicorn

from benchmarks._wire import Connection, cpu_s

PIECE = 256 * 1024


async def app(scope: Any, receive: Any, send: Any) -> None:
    found, parts, held = hashlib.sha256(), [], 0
    fd = os.open(Path(sys.argv[1]) / "body", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def keep(parts: list[bytes]) -> None:
        for part in parts:
            found.update(part)
            os.write(fd, part)

    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        parts.append(message.get("body", b""))
        held += len(parts[-1])
        if held >= PIECE or not more:
            await asyncio.to_thread(keep, parts)
            parts, held = [], 0
    await asyncio.to_thread(os.fsync, fd)
    os.close(fd)
    body = found.hexdigest().encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class BareApp:
    """The app in a process and a folder of its own."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="quorate-bench-")
        command = [sys.executable, "-m", "benchmarks._bare_upload", self._folder.name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.connection = Connection(int(self._process.stdout.readline()))
        return self

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return cpu_s(self._process.pid)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._folder.cleanup()


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_keep_alive=600)).run([listening])
