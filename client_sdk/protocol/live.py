"""The messages of the stream of all runs (``Route.STREAM``), as server-sent events.

::

    event: snapshot   data: LiveSnapshot    first, and whenever the viewer has missed something
    event: patch      data: LivePatch       what has changed since, at most once a second
    id: <epoch>-<n>                         what the viewer has seen: it sends it back as Last-Event-ID

An epoch is one process's numbering of one scope. A viewer that comes back to the same epoch in time gets the patches
that it has missed; any other gets a snapshot. In both messages a field that is absent is null.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from client_sdk.protocol.insight import FleetCounts
from client_sdk.protocol.names import Message, RunId
from client_sdk.protocol.operators import RunView


class LiveSystem(Message):
    """The process that streams."""

    version: str
    viewers: int
    """Of all scopes, when the snapshot was made."""


class LiveSnapshot(Message):
    """Everything that the viewer may see."""

    runs: list[RunView]
    """Those in scope, oldest first."""
    fleet: FleetCounts | None = None
    """None: the viewer does not see everything."""
    system: LiveSystem


class LivePatch(Message):
    """What has changed: of one run, or of the fleet."""

    run: RunId | None = None
    patch: dict[str, Any] = Field(default_factory=dict)
    """A JSON merge patch (RFC 7396) of that run's ``RunView``; of a run that is new to the viewer, all of it."""
    fleet: FleetCounts | None = None
    """The new counts."""
