"""The checks before a device sends a key: the header against the plan, the owner's policy and the device's memory.

No plan and no field of a message can weaken these checks. There are four, each made as early as possible:

- ``require_terms``: does the policy allow the plan's secure rounds? Before training, and again with every header.
- ``require_agreed``: does the header have the round, plan and terms that the device agreed to? Whenever an attempt
  begins or continues.
- ``require_consent``: may the device advertise for a new attempt under this header now?
- ``require_withstood``: does the device's group withstand as many colluding devices as its owner requires?
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from client_sdk.credentials.certificate import RevocationList
from client_sdk.protocol.secure import SecureBounds
from client_sdk.secagg.errors import Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import SEED_BYTES, AttemptHeader, GraphRule, Terms, withstood
from client_sdk.secagg.memory import DAY_S, Memory
from client_sdk.secagg.nearness import distance


class SecurePolicy(SecureBounds):
    """The owner's bounds on secure rounds, which are told to the coordinator, and those that the SDK adds."""

    smallest_corrupt_millionths: int = 100_000
    """The smallest colluding fraction that a *fast* round must withstand. The bits of secrecy hold only against that
    many colluders; with a fraction of 0, any two of them can break the graph."""
    rekey_pause_s: float = 10.0
    """Seconds between two advertisements on one checkpoint, at least."""
    most_fast_tries: int = 8
    """Most advertisements on one checkpoint in *fast* rounds, and in rounds with several groups: each gives the
    coordinator a new nonce with which it can try memberships."""
    shortest_round_s: float = 10.0
    """By this device's clock, a run's model moves on by one round in so many seconds at most. Nothing in a plan says
    how short a round is: this is what a device waits between two advertisements."""
    longest_life_s: float = 7 * 86_400
    """How far ahead an attempt's expiry may lie: until then the device keeps the attempt's secrets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the device expects in the header: from its assignment, its plan, its training, and the authority's
    revocation list."""

    run: str
    round: int
    model: bytes
    """SHA-256 of the file of the checkpoint that it trained from, as the header names it."""
    tensors: bytes
    """``tensors.canonical_digest`` of the checkpoint, which the device computed itself: one for all files of the same
    tensors. *Spent*, tries and the one live attempt go by it."""
    plan: bytes
    """``terms.agreed_digest`` of the plan that it agreed to, and of the task that it trained by."""
    terms: Terms
    """The plan's terms of secure rounds, as the device received them with the assignment."""
    learner: str
    dimension: int
    """Values that it encoded."""
    codec: str
    codec_version: int
    codec_seed: bytes = bytes(SEED_BYTES)
    """What the plan and the round give; zeros where the codec draws nothing."""
    sketch: bytes = b""
    """Of that checkpoint's parameters, see ``nearness``; empty where the driver keeps no account of them."""
    near: bool = False
    """``Answered.near``."""
    roles: bytes = b""
    """The digest of the model's tensors and their roles, by which it trained; empty where none is a statistic."""
    revocations: RevocationList | None = None
    """The authority's list that the header names. An attempt begins by it alone, and keeps it until it ends; None will
    do for an attempt that is to go on."""


def require_terms(terms: Terms, policy: SecurePolicy) -> None:
    """Raise Refusal where the owner's bounds exclude rounds of these terms."""
    for reason in refused_terms(terms, policy):
        raise Refusal(reason)


def refused_terms(terms: Terms, policy: SecurePolicy, values: int = 1) -> Iterator[str]:
    """Each reason why the owner's bounds exclude rounds of these terms. ``values``: how many parameters are averaged,
    where that is known: the more, the further a round may move the model."""
    if terms.minimum_cohort < policy.smallest_cohort:
        yield f"This device hides among {policy.smallest_cohort} or more; the plan asks for {terms.minimum_cohort}."
    least, most = terms.clips
    for what, bound, wanted in (
        ("an L2 clip", policy.largest_norm, most),
        ("a range", policy.largest_range, terms.max_abs),
        ("a range of statistics", policy.largest_range, max(terms.statistics, default=0.0)),
        ("a weight cap", policy.largest_weight_cap, terms.weight_cap),
    ):
        if bound is not None and wanted > bound:
            yield f"This device's owner allows {what} of at most {bound:g}; the plan asks for {wanted:g}."
    if least < policy.smallest_norm:
        yield (
            f"This device's owner allows an L2 clip of at least {policy.smallest_norm:g}; the plan asks for {least:g}."
        )
    if further := moves_too_far(terms, policy, values):
        yield further
    rule = terms.rule
    if rule.profile != "fast":
        return
    if policy.strict_only:
        yield "This device's owner allows strict secure rounds only, and this one is fast."
    if rule.sigma < policy.smallest_sigma:
        yield f"This device wants {policy.smallest_sigma} bits of secrecy; the plan asks for {rule.sigma}."
    if rule.corrupt_millionths < policy.smallest_corrupt_millionths:
        yield (
            f"This device wants secrecy against {policy.smallest_corrupt_millionths / 10_000:g} % who collude; "
            f"the plan counts on {rule.corrupt_millionths / 10_000:g} %."
        )


def moves_too_far(terms: Terms, policy: SecureBounds, values: int) -> str:
    """The reason against a plan whose rounds may move so many parameters further than the owner allows; else empty."""
    most, asked = policy.largest_move, terms.reach(values) / terms.clips[1]
    if most is None or asked <= most:
        return ""
    how = f"by up to {asked:.3g} times it" if asked < float("inf") else "by any distance"
    return (
        f"This device's owner allows a round to move the model by at most {most:g} times max_norm; "
        f"the plan's may move it {how}."
    )


def nearest(terms: Terms, policy: SecureBounds) -> float:
    """Models that are nearer to each other than this, in L2, are near."""
    return policy.nearest_model * terms.max_norm


def require_another_model(
    terms: Terms, policy: SecurePolicy, memory: Memory, tensors: bytes, sketch: bytes, at: float
) -> bool:
    """Raise Refusal as ``require_sums_left``, or where this model is near to one into whose sum this device has put an
    update, by its ``sketch``; it is never near to itself, of which *spent* decides. Returns whether it is near and the
    owner allows it. Before training, and without a number: nothing that follows from the data decides, so a refusal
    tells nothing of them."""
    require_sums_left(policy, memory, at)
    others = [model for digest, model in memory.answered.items() if digest != tensors]
    today = [model for model in others if model.at > at - DAY_S]
    near = any(distance(sketch, model.sketch) < nearest(terms, policy) for model in others if sketch)
    if near and sum(model.near for model in today) >= policy.near_repeats:
        raise Refusal("This model is nearer to one that this device has answered than its owner allows.", final=True)
    return near


def require_sums_left(policy: SecurePolicy, memory: Memory, at: float) -> None:
    """Raise Refusal where as many masked vectors as the owner allows have left this device in a day: before training,
    and again before each attempt, since a coordinator may begin many in one round."""
    if sums_made(policy, memory, at):
        raise Refusal(said_of_sums(policy))


def sums_made(policy: SecureBounds, memory: Memory, at: float) -> bool:
    """Whether as many masked vectors as the owner allows have left this device in the last day, or the folders that
    count with it."""
    own = sum(model.vectors for model in memory.answered.values() if model.at > at - DAY_S)
    together = sum(abs(at - one) < DAY_S for one in memory.of_data)
    return policy.sums_a_day is not None and max(own, together) >= policy.sums_a_day


def said_of_sums(policy: SecureBounds) -> str:
    """Why a device takes part in no secure round where ``sums_made``."""
    return f"This device's owner lets its data into {policy.sums_a_day} sums a day, and today's are made."


def require_agreed(header: AttemptHeader, expected: Expected, policy: SecurePolicy) -> None:
    """Raise Refusal unless ``header`` is of the round that the device trained for, and has the terms that it and its
    owner agreed to."""
    for what, here, there in (
        ("run", expected.run, header.run),
        ("round", expected.round, header.round),
        ("checkpoint", expected.model, header.model),
        ("plan or task", expected.plan, header.plan),
        ("number of values", expected.dimension, header.dimension),
        ("codec", expected.codec, header.codec),
        ("codec's version", expected.codec_version, header.codec_version),
        ("seed of the codec", expected.codec_seed, header.codec_seed),
        ("digest of tensors and their roles", expected.roles, header.roles),
    ):
        if here != there:
            raise Refusal(f"The header names another {what} than this device trained for.")
    if header.terms != expected.terms:
        raise Refusal("The header has other terms than the plan that this device agreed to.")
    require_terms(header.terms, policy)


def require_consent(
    header: AttemptHeader, expected: Expected, policy: SecurePolicy, memory: Memory, at: float
) -> RevocationList:
    """Raise Refusal unless the device may now (``at``: Unix seconds) advertise for a new attempt under ``header``, to
    which it agreed; SpentOnCheckpoint where it never may on this checkpoint. Returns the revocation list by which the
    attempt begins. ``memory`` is the newest: this is asked while nobody else can change it."""
    if memory.is_spent(expected.tensors):
        raise SpentOnCheckpoint
    require_sums_left(policy, memory, at)
    listed = _named_list(header, expected.revocations, memory)
    require_time(header, at)
    if header.expires_at > at + policy.longest_life_s:
        over = header.expires_at - at - policy.longest_life_s
        raise Refusal(
            f"This attempt would live for longer than {policy.longest_life_s:g} s: by {over:.0f} s, by which this "
            "device's clock may be behind."
        )
    if memory.is_replay(header):
        raise Refusal("This attempt is no newer than the one that this device last advertised for: a replay.")
    tries = memory.advertisements.get(expected.tensors)
    if tries is None:
        return listed
    if (header.rule.profile == "fast" or header.groups > 1) and tries.count >= policy.most_fast_tries:
        raise Refusal(
            f"This device advertised {tries.count} times on this checkpoint, the most that it does.", final=True
        )
    wait_s = tries.last_at + policy.rekey_pause_s - at
    if wait_s > 0:
        raise Refusal("This device advertised on this checkpoint a moment ago.", retry_s=wait_s)
    return listed


def _named_list(header: AttemptHeader, listed: RevocationList | None, memory: Memory) -> RevocationList:
    """The list that the header names. Refusal unless this device has it, and no newer one binds it."""
    if header.revocations < memory.revocations:
        raise Refusal(f"The header's revocation list is older than number {memory.revocations}, which was seen.")
    if listed is None:
        raise Refusal("This device has no revocation list of the authority, so it can begin no attempt.")
    if (header.revocations, header.revocations_digest) != (listed.counter, listed.digest):
        raise Refusal(
            f"The header names another revocation list, number {header.revocations}, than this device has, "
            f"number {listed.counter}."
        )
    return listed


def require_withstood(rule: GraphRule, n: int, policy: SecurePolicy) -> None:
    """Raise Refusal where a group of ``n`` withstands fewer colluding devices than the owner requires. ``n`` is the
    group's very size, for larger ones may withstand fewer: 75 withstand 26 in *strict*, 76 withstand 25."""
    if policy.most_colluding is not None and withstood(rule, n) < policy.most_colluding:
        raise Refusal(
            f"This device wants secrecy against {policy.most_colluding} colluding devices; "
            f"a group of {n} withstands {withstood(rule, n)}."
        )


def require_time(header: AttemptHeader, at: float) -> None:
    """Raise Refusal where the attempt has expired."""
    if at > header.expires_at:
        raise Refusal(
            f"This attempt has expired, {at - header.expires_at:.0f} s ago by this device's clock: the round took too "
            "long, or the clock is ahead by at least so much."
        )


def plain_refusal(plain: Collection[str] | None, name: str) -> str | None:
    """The reason why this device's data go in clear for no run of this learner or Flower app; None where they may.
    ``plain``: ``Memory.plain``."""
    if plain is None or name in plain:
        return None
    return f"This device has joined secure rounds; its owner alone can let its data go in clear for {name}."
