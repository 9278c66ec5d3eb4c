"""The parent's side of a supervised child: it is started, followed line by line, asked to end, and killed.

::

    ask_to_end    SIGTERM
    kill          SIGKILL for the child and all its descendants
    end           asks where a grace is given, waits so long, kills; then kills those that the child left behind
    follow        the child's output until its end, line by line; ``end`` in any case

Whoever starts a child follows it or gives its output a file. A context ends its children whatever happens inside.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import IO, Any

from coordinator.child_processes.family import how_it_ended, kill_family, kill_marked, marked
from coordinator.child_processes.parent_pipe import ENV_PARENT_PIPE

LOOK_S = 0.05
"""How often a child that is followed is looked at."""
LINGER_S = 2.0
"""How long those that a child left behind may hold its output open, once the child itself has ended."""
_THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class SupervisedChild:
    """A process in a session of its own. As a context it is ended at the context's end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        threads: int | None = 1,
        output: IO[Any] | int | None = None,
        errors: IO[Any] | None = None,
        first_line: str | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """``environment``: whole; None: this process's. ``threads``: of numerical libraries; None: as the environment
        says. ``output``: a file, or ``subprocess.DEVNULL``; None: ``follow`` reads it. ``errors``: a file for standard
        error; None: this process's. ``first_line``: written to standard input, after which nothing comes. ``grace_s``:
        how long the child may take to end once it is asked to; 0: it is killed at once. OSError where the command
        cannot be run."""
        self.mark = os.urandom(8).hex()
        self.grace_s = grace_s
        env = marked(os.environ if environment is None else environment, self.mark)
        env[ENV_PARENT_PIPE] = "1"
        env |= {} if threads is None else dict.fromkeys(_THREAD_COUNTS, str(threads))
        self._process = subprocess.Popen(
            list(command),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if output is None else output,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if first_line is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already: its exit code says how
                self._process.stdin.write(first_line + "\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it is known that it has ended; below 0: the number of the signal."""
        return self._process.returncode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def wait(self, within_s: float | None = None) -> int | None:
        """The exit code, once it has ended; None where it has not within so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(None if within_s is None else max(0.0, within_s))
        return None

    @property
    def ending(self) -> str:
        """How it ended, in words: ``ended with code 1``, ``was killed by SIGKILL``."""
        code = self.poll()
        return "has not ended" if code is None else how_it_ended(code)

    def follow(
        self,
        on_line: Callable[[str], bool | None],
        *,
        kill_when: Callable[[], bool] | None = None,
        linger_s: float = LINGER_S,
    ) -> int:
        """Until the child and all that it has started are gone. Returns its exit code.

        ``on_line`` gets each line of the output, from this thread; where it returns True the child is killed, since
        nothing of interest comes. ``kill_when`` is asked every LOOK_S, by another thread: the child is killed as often
        as it says so. Those that outlive the child get the end of the pipe, and ``linger_s``.
        """
        over = Event()
        watcher = Thread(target=self._watch, args=(over, kill_when, linger_s), name="quorate-child", daemon=True)
        watcher.start()
        try:
            for line in self._process.stdout or ():
                if on_line(line):
                    self.kill()
                    break
            return self._process.wait()
        finally:
            over.set()
            watcher.join()
            self.end()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def ask_to_end(self) -> None:
        """SIGTERM for the child, which ends what it has started itself. Does nothing where it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL for the child and all its descendants. Does nothing where it has ended."""
        if self.poll() is None:
            kill_family(self.pid)

    def end(self) -> None:
        """Whatever it does, it is gone afterwards, with all that it has started."""
        end_all([self], self.grace_s)

    def __enter__(self) -> SupervisedChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _watch(self, over: Event, kill_when: Callable[[], bool] | None, linger_s: float) -> None:
        while not over.wait(LOOK_S):
            if kill_when is not None and kill_when():
                self.kill()
            if self.poll() is None:
                continue
            self._close_pipe()
            if not over.wait(linger_s):
                kill_marked([self.mark])  # stopped or stuck: they would hold the output open for ever
            return

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


class SupervisedChildren:
    """A context: when it ends, no child that was added is left, nor anything that one of them has started."""

    def __init__(self, grace_s: float) -> None:
        """``grace_s``: how long all of them together may take to end once they are asked to."""
        self._grace_s = grace_s
        self._children: list[SupervisedChild] = []

    def add(self, child: SupervisedChild) -> SupervisedChild:
        self._children.append(child)
        return child

    def end(self) -> None:
        """End all. The youngest is asked first: it may still need those that were started before it."""
        end_all(self._children[::-1], self._grace_s)

    def __enter__(self) -> SupervisedChildren:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def end_all(children: Sequence[SupervisedChild], grace_s: float) -> None:
    """Ask these children to end, in their order; kill those that still run after ``grace_s``, and all that any of them
    left behind."""
    try:
        if grace_s > 0:
            for child in children:
                child.ask_to_end()
            until = time.monotonic() + grace_s
            for child in children:
                child.wait(until - time.monotonic())
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
            child._close_pipe()
        if children:
            kill_marked([child.mark for child in children])
