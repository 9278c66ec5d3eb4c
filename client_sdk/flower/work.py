"""What a device and the process of its ClientApp say to each other: one JSON document a line, contents in files.

::

    the device                          the process
    (starts it)                         AppReady, or NotLoaded: it ends
    AppWork                                Worked, or AppFailed
    closes the pipe, or dies            ends at once
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from client_sdk.protocol.flower import ConfigValue, FlowerError, MessageId
from client_sdk.protocol.names import Message


class StoredState(Message):
    """Where the node's Context.state lies."""

    path: str
    start: int
    bytes: int


class AppWork(Message):
    """One message for the ClientApp."""

    run: str
    number: int
    """The run's, which ``Context.run_id`` has."""
    node: int
    node_config: dict[str, ConfigValue]
    run_config: dict[str, ConfigValue]
    message: MessageId
    type: str
    """Flower's message type."""
    group: str
    """The group id that the ServerApp has set; empty: none."""
    created_at: float
    ttl_s: float
    """From ``created_at``."""
    content: str
    """The file with the message's records."""
    state: StoredState | None
    """None: the node has none in this run yet."""
    answer: str
    """The file into which the answer is written (``answer_file``)."""
    max_reply: int
    """Longest reply in bytes."""


class AppReady(Message):
    """The ClientApp is loaded."""

    kind: Literal["ready"] = "ready"


class NotLoaded(Message):
    """The ClientApp cannot be loaded."""

    kind: Literal["not-loaded"] = "not-loaded"
    reason: str
    """One sentence."""


class Worked(Message):
    """The answer is written."""

    kind: Literal["worked"] = "worked"


class AppFailed(Message):
    """There is no answer, and the state is as it was."""

    kind: Literal["failed"] = "failed"
    error: FlowerError


Said = AppReady | NotLoaded | Worked | AppFailed
"""What the process says."""
_SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="kind")])


def read_said(line: bytes) -> Said:
    """What a line of the process says. ValueError where it is no such line."""
    return _SAID.validate_json(line)
