"""The messages of operators: requests, and views of runs, rounds, checkpoints, metrics, devices and events.

Operators are people at a command line, dashboards and evaluators. Routes: ``names.Route``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import not_
from typing import Literal, get_args

from pydantic import Field

from client_sdk.protocol.devices import Score
from client_sdk.protocol.names import (
    NAME_PATTERN,
    SIGNATURE_PATTERN,
    DeviceId,
    Digest,
    Message,
    RunId,
    StatisticRole,
    WorkerId,
)

# ------------------------------------------------------------ treatment
# What was done to the updates of a round, as operators see it: a part of ``operators.RoundView``.


TREATED = {
    "clipped": "scaled down to clip_norm",
    "capped": "weighed less than their examples, by weight_cap or their registration",
    "partial": "of work cut short by a deadline (partial)",
    "statistics_cut": "with statistics cut to statistics_range",
}
"""The counts of ``Treatment``, as words after ``3 of 10 updates``."""


class Treatment(Message):
    """What was done to the updates of a round before they were added up: how many of those that were received in time.
    None: it is not known, or not shown; in secure rounds devices clip and weigh under masks, and tell nobody."""

    clipped: int | None = 0
    """Scaled down to ``aggregation.clip_norm``."""
    capped: int | None = 0
    """Weighed less than their examples, by ``aggregation.weight_cap`` or by the cap of the device's registration."""
    partial: int | None = 0
    """Of work that a deadline or a time budget cut short."""
    statistics_cut: int | None = 0
    """With values of statistics (such as a running mean) that were cut to ``aggregation.statistics_range``."""
    rounding: float | None = 0.0
    """The largest rounding error: half a unit of the exact sum, or half a step of ``float16@1``, relative to the
    largest value of the update; 0 below 0.001. In secure rounds about how much of the step is rounding; None below
    0.3."""
    zero_sum: bool = False
    """Whether the sum was zero in every value, so that the round moved nothing by itself."""
    raised: int = 0
    """Values of non-negative statistics (such as a running variance) that are 0 in the checkpoint, since what devices
    sent would have made them less."""
    duplicates: int = 0
    """Updates beside the first one of their device: of two processes that take part as one, from copies of a folder."""
    refused: dict[str, int] | None = Field(default_factory=dict)
    """Why updates were refused, late ones left out: reason -> how many, the most common first, at most 8. Part of a
    reason may be text of a device."""

    def words(self, updates: int) -> list[str]:
        """What was done to so many updates, a clause each; none for what was not done, or is not known."""
        counts = {text: getattr(self, name) for name, text in TREATED.items()}
        found = [f"{count} of {updates} updates {text}" for text, count in counts.items() if count]
        if self.rounding:
            found.append(rounding_words(self.rounding, masked=self.clipped is None))
        found += ["the sum of the updates was zero"] * self.zero_sum
        found += [f"{self.duplicates} second updates of a device, which may be two"] * (self.duplicates > 0)
        return found + [f"{self.raised} values of statistics would have been below 0"] * (self.raised > 0)


def rounding_words(rounding: float, *, masked: bool) -> str:
    """``Treatment.rounding`` in words. ``masked``: of a secure round."""
    if masked:
        return (
            f"rounding is about {rounding:.2g} of the step: lower max_abs and max_norm of [secure] towards what "
            "devices send, or raise q"
        )
    return f"rounding errors up to {rounding:.2g} of an update's largest value"


# ------------------------------------------------------------ operators


Status = Literal["running", "paused", "finished", "stopped"]
"""Status of a run with a plan."""
ShownStatus = Literal["running", "paused", "finished", "stopped", "failed"]
"""Status of a run as it is shown; *failed*: the ServerApp of a Flower run has failed."""
Phase = Literal[
    "idle",
    "selecting",
    "collecting",
    "leasing",
    "training",
    "sharing",
    "masking",
    "agreeing",
    "unmasking",
    "committing",
]
"""Phase of the current round; idle: there is none."""
Kind = Literal["federated", "secure", "datacenter", "buffered"]
"""Kind of a round of a run with a plan."""
ShownKind = Literal[Kind, "flower"]
"""Kind of a round as it is shown; *flower*: a group of messages of a Flower run."""
DeviceState = Literal["away", "waiting", "unfit", "assigned", "left"]
"""*waiting*: in the pool. *unfit*: it checks in, and fits no run that is running."""
"""State of a device; left: it has asked to be forgotten."""
RunClock = Literal["wall", "virtual"]
"""By which clock a run's times are: *virtual* is that of the simulation that played it."""
AuthorityPlace = Literal["apart", "inside"]
"""Where the authority's key is: in a process apart from the coordinator, or inside, so that the coordinator could make
devices up."""
Exchange = Literal["advertise", "share", "mask", "agree", "unmask"]
EXCHANGES: tuple[Exchange, ...] = get_args(Exchange)
"""The exchanges of a secure round, in their order."""


class CheckpointStored(Message):
    """The answer to an uploaded checkpoint."""

    ok: bool = True
    repaired: bool = False
    """Whether the stored file was damaged and is replaced."""


class CreateRun(Message):
    """Creates a run. Its initial checkpoint must be uploaded before (``PUT /v1/checkpoints/{digest}``)."""

    plan: dict[str, object]
    """The plan as in its TOML file. The coordinator validates it."""
    init: Digest
    init_proof: Digest | None = None
    """Proves that the sender has the file (``client_sdk.protocol.operators``): needed where it is the checkpoint of
    runs that are all outside of the sender's scope."""
    origin: str = Field(default="", max_length=300)
    """Origin of the initial checkpoint, for display: a file's name, or a learner and its version."""
    roles: dict[str, StatisticRole] | None = Field(default=None, max_length=100_000)
    """The model's statistics by names or patterns (``tensors.manifest``). None: those of the runs that have the
    checkpoint and average the same tensors, where these agree; else those that their names tell."""


class Funnel(Message):
    """How many devices reached each stage of one round. In a Flower run it counts messages, one for each device and
    kind: *selected* were pushed, *training* were delivered, *reported* have a reply, *refused* were answered by an
    error, and the time to live of those that *dropped* was over before."""

    waiting: int = 0
    """Eligible devices in the pool when the cohort was selected."""
    selected: int = 0
    training: int = 0
    """Began to train (and may have reported since)."""
    reported: int = 0
    """Sent an update in time; in secure rounds, a masked one, which is in the sum if there is one, whatever the device
    did later."""
    withdrawn: int = 0
    """Left the round before that."""
    late: int = 0
    """Sent an update after the round had closed; in secure rounds, a masked one after the list of devices was fixed."""
    dropped: int = 0
    """Were selected, and had not reported or withdrawn when the round closed."""
    refused: int = 0
    """Sent an update that was refused for another reason."""


class FlowerSummary(Message):
    """What a Flower run has in the place of a plan and checkpoints."""

    app: str
    """``publisher/name``."""
    version: str
    messages: int
    """Messages that the ServerApp has pushed so far."""
    replies: int
    """Replies that have come so far."""
    errors: int
    """Replies so far that are errors; messages whose time to live is over count as one."""


class PrivacyView(Message):
    """What a run has told so far of the device that counted most often in it: see docs/privacy.md."""

    rounds: int
    """In how many rounds that device has counted."""
    rounds_planned: int
    """In how many it may."""
    rho: float
    """zCDP."""
    epsilon: float
    epsilon_planned: float
    """Of a device that has counted in all rounds that it may."""
    delta: float
    noise: float
    """The noise multiplier."""
    clip: float
    """The clip of the round under way, or of the next one."""
    within: float | None
    """Where the clip adapts: the part of the last sum's updates that were within its clip, by bits with noise."""
    ledger: str
    """The ledger that the run's rounds are debited to: the one that its plan names, or its own."""
    ledger_spent: float
    """Epsilon at ``delta`` of the device that has lost most over all runs of the ledger."""
    ledger_budget: float
    """The most that any device may lose in them."""
    rounds_left: int
    """In how many more rounds of this run that device may count, by the ledger."""


class RunView(Message):
    """A run as operators see it. A Flower run has no plan, no checkpoints and no log: fields that are about those are
    None, 0 or empty."""

    run: RunId
    name: str
    """The plan's, or the one that it was renamed to. Of a Flower run its id."""
    status: ShownStatus
    reason: str
    """Why it has this status, for example 'reached 20 rounds' or 'stopped by the operator'."""
    phase: Phase
    round: int
    """The current round, or the last one."""
    version: int
    checkpoint: Digest | None
    rounds_committed: int
    rounds_wanted: int
    plan: dict[str, object]
    plan_digest: Digest | None
    origin: str
    created_at: float
    """Unix time in seconds, as all ``_at`` fields."""
    clock: RunClock = "wall"
    """Of a simulated run these fields, in its rounds and metrics too, count the virtual seconds in which it was
    played."""
    seq: int
    """Sequence number of the last event, with which a stream resumes after it."""
    funnel: Funnel
    """Of the current round, or of the last one."""
    kind: ShownKind = "federated"
    """Of the current round, or of the last one."""
    authority: AuthorityPlace | None = None
    """Where the authority's key was when the current round, or the last one, opened; None: there was no authority."""
    exhausted: str = ""
    """Why secure rounds cannot continue from this checkpoint: too many devices have signed on it or have declined it.
    Empty: they can."""
    devices_spent: int = 0
    """Registered devices that have signed on this checkpoint, in whichever run: they contribute to it no more. 0 in
    runs without secure rounds."""
    devices_registered: int = 0
    """All registered devices, in runs with secure rounds."""
    barred: dict[DeviceId, int] = Field(default_factory=dict)
    """Devices that are barred from the run's secure rounds, and the first round for which each may be selected
    again."""
    disputes: dict[DeviceId, int] = Field(default_factory=dict)
    """Devices that were in dispute about shares in the run's last secure rounds, and with how many others each: one
    could not open what the other had dealt. Who has several is the likely liar."""
    suspicion: dict[DeviceId, int] = Field(default_factory=dict)
    """Devices of groups whose sum was bad, of which nobody knows who lied, and in how many of 64 secure rounds each
    rests, where enough others wait. Sums that are good end it."""
    shared_identities: tuple[DeviceId, ...] = ()
    """Devices that work, or have worked, for the run, and whose identity two processes use now: a copied folder."""
    stalled: str = ""
    """Why the running run makes no progress, in one line: abandoned rounds, devices that withdrew, too few eligible
    devices, a full disk. Empty: nothing is known to be in its way. Part of it is text of devices."""
    damaged: tuple[Digest, ...] = ()
    """Of the run's checkpoints, updates and state of the server optimizer, those whose stored bytes are wrong."""
    repaired: tuple[Digest, ...] = ()
    """Files that were damaged, and whose right bytes are stored again, since this coordinator process has begun."""
    flower: FlowerSummary | None = None
    """Of a Flower run; None: the run has a plan."""
    privacy: PrivacyView | None = None
    """Of a run whose plan has ``[privacy]``."""
    trouble: str = ""
    """Why this coordinator cannot handle the run now: an error of its own, or a log that it cannot read. Its other runs
    go on. Empty: it can."""

    @property
    def title(self) -> str:
        """The run's id, and in brackets the name that it was given later."""
        return self.run if self.name in (self.run, self.plan.get("name")) else f"{self.run} ({self.name})"

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.status in ("finished", "stopped", "failed")


class AdvanceRun(Message):
    """Lets an exhausted run commit its model moved by one unit, without contributions. Only for the run's owner."""

    by: str = Field(min_length=1, max_length=120)
    """The operator's name, for the audit. Not verified."""


class RenameRun(Message):
    """Gives a run another name to be shown by. Its id, and the plan with the name that it was created with, stay."""

    name: str = Field(min_length=1, max_length=64)
    """Shown as it is, on one line: control characters become escapes."""


class LeaseView(Message):
    """The current or last lease of a datacenter round, and the progress of its worker."""

    worker: WorkerId
    attempt: int
    fence: int
    since_at: float
    seen_at: float
    """The last heartbeat that was stored: at most one in a quarter of the plan's ``lease_s``."""
    step: int
    metrics: dict[str, float] = Field(default_factory=dict)


class UnbarDevice(Message):
    """Lets a barred device take part in a run's secure rounds again before its time is over. Only for the run's
    owner."""

    by: str = Field(min_length=1, max_length=120)
    """The operator's name, for the audit. Not verified."""


class SignRun(Message):
    """The signature under the newest version of a run's model, which its devices are told. Only for the run's owner."""

    version: int = Field(ge=1)
    signature: str = Field(pattern=SIGNATURE_PATTERN)
    """As ``quorate authority sign FILE --run RUN --version VERSION`` prints it."""


class ExchangeView(Message):
    """One exchange of an attempt of a secure round: counts, and nothing of a single device."""

    exchange: Exchange
    expected: int
    """Devices that could send this message: of *advertise* the cohort, of *share* the roster, then those that have sent
    the message before. *Agree* and *unmask* end as soon as enough came: those that did not come were not
    needed. In the others they have vanished, or came too late."""
    came: int
    """Devices that have sent it."""
    needed: int
    """The fewest with which the round goes on."""
    bytes: int
    """Of these messages, received."""
    began_at: float
    """Of *advertise* when the devices began to train, of *share* when the roster was made."""
    ended_at: float | None = None
    """None: the exchange is under way, or the attempt or the round ended in it."""


class AttemptView(Message):
    """An attempt of a secure round that was given up before any device could sign, so that the next one began."""

    reason: str
    ended_at: float
    roster: int = 0
    """This and the fields that follow mean what they mean in ``SecureView``."""
    threshold: int = 0
    signers: int = 0
    exchanges: tuple[ExchangeView, ...] = ()


STILL_READ = (
    "Without noise, who makes the model can shape it so that single training examples can be read out of the sum."
)
"""What is said wherever people may take a sum for anonymous."""
NOISED = "Each sum has noise of {noise:.4g} times the clip in it, that of its devices, for whoever looks at it."
"""What is said of private runs instead."""


class SecureView(Message):
    """What the coordinator saw of a secure round. It sees no single update and no device's weight."""

    attempts: int
    """Key exchanges that have begun in this round; what follows is of the last one."""
    roster: int = 0
    """Devices of the roster; 0: there was none."""
    threshold: int = 0
    """Shares that rebuild a secret."""
    signers: int = 0
    """Signatures under the list of survivors without which no device reveals anything."""
    groups: int = Field(default=1, exclude_if=lambda groups: groups == 1)
    """Groups of the roster, each with a sum of its own; ``threshold`` and ``signers`` are of the largest. Not sent
    if 1."""
    fallen: int = Field(default=0, exclude_if=lambda fallen: not fallen)
    """Groups that the round went on without. Not sent if 0."""
    sums: tuple[int, ...] = Field(default=(), exclude_if=not_)
    """Of several groups: how many updates are in each sum that was opened. Not sent if empty."""
    excluded: int = 0
    """Devices that the round went on without, since they were at fault or silent."""
    noise: float = Field(default=0.0, exclude_if=not_)
    """Of a private run: the noise that each opened sum has at least, over the most that one update counts. Not sent if
    0."""
    opened: bool = False
    """Whether the sum was opened."""
    exchanges: tuple[ExchangeView, ...] = ()
    """The exchanges that have begun, in order."""
    earlier: tuple[AttemptView, ...] = ()
    """The attempts before the last one, in order."""

    @property
    def masked(self) -> int:
        """Devices whose masked vector came."""
        return next((one.came for one in self.exchanges if one.exchange == "mask"), 0)


class RoundView(Message):
    """One round as operators see it."""

    round: int
    attempt: int = 0
    kind: ShownKind = "federated"
    group: str = ""
    """Of a Flower run: its group id."""
    because: str = ""
    """Why it is a datacenter round; empty for the others."""
    status: Literal["open", "committed", "abandoned", "ended"]
    """*ended*: a Flower run has committed and abandoned none; every message of the group is answered, or its time to
    live is over."""
    reason: str = ""
    """Why it was abandoned; of an open round why it does not go on, where that is known."""
    missed: int = 0
    """How often too few devices waited when the time of its selection was over. Each counts as an abandoned round does
    (``finish.abandoned``, ``datacenter.patience``)."""
    missed_at: float | None = None
    """The last time."""
    opened_at: float
    collecting_at: float | None = None
    closed_at: float | None = None
    funnel: Funnel = Funnel()
    bytes_in: int = 0
    """Bytes of accepted updates."""
    weight: int = 0
    """Total weight of the counted updates; in parts of an example where the plan counts partial work by the examples
    seen. Of a secure round with weights by examples it is rounded: devices' sizes would follow from exact ones."""
    version: int | None = None
    digest: Digest | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    """Training metrics of the counted updates, averaged by weight; in a datacenter round, the worker's metrics."""
    states: dict[str, list[float]] = Field(default_factory=dict)
    """Where one round is asked for: of metrics with a state, the sum of what its devices sent about the checkpoint that
    they received. Who has the learner computes their values, and reports them for ``devices``."""
    lease: LeaseView | None = None
    """Of a datacenter round: the current lease, or the last one."""
    authority: AuthorityPlace | None = None
    """Where the authority's key was when the round opened; None: the coordinator had no authority."""
    secure: SecureView | None = None
    """Of a secure round: its exchanges. None before a cohort was drawn."""
    departures: str = ""
    """Why devices withdrew, and why updates were refused as invalid: how many for each reason, the most common first.
    Part of it is text of devices."""

    staleness: tuple[int, ...] = ()
    """Of a buffered round: how many reports are of the model that it began with, of the version before, and so on."""
    treatment: Treatment | None = None
    """What was done to its updates. None: it has none of devices."""
    clip_after: float | None = None
    """Of a committed private round: the clip of the next one, where that adapts."""
    within: float | None = None
    """And the part of its updates that were within its own clip, by bits with noise: it may be below 0 or above 1."""

    @property
    def counted(self) -> int:
        """Devices whose update is in the model: of a secure round, those whose masked vector came."""
        if self.status != "committed":
            return 0
        if self.secure is None:
            return self.funnel.reported
        return self.secure.masked


class CheckpointView(Message):
    """One checkpoint of a run, as operators see it."""

    version: int
    digest: Digest
    parent: Digest | None
    round: int | None
    origin: str
    bytes: int
    created_at: float


class MetricReport(Message):
    """An evaluator's scores for one checkpoint."""

    version: int = Field(ge=0)
    digest: Digest
    """Digest of the scored checkpoint; it must be that version's."""
    source: str = Field(default="evaluator", pattern=NAME_PATTERN)
    """The data, such as 'test' or 'hospital-7'. A later value of (version, source, name) replaces an earlier one."""
    score: Score


class MetricView(Message):
    """One value of one metric, with its number of examples."""

    version: int
    source: str
    name: str
    value: float
    examples: int
    at: float


class DeviceView(Message):
    """A device as operators see it."""

    device: DeviceId
    label: str
    examples_cap: int
    """The most examples that it may claim, rounded up to a power of two (``devices.rounded_size``): nobody is shown how
    many it has said."""
    enrolled_at: float
    """When it was registered first."""
    last_seen_at: float | None
    state: DeviceState
    warning: str = ""
    """Says that two processes use its identity; empty: one does."""
    unfit: str = ""
    """Of one that fits no run: the reason for each run."""
    run: str | None = None
    round: int | None = None
    device_class: str = "no class"
    """What its label says before the first `/`; *no class* where it has no `/`."""
    facts: dict[str, str | int | float] = Field(default_factory=dict)
    """What it says of itself, by the names of ``devices.DeviceFacts``: nobody has checked it."""
    rounds_joined: int = 0
    """Rounds of the runs in the caller's scope in which its update counted."""
    refusals: int = 0
    """Its updates in these runs that were refused, late ones included."""


class EventView(Message):
    """One event of a run's log. In the event stream ``id`` is ``seq`` and ``event`` is ``kind``."""

    seq: int
    at: float
    kind: str
    body: dict[str, object]


# ------------------------------------------------------------ possession
# A proof that whoever names a checkpoint has its bytes: a second digest, which nobody computes from the first one.


_DOMAIN = b"quorate: the sender has this checkpoint\n"


class Possession:
    """Takes the bytes of a checkpoint's file in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_DOMAIN)

    def add(self, block: bytes) -> None:
        self._hash.update(block)

    @property
    def proof(self) -> Digest:
        """SHA-256 over a domain and the bytes."""
        return self._hash.hexdigest()


def possession(blocks: Iterable[bytes]) -> Digest:
    """The proof for a file of these bytes."""
    found = Possession()
    for block in blocks:
        found.add(block)
    return found.proof
