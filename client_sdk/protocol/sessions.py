"""The messages of a browser that logs in: by an operator's key, by a one-time link, or at the issuer. Routes:
``names.Route``.

A session is a cookie that scripts cannot read. Requests by cookie other than GET need ``REQUEST_HEADER``, and so do
those that log in: a page of another origin cannot send it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from client_sdk.protocol.access import RoleName, ScopeText
from client_sdk.protocol.names import Message

REQUEST_HEADER = "Quorate-Request"
REQUEST_VALUE = "1"
LINK_FRAGMENT = "#login="
"""What comes before the token of a one-time link. Browsers send no fragment: it is in no log and no Referer."""

LoginWay = Literal["key", "oidc", "local"]


class LogIn(Message):
    """Logs in with an API key."""

    key: str = Field(min_length=1, max_length=200)
    """The text of the key, ``qk_<id>_<secret>``."""


class LogInByLink(Message):
    """Logs in with the token of a one-time link."""

    token: str = Field(min_length=1, max_length=200)
    """The text after ``#login=``."""


class GrantView(Message):
    """A role, and the runs for which it holds."""

    role: RoleName
    scope: ScopeText


class Me(Message):
    """Who asks."""

    id: str
    """The id by which the audit names who asks: ``key:<id>`` or ``oidc:<subject>``."""
    grants: list[GrantView]
    expires_at: float | None = None
    """When the credentials expire, Unix seconds. None: they do not."""
    by: LoginWay
    """*key*: an API key. *oidc*: the issuer. *local*: the link of a coordinator on this machine."""


class LoginWays(Message):
    """How a browser can log in here."""

    key: bool = True
    """With an API key."""
    link: bool
    """By a one-time link: on the machine of the coordinator."""
    oidc: str | None = None
    """URL of the issuer at which one can log in. None: nowhere."""


class LinkCreated(Message):
    """A token that can be exchanged once for a session."""

    token: str
    """Only this answer has it: the coordinator stores a hash."""
    expires_at: float
    """Unix seconds."""

    def url(self, coordinator: str) -> str:
        """The link: the page of the coordinator at this URL exchanges the token."""
        return f"{coordinator.rstrip('/')}/{LINK_FRAGMENT}{self.token}"
