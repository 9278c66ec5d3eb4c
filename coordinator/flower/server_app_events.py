"""What happens in a run, as the Grid tells it: the commands print it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MessagesPushed:
    """Messages of one kind and group are durable."""

    kind: str
    group: str
    messages: int
    known: int
    """Those that an earlier start of the ServerApp had pushed, or whose node does not exist."""


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
