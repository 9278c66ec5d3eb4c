"""The effects of a step, which the runtime performs.

Two kinds. *Records* are rows written in the same transaction as the event: they happen with it or not at all.
*Actions* are performed after it, may be performed again after a crash (``rounds.pending`` names them anew), and come
back as events.

An effect is a record or an action. Records are rows that are written in the transaction that appends the event.
Actions are performed after it, may be performed twice, come back as events, and are named again by ``pending(state)``
after a crash: so a crash between two effects can lose actions only. A new effect that must happen with its event or
not at all is a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.engine.named_tensors import NamedTensors, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Record: these devices have a live assignment in this round."""

    round: int
    attempt: int
    devices: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Record: the claims of these devices on this round end. None: all that are left."""

    round: int
    devices: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRound:
    """Record: the round's public row, as ``rounds.public_round`` gives it."""

    round: int
    status: str
    reason: str
    attempt: int
    opened_at: float
    collecting_at: float | None
    closed_at: float | None
    body: dict[str, object]
    kind: str = "federated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    device: str
    digest: str
    weight: int
    steps: int = field(default=0, compare=False)
    """Optimizer steps behind it."""
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Of its training, as its device reported them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCheckpoint:
    """Record: the next checkpoint of the line, and the updates it is made of."""

    version: int
    digest: str
    parent: int
    round: int
    bytes: int
    named_tensors: NamedTensors
    contributions: tuple[Contribution, ...]
    origin: str = ""
    """Where it came from, for people; empty: from the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRefusal:
    """Record: why an update, acknowledged or late, does not count."""

    round: int
    device: str
    digest: str | None
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetrics:
    """Record: scores of one checkpoint."""

    version: int
    source: str
    examples: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMark:
    """Record: this device has signed on these tensors and contributes to them no more, in no run. Of its marks by one
    run the first stays."""

    tensors: str
    """Digest of a model's canonical tensors."""
    device: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDebit:
    """Record: what a round's sum may tell of each of these devices is taken from their budgets, before anything is made
    of the sum. The same list in the same round costs once, another one costs again."""

    ledger: str
    round: int
    counted: str
    """One digest of the devices with their updates."""
    rho: float
    """The zCDP that it costs each device."""
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAudit:
    """Record: an act that only the run's owner may do, with the actor, for the audit log."""

    by: str
    action: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The answer to the peer: nothing changed. ``kind`` is a problem of ``client_sdk.protocol.problems``."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The answer to a report: it counts with this weight, unless the round is abandoned. To a message of a secure
    round: it was accepted; the weight is 0, since it is unknown."""

    device: str
    digest: str
    weight: int
    seq: int = 0
    """Sequence number of the event that counts it, and its link in the log: the runtime fills them in."""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The answer to a worker's request: it has the round, under this fence."""

    round: int
    attempt: int
    fence: int
    checkpoint: str
    version: int
    ends_at: float
    give_up_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The answer to a heartbeat."""

    ends_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The answer to a result: it is the model of this version now."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Action: draw the cohort, if the pool is full or the time is up; comes back as Drawn."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Action, a hint: these devices have an assignment."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Action, a hint: workers may take this datacenter round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Action: count the waiting devices, and return to the fleet if they are enough; may come back as FleetReturned."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Action: add this update to the round's running sum. Comes back as nothing: a lost sum is folded again."""

    round: int
    contribution: Contribution


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commits:
    round: int
    parent: str
    contributions: tuple[Contribution, ...]
    named_tensors: NamedTensors = field(default_factory=dict, hash=False)
    """The tensors that go with the parent."""
    small: Small = field(default_factory=dict, hash=False)
    """The small state that goes with it."""
    settings: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The round's numbers: see ``Combine``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(_Commits):
    """Action: make the next checkpoint from these updates; comes back as Committed or CommitFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Action: write the header of this attempt of a secure round; comes back as Announced."""

    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Action: make the roster of exactly these; comes back as Rostered, or as Faulted for each that spoils it."""

    round: int
    attempt: int
    advertised: tuple[tuple[str, str], ...]
    """(device, digest of its entry), by device id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnswers:
    """Action, a hint: the answers that these devices wait for in this phase are ready."""

    round: int
    attempt: int
    phase: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Action: rebuild the secrets from what was revealed and unmask the sum of each group that the round goes on with
    and has none yet; comes back as Opened or OpeningFailed of each."""

    round: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSum(_Commits):
    """Action: make the next checkpoint from these unmasked sums; comes back as Committed or CommitFailed.

    The contributions are of the devices whose masked vectors are in them, with digests. Their weights are 0: they are
    unknown."""

    sums: Mapping[int, str] = field(hash=False)
    """Group -> digest of the blob of its sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Action: make the checkpoint moved by one unit of the exact scale; comes back as Committed or CommitFailed."""

    round: int
    parent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Action: the raw updates of this round, and all before it, are no longer needed."""

    round: int
    blobs: tuple[str, ...] = ()
    """Of a secure round that has ended: every blob of all its attempts. When they are gone, Discarded comes back."""


Record = (
    Claim
    | Release
    | RecordRound
    | RecordCheckpoint
    | RecordRefusal
    | RecordMetrics
    | RecordMark
    | RecordDebit
    | RecordAudit
)
Answer = Refused | Accepted | Granted | Renewed | Taken
Action = (
    Draw
    | Wake
    | Offer
    | Return
    | Fold
    | Commit
    | Announce
    | Gather
    | SendAnswers
    | Open
    | CommitSum
    | Advance
    | Discard
)
Effect = Record | Answer | Action
