"""The rows of Flower runs, one class for each table: runs, messages with their reply, and contents.

The keys enforce invariants: a message has one place and one reply. Times are Unix seconds (float). A content is a blob,
which goes under its digest. Groups of messages are computed from their messages; the nodes are devices (``DeviceRow``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.store.declared import Json, table


@table("flower_runs", key="run", parents={"run": "run_names"}, indexes=["status", "created_at run"])
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
    """Replies that are errors."""
    latest_at: float = 0.0
    """The latest time of a message or a reply: the run ends then or later, also where a clock falls."""
    dropped_at: float | None = None
    """When its contents were dropped."""
    seq: int = field(default=0, compare=False)
    """Links in the chain of its messages, replies and end (``chain.py``). The store counts and computes, here and
    below."""
    link: str = field(default="", compare=False)
    """The last of them."""

    @property
    def over(self) -> bool:
        return self.status != "running"


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
    indexes=["run round group_id", "run replied_at expires_at", "run device replied_at", "run content", "run reply"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerMessageRow:
    """One message to a node, and what it was answered with: a content or an error."""

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
    grouped: bool = True
    """Whether the ServerApp has set ``group_id``; otherwise it is the round of the message's configuration."""
    seq: int = field(default=0, compare=False)
    """Its number in the run's chain, among messages and replies."""
    link: str = field(default="", compare=False)
    replied_at: float | None = None
    """When its reply came, with which it changes no more. None: it has none, and the fields below are as here."""
    reply: str | None = None
    """The reply's content; None: it is an error."""
    reply_bytes: int = 0
    code: int | None = None
    """Flower's ErrorCode; None where there is a content."""
    reason: str = ""
    """Of the error."""
    reply_seq: int = field(default=0, compare=False)
    reply_link: str = field(default="", compare=False)

    @property
    def answered(self) -> bool:
        return self.replied_at is not None


@dataclass(frozen=True, slots=True)
class FlowerRound:
    """A group of messages in numbers, counted from its messages."""

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
