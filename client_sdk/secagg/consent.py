"""What a device and its owner agree to before it shows a key: the header against the plan, the policy and the past.

Knows rules and gives each refusal's reason. Has never heard of keys, rosters or messages to come. No plan and no field
of the wire lowers anything here.
"""

from __future__ import annotations

from dataclasses import dataclass

from client_sdk.secagg.errors import Refusal
from client_sdk.secagg.header import Header
from client_sdk.secagg.memory import Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurePolicy:
    """The owner's bounds on secure rounds."""

    smallest_cohort: int = 64
    """Fewest devices among whom this one hides, in the roster and among the survivors."""
    largest_norm: float | None = None
    """The widest L2 clip accepted. None: any."""
    largest_range: float | None = None
    """The widest range of a coordinate accepted."""
    largest_weight_cap: int | None = None
    """The highest weight cap accepted."""
    smallest_sigma: int = 40
    """Fewest bits of secrecy accepted of a *fast* round."""
    rekey_pause_s: float = 10.0
    """Seconds between two advertisements on one checkpoint, at least."""
    most_fast_tries: int = 8
    """Most advertisements on one checkpoint in *fast* rounds: a coordinator that tries memberships until the graph
    suits it gains at most log2 of this in bits."""
    strict_only: bool = False
    """Refuse *fast* rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the device knows of the round from elsewhere: its assignment, its plan, and what it trained."""

    run: str
    round: int
    model: bytes
    """SHA-256 of the checkpoint that it trained from."""
    plan: bytes
    """SHA-256 of the plan that it agreed to."""
    learner: str
    dimension: int
    """Values that it encoded."""
    codec: str
    codec_version: int


def require_consent(header: Header, expected: Expected, policy: SecurePolicy, memory: Memory, at: float) -> None:
    """Refusal unless the device may advertise a fresh attempt under ``header`` now (``at``: Unix seconds)."""
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
    if header.minimum_cohort < policy.smallest_cohort:
        raise Refusal(
            f"This device hides among {policy.smallest_cohort} or more; the plan asks for {header.minimum_cohort}."
        )
    for what, bound, asked in (
        ("an L2 clip", policy.largest_norm, header.max_norm),
        ("a range", policy.largest_range, header.max_abs),
        ("a weight cap", policy.largest_weight_cap, header.weight_cap),
    ):
        if bound is not None and asked > bound:
            raise Refusal(f"This device's owner allows {what} of at most {bound:g}; the plan asks for {asked:g}.")
    _require_profile(header, policy)
    _require_past(header, policy, memory, at)


def _require_profile(header: Header, policy: SecurePolicy) -> None:
    if header.rule.profile == "fast":
        if policy.strict_only:
            raise Refusal("This device's owner allows strict secure rounds only, and this one is fast.")
        if header.rule.sigma < policy.smallest_sigma:
            raise Refusal(
                f"This device wants {policy.smallest_sigma} bits of secrecy; the plan asks for {header.rule.sigma}."
            )


def _require_past(header: Header, policy: SecurePolicy, memory: Memory, at: float) -> None:
    if header.model in memory.spent:
        raise Refusal("This device has signed a survivor list on this checkpoint and is spent there.")
    if header.revocations < memory.revocations:
        raise Refusal(f"The header's revocation list is older than number {memory.revocations}, which was seen.")
    require_time(header, at)
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


def require_time(header: Header, at: float) -> None:
    """Refusal where the attempt has expired."""
    if at > header.expires_at:
        raise Refusal("This attempt has expired.")


def plain_refusal(memory: Memory, learner: str) -> str | None:
    """Why this device takes no plain plan for ``learner``; None where it does."""
    if learner in memory.learners:
        return f"This device has joined secure rounds of {learner}; its owner alone can let it take a plain plan again."
    return None
