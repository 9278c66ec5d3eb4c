"""Who operators are, and what they may do: roles, scopes, API keys, tokens of an OpenID Connect issuer, the audit."""

from coordinator.access.audit import Audit
from coordinator.access.operators import OperatorAccess
from coordinator.access.roles import EVERYTHING, LOCAL_OWNER, Grant, Operator, Role, Scope

__all__ = ["EVERYTHING", "LOCAL_OWNER", "Audit", "Grant", "Operator", "OperatorAccess", "Role", "Scope"]
