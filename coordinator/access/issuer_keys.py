"""The public keys with which an OpenID Connect issuer signs, read from its JWK set (RFC 7517) and kept for a while.

A key that is not known causes one more look, since issuers rotate their keys; but not more often than every
``COOLDOWN_S``, since anybody can send a token that names a key. One thread at a time asks the issuer: the others are
told to come again, and do not wait for a server that does not answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import jwt

from client_sdk.http.urls import require_https

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
