"""A command of ``quorate`` that ends with the demo: what each of the demo's children runs as.

Its standard input is the reading end of a pipe; the demo holds the other end and never writes. However the demo goes,
by ``kill -9`` too, the pipe ends then, and the command is asked to stop as by SIGTERM. What is still there after
``END_S`` is killed, with whatever it started. This file has never heard of what any command does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Thread

from client_sdk.cli import main as quorate

END_S = 4.0
"""After this time, from the word to end, a process is killed."""


def main() -> None:
    """The command that the arguments say. Must lead a process group."""
    Thread(target=_end_with_the_pipe, daemon=True).start()
    quorate(sys.argv[1:])


def _end_with_the_pipe() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
