"""The rows that a store holds, one class for each table, from which the table is made (``declared.py``).

The keys enforce invariants: the line of checkpoints has no fork and no gap, a device counts once in a round and has one
live claim. The run's row assigns the numbers of events, under its lock. Times are Unix seconds (float). Bodies are
JSON-compatible dicts, which ``declared.py`` turns into text. The rows of Flower runs are in ``flower_rows.py``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.store.declared import Json, table


@table(
    "devices",
    key="device",
    unique=["key_id", "node"],
    indexes=["device label left_at", "last_seen_at", "turned_at"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A registered device."""

    device: str
    """The id in its certificate."""
    key_id: str | None
    """``credentials.identity_keys.key_id`` of its key, in hexadecimal; unique. None: it has left."""
    certificate: str
    """The bytes of its newest certificate, in hexadecimal; empty where ``key_id`` is None."""
    label: str
    examples_cap: int
    enrolled_at: float
    """When it was registered first."""
    last_seen_at: float | None = None
    left_at: float | None = None
    """When it left: what the coordinator knew of it is forgotten since."""
    facts: Json = field(default_factory=dict)
    """What it said of itself at its last check-in, and which of its processes check in: ``runtime/fleet.py``. Or at its
    last poll for messages of Flower runs: ``runtime/flower/nodes.py``."""
    node: int | None = None
    """The id by which Flower's ServerApps know it (``client_sdk.flower.work``), once it has polled; unique."""
    turned_at: float | None = None
    """When its processes took turns last, as its facts say it. The store sets it."""

    @property
    def simulated(self) -> bool:
        """Whether a simulation made it: no certificate belongs to its key. Its updates are never stored."""
        return self.key_id is not None and not self.certificate


ALL_CLASSES = "/"
"""In place of a class, which has no slash: of all of them."""


@table("device_classes", key="device_class", indexes=["devices device_class"])
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """The devices of a class in numbers, which the transactions carry along that change them: nobody has to read the
    fleet for them. Those that have left are in ``left`` alone."""

    device_class: str
    """What their labels say (``said_class``), empty where these say none; or ``ALL_CLASSES``."""
    devices: int = 0
    """Registered."""
    heard: int = 0
    """How many of them have contributed to a round."""
    rounds: int = 0
    """How often all of them together have."""
    left: int = 0


@table("workers", key="worker", unique=["key_id"])
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A datacenter's worker, registered by its certificate."""

    worker: str
    """The id in its certificate."""
    key_id: str | None
    """``credentials.identity_keys.key_id`` of its key, in hexadecimal; unique."""
    certificate: str
    """The bytes of its newest certificate, in hexadecimal."""
    label: str
    created_at: float
    last_seen_at: float | None = None
    revoked_at: float | None = None
    """When an operator of this coordinator revoked it, which is permanent."""

    @property
    def simulated(self) -> bool:
        """Whether it is the worker of a simulation: a real one has a certificate."""
        return not self.certificate


@table("revocation_lists", key="authority counter", unique=["digest"])
@dataclass(frozen=True, slots=True, kw_only=True)
class ListRow:
    """A revocation list of an authority."""

    authority: str
    """``TrustedAuthority.id`` in hexadecimal."""
    counter: int
    digest: str
    """SHA-256 of the list's bytes: how the headers of secure attempts name it."""
    next_update: int
    """Unix seconds from which on nobody begins anything by this list."""
    encoded: bytes


@table("authorities", key="number")
@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRow:
    """Which authority's certificates this coordinator took from a moment on."""

    number: int = field(default=0, compare=False)
    """Its place among the rows of the table, which the store gives it: here and below."""
    authority: str
    """``TrustedAuthority.id`` in hexadecimal."""
    inside: bool
    """Whether the coordinator had the authority's key itself."""
    since: float

    @property
    def audited(self) -> AuditRow:
        """Its row in the audit."""
        detail = f"authority={self.authority} inside={self.inside}"
        return AuditRow(run=None, at=self.since, by="authority", action="authority.taken", detail=detail)


@table("api_keys", key="key")
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyRow:
    """An operator's API key. Its secret is stored as a hash only."""

    key: str
    secret_hash: str
    role: str
    scope: str
    label: str
    created_at: float
    created_by: str
    """The id of the operator who created it."""
    expires_at: float | None = None
    revoked_at: float | None = None
    """When it was revoked, which is permanent."""

    @property
    def digest(self) -> str:
        """Of what never changes in the row, for the audit: it has neither the label nor the hash."""
        ends = None if self.expires_at is None else float(self.expires_at)
        values = [self.key, self.secret_hash, self.role, self.scope, self.label, float(self.created_at)]
        return hashlib.sha256(json.dumps([*values, self.created_by, ends]).encode()).hexdigest()


@table("logins", key="login")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRow:
    """A browser's session, or a link that may be exchanged for one. Its secret is stored as a hash only."""

    login: str
    """Its id."""
    kind: str
    """session | link"""
    secret_hash: str
    who: str
    """The id of the operator, as the audit has it."""
    by: str
    """key | oidc | local : how the operator logged in."""
    key: str | None
    """The API key without which it holds no longer; None for *oidc*."""
    claims: str
    """The values of the token's claim that gives roles, as a JSON list; empty unless *oidc*."""
    created_at: float
    expires_at: float


@table("waiting", key="device", parents={"device": "devices"}, indexes=["expires"])
@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """One device in the pool, which all runs share."""

    device: str
    examples: int
    """Training examples on the device, not above its ``examples_cap``."""
    offer: str
    """Canonical JSON of what decides eligibility (learners, policy). Equal offers are equal strings."""
    since: float
    expires: float
    """When the check-in ends. It tells one check-in of the device from another: see ``drop_hold``."""


@table("pool_changes", key="number")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChangeRow:
    """A device's row in the pool was written or deleted. Who keeps the pool in memory reads the last of these, since no
    more are stored."""

    number: int = 0
    device: str


@table("claims", key="device", parents={"device": "devices", "run": "runs"}, indexes=["run round"])
@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A device's one live assignment."""

    device: str
    run: str
    round: int
    attempt: int
    until: float
    """The round's deadline, for display only. A claim ends with its round, never by time."""


@table("run_names", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunNameRow:
    """Every run has a row here, whichever its kind, so two of one name cannot be created at the same moment."""

    run: str


@table("runs", key="run", indexes=["created_at run"])
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, with its plan and the newest snapshot of its state."""

    run: str
    name: str
    plan: Json
    plan_digest: str
    selection_seed: int
    """63 bits. Secret: it never leaves the coordinator."""
    init: str
    origin: str
    created_at: float
    seq: int = 0
    """Sequence number of the last event."""
    fence: int = 0
    snapshot_seq: int = 0
    snapshot: Json | None = None
    """The engine's state after event ``snapshot_seq``: recovery folds only the events after it."""
    refusals: int = 0
    """How many refusals it has."""
    roles: Json = field(default_factory=dict)
    """The statistics of its model, name -> role, which its first event repeats."""


@table("events", key="run seq", parents={"run": "runs"}, clustered=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of a run's log."""

    run: str = field(default="", compare=False)
    """The store sets it, as it does ``link``."""
    seq: int
    at: float
    kind: str
    body: Json
    link: str = field(default="", compare=False)
    """SHA-256 that chains it to the event before (``chain.py``). The store computes it, here and below."""


class Appended(NamedTuple):
    """What came of appending events."""

    seq: int
    """Sequence number of the run's last event."""
    links: list[str]
    """Of the events that were appended, in order."""


@table(
    "checkpoints",
    key="run version",
    line="run parent_version",
    parents={"run": "runs", "run parent_version": "checkpoints"},
    indexes=["digest"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One version of a run's model; its bytes are the blob ``digest``."""

    run: str
    version: int
    digest: str
    parent_version: int | None
    """None for the first. Unique per run, so the line of checkpoints cannot fork."""
    round: int | None
    origin: str
    bytes: int
    created_at: float
    named_tensors: dict[str, str] = field(default_factory=dict)
    """Name -> digest: see ``engine.named_tensors``."""


@table("contributions", key="run round device", parents={"run": "runs"}, indexes=["device"], clustered=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRow:
    """One counted update. Unique per (run, round, device)."""

    run: str
    round: int
    device: str
    digest: str
    weight: int
    version: int


@table("rounds", key="run round", parents={"run": "runs"})
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """The public record of a round: written when it opens, replaced at each change of phase and when it ends."""

    run: str
    round: int
    attempt: int
    kind: str
    status: str
    """open | committed | abandoned. The last two are final: changing them is a Conflict."""
    reason: str
    opened_at: float
    collecting_at: float | None
    closed_at: float | None
    body: Json = field(default_factory=dict)
    """Funnel, bytes, weight, version, digest, metrics, as in ``client_sdk.protocol.operators.RoundView``."""


@table(
    "refusals", key="number", parents={"run": "runs"}, indexes=["run round", "run round device", "run number", "device"]
)
@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """Why an update, acknowledged or late, did not count."""

    number: int = field(default=0, compare=False)
    run: str
    round: int
    device: str
    digest: str | None
    kind: str
    """late | abandoned | stale | duplicate | invalid | ... : the kind of problem."""
    reason: str
    at: float
    link: str = field(default="", compare=False)


@table("secure_marks", key="tensors device run", parents={"run": "runs"}, indexes=["run"], clustered=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """A device has signed a list of survivors on these tensors and contributes to them no more, in whichever run.
    Unique per (tensors, device, run). Never deleted: an older model may come again."""

    tensors: str
    """Digest of a model's canonical tensors."""
    device: str
    run: str
    """Whose round it was."""
    round: int


@table("privacy_ledgers", key="ledger")
@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A privacy ledger with a name, and the most that a device may lose in it. A run's own ledger has no row: its plan
    says its budget."""

    ledger: str
    epsilon: float
    delta: float
    created_at: float
    created_by: str
    """The id of the operator."""

    @property
    def audited(self) -> AuditRow:
        """Its row in the audit."""
        detail = f"ledger={self.ledger} epsilon={float(self.epsilon)} delta={float(self.delta)}"
        return AuditRow(run=None, at=self.created_at, by=self.created_by, action="ledger.create done", detail=detail)


@table("privacy_allowances", key="ledger other")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllowanceRow:
    """An owner's word that devices that have lost something in another ledger may lose more in this one. Never changed,
    never deleted."""

    ledger: str
    other: str
    because: str
    at: float
    by: str
    """The id of the operator."""

    @property
    def audited(self) -> AuditRow:
        """Its row in the audit."""
        detail = f"ledger={self.ledger} spent_in={self.other} because={self.because}"
        return AuditRow(run=None, at=self.at, by=self.by, action="ledger.allow done", detail=detail)


@table("privacy_debits", key="ledger run round counted", parents={"run": "runs"}, indexes=["run"])
@dataclass(frozen=True, slots=True, kw_only=True)
class DebitRow:
    """What a round cost each device on its list, once for each list."""

    ledger: str
    run: str
    round: int
    counted: str
    """One digest of the devices with their updates."""
    rho: float
    """zCDP."""
    devices: int
    """How many."""
    most: float
    """What the device that has lost most in this run has lost in it, after this debit."""
    at: float


@table("privacy_spending", key="ledger run device", parents={"run": "runs"}, indexes=["run", "device"], clustered=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingRow:
    """What a device has lost in a run, by its ledger. Never deleted, also where the device has left."""

    ledger: str
    run: str
    device: str
    rho: float
    """zCDP, which adds up: over runs too."""
    times: int
    """In how many debits."""


@table("audit", key="number", parents={"run": "run_names"}, indexes=["run"])
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """An action of an operator, or a refusal of one. Never changed, never deleted. The store numbers the rows of all
    runs and of none together, from 1 and without a gap."""

    number: int = field(default=0, compare=False)
    run: str | None
    """None for what belongs to no run, such as keys."""
    at: float
    by: str
    """The id of the operator: of the API key, or the subject of the token. Empty where it is not known."""
    action: str
    detail: str
    link: str = field(default="", compare=False)
    signed_by: str = field(default="", compare=False)
    """The Ed25519 public key of who signed it, 64 hexadecimal digits. Empty: the store was opened without a key."""
    signature: str = field(default="", compare=False)
    """Over number, link and time (``chain.AuditHead``), 128 hexadecimal digits. The store computes all three."""


@table("audit_head", key="id")
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHeadRow:
    """Where the audit ends. A store has one such row, whose lock orders the rows of the audit."""

    id: int = 1
    count: int
    """How many rows the audit has, which is the number of the last one."""
    link: str
    """Of the last row."""


@table("metrics", key="run version source name", parents={"run": "runs"})
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One value per (run, version, source, name). A later value replaces an earlier one."""

    run: str
    version: int
    source: str
    name: str
    value: float
    examples: int
    at: float


@table("messages", key="run digest", parents={"run": "runs"}, indexes=["run round"])
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One short message of a round: an update, as long as updates are kept, or a message of a secure round, while that
    lasts. Its ``repr`` does not show the content, which may hold shares.

    It is written in the transaction of the event that accepts it. That of a secure round is deleted in the one of the
    event that says so: its log and its messages never differ, whenever a process dies.
    """

    run: str
    digest: str
    """SHA-256 of the content, by which the log names it."""
    round: int
    content: bytes = field(repr=False)


@table("hours", key="hour")
@dataclass(frozen=True, slots=True, kw_only=True)
class HourRow:
    """How many devices were seen in an hour."""

    hour: int
    """Since the Unix epoch."""
    devices: int


@table("device_hours", key="device", parents={"device": "devices"})
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHoursRow:
    """In which hours a device was seen; see ``insight.DeviceHours``."""

    device: str
    hour: int
    seen: int


@table("replicas", key="replica")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A process that serves this database, or did until lately."""

    replica: str
    version: str
    """Of Quorate."""
    seen_at: float
