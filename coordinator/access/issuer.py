"""Operators of an OpenID Connect issuer: their bearer tokens are JSON Web Tokens (RFC 7519), verified by PyJWT.

A token must be signed by a current key of the issuer with an asymmetric algorithm, for our audience, and not have
expired. One claim, such as the groups of a person, gives roles and scopes (``grants``).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jwt

from client_sdk.protocol.problems import problem
from coordinator.access.issuer_keys import IssuerKeys, IssuerUnreachable
from coordinator.access.roles import Grant, Operator

LEEWAY_S = 30.0
"""How far the clocks of issuer and coordinator may differ, in seconds."""
_LONGEST = 16_384
"""Characters of a token."""


@dataclass(frozen=True, kw_only=True)
class IssuerSettings:
    """What a coordinator must know of its issuer."""

    url: str
    """The issuer's identifier: the claim ``iss``, below which ``/.well-known/openid-configuration`` is."""
    audience: str
    claim: str
    """The claim that gives roles. A dot goes into an object: ``realm_access.roles``."""
    grants: Mapping[str, Grant]
    """What each value of the claim gives. Other values give nothing."""


class Person(NamedTuple):
    """Somebody whom the issuer names."""

    operator: Operator
    values: list[str]
    """The values of the claim that give roles."""


class TokenIssuer:
    def __init__(self, settings: IssuerSettings, keys: IssuerKeys | None = None) -> None:
        self._settings = settings
        self._keys = keys or IssuerKeys(settings.url)

    @property
    def url(self) -> str:
        """The issuer's identifier."""
        return self._settings.url

    def operator(self, token: str) -> Operator:
        """The operator whom a valid bearer token names. ProblemError *unauthenticated*, *not-permitted* where no value
        of the claim gives a role, *issuer-unreachable*."""
        return self.person(token, self._settings.audience).operator

    def grants(self, values: Iterable[str]) -> tuple[Grant, ...]:
        """What these values of the claim give."""
        return tuple(self._settings.grants[value] for value in values if value in self._settings.grants)

    def person(self, token: str, audience: str, nonce: str | None = None) -> Person:
        """Whom a valid token for this audience names. ``nonce``: given for an ID token, whose audience is the client's
        id. ProblemError as above."""
        settings = self._settings
        try:
            if len(token) > _LONGEST:
                raise jwt.InvalidTokenError("it is too long")
            header = jwt.get_unverified_header(token)
            key = self._keys.find(header.get("kid"), str(header.get("alg")))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=audience,
                issuer=settings.url,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            if nonce is not None:
                _require_for(claims, audience, nonce)
        except IssuerUnreachable as error:
            detail = f"the issuer {settings.url} cannot be asked for its keys: {error}"
            raise problem("issuer-unreachable", detail, retry_after_s=error.retry_after_s) from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise problem("unauthenticated", f"the token is not valid here: {error}") from None
        values = _values(claims, settings.claim)
        grants = self.grants(values)
        if not grants:
            detail = f"the token's claim {settings.claim} gives no role here: {values!r:.200}"
            raise problem("not-permitted", detail)
        known = [value for value in values if value in settings.grants]
        return Person(Operator(f"oidc:{claims['sub']}", grants, float(claims["exp"]) + LEEWAY_S, by="oidc"), known)


def _require_for(claims: Mapping[str, Any], client: str, nonce: str) -> None:
    """``jwt.InvalidTokenError`` unless an ID token is for this client, and for the login that has this nonce (OpenID
    Connect Core 1.0, section 3.1.3.7)."""
    if not hmac.compare_digest(str(claims.get("nonce")).encode(), nonce.encode()):
        raise jwt.InvalidTokenError("its nonce is not that of this login")
    audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    if claims.get("azp", client if len(audiences) == 1 else None) != client:
        raise jwt.InvalidTokenError("it was issued to another client")


def _values(claims: Mapping[str, Any], path: str) -> list[str]:
    """The texts of a claim: a text with spaces between, or a list of texts."""
    found: Any = claims
    if path in claims:
        found = claims[path]
    else:
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return found.split()
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else []
