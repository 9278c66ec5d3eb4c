"""The rows that a store holds, one class for each table. Stores select and insert columns by the names of the fields.

Times are Unix seconds (float). Bodies are JSON-compatible dicts, which ``bodies.py`` turns into text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Json = dict[str, object]
SPENT = "spent"
"""The strongest kind of marks."""


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
    """What it said of itself at its last check-in, and which of its processes check in: ``runtime/fleet.py``."""

    @property
    def simulated(self) -> bool:
        """Whether a simulation made it: no certificate belongs to its key. Its updates are never stored."""
        return self.key_id is not None and not self.certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A datacenter's worker, registered by its certificate."""

    worker: str
    """The id in its certificate."""
    key_id: str | None
    """As that of a device; likewise the certificate."""
    certificate: str
    label: str
    created_at: float
    last_seen_at: float | None = None
    revoked_at: float | None = None
    """When an operator of this coordinator revoked it, which is permanent."""

    @property
    def simulated(self) -> bool:
        """Whether it is the worker of a simulation: a real one has a certificate."""
        return not self.certificate


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRow:
    """Which authority's certificates this coordinator took from a moment on."""

    authority: str
    """``TrustedAuthority.id`` in hexadecimal."""
    inside: bool
    """Whether the coordinator had the authority's key itself."""
    since: float


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
    """Also tells one check-in of the device from another: see ``drop_hold``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A device's one live assignment."""

    device: str
    run: str
    round: int
    attempt: int
    until: float
    """The round's deadline, for display only. A claim ends with its round, never by time."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of a run's log."""

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
    optimizer: str | None
    """Digest of the server optimizer's state; None for an optimizer without state."""
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRow:
    """One counted update. Unique per (run, round, device)."""

    run: str
    round: int
    device: str
    digest: str
    weight: int
    version: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """Why an update, acknowledged or late, did not count."""

    run: str
    round: int
    device: str
    digest: str | None
    kind: str
    """late | abandoned | stale | duplicate | invalid | ... : the kind of problem."""
    reason: str
    at: float
    link: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """A device contributes to these tensors no more, in whichever run. Unique per (tensors, device, run). Never
    deleted: an older model may come again."""

    tensors: str
    """Digest of a model's canonical tensors."""
    device: str
    run: str
    """Whose round it was."""
    round: int
    kind: str
    """*spent*: it has signed a list of survivors there. *declined*: it said so in a strict round. *declined-fast*: it
    said so in a *fast* round, and may still take part in strict ones."""

    def outranks(self, before: MarkRow) -> bool:
        """Whether this mark replaces an earlier one of the same device, run and tensors: what a device said for itself
        gives way to what it signed."""
        return self.kind == SPENT and before.kind != SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """An action of an operator, or a refusal of one. Never changed, never deleted. The store numbers the rows of all
    runs and of none together, from 1 and without a gap."""

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
    """Over number, link and time (``audit_chain.AuditHead``), 128 hexadecimal digits. The store computes all three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHeadRow:
    """Where the audit ends. A store has one such row, whose lock orders the rows of the audit."""

    count: int
    """How many rows the audit has, which is the number of the last one."""
    link: str
    """Of the last row."""


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
