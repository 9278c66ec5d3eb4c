"""The messages of Flower runs: a ServerApp's Grid sends messages to nodes, which are devices, and pulls their replies.

The requests of a ServerApp, by an operator's key within the scope of the run::

    POST /v1/flower/runs                                   CreateFlowerRun -> FlowerRunView
    GET  /v1/flower/runs/{run}/nodes                                       -> FlowerNodes    the live fleet
    PUT  /v1/flower/runs/{run}/contents/{digest}           content         -> Noted          once for each content
    POST /v1/flower/runs/{run}/messages                    PushMessages    -> Pushed         durable before the answer
    POST /v1/flower/runs/{run}/replies                     PullReplies     -> Replies        held until there is one
    GET  /v1/flower/runs/{run}/contents/{digest}                           -> content        ranges, immutable
    PUT  /v1/flower/runs/{run}/state                       FlowerState     -> Noted          its Context.state
    POST /v1/flower/runs/{run}/end                         EndFlowerRun    -> FlowerRunView

Those of a device, signed by its key::

    POST /v1/flower/tasks                                  FlowerPoll      -> FlowerTask | FlowerWait    held
    GET  /v1/flower/runs/{run}/contents/{digest}                           -> content        of a message that it has
    PUT  /v1/flower/runs/{run}/messages/{message}/reply    content         -> ReplyReceipt   durable before the answer
    POST /v1/flower/runs/{run}/messages/{message}/error    FlowerError     -> ReplyReceipt

A content is the records of one message: arrays (dtype, shape, bytes), metrics and config. Its bytes are opaque to the
coordinator, and are stored under their SHA-256, so what goes to a hundred nodes is sent and stored once. A message is
offered to its device until there is its reply, its error, or its time to live is over. The same request may be sent
again at any time: it changes nothing the second time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from client_sdk.protocol.names import DeviceId, Digest, Finite, Message, RunId

FLOWER_MEDIA_TYPE = "application/vnd.quorate.flower-records"
MESSAGE_PATTERN = r"^[0-9a-f]{64}$"

MessageId = Annotated[str, Field(pattern=MESSAGE_PATTERN)]
"""Made by the Grid from what was sent before and the content, so that a ServerApp that is started again and sends the
same contents in the same order names the same messages."""
NodeId = Annotated[int, Field(gt=0, lt=2**63)]
"""Of a device: the same one for ever and in every run (``node_id``)."""
ConfigValue = bool | int | float | str
FlowerStatus = Literal["running", "finished", "failed", "stopped"]
TTL_MAX_S = 30 * 86400.0
PUSH_LIMIT = 1000
"""Messages in one request."""


class FlowerApp(Message):
    """An app: what a run needs and what a device has. A device serves a run where all three are equal."""

    name: str = Field(min_length=3, max_length=200)
    """``publisher/name`` of the app's pyproject.toml."""
    version: str = Field(min_length=1, max_length=64)
    digest: Digest
    """SHA-256 over the app's files (``client_sdk.flower.app``)."""


class CreateFlowerRun(Message):
    """Creates a run, or finds it: the same request for a run that has not ended gives that run."""

    run: RunId
    app: FlowerApp
    config: dict[str, ConfigValue] = Field(default_factory=dict, max_length=1000)
    """The run's configuration, with the overrides: what ``Context.run_config`` has on both sides."""
    max_reply: int | None = Field(default=None, ge=1)
    """Longest accepted reply in bytes. None: twice the largest message sent so far, at least 1 MiB; the coordinator's
    own limit of uploads where a message asks for the parameters of a model (``get_parameters``)."""


class FlowerRunView(Message):
    """A Flower run as its ServerApp and operators see it."""

    run: RunId
    app: FlowerApp
    config: dict[str, ConfigValue]
    status: FlowerStatus
    reason: str = ""
    """Why it ended."""
    number: NodeId
    """The run's number, which Flower's ``Context.run_id`` and ``Metadata.run_id`` have."""
    created_at: float
    ended_at: float | None = None
    messages: int = 0
    replies: int = 0
    errors: int = 0
    """Replies that are errors; messages whose time to live is over count as one."""
    state: Digest | None = None
    """The content that has the ServerApp's Context.state, where it has been saved."""
    max_reply: int
    """Longest accepted reply in bytes, now."""


class FlowerNode(Message):
    """A device that is there and can serve the run."""

    node: NodeId
    device: DeviceId


class FlowerNodes(Message):
    nodes: tuple[FlowerNode, ...]
    """In order of node id."""
    ineligible: dict[str, int] = Field(default_factory=dict)
    """Devices that are there and cannot serve the run: how many, for each reason. Of those up to ``next``."""
    next: str = ""
    """The other devices come ``after`` this. Empty: there are none."""


class FlowerMessage(Message):
    """One message to a node."""

    message: MessageId
    node: NodeId
    kind: str = Field(min_length=1, max_length=255)
    """Flower's message type: ``train``, ``evaluate``, ``query``, with an action after a dot where there is one."""
    group: str = Field(default="", max_length=255)
    """What is shown as the round: Flower's group id, or the round of the configuration where ``grouped`` is false."""
    grouped: bool = True
    """Whether the ServerApp has set ``group`` as the group id. Where it has not, its ClientApp sees none."""
    ttl_s: Annotated[Finite, Field(gt=0, le=TTL_MAX_S)]
    """From its first push, in seconds. A message that was pushed before and has expired without a reply is offered
    again."""
    content: Digest


class PushMessages(Message):
    messages: tuple[FlowerMessage, ...] = Field(min_length=1, max_length=PUSH_LIMIT)


class Pushed(Message):
    known: tuple[MessageId, ...]
    """Messages that had been pushed before, in the order of the request."""
    nowhere: tuple[MessageId, ...] = ()
    """Messages to nodes that do not exist, or no more: they were not pushed. In the order of the request."""


class PullReplies(Message):
    messages: tuple[MessageId, ...] = Field(min_length=1, max_length=PUSH_LIMIT)
    """Whose replies are wanted."""
    hold_s: Annotated[Finite, Field(ge=0, le=60)] = 0.0
    """How long to wait in seconds while there is none."""


class FlowerError(Message):
    """In place of a reply."""

    code: int = Field(ge=0, le=1_000_000)
    """Flower's ``ErrorCode``."""
    reason: str = Field(default="", max_length=2000)


class FlowerReply(Message):
    message: MessageId
    node: NodeId
    at: float
    """When it arrived."""
    content: Digest | None = None
    bytes: int = 0
    error: FlowerError | None = None
    """Exactly one of ``content`` and ``error`` is set. Messages whose time to live is over have an error."""


class Replies(Message):
    replies: tuple[FlowerReply, ...]
    """The replies that there are, in the order in which the messages were pushed; empty: the hold has expired."""


class FlowerState(Message):
    """The ServerApp's Context.state, sent as a content before."""

    content: Digest


class EndFlowerRun(Message):
    status: Literal["finished", "failed", "stopped"]
    reason: str = Field(default="", max_length=2000)


class FlowerPoll(Message):
    """A device has these apps and is there. While it is busy it polls with ``hold_s`` 0 to say so."""

    apps: tuple[FlowerApp, ...] = Field(min_length=1, max_length=16)
    secure_only: bool = False
    """The owner's policy: the device takes part only where updates are added under masks, so in no Flower run."""
    busy: MessageId | None = None
    """The message that it works on: no other task is wanted now."""
    hold_s: Annotated[Finite, Field(ge=0, le=60)] = 25.0
    runs: dict[RunId, NodeId] = Field(default_factory=dict, max_length=100)
    """Runs of which the device keeps something, or works on a message, with their numbers."""


class FlowerTask(Message):
    """One message for the device. It is given again until it is answered."""

    run: RunId
    number: NodeId
    app: FlowerApp
    config: dict[str, ConfigValue]
    message: MessageId
    node: NodeId
    kind: str
    group: str
    grouped: bool = True
    content: Digest
    bytes: int
    """Of the content."""
    created_at: float
    """Of the message, by the coordinator's clock."""
    ttl_s: float
    """From ``created_at``, also where a part of it is over: what ``Metadata.ttl`` has."""
    expires_in_s: float
    """After that an answer is refused (*late*)."""
    max_reply: int
    """Longest accepted reply in bytes."""


class FlowerWait(Message):
    """There is no task."""

    reason: str
    """Why, in a sentence: no run; or why this device cannot serve those that there are."""
    again_min_s: float
    again_max_s: float
    over: tuple[RunId, ...] = ()
    """Runs among ``FlowerPoll.runs`` that have ended: the device stops its work on them, and deletes what it keeps."""


class ReplyReceipt(Message):
    message: MessageId
    digest: Digest | None
    """The content that counts, durably; None: the error does."""
