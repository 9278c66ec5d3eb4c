"""The requests of browsers: log in by key or by link, log out, who am I.

Logging in at the issuer needs redirects, which only HTTP has
(``coordinator.service.issuer_login``).
"""

from __future__ import annotations

from functools import partial

from client_sdk.protocol.access import LinkCreated, LogIn, LogInByLink, LoginWays, Me
from client_sdk.protocol.devices import Noted
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from coordinator.access import Operator
from coordinator.access.sessions import NewSession
from coordinator.access.sessions import me as view_of
from coordinator.requests.access import wake_streams
from coordinator.requests.entry import Audited, Direct, Entry, Permission
from coordinator.runtime.coordinator import Coordinator


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

LOG_IN = _nobody(
    method="POST",
    route=Route.SESSIONS,
    answer=Me,
    shape=Direct(log_in),
    summary="Log in",
    created=True,
    session="opens",
)
LOG_IN_BY_LINK = _nobody(
    method="POST",
    route=Route.SESSION_BY_LINK,
    answer=Me,
    shape=Direct(log_in_by_link),
    summary="Log in by a link",
    created=True,
    session="opens",
)
CREATE_LINK = Entry(
    method="POST",
    route=Route.SESSION_LINKS,
    permission=Permission.OWNER,
    audited=Audited("link.create"),
    shape=Direct(create_link),
    summary="Create a link to log in",
    group="access",
    created=True,
)
LOG_OUT = _viewer(
    method="DELETE",
    route=Route.CURRENT_SESSION,
    scoped=True,
    audited=Audited("logout"),
    shape=Direct(log_out),
    summary="Log out",
    session="ends",
)
"""Every operator may end the own session."""
WAYS = _nobody(method="GET", route=Route.SESSION_WAYS, shape=Direct(ways), summary="List the ways to log in")
ME = _viewer(method="GET", route=Route.ME, scoped=True, shape=Direct(me), summary="Show who asks")
ENTRIES = (LOG_IN, LOG_IN_BY_LINK, CREATE_LINK, LOG_OUT, WAYS, ME)
