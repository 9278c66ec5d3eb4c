"""Resolves the credentials of a request to its caller, and refuses what the caller may not do, before anything else is
done with the request.

::

    a signature (Arrived)  --check_credentials-->  SignedBy  --identify-->  a device or a worker
    a signature of a registration                  Registrant              the same: who registers
    a bearer token (str)                           the token               an operator

Handlers get the caller and never see credentials, so another kind of credentials changes this file alone.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, assert_never

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.errors import BadCredential
from client_sdk.protocol.devices import Registration
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import WorkerRegistration
from coordinator.access import EVERYTHING, Operator, Role
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import Registrant, SignedBy
from coordinator.runtime.signing import Arrived
from coordinator.store.port import DeviceRow, WorkerRow


class Permission(Enum):
    """Who may make a request."""

    NOBODY = "nobody"
    """No credentials are needed: the answer is for everybody."""
    CERTIFIED = "holder of a certificate"
    """Who registers: the authority has certified the key that signs, and the coordinator need not know it yet."""
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
    def needs_signature(self) -> bool:
        """Whether the request must be signed by a certified key."""
        return self in (Permission.CERTIFIED, Permission.DEVICE, Permission.WORKER)

    @property
    def role(self) -> Role | None:
        """The lowest role of an operator who has this permission; None where it is not one of operators."""
        return _ROLES.get(self)

    @property
    def of_peers(self) -> bool:
        """Whether devices or workers make it."""
        return self.needs_signature or self is Permission.PEER

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
Caller = DeviceRow | WorkerRow | Operator | Registrant | None
Credentials = SignedBy | Registrant | str
"""Who has signed the request, or the text after *Bearer*: an API key, or a token of the issuer; or the text of a
browser's session. Empty: none of them."""

_REGISTRATIONS: dict[type, HolderClass] = {Registration: "device", WorkerRegistration: "worker"}
_NOT_LET_IN = (401, 403)
"""Statuses of refusals for who asks, not for when."""
_UNSIGNED = "Sign this request with the key that the authority has certified (RFC 9421)."


def check_credentials(
    coordinator: Coordinator, permission: Permission, arrived: Arrived | str, message: Any
) -> Credentials:
    """Checks the signature of a request; of one that registers, with the certificate in its ``message``. Bearer tokens
    are passed on. ProblemError: see ``SignedRequests``; the audit has a refused registration."""
    if isinstance(arrived, str):
        return arrived
    if permission is not Permission.CERTIFIED:
        return coordinator.signed.check(
            arrived.signature,
            method=arrived.method,
            uri=arrived.uri,
            at=arrived.at,
            result=arrived.result,
            sha256=arrived.sha256,
        )
    try:
        return _registrant(coordinator, arrived, message)
    except ProblemError as error:
        if error.status in _NOT_LET_IN:
            coordinator.access.audit.refused("", "registration", error.problem.detail)
        raise


def _registrant(coordinator: Coordinator, arrived: Arrived, message: Any) -> Registrant:
    try:
        certificate = Certificate.parse(bytes.fromhex(message.certificate))
    except BadCredential as error:
        raise problem("not-certified", str(error)) from None
    coordinator.signed.check_registration(
        arrived.signature,
        certificate,
        _REGISTRATIONS[type(message)],
        method=arrived.method,
        uri=arrived.uri,
        at=arrived.at,
        sha256=arrived.sha256,
    )
    return Registrant(certificate)


def identify(
    coordinator: Coordinator,
    permission: Permission,
    credentials: Credentials,
    *,
    run: str | None = None,
    scoped: bool = False,
) -> Caller:
    """Returns the caller whom the checked credentials belong to. They are ignored where none are needed.

    Of an operator the scope must include the ``run`` that the request names. A request that names none needs the
    scope of everything, unless it is ``scoped``: then it shows and takes only what is in the caller's scope.

    ProblemError *unauthenticated* where no caller has the credentials, *not-permitted* where the operator's role or
    scope does not reach so far, *issuer-unreachable*, and those of ``Identities`` for devices and workers.
    """
    match permission:
        case Permission.NOBODY:
            return None
        case Permission.CERTIFIED:
            if isinstance(credentials, Registrant):
                return credentials
        case Permission.DEVICE:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.device(credentials)
        case Permission.WORKER:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.worker(credentials)
        case Permission.PEER:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.peer(credentials)
            if isinstance(credentials, str):
                return _operator(coordinator, permission, credentials, run, scoped)
        case Permission.VIEWER | Permission.OPERATOR | Permission.OWNER:
            if isinstance(credentials, str):
                return _operator(coordinator, permission, credentials, run, scoped)
        case _:
            assert_never(permission)
    raise problem("unauthenticated", _UNSIGNED if permission.needs_signature else "Send an operator's API key.")


def caller_id(caller: Caller) -> str:
    """The id of who asks, for the audit; empty: nobody."""
    match caller:
        case DeviceRow():
            return caller.device
        case WorkerRow():
            return caller.worker
        case Operator():
            return caller.id
        case Registrant():
            return caller.certificate.id
        case None:
            return ""
        case _:
            assert_never(caller)


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
