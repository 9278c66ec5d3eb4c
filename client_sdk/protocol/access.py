"""The messages of operators about access: API keys, and the audit. Routes: ``names.Route``.

A key has a role and a scope. Each role may do what the one before may:

::

    viewer     reads runs, rounds, metrics, events and checkpoints
    operator   creates, pauses, resumes and stops runs, uploads first checkpoints, reports metrics, registers workers
    owner      advances exhausted runs, creates and revokes keys, reads the audit

The scope is the runs for which it holds: ``*`` (everything), ``mnist`` (one run) or ``mnist-*`` (runs whose names begin
so). What belongs to all runs, such as registering a worker, needs the scope ``*``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from client_sdk.protocol.names import Message

RoleName = Literal["viewer", "operator", "owner"]
SCOPE_PATTERN = r"^(\*|[a-z0-9][a-z0-9._-]{0,63}\*?)$"
KEY_ID_PATTERN = r"^[0-9a-f]{16}$"
DAY_S = 86_400.0

ScopeText = Annotated[str, Field(pattern=SCOPE_PATTERN, description="`*`, a run, or the beginning of names and `*`")]
KeyId = Annotated[str, Field(pattern=KEY_ID_PATTERN, description="16 hexadecimal digits")]


class CreateKey(Message):
    """Creates an API key. Its role and its scope must be within those of the caller."""

    role: RoleName
    scope: ScopeText = "*"
    label: str = Field(default="", max_length=120)
    """What the key is for, for display."""
    expires_in_s: float = Field(default=90 * DAY_S, gt=0, le=400 * DAY_S, allow_inf_nan=False)
    """Seconds until it expires, 90 days unless given."""


class KeyView(Message):
    """An API key without its secret."""

    key: KeyId
    """Its id: the second part of its text."""
    role: RoleName
    scope: ScopeText
    label: str = ""
    created_at: float
    created_by: str
    """The id of the operator who created it."""
    expires_at: float | None = None
    """Unix seconds. None: it is the key that ``quorate serve`` made, which does not expire."""
    revoked_at: float | None = None


class KeyCreated(KeyView):
    """A new API key."""

    text: str
    """The key itself, ``qk_<id>_<secret>``. Only this answer has it: the coordinator stores a hash."""


class AuditView(Message):
    """One row of the audit."""

    number: int
    """From 1, without a gap. Who does not see everything does not see all rows."""
    run: str | None = None
    """None: it belongs to no run."""
    at: float
    by: str
    """The id of the operator: ``key:<id>``, or ``oidc:<subject>``. Empty: not known."""
    action: str
    detail: str = ""


class AuditHeadView(Message):
    """Where the audit ends: the number of its last row, and its link, which depends on every row, signed."""

    count: int
    """How many rows the audit has. 0: none, and then the other fields are empty."""
    link: str = ""
    """The SHA-256 that chains the last row to all rows before it, 64 hexadecimal digits."""
    at: float | None = None
    """Time of the last row, Unix seconds."""
    key: str = ""
    """The Ed25519 public key that signed it, 64 hexadecimal digits. Empty: it is not signed."""
    signature: str = ""
    """128 hexadecimal digits."""
    head: str = ""
    """All of it on one line, for `quorate verify --head`: `audit:COUNT:LINK:TIME:KEY:SIGNATURE`. Empty where the last
    row is not signed."""


# ------------------------------------------------------------ sessions
# The messages of a browser that logs in: by an operator's key, by a one-time link, or at the issuer. Routes:
# ``names.Route``.
#
# A session is a cookie that scripts cannot read. Requests by cookie other than GET need ``REQUEST_HEADER``, and so do
# those that log in: a page of another origin cannot send it.


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
