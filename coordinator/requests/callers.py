"""Who is asking: a request's credentials become a caller before anything else is done with it.

Handlers are given the caller and never see a token, so another kind of credentials is a change of this file alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from client_sdk.protocol.problems import ProblemError
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.port import DeviceRow, WorkerRow


class Permission(Enum):
    """Who may make a request."""

    NOBODY = "nobody"
    """No credentials are needed: whoever asks has none yet."""
    DEVICE = "device"
    WORKER = "worker"
    OPERATOR = "operator"
    PEER = "device or worker"

    @property
    def needs_token(self) -> bool:
        return self in (Permission.DEVICE, Permission.WORKER, Permission.PEER)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator. Operators have no credentials yet: whoever reaches the service on its loopback address is one."""


OPERATOR = Operator()
Caller = DeviceRow | WorkerRow | Operator | None


def identify(coordinator: Coordinator, permission: Permission, token: str) -> Caller:
    """The caller that the token stands for; ProblemError *unauthenticated* where it stands for none that may ask.

    The token is not looked at where none is needed.
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


def _peer(coordinator: Coordinator, token: str) -> Caller:
    """A device, or a worker where the token is no device's. A token that is nobody's is refused as a device's."""
    try:
        return coordinator.devices.authenticate(token)
    except ProblemError:
        worker = coordinator.workers.known(token)
        if worker is None:
            raise
        return coordinator.workers.authenticate(token)
