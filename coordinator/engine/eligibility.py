"""Whether a waiting device may work for a run, and if not, why, in a sentence for its owner."""

from __future__ import annotations

import json
from functools import lru_cache

from client_sdk.device.policy import privacy_refusal, terms_refusal, under_masks
from client_sdk.device.strategies import keeps_of, lacks_half
from client_sdk.protocol.devices import CheckIn, Policy, PrivacyTerms, Task
from client_sdk.protocol.secure import SECURE_VERSION
from client_sdk.secagg.header import Terms, withstood
from coordinator.engine.plan import Plan


def offer_of(check_in: CheckIn) -> str:
    """What decides eligibility, as canonical JSON: devices with the same learners, policy and version of
    the secure protocol give the same string."""
    halves = tuple(sorted(check_in.strategies.items()))
    return _canonical(tuple(sorted(check_in.learners.items())), halves, check_in.policy, check_in.secure)


def reason_against(
    task: Task,
    offer: str,
    terms: Terms | None = None,
    half: tuple[str, str] | None = None,
    privacy: PrivacyTerms | None = None,
) -> str | None:
    """None when a device with this offer may do the task; else one sentence. ``terms``: those of the plan's secure
    rounds; None: its rounds with devices are plain. ``half``: name and version of the strategy of which devices run a
    half. ``privacy``: what the plan says of its noise; None: it has none."""
    learners, halves, policy, secure = _parsed(offer)
    have = learners.get(task.learner)
    if have is None:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(learners.items())) or "none"
        return f"{lacks_learner(task.learner)} (it offers: {listed})"
    if task.learner_version is not None and have != task.learner_version:
        return f"the plan wants {task.learner} {task.learner_version}; this device has {have}"
    if policy.learners is not None and task.learner not in policy.learners:
        return f"the device's policy does not allow the learner {task.learner}"
    if half is not None and halves.get(half[0]) != half[1]:
        return lacks_half(*half, halves)
    if half is not None and policy.max_state_bytes == 0 and keeps_of(half[0]) != "nothing":
        return f"the strategy {half[0]} keeps a state on devices, which the device's policy does not allow"
    if terms is None and policy.secure_only:
        return "the device's policy allows rounds with secure aggregation only; this run's rounds are plain"
    if terms is None and policy.plain is not None and task.learner not in policy.plain:
        return f"the device has joined secure rounds, and its owner lets no data go in clear for {task.learner}"
    if terms is not None and secure != SECURE_VERSION:
        speaks = f"version {secure}" if secure else "none"
        return f"the plan's rounds take version {SECURE_VERSION} of the secure protocol; this device speaks {speaks}"
    refused = None if terms is None else terms_refusal(terms, policy)
    if refused is not None:
        return f"the device's policy excludes the plan's secure rounds: {refused}"
    refused = privacy_refusal(privacy, policy, under_masks(terms))
    if refused is not None:
        return f"the device's policy excludes the plan: {refused}"
    if policy.max_epochs is not None and task.epochs is not None and task.epochs > policy.max_epochs:
        return f"the plan asks for {task.epochs} epochs; the device's policy allows {policy.max_epochs}"
    return None


def rests(run: str, version: int, offer: str) -> str | None:
    """Why the device takes no part in this run while its model has this version; None: it does."""
    until = dict(_parsed(offer)[2].rests).get(run, 0)
    if 0 <= until <= version:
        return None
    if until < 0:
        return "the device declines this run"
    return f"the device declines this run until version {until}, or for a time if its training has failed"


def lacks_learner(learner: str) -> str:
    return f"the plan wants the learner {learner}, which this device does not have"


def fewest_examples(plan: Plan, offer: str) -> int:
    """How many examples a device with this offer must say it has. 0: it says none (``Policy.tells_size``), and the
    plan does not ask for it."""
    cohort = plan.cohort
    _, _, policy, _ = _parsed(offer)
    asked = plan.secure is None or cohort.asks_size
    return cohort.min_examples if asked or policy.tells_size else 0


def withstands_too_few(plan: Plan, offer: str) -> str | None:
    """Why groups of no size that the plan's rounds can have are enough for the owner of a device with this offer; None
    where some are. In *strict* one device more may withstand fewer, never three more."""
    secure, (_, _, policy, _) = plan.secure, _parsed(offer)
    wanted = None if policy.secure is None else policy.secure.most_colluding
    if secure is None or wanted is None:
        return None
    largest = -(-secure.most_advertisers(plan.cohort) // secure.groups)
    least = max(largest - 2, secure.fewest_advertisers(plan.cohort) // secure.groups)
    most = max(withstood(secure.rule, size) for size in range(least, largest + 1))
    if most >= wanted:
        return None
    return f"the device wants secrecy against {wanted} colluding devices; groups of the plan withstand {most} at most"


@lru_cache(maxsize=1024)
def _canonical(
    learners: tuple[tuple[str, str], ...], halves: tuple[tuple[str, str], ...], policy: Policy, secure: int
) -> str:
    body: dict[str, object] = {"learners": dict(learners), "policy": policy.model_dump(mode="json")}
    if halves:
        body["strategies"] = dict(halves)
    if secure:
        body["secure"] = secure
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _parsed(offer: str) -> tuple[dict[str, str], dict[str, str], Policy, int]:
    """Cached: a fleet has few different offers, and each is checked whenever the pool is read."""
    parsed = json.loads(offer)
    return (
        parsed["learners"],
        parsed.get("strategies", {}),
        Policy.model_validate(parsed["policy"]),
        parsed.get("secure", 0),
    )
