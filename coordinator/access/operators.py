"""Resolves an operator's credentials: an API key, a token of the OpenID Connect issuer, or a browser's session."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.api_keys import PREFIX, ApiKeys
from coordinator.access.audit import Audit
from coordinator.access.roles import Operator
from coordinator.access.sessions import PREFIX as SESSION_PREFIX
from coordinator.access.sessions import NewSession, Sessions
from coordinator.store.port import Store

if TYPE_CHECKING:
    from coordinator.access.code_flow import CodeFlow
    from coordinator.access.issuer import TokenIssuer

_MOST = 10_000
"""Tokens that are remembered as seen."""


class OperatorAccess:
    """Keys, issuer and audit of one coordinator. ``now``: Unix seconds."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        entropy: Callable[[int], bytes],
        issuer: TokenIssuer | None = None,
        code_flow: CodeFlow | None = None,
    ) -> None:
        self.keys = ApiKeys(store, now, entropy)
        self.audit = Audit(store, now)
        self.sessions = Sessions(store, now, entropy, self.keys, issuer, self.audit)
        self.code_flow = code_flow
        """How browsers log in at the issuer; None: they do not."""
        self._issuer = issuer
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[bytes, float] = {}

    def knows(self, bearer: str) -> bool:
        """Whether the text has the form of an operator's credentials. Tokens of devices and workers have another."""
        return bearer.startswith(PREFIX) or bearer.count(".") == 2

    def operator(self, bearer: str) -> Operator:
        """The operator who has these credentials. ProblemError *unauthenticated*, or *issuer-unreachable* where the
        issuer's keys cannot be read now."""
        try:
            if bearer.startswith(PREFIX):
                return self.keys.operator(bearer)
            if bearer.startswith(SESSION_PREFIX):
                return self.sessions.operator(bearer)
            if self._issuer is not None and bearer.count(".") == 2:
                return self._first_seen(bearer, self._issuer.operator(bearer))
            raise problem("unauthenticated", "send an operator's API key, or a token of this coordinator's issuer")
        except ProblemError as error:
            self.audit.refused("", error.kind, error.problem.detail)
            raise

    def log_in(self, open_session: Callable[[], NewSession]) -> NewSession:
        """Opens a session, or records that it was refused. ProblemError of ``open_session``."""
        try:
            return open_session()
        except ProblemError as error:
            self.audit.refused("", "login", error.problem.detail)
            raise

    def _first_seen(self, token: str, operator: Operator) -> Operator:
        """Records a login where this process sees the token for the first time."""
        now, name = self._now(), hashlib.sha256(token.encode()).digest()
        with self._lock:
            if name in self._seen:
                return operator
            if len(self._seen) >= _MOST:
                self._seen = {old: until for old, until in self._seen.items() if until > now}
            self._seen[name] = operator.expires_at or now
        self.audit.record(operator.id, "login", str(operator))
        return operator
