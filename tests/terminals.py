"""A command on a terminal of its own, of a chosen size: what a person at a keyboard sees of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\].*?(?:\x07|\x1b\\)")


class Keyboard:
    """The person's side of the terminal of one process."""

    def __init__(self, process: subprocess.Popen[bytes], side: int) -> None:
        self.process = process
        self._side = side
        self.raw = ""

    @property
    def text(self) -> str:
        """All that was printed so far, without colours and movements of the cursor."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n").replace("\r", "\n")

    def until(self, words: str, within_s: float = 30.0) -> str:
        """Read until these words are there; the text then. AssertionError where they do not come, or the process ends
        before."""
        end = time.monotonic() + within_s
        while words not in self.text:
            assert time.monotonic() < end, f"{words!r} is not on the terminal: {self.text}"
            assert self._read(0.2), f"it ended without {words!r}: {self.text}"
        return self.text

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._side, b"\x03")

    def wait(self, within_s: float = 30.0) -> int:
        """Read until the process ends; its exit status."""
        end = time.monotonic() + within_s
        while self._read(0.2):
            assert time.monotonic() < end, f"it does not end: {self.text}"
        return self.process.wait(within_s)

    def _read(self, within_s: float) -> bool:
        """Read what there is; False once the terminal is closed by the process."""
        if not select.select([self._side], [], [], within_s)[0]:
            return True
        try:
            part = os.read(self._side, 65536)
        except OSError:  # Linux says EIO where the other side is closed
            return False
        self.raw += part.decode("utf-8", "replace")
        return bool(part)


@contextmanager
def on_terminal(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, columns: int = 80, rows: int = 24
) -> Iterator[Keyboard]:
    """Run the command with standard input, output and error on a terminal of this size. It is killed in the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}

    def controlled() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        list(command),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **(environment or {})},
        preexec_fn=controlled,
    )
    os.close(theirs)
    try:
        yield Keyboard(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(15)
        os.close(ours)
