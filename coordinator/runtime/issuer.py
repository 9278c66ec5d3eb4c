"""The issuer of operators' tokens that the settings name, and the logins of browsers there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.access import Grant
from coordinator.settings import Settings

if TYPE_CHECKING:
    from coordinator.access.code_flow import CodeFlow
    from coordinator.access.issuer import TokenIssuer


def issuer_of(settings: Settings, now: Callable[[], float]) -> tuple[TokenIssuer | None, CodeFlow | None]:
    """The issuer, and how browsers log in there; None where the settings have none. PyJWT is loaded for it alone.
    ``now``: Unix seconds."""
    if settings.oidc_issuer is None:
        return None, None
    from coordinator.access.code_flow import CodeFlow, IssuerClient
    from coordinator.access.issuer import IssuerSettings, TokenIssuer
    from coordinator.access.issuer_keys import IssuerKeys

    keys = IssuerKeys(settings.oidc_issuer)
    issuer = TokenIssuer(
        IssuerSettings(
            url=settings.oidc_issuer,
            audience=settings.oidc_audience or "",
            claim=settings.oidc_claim,
            grants={value: Grant.parse(text) for value, text in settings.oidc_grants.items()},
        ),
        keys,
    )
    if settings.oidc_client is None:
        return issuer, None
    client = IssuerClient(id=settings.oidc_client, secret_file=settings.oidc_client_secret, scope=settings.oidc_scope)
    return issuer, CodeFlow(issuer, keys, client, now)
