"""Starts, watches and ends supervised child processes: the demo's commands, a fleet's workers, training jobs and the
preflight check of a machine.

::

    the parent's side, ``SupervisedChild``:
    ask_to_end    sends SIGTERM
    kill          sends SIGKILL to the child and all its descendants
    end           asks and waits where there is a grace period, kills, then kills processes that outlived the child
    follow        reads the child's output line by line until its end; calls ``end`` in any case

    the child's side, ``when_parent_ends``: it notices that its parent has ended, also by ``kill -9``, and ends

A caller follows its child or gives its output a file. The context manager ends its children also after an error.

A supervised child leads a session of its own, so a terminal's Ctrl-C reaches only its parent, which then decides. Its
standard input is the reading end of a pipe whose other end only the parent holds, which writes at most a first line.
Its environment carries a mark, which its descendants inherit: this finds descendants that outlived the child in
sessions of their own, such as the ranks of a killed torchrun.

The pipe ends with the parent, also by ``kill -9``, on every POSIX system (``PR_SET_PDEATHSIG`` is Linux alone and asks
about a thread). Killing by the mark reaches ranks of torchrun, which lead sessions of their own, and processes whose
parent is gone; a process group or descent reaches neither.

The process engine of simulations (``simulation.engines.process_pool``) does not use this file: its workers are forks
that share memory with their parent and communicate over sockets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import IO, Any

import psutil

from client_sdk.commands.long_running import thread_variables

ENV_MARK = "QUORATE_LAUNCH"
"""The marks of a process and of its supervised ancestors, oldest ancestor first, separated by slashes."""
_BETWEEN = "/"


def marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """``environment`` for a child with this mark, added after the marks that it already has."""
    marks = [one for one in (environment.get(ENV_MARK, ""), mark) if one]
    return {**environment, ENV_MARK: _BETWEEN.join(marks)}


def kill_family(pid: int) -> None:
    """Send SIGKILL to a process, its descendants, and the process group that it leads. The process itself is killed
    first, since it could start others, or last where it is the caller. Does nothing where it has ended."""
    try:
        first = psutil.Process(pid)
        members = [first, *first.children(recursive=True)]
        leads_group = os.getpgid(pid) == pid
    except (psutil.NoSuchProcess, ProcessLookupError):
        return
    for process in members[1:] if pid == os.getpid() else members:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(ProcessLookupError):
        if leads_group:
            os.killpg(pid, signal.SIGKILL)
        elif pid == os.getpid():
            os.kill(pid, signal.SIGKILL)


def kill_marked(marks: Collection[str]) -> None:
    """Send SIGKILL to all processes that carry one of these marks."""
    for process in with_environment(lambda env: not set(marks).isdisjoint(env.get(ENV_MARK, "").split(_BETWEEN))):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def with_environment(fits: Callable[[Mapping[str, str]], bool]) -> Iterator[psutil.Process]:
    """This user's processes, except the caller, whose start environment satisfies ``fits``."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.uids().real == os.getuid() and fits(process.environ()):
                yield process


def how_it_ended(code: int) -> str:
    """A text for the end of a process, from its exit code as in ``Popen.returncode``."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


ENV_PARENT_PIPE = "QUORATE_LIFELINE"
"""Set where standard input is such a pipe; absent where a user started the program."""


def when_parent_ends(act: Callable[[], object], *, also_children: bool = False) -> None:
    """Call ``act`` in a new thread once the parent has ended, or asks this process to end. Read standard input before
    this call. Does nothing in a process that was not started as a supervised child. ``also_children``: children that
    inherit this process's standard input may watch the same parent."""
    watched = os.environ.get(ENV_PARENT_PIPE) if also_children else os.environ.pop(ENV_PARENT_PIPE, None)
    if watched:
        Thread(target=_wait_and_act, args=(act,), name="quorate-parent", daemon=True).start()


def end_with_parent(grace_s: float) -> None:
    """Once the parent has ended, send SIGTERM to this process, and after ``grace_s`` SIGKILL to it and its
    descendants."""
    when_parent_ends(partial(_end, grace_s))


def _wait_and_act(act: Callable[[], object]) -> None:
    while os.read(0, 4096):
        pass
    act()


def _end(grace_s: float) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    kill_family(os.getpid())


LOOK_S = 0.05
"""Seconds between two checks of a child that is followed."""
LINGER_S = 2.0
"""Seconds for which processes that outlived a child may hold its output open."""


class SupervisedChild:
    """A process in a session of its own. As a context manager it ends the process on exit."""

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
        """``environment``: complete; None: this process's. ``threads``: of numerical libraries; None: as in the
        environment. ``output``: a file, or ``subprocess.DEVNULL``; None: ``follow`` reads it. ``errors``: a file for
        standard error; None: this process's. ``first_line``: the only line written to standard input. ``grace_s``:
        seconds that the child has to end after it is asked; 0: it is killed at once. OSError where the command cannot
        be run."""
        self.mark = os.urandom(8).hex()
        self.grace_s = grace_s
        env = marked(os.environ if environment is None else environment, self.mark)
        env[ENV_PARENT_PIPE] = "1"
        env |= {} if threads is None else thread_variables(threads)
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
            with suppress(BrokenPipeError):  # it has ended already: its exit code gives the reason
                self._process.stdin.write(first_line + "\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code once it is known to have ended; negative: the number of the signal."""
        return self._process.returncode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def wait(self, within_s: float | None = None) -> int | None:
        """The exit code once it has ended; None where it still runs after ``within_s`` seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(None if within_s is None else max(0.0, within_s))
        return None

    @property
    def ending(self) -> str:
        """How it ended, as text: ``ended with code 1``, ``was killed by SIGKILL``."""
        code = self.poll()
        return "has not ended" if code is None else how_it_ended(code)

    def follow(
        self,
        on_line: Callable[[str], bool | None],
        *,
        kill_when: Callable[[], bool] | None = None,
        linger_s: float = LINGER_S,
    ) -> int:
        """Read the output until the child and its descendants have ended. Returns the child's exit code.

        ``on_line`` gets each line of the output, in this thread; where it returns True the child is killed, since no
        further output matters. Another thread calls ``kill_when`` every LOOK_S and kills the child where it returns
        True. Processes that outlive the child see the pipe close and have ``linger_s`` seconds to end.
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
        """Send SIGTERM to the child, which must end what it has started. Does nothing where it has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the child and all its descendants. Does nothing where it has ended."""
        if self.poll() is None:
            kill_family(self.pid)

    def end(self) -> None:
        """End the child and its descendants, in any state."""
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
                kill_marked([self.mark])  # stopped or stuck processes would hold the output open for ever
            return

    def _close_pipe(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


class SupervisedChildren:
    """A context manager that ends, on exit, all added children and their descendants."""

    def __init__(self, grace_s: float) -> None:
        """``grace_s``: seconds that all of them together have to end after they are asked."""
        self._grace_s = grace_s
        self._children: list[SupervisedChild] = []

    def add(self, child: SupervisedChild) -> SupervisedChild:
        self._children.append(child)
        return child

    def end(self) -> None:
        """End all children, the last started first: it may still need those that were started before it."""
        end_all(self._children[::-1], self._grace_s)

    def __enter__(self) -> SupervisedChildren:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def end_all(children: Sequence[SupervisedChild], grace_s: float) -> None:
    """Ask these children to end, in this order; kill those that still run after ``grace_s``, and all processes that
    outlived one of them."""
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
