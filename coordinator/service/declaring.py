"""Each route of the service declares who may ask for it. A route that does not stops the service from being made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from starlette.routing import BaseRoute

from coordinator.requests import Permission

R = TypeVar("R", bound=BaseRoute)
_NAME = "quorate_declaration"


class Declaration(NamedTuple):
    permission: Permission
    scoped: bool
    """Whether a request that names no run shows and takes only what is in the caller's scope."""


class UndeclaredRoute(Exception):
    """A route does not say who may ask for it."""


def declared(route: R, permission: Permission, *, scoped: bool = False) -> R:
    """Returns the route, which declares its permission."""
    setattr(route, _NAME, Declaration(permission, scoped))
    return route


def declaration(route: BaseRoute) -> Declaration:
    """Returns what the route declares. UndeclaredRoute where it declares nothing."""
    found = getattr(route, _NAME, None)
    if not isinstance(found, Declaration):
        raise UndeclaredRoute(f"{getattr(route, 'path', route)} does not declare who may ask for it")
    return found


def require_declarations(routes: Iterable[BaseRoute]) -> None:
    """UndeclaredRoute where one of them declares nothing."""
    for route in routes:
        declaration(route)
