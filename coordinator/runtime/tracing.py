"""A port for traces: which request or action an event follows from, and which actions follow from that event.

::

    request of HTTP -> event -> actions, also where another thread performs them later -> their events -> ...

A coordinator without traces has None in its place. What it gives is for people: nothing is decided by it.

Causes are followed by what a proposal carries, since an update is answered, added and committed by different threads,
and one transaction has the events of many. ``traceparent`` is read of nobody: any device could put its requests into
the traces of others, or decide that all of its own are kept. Spans have an error's type, not its message, which may
hold a password. ``opentelemetry-instrumentation-asgi`` records URLs with their query and reads ``traceparent``. A span
costs some 30 microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coordinator.engine import effects as fx
from coordinator.engine import events as ev

NAMES = ("run", "round", "attempt", "device", "worker")
"""What lines of the log and spans say about a request, an event or an action, as far as it is known."""


class Traces(Protocol):
    """The traces of one process. Safe from any thread."""

    def cause(self) -> object:
        """What this thread does now: the value for ``Batch.event``, where another thread makes the event."""
        ...

    def batch(self, run: str) -> Batch:
        """Begins a transaction in which events of this run are appended."""
        ...

    def performing(self, run: str, action: fx.Action) -> AbstractContextManager[None]:
        """Surrounds the performance of an action, in the trace of the event from which it follows. One that fails may
        be performed again, in the same trace."""
        ...


class Batch(Protocol):
    """The events of one transaction. Where it fails, they did not happen, and the object is dropped."""

    def event(self, cause: object, event: ev.Event, round: int, effects: Sequence[fx.Effect]) -> None:
        """This event was made because of ``cause``, and has these effects. ``round``: the run's, for events without
        one."""
        ...

    def durable(self) -> None:
        """The transaction is durable. Called before any action of it can be performed."""
        ...


def names_of(run: str, what: fx.Action | ev.Event) -> dict[str, Any]:
    """What an action or an event is about, by the words of ``NAMES``; only what it says."""
    found: dict[str, Any] = {"run": run}
    found |= {name: value for name in NAMES if (value := getattr(what, name, None)) is not None}
    if isinstance(what, fx.Fold):
        found["device"] = what.contribution.device
    return found
