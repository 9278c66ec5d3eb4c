"""Every message between a device and the coordinator, every route, and the version: one definition, both ends.

This file knows the words on the wire. It has never heard of sockets, databases, time or tensors' contents. What
operators say is in ``operator_protocol`` and what datacenter workers say in ``worker_protocol``, over the same table of
routes.

How one round looks to a device::

    POST /v1/devices                                    EnrolRequest  -> Enrolled          once in a device's life
    POST /v1/checkins                                   CheckIn       -> Assignment | Wait held open until there is work
    POST /v1/runs/{run}/rounds/{round}/started          Started       -> Noted             "I begin to train"
    GET  /v1/checkpoints/{digest}                                     -> safetensors       immutable, cacheable, ranges
    PUT  /v1/runs/{run}/rounds/{round}/attempts/{attempt}/update      -> Receipt           safetensors and UpdateReport
    POST /v1/runs/{run}/rounds/{round}/withdrawn        Withdrawal    -> Noted             "do not wait for me"
    GET  /v1/runs/{run}/rounds/{round}/outcome                        -> Outcome           "what became of my work?"

Every request of a device or a worker carries ``Quorate-Protocol: <version>`` and ``Authorization: Bearer <token>`` (a
device's first one, its enrolment, has no token yet).
Errors are RFC 9457 problem documents (``client_sdk.protocol.problems``). Fields that a peer does not know are ignored,
so either end may be newer within one protocol version; a plan is the exception: there an unknown field is an error,
since it was meant to do something.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from client_sdk.protocol.names import (
    CODEC_PATTERN,
    DeviceId,
    Digest,
    Finite,
    LearnerName,
    Message,
    MetricName,
    RunId,
)


class Task(BaseModel):
    """The device's part of the plan: what to train, how long, and how to encode the result.

    A device checks it against its own policy before it trains; unknown fields are refused, since they were meant to do
    something.
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
    learning_rate: float = Field(default=0.1, gt=0, le=1000, allow_inf_nan=False)
    """Step size of the device's optimizer."""
    mu: float = Field(default=0.0, ge=0, le=1000, allow_inf_nan=False)
    """Proximal coefficient of FedProx (Li et al. 2020, arXiv:1812.06127): adds (mu/2)||w - w_global||^2 to the
    objective. 0: FedAvg."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Each gradient, proximal term included, is scaled down to this L2 norm. None: not clipped."""
    time_budget_s: float | None = Field(default=None, gt=0, le=86_400 * 7, allow_inf_nan=False)
    """Seconds of training after which the device reports what it has done. None: until the report is due."""
    codec: str = Field(default="float32@1", pattern=CODEC_PATTERN)
    """Name and version of the codec of the update's tensors."""
    averaged: tuple[str, ...] = ("*",)
    """Shell patterns (fnmatch) of the tensors that are sent and averaged. Integer and boolean tensors are never
    averaged, whatever matches. Tensors that no pattern matches stay as they are in the checkpoint."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Shuffles batches, with round and device. Public; the selection seed is another and stays on the coordinator."""
    score_held_out: bool = False
    """Ask devices to score the checkpoint they receive on held-out data of their own, before training."""

    @field_validator("learner_version")
    @classmethod
    def _no_empty_version(cls, value: str | None) -> str | None:
        return value or None

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Task:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("set epochs or steps, not both: each says how long a device trains")
        if not self.averaged or any(not re.search(r"\S", pattern) for pattern in self.averaged):
            raise ValueError("averaged must name at least one pattern, for example ['*'] or ['head.*']")
        return self


# ---------------------------------------------------------------- devices


class EnrolRequest(Message):
    """A device asks for an id. Sent once; sent again with the same key it gives the same id and a fresh token."""

    public_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The device's Ed25519 public key, 32 bytes in hexadecimal. Set by the device, drawn on the device, for life."""
    enrolment_token: str = Field(min_length=1, max_length=512)
    """Handed out by the operator (``quorate serve`` prints it). Says that this device may join."""
    proof: str = Field(pattern=r"^[0-9a-f]{128}$")
    """Ed25519 signature over ``enrolment_bytes``: shows that the sender holds the key."""
    examples: int = Field(default=0, ge=0, le=2**31)
    """Training examples that the device holds, by its own word. Caps what it may claim later; the coordinator caps it
    too."""
    label: str = Field(default="", max_length=64)
    """A name for people (model of phone, hospital). Shown in lists, never trusted."""


def enrolment_bytes(public_key: str, enrolment_token: str) -> bytes:
    """What the device signs at enrolment: the domain's name, its key and the token, so a proof fits nowhere else."""
    return b"quorate enrolment v1\n" + public_key.encode() + b"\n" + enrolment_token.encode()


class Enrolled(Message):
    """The coordinator's answer to EnrolRequest. The device saves it before it does anything else."""

    device: DeviceId
    """Given by the coordinator, never chosen by devices: selection depends on it."""
    token: str
    """Bearer secret for all later requests. The coordinator keeps only its hash; enrolling again replaces it."""
    examples_cap: int
    """The most examples this device may claim in selection and in weights."""


class SecureBounds(Message):
    """What the owner of a device asks of secure rounds. The coordinator selects by it; the device holds every plan and
    every header to it (``secagg.consent``), whatever the coordinator selects."""

    smallest_cohort: int = Field(default=64, ge=2)
    """Fewest devices among whom this one hides."""
    most_colluding: int | None = Field(default=None, ge=1)
    """How many devices of the fleet may collude with the coordinator: rosters that withstand fewer are refused. None:
    as many as rosters of the plan's sizes withstand."""
    largest_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The widest L2 clip accepted. None: any; likewise the next two."""
    largest_range: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The widest range of a coordinate accepted."""
    largest_weight_cap: int | None = Field(default=None, ge=1)
    """The highest weight cap accepted."""
    smallest_sigma: int = Field(default=80, ge=1, le=128)
    """Fewest bits of secrecy accepted of rounds of the profile *fast*."""
    strict_only: bool = False
    """Refuse rounds of the profile *fast*."""


class Policy(Message):
    """What the owner of a device agreed to. Checked on the device before training and sent with each check-in."""

    learners: tuple[LearnerName, ...] | None = None
    """Learners this device is willing to train. None: every installed one."""
    secure_only: bool = False
    """Take part in rounds with secure aggregation only."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Refuse tasks that ask for more epochs. None: no bound."""
    secure: SecureBounds | None = None
    """Bounds on secure rounds. None, which is not sent: those of ``SecureBounds`` as they stand."""
    secure_learners: tuple[LearnerName, ...] = ()
    """Learners of whose secure rounds this device has joined one: it takes no plain plan for them. Not sent where there
    are none."""

    @model_serializer(mode="wrap")
    def _what_is_set(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialized(self)
        if self.secure is None:
            fields.pop("secure", None)
        if not self.secure_learners:
            fields.pop("secure_learners", None)
        return fields


class CheckIn(Message):
    """ "I am here and could train now." Held open until there is an assignment or ``hold_s`` has passed."""

    examples: int = Field(default=0, ge=0, le=2**31)
    """Training examples on the device now, by its own word; capped by what it enrolled with."""
    learners: dict[LearnerName, str] = Field(default_factory=dict, max_length=256)
    """Installed learners: ``package:name`` -> version. A device is eligible only for runs whose learner it has."""
    policy: Policy = Policy()
    hold_s: float = Field(default=25.0, ge=0, le=300, allow_inf_nan=False)
    """How long the device is willing to wait for the answer. 0: answer at once. The device stays in the pool until it
    expires."""


class CheckpointRef(Message):
    """A checkpoint by name. The bytes are at ``Route.CHECKPOINT``; a device checks them against the digest."""

    version: int = Field(ge=0)
    digest: Digest
    bytes: int = Field(ge=0)


class Assignment(Message):
    """Work for one device in one round. The same check-in again returns the same: a lost answer costs nothing."""

    kind: Literal["assignment"] = "assignment"
    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(default=0, ge=0)
    """Counts re-keyings in secure rounds; 0 in plain rounds."""
    device: DeviceId
    checkpoint: CheckpointRef
    """Where training starts."""
    plan_digest: Digest
    """What the device agrees to; kept in its record of rounds joined."""
    task: Task
    report_within_s: float
    """Seconds from now until the round's deadline. Relative, so the device's clock does not matter."""
    secure: bool = False
    """Whether the update will be added under masks. A device with *secure only* refuses when this is false."""
    partial: Literal["full", "examples_seen", "refuse"] = "full"
    """What happens to work cut short: see ``Aggregation.partial`` of the plan. With *refuse* a device out of time
    withdraws."""
    max_update_bytes: int = Field(ge=0)
    """The longest body the coordinator takes for this update."""


class Wait(Message):
    """No work now. The device sleeps a time drawn from the window (pace steering), then checks in again."""

    kind: Literal["wait"] = "wait"
    reason: str
    """One plain sentence: why this device has nothing to do, and what would change that."""
    min_s: float = Field(ge=0)
    max_s: float = Field(ge=0)


class Started(Message):
    """The device has the checkpoint and begins to train. Only for the funnel people see; losing it loses nothing."""

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
    """How much of the task was done. Filled by the learner; partial when the time budget ran out."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps taken."""
    steps_planned: int = Field(default=0, ge=0)
    """Optimizer steps that the whole task is on this device's data."""
    epochs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Passes over the data, whole and begun."""
    examples_seen: int = Field(default=0, ge=0)
    """Examples in all steps taken, repeats counted."""
    complete: bool = True
    """False when the device stopped before ``steps_planned``."""


class Score(Message):
    """Metrics by name and the number of examples behind them."""

    examples: int = Field(ge=1, le=2**40)
    metrics: dict[MetricName, Finite] = Field(max_length=64)


class UpdateReport(Message):
    """What goes with an update's tensors: JSON in the safetensors ``__metadata__`` under ``REPORT_KEY``, covered by the
    body's digest."""

    run: RunId
    round: int = Field(ge=1)
    attempt: int = Field(default=0, ge=0)
    codec: str
    """The codec that made the body; must be the task's."""
    examples: int = Field(ge=0, le=2**31)
    """Training examples on the device: the update's weight before caps."""
    work: Work = Work()
    fetch_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds, by the device's own clock, from assignment to checkpoint in hand; likewise the next two."""
    train_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    encode_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    metrics: dict[MetricName, Finite] = Field(default_factory=dict, max_length=64)
    """Training metrics (loss, ...), averaged over the examples seen."""
    held_out: Score | None = None
    """The received checkpoint scored on this device's held-out data, when the task asked for it."""


class Receipt(Message):
    """The update is durable and will count unless the round is abandoned. The same digest again gets the same words."""

    run: RunId
    round: int
    attempt: int
    device: DeviceId
    digest: Digest
    """Of the body received. The device compares, then deletes its copy."""
    weight: int
    """The integer weight it will count with."""


class Outcome(Message):
    """What became of a device's part in a round."""

    run: RunId
    round: int
    device: DeviceId
    result: Literal["pending", "counted", "refused", "dropped", "withdrawn", "unknown"]
    """pending: the round still runs. dropped: selected, never reported. unknown: was not selected."""
    reason: str = ""
    digest: str | None = None
    version: int | None = None
    """The checkpoint that the update is part of, when counted."""
