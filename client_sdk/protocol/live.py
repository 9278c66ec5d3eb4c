"""The messages of the stream of all runs (``Route.STREAM``), as server-sent events.

::

    event: snapshot   data: LiveSnapshot    first, and whenever the viewer has missed something
    event: patch      data: LivePatch       what has changed since, at most once a second
    id: <epoch>-<n>                         what the viewer has seen: it sends it back as Last-Event-ID

An epoch is one process's numbering of one scope. A viewer that comes back to the same epoch in time gets the patches
that it has missed; any other gets a snapshot. In both messages a field that is absent is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

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
    """What the viewer may see, without runs that ended long ago."""

    runs: list[RunView]
    """The runs in scope that go on, and the newest that have ended, oldest first."""
    older: RunId | Literal[""] = ""
    """The oldest of those that have ended, where others did before it: ``GET /v1/runs`` lists them after it, newest
    first."""
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


# ------------------------------------------------------------ merge patch
# JSON merge patches (RFC 7396): what changed between two objects, and an object with a patch on it.
#
# In such a patch ``null`` deletes a field, so no value of a patched object is ``null``: a field that is absent stands
# for it. Lists are replaced as a whole.


Json = dict[str, Any]


def without_nulls(value: Mapping[str, Any]) -> Json:
    """The object without its fields that are null, also deep inside it, but not inside lists."""
    return {
        name: without_nulls(one) if isinstance(one, Mapping) else one for name, one in value.items() if one is not None
    }


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
    """The patch that makes ``after`` of ``before``; empty where they are equal. Neither has nulls."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if old != value:
                patch[name] = difference(old, value)
        elif name not in before or old != value:
            patch[name] = value
    return patch


def merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """``target`` with the patch on it."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[name] = value
    return result
