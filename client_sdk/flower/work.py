"""What a device and the process of its ClientApp say to each other: one JSON document a line, contents in files.

::

    the device                          the process
    (starts it)                         AppReady, or NotLoaded: it ends
    AppWork                                Worked, or AppFailed
    closes the pipe, or dies            ends at once
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from client_sdk.chance import labelled, sha256_word
from client_sdk.protocol.flower import ConfigValue, FlowerError, MessageId
from client_sdk.protocol.names import Message

# ------------------------------------------------------------ error codes
# The codes of Flower's error replies, as this project sends them. A test compares them with flwr's.


REASON_LIMIT = 2000
"""Characters of ``FlowerError.reason``."""


class ErrorCode(IntEnum):
    """flwr's ``ErrorCode``, of which a device and the Grid use these."""

    UNKNOWN = 0
    LOAD_CLIENT_APP_EXCEPTION = 1
    CLIENT_APP_RAISED_EXCEPTION = 2
    MESSAGE_UNAVAILABLE = 3
    REPLY_MESSAGE_UNAVAILABLE = 4
    NODE_UNAVAILABLE = 5
    CLIENT_APP_CRASHED = 8


def error(code: ErrorCode, reason: str) -> FlowerError:
    """An error in place of a reply; its reason is cut where it is too long, and what is no text in it becomes ``?``."""
    return FlowerError(code=int(code), reason=reason[:REASON_LIMIT].encode(errors="replace").decode())


def raised(error_: BaseException) -> FlowerError:
    """What Flower replies when a ClientApp raises: the exception's class and text."""
    try:
        text = str(error_)
    except Exception as failure:  # noqa: BLE001 - the text is the app's code too
        text = f"its text raises {type(failure).__name__}"
    return error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error_)}:<'{text}'>")


# ------------------------------------------------------------ work


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


# ------------------------------------------------------------ nodes
# The node id by which Flower's ServerApps know a device.


_LIMIT = 2**63


def node_id(device: str) -> int:
    """The node id of a device: the same one for ever and in every run, in [1, 2^63).

    The first 64 bits of a SHA-256 without the highest bit: Flower's node ids fit into a signed integer of 64 bits, and
    0 is the id of no node. Two devices of a fleet of 10^6 have the same id with a probability of 5e-8.
    """
    return sha256_word(labelled("flower node", device)) % _LIMIT or 1


# ------------------------------------------------------------ supported
# Which flwr this project works with: its private names, which ``flwr_private`` uses, change with any release.


SUPPORTED = ("1.41", "1.42")
INSTALL = "pip install 'quorate[flower]'"


class WrongFlower(ImportError):
    """flwr is absent, or another version than this project works with."""


def require_flwr() -> None:
    """Raise WrongFlower where the installed flwr is another than the supported ones."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise WrongFlower(f"This needs flwr, which is not installed: {INSTALL}", name="flwr") from None
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        wanted = " or ".join(SUPPORTED)
        raise WrongFlower(f"flwr {found} is installed, and Quorate works with flwr {wanted}: {INSTALL}", name="flwr")


# ------------------------------------------------------------ notices
# What a device that serves Flower runs tells people: notices of one sentence each.


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerNotice:
    """A notice for people. ``str`` of it is one line."""

    kind: Literal[
        "enrolled", "renewed", "waiting", "trouble", "message", "replied", "error", "refused", "sent-again", "stopped"
    ]
    text: str
    run: str | None = None
    group: str = ""
    """Shown as the round."""
    message: str | None = None

    def __str__(self) -> str:
        if self.run is None:
            return self.text
        return f"{self.run}{f' round {self.group}' if self.group else ''}: {self.text}"
