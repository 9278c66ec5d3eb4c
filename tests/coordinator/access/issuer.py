"""An OpenID Connect issuer on this machine, for tests: a thread that serves its discovery document and its JWK set, and
logs ``olga`` in by authorization code, without asking for a password."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "quorate"
CLIENT = "quorate-page"
CLIENT_SECRET = "a secret: of 100 % chance"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class LocalIssuer:
    """``keys``: by id, what signs; ``algorithms``: those that it names. Both may be changed at any time."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {"first": ("RS256", RSA_KEY)}
        self.algorithms = ["RS256", "ES256", "EdDSA", "HS256"]
        self.asked: list[str] = []
        self.broken = False
        self.calls_itself: str | None = None
        self.extra_keys: list[dict[str, Any]] = []
        self.url = ""
        self.secret: str | None = None
        """What the client must show; None: it is a public one."""
        self.ways = ["client_secret_basic"]
        self.logins: dict[str, dict[str, str]] = {}
        """What was asked for, by code; each code is taken once."""
        self.claims: dict[str, Any] = {}
        """Other claims of the next ID token."""
        self.denies = ""
        """The error with which the next login ends."""
        self.down = ""
        """A path at which it answers 503."""
        self.forms: list[dict[str, str]] = []

    def add(self, kid: str, algorithm: str) -> None:
        made = {"ES256": lambda: ec.generate_private_key(ec.SECP256R1()), "EdDSA": Ed25519PrivateKey.generate}
        self.keys[kid] = (algorithm, made[algorithm]())

    def token(self, kid: str = "first", /, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of ``olga`` that is valid for a minute; claims of the value None are left out."""
        algorithm, key = self.keys[kid]
        now = int(time.time())
        given = {"iss": self.url, "aud": AUDIENCE, "sub": "olga", "iat": now, "exp": now + 60, "groups": ["owner"]}
        kept = {name: value for name, value in {**given, **claims}.items() if value is not None}
        return jwt.encode(kept, key, algorithm, headers={"kid": kid, **(headers or {})})

    def document(self, path: str) -> dict[str, Any] | None:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            issuer = self.calls_itself or self.url
            named = self.algorithms
            return {
                "issuer": issuer,
                "jwks_uri": f"{self.url}/jwks",
                "id_token_signing_alg_values_supported": named,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "token_endpoint_auth_methods_supported": self.ways,
            }
        if path == "/jwks":
            return {"keys": [*(_jwk(kid, *key) for kid, key in self.keys.items()), *self.extra_keys]}
        return None

    def authorize(self, asked: dict[str, str]) -> str:
        """Where a browser goes that asks this."""
        assert asked["response_type"] == "code"
        assert (asked["client_id"], asked["code_challenge_method"]) == (CLIENT, "S256")
        assert "openid" in asked["scope"].split()
        answer = {"state": asked["state"], "iss": self.url}
        if self.denies:
            answer |= {"error": self.denies, "error_description": "<b>No</b> entry"}
        else:
            answer["code"] = code = secrets.token_urlsafe(16)
            self.logins[code] = asked
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """The answer to a code; None: it is not taken."""
        self.forms.append(form)
        asked = self.logins.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        same = asked is not None and (
            form["grant_type"],
            form["redirect_uri"],
            form["client_id"],
            base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            self._shown(form, authorization),
        ) == ("authorization_code", asked["redirect_uri"], CLIENT, asked["code_challenge"], self.secret)
        if asked is None or not same:
            return None
        token = self.token(**{"aud": CLIENT, "nonce": asked["nonce"], **self.claims})
        return {"id_token": token, "access_token": "for nothing", "token_type": "Bearer"}

    def _shown(self, form: dict[str, str], authorization: str) -> str | None:
        """The secret that a client has shown, in the way that this issuer names."""
        if "client_secret_basic" not in self.ways:
            return form.get("client_secret")
        if not authorization:
            return None
        both = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        return unquote_plus(both.partition(":")[2])


def _jwk(kid: str, algorithm: str, key: Any) -> dict[str, Any]:
    kind: Any = {"R": RSAAlgorithm, "E": ECAlgorithm}[algorithm[0]] if algorithm != "EdDSA" else OKPAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


@contextmanager
def local_issuer() -> Iterator[LocalIssuer]:
    issuer = LocalIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/authorize" and not issuer.broken:
                self.send_response(303)
                self.send_header("Location", issuer.authorize(dict(parse_qsl(query))))
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                found = None if issuer.broken else issuer.document(self.path)
                self._answer(found, 200 if found is not None else 503)

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            if issuer.broken or issuer.down == self.path:
                self._answer({}, 503)
            else:
                found = issuer.exchange(form, self.headers.get("Authorization", ""))
                self._answer(found or {"error": "invalid_grant"}, 200 if found else 400)

        def _answer(self, content: Any, status: int) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
