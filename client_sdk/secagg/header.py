"""The header of one attempt of a secure round: all that a device agrees to before it sends a key, and the rule that
gives the graph and the threshold for a roster's size.

The coordinator writes it. A device checks it against its policy, the plan and its model, and signs its digest with the
advertisement. Errors: BadMessage for malformed bytes, BadParameters for inconsistent numbers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

from client_sdk.protocol.devices import Task
from client_sdk.protocol.names import copied
from client_sdk.protocol.secure import SecureTask
from client_sdk.protocol.wire import canonical, named
from client_sdk.secagg.agreement import CIPHER
from client_sdk.secagg.clip_bit import beta_of, kappa_of
from client_sdk.secagg.errors import BadMessage, BadParameters
from client_sdk.secagg.noise import LEAST_SHARE, MOST_DEVIATION, NO_NOISE
from client_sdk.secagg.parameters import Parameters, fast, strict
from client_sdk.secagg.quantize import Quantizer, StatisticRange
from client_sdk.secagg.statement import DIGEST_BYTES, DOMAIN, WireReader, WireWriter

PROTOCOL = "quorate-secagg-2"
WITH_NOISE = "quorate-secagg-2 distributed"
"""What a header of a round with noise names in its place."""
ADAPTIVE = "quorate-secagg-2 distributed adaptive"
"""And that of one whose clip adapts."""
KIND = 1
SEED_BYTES = 32

Profile = Literal["strict", "fast"]
_PROFILES: tuple[Profile, ...] = get_args(Profile)
_MILLION = 1_000_000
_GROUP_BYTES = 2
MOST_GROUPS = 256
_HARDLY = 100.0
"""Noise is longer than is believed of it with chance exp(-100)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphRule:
    """Gives neighbours and threshold for n devices: see ``parameters.strict`` and ``parameters.fast``.

    ``strict`` takes no numbers: the four are 0.
    """

    profile: Profile
    drop: int = 0
    """How many devices may drop out."""
    corrupt_millionths: int = 0
    """The colluding fraction, in millionths: an integer, so that all devices compute the same."""
    sigma: int = 0
    eta: int = 0

    def __post_init__(self) -> None:
        numbers = (self.drop, self.corrupt_millionths, self.sigma, self.eta)
        _profile(self.profile)
        if self.profile == "strict" and any(numbers):
            raise BadParameters("a strict round takes no drop, corrupt, sigma or eta")

    def parameters(self, n: int) -> Parameters:
        """The parameters for a roster of ``n``. BadParameters where none withstand the faults."""
        if self.profile == "strict":
            return strict(n)
        return fast(n, self.drop, Fraction(self.corrupt_millionths, _MILLION), self.sigma, self.eta)


def withstood(rule: GraphRule, n: int) -> int:
    """How many colluding devices a group of ``n`` withstands. In *strict*, C of them can make two lists with t
    signatures each, or rebuild both secrets of one device, only where 2t <= n + C; *fast* states its fraction."""
    if rule.profile == "strict":
        return 2 * rule.parameters(n).threshold - n - 1
    return rule.corrupt_millionths * n // 1_000_000


def hidden_among(rule: GraphRule, n: int) -> int:
    """Among how many honest devices one hides in a group of ``n``, also where the sums of several attempts on one
    checkpoint are combined: the signatures that a list takes, less the colluding devices that are withstood."""
    return rule.parameters(n).signers - withstood(rule, n)


@lru_cache(maxsize=256)
def share_of(quantizer: Quantizer, rule: GraphRule, dimension: int, n: int) -> Fraction:
    """The variance of one device's share of the noise in a sum of a group of ``n``: sigma^2 / (s - C), for s signatures
    that a list takes and C colluding devices that are withstood. So many honest devices are in each sum that can be
    opened, whoever vanishes (``hidden_among``), so it has the variance sigma^2 at least. 0 without noise.
    BadParameters where a share is so small that the sum's noise is no longer like one discrete Gaussian."""
    variance = quantizer.variance(dimension)
    share = Fraction(variance, hidden_among(rule, n)) if variance else NO_NOISE
    if variance and not LEAST_SHARE <= share <= MOST_DEVIATION**2:
        raise BadParameters(
            f"a device of {n} would add noise of deviation {math.sqrt(share):.3g} units of a lane, and it takes "
            f"{math.sqrt(LEAST_SHARE):g} to {MOST_DEVIATION:g}"
        )
    return share


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanNumbers:
    """The numbers that a plan gives its secure rounds, as its terms and each header have them."""

    q: int
    """Bits of a value."""
    max_norm: float
    """L2 norm to which a delta is clipped."""
    max_abs: float
    """The largest magnitude of a coordinate; larger ones are cut."""
    weight_cap: int
    """The largest weight of a device."""
    rule: GraphRule
    minimum_cohort: int
    """Fewest devices in a group of the roster, and among its survivors."""
    groups: int = 1
    """Into how many groups a roster is divided, each with masks, holders, a list and a sum of its own: see
    ``roster.divided``."""
    noise: float = 0.0
    """The mechanism *distributed*: the deviation of the noise in each group's sum, over the most that one device adds
    to it. 0: sums have no noise."""
    divisor: int = 0
    """By how many devices all sums of a round with noise together are divided, however many are in them; else 0."""
    lowest: float = 0.0
    """Where the clip adapts (``clip_bit``): the least that it may be. 0: it is ``max_norm``."""
    highest: float = 0.0
    """The most."""

    @property
    def clips(self) -> tuple[float, float]:
        """Between what a delta is clipped to in a round."""
        return (self.lowest, self.highest) if self.highest else (self.max_norm, self.max_norm)

    def quantizer_of(self, statistics: tuple[StatisticRange, ...], clip: float | None = None) -> Quantizer:
        """Converts values and these statistics to lanes. ``clip``: the round's; None: the highest. BadParameters where
        the numbers are inconsistent."""
        if not 0 <= self.lowest <= self.highest or bool(self.lowest) != bool(self.highest):
            raise BadParameters(f"a clip that adapts is within bounds, not from {self.lowest:g} to {self.highest:g}")
        return Quantizer(
            q=self.q,
            max_norm=self.max_norm,
            max_abs=self.max_abs,
            weight_cap=self.weight_cap,
            statistics=statistics,
            noise=self.noise,
            divisor=self.divisor,
            clip=self.highest if clip is None else clip,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms(PlanNumbers):
    """A plan's terms of its secure rounds: the same in every header of the run, and known before training. A device
    compares each header with the terms to which it agreed."""

    statistics: tuple[float, ...] = ()
    """The range of each statistic of the model, in the order of their names: see ``quantize.StatisticRange``."""
    move: float = field(default=0.0, compare=False)
    """The most by which a round moves the model, in L2; inf: nothing bounds it. A header has this and the next field in
    its ``plan`` alone, and its own terms have 0."""
    move_each: float = field(default=0.0, compare=False)
    """The most by which a round moves one value; inf: nothing bounds it but ``move``."""

    def reach(self, values: int) -> float:
        """The most by which a round moves a model of so many averaged parameters, in L2."""
        return min(self.move, self.move_each * math.sqrt(values))

    def reach_with_noise(self, values: int) -> float:
        """The most by which a round moves such a model where the mean has noise, which is no device's: as far as the
        updates alone move it, and as far again for each ``max_norm`` of noise. A step grows with the mean as every
        optimizer with a bound has it."""
        if not self.noise:
            return self.reach(values)
        quantizer = self.quantizer_of(())
        # A list may have more honest devices than s - C: 3 times as many in *strict*, 2 / (1 - corrupt) in *fast*.
        more = 3.0 if self.rule.profile == "strict" else 2 / (1 - self.rule.corrupt_millionths / _MILLION)
        deviation = math.sqrt(more * self.groups * quantizer.variance(values)) / self.divisor
        length = deviation * math.sqrt(values + 2 * math.sqrt(_HARDLY * values) + 2 * _HARDLY)
        if self.highest:  # what the bit leaves for values is made longer again, with the noise
            length /= kappa_of(beta_of(self.noise, self.divisor))
        return self.reach(values) * (1 + length * 2 * self.max_abs / (quantizer.levels * self.max_norm))


@dataclass(frozen=True, kw_only=True)
class AttemptHeader(PlanNumbers):
    """The header of one attempt of one round. Digests are SHA-256, 32 bytes."""

    run: str
    run_digest: bytes
    """Tells this run from all others, also from one of its name at another coordinator or in another database. The
    order of its attempts goes by this."""
    round: int
    attempt: int
    """Counts the attempts of the round from 0; each has new keys."""
    model: bytes
    """Digest of the checkpoint from which devices trained."""
    plan: bytes
    """Digest of the plan, and of the task and the weighting that devices received of it: ``terms.agreed_digest``."""
    dimension: int
    """Values of an encoded update, as its codec counts them; its lanes are a few more, for weight and canary."""
    clip: float = 0.0
    """Where the clip adapts: that of this round. 0: it is ``max_norm``."""
    codec: str
    codec_version: int
    codec_seed: bytes
    """The 32-byte seed of a randomized codec, the same for all devices; zeros where the codec draws nothing."""
    revocations: int
    """Counter of the authority's revocation list; a device accepts none lower than it has seen."""
    revocations_digest: bytes
    expires_at: int
    """Unix time in seconds after which nobody signs or reveals anything for this attempt."""
    roles: bytes = b""
    """``tensors.manifest.digest_of`` the model's tensors and their roles; empty where none is a statistic."""
    statistics: tuple[StatisticRange, ...] = ()
    """The model's statistics, in the order of their names."""

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.round < 1 or self.minimum_cohort < 2:
            raise BadParameters("dimension and round are from 1 up, and a cohort has at least 2 devices")
        if not 1 <= self.groups <= MOST_GROUPS:
            raise BadParameters(f"a roster is divided into 1 to {MOST_GROUPS} groups, not {self.groups}")
        if bool(self.roles) != bool(self.statistics):
            raise BadParameters("a header names the digest of roles exactly where the model has statistics")
        if not self.lowest <= self.clip <= self.highest:
            raise BadParameters(f"the clip {self.clip:g} is not from {self.lowest:g} to {self.highest:g}")
        _ = self.quantizer

    @property
    def terms(self) -> Terms:
        """The fields of this header that come from the plan."""
        return copied(Terms, self, statistics=tuple(one.range for one in self.statistics), move=0.0, move_each=0.0)

    @property
    def lanes(self) -> int:
        """Lanes of a masked vector."""
        return self.dimension + self.quantizer.extra_lanes

    @property
    def quantizer(self) -> Quantizer:
        """Converts values to lanes in this round."""
        return self.quantizer_of(self.statistics, self.clip)

    @property
    def noised(self) -> int:
        """How many lanes have noise: those of the values, which come first, and the bit's."""
        return self.dimension + self.quantizer.bit_lanes

    def lane_bits(self, n: int) -> int:
        """Bits of a lane of a group of ``n`` devices."""
        return self.quantizer.lane_bits(n, self.spread(n))

    def share(self, n: int) -> Fraction:
        """The variance of the noise that each device of a group of ``n`` adds; 0 where sums have none."""
        return share_of(self.quantizer, self.rule, self.dimension, n)

    def spread(self, n: int) -> Fraction:
        """The variance of the noise of a whole group of ``n``."""
        return n * self.share(n)

    def fewest_survivors(self, n: int) -> int:
        """The shortest list of survivors that a device of a group of ``n`` may sign: the minimum cohort, the
        threshold, and in *fast* all devices but those that the rule allows to drop out, on which its sigma depends."""
        floor = max(self.minimum_cohort, self.rule.parameters(n).threshold)
        return max(floor, n - self.rule.drop) if self.rule.profile == "fast" else floor

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes. Those of a model without statistics end with the expiry, where there is one group."""
        out = WireWriter(KIND).text(ADAPTIVE if self.highest else WITH_NOISE if self.noise else PROTOCOL)
        out.text(self.run).fixed(self.run_digest, DIGEST_BYTES)
        out.number(self.round, 8).number(self.attempt, 4)
        out.fixed(self.model, DIGEST_BYTES).fixed(self.plan, DIGEST_BYTES).number(self.dimension, 8)
        out.text(self.codec).number(self.codec_version, 4).fixed(self.codec_seed, SEED_BYTES)
        out.number(self.q, 1).float(self.max_norm).float(self.max_abs).number(self.weight_cap, 4).text(CIPHER)
        rule = self.rule
        out.text(rule.profile).number(rule.drop, 4).number(rule.corrupt_millionths, 4)
        out.number(rule.sigma, 1).number(rule.eta, 1).number(self.minimum_cohort, 4)
        out.number(self.revocations, 8).fixed(self.revocations_digest, DIGEST_BYTES).number(self.expires_at, 8)
        if self.noise:
            out.float(self.noise).number(self.divisor, 4)
        if self.highest:
            out.float(self.lowest).float(self.highest).float(self.clip)
        if self.statistics:
            out.fixed(self.roles, DIGEST_BYTES).number(len(self.statistics), 4)
            for one in self.statistics:
                out.number(one.elements, 8).float(one.range).number(int(one.non_negative), 1)
        if self.groups > 1:
            out.number(self.groups, _GROUP_BYTES)
        return out.done()

    @cached_property
    def digest(self) -> bytes:
        """The digest that is signed with an advertisement."""
        return hashlib.sha256(DOMAIN + b"header" + self.encoded).digest()

    @classmethod
    def parse(cls, data: bytes) -> AttemptHeader:
        """Decode a header, of which ``encoded`` is ``data`` again. BadMessage or BadParameters otherwise."""
        read = WireReader(data, KIND, "header")
        protocol = read.text()
        if protocol not in (PROTOCOL, WITH_NOISE, ADAPTIVE):
            raise BadMessage(f"this device speaks {PROTOCOL}, not {protocol}")
        header = cls(
            run=read.text(),
            run_digest=read.fixed(DIGEST_BYTES),
            round=read.number(8),
            attempt=read.number(4),
            model=read.fixed(DIGEST_BYTES),
            plan=read.fixed(DIGEST_BYTES),
            dimension=read.number(8),
            codec=read.text(),
            codec_version=read.number(4),
            codec_seed=read.fixed(SEED_BYTES),
            q=read.number(1),
            max_norm=read.float(),
            max_abs=read.float(),
            weight_cap=read.number(4),
            rule=_cipher_and_rule(read),
            minimum_cohort=read.number(4),
            revocations=read.number(8),
            revocations_digest=read.fixed(DIGEST_BYTES),
            expires_at=read.number(8),
            **({} if protocol == PROTOCOL else _of_noise(read)),
            **(_of_clip(read) if protocol == ADAPTIVE else {}),
            **_of_statistics(read),
            groups=_several(read),
        )
        read.end()
        return header


def _cipher_and_rule(read: WireReader) -> GraphRule:
    """The rule. Before it stands the name of the cipher, of which there is one. BadParameters for another."""
    cipher = read.text()
    if cipher != CIPHER:
        raise BadParameters(f"there is no cipher {cipher[:40]!r}: masks are expanded with {CIPHER}")
    return GraphRule(
        profile=_profile(read.text()),
        drop=read.number(4),
        corrupt_millionths=read.number(4),
        sigma=read.number(1),
        eta=read.number(1),
    )


def _of_noise(read: WireReader) -> dict[str, Any]:
    """What follows in the header of a round with noise."""
    noise = read.float()
    if noise <= 0:
        raise BadMessage("a header names a noise only where there is some")
    return {"noise": noise, "divisor": read.number(4)}


def _of_clip(read: WireReader) -> dict[str, Any]:
    """What follows in the header of a round whose clip adapts."""
    lowest, highest, clip = read.float(), read.float(), read.float()
    if highest <= 0:
        raise BadMessage("a header names bounds of a clip only where it adapts")
    return {"lowest": lowest, "highest": highest, "clip": clip}


def _of_statistics(read: WireReader) -> dict[str, Any]:
    """What follows in the header of a model with statistics."""
    if read.left <= _GROUP_BYTES:
        return {}
    roles = read.fixed(DIGEST_BYTES)
    rows = []
    for _ in range(read.count(4, 17, least=1)):
        elements, limit, non_negative = read.number(8), read.float(), read.number(1)
        if non_negative > 1:
            raise BadMessage("a statistic of the header is neither non-negative nor not")
        rows.append(StatisticRange(elements, limit, bool(non_negative)))
    return {"roles": roles, "statistics": tuple(rows)}


def _several(read: WireReader) -> int:
    """How many groups there are: named at the header's end where there are several."""
    if read.at_end:
        return 1
    groups = read.number(_GROUP_BYTES)
    if groups == 1:
        raise BadMessage("a header names the number of groups only where there are several")
    return groups


def _profile(name: str) -> Profile:
    if name not in _PROFILES:
        raise BadParameters(f"a secure round is {' or '.join(_PROFILES)}, not {name[:40]!r}")
    return name


# ------------------------------------------------------------ terms
# The plan's terms of secure rounds, as an assignment carries them, and what binds its devices to one task. Errors:
# BadParameters.
#
# The header's ``plan`` is ``agreed_digest``, over the plan's digest, the task, the weighting, the roles, and how far a
# round moves the model: otherwise
# a coordinator could give one device the task and all others a learning rate of almost nothing, under one digest, and
# the sum would be one device's update. The whole plan is not sent, since it has what operators may keep to
# themselves. One weight cap, the plan's, holds for all; a cap by device would do the same as another task. Deadlines
# cannot be bound, so a device masks no work that was cut short.


def terms_of(task: SecureTask) -> Terms:
    """The terms in an assignment. BadParameters where they are inconsistent, or name what this SDK does not know."""
    move, each = (math.inf if bound is None else bound for bound in (task.move, task.move_each))
    terms = copied(Terms, task, rule=copied(GraphRule, task), move=move, move_each=each)
    if terms.noise or terms.divisor or terms.lowest or terms.highest:
        terms.quantizer_of(())
    return terms


def task_of(terms: Terms, *, weighting: Literal["examples", "equal"] = "examples") -> SecureTask:
    """What an assignment carries of these terms."""
    move, each = moves_of(terms)
    return copied(SecureTask, terms, terms.rule, weighting=weighting, move=move, move_each=each)


def moves_of(terms: Terms) -> tuple[float | None, float | None]:
    """``SecureTask.move`` and ``move_each`` of these terms."""
    move, each = (bound if math.isfinite(bound) else None for bound in (terms.move, terms.move_each))
    return move, each


def agreed_digest(
    plan_digest: str,
    task: Task,
    weighting: Literal["examples", "equal"],
    roles_digest: str = "",
    moves: tuple[float | None, float | None] = (None, None),
) -> bytes:
    """SHA-256 of what all devices of one sum agreed to, as the header names it (``AttemptHeader.plan``): the digest of
    the plan, and the task, the weighting, the roles of tensors, and how far a round moves the model (``move`` and
    ``move_each`` of ``SecureTask``), which each received with its assignment.

    A device does not see the plan behind its digest. Without the task in it, a coordinator could give one device the
    plan's task and all others one that changes nothing: the sum would be that device's update.
    """
    said: dict[str, object] = {"task": named(task), "weighting": weighting}
    said |= {"roles": roles_digest} if roles_digest else {}
    said |= {"moves": moves} if moves != (None, None) else {}
    return hashlib.sha256(DOMAIN + b"agreed" + bytes.fromhex(plan_digest) + canonical(said)).digest()
