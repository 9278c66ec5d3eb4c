"""The rows of Flower runs, one class for each table: runs, nodes, contents, messages, replies, and ended rounds.

The keys enforce invariants: a message has one place and one reply. Times are Unix seconds (float). A content is a blob,
which goes under its digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.store.declared import table
from coordinator.store.rows import Json


@table("flower_runs", key="run", parents={"run": "run_names"})
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerRunRow:
    """A Flower run. Its counters are changed under the run's lock, in the transaction of what they count."""

    run: str
    number: int
    """63 bits, above 0: Flower's ``run_id``."""
    app: str
    version: str
    digest: str
    """Of the app's files."""
    config: Json
    max_reply: int | None
    """The longest accepted reply in bytes, as the ServerApp has set it; None: it follows from ``largest``."""
    created_at: float
    status: str = "running"
    """running | finished | failed | stopped. The last three are final."""
    reason: str = ""
    ended_at: float | None = None
    state: str | None = None
    """Digest of the content that has the ServerApp's Context.state."""
    largest: int = 0
    """Bytes of the largest content that a message has."""
    messages: int = 0
    rounds: int = 0
    """Groups of messages so far."""
    replies: int = 0
    """With a content."""
    errors: int = 0
    """Replies that are errors. Expired messages are added when the messages are dropped."""
    latest_at: float = 0.0
    """The latest time of a message or a reply: the run ends then or later, also where a clock falls."""
    dropped_at: float | None = None
    """When its messages, replies and contents were dropped; since then ``FlowerRoundRow`` has what is left of them."""
    seq: int = field(default=0, compare=False)
    """Links in the chain of its messages and replies (``chain.py``). The store counts and computes, here and below."""
    link: str = field(default="", compare=False)
    """The last of them."""

    @property
    def over(self) -> bool:
        return self.status != "running"


@table("flower_nodes", key="device", unique=["node"], parents={"device": "devices"}, indexes=["seen_at"])
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerNodeRow:
    """A device that has polled for the messages of Flower runs."""

    device: str
    node: int
    """Unique; see ``client_sdk.flower.work.node_id``."""
    apps: str
    """Canonical JSON of the apps that it has. Equal lists are equal strings."""
    secure_only: bool
    busy: str | None
    """The message that it works on, as it said."""
    seen_at: float


@table("flower_contents", key="run digest", parents={"run": "flower_runs"})
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerContentRow:
    """A content that a run has; its bytes are the blob ``digest``. Unique per (run, digest)."""

    run: str
    digest: str
    bytes: int
    stored_at: float


@table(
    "flower_messages",
    key="run message",
    unique=["run position"],
    parents={"run": "flower_runs"},
    indexes=["run round", "run answered expires_at", "device answered", "run content"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerMessageRow:
    """One message to a node."""

    run: str
    message: str
    position: int
    """From 1, in the order in which the run's messages were pushed."""
    round: int
    """From 1: the place of its group among the groups of the run."""
    group_id: str
    node: int
    device: str
    kind: str
    content: str
    created_at: float
    expires_at: float
    delivered_at: float | None = None
    """When it was given to its device first."""
    answered: bool = False
    """Whether there is a ``FlowerReplyRow``."""
    grouped: bool = True
    """Whether the ServerApp has set ``group_id``; otherwise it is the round of the message's configuration."""
    seq: int = field(default=0, compare=False)
    """Its number in the run's chain, among messages and replies."""
    link: str = field(default="", compare=False)

    def open_at(self, now: float) -> bool:
        """Whether it waits for its answer."""
        return not self.answered and now < self.expires_at


@table("flower_replies", key="run message", parents={"run message": "flower_messages"}, indexes=["run content"])
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerReplyRow:
    """What a message was answered with: a content or an error. Unique per (run, message), so it counts once."""

    run: str
    message: str
    content: str | None
    bytes: int
    code: int | None
    """Flower's ErrorCode; None where there is a content."""
    reason: str
    at: float
    seq: int = field(default=0, compare=False)
    link: str = field(default="", compare=False)


@table("flower_rounds", key="run round", parents={"run": "flower_runs"})
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerRoundRow:
    """A group of messages in numbers: counted from its messages, stored when they are dropped."""

    run: str
    round: int
    group_id: str
    opened_at: float
    messages: int
    delivered: int
    """Messages that were given to their device."""
    replies: int
    """Replies with a content."""
    errors: int
    """Replies that are errors."""
    expired: int
    """Messages whose time was over without a reply."""
    bytes_in: int
    """Of the replies' contents."""
    last_at: float | None
    """When the last reply came."""

    @property
    def open(self) -> int:
        """Messages that wait for their answer."""
        return self.messages - self.replies - self.errors - self.expired
