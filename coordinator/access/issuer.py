"""Operators of an OpenID Connect issuer: their bearer tokens are JSON Web Tokens (RFC 7519), verified by PyJWT with the
issuer's public keys, which are read from its JWK set (RFC 7517) and kept for a while.

A token must be signed by a current key of the issuer with an asymmetric algorithm, for our audience, and not have
expired. One claim, such as the groups of a person, gives roles and scopes (``grants``).

A key that is not known causes one more look, since issuers rotate their keys; but not more often than every
``COOLDOWN_S``, since anybody can send a token that names a key. One thread at a time asks the issuer: the others are
told to come again, and do not wait for a server that does not answer.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx2
import jwt

from client_sdk.http.urls import require_https
from client_sdk.protocol.problems import problem
from coordinator.access.roles import Grant, Operator

LIFESPAN_S = 300.0
"""How long keys are used before they are read again: a key that the issuer has withdrawn is refused after it."""
COOLDOWN_S = 10.0
"""Seconds between two looks for a key that is not known, and after a look that failed."""
TIMEOUT_S = 5.0
MOST_BYTES = 1 << 20
ASYMMETRIC = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)  # fmt: skip
"""The algorithms that we accept, where the issuer names them too. None of them signs with the key that verifies."""
_PUBLIC = ("kty", "kid", "use", "alg", "n", "e", "crv", "x", "y")
"""The members of a JWK that are read: nothing of a private key."""


class IssuerUnreachable(Exception):
    """The issuer's keys cannot be read now."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class IssuerKeys:
    """The keys of one issuer. ``now``: seconds of any clock that does not jump."""

    def __init__(self, issuer: str, now: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._now = now
        self._asking = threading.Lock()
        self._keys: list[dict[str, Any]] = []
        self._algorithms: frozenset[str] = frozenset()
        self._about: dict[str, Any] = {}
        self._read_at: float | None = None
        self._failed: tuple[float, str] | None = None

    def find(self, kid: object, algorithm: str) -> jwt.PyJWK:
        """The key that a token names, for the algorithm that it names. ``jwt.InvalidTokenError`` where the issuer has
        none, or does not sign so; IssuerUnreachable."""
        key = self._known(kid) if self._fresh() else None
        if key is None and not (self._fresh() and self._age() < COOLDOWN_S):
            self._read()
            key = self._known(kid)
        if key is None:
            raise jwt.InvalidTokenError("its key is none of the issuer's")
        if algorithm not in self._algorithms or key.get("alg", algorithm) != algorithm:
            raise jwt.InvalidAlgorithmError(f"the issuer does not sign with {algorithm[:40]!r} and this key")
        return jwt.PyJWK(key, algorithm)

    def about(self) -> dict[str, Any]:
        """What the issuer says of itself (OpenID Connect Discovery 1.0). IssuerUnreachable."""
        if not self._fresh():
            self._read()
        return self._about

    def endpoint(self, name: str) -> str:
        """The address of one of its services: *authorization_endpoint*, *token_endpoint*. IssuerUnreachable, also where
        it names none that is https."""
        try:
            return require_https(str(self.about().get(name)))
        except ValueError as error:
            raise IssuerUnreachable(f"its {name} is not usable: {error}", COOLDOWN_S) from None

    def _age(self) -> float:
        return float("inf") if self._read_at is None else self._now() - self._read_at

    def _fresh(self) -> bool:
        return self._age() < LIFESPAN_S

    def _known(self, kid: object) -> dict[str, Any] | None:
        """The key of this id; where the token names none, the only one that there is."""
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.get("kid") == kid), None)

    def _read(self) -> None:
        if self._failed is not None and self._now() - self._failed[0] < COOLDOWN_S:
            raise IssuerUnreachable(self._failed[1], COOLDOWN_S)
        if not self._asking.acquire(blocking=False):
            raise IssuerUnreachable("another request is asking", 1.0)
        try:
            about = self._document(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if about.get("issuer") != self._issuer:
                raise ValueError(f"it calls itself {about.get('issuer')!r:.200}")
            keys = self._document(str(about.get("jwks_uri"))).get("keys")
            named = about.get("id_token_signing_alg_values_supported", ["RS256"])
            signing = (key for key in keys or () if isinstance(key, dict) and key.get("use", "sig") == "sig")
            self._keys, self._about = [_public(key) for key in signing], about
            self._algorithms = ASYMMETRIC & {name for name in named if isinstance(name, str)}
            self._read_at, self._failed = self._now(), None
        except (httpx2.HTTPError, OSError, ValueError, TypeError) as error:
            self._failed = (self._now(), str(error) or type(error).__name__)
            raise IssuerUnreachable(self._failed[1], COOLDOWN_S) from None
        finally:
            self._asking.release()

    def _document(self, url: str) -> dict[str, Any]:
        """The JSON object at this address. ValueError where it has none."""
        found = json.loads(read_url(require_https(url)))
        if not isinstance(found, dict):
            raise ValueError(f"{url} has no JSON object")
        return found


def read_url(url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """The body of an answer. ``form``: is posted. ValueError where it is longer than ``MOST_BYTES``; httpx2's
    errors."""
    asked: dict[str, Any] = {"timeout": TIMEOUT_S, "follow_redirects": False, "headers": dict(headers or {})}
    method, data = ("GET", None) if form is None else ("POST", dict(form))
    with httpx2.stream(method, url, data=data, **asked) as response:
        response.raise_for_status()
        body = b""
        for part in response.iter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                raise ValueError(f"{url} has more than {MOST_BYTES} bytes")
    return body


def _public(key: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name in _PUBLIC}


# ------------------------------------------------------------ tokens

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
