"""What a device and its owner agree to before it shows a key: the header against the plan, the policy and the past.

No plan and no field of the wire lowers anything here. Four questions, each asked as early as it can be answered:

- ``require_terms``: may the plan's secure rounds be joined at all? Before training, and again with every header.
- ``require_agreed``: is this header of the round, the plan and the terms that the device agreed to? Whenever an attempt
  begins or goes on.
- ``require_consent``: may the device advertise a fresh attempt under it now?
- ``require_withstood``: is the roster large enough for those who may collude?
"""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk.secagg.errors import Refusal, Spent
from client_sdk.secagg.header import Header, Rule, Terms
from client_sdk.secagg.memory import Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurePolicy:
    """The owner's bounds on secure rounds."""

    smallest_cohort: int = 64
    """Fewest devices among whom this one hides, in the roster and among the survivors."""
    most_colluding: int | None = None
    """How many devices of the whole fleet may collude: rosters that withstand fewer are refused. A lying coordinator
    chooses how large a roster is, down to the plan's minimum: *strict* withstands 101 of 300, and 21 of 64. None: what
    rosters of the plan's sizes withstand will do."""
    largest_norm: float | None = None
    """The widest L2 clip accepted. None: any."""
    largest_range: float | None = None
    """The widest range of a coordinate accepted."""
    largest_weight_cap: int | None = None
    """The highest weight cap accepted."""
    smallest_sigma: int = 80
    """Fewest bits of secrecy accepted of a *fast* round. A coordinator tries memberships of a roster by itself, as many
    as it can compute, and 2^g tries cost g bits: 80 leaves 40 of them to one that tries 2^40."""
    smallest_corrupt_millionths: int = 100_000
    """The smallest colluding fraction that a *fast* round must withstand: bits count only against so many colluders,
    and none of them means a graph that any two can break."""
    rekey_pause_s: float = 10.0
    """Seconds between two advertisements on one checkpoint, at least."""
    most_fast_tries: int = 8
    """Most advertisements on one checkpoint in *fast* rounds: each gives the coordinator a fresh nonce to try
    memberships with."""
    longest_life_s: float = 7 * 86_400
    """How far ahead an attempt's expiry may lie: until then the device keeps the attempt's secrets."""
    strict_only: bool = False
    """Refuse *fast* rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the device knows of the round from elsewhere: its assignment, its plan, what it trained, and the authority's
    list of who is revoked."""

    run: str
    round: int
    model: bytes
    """SHA-256 of the checkpoint that it trained from."""
    plan: bytes
    """SHA-256 of the plan that it agreed to."""
    terms: Terms
    """What that plan says of secure rounds, as it reached the device with the assignment."""
    learner: str
    dimension: int
    """Values that it encoded."""
    codec: str
    codec_version: int
    revocations: int
    """Counter of the list that the device has and vouches by: signed by the authority, fetched before the attempt."""
    revocations_digest: bytes
    """Its SHA-256."""


def require_terms(terms: Terms, policy: SecurePolicy) -> None:
    """Refusal where the owner's bounds exclude rounds of these terms."""
    if terms.minimum_cohort < policy.smallest_cohort:
        raise Refusal(
            f"This device hides among {policy.smallest_cohort} or more; the plan asks for {terms.minimum_cohort}."
        )
    for what, bound, asked in (
        ("an L2 clip", policy.largest_norm, terms.max_norm),
        ("a range", policy.largest_range, terms.max_abs),
        ("a weight cap", policy.largest_weight_cap, terms.weight_cap),
    ):
        if bound is not None and asked > bound:
            raise Refusal(f"This device's owner allows {what} of at most {bound:g}; the plan asks for {asked:g}.")
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


def require_agreed(header: Header, expected: Expected, policy: SecurePolicy, memory: Memory) -> None:
    """Refusal unless ``header`` is of the round that the device trained for, under the terms that it and its owner
    agreed to, and under a revocation list not older than one that it has seen."""
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


def require_consent(header: Header, expected: Expected, policy: SecurePolicy, memory: Memory, at: float) -> None:
    """Refusal unless the device may advertise a fresh attempt under ``header``, which it agreed to, now (``at``: Unix
    seconds); Spent where it never may on this checkpoint."""
    if header.model in memory.spent:
        raise Spent
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


def withstood(rule: Rule, n: int) -> int:
    """How many colluding devices a roster of ``n`` withstands: with C of them, two lists with t signatures each, or
    both secrets of one device, take 2t <= n + C in *strict*; *fast* says its fraction."""
    if rule.profile == "strict":
        return 2 * rule.parameters(n).threshold - n - 1
    return rule.corrupt_millionths * n // 1_000_000


def require_withstood(rule: Rule, n: int, policy: SecurePolicy) -> None:
    """Refusal where a roster of ``n`` withstands fewer colluding devices than the owner reckons with."""
    if policy.most_colluding is not None and withstood(rule, n) < policy.most_colluding:
        raise Refusal(
            f"This device wants secrecy against {policy.most_colluding} colluding devices; "
            f"a roster of {n} withstands {withstood(rule, n)}."
        )


def require_time(header: Header, at: float) -> None:
    """Refusal where the attempt has expired."""
    if at > header.expires_at:
        raise Refusal("This attempt has expired.")


def plain_refusal(learners: frozenset[str], learner: str) -> str | None:
    """Why this device takes no plain plan for ``learner``, where ``learners`` have taken part in secure rounds; None
    where it does."""
    if learner in learners:
        return f"This device has joined secure rounds of {learner}; its owner alone can let it take a plain plan again."
    return None
