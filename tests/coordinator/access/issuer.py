"""An OpenID Connect issuer on this machine, for tests: a thread that serves its discovery document and its JWK set."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "quorate"
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
            return {"issuer": issuer, "jwks_uri": f"{self.url}/jwks", "id_token_signing_alg_values_supported": named}
        if path == "/jwks":
            return {"keys": [*(_jwk(kid, *key) for kid, key in self.keys.items()), *self.extra_keys]}
        return None


def _jwk(kid: str, algorithm: str, key: Any) -> dict[str, Any]:
    kind: Any = {"R": RSAAlgorithm, "E": ECAlgorithm}[algorithm[0]] if algorithm != "EdDSA" else OKPAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


@contextmanager
def local_issuer() -> Iterator[LocalIssuer]:
    issuer = LocalIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = None if issuer.broken else issuer.document(self.path)
            body = json.dumps(found).encode()
            self.send_response(200 if found is not None else 503)
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
