"""Sessions of browsers, and links that are exchanged once for a session.

Both are rows of the store, so that they survive a restart and hold on every replica: ``qs_<id>_<secret>`` and
``ql_<id>_<secret>``, with 256 bits of chance, stored as a SHA-256. A session holds as long as what it was opened with:
each request looks for the key, or compares what the token's claim gives now.

A signed token in the cookie would need no row, but could not be ended. What a session may do is not stored, so a
revoked key ends it without a search. Using a link deletes its row and inserts the session in one transaction, so of
several replicas one wins. Of a login under way at the issuer nothing is stored, since anybody could fill the table:
``state``, ``nonce`` and PKCE's verifier follow by HMAC from one secret in a cookie. No refresh tokens: they would be
the most valuable secret of the database. No bearer sessions: what escapes from a browser would work elsewhere.
``SameSite=Lax`` alone is not enough, since all ports of loopback are one site.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

from client_sdk.protocol.access import GrantView, LinkCreated, LoginWay, Me
from client_sdk.protocol.problems import problem
from coordinator.access.api_keys import ApiKeys, hash_of
from coordinator.access.audit import Audit
from coordinator.access.roles import Operator
from coordinator.limits.admission import TokenBuckets
from coordinator.store.port import Store, Transaction
from coordinator.store.rows import LoginRow

if TYPE_CHECKING:
    from coordinator.access.issuer import Person, TokenIssuer

SESSION_S = 12 * 3600.0
"""Longest time that a session lasts, in seconds."""
LINK_S = 300.0
"""How long a link may be used, in seconds."""
MOST = 16
"""Sessions of one operator at a time, and as many links. One more ends the oldest."""
IN_A_ROW, AGAIN_S = 32, 60.0
"""So many times in a row an operator can log in, then once in so many seconds: each login leaves a row in the audit,
which no viewer may fill."""
PREFIX = "qs_"

Kind = Literal["session", "link"]
_PREFIXES: dict[Kind, str] = {"session": PREFIX, "link": "ql_"}
_ENDED = "this session has ended; log in again"


class NewSession(NamedTuple):
    operator: Operator
    secret: str
    """What the cookie has."""
    lasts_s: float


class Sessions:
    """The logins of one store. ``now``: Unix seconds; ``entropy(n)``: n bytes that nobody can guess."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], float],
        entropy: Callable[[int], bytes],
        keys: ApiKeys,
        issuer: TokenIssuer | None,
        audit: Audit,
    ) -> None:
        self._store = store
        self._now = now
        self._entropy = entropy
        self._keys = keys
        self._issuer = issuer
        self._audit = audit
        self._pace = TokenBuckets(1 / AGAIN_S, IN_A_ROW, now)

    def open_by_key(self, text: str) -> NewSession:
        """ProblemError *unauthenticated* where the key is not valid. Here and below *too-many-requests* where its
        operator logs in too often."""
        operator = self._keys.operator(text)
        with self._store.transaction() as tx:
            return self._open(tx, operator, key=_key_of(operator))

    def open_for(self, person: Person) -> NewSession:
        """A session of somebody whom the issuer names, until their token expires."""
        claims = json.dumps(person.values)
        with self._store.transaction() as tx:
            return self._open(tx, person.operator, claims=claims)

    def open_by_link(self, token: str) -> NewSession:
        """Uses the link up. ProblemError *unauthenticated* where it is unknown, used or out of date, or where the key
        with which it was made is no longer valid."""
        link = self._find(token, "link")
        if link is None or link.key is None:
            raise problem(
                "unauthenticated", "this link was used, or is out of date; 'quorate dashboard --login' prints another"
            )
        made_by = self._keys.by_id(link.key)
        operator = Operator(made_by.id, made_by.grants, made_by.expires_at, by="local")
        with self._store.transaction() as tx:
            if not tx.drop_logins([link.login]):
                raise problem("unauthenticated", "this link was used already")
            return self._open(tx, operator, key=link.key)

    def create_link(self, by: Operator) -> LinkCreated:
        """A link that opens a session of the caller's key. ProblemError *conflict* where the caller has none."""
        key = _key_of(by)
        if key is None:
            raise problem("conflict", f"a link is made with an API key, and {by.id} has none")
        with self._store.transaction() as tx:
            row, text = self._insert(tx, "link", by, LINK_S, key, "")
        return LinkCreated(token=text, expires_at=row.expires_at)

    def operator(self, secret: str) -> Operator:
        """Whose session this is. ProblemError *unauthenticated* where it has ended, or what it was opened with holds no
        longer."""
        row = self._find(secret, "session")
        if row is None:
            raise problem("unauthenticated", _ENDED)
        if row.key is not None:
            grants = self._keys.by_id(row.key).grants
        else:
            grants = () if self._issuer is None else self._issuer.grants(json.loads(row.claims))
        if not grants:
            raise problem("unauthenticated", "what this session was opened with gives no role here any longer")
        by: LoginWay = "oidc" if row.by == "oidc" else "local" if row.by == "local" else "key"
        return Operator(row.who, grants, row.expires_at, by=by, session=row.login)

    def end(self, session: str) -> None:
        """Deletes the session of this id."""
        with self._store.transaction() as tx:
            tx.drop_logins([session])

    def _open(self, tx: Transaction, operator: Operator, key: str | None = None, claims: str = "") -> NewSession:
        wait_s = self._pace.take(operator.id)
        if wait_s:
            many = f"{operator.id} logged in too often; it can log in again in {wait_s:.0f} s"
            raise problem("too-many-requests", many, retry_after_s=wait_s)
        row, text = self._insert(tx, "session", operator, SESSION_S, key, claims)
        opened = Operator(operator.id, operator.grants, row.expires_at, by=operator.by, session=row.login)
        tx.insert_audit([self._audit.row(opened.id, "login", f"{opened} by={opened.by} session={opened.session}")])
        return NewSession(opened, text, row.expires_at - row.created_at)

    def _insert(
        self, tx: Transaction, kind: Kind, who: Operator, lasts_s: float, key: str | None, claims: str
    ) -> tuple[LoginRow, str]:
        """The new row and its text. Deletes rows that have expired, and the operator's oldest beyond ``MOST``."""
        now, login, secret = self._now(), self._entropy(8).hex(), self._entropy(32).hex()
        rows = tx.logins()
        live = [row.login for row in rows if row.expires_at > now and (row.who, row.kind) == (who.id, kind)]
        expired = [row.login for row in rows if row.expires_at <= now]
        tx.drop_logins([*expired, *live[: max(0, len(live) - MOST + 1)]])
        row = LoginRow(
            login=login,
            kind=kind,
            secret_hash=hash_of(secret),
            who=who.id,
            by=who.by,
            key=key,
            claims=claims,
            created_at=now,
            expires_at=min(now + lasts_s, now + lasts_s if who.expires_at is None else who.expires_at),
        )
        tx.insert_login(row)
        return row, f"{_PREFIXES[kind]}{login}_{secret}"

    def _find(self, text: str, kind: Kind) -> LoginRow | None:
        """The row of this text, unless it has expired."""
        found = re.fullmatch(_PREFIXES[kind] + "([0-9a-f]{16})_([0-9a-f]{64})", text)
        row = None if found is None else self._store.login(found[1])
        if found is None or row is None or row.kind != kind:
            return None
        same = hmac.compare_digest(row.secret_hash, hash_of(found[2]))
        return row if same and row.expires_at > self._now() else None


def me(operator: Operator) -> Me:
    """What a caller may know of itself."""
    grants = [GrantView(role=grant.role.text, scope=str(grant.scope)) for grant in operator.grants]
    return Me(id=operator.id, grants=grants, expires_at=operator.expires_at, by=operator.by)


def _key_of(operator: Operator) -> str | None:
    kind, _, key = operator.id.partition(":")
    return key if kind == "key" else None
