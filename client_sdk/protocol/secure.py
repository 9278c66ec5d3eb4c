"""The messages of secure rounds between a device and the coordinator. The bodies of the five exchanges are canonical
bytes of ``client_sdk.secagg``; here is what stands around them.

The requests of a device, in order; *attempt* counts the key exchanges of one round::

    POST .../rounds/{round}/secure                            SecureWait -> Octets      the header of the attempt
    PUT  .../rounds/{round}/attempts/{attempt}/secure/{stage} bytes      -> Noted       a message; the same bytes again
    POST .../attempts/{attempt}/secure/{stage}/answer         SecureWait -> Octets      the answer to it
    POST .../attempts/{attempt}/refusal                       SecureRefusal -> Noted    it joins none here any more

``{stage}`` is one of advertise, share, mask, survivors, unmask, and where shares do not open, of complain and open
(``client_sdk.secagg.complaints``). The body of a PUT is the message, but of *mask* the packed vector; what else is
signed is in the header ``SECURE_HEADER``. A wait that ends without an answer gets ``NotReady`` (204, no body).
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from client_sdk.protocol.names import SIGNATURE_PATTERN, Digest, Message

SECURE_VERSION = 2
"""The version of the secure protocol: devices say it when they check in, and are selected for secure rounds by it."""
SECURE_HEADER = "Quorate-Secure"
"""The header of a PUT that holds ``SecureSigned`` as JSON."""
OCTETS_MEDIA_TYPE = "application/octet-stream"

Stage = Literal["advertise", "share", "mask", "survivors", "unmask", "complain", "open"]
"""What a device sends: the messages of the five exchanges, the complaint of shares that do not open, and the pairs of
shares that it opens since peers have complained of them."""
FIVE_EXCHANGES: tuple[Stage, ...] = ("advertise", "share", "mask", "survivors", "unmask")
"""What each device sends in a round in which nobody complains."""
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$", max_length=2000)]
PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="an Ed25519 public key")]


def _unsaid(value: object) -> bool:
    return value is None


class SecureBounds(Message):
    """What the owner of a device requires of secure rounds. The coordinator selects by it, and the device checks every
    plan and every header against it (``secagg.consent``), whatever the coordinator selects."""

    smallest_cohort: int = Field(default=64, ge=2)
    """Smallest cohort accepted: the devices among which this one is anonymous, in its group of the roster and among the
    group's survivors."""
    most_colluding: int | None = Field(default=None, ge=1)
    """Number of devices of the whole fleet that may collude with the coordinator: a group of a roster that withstands
    fewer is refused. A malicious coordinator chooses the size of a roster, down to the plan's minimum: *strict*
    withstands 101 of 300, and 21 of 64. None: as many as groups of the plan's sizes withstand."""
    largest_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The widest L2 clip accepted; of one that adapts, the highest that it may be. None: any."""
    smallest_norm: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """The narrowest L2 clip accepted; of one that adapts, the lowest that it may be. ``nearest_model`` is a share of
    the clip, and a clipped update still has its direction: under a tiny clip no model would be near to another. A plan
    for smaller updates sets the clip to this, which clips none of them. 0: any."""
    largest_range: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The widest range of a coordinate accepted, as the plan's codec sends it: with a rotating codec, of a rotated one.
    There ``largest_norm`` alone bounds what a coordinate of the model can move. The ranges of statistics, which no
    codec changes, are held to it too. None: any."""
    largest_weight_cap: int | None = Field(default=None, ge=1)
    """The highest weight cap accepted. None: any."""
    smallest_sigma: int = Field(default=80, ge=1, le=128)
    """Fewest bits of secrecy accepted of rounds of the profile *fast*. A coordinator can try as many memberships of a
    roster as it can compute, and 2^g tries cost g bits: with 80, a coordinator that tries 2^40 still faces 40 bits."""
    strict_only: bool = False
    """Refuse rounds of the profile *fast*."""
    fewest_examples: int = Field(default=20, ge=1)
    """Fewest training examples behind an update. A sum of updates of single examples can show each of them: a first
    layer whose biases are quantiles puts one example into the difference of two of its rows (Fowl et al. 2022,
    arXiv:2110.13057)."""
    whole_passes: bool = True
    """Refuse tasks whose steps do not reach all of the data: a coordinator would choose behind how few examples an
    update is."""
    fewest_steps: int = Field(default=2, ge=1)
    """Fewest optimizer steps behind an update. After one step it is a gradient, from which more can be read."""
    largest_batch: float = Field(default=0.5, gt=0, le=1, allow_inf_nan=False)
    """The largest share of the data in one batch. With a batch of all data the order of batches, which is the device's
    own secret, changes nothing, and nearly the same update comes in each round."""
    sums_a_day: int | None = Field(default=100, ge=1)
    """The most sums in 24 hours into which this device puts an update, over all learners, runs and coordinators: the
    masked vectors that leave it, whether a sum follows or not. Sums of many rounds, with the lists of who is in them,
    are equations. None: any number."""
    sums_made: bool = Field(default=False, exclude_if=not_)
    """The device says it of itself: today's are made, so that it is selected for no secure round until the first of
    them is a day old. Not sent if false."""
    nearest_model: float = Field(default=0.002, ge=0, le=1, allow_inf_nan=False)
    """A model that is nearer than this share of the plan's ``max_norm`` to one that this device has answered is
    refused, by the L2 distance of the parameters: two sums of nearly equal models, with one device more, would show
    that device's update. 0: none is."""
    near_repeats: int = Field(default=0, ge=0)
    """How many such models it answers in 24 hours all the same."""
    origins: Literal["usual", "signed", "any"] = "usual"
    """Where a run's first model comes from. *usual*: it is the learner's ``initial(seed)``, which the device makes
    itself and compares, or a file signed by the authority or by one of ``model_keys``; of a learner that makes no first
    model, any. *signed*: of such a learner a signed one too. *any*: wherever it comes from."""
    model_keys: tuple[PublicKey, ...] = Field(default=(), max_length=64)
    """Public keys (Ed25519), beside the authority's, whose signature under a first model counts."""
    largest_move: float | None = Field(default=3.0, gt=0, allow_inf_nan=False)
    """How far one round may move the model in L2, in units of the plan's ``max_norm``: plans whose server optimizer can
    move it further are refused, and so are models further from the last one that this device knows than their rounds
    can have moved it. None: any distance."""
    late_moves: int = Field(default=10, ge=0)
    """Of a run that this device has not seen before: how many of its rounds' moves, at most, a model may be away from
    the first one, whatever its version."""


class SignedModel(Message):
    """A run's first model as a file that somebody has signed, or a later version: its bytes are at
    ``Route.CHECKPOINT``."""

    digest: Digest
    bytes: int = Field(ge=0)
    version: int = Field(default=0, ge=0, exclude_if=not_)
    """Not sent if 0."""
    signature: str = Field(pattern=SIGNATURE_PATTERN)
    """Ed25519, under ``secagg.origin.statement_of`` the model, by the authority or a key that owners trust."""


class SecureTask(Message):
    """The plan's terms of its secure rounds, which a device checks before it trains, and holds each header against:
    the fields of ``secagg.header.Terms``."""

    q: int
    """Bits of a quantized value."""
    max_norm: float
    """L2 norm to which an update is scaled down."""
    max_abs: float
    """Largest magnitude of a coordinate."""
    weight_cap: int
    """Most that one device weighs."""
    weighting: Literal["examples", "equal"] = "examples"
    """*examples*: a device weighs as many as it trained on, up to the cap. *equal*: each weighs the cap."""
    profile: Literal["strict", "fast"]
    drop: int = 0
    """How many devices may vanish, of *fast*; 0 in *strict*."""
    corrupt_millionths: int = 0
    """Fraction of devices that may collude, in millionths, of *fast*; 0 in *strict*."""
    sigma: int = 0
    """Bits of secrecy, of *fast*; 0 in *strict*."""
    eta: int = 0
    """Bits of correctness, of *fast*; 0 in *strict*."""
    minimum_cohort: int
    """Fewest devices of a group and of its sum."""
    groups: int = Field(default=1, exclude_if=lambda groups: groups == 1)
    """Into how many groups each roster is divided, each with a sum of its own. Not sent if 1."""
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=not_)
    """The deviation of the noise in each group's sum, of which each device adds a share before it masks, over the most
    that one device adds to the sum. Not sent if 0: there is none."""
    divisor: int = Field(default=0, ge=0, exclude_if=not_)
    """By how many devices all sums of a round with noise together are divided. Not sent if 0."""
    lowest: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=not_)
    """Where the clip adapts, the least that a header may name in place of ``max_norm``. Not sent if 0."""
    highest: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=not_)
    """The most. Not sent if 0."""
    statistics: tuple[float, ...] = Field(default=(), exclude_if=not_)
    """The range of each statistic of the model, in the order of their names. Not sent if empty."""
    move: float | None = Field(default=None, ge=0, allow_inf_nan=False, exclude_if=_unsaid)
    """The most by which a round moves the model, in L2. None: nothing bounds it."""
    move_each: float | None = Field(default=None, ge=0, allow_inf_nan=False, exclude_if=_unsaid)
    """The most by which a round moves one of its values. None: nothing bounds it but ``move``."""
    first_seed: int | None = Field(default=None, ge=0, lt=2**63, exclude_if=_unsaid)
    """The run's first model is the learner's ``initial`` of this seed. None: it is not said."""
    signed: SignedModel | None = Field(default=None, exclude_if=_unsaid)
    """The run's first model, or its last one, where somebody has signed it: a device that knows an earlier one measures
    from there."""


class SecureWait(Message):
    """Asks for something that may not be there yet. Held open until it is, or until ``hold_s`` has passed."""

    hold_s: float = Field(default=25.0, ge=0, le=300, allow_inf_nan=False)
    """Longest wait for the answer, seconds."""


class SecureSigned(Message):
    """What belongs to a message beside its body."""

    signature: Hex
    """The device's Ed25519 signature, over the header's digest (advertise) or h, the stage and the body: 64 bytes."""
    certificate: Hex = ""
    """With *advertise*: the device's certificate."""
    body: Hex = ""
    """With *mask*: the message that describes the vector, which is the body of the request."""


class Octets(Message):
    """An answer that is bytes: a header, a roster, shares, complaints and how they were settled, a list, signatures. To
    *unmask* it is empty: the round is over."""

    content: bytes


class NotReady(Message):
    """There is no answer yet: ask again."""


class SecureRefusal(Message):
    """This device takes part in no attempt on this checkpoint any more: in whichever run, or without ``spent`` in this
    run."""

    spent: bool = False
    """It has signed a survivor list there."""
    reason: str = Field(max_length=500)
    """One plain sentence."""
