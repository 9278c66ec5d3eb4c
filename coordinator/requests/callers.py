"""Resolves the credentials of a request to its caller, and refuses what the caller may not do, before anything else is
done with the request.

Handlers get the caller and never see credentials, so another kind of credentials changes this file alone.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access import EVERYTHING, Operator, Role
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow, WorkerRow


class Permission(Enum):
    """Who may make a request."""

    NOBODY = "nobody"
    """No credentials are needed: the caller has none yet, or the answer is for everybody."""
    DEVICE = "device"
    WORKER = "worker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"
    PEER = "device, worker or viewer"

    @property
    def needs_credentials(self) -> bool:
        return self is not Permission.NOBODY

    @property
    def role(self) -> Role | None:
        """The lowest role of an operator who has this permission; None where it is not one of operators."""
        return _ROLES.get(self)

    @property
    def of_operators(self) -> bool:
        """Whether it is for operators alone."""
        return self.role is not None and self is not Permission.PEER


_ROLES = {
    Permission.VIEWER: Role.VIEWER,
    Permission.OPERATOR: Role.OPERATOR,
    Permission.OWNER: Role.OWNER,
    Permission.PEER: Role.VIEWER,
}
Caller = DeviceRow | WorkerRow | Operator | None


def identify(
    coordinator: Coordinator,
    permission: Permission,
    credentials: str,
    *,
    run: str | None = None,
    scoped: bool = False,
) -> Caller:
    """Returns the caller whom the credentials belong to: a bearer token, or an API key. They are ignored where none are
    needed.

    Of an operator the scope must include the ``run`` that the request names. A request that names none needs the
    scope of everything, unless it is ``scoped``: then it shows and takes only what is in the caller's scope.

    ProblemError *unauthenticated* where no caller has the credentials, *not-permitted* where the operator's role or
    scope does not reach so far, *issuer-unreachable*.
    """
    match permission:
        case Permission.NOBODY:
            return None
        case Permission.DEVICE:
            return coordinator.devices.authenticate(credentials)
        case Permission.WORKER:
            return coordinator.workers.authenticate(credentials)
        case Permission.VIEWER | Permission.OPERATOR | Permission.OWNER:
            return _operator(coordinator, permission, credentials, run, scoped)
        case Permission.PEER:
            if coordinator.access.knows(credentials):
                return _operator(coordinator, permission, credentials, run, scoped)
            return _peer(coordinator, credentials)
        case _:
            assert_never(permission)


def _operator(
    coordinator: Coordinator, permission: Permission, credentials: str, run: str | None, scoped: bool
) -> Operator:
    operator = coordinator.access.operator(credentials)
    role = permission.role or Role.OWNER
    if not operator.has(role):
        detail = f"this needs the role {role.text}; you have: {operator}"
    elif run is not None and not operator.may_with(role, run):
        detail = f"run {run} is outside of your scope as {role.text}; you have: {operator}"
    elif run is None and not scoped and not operator.may(role, EVERYTHING):
        detail = f"this concerns all runs, so it needs the role {role.text} for '*'; you have: {operator}"
    else:
        return operator
    refusal = problem("not-permitted", detail)
    coordinator.access.audit.refused(operator.id, refusal.kind, detail)
    raise refusal


def _peer(coordinator: Coordinator, token: str) -> Caller:
    """A worker where the token is a worker's, otherwise a device. An unknown token is refused as a device token."""
    try:
        return coordinator.devices.authenticate(token)
    except ProblemError:
        worker = coordinator.workers.known(token)
        if worker is None:
            raise
        return coordinator.workers.authenticate(token)
