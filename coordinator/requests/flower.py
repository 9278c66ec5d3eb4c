"""The requests of Flower runs: those of a ServerApp, which is an operator with the run in its scope, and of devices.

Downloads of contents are beside the table, as those of checkpoints are (``service/downloads.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from client_sdk.protocol.devices import Noted
from client_sdk.protocol.flower import (
    FLOWER_MEDIA_TYPE,
    CreateFlowerRun,
    EndFlowerRun,
    FlowerError,
    FlowerNodes,
    FlowerPoll,
    FlowerRunView,
    FlowerState,
    FlowerTask,
    FlowerWait,
    MessageId,
    PullReplies,
    Pushed,
    PushMessages,
    Replies,
    ReplyReceipt,
)
from client_sdk.protocol.names import Digest, Route, RunId
from coordinator.access import Operator, Role
from coordinator.blobs import Spool
from coordinator.requests.entry import About, Audited, Body, Direct, Entry, Held, Limit, Permission
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.flower.flower_core import device_key, replies_key
from coordinator.store.port import DeviceRow

AfterNode = Annotated[int, Field(ge=0, lt=2**63), About("nodes with an id above this, for paging")]
OfMessage = Annotated[MessageId, Field(), About("the message's id")]

# ------------------------------------------------------------ of the ServerApp


def create_flower_run(to: Coordinator, operator: Operator, message: CreateFlowerRun) -> FlowerRunView:
    """Begins a Flower run, or finds it: the same request for a run that goes on gives that run.

    The run's name must be in the caller's scope, and belongs to one run, of whichever kind."""

    def permitted(run: str) -> bool:
        return operator.may_with(Role.OPERATOR, run)

    return to.flower.runs.create(message, permitted)


def flower_run(to: Coordinator, operator: Operator, *, run: RunId) -> FlowerRunView:
    """A Flower run as its ServerApp sees it."""
    return to.flower.runs.view(run)


def flower_nodes(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterNode = 0, limit: Limit = 1000
) -> FlowerNodes:
    """The devices that are there now and can serve the run; of the others, how many cannot for which reason."""
    return to.flower.nodes.there(run, after, limit)


def content_limit(to: Coordinator, operator: Operator, *, run: RunId, digest: Digest) -> int:
    return to.flower.contents.limit(run)


def put_flower_content(to: Coordinator, operator: Operator, body: Spool, *, run: RunId, digest: Digest) -> Noted:
    """Sends the records of messages once, however many nodes get them. Their bytes must have the digest in the path."""
    to.flower.contents.put(run, body, digest)
    return Noted()


def push_messages(to: Coordinator, operator: Operator, message: PushMessages, *, run: RunId) -> Pushed:
    """Pushes messages to nodes: all of them are durable with the answer, or none is. What was pushed before is left as
    it is, so the same request may be sent again."""
    return to.flower.messages.push(run, message)


def pull_replies(to: Coordinator, operator: Operator, message: PullReplies, *, run: RunId) -> Replies | None:
    """The replies to these messages that there are. Held open until there is one, or until `hold_s` has passed.

    A message whose time to live is over has an error in place of a reply."""
    return to.flower.messages.pull(run, message)


def waits_for_replies(operator: Operator, message: PullReplies, *, run: RunId) -> str:
    return replies_key(run)


def is_puller(operator: Operator, message: PullReplies, *, run: RunId) -> str:
    """Threads of one ServerApp pull the replies to different messages at the same time."""
    return f"{operator.id} {run} {message.messages[0]}"


def no_reply(to: Coordinator, operator: Operator, message: PullReplies, *, run: RunId) -> Replies:
    return to.flower.messages.pull(run, message) or Replies(replies=())


def put_flower_state(to: Coordinator, operator: Operator, message: FlowerState, *, run: RunId) -> Noted:
    """Keeps the ServerApp's Context.state, which was sent as a content before."""
    to.flower.runs.keep_state(run, message.content)
    return Noted()


def end_flower_run(to: Coordinator, operator: Operator, message: EndFlowerRun, *, run: RunId) -> FlowerRunView:
    """Ends the run permanently. Its messages are offered to nobody any more."""
    return to.flower.runs.end(run, message)


# ------------------------------------------------------------ of devices


def poll_messages(to: Coordinator, device: DeviceRow, message: FlowerPoll) -> FlowerTask | FlowerWait | None:
    """The device is there, and has these apps. Held open until there is a message for it, or until `hold_s` has passed.

    It gets the same message again until that is answered or its time to live is over."""
    return to.flower.nodes.poll(device.device, message)


def waits_for_message(device: DeviceRow, message: FlowerPoll) -> str:
    return device_key(device.device)


def is_device(device: DeviceRow, message: FlowerPoll) -> str:
    return device.device


def no_message(to: Coordinator, device: DeviceRow, message: FlowerPoll) -> FlowerWait:
    return to.flower.nodes.hold_over(message)


def reply_limit(to: Coordinator, device: DeviceRow, *, run: RunId, message: OfMessage) -> int:
    return to.flower.replies.limit(device.device, run, message)


def put_reply(to: Coordinator, device: DeviceRow, body: Spool, *, run: RunId, message: OfMessage) -> ReplyReceipt:
    """The device's reply to a message, durable with the answer. The same bytes again get the same receipt; other bytes
    are refused (*duplicate*), and so is a reply after the message's time to live or after the run (*late*)."""
    return to.flower.replies.reply(device.device, run, message, body)


def reply_error(
    to: Coordinator, device: DeviceRow, error: FlowerError, *, run: RunId, message: OfMessage
) -> ReplyReceipt:
    """An error in place of a reply: the app has raised, or cannot be loaded. Otherwise as a reply."""
    return to.flower.replies.error(device.device, run, message, error)


_serverapp = partial(Entry, permission=Permission.OPERATOR, group="flower")
_device = partial(Entry, permission=Permission.DEVICE, group="flower")

ENTRIES = (
    _serverapp(
        "POST",
        Route.FLOWER_RUNS,
        Direct(create_flower_run),
        "Begin a Flower run",
        scoped=True,
        audited=Audited("flower.create", asks=("run",), makes=("run",)),
    ),
    Entry(
        "GET", Route.FLOWER_RUN, Direct(flower_run), "Show a Flower run", permission=Permission.VIEWER, group="flower"
    ),
    Entry(
        "GET",
        Route.FLOWER_NODES,
        Direct(flower_nodes),
        "List the nodes of a Flower run",
        permission=Permission.VIEWER,
        group="flower",
    ),
    _serverapp(
        "PUT",
        Route.FLOWER_CONTENT,
        Body(content_limit, put_flower_content, media=FLOWER_MEDIA_TYPE),
        "Send the content of messages",
        created=True,
    ),
    _serverapp("POST", Route.FLOWER_MESSAGES, Direct(push_messages), "Push messages"),
    _serverapp(
        "POST",
        Route.FLOWER_REPLIES,
        Held(pull_replies, key=waits_for_replies, peer=is_puller, again=pull_replies, expired=no_reply),
        "Pull replies",
    ),
    _serverapp("PUT", Route.FLOWER_STATE, Direct(put_flower_state), "Keep the state of the ServerApp"),
    _serverapp(
        "POST",
        Route.FLOWER_END,
        Direct(end_flower_run),
        "End a Flower run",
        audited=Audited("flower.end", asks=("status",)),
    ),
    _device(
        "POST",
        Route.FLOWER_TASKS,
        Held(poll_messages, key=waits_for_message, peer=is_device, again=poll_messages, expired=no_message),
        "Poll for a message",
        operation="flower_task",
    ),
    _device("PUT", Route.FLOWER_REPLY, Body(reply_limit, put_reply, media=FLOWER_MEDIA_TYPE), "Send a reply"),
    _device("POST", Route.FLOWER_ERROR, Direct(reply_error), "Send an error in place of a reply"),
)
