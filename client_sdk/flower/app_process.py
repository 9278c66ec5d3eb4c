"""The process of a ClientApp as its device has it: it stays alive between messages, and its end ends no device.

A ClientApp that hangs, that a signal kills or that uses all memory costs its own process: the message gets an error
reply, and the next message a new process.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from client_sdk.flower.work import AppFailed, AppReady, AppWork, ErrorCode, NotLoaded, Said, Worked, error, read_said
from client_sdk.http.transport import Interrupted

SLICE_S = 0.2
"""Longest time until a stop is noticed."""
ENDING_S = 2.0
"""How long a process whose pipe is closed has to end: its exit status says why it ended."""
_NEVER = float("inf")


class AppNotLoaded(Exception):
    """The ClientApp cannot be loaded: one sentence."""


class AppProcess:
    """The process that runs the ClientApp ``reference`` (``module:attribute``) of the app in ``app_dir``. A context
    manager; not for several threads.

    ``stopped`` ends a wait: Interrupted is then raised, and the process is ended. ``environment``: variables of the
    process beside this one's."""

    def __init__(
        self,
        app_dir: Path,
        reference: str,
        *,
        stopped: Callable[[], bool] = lambda: False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [sys.executable, "-P", "-m", "client_sdk.flower.app_child", str(app_dir), reference]
        self._environment = {**os.environ, **(environment or {}), "FLWR_TELEMETRY_ENABLED": "0"}
        self._stopped = stopped
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    def start(self, ends_at: float = _NEVER, over: Callable[[], bool] | None = None) -> None:
        """Have the process, with the app loaded. AppNotLoaded where it cannot be, or not before ``ends_at`` (monotonic
        seconds) or until ``over``; Interrupted."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._heard = b""
        # In a session of its own: Ctrl-C on the terminal reaches the device alone, which decides.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        match self._hear(ends_at, over):
            case AppReady():
                return
            case NotLoaded(reason=reason):
                self.close()
                raise AppNotLoaded(reason)
            case None if self._process is not None and self._process.poll() is None and ends_at <= time.monotonic():
                self.close()
                raise AppNotLoaded("The ClientApp was still being loaded when the message's time was over.")
            case None:
                raise AppNotLoaded(f"The process that loads the ClientApp {self._ending()} before it was ready.")
            case other:
                raise TypeError(f"the process of the ClientApp began with {other!r}")

    def run(self, work: AppWork, within_s: float, over: Callable[[], bool] | None = None) -> Worked | AppFailed:
        """Let the ClientApp work on one message, for at most ``within_s`` seconds, and no longer than until ``over``.
        Interrupted."""
        ends_at = time.monotonic() + within_s
        try:
            self.start(ends_at, over)
        except AppNotLoaded as not_loaded:
            return AppFailed(error=error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, str(not_loaded)))
        try:
            self._tell(work.model_dump_json().encode() + b"\n")
            said = self._hear(ends_at, over)
        except BrokenPipeError:
            said = None
        if isinstance(said, Worked | AppFailed):
            return said
        if over is not None and over():
            self.close()
            return _crashed("The ClientApp was stopped, because the run is over.")
        if said is None and time.monotonic() < ends_at:
            return _crashed(f"The process of the ClientApp {self._ending()} while it worked on this message.")
        self.close()
        return _crashed(
            f"The ClientApp was stopped: it had not finished after {within_s:.0f} s, when the message's time was over."
        )

    def close(self, patience_s: float = 0.0) -> None:
        """End the process, whatever it does. ``patience_s``: how long it may take to end by itself."""
        process, self._process = self._process, None
        if process is not None:
            _end(process, patience_s)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass

    def __enter__(self) -> AppProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """None where there is no process now."""
        return self._process.pid if self._process is not None else None

    def _tell(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the process of the ClientApp is not there")
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def _hear(self, ends_at: float, over: Callable[[], bool] | None = None) -> Said | None:
        """What the process says; None where it has ended, ``ends_at`` (monotonic seconds) passes, or it is ``over``."""
        process = self._process
        if process is None or process.stdout is None:
            raise RuntimeError("the process of the ClientApp is not there")
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                left = ends_at - time.monotonic()
                if self._stopped():
                    self.close()
                    raise Interrupted
                if left <= 0 or (over is not None and over()):
                    return None
                if selector.select(min(SLICE_S, left)):
                    found = os.read(process.stdout.fileno(), 1 << 16)
                    if not found:
                        return None
                    self._heard += found
                elif process.poll() is not None:  # a process that the app has started still holds the pipe
                    return None
        line, _, self._heard = self._heard.partition(b"\n")
        return read_said(line)

    def _ending(self) -> str:
        """How the process has ended, in words; it is ended where it has not."""
        process = self._process
        self.close(ENDING_S)
        code = process.returncode if process is not None else 0
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            memory = " (the system may have been short of memory)" if -code == signal.SIGKILL else ""
            return f"was ended by {name}{memory}"
        return f"ended with status {code}"


def _crashed(reason: str) -> AppFailed:
    return AppFailed(error=error(ErrorCode.CLIENT_APP_CRASHED, reason))


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End the process and those that it has started (data loaders), and wait for it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
