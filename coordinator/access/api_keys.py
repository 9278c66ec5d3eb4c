"""API keys of operators: ``qk_<id>_<secret>``, stored as a hash, shown once, expiring, revocable.

The secret has 256 bits of chance, so a plain SHA-256 of it gives nothing away.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable

from client_sdk.protocol.access import CreateKey, KeyCreated, KeyView
from client_sdk.protocol.names import Page
from client_sdk.protocol.problems import problem
from coordinator.access.roles import Grant, Operator, Role, Scope
from coordinator.store.paging import page_of
from coordinator.store.port import ApiKeyRow, AuditRow, Store

PREFIX = "qk_"
_TEXT = re.compile(r"qk_([0-9a-f]{16})_([0-9a-f]{64})")


class ApiKeys:
    """The keys of one store. Only an owner creates and revokes them, within the own scope.

    ``now``: Unix seconds; ``entropy(n)``: n bytes that nobody can guess."""

    def __init__(self, store: Store, now: Callable[[], float], entropy: Callable[[int], bytes]) -> None:
        self._store = store
        self._now = now
        self._entropy = entropy

    def create(self, by: Operator, request: CreateKey) -> KeyCreated:
        """A new key. ProblemError *not-permitted* for a scope beyond the caller's."""
        grant = Grant(Role.named(request.role), Scope.parse(request.scope))
        if not by.may(Role.OWNER, grant.scope):
            raise problem("not-permitted", f"a key for {grant} is beyond what you may do: {by}")
        return self._insert(by.id, grant, request.label, request.expires_in_s)

    def create_owner(self, by: str, label: str) -> KeyCreated:
        """An owner's key for everything, which does not expire: the first one of a coordinator."""
        return self._insert(by, Grant(Role.OWNER, Scope.parse("*")), label, None)

    def listed(self, by: Operator, after: str = "", limit: int = 1000) -> Page[KeyView]:
        """The keys within the caller's scope, in order of id."""

        def show(row: ApiKeyRow) -> KeyView | None:
            return _view(row) if by.may(Role.OWNER, Scope.parse(row.scope)) else None

        return page_of(self._store.api_keys, lambda row: row.key, show, after, limit, hidden=True)

    def revoke(self, by: Operator, key: str) -> KeyView:
        """Revokes a key permanently. ProblemError *unknown-key*, also for one outside of the caller's scope."""
        row = self._store.api_key(key)
        if row is None or not by.may(Role.OWNER, Scope.parse(row.scope)):
            raise problem("unknown-key", f"there is no key {key} within your scope")
        with self._store.transaction() as tx:
            tx.revoke_api_key(key, self._now())
            row = tx.api_key(key) or row
        return _view(row)

    def operator(self, text: str) -> Operator:
        """The operator who has this key. ProblemError *unauthenticated* where it is unknown, revoked or expired."""
        found = _TEXT.fullmatch(text)
        row = None if found is None else self._store.api_key(found[1])
        if found is None or row is None or not hmac.compare_digest(row.secret_hash, hash_of(found[2])):
            raise problem("unauthenticated", "this API key is not valid here")
        return self._holder(row)

    def by_id(self, key: str) -> Operator:
        """The operator who has the key of this id, for what was made with it. ProblemError as above."""
        row = self._store.api_key(key)
        if row is None:
            raise problem("unauthenticated", f"there is no API key {key}")
        return self._holder(row)

    def _holder(self, row: ApiKeyRow) -> Operator:
        if row.revoked_at is not None:
            raise problem("unauthenticated", f"the API key {row.key} was revoked")
        if row.expires_at is not None and row.expires_at <= self._now():
            raise problem("unauthenticated", f"the API key {row.key} has expired; an owner creates another one")
        grant = Grant(Role.named(row.role), Scope.parse(row.scope))
        return Operator(f"key:{row.key}", (grant,), row.expires_at)

    def _insert(self, by: str, grant: Grant, label: str, lasts_s: float | None) -> KeyCreated:
        key, secret, now = self._entropy(8).hex(), self._entropy(32).hex(), self._now()
        row = ApiKeyRow(
            key=key,
            secret_hash=hash_of(secret),
            role=grant.role.text,
            scope=str(grant.scope),
            label=label,
            created_at=now,
            created_by=by,
            expires_at=None if lasts_s is None else now + lasts_s,
        )
        with self._store.transaction() as tx:
            tx.insert_api_key(row)
            detail = f"role={row.role} scope={row.scope} key={key} row={row.digest}"
            tx.insert_audit([AuditRow(run=None, at=now, by=by, action="key.create done", detail=detail)])
        return KeyCreated(**_view(row).model_dump(), text=f"{PREFIX}{key}_{secret}")


def hash_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _view(row: ApiKeyRow) -> KeyView:
    return KeyView.model_validate(row, from_attributes=True)
