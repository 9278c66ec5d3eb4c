"""A server process to measure, through /proc, and a minimal HTTP/1.1 client, so that little CPU goes to the client."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from client_sdk.credentials.enrolment_token import EnrolmentToken, enrolment_statement
from client_sdk.credentials.identity_keys import AUTHORITY_ID_BYTES
from client_sdk.http.authority import AuthorityClient
from client_sdk.http.exchange import RequestSigner
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import CertificateRequest
from client_sdk.protocol.devices import Registration
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route

Credentials = Callable[[str, str, bytes], dict[str, str]]
"""The headers of a request that say who sends it, by its method, path and body."""
_TICKS = os.sysconf("SC_CLK_TCK")


class MeasuredProcess:
    """A server whose first line of output is JSON with its ``url``. Linux only."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready:
            raise RuntimeError("the server did not start; its log above has the reason")
        self.settings: dict[str, Any] = json.loads(ready)
        self.url: str = self.settings["url"]
        self.port = int(self.url.rsplit(":", 1)[1])
        self._proc = Path(f"/proc/{self._process.pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def cpu_s(self) -> float:
        """CPU seconds so far, user and system, all threads."""
        return cpu_s(self._process.pid)

    def rss_bytes(self, *, peak: bool = False) -> int:
        """Resident bytes now, or the peak since ``reset_peak``."""
        return rss_bytes(self._process.pid, peak=peak)

    def reset_peak(self) -> None:
        """Sets the peak to the resident bytes of now."""
        (self._proc / "clear_refs").write_text("5")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class ServerProcess(MeasuredProcess):
    """``quorate serve`` in a folder, on a free port, with an authority inside."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "coordinator.cli", "serve", "--json", "--port", "0"]
        super().__init__(*command, "--data", str(folder), "--dev-authority")
        token = Path(self.settings["device_token_file"]).read_text("ascii")
        self.token = EnrolmentToken.parse(token.strip())
        self.key = Path(self.settings["key_file"]).read_text("ascii").strip()
        """The owner's API key."""


def rss_bytes(pid: int, *, peak: bool = False) -> int:
    """Resident bytes of a process now, or their peak."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {wanted} in /proc/{pid}/status")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self) -> Answer:
        """Returns itself. RuntimeError when the server refused the request."""
        if self.status >= 300:
            raise RuntimeError(f"{self.status}: {self.body[:500]!r}")
        return self


class Connection:
    """One persistent connection from an address of this machine; one request at a time."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._port = port
        self._source = source
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(
        self, method: str, path: str, body: bytes = b"", credentials: Credentials | None = None
    ) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=1 << 20, local_addr=(self._source, 0)
            )
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Length: {len(body)}\r\n"
        head += f"{PROTOCOL_HEADER}: {PROTOCOL_VERSION}\r\n"
        for name, value in (credentials(method, path, body) if credentials is not None else {}).items():
            head += f"{name}: {value}\r\n"
        writer.write(head.encode() + b"\r\n")
        if body:
            writer.write(body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)  # 204 has none
        return Answer(int(lines[0].split()[1]), await reader.readexactly(length))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Peer:
    """Somebody with credentials and a connection of its own: a registered device, or an operator."""

    def __init__(self, connection: Connection, credentials: Credentials) -> None:
        self.connection = connection
        self.credentials = credentials

    async def request(self, method: str, path: str, body: bytes = b"") -> Answer:
        return (await self.connection.request(method, path, body, self.credentials)).ok()


def bearer(key: str) -> Credentials:
    """The credentials of an operator."""
    return lambda method, path, body: {"Authorization": f"Bearer {key}"}


def signing(url: str, key: DeviceKey) -> Credentials:
    """The credentials of a device: each request is signed."""
    signer = RequestSigner(url, time.time)
    signer.signer = key
    return lambda method, path, body: signer.headers(method, path, hashlib.sha256(body).digest())


def enrolment(token: EnrolmentToken, key: DeviceKey) -> bytes:
    """The body of a request for the first certificate of this key."""
    statement = enrolment_statement(
        token.authority[:AUTHORITY_ID_BYTES], token.secret_digest, bytes.fromhex(key.public_hex)
    )
    asked = CertificateRequest(secret=token.secret.hex(), public_key=key.public_hex, proof=key.sign(statement).hex())
    return asked.model_dump_json().encode()


async def enrol(server: ServerProcess, count: int, network: str = "", known: DeviceKey | None = None) -> list[Peer]:
    """``count`` new devices, certified and registered; with a ``network`` such as ``127.1.0.``, each from an address of
    its own. ``known``: the key of one device; else each draws its own."""
    peers = []
    with AuthorityClient(server.token.url, server.token.authority) as authority:
        for number in range(1, count + 1):
            key = known or DeviceKey.create()
            certificate = authority.enrol(server.token, key)
            connection = Connection(server.port, f"{network}{number}" if network else "127.0.0.1")
            peer = Peer(connection, signing(server.url, key))
            message = Registration(certificate=certificate.encoded.hex(), examples=100)
            await peer.request("POST", Route.REGISTER, message.model_dump_json().encode())
            peers.append(peer)
    return peers
