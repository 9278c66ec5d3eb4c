"""Every message between a device and the coordinator, defined once for both ends. Routes: ``names.Route``.

The requests of a device, in order::

    POST /v1/devices                                    Registration  -> Registered        with each new certificate
    POST /v1/checkins                                   CheckIn       -> Assignment | Wait held open until there is work
    POST /v1/runs/{run}/rounds/{round}/started          Started       -> Noted             training begins
    GET  /v1/checkpoints/{digest}                                     -> safetensors       immutable, cacheable, ranges
    PUT  /v1/runs/{run}/rounds/{round}/attempts/{attempt}/update      -> Receipt           safetensors and UpdateReport
    POST /v1/runs/{run}/rounds/{round}/withdrawn        Withdrawal    -> Noted             no update will come
    GET  /v1/runs/{run}/rounds/{round}/outcome                        -> Outcome           what the update was used for
    POST /v1/devices/left                                             -> Noted             the device is forgotten

Every request of a device or a worker has the header ``Quorate-Protocol: <version>`` and is signed by its certified key
(``credentials.request_signature``), also the first one. The authority gives the certificate (``authority``). Errors are
RFC 9457 problem documents (``problems``). Unknown fields are ignored, so either end may be newer within one protocol
version. In a plan an unknown field is an error, because the operator expects an effect of it.
"""

from __future__ import annotations

import re
from operator import not_
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from client_sdk.protocol.names import (
    CODEC_PATTERN,
    DeviceId,
    Digest,
    Finite,
    LearnerName,
    Message,
    MetricName,
    RunId,
    StatisticRole,
)
from client_sdk.protocol.secure import SecureBounds as SecureBounds
from client_sdk.protocol.secure import SecureTask
from client_sdk.protocol.wire import AS_NAMED

# ------------------------------------------------------------ scores
# The message with a model's scores: of one device, or of all examples that somebody scored it on.


MOST_STATE = 1024
"""Numbers in the states of one score, of all metrics together."""


class Score(Message):
    """Metrics by name, and the number of examples over which they were computed."""

    examples: int = Field(ge=1, le=2**40)
    metrics: dict[MetricName, Finite] = Field(max_length=64)
    weights: dict[MetricName, Annotated[float, Field(gt=0, le=2.0**60)]] = Field(
        default_factory=dict, max_length=64, exclude_if=not_
    )
    """What the value of a metric counts by when scores are averaged, where that is not ``examples``: how many labels
    there are, or the sum of their classes' weights."""
    states: dict[MetricName, list[Annotated[float, Field(ge=-(2.0**60), le=2.0**60)]]] = Field(
        default_factory=dict, max_length=64, repr=False, exclude_if=not_
    )
    """The state of each metric whose states are added up, number by number, before there is a value: counts in a
    confusion matrix, or in the bins of a curve. At most 1,024 numbers in all."""

    @field_validator("states")
    @classmethod
    def _small_states(cls, value: dict[str, list[float]]) -> dict[str, list[float]]:
        if sum(map(len, value.values())) > MOST_STATE:
            raise ValueError(f"the states of all metrics have at most {MOST_STATE} numbers")
        return value


# ------------------------------------------------------------ devices


class TaskStrategy(BaseModel):
    """Which half of a strategy a device runs (``device.strategies``): the coordinator puts it into the task of a
    plan with a section ``[strategy]`` that has one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(max_length=200)
    """A built-in name, or ``package:name`` of an installed package. Code never travels."""
    version: str = Field(max_length=64)
    """A device with another version is not eligible."""
    parameters: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Every parameter with its value."""
    keeps: Literal["nothing", "trained", "committed"] = "nothing"
    """Whether devices keep tensors from round to round, and which are the newest: those of the last training, or of
    the last one whose update is in a checkpoint."""


class Task(BaseModel):
    """The device's part of the plan: what to train, how long, and how to encode the result.

    A device checks it against its own policy before it trains. Unknown fields are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    learner: LearnerName
    """``package:name`` of a learner installed on the device. Code never travels."""
    learner_version: str | None = Field(default=None, max_length=64)
    """Version of the learner's package; a device with another version is not eligible. None: any version."""
    epochs: int | None = Field(default=None, ge=1, le=10_000)
    """Passes over the device's data. Exactly one of ``epochs`` and ``steps`` is set; with neither, one epoch."""
    steps: int | None = Field(default=None, ge=1, le=10_000_000)
    """Optimizer steps, the data cycled as often as needed."""
    batch_size: int = Field(default=32, ge=1, le=1_000_000)
    """Examples per optimizer step; the last batch of an epoch may be smaller."""
    drop_last: bool = False
    """Leaves out an epoch's last batch where it is smaller than the others: BatchNorm cannot train on one example. In
    each epoch other examples are left out. A device with fewer examples than a batch uses them all;
    ``cohort.min_examples = 2`` leaves out devices with a single one."""
    learning_rate: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """Step size of the device's optimizer."""
    mu: float = Field(default=0.0, ge=0, le=1000, allow_inf_nan=False)
    """Proximal coefficient of FedProx (Li et al. 2020, arXiv:1812.06127): adds (mu/2)||w - w_global||^2 to the
    objective. 0: FedAvg."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Each gradient, proximal term included, is scaled down to this L2 norm. None: not clipped."""
    time_budget_s: float | None = Field(default=None, gt=0, le=86_400 * 7, allow_inf_nan=False)
    """Seconds of training after which the device reports the work done so far. None: until the report is due."""
    codec: str = Field(default="float32@1", pattern=CODEC_PATTERN)
    """Name and version of the codec of the update's tensors. ``float16@1`` has steps of 6e-8, so tensors of smaller
    changes are lost beside others; ``stochastic8@1`` keeps each tensor to 1/127 of its largest value; ``eden1@1``,
    ``eden2@1`` and ``eden4@1`` send 1, 2 and 4 bits a value, ``entropy1@1``, ``entropy2@1`` and ``entropy4@1`` as many
    on average, ``stochastic1-rotated@1`` to ``stochastic8-rotated@1`` 1, 2, 4 or 8, ``sign@1`` signs,
    ``top-tenth@1`` and ``top-hundredth@1`` the largest values (docs/rounds.md has their errors)."""
    averaged: tuple[str, ...] = ("*",)
    """The tensors that are sent and averaged: names, shell patterns (fnmatch), and what is left out of them, behind a
    ``!``: ``["!*.bn?.*"]`` averages all but these, ``["head.*", "!head.bias"]`` a part of the head. The order has no
    meaning. A name means that tensor, also where it has brackets; what matches no tensor is refused. Integer and
    boolean tensors are never averaged. Tensors that are not averaged stay unchanged in the checkpoint."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds the order of batches, together with round and device. Public; the selection seed is another one, secret. In
    secure rounds each device trains under a seed of its own instead, which nobody else knows."""
    score_held_out: bool = False
    """Devices score the checkpoint that they receive on held-out data of their own, before training. They send each
    metric's value, or its state where it has one: at most 1,024 numbers, which are added up. Secure plans refuse it."""
    strategy: SkipJsonSchema[TaskStrategy | None] = Field(default=None, exclude_if=not_)
    """The device's half of the plan's strategy. A plan says it in its section ``[strategy]``, never here."""

    @field_validator("learner_version")
    @classmethod
    def _no_empty_version(cls, value: str | None) -> str | None:
        return value or None

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Task:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("set epochs or steps, not both: each says how long a device trains")
        if not self.averaged or any(not re.search(r"\S", pattern.removeprefix("!")) for pattern in self.averaged):
            raise ValueError("averaged must name at least one pattern, for example ['*'], ['head.*'] or ['!*.bn?.*']")
        return self

    def planned_steps(self, examples: int) -> int:
        """Optimizer steps of the whole task: ``steps``, or ``epochs`` (one where neither is set) times ceil(examples /
        batch_size); with ``drop_last`` the floor, but at least 1."""
        if self.steps is not None:
            return self.steps
        an_epoch = -(-examples // self.batch_size)
        if self.drop_last and an_epoch > 1:
            an_epoch = examples // self.batch_size
        return (self.epochs or 1) * an_epoch


# ---------------------------------------------------------------- devices


CertificateHex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=400, description="a certificate's bytes")]


class Registration(Message):
    """Makes a device known to a coordinator by its certificate, in a request that the certified key signs. It is sent
    again with each new certificate; the same one again gets the same answer."""

    certificate: CertificateHex
    """The bytes of ``credentials.certificate``. The id in it is the device's id."""
    examples: int = Field(default=0, ge=0, le=2**31)
    """Training examples on the device, as it reports. Later reports may not exceed it; the coordinator has a limit
    too."""
    label: str = Field(default="", max_length=64)
    """A name for display, such as `ward 7`; `phone/ward 7` says a class too. Not verified."""


def said_class(label: str) -> str:
    """The class that a label says: ``phone`` of ``phone/ward 7``. A label without a slash is a name, and says none, so
    that names make no class for each device: empty."""
    said, slash, _ = label.partition("/")
    return said.strip() if slash else ""


class Registered(Message):
    """The answer to Registration. The device saves it before its next request."""

    device: DeviceId
    """The id in the certificate."""
    examples_cap: int
    """The most examples this device may claim in selection, and in weights of plain rounds."""
    authority_inside: bool = False
    """Whether this coordinator has the authority's key itself, so that it could make devices up."""


class PrivacyTerms(Message):
    """What a run with ``[privacy]`` says of its noise."""

    noise: float = Field(gt=0, allow_inf_nan=False)
    """The noise multiplier: the deviation of the noise in a round's sum, over the most that one update counts. In plain
    rounds the coordinator adds it, after it has seen the updates: how much is its word. Where noise is correlated over
    rounds, this is the independent noise of which a round costs as much."""
    most_rounds: int = Field(ge=1)
    """In how many rounds of the run one device counts at most."""
    apart: int = Field(default=1, ge=1)
    """How many rounds are committed, at least, from one in which it counts to the next: 1 is in each."""


class PrivacyBounds(Message):
    """What the owner of a device requires of differential privacy. The coordinator selects by what of it concerns every
    round of a plan alike; the device holds all of it by its own record (``device.data_ledger``)."""

    most_epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The most that the data may lose at ``delta``, over all runs and coordinators. It then takes part in rounds with
    noise only. None: any."""
    delta: float = Field(default=1e-6, gt=0, lt=1, allow_inf_nan=False)
    """The chance that this bound does not hold."""
    apart: int | None = Field(default=None, ge=1)
    """How many rounds of a run with noise are committed, at least, from one in which it takes part to the next. None:
    any number."""
    private_only: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Take part only where devices add the noise themselves, of this noise multiplier or more. None: anywhere."""


NO_BOUNDS = PrivacyBounds()
"""Of an owner who requires nothing."""


class Policy(Message):
    """What the owner of a device permits. Checked on the device before training, and sent with each check-in."""

    learners: tuple[LearnerName, ...] | None = None
    """Learners that this device may train. None: every installed one."""
    secure_only: bool = False
    """Take part in rounds with secure aggregation only."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Refuse tasks with more epochs. None: no bound."""
    secure: SecureBounds | None = Field(default=None, exclude_if=not_)
    """Bounds on secure rounds. None, which is not sent: the defaults of ``SecureBounds``."""
    plain: tuple[LearnerName, ...] | None = Field(default=None, exclude_if=lambda said: said is None)
    """Learners whose plans without secure aggregation it accepts, after its first secure round. None, which is not
    sent: all, since it has joined none."""
    max_state_bytes: int | None = Field(default=None, ge=0, exclude_if=lambda said: said is None)
    """The most that this device keeps from round to round for the strategy of one run; 0: nothing, and it takes part in
    no such run. None, which is not sent: 1 GiB."""
    privacy: PrivacyBounds | None = Field(default=None, exclude_if=not_)
    """Bounds on what its data may lose. None, which is not sent: none."""
    rests: tuple[tuple[RunId, int], ...] = Field(default=(), max_length=256, exclude_if=not_)
    """Runs in which it takes no part now, and the version of the model from which it does again; -1: never. The device
    adds what it has declined by its own record. Not sent if empty."""

    @property
    def tells_size(self) -> bool:
        """Whether the device says how many examples it has: not where its data goes in clear for no learner, as after
        its first secure round."""
        return not self.secure_only and self.plain != ()


def rounded_size(examples: int) -> int:
    """The least power of two that is no less: what people are shown of how many examples a device has, and the most
    that its refusals tell of it. 0 stays 0."""
    return 1 << (examples - 1).bit_length() if examples else 0


class DeviceFacts(Message):
    """What a device says of itself, for people: it is believed by nobody, and nothing is decided by it. A field that is
    added here is shown by ``quorate devices`` and on the dashboard under its name; empty ones are not."""

    sdk: str = Field(default="", max_length=64)
    """The version of its SDK."""
    states_left_out: int = Field(default=0, ge=0, exclude_if=lambda said: not said)
    """How often nobody knew what became of a plain round's update, so that the device left out the state that belongs
    to it, and went on from the older one. Not sent if 0."""


class CheckIn(Message):
    """Asks for work. Held open until there is an assignment or ``hold_s`` has passed."""

    examples: int = Field(default=0, ge=0, le=2**31)
    """Training examples on the device now, as it reports; at most its ``examples_cap`` counts."""
    learners: dict[LearnerName, str] = Field(default_factory=dict, max_length=256)
    """Installed learners: ``package:name`` -> version. A device is eligible only for runs of these learners."""
    strategies: dict[str, str] = Field(default_factory=dict, max_length=256, exclude_if=not_)
    """Strategies of which it has the device's half: name -> version. A device is eligible only for runs of these, and
    for those that have none."""
    policy: Policy = Policy()
    secure: int = Field(default=0, ge=0)
    """The version of the secure protocol that this device speaks; 0: none, and it is eligible for plain rounds only."""
    process: str = Field(default="", max_length=32)
    """Drawn by each process of a device when it starts, so that a copied folder is noticed. Empty: not said."""
    facts: DeviceFacts = DeviceFacts()
    hold_s: float = Field(default=25.0, ge=0, le=300, allow_inf_nan=False)
    """Longest wait for the answer, seconds. 0: answer at once. The device stays in the pool until it expires."""


class CheckpointRef(Message):
    """Names a checkpoint. Its bytes are at ``Route.CHECKPOINT``; a device checks them against the digest."""

    version: int = Field(ge=0)
    digest: Digest
    bytes: int = Field(ge=0)


class Assignment(Message):
    """Work for one device in one round. Another check-in returns the same one, so an answer may be lost."""

    kind: Literal["assignment"] = "assignment"
    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(default=0, ge=0)
    """Counts the key exchanges of a secure round; 0 in other rounds."""
    device: DeviceId
    checkpoint: CheckpointRef
    """The checkpoint from which training starts."""
    plan_digest: Digest
    """Digest of the plan that the device agrees to, and stores in its record of rounds."""
    task: Annotated[Task, AS_NAMED]
    report_within_s: float
    """Seconds from now until the round's deadline. Relative, so the device's clock has no effect."""
    secure: SecureTask | None = None
    """The terms under which the update will be summed under masks. None: a plain round, which a device with
    ``secure_only`` refuses."""
    partial: Literal["full", "examples_seen", "refuse"] = "full"
    """What becomes of incomplete work: see ``Aggregation.partial`` of the plan. With *refuse*, and in secure rounds
    whatever is said here, a device that runs out of time withdraws."""
    privacy: PrivacyTerms | None = Field(default=None, exclude_if=not_)
    """Of a differentially private run: what the device computes from its data leaves it in the update's tensors alone.
    Its report has no metrics, sizes and times, and no reason why it leaves. Not sent if the run is none."""
    max_update_bytes: int = Field(ge=0)
    """The longest body that the coordinator accepts for this update."""
    warning: str = ""
    """A sentence for the device's owner: what the coordinator noticed about the device, such as a folder that was
    copied. Empty: nothing."""
    roles: dict[str, StatisticRole] = Field(default_factory=dict, exclude_if=not_)
    """The statistics of the model: they travel as float32 beside what the codec makes of the parameters. Empty: all
    tensors are parameters, and neither this nor ``roles_digest`` is sent."""
    roles_digest: Literal[""] | Digest = Field(default="", exclude_if=not_)
    """SHA-256 over name, dtype, shape and role of all tensors (``client_sdk.tensors.manifest.digest_of``). A device
    whose learner knows its roles refuses another one."""


class Wait(Message):
    """There is no work now. The device draws a time from the window (pace steering), then checks in again."""

    kind: Literal["wait"] = "wait"
    reason: str
    """One plain sentence: why there is no work for this device, and what would change that."""
    min_s: float = Field(ge=0)
    max_s: float = Field(ge=0)
    warning: str = ""
    """What the coordinator says of this device for its owner; empty: nothing."""


class Started(Message):
    """The device has the checkpoint and begins to train. Only for the displayed funnel; its loss has no effect."""

    attempt: int = Field(default=0, ge=0)


class Withdrawal(Message):
    """The device will not report for this round. It may check in again at once."""

    attempt: int = Field(default=0, ge=0)
    reason: str = Field(max_length=500)
    """One plain sentence. Shown to the operator."""


class Noted(Message):
    """Acknowledges Started and Withdrawal."""

    ok: bool = True


class Work(Message):
    """How much of the task was done, as the learner reports it."""

    steps: int = Field(default=0, ge=0, le=2**53)
    """Optimizer steps taken."""
    steps_planned: int = Field(default=0, ge=0, le=2**53)
    """Optimizer steps of the whole task on this device's data."""
    epochs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Passes over the data, with the fraction of the last one."""
    examples_seen: int = Field(default=0, ge=0, le=2**53)
    """Examples in all steps taken, repetitions included."""
    complete: bool = True
    """False when the device stopped before ``steps_planned``."""


class UpdateReport(Message):
    """Describes an update's tensors: JSON in the safetensors ``__metadata__`` under ``REPORT_KEY``, covered by the
    body's digest."""

    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(default=0, ge=0)
    codec: str
    """The codec that encoded the body; it must be the task's."""
    examples: int = Field(ge=0, le=2**31)
    """Training examples on the device: the update's weight before caps."""
    work: Work = Work()
    fetch_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds by the device's clock from the assignment until it has the checkpoint."""
    train_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds by the device's clock that training took."""
    encode_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds by the device's clock that encoding the update took."""
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=64)
    """Training metrics (loss, ...), averaged over the examples seen."""
    held_out: Score | None = None
    """Scores of the received checkpoint on this device's held-out data, if the task has ``score_held_out``."""


class LoggedEvent(Message):
    """An event of a run's log, by which a device can show later what the log contained."""

    seq: int = Field(ge=1)
    """Its sequence number."""
    link: Digest
    """SHA-256 that chains it to all events before it. ``quorate verify --receipts`` holds it against the log."""


class Receipt(Message):
    """The update is durable and counts unless the round is abandoned, or the coordinator's disk loses it: then the next
    check-in returns the round's assignment again. The same digest again gets an equal answer."""

    run: RunId
    round: int
    attempt: int
    device: DeviceId
    digest: Digest
    """Of the received body. The device compares it and then deletes its copy."""
    weight: int
    """The integer weight it will count with; in parts of an example where the plan counts partial work by the examples
    seen."""
    logged: LoggedEvent | None = None
    """The event that counts it."""


class Outcome(Message):
    """The result of a device's part in a round."""

    run: RunId
    round: int
    device: DeviceId
    result: Literal["pending", "counted", "refused", "dropped", "withdrawn", "unknown"]
    """pending: the round has not ended. dropped: selected, did not report. unknown: was not selected."""
    reason: str = ""
    digest: str | None = None
    version: int | None = None
    """The checkpoint to which the update contributed, if it was counted."""
