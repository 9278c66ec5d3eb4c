"""What happens in a Flower run, as the Grid tells it, and how far the run is by that: lines for people, and the numbers
at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import assert_never


@dataclass(frozen=True)
class MessagesPushed:
    """Messages of one kind and group are durable."""

    kind: str
    group: str
    messages: int
    known: int
    """Messages that an earlier start of the ServerApp had pushed, or whose node does not exist."""


@dataclass(frozen=True)
class ReplyTaken:
    """A reply was handed to the ServerApp."""

    kind: str
    group: str
    error: str | None
    """Why there is no content; None: there is one."""
    known: bool = False
    """Whether an earlier start of the ServerApp had pushed its message."""


@dataclass(frozen=True)
class NodesAwaited:
    """The ServerApp asks for nodes again and again, and sends nothing."""

    nodes: int
    ineligible: Mapping[str, int] = field(default_factory=dict)
    """Devices that are there and cannot serve the run, by reason."""


@dataclass(frozen=True)
class Notice:
    """A sentence for people."""

    text: str


ServerAppEvent = MessagesPushed | ReplyTaken | NodesAwaited | Notice
OnServerAppEvent = Callable[[ServerAppEvent], None]
"""Called from any thread."""


EVERY_S = 2.0
"""Between two lines about one group that is under way."""


@dataclass(frozen=True)
class GroupLine:
    """How far the messages of one kind and group are."""

    kind: str
    group: str
    messages: int
    replies: int
    """Errors among them."""
    errors: int
    seconds: float
    reason: str = ""
    """Of the first error."""
    done: bool = False
    """Whether the ServerApp has gone on to something else."""

    def __str__(self) -> str:
        what = f"round {self.group}, {self.kind}" if self.group else self.kind
        errors = f", {self.errors} of them errors (the first: {self.reason})" if self.errors else ""
        return f"{what}: {self.replies} of {self.messages} replied{errors}, {self.seconds:.1f} s"


@dataclass(frozen=True)
class Totals:
    """What a start of a ServerApp did."""

    rounds: int = 0
    """Different groups of messages, those without a group left out."""
    replies: int = 0
    """With a content."""
    errors: int = 0
    seconds: float = 0.0


class RunTally:
    """Follows the groups one after another; ``say`` gets a line when one is over, and now and then before."""

    def __init__(
        self,
        say: Callable[[GroupLine | str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        simulation: int | None = None,
    ) -> None:
        """``simulation``: how many nodes are simulated, where they are."""
        self._say, self._clock, self._simulation = say, clock, simulation
        self._began = self._group_began = self._said_at = clock()
        self._line: GroupLine | None = None
        self._rounds: set[str] = set()
        self._replies = self._errors = 0
        self._lock = Lock()

    def happened(self, event: ServerAppEvent) -> None:
        """Take in what the Grid tells, from any thread."""
        with self._lock:
            match event:
                case MessagesPushed():
                    self._pushed(event)
                case ReplyTaken():
                    self._replied(event)
                case NodesAwaited():
                    self._say(awaited(event.nodes, event.ineligible, self._simulation))
                case Notice():
                    self._say(event.text)
                case _:
                    assert_never(event)

    def end(self) -> Totals:
        """Say the last line; the totals."""
        with self._lock:
            self._close()
            seconds = round(self._clock() - self._began, 3)
            return Totals(len(self._rounds), self._replies, self._errors, seconds)

    def _pushed(self, pushed: MessagesPushed) -> None:
        if pushed.group:
            self._rounds.add(pushed.group)
        line = self._line
        if line is None or (line.kind, line.group) != (pushed.kind, pushed.group):
            self._close()
            self._group_began = self._said_at = self._clock()
            line = GroupLine(pushed.kind, pushed.group, 0, 0, 0, 0.0)
        self._line = GroupLine(**{**asdict(line), "messages": line.messages + pushed.messages})

    def _replied(self, reply: ReplyTaken) -> None:
        failed = reply.error is not None
        self._replies += not failed
        self._errors += failed
        line = self._line
        if line is None or (line.kind, line.group) != (reply.kind, reply.group):
            return  # late: its group is over
        now = self._clock()
        changed = {
            "replies": line.replies + 1,
            "errors": line.errors + failed,
            "seconds": now - self._group_began,
            "reason": line.reason or first_line(reply.error or ""),
        }
        self._line = GroupLine(**{**asdict(line), **changed})
        if now - self._said_at >= EVERY_S:
            self._said_at = now
            self._say(self._line)

    def _close(self) -> None:
        if self._line is not None:
            self._say(GroupLine(**{**asdict(self._line), "done": True}))
            self._line = None


def first_line(text: str) -> str:
    """A reason on one line of bearable length."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."


def awaited(nodes: int, ineligible: Mapping[str, int], simulation: int | None = None) -> str:
    """The sentence about a ServerApp that waits for more nodes, and what to do. ``simulation``: as of ``RunTally``."""
    if simulation is not None:
        return (
            f"The ServerApp waits for more nodes than the {simulation} that are simulated, and no more will come: stop "
            "it and give --simulation a higher number, or have the strategy ask for fewer (min_available_nodes)."
        )
    others = "".join(f" {count} more cannot serve it: {first_line(why)}" for why, count in ineligible.items())
    there = "no device is" if nodes == 0 else "1 device is" if nodes == 1 else f"{nodes} devices are"
    return (
        f"The ServerApp waits for more devices: {there} there that can serve it.{others} Start more with 'quorate "
        "device --flower APP_DIR', or have the strategy ask for fewer (min_available_nodes)."
    )
