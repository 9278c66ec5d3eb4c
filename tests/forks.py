"""``python -m coordinator.cli`` and ``python -m client_sdk.cli`` as processes of tests, forked from one that has
imported what they import: each would take one to four seconds of a core for that, and tests start hundreds.

How commands begin from nothing is tried in ``coordinator/service/test_process.py``, ``docs`` and ``packaging``.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

COORDINATOR, ANY = "coordinator.cli", "client_sdk.cli"
SERVES = "coordinator.authority.app coordinator.service.process coordinator.store.migrate coordinator.store.sql"
ASKS = "client_sdk.http.operator coordinator.verify dashboards.cli"
IMPORTED = [COORDINATOR, ANY, *SERVES.split(), *ASKS.split(), "dashboards.site", "pydantic.v1", "structlog", "uvloop"]
PR_SET_CHILD_SUBREAPER = 36
_one_at_a_time = threading.Lock()


class Forked(subprocess.Popen[str]):
    """``python -m MODULE`` with these words, a child of this process; it takes Popen's options of streams, ``env`` and
    ``cwd``."""

    def __init__(self, words: list[str], module: str = COORDINATOR, *, text: bool = True, **options: Any) -> None:
        self.module = module
        super().__init__(words, text=text, **options)

    def _execute_child(self, args: list[str], *more: Any) -> None:
        folder, environment, pipes = more[4] or Path.cwd(), more[5] or dict(os.environ), more[9:15]
        asked = {"module": self.module, "words": args, "folder": str(folder), "environment": environment}
        ends = [own if end == -1 else end for own, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        body = json.dumps(asked).encode()
        with _one_at_a_time:
            _, ours = _server()
            # Who has lost its parent is a child of the process that asks to have it: this one, for a moment.
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
            socket.send_fds(ours, [len(body).to_bytes(4, "big")], ends)
            ours.sendall(body)
            self.pid = int.from_bytes(_whole(ours, 4), "big")
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(words: list[str], module: str = ANY, *, timeout: float = 60, **where: Any) -> subprocess.CompletedProcess[str]:
    """What ``python -m MODULE`` with these words says, and its exit code."""
    with Forked(words, module, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **where) as process:
        try:
            said = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, *said)


@cache
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process that forks, and the connection to it, with which it ends."""
    ours, theirs = socket.socketpair()
    command, root = [sys.executable, "-m", "tests.forks", str(theirs.fileno())], Path(__file__).parents[1]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with theirs:
        return subprocess.Popen(command, cwd=root, pass_fds=[theirs.fileno()], **quiet), ours


def _whole(one: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = one.recv(length - len(found))
        if not more:
            raise EOFError("the other process has ended")
        found += more
    return found


def _serve(theirs: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns it in the new process."""
    while True:
        length, ends, _, _ = socket.recv_fds(theirs, 4, 3)
        if not length:
            os._exit(0)
        asked: dict[str, Any] = json.loads(_whole(theirs, int.from_bytes(length, "big")))
        told, tells = os.pipe()
        if (between := os.fork()) == 0:
            parent = os.getpid()
            if child := os.fork():
                os.write(tells, child.to_bytes(4, "big"))
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(0.001)
            for number, end in enumerate(ends):
                os.dup2(end, number)
            os.closerange(3, max(*ends, told, tells, theirs.fileno()) + 1)
            return asked
        os.waitpid(between, 0)
        theirs.sendall(os.read(told, 4))
        for end in (*ends, told, tells):
            os.close(end)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in more if path and path not in sys.path]
    command = sys.modules["__main__"] = sys.modules[asked["module"]]
    sys.path[0], sys.argv, tempfile.tempdir = asked["folder"], [str(command.__file__), *asked["words"]], None
    command.app() if asked["module"] == COORDINATOR else command.main()


if __name__ == "__main__":
    _main()
