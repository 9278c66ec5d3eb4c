"""Resolves the credentials of a request to its caller, before anything else is done with the request.

Handlers get the caller and never see a token, so another kind of credentials changes this file alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow, WorkerRow


class Permission(Enum):
    """Who may make a request."""

    NOBODY = "nobody"
    """No credentials are needed: the caller has none yet."""
    DEVICE = "device"
    WORKER = "worker"
    OPERATOR = "operator"
    PEER = "device or worker"

    @property
    def needs_token(self) -> bool:
        return self in (Permission.DEVICE, Permission.WORKER, Permission.PEER)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator. Operators have no credentials yet: every peer that reaches the service on its loopback address is
    one."""


OPERATOR = Operator()
Caller = DeviceRow | WorkerRow | Operator | None


def identify(coordinator: Coordinator, permission: Permission, token: str) -> Caller:
    """Returns the caller that the token belongs to. ProblemError *unauthenticated* where no caller with this permission
    has the token.

    The token is ignored where none is needed.
    """
    match permission:
        case Permission.NOBODY:
            return None
        case Permission.OPERATOR:
            return OPERATOR
        case Permission.DEVICE:
            return coordinator.devices.authenticate(token)
        case Permission.WORKER:
            return coordinator.workers.authenticate(token)
        case Permission.PEER:
            return _peer(coordinator, token)
        case _:
            assert_never(permission)


def _peer(coordinator: Coordinator, token: str) -> Caller:
    """A worker where the token is a worker's, otherwise a device. An unknown token is refused as a device token."""
    try:
        return coordinator.devices.authenticate(token)
    except ProblemError:
        worker = coordinator.workers.known(token)
        if worker is None:
            raise
        return coordinator.workers.authenticate(token)
