"""The requests about who operators are: API keys and the audit, for owners; and how browsers log in and out.

Logging in at the issuer needs redirects, which only HTTP has (``coordinator.service.issuer_login``).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from client_sdk.protocol.access import (
    AuditHeadView,
    AuditView,
    CreateKey,
    KeyCreated,
    KeyId,
    KeyView,
    LinkCreated,
    LogIn,
    LogInByLink,
    LoginWays,
    Me,
)
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from coordinator.access import EVERYTHING, Operator, Role
from coordinator.access.sessions import NewSession
from coordinator.access.sessions import me as view_of
from coordinator.requests.entry import About, AfterRow, Audited, Direct, Entry, Limit, Permission
from coordinator.runtime.coordinator import Coordinator
from coordinator.store.chain import AuditHead
from coordinator.store.paging import page_of
from coordinator.store.port import AuditRow

LOGINS = "logins"
"""The key that is woken when credentials end."""
AfterKey = Annotated[KeyId | Literal[""], About("keys whose id sorts after this, for paging")]


def create(to: Coordinator, operator: Operator, message: CreateKey) -> KeyCreated:
    """Creates an API key within the caller's scope. Only this answer has its text."""
    return to.access.keys.create(operator, message)


def listed(to: Coordinator, operator: Operator, *, after: AfterKey = "", limit: Limit = 1000) -> list[KeyView]:
    """The API keys within the caller's scope, also revoked and expired ones, in order of id."""
    return to.access.keys.listed(operator, after, limit)


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

    def show(numbered: tuple[int, AuditRow]) -> AuditView | None:
        number, row = numbered
        if not operator.may(Role.OWNER, EVERYTHING) and not (row.run and operator.may_with(Role.OWNER, row.run)):
            return None
        return AuditView(number=number, run=row.run, at=row.at, by=row.by, action=row.action, detail=row.detail)

    def read(after: str, limit: int) -> list[tuple[int, AuditRow]]:
        return to.core.store.audit_of_all(int(after), limit)

    return page_of(read, lambda numbered: numbered[0], show, str(after), limit)


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
    "POST",
    Route.KEYS,
    Direct(create),
    "Create an API key",
    scoped=True,
    audited=Audited("key.create", asks=("role", "scope", "expires_in_s", "label")),
    created=True,
)
LIST = _owner("GET", Route.KEYS, Direct(listed), "List API keys", scoped=True)
REVOKE = _owner(
    "POST",
    Route.REVOKE_KEY,
    Direct(revoke),
    "Revoke an API key",
    scoped=True,
    audited=Audited("key.revoke", makes=("key",)),
)
AUDIT = _owner("GET", Route.AUDIT, Direct(audit), "Read the audit", scoped=True)
AUDIT_HEAD = _owner("GET", Route.AUDIT_HEAD, Direct(audit_head), "Read where the audit ends")


# ------------------------------------------------------------ browsers
# They log in by key or by link, log out, and ask who they are.


def log_in(to: Coordinator, nobody: None, message: LogIn) -> NewSession:
    """Logs a browser in with an API key, for 12 hours at most and never longer than the key holds."""
    return to.access.log_in(lambda: to.access.sessions.open_by_key(message.key))


def log_in_by_link(to: Coordinator, nobody: None, message: LogInByLink) -> NewSession:
    """Exchanges the token of a one-time link for a session of the coordinator's owner."""
    _require_links(to)
    return to.access.log_in(lambda: to.access.sessions.open_by_link(message.token))


def create_link(to: Coordinator, operator: Operator) -> LinkCreated:
    """Makes a link that a browser on this machine exchanges for a session of the caller's key, once and within five
    minutes: `<URL of the coordinator>/#login=<token>`."""
    _require_links(to)
    return to.access.sessions.create_link(operator)


def log_out(to: Coordinator, operator: Operator) -> Noted:
    """Ends the session by whose cookie the request is made, and its streams."""
    if not operator.session:
        raise problem("conflict", "these credentials are no session, so there is nothing to end")
    to.access.sessions.end(operator.session)
    wake_streams(to)
    return Noted()


def ways(to: Coordinator, nobody: None) -> LoginWays:
    """How a browser can log in here."""
    flow = to.access.code_flow
    return LoginWays(link=to.core.settings.on_loopback, oidc=None if flow is None else flow.url)


def me(to: Coordinator, operator: Operator) -> Me:
    """Who the caller is, what it may do, and until when."""
    return view_of(operator)


def _require_links(to: Coordinator) -> None:
    if not to.core.settings.on_loopback:
        raise problem("conflict", "links are for a coordinator that is reached on its own machine only; log in by key")


_nobody = partial(Entry, permission=Permission.NOBODY, group="access")
_viewer = partial(Entry, permission=Permission.VIEWER, group="access")

LOG_IN = _nobody("POST", Route.SESSIONS, Direct(log_in), "Log in", answer=Me, created=True, session="opens")
LOG_IN_BY_LINK = _nobody(
    "POST", Route.SESSION_BY_LINK, Direct(log_in_by_link), "Log in by a link", answer=Me, created=True, session="opens"
)
CREATE_LINK = Entry(
    "POST",
    Route.SESSION_LINKS,
    Direct(create_link),
    "Create a link to log in",
    permission=Permission.OWNER,
    audited=Audited("link.create"),
    group="access",
    created=True,
)
LOG_OUT = _viewer(
    "DELETE", Route.CURRENT_SESSION, Direct(log_out), "Log out", scoped=True, audited=Audited("logout"), session="ends"
)
"""Every operator may end the own session."""
WAYS = _nobody("GET", Route.SESSION_WAYS, Direct(ways), "List the ways to log in")
ME = _viewer("GET", Route.ME, Direct(me), "Show who asks", scoped=True)
ENTRIES = (CREATE, LIST, REVOKE, AUDIT, AUDIT_HEAD, LOG_IN, LOG_IN_BY_LINK, CREATE_LINK, LOG_OUT, WAYS, ME)
