"""Checks an assignment against the policy of the device's owner, before anything is trained.

The reasons are sentences, the same for log, record and coordinator.
"""

from __future__ import annotations

from math import ceil

from client_sdk import codecs
from client_sdk.device.strategies import lacks_half
from client_sdk.privacy.accounting import epsilon_of, rho_of, rho_under_masks
from client_sdk.protocol.devices import NO_BOUNDS, Assignment, CheckIn, Policy, PrivacyTerms, Task, rounded_size
from client_sdk.protocol.secure import SECURE_VERSION, SecureBounds, SecureTask
from client_sdk.secagg.consent import SecurePolicy, plain_refusal, require_terms, said_of_sums
from client_sdk.secagg.errors import BadParameters, Refusal
from client_sdk.secagg.header import Terms, terms_of


def refusal(assignment: Assignment, offer: CheckIn) -> str | None:
    """Why this device refuses this work, in one sentence; None where it accepts.

    ``offer`` is the device's check-in: its learners, its policy, its number of examples. A coordinator that reads
    check-ins does not assign such work; the device checks all the same, since no message may widen its policy."""
    task, policy = assignment.task, offer.policy
    if policy.learners is not None and task.learner not in policy.learners:
        allowed = ", ".join(policy.learners) or "none"
        return f"This device's owner allows these learners only: {allowed}. The plan wants {task.learner}."
    lacking = learner_refusal(task, offer.learners) or _strategy_refused(task, offer)
    if lacking is None:
        lacking = privacy_refusal(assignment.privacy, policy, under_masks(assignment.secure))
    if lacking is not None:
        return lacking
    how = _plain_refused(task, policy) if assignment.secure is None else secure_refusal(assignment.secure, policy)
    if how is None and assignment.secure is not None:
        how = work_refusal(task, secure_policy(policy), offer.examples)
    if how is not None:
        return how
    masked = assignment.secure is not None
    epochs = epochs_asked(task, _least(offer.examples, secure_policy(policy)) if masked else offer.examples)
    if policy.max_epochs is not None and epochs > policy.max_epochs:
        wanted = f"{epochs} epochs"
        if task.steps is not None:
            wanted = f"{task.steps} steps, " + ("which may be more" if masked else f"{wanted} of its data")
        return f"This device's owner allows {policy.max_epochs} epochs a round; the plan asks for {wanted}."
    try:
        if assignment.secure is None:
            codecs.get(task.codec)
        else:
            codecs.linear(task.codec)
    except ValueError as error:
        return f"This device cannot encode as the plan asks: {error}"
    return None


def _strategy_refused(task: Task, offer: CheckIn) -> str | None:
    """Why this device trains by no such strategy; None where it does, or the task has none."""
    wanted = task.strategy
    if wanted is None:
        return None
    if offer.strategies.get(wanted.name) != wanted.version:
        lacks = lacks_half(wanted.name, wanted.version, offer.strategies)
        return f"{lacks[0].upper()}{lacks[1:]}."
    if wanted.keeps != "nothing" and offer.policy.max_state_bytes == 0:
        return f"This device's owner allows no state, and the strategy {wanted.name} keeps one."
    return None


def privacy_refusal(terms: PrivacyTerms | None, policy: Policy, masked: float | None) -> str | None:
    """Why this device's owner allows no round with this noise, whatever its data have lost so far; None where one is
    allowed. What they have lost is in ``data_ledger``. ``masked``: see ``under_masks``."""
    bounds, cost = policy.privacy or NO_BOUNDS, cost_of(terms, masked)
    if (least := bounds.private_only) is not None and (masked is None or masked < least):
        return f"This device's owner allows rounds only in which devices add noise of {least:g} x clip themselves."
    if bounds.most_epsilon is None:
        return None
    if cost is None:
        return "This device's owner allows rounds with noise only, since nothing bounds what others tell."
    if (epsilon := epsilon_of(cost, bounds.delta)) > bounds.most_epsilon:
        return (
            f"This device's owner allows epsilon {bounds.most_epsilon:g} at delta {bounds.delta:g} in all; one round "
            f"of this plan costs {epsilon:.4g}."
        )
    return None


def under_masks(task: SecureTask | Terms | None) -> float | None:
    """The noise multiplier of what the devices of a secure round add themselves, by the terms that they hold each
    header against; 0 where they add none. None: the round is plain."""
    return None if task is None else task.noise


def cost_of(terms: PrivacyTerms | None, masked: float | None) -> float | None:
    """The zCDP of one answer; None: nothing bounds what it tells. In a secure round no noise of the coordinator does,
    which sees the sum before: only that of the devices. ``masked``: see ``under_masks``."""
    if masked is not None:
        return rho_under_masks(masked) if masked else None
    return None if terms is None else rho_of(terms.noise, 1)


def refuses_partial(assignment: Assignment) -> bool:
    """Whether work that was cut short is of no use. In a secure round it never is, whatever the assignment says: with a
    deadline of its own for each device, a coordinator could choose whose update is nearly all of the sum."""
    return assignment.secure is not None or assignment.partial == "refuse"


def secure_refusal(task: SecureTask, policy: Policy) -> str | None:
    """Why this device joins no secure round of an assignment with these terms; None where it does."""
    try:
        terms = terms_of(task)
    except BadParameters as unknown:
        return f"This device's SDK cannot take part in this secure round: {unknown}."
    return terms_refusal(terms, policy)


def terms_refusal(terms: Terms, policy: Policy) -> str | None:
    """Why this device joins no secure round of a plan with these terms; None where it does. Checked before training,
    since the header comes only after it."""
    bounds = secure_policy(policy)
    if bounds.sums_made:
        return said_of_sums(bounds)
    try:
        require_terms(terms, bounds)
    except Refusal as refused:
        return str(refused)
    return None


def work_refusal(task: Task, bounds: SecureBounds, examples: int) -> str | None:
    """Why this device's owner lets no update of so little work into a sum; None where the work is enough.

    The sentence goes to the coordinator, which chooses the task: by what is refused of many tasks it could find the
    exact number of examples. So ``fewest_examples``, which is the owner's and does not change, is compared with that
    number, and all else holds for each number above it with the same ``rounded_size``: steps reach the largest of
    these, and the batch's share and the steps of an epoch are those of the smallest."""
    if examples < bounds.fewest_examples:
        return f"This device's owner lets no update of fewer than {bounds.fewest_examples} examples into a sum."
    least, most, batch = _least(examples, bounds), rounded_size(examples), task.batch_size
    if min(batch, least) > bounds.largest_batch * least:
        return (
            f"This device's owner allows {bounds.largest_batch:.0%} of its data in a batch at most; the plan's batch "
            f"of {batch} may be more."
        )
    if bounds.whole_passes and task.steps is not None and task.steps * batch < most:
        return (
            f"This device's owner allows whole passes only; the plan's {task.steps} steps may be less than one pass "
            "over its data."
        )
    if task.planned_steps(least) < bounds.fewest_steps:
        return f"This device's owner wants {bounds.fewest_steps} steps behind an update; the plan's work may be fewer."
    return None


def largest_batch(bounds: SecureBounds, examples: int) -> int:
    """The largest batch that ``work_refusal`` lets pass, of so many examples or more."""
    return max(1, int(bounds.largest_batch * _least(examples, bounds)))


def _least(examples: int, bounds: SecureBounds) -> int:
    """The smallest number of examples, of those that these bounds take, that has the ``rounded_size`` of this one."""
    return max(rounded_size(examples) // 2 + 1, bounds.fewest_examples)


def _plain_refused(task: Task, policy: Policy) -> str | None:
    if policy.secure_only:
        return "This device's owner allows rounds with secure aggregation only, and this round has none."
    return plain_refusal(policy.plain, task.learner)


def shown(offer: CheckIn) -> CheckIn:
    """What of a device's offer leaves it: the version of the secure protocol is added, and a device whose data goes in
    clear for no learner says no number of examples, which travels under masks alone (``Policy.tells_size``)."""
    known = {} if offer.policy.tells_size else {"examples": 0}
    return offer.changed(secure=SECURE_VERSION, **known)


def secure_policy(policy: Policy) -> SecurePolicy:
    """The owner's bounds, as ``client_sdk.secagg`` needs them."""
    return SecurePolicy() if policy.secure is None else SecurePolicy(**dict(policy.secure))


def learner_refusal(task: Task, learners: dict[str, str]) -> str | None:
    """Why none of these installed ``learners`` (name -> version) can do the task; None when one can."""
    installed = learners.get(task.learner)
    if installed is None:
        have = ", ".join(f"{name} {version}" for name, version in sorted(learners.items())) or "no learner at all"
        return f"This device has not got the learner {task.learner}; it has {have}."
    if task.learner_version is not None and installed != task.learner_version:
        return f"This device has {task.learner} {installed}; the plan wants {task.learner_version}."
    return None


def epochs_asked(task: Task, examples: int) -> int:
    """How many passes over ``examples`` the task begins: ``epochs``, or ``steps`` counted in passes, rounded up."""
    if task.steps is None:
        return task.epochs or 1
    return ceil(task.steps * min(task.batch_size, max(examples, 1)) / max(examples, 1))
