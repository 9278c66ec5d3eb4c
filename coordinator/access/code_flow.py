"""Logging in at the issuer: OpenID Connect's authorization code flow with PKCE (OpenID Connect Core 1.0, section 3.1;
RFC 7636).

Nothing is stored between the two requests of a login. The browser has one secret in a cookie, and the three values that
bind the login to it are computed from that: ``state`` binds the answer to the browser, ``nonce`` the ID token to the
login, the code verifier the code to whoever asked for it::

    state     <time and page>.<HMAC-SHA256(secret, "state" + time and page)>
    nonce     HMAC-SHA256(secret, "nonce")
    verifier  HMAC-SHA256(secret, "verifier"), in base64url
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus, urlencode

import httpx2

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.access.issuer import LEEWAY_S, IssuerKeys, IssuerUnreachable, Person, TokenIssuer, read_url

BEGUN_S = 600.0
"""How long a person may take at the issuer, in seconds."""
_AT_ONCE = 2
"""Codes that are exchanged at a time: the threads of the service wait for the issuer no longer than for a database."""
_PAGE = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:@%/?#-]{0,1000}")
_SECRET = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True, kw_only=True)
class IssuerClient:
    """The client that the coordinator is at its issuer."""

    id: str
    secret_file: Path | None = None
    """None: it is a public client, which PKCE alone protects."""
    scope: str = "openid"


class CodeFlow:
    """Logins at one issuer. ``now``: Unix seconds. Safe from any thread."""

    def __init__(
        self,
        issuer: TokenIssuer,
        keys: IssuerKeys,
        client: IssuerClient,
        now: Callable[[], float],
    ) -> None:
        self._issuer = issuer
        self._keys = keys
        self._client = client
        self._now = now
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def url(self) -> str:
        """The issuer's identifier."""
        return self._issuer.url

    def begin(self, secret: str, page: str, redirect_uri: str) -> str:
        """The issuer's address to which a browser that has this secret is sent. ``page``: the path to which it comes
        back in the end. ProblemError *invalid-request* where that is no path of this site, *issuer-unreachable*."""
        _require_page(page)
        said = _text(json.dumps([self._now(), page]).encode())
        asked = {
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": redirect_uri,
            "scope": self._client.scope,
            "state": f"{said}.{_mac(secret, 'state' + said)}",
            "nonce": _mac(secret, "nonce"),
            "code_challenge": _text(hashlib.sha256(_verifier(secret).encode()).digest()),
            "code_challenge_method": "S256",
        }
        place = self._endpoint("authorization_endpoint")
        return f"{place}{'&' if '?' in place else '?'}{urlencode(asked)}"

    def page(self, secret: str, state: str, issuer: str | None = None) -> str:
        """The page to which the browser comes back. ProblemError *unauthenticated* where this browser has not begun the
        login, or too long ago, or where another issuer answers (RFC 9207)."""
        said, _, mac = state.partition(".")
        expected = _mac(secret, "state" + said) if _SECRET.fullmatch(secret) else ""
        if not expected or not hmac.compare_digest(mac.encode(), expected.encode()):
            raise problem("unauthenticated", "this browser has not begun this login, or a newer one; log in again")
        begun, page = _read(said)
        if not -LEEWAY_S <= self._now() - begun <= BEGUN_S:
            raise problem("unauthenticated", f"the login took longer than {BEGUN_S / 60:.0f} minutes; log in again")
        if issuer is not None and issuer != self.url:
            raise problem("unauthenticated", "another issuer than ours answers this login")
        return page

    def person(self, secret: str, code: str, redirect_uri: str) -> Person:
        """Who has logged in. ProblemError *unauthenticated* where the issuer does not take the code, or where its token
        is not for us and this login; *not-permitted*; *issuer-unreachable*; *busy*."""
        if not self._places.acquire(blocking=False):
            raise problem("busy", "Others are logging in at the same moment.", retry_after_s=1)
        try:
            token = self._exchange(secret, code, redirect_uri)
        finally:
            self._places.release()
        return self._issuer.person(token, self._client.id, _mac(secret, "nonce"))

    def refused(self, error: str) -> ProblemError:
        """What the issuer's refusal means: its word for it, and nothing of its text."""
        word = error if _WORD.fullmatch(error) else "an error without a name"
        denied = word == "access_denied"
        said = "the login was denied at the issuer" if denied else f"the issuer refused the login: {word}"
        return problem("unauthenticated", said)

    def _exchange(self, secret: str, code: str, redirect_uri: str) -> str:
        """The ID token for a code."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client.id,
            "code_verifier": _verifier(secret),
        }
        try:
            headers = {"Accept": "application/json"} | self._authentication(form)
            answer = json.loads(read_url(self._endpoint("token_endpoint"), form, headers))
            token = answer.get("id_token") if isinstance(answer, dict) else None
        except httpx2.HTTPStatusError as error:
            if 400 <= error.response.status_code < 500:
                raise problem(
                    "unauthenticated", "the issuer does not take the code of this login; log in again"
                ) from None
            raise self._unreachable(f"it answered with status {error.response.status_code}") from None
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise self._unreachable(type(error).__name__) from None
        if not isinstance(token, str):
            raise problem("unauthenticated", "the issuer has sent no ID token: its scope must have 'openid'")
        return token

    def _authentication(self, form: dict[str, str]) -> dict[str, str]:
        """The headers by which the client shows who it is; where the issuer reads it from the form, that is changed."""
        if self._client.secret_file is None:
            return {}
        secret = self._client.secret_file.read_text("utf-8").strip()
        ways = self._keys.about().get("token_endpoint_auth_methods_supported")
        if isinstance(ways, list) and "client_secret_basic" not in ways:
            form["client_secret"] = secret
            return {}
        both = f"{quote_plus(self._client.id)}:{quote_plus(secret)}"  # RFC 6749, section 2.3.1
        return {"Authorization": "Basic " + base64.b64encode(both.encode()).decode()}

    def _endpoint(self, name: str) -> str:
        try:
            return self._keys.endpoint(name)
        except IssuerUnreachable as error:
            raise self._unreachable(str(error), error.retry_after_s) from None

    def _unreachable(self, why: str, retry_after_s: float = 10.0) -> ProblemError:
        detail = f"the issuer {self.url} cannot be asked now: {why}"
        return problem("issuer-unreachable", detail, retry_after_s=retry_after_s)


def _read(said: str) -> tuple[float, str]:
    """Time and page of a state. They are read with care: who sets cookies in a browser writes states for it too."""
    try:
        begun, page = json.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        return float(begun), _require_page(str(page))
    except (ValueError, TypeError, OverflowError):
        raise problem("unauthenticated", "the state of this login cannot be read; log in again") from None


def _require_page(page: str) -> str:
    """The page. ProblemError *invalid-request* where it is no path of this site: a redirect must not leave it."""
    if _PAGE.fullmatch(page) is None or "//" in page.partition("?")[0]:
        raise problem("invalid-request", "next: should be a path of this site, such as /runs/mnist.")
    return page


def _mac(secret: str, text: str) -> str:
    return hmac.digest(secret.encode(), text.encode(), hashlib.sha256).hex()


def _verifier(secret: str) -> str:
    return _text(bytes.fromhex(_mac(secret, "verifier")))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
