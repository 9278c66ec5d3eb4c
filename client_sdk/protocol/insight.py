"""The messages of what operators look at more closely: a round's lanes, one device, the fleet, a plan's cost.

Every list is bounded. Of a secure round there is nothing of a single device here: the coordinator does not know it.
Routes: ``names.Route``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from client_sdk.protocol.names import DeviceId, Digest, Message, RunId, StatisticRole
from client_sdk.protocol.operators import DeviceState, DeviceView

# ------------------------------------------------------------ participation
# Who takes part in a run: every device that could, also those that never counted. Route: ``Route.PARTICIPATION``.


class DeviceParticipation(Message):
    """How often one device took part in the rounds of a run that have ended. *Selected* is the sum of *reported*,
    *late*, *dropped*, *withdrawn* and *refused*."""

    device: DeviceId
    device_class: str
    selected: int = 0
    reported: int = 0
    """Its update came in time; of a secure round, its masked one."""
    counted: int = 0
    """Of these, in rounds that were committed."""
    late: int = 0
    dropped: int = 0
    """It had sent nothing when the round closed."""
    withdrawn: int = 0
    refused: int = 0
    speed_s: float | None = None
    """Median seconds from its selection until its update came, in time or late, of its last rounds. None: none came; in
    secure rounds it is not told."""

    @property
    def missed(self) -> int:
        """Rounds in which it was too slow, or silent."""
        return self.late + self.dropped


class ClassParticipation(Message):
    """How often all devices of one class together took part."""

    device_class: str
    devices: int
    never_counted: int
    selected: int
    counted: int
    missed: int
    """Late or dropped."""


class RunParticipation(Message):
    """Who took part in the rounds of a run that have ended, from ``from_round`` on."""

    from_round: int
    devices: int
    never_counted: int
    by_class: list[ClassParticipation] = Field(default_factory=list)
    """The classes with the most devices first, at most 50."""
    lateness: str = ""
    """Where lateness is concentrated in some devices: in which, in a sentence. Empty: it is not."""
    page: list[DeviceParticipation] = Field(default_factory=list)
    """The devices asked for, the least counted first: of those that never counted who was selected most often."""
    next: str = ""
    """The other devices come ``after`` this. Empty: there are none."""


# ------------------------------------------------------------ insight


LaneEnd = Literal["waiting", "training", "reported", "late", "withdrawn", "dropped", "refused"]
"""Where a selected device is, or where it ended: *waiting* has not begun to train, *training* has begun; the others
are those of ``Funnel``."""
LANES_SHOWN = 1000
"""Cohorts of more devices are also told in ``LanesView.buckets``."""


class Lane(Message):
    """What one selected device did in a round. Times are Unix seconds by the coordinator's clock, durations seconds by
    the device's own."""

    device: DeviceId
    label: str = ""
    """Empty: it has none, or the device has left."""
    selected_at: float
    started_at: float | None = None
    """When it reported that it begins to train."""
    reported_at: float | None = None
    """When its update was accepted."""
    ended_at: float | None = None
    """When its part was over, however it ended. None: it is not."""
    fetch_s: float | None = None
    """Seconds from the assignment until it had the checkpoint. None: it has not reported."""
    train_s: float | None = None
    """Seconds that its training took. None: it has not reported."""
    encode_s: float | None = None
    """Seconds that it took to encode its update. None: it has not reported."""
    bytes: int | None = None
    """Length of its update."""
    end: LaneEnd
    reason: str = ""
    """Why it ended so, in a sentence. Part of it may be text of the device."""


class LaneBucket(Message):
    """What happened in one part of a round's time: how many devices of the cohort began, and how many ended how."""

    from_at: float
    to_at: float
    started: int = 0
    ends: dict[LaneEnd, int] = Field(default_factory=dict)


class LanesView(Message):
    """The devices of one round, by id."""

    secure: str = ""
    """Why nothing is said of single devices; empty: it is."""
    devices: int
    """Selected devices."""
    ends: dict[LaneEnd, int] = Field(default_factory=dict)
    """How many of them are, or ended, where."""
    lanes: list[Lane] = Field(default_factory=list)
    buckets: list[LaneBucket] = Field(default_factory=list)
    """Where ``devices`` is above 1,000: up to 120 equal parts of the round's time, in order."""


class FleetCounts(Message):
    """Registered devices by what they do now; without those that have left."""

    waiting: int = 0
    """In the pool, without an assignment."""
    unfit: int = 0
    """Devices that check in, and fit no run that is running."""
    assigned: int = 0
    away: int = 0


class ClassView(Message):
    """One class of devices: how much of the work it does, and how many of it are never heard."""

    device_class: str
    """What the label of these devices says before its first `/`; *no class* where it has none, *other classes* for
    those beyond the 50 largest."""
    devices: int
    rounds_joined: int
    """Of all of them together."""
    never_heard: int
    """How many of them have contributed to no round."""


class HourView(Message):
    """One hour of the last 24."""

    from_at: float
    devices: int
    """How many different devices checked in, as far as a process that serves this database noted it."""


class FleetView(Message):
    """The fleet in numbers: at most some seconds old."""

    by_state: dict[DeviceState, int]
    by_class: list[ClassView]
    """Of devices that have not left, the largest class first."""
    availability: list[HourView]
    """24 hours in order, the current one last."""
    shared_identities: list[DeviceId] = Field(default_factory=list)
    """Devices whose identity two processes use now, a copied folder: the first 50 by id."""


class DeviceRound(Message):
    """What became of one update of a device."""

    run: RunId
    round: int
    at: float | None = None
    """When the round closed, or when the update was refused."""
    result: Literal["counted", "refused", "late"]
    version: int | None = None
    """The checkpoint to which it contributed."""
    reason: str = ""
    """Why it was refused."""
    secure: bool = False
    """Whether the round was secure. *counted* then says that the device is in the sum: its update was seen by
    nobody."""


class CertificateView(Message):
    """The newest certificate that a device has registered with. Times are Unix seconds."""

    not_before: float
    not_after: float
    refused: str = ""
    """The kind of problem with which its holder is refused now, such as *expired-certificate* or *revoked-key*; empty:
    it is not."""
    reason: str = ""
    """Why its holder is refused now, in a sentence; empty: it is not."""


class DeviceHourView(Message):
    """One hour of the last 24, of one device."""

    from_at: float
    seen: bool
    """Whether it sent a request in this hour, as far as a process that serves this database noted it."""


class DeviceDetail(Message):
    """One device, with the newest of its rounds."""

    device: DeviceView
    certificate: CertificateView | None = None
    """None: it has left."""
    rounds: list[DeviceRound]
    """Up to 50 that counted and 50 that were refused, newest first; of runs in the caller's scope."""
    availability: list[DeviceHourView]
    """24 hours in order, the current one last."""


class ReplicaView(Message):
    """A process that serves this database, or did in the last hour."""

    name: str
    version: str
    seen_at: float
    """It notes this every 30 s."""


class StorageView(Message):
    """The disk of this process: at most a minute old. None: there is none, or it is not known."""

    database_bytes: int | None = None
    blob_bytes: int | None = None
    disk_free_bytes: int | None = None


class GroupRequests(Message):
    """The requests of one group that this process has answered since it started."""

    group: str
    """A tag of the API's description; *held* for requests that are held open until there is an answer, *other* for the
    rest."""
    count: int
    refused: int
    """Answered with a status of 400 to 499."""
    errors: int
    """Answered with a status of 500 or above."""
    p50_s: float | None = None
    """Median of the last five to ten minutes, in seconds, between two bounds of the histogram; None: there were no
    requests. *held* has none."""
    p95_s: float | None = None


class SystemView(Message):
    """The process that answers, and what it shares with others."""

    version: str
    replicas: list[ReplicaView]
    storage: StorageView
    requests: list[GroupRequests] = Field(default_factory=list)
    streams: int = 0
    """Streams of one run's events that this process holds open."""
    viewers: int = 0
    """Viewers of its stream of all runs."""


class CheckPlan(Message):
    """Asks whether a run could be created from a plan, and what it would cost. Nothing is created."""

    plan: dict[str, object]
    """The plan as in its TOML file."""
    init: Digest | None = None
    """The initial checkpoint, which must be uploaded. None: costs in bytes are not known."""
    init_proof: Digest | None = None
    """The proof that who asks has the bytes of the checkpoint: see ``CreateRun.init_proof``."""
    roles: dict[str, StatisticRole] | None = Field(default=None, max_length=100_000)
    """The model's statistics: see ``CreateRun.roles``."""


class CostLine(Message):
    """One line of a plan's cost."""

    name: Literal[
        "device_download_bytes",
        "device_upload_bytes",
        "round_download_bytes",
        "round_upload_bytes",
        "run_bytes",
        "server_memory_bytes",
        "server_disk_bytes",
        "round_longest_s",
        "run_longest_s",
    ]
    """It ends with its unit. *device*: of one device in one round; *round*: of all its devices in one round; *run*: of
    all rounds that the plan wants. Upper bounds, where no round is abandoned."""
    value: float
    text: str
    """The value in words, with a rounded number."""


class PlanSchema(Message):
    """What can be written in a plan."""

    document: dict[str, object]
    """A JSON Schema (2020-12): each field with its type, range, default and meaning."""


class PlanView(Message):
    """A plan that can be carried out."""

    plan: dict[str, object]
    """The plan with all its fields."""
    plan_digest: Digest
    run: str
    """The id that a run of it would get now."""
    cost: list[CostLine] = Field(default_factory=list)
    devices_spent: int = 0
    """Registered devices that contribute to this initial checkpoint no more, in whichever run. 0 in plain plans."""
    devices_registered: int = 0
    warnings: list[str] = Field(default_factory=list)
    """What is likely to keep its rounds from being committed, each in a sentence."""
    notes: list[str] = Field(default_factory=list)
    """Of secure rounds: what a sum and sizes give away, and what groups withstand, each in a sentence."""
