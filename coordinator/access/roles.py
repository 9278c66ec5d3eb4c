"""Roles, scopes, and an operator who has them. Pure.

A role says what an operator may do, a scope with which runs. An operator has one grant or several: whoever has one key
has one, and a person with several groups at an issuer has one of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from client_sdk.protocol.access import SCOPE_PATTERN, LoginWay, RoleName


class Role(IntEnum):
    """Each role may do what a lower one may."""

    VIEWER = 1
    OPERATOR = 2
    OWNER = 3

    @classmethod
    def named(cls, name: str) -> Role:
        """ValueError, in a sentence, for a name that no role has."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"{name!r} is no role: roles are viewer, operator and owner") from None

    @property
    def text(self) -> RoleName:
        return cast("RoleName", self.name.lower())


@dataclass(frozen=True, slots=True)
class Scope:
    """Runs by their names: all of them, those that begin with a prefix, or one."""

    prefix: str
    exact: bool = False

    @classmethod
    def parse(cls, text: str) -> Scope:
        """``*``, ``mnist-*`` or ``mnist``. ValueError for another text."""
        if re.fullmatch(SCOPE_PATTERN, text) is None:
            raise ValueError(f"{text!r} is no scope: give '*', a run's name, or the beginning of names and '*'")
        return cls(text[:-1]) if text.endswith("*") else cls(text, exact=True)

    def __str__(self) -> str:
        return self.prefix if self.exact else f"{self.prefix}*"

    def __contains__(self, run: str) -> bool:
        return run == self.prefix if self.exact else run.startswith(self.prefix)

    def includes(self, other: Scope) -> bool:
        """Whether every run of the other one is in this one."""
        if self.exact:
            return other == self
        return other.prefix.startswith(self.prefix)


EVERYTHING = Scope("")


@dataclass(frozen=True, slots=True)
class Grant:
    role: Role
    scope: Scope

    @classmethod
    def parse(cls, text: str) -> Grant:
        """``owner``, or with a scope ``operator mnist-*``. ValueError for another text."""
        role, _, scope = text.partition(" ")
        return cls(Role.named(role), Scope.parse(scope.strip() or "*"))

    def __str__(self) -> str:
        return f"{self.role.text} {self.scope}"


@dataclass(frozen=True, slots=True)
class Operator:
    """The caller of a request, with what it may do."""

    id: str
    """For the audit: ``key:<id of the key>``, ``oidc:<subject>``, or who acts inside this process."""
    grants: tuple[Grant, ...]
    expires_at: float | None = None
    """When its credentials expire, in Unix seconds. None: they do not."""
    by: LoginWay = "key"
    """What its credentials are: an API key, the issuer's token, or those of this machine."""
    session: str = ""
    """The id of the session by whose cookie it asks; empty: by other credentials."""

    def has(self, role: Role) -> bool:
        """Whether it has the role for any run."""
        return any(grant.role >= role for grant in self.grants)

    def may(self, role: Role, scope: Scope) -> bool:
        """Whether one grant gives the role for all runs of the scope."""
        return any(grant.role >= role and grant.scope.includes(scope) for grant in self.grants)

    def may_with(self, role: Role, run: str) -> bool:
        """Whether it has the role for this run."""
        return any(grant.role >= role and run in grant.scope for grant in self.grants)

    def sees(self, run: str) -> bool:
        """Whether the run is in scope, in whatever role."""
        return self.may_with(Role.VIEWER, run)

    @property
    def sees_everything(self) -> bool:
        return self.may(Role.VIEWER, EVERYTHING)

    def __str__(self) -> str:
        return ", ".join(map(str, self.grants))


LOCAL_OWNER = Operator("this process", (Grant(Role.OWNER, EVERYTHING),), by="local")
"""Who drives a coordinator in its own process: the simulator, the fault explorer, tests."""
