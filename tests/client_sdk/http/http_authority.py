"""A real authority behind a socket on the loopback, for tests of clients. One serves all tests: each device has a key
of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from client_sdk.credentials.certificate import HolderClass, RevocationList
from client_sdk.identity import DeviceKey
from client_sdk.protocol.authority import AuthorityRoute, CertificateRequest
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.answering import SignedRequest
from coordinator.authority.issuer import DAY_S, AuthorityPolicy
from tests.client_sdk.device.scripted_authority import ScriptedAuthority


class HttpAuthority(ScriptedAuthority):
    """Serves until closed. ``requests`` has what was asked, with the request's body; ``interfere`` may refuse it."""

    def __init__(self, holder: HolderClass = "device", key: DeviceKey | None = None) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.interfere: Callable[[str], None] = lambda path: None
        self.now: Callable[[], float] = time.time
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                outer._serve(self)

            do_GET = do_POST = do

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        super().__init__(holder)
        self.at = int(time.time())
        policy = AuthorityPolicy(url=self.url)
        self.answers.issuer = replace(self.issuer, policy=policy, signer=key or self.issuer.signer)
        self.enrolment = self.token(holder=holder, uses=1_000_000, lasts_s=DAY_S)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def text(self) -> str:
        """The enrolment token, as an operator hands it out."""
        return self.enrolment.text

    def _serve(self, handler: Any) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.requests.append((handler.path, body))
        try:
            self.interfere(handler.path)
            status, answer = 200, self._answer(handler, body)
        except ProblemError as error:
            status, answer = error.status, error.problem.model_dump_json().encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def _answer(self, handler: Any, body: bytes) -> bytes:
        at, path = self.now(), AuthorityRoute(handler.path)
        raw = [(name.lower().encode(), value.encode()) for name, value in handler.headers.items()]
        signed = SignedRequest(path, raw, body, at)
        match path:
            case AuthorityRoute.AUTHORITY:
                return self.answers.key().model_dump_json().encode()
            case AuthorityRoute.CERTIFICATES:
                return self.answers.enrol(CertificateRequest.model_validate_json(body), at)().model_dump_json().encode()
            case AuthorityRoute.RENEWED:
                return self.answers.renew(signed).model_dump_json().encode()
            case AuthorityRoute.ROTATED:
                return self.answers.rotate(signed).model_dump_json().encode()
            case AuthorityRoute.LEFT:
                self.answers.leave(signed)
                return b""
            case AuthorityRoute.REVOCATIONS:
                return self.answers.revocations(at)

    def served_now(self) -> RevocationList:
        """The list that it serves now."""
        return RevocationList.parse(self.answers.revocations(self.now()))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@cache
def shared() -> HttpAuthority:
    """The authority of all tests that need no other one."""
    return HttpAuthority()


@contextmanager
def authority(holder: HolderClass = "device", key: DeviceKey | None = None) -> Iterator[HttpAuthority]:
    """One of its own."""
    served = HttpAuthority(holder, key)
    try:
        yield served
    finally:
        served.close()
