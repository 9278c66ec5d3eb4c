"""The plan's terms of secure rounds, as an assignment carries them, and what binds its devices to one task. Errors:
BadParameters.

The header's ``plan`` is ``agreed_digest``, over the plan's digest, the task, the weighting and the roles: otherwise a
coordinator could give one device the task and all others a learning rate of almost nothing, under one digest, and the
sum would be one device's update. The whole plan is not sent, since it has what operators may keep to themselves. One
weight cap, the plan's, holds for all; a cap by device would do the same as another task. Deadlines cannot be bound, so
a device masks no work that was cut short.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from client_sdk.protocol.canonical import canonical, named
from client_sdk.protocol.devices import Task
from client_sdk.protocol.secure import SecureTask
from client_sdk.secagg.header import GraphRule, Terms
from client_sdk.secagg.statement import DOMAIN


def terms_of(task: SecureTask) -> Terms:
    """The terms in an assignment. BadParameters where they are inconsistent, or name what this SDK does not know."""
    rule = GraphRule(
        profile=task.profile,
        drop=task.drop,
        corrupt_millionths=task.corrupt_millionths,
        sigma=task.sigma,
        eta=task.eta,
    )
    return Terms(
        q=task.q,
        max_norm=task.max_norm,
        max_abs=task.max_abs,
        weight_cap=task.weight_cap,
        rule=rule,
        minimum_cohort=task.minimum_cohort,
        statistics=task.statistics,
    )


def task_of(terms: Terms, *, weighting: Literal["examples", "equal"] = "examples") -> SecureTask:
    """What an assignment carries of these terms."""
    rule = terms.rule
    return SecureTask(
        q=terms.q,
        max_norm=terms.max_norm,
        max_abs=terms.max_abs,
        weight_cap=terms.weight_cap,
        weighting=weighting,
        profile=rule.profile,
        drop=rule.drop,
        corrupt_millionths=rule.corrupt_millionths,
        sigma=rule.sigma,
        eta=rule.eta,
        minimum_cohort=terms.minimum_cohort,
        statistics=terms.statistics,
    )


def agreed_digest(
    plan_digest: str, task: Task, weighting: Literal["examples", "equal"], roles_digest: str = ""
) -> bytes:
    """SHA-256 of what all devices of one sum agreed to, as the header names it (``AttemptHeader.plan``): the digest of
    the plan, and the task, the weighting and the roles of tensors that each received with its assignment.

    A device does not see the plan behind its digest. Without the task in it, a coordinator could give one device the
    plan's task and all others one that changes nothing: the sum would be that device's update.
    """
    said: dict[str, object] = {"task": named(task), "weighting": weighting}
    said |= {"roles": roles_digest} if roles_digest else {}
    return hashlib.sha256(DOMAIN + b"agreed" + bytes.fromhex(plan_digest) + canonical(said)).digest()
