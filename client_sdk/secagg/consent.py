"""The checks before a device sends a key: the header against the plan, the owner's policy and the device's memory.

No plan and no field of a message can weaken these checks. There are four, each made as early as possible:

- ``require_terms``: does the policy allow the plan's secure rounds? Before training, and again with every header.
- ``require_agreed``: does the header have the round, plan and terms that the device agreed to? Whenever an attempt
  begins or continues.
- ``require_consent``: may the device advertise for a new attempt under this header now?
- ``require_withstood``: is the roster large enough against the devices that may collude?
"""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk.secagg.errors import Refusal, SpentOnCheckpoint
from client_sdk.secagg.header import AttemptHeader, GraphRule, Terms
from client_sdk.secagg.memory import Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurePolicy:
    """The owner's bounds on secure rounds."""

    smallest_cohort: int = 64
    """The smallest anonymity set that is accepted: devices in the roster, and among the survivors."""
    most_colluding: int | None = None
    """How many devices of the whole fleet may collude: rosters that withstand fewer are refused. A malicious
    coordinator chooses the size of a roster, down to the plan's minimum: *strict* withstands 101 of 300, and 21 of 64.
    None: the number that rosters of the plan's sizes withstand is accepted."""
    largest_norm: float | None = None
    """The widest L2 clip accepted. None: any."""
    largest_range: float | None = None
    """The widest range of a coordinate accepted."""
    largest_weight_cap: int | None = None
    """The highest weight cap accepted."""
    smallest_sigma: int = 80
    """Fewest bits of secrecy accepted in a *fast* round. A coordinator can try as many memberships of a roster as it
    can compute, and 2^g tries cost g bits: with 80, a coordinator that tries 2^40 still faces 40 bits."""
    smallest_corrupt_millionths: int = 100_000
    """The smallest colluding fraction that a *fast* round must withstand. The bits of secrecy hold only against that
    many colluders; with a fraction of 0, any two of them can break the graph."""
    rekey_pause_s: float = 10.0
    """Seconds between two advertisements on one checkpoint, at least."""
    most_fast_tries: int = 8
    """Most advertisements on one checkpoint in *fast* rounds: each gives the coordinator a new nonce with which it can
    try memberships."""
    longest_life_s: float = 7 * 86_400
    """How far ahead an attempt's expiry may lie: until then the device keeps the attempt's secrets."""
    strict_only: bool = False
    """Refuse *fast* rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the device expects in the header: from its assignment, its plan, its training, and the authority's
    revocation list."""

    run: str
    round: int
    model: bytes
    """SHA-256 of the checkpoint that it trained from."""
    plan: bytes
    """SHA-256 of the plan that it agreed to."""
    terms: Terms
    """That plan's terms of secure rounds, as the device received them with the assignment."""
    learner: str
    dimension: int
    """Values that it encoded."""
    codec: str
    codec_version: int
    revocations: int
    """Counter of the revocation list by which the device checks certificates: signed by the authority, fetched before
    the attempt."""
    revocations_digest: bytes
    """Its SHA-256."""


def require_terms(terms: Terms, policy: SecurePolicy) -> None:
    """Raise Refusal where the owner's bounds exclude rounds of these terms."""
    if terms.minimum_cohort < policy.smallest_cohort:
        raise Refusal(
            f"This device hides among {policy.smallest_cohort} or more; the plan asks for {terms.minimum_cohort}."
        )
    for what, bound, wanted in (
        ("an L2 clip", policy.largest_norm, terms.max_norm),
        ("a range", policy.largest_range, terms.max_abs),
        ("a weight cap", policy.largest_weight_cap, terms.weight_cap),
    ):
        if bound is not None and wanted > bound:
            raise Refusal(f"This device's owner allows {what} of at most {bound:g}; the plan asks for {wanted:g}.")
    rule = terms.rule
    if rule.profile != "fast":
        return
    if policy.strict_only:
        raise Refusal("This device's owner allows strict secure rounds only, and this one is fast.")
    if rule.sigma < policy.smallest_sigma:
        raise Refusal(f"This device wants {policy.smallest_sigma} bits of secrecy; the plan asks for {rule.sigma}.")
    if rule.corrupt_millionths < policy.smallest_corrupt_millionths:
        raise Refusal(
            f"This device wants secrecy against {policy.smallest_corrupt_millionths / 10_000:g} % who collude; "
            f"the plan counts on {rule.corrupt_millionths / 10_000:g} %."
        )


def require_agreed(header: AttemptHeader, expected: Expected, policy: SecurePolicy, memory: Memory) -> None:
    """Raise Refusal unless ``header`` is of the round that the device trained for, has the terms that it and its owner
    agreed to, and names a revocation list that is not older than one that it has seen."""
    for what, here, there in (
        ("run", expected.run, header.run),
        ("round", expected.round, header.round),
        ("checkpoint", expected.model, header.model),
        ("plan", expected.plan, header.plan),
        ("number of values", expected.dimension, header.dimension),
        ("codec", expected.codec, header.codec),
        ("codec's version", expected.codec_version, header.codec_version),
    ):
        if here != there:
            raise Refusal(f"The header names another {what} than this device trained for.")
    if header.terms != expected.terms:
        raise Refusal("The header has other terms than the plan that this device agreed to.")
    require_terms(header.terms, policy)
    if header.revocations < memory.revocations:
        raise Refusal(f"The header's revocation list is older than number {memory.revocations}, which was seen.")


def require_consent(header: AttemptHeader, expected: Expected, policy: SecurePolicy, memory: Memory, at: float) -> None:
    """Raise Refusal unless the device may now (``at``: Unix seconds) advertise for a new attempt under ``header``, to
    which it agreed; SpentOnCheckpoint where it never may on this checkpoint."""
    if header.model in memory.spent:
        raise SpentOnCheckpoint
    if (header.revocations, header.revocations_digest) != (expected.revocations, expected.revocations_digest):
        raise Refusal(
            f"The header names another revocation list, number {header.revocations}, than this device has, "
            f"number {expected.revocations}."
        )
    require_time(header, at)
    if header.expires_at > at + policy.longest_life_s:
        raise Refusal(f"This attempt would live for longer than {policy.longest_life_s:g} s.")
    tries = memory.tries.get(header.model)
    if tries is None:
        return
    if (header.round, header.attempt) <= (tries.round, tries.attempt):
        raise Refusal("This attempt is no newer than the one that this device last advertised for: a replay.")
    if header.rule.profile == "fast" and tries.count >= policy.most_fast_tries:
        raise Refusal(f"This device advertised {tries.count} times on this checkpoint, the most that it does.")
    wait_s = tries.last_at + policy.rekey_pause_s - at
    if wait_s > 0:
        raise Refusal("This device advertised on this checkpoint a moment ago.", retry_s=wait_s)


def withstood(rule: GraphRule, n: int) -> int:
    """How many colluding devices a roster of ``n`` withstands. In *strict*, C of them can make two lists with t
    signatures each, or rebuild both secrets of one device, only where 2t <= n + C; *fast* states its fraction."""
    if rule.profile == "strict":
        return 2 * rule.parameters(n).threshold - n - 1
    return rule.corrupt_millionths * n // 1_000_000


def require_withstood(rule: GraphRule, n: int, policy: SecurePolicy) -> None:
    """Raise Refusal where a roster of ``n`` withstands fewer colluding devices than the owner requires."""
    if policy.most_colluding is not None and withstood(rule, n) < policy.most_colluding:
        raise Refusal(
            f"This device wants secrecy against {policy.most_colluding} colluding devices; "
            f"a roster of {n} withstands {withstood(rule, n)}."
        )


def require_time(header: AttemptHeader, at: float) -> None:
    """Raise Refusal where the attempt has expired."""
    if at > header.expires_at:
        raise Refusal("This attempt has expired.")


def plain_refusal(learners: frozenset[str], learner: str) -> str | None:
    """The reason why this device accepts no plan without secure rounds for ``learner``, where ``learners`` have taken
    part in secure rounds; None where it accepts one."""
    if learner in learners:
        return f"This device has joined secure rounds of {learner}; its owner alone can let it take a plain plan again."
    return None
