"""A PostgreSQL server for tests, where its programs are installed: in a folder of its own, on a socket there.

It syncs nothing to the disk, so it is no faster or slower than the disk, and proves nothing about one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from tests.conftest import IN_MEMORY

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
_START_S = 60.0
_OPTIONS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=", "max_connections=200")


def programs() -> Path | None:
    """The folder of ``initdb`` and ``postgres``; None where they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found is not None else []
    folders += [path for place in _PLACES for path in sorted(Path("/").glob(place[1:]), reverse=True)]
    return next((path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()), None)


class Server:
    """A running server. ``create`` makes a database."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._made = 0

    def create(self, template: str = "template1") -> str:
        """The name of a new database, a copy of ``template``."""
        self._made += 1
        name = f"test_{self._made}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def url(self, name: str) -> str:
        """The SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://quorate@/{name}?host={self._socket}"

    def _address(self, name: str) -> str:
        return f"host={self._socket} user=quorate dbname={name}"


@contextmanager
def running(bin_folder: Path) -> Iterator[Server]:
    """A server, until the block ends. PostgreSQL refuses to be root: then it is the user ``nobody``."""
    user = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="quorate-postgres-", dir=IN_MEMORY or "/tmp") as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user, user)
        data, options = folder / "data", [part for option in _OPTIONS for part in ("-c", option)]
        initdb = [bin_folder / "initdb", "-D", data, "-U", "quorate", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, user=user, check=True, capture_output=True, cwd=folder)
        process = subprocess.Popen(
            [bin_folder / "postgres", "-D", data, "-k", folder, *options],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            server = Server(folder)
            _wait(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGINT)  # without waiting for clients
            process.wait(30)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(server._address("postgres")).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
