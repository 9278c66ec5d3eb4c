"""The events of a run. Time is a field of each event; tensors are named by digest.

An event that changes the state is appended to the run's log, and the state is the fold of the log: so an event holds
all that ``step`` needs to decide, and nothing that it could not read again after a crash. ``kind`` is the name under
which the log holds it, whatever the class is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import not_
from typing import Annotated, Any, ClassVar, get_args

from pydantic import Field, TypeAdapter

from client_sdk.tensors.manifest import StatisticRole
from coordinator.engine.event_fields import NO_EVIDENCE, UNTREATED, Evidence, OfAttempt, OfDevice, Treated
from coordinator.engine.named_tensors import NamedTensors, Small
from coordinator.engine.secure.events import Advanced as Advanced
from coordinator.engine.secure.events import Advertised as Advertised
from coordinator.engine.secure.events import Announced as Announced
from coordinator.engine.secure.events import Complained as Complained
from coordinator.engine.secure.events import Declined as Declined
from coordinator.engine.secure.events import Discarded as Discarded
from coordinator.engine.secure.events import Faulted as Faulted
from coordinator.engine.secure.events import Masked as Masked
from coordinator.engine.secure.events import Opened as Opened
from coordinator.engine.secure.events import OpeningFailed as OpeningFailed
from coordinator.engine.secure.events import PairsOpened as PairsOpened
from coordinator.engine.secure.events import Revealed as Revealed
from coordinator.engine.secure.events import Rostered as Rostered
from coordinator.engine.secure.events import SecureEvent as SecureEvent
from coordinator.engine.secure.events import Shared as Shared
from coordinator.engine.secure.events import Signed as Signed
from coordinator.engine.secure.events import Spent as Spent
from coordinator.engine.secure.events import Unbarred as Unbarred
from coordinator.engine.secure.events import Vouched as Vouched


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The run begins."""

    kind: ClassVar[str] = "Created"
    at: float
    weight_unit: int = 1
    """In how many parts of an example the run counts updates: see ``weights.unit_of``."""
    tensors: str = ""
    """Digest of the first checkpoint's canonical tensors, where the plan has secure rounds."""
    roles: dict[str, StatisticRole] = field(default_factory=dict)
    """The model's statistics; its other tensors are parameters."""
    roles_digest: str = ""
    """``client_sdk.tensors.manifest.digest_of`` the model and these roles: what devices agree to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. Changes the state only when a deadline has."""

    kind: ClassVar[str] = "Tick"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFell:
    """The coordinator's clock went back: open deadlines move back with it."""

    kind: ClassVar[str] = "ClockFell"
    at: float
    by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A coordinator started again: devices could not reach it for a time, so they have longer to answer."""

    kind: ClassVar[str] = "Recovered"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The cohort was drawn from the pool, and claimed in the same transaction."""

    kind: ClassVar[str] = "Drawn"
    at: float
    round: int
    cohort: tuple[tuple[str, int], ...]
    """(device, examples) of each selected device, by device id."""
    waiting: int
    """Eligible devices in the pool."""
    pool: str | None = None
    """Digest of the blob from which the draw can be repeated: the list of the pool, or what its tree shows of who was
    drawn."""
    examples: int = 0
    """The sum of the examples of the devices in the tree, each at least 1. 0: the pool is listed."""
    root: str = ""
    """The root of the tree of the devices that were drawn from: see ``engine.pool_tree``. Empty: they are listed."""
    others: str = ""
    """Why waiting devices are not eligible, where too few were: text for the operator, on which nothing depends."""
    unspendable: int = 0
    """Eligible devices that wait and were not drawn: they have signed on this checkpoint in some run, have declined it,
    or are barred from this run."""
    declined: int = 0
    """How many of these have declined it."""
    barred: int = 0
    """How many of these are barred. A device is counted once: as spent, else as declined, else as barred."""

    @property
    def spent(self) -> int:
        """How many of the devices that were left out have signed."""
        return self.unspendable - self.declined - self.barred


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStarted(OfDevice):
    """A device has the checkpoint and begins to train."""

    kind: ClassVar[str] = "Started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(OfDevice):
    """An update was received, validated and made durable under its digest."""

    kind: ClassVar[str] = "Reported"
    digest: str
    bytes: int
    examples: int
    """Capped when the device registered."""
    steps: int
    steps_planned: int
    complete: bool
    metrics: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    held_out_examples: int = 0
    held_out_weights: dict[str, float] = field(default_factory=dict)
    """What a metric's mean counts by, where that is not the examples."""
    held_out_states: dict[str, list[float]] = field(default_factory=dict)
    """Of metrics whose states are added."""
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Fetch, train, encode: by the device's own clock."""
    treated: Treated = UNTREATED
    """What was done to it before it is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRefused(OfDevice):
    """An invalid update was received. The device would make the same one again, so its part in the round ends."""

    kind: ClassVar[str] = "UpdateRefused"
    digest: str
    """Of the refused bytes, which are not stored."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLost(OfDevice):
    """The stored bytes of an acknowledged update are damaged or gone. The device is asked once more."""

    kind: ClassVar[str] = "UpdateLost"
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrew(OfDevice):
    """A device will not report for this round."""

    kind: ClassVar[str] = "Withdrew"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The next checkpoint is durable; with this event it becomes the model."""

    kind: ClassVar[str] = "Committed"
    at: float
    round: int
    digest: str
    bytes: int
    named_tensors: NamedTensors = field(default_factory=dict)
    """The tensors that go with it. A round that learned nothing carries over what there was."""
    small: Small = field(default_factory=dict)
    """The small state that goes with it. A round that learned nothing carries over what there was."""
    tensors: str = ""
    """Digest of the checkpoint's canonical tensors, where the plan has secure rounds."""
    zero_sum: bool = False
    """Whether the sum of the updates was zero in every value."""
    raised: int = 0
    """How many values of non-negative statistics are 0 in it because what devices sent would have made them less."""
    evidence: Evidence = NO_EVIDENCE
    """Of the bytes that it was made of."""
    rounding: float = 0.0
    """Of a secure round: about how much of the mean is rounding; 0 below 0.3."""
    noise: Annotated[str, Field(exclude_if=not_)] = ""
    """SHA-256 of the key of its noise, where later rounds need it: a message of the run, until the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """The updates of a closed round could not be made into a checkpoint."""

    kind: ClassVar[str] = "CommitFailed"
    at: float
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """The seed of the noise of a closed round is durable: a message of the round, until its updates are deleted. Its
    devices have paid for what the round tells. Where another list is counted later, the same seed comes again."""

    kind: ClassVar[str] = "Seeded"
    at: float
    round: int
    digest: str
    """SHA-256 of the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An evaluator scored a checkpoint."""

    kind: ClassVar[str] = "Scored"
    at: float
    version: int
    source: str
    examples: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The operator wants no new round to open. The one under way goes on."""

    kind: ClassVar[str] = "Paused"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    kind: ClassVar[str] = "Resumed"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """The operator gives the run another name to be shown by."""

    kind: ClassVar[str] = "Renamed"
    at: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The operator ends the run; a round under way is abandoned; one that is committing is not, unless a file that
    it is made of is damaged or gone."""

    kind: ClassVar[str] = "Stopped"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OfLease(OfAttempt):
    """What a worker did under a lease."""

    fence: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased(OfLease):
    """A worker asked for the datacenter round: the first grant, a takeover, or the same worker started again. Attempt
    and fence are one more than those of the last lease: of the round, and of the run."""

    kind: ClassVar[str] = "Leased"
    instance: str
    waiting: int
    """Eligible devices in the pool: too few to return to them."""
    installation: str = ""
    """The worker's, which is the same when it is started again; empty where it gave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat(OfLease):
    """A heartbeat: the worker trains. Changes the state, and is logged, when the last logged one is a quarter of
    ``lease_s`` old: a lease of an hour makes some hundred rows, however often the worker sends one."""

    kind: ClassVar[str] = "Heartbeat"
    step: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded(OfLease):
    """The worker returns the lease, or reports that the round cannot be trained."""

    kind: ClassVar[str] = "LeaseEnded"
    failed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(OfLease):
    """A worker's checkpoint was received, validated and made durable; with this event it becomes the model."""

    kind: ClassVar[str] = "Delivered"
    digest: str
    bytes: int
    steps: int
    examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    waiting: int | None = None
    """Eligible devices in the pool at that moment. None: they were not counted."""
    tensors: str = ""
    """Digest of the checkpoint's canonical tensors, where the plan has secure rounds."""
    evidence: Evidence = NO_EVIDENCE
    """The worker's word for the parent that it trained from, which the coordinator has compared with the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReturned:
    """Enough eligible devices wait while no worker has the datacenter round."""

    kind: ClassVar[str] = "FleetReturned"
    at: float
    round: int
    waiting: int
    unspendable: int = 0
    """Devices that wait and are unspendable for a reason that another model would end, where too few others wait: see
    ``leasing.fleet_is_back``."""


RunEvent = (
    Created
    | Tick
    | ClockFell
    | Recovered
    | Seeded
    | Committed
    | CommitFailed
    | Scored
    | Paused
    | Resumed
    | Renamed
    | Stopped
)
"""What happens to a run whatever the kind of its rounds is."""
DeviceEvent = Drawn | TrainingStarted | Reported | UpdateRefused | UpdateLost | Withdrew
"""What happens by devices: each kind of round answers it in its own way."""
WorkerEvent = Leased | WorkerHeartbeat | LeaseEnded | Delivered | FleetReturned
Event = RunEvent | DeviceEvent | WorkerEvent | SecureEvent

_ADAPTERS: dict[str, TypeAdapter[Any]] = {cls.kind: TypeAdapter(cls) for cls in get_args(Event)}
_SERIALIZERS = {kind: adapter.serializer for kind, adapter in _ADAPTERS.items()}
"""The adapters' own: ``TypeAdapter.dump_python`` costs four times as much, and a round has hundreds of events."""


def to_json(event: Event) -> dict[str, object]:
    """The event as JSON, without ``at``, which the log keeps in a column of its own."""
    body: dict[str, object] = _SERIALIZERS[event.kind].to_python(event, mode="json")
    del body["at"]
    return body


def from_json(kind: str, at: float, body: dict[str, object]) -> Event:
    """The event of a log's row. Raises ValueError for a kind that this code does not know."""
    if kind not in _ADAPTERS:
        raise ValueError(
            f"the log holds an event of kind {kind!r}, which this version does not know: it was written by a newer one"
        )
    event: Event = _ADAPTERS[kind].validate_python({**body, "at": at})
    return event
