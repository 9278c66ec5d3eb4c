"""A scripted coordinator behind a real socket on the loopback: signatures that are checked, long polls, ranges, and
accidents on demand."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.errors import CredentialError, refusal_of
from client_sdk.credentials.request_signature import NonceWindow, RequestSignature
from client_sdk.learners import Catalogue, LearnerTrainer
from client_sdk.protocol.devices import CheckIn, Registration, Task
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Update
from tests.client_sdk.device.scripted import LEARNER, ScriptedCoordinator
from tests.client_sdk.http.http_authority import shared

MODEL: Tensors = {"w": np.arange(6, dtype=np.float32)}
CHECKPOINT = to_bytes(MODEL)


class HttpScript:
    """Serves a script until closed. ``accident(method, path, handler)``: true if it dealt with the request itself."""

    def __init__(self, script: ScriptedCoordinator, port: int = 0) -> None:
        self.script = script
        self.headers: list[tuple[str, str, dict[str, str]]] = []
        self.signatures: list[RequestSignature] = []
        """Of the requests that were accepted."""
        self.nonces = NonceWindow()
        self.now: Callable[[], float] = time.time
        self.accident: Callable[[str, str, Any], bool] = lambda method, path, handler: False
        self.left_early = threading.Event()
        self.polling = threading.Event()
        self.work = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do(self) -> None:
                outer._serve(self)

            do_GET = do_POST = do_PUT = do

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _serve(self, handler: Any) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.headers.append((handler.command, handler.path, headers))
        if self.accident(handler.command, handler.path, handler):
            return
        body = handler.rfile.read(int(headers.get("content-length", 0)))
        try:
            signer = self._signer(handler, body)
        except ProblemError as error:
            handler.send_response(error.status)
            answer = error.problem.model_dump_json().encode()
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer)
            return
        if handler.path == Route.CHECK_IN.value and not self._hold(handler, CheckIn.model_validate_json(body).hold_s):
            return
        status, answer = self.script.handle(handler.command, handler.path, signer, body)
        start = 0
        if status == 200 and "range" in headers:
            start = int(headers["range"].removeprefix("bytes=").removesuffix("-"))
            status = 206
        handler.send_response(status)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(answer) - 1}/{len(answer)}")
        handler.send_header("Content-Length", str(len(answer) - start))
        handler.end_headers()
        with suppress(OSError):
            handler.wfile.write(answer[start:])

    def _signer(self, handler: Any, body: bytes) -> str:
        """The id of the key that signed the request, checked in the sequence of a real coordinator."""
        at = self.now()
        try:
            raw = [(name.lower().encode(), value.encode()) for name, value in handler.headers.items()]
            signature = RequestSignature.parse(raw)
            signature.require_current(at)
            if handler.path == Route.REGISTER.value:
                encoded = Registration.model_validate_json(body).certificate
                public = Certificate.parse(bytes.fromhex(encoded)).public_key
            elif signature.key_id in self.script.known:
                public = self.script.known[signature.key_id].public_key
            else:
                raise problem("unregistered", "This key is not registered here.")
            signature.require_signed(public, method=handler.command, uri=self.url + handler.path)
            self.nonces.take(signature, at)
            signature.require_body(hashlib.sha256(body).digest())
        except CredentialError as error:
            raise refusal_of(error) from None
        self.signatures.append(signature)
        return signature.key_id

    def _hold(self, handler: Any, hold_s: float) -> bool:
        """Hold a check-in until there is work. False when the device left meanwhile."""
        import select

        ends_at = time.monotonic() + hold_s
        self.polling.set()
        while self.script.now is None and time.monotonic() < ends_at:
            if select.select([handler.connection], [], [], 0.02)[0]:
                self.left_early.set()
                handler.close_connection = True
                return False
        return True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(script: ScriptedCoordinator, port: int = 0) -> Iterator[HttpScript]:
    server = HttpScript(script, port)
    try:
        yield server
    finally:
        server.close()


def script(rounds: int = 1, **assignment: Any) -> ScriptedCoordinator:
    """A script whose checkpoint holds tensors."""
    task = assignment.pop("task", Task(learner=LEARNER))
    return ScriptedCoordinator(rounds, task=task, checkpoint=CHECKPOINT, authority=shared(), **assignment)


def train(model: Tensors, data: Any, task: Task) -> Update:
    """A learner in numpy: moves the weights towards the mean of the data."""
    x, _ = data
    return Update({"w": (x.mean(axis=0) - model["w"]) * np.float32(task.learning_rate)}, examples=len(x))


DATA = (np.ones((60, 6), np.float32), np.zeros(60, np.int64))


def trainer(learner: Any = train) -> LearnerTrainer:
    return LearnerTrainer(Catalogue({LEARNER: learner}, installed=()), DATA)
