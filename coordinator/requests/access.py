"""The requests of owners: API keys and the audit."""

from __future__ import annotations

from functools import partial

from client_sdk.protocol.access import AuditHeadView, AuditView, CreateKey, KeyCreated, KeyId, KeyView
from client_sdk.protocol.names import Route
from coordinator.access import EVERYTHING, Operator, Role
from coordinator.requests.entry import AfterRow, Audited, Direct, Entry, Limit, Permission
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.chain import AuditHead

LOGINS = "logins"
"""The key that is woken when credentials end."""
_PAGE = 1000


def create(to: Coordinator, operator: Operator, message: CreateKey) -> KeyCreated:
    """Creates an API key within the caller's scope. Only this answer has its text."""
    return to.access.keys.create(operator, message)


def listed(to: Coordinator, operator: Operator) -> list[KeyView]:
    """The API keys within the caller's scope, also revoked and expired ones."""
    return to.access.keys.listed(operator)


def revoke(to: Coordinator, operator: Operator, *, key: KeyId) -> KeyView:
    """Revokes an API key permanently. What is held open for it ends."""
    view = to.access.keys.revoke(operator, key)
    wake_streams(to)
    return view


def wake_streams(to: Coordinator) -> None:
    """Lets each stream look whether its caller's credentials still hold."""
    to.core.signals.wake_many([LOGINS, *(f"run:{log.run}" for log in to.core.logs())])


def audit(to: Coordinator, operator: Operator, *, after: AfterRow = 0, limit: Limit = 1000) -> list[AuditView]:
    """What operators asked for and who was refused, in the order of recording. Who does not see everything sees the
    rows of runs in scope."""
    found: list[AuditView] = []
    while len(found) < limit and (page := to.core.store.audit_of_all(after, _PAGE)):
        for after, row in page:
            if operator.may(Role.OWNER, EVERYTHING) or (row.run and operator.may_with(Role.OWNER, row.run)):
                view = AuditView(number=after, run=row.run, at=row.at, by=row.by, action=row.action, detail=row.detail)
                found.append(view)
    return found[:limit]


def audit_head(to: Coordinator, operator: Operator) -> AuditHeadView:
    """Where the audit ends, signed by the coordinator's key. Written down elsewhere, it shows rows that somebody
    removes or rewrites later in the database: `quorate verify --head`."""
    with to.core.store.reading() as reader:
        stored = reader.audit_head()
        rows = [] if stored is None or not stored.count else reader.audit_of_all(stored.count - 1, 1)
    if not rows:
        return AuditHeadView(count=0)
    head = AuditHead.of(*rows[0])
    text = str(head) if head.is_signed() else ""
    return AuditHeadView(
        count=head.count, link=head.link, at=head.at, key=head.key, signature=head.signature, head=text
    )


_owner = partial(Entry, permission=Permission.OWNER, group="access")

CREATE = _owner(
    method="POST",
    route=Route.KEYS,
    scoped=True,
    audited=Audited("key.create", asks=("role", "scope", "expires_in_s", "label")),
    shape=Direct(create),
    summary="Create an API key",
    created=True,
)
LIST = _owner(method="GET", route=Route.KEYS, scoped=True, shape=Direct(listed), summary="List API keys")
REVOKE = _owner(
    method="POST",
    route=Route.REVOKE_KEY,
    scoped=True,
    audited=Audited("key.revoke", makes=("key",)),
    shape=Direct(revoke),
    summary="Revoke an API key",
)
AUDIT = _owner(method="GET", route=Route.AUDIT, scoped=True, shape=Direct(audit), summary="Read the audit")
AUDIT_HEAD = _owner(method="GET", route=Route.AUDIT_HEAD, shape=Direct(audit_head), summary="Read where the audit ends")
ENTRIES = (CREATE, LIST, REVOKE, AUDIT, AUDIT_HEAD)
