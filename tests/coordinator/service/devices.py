"""A device for HTTP tests: speaks the wire directly, so that a test can also say what a real client never would."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import httpx2
import numpy as np

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.authority import AuthorityClient
from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Assignment, CheckIn, Registered, Registration, Work
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from client_sdk.protocol.workers import RESULT_HEADER
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Seconds, Update, encode_update
from tests.coordinator.certified import headers

MODEL: Tensors = {"marks": np.zeros(64, np.float32), "steps": np.zeros((), np.int64)}
"""``marks`` is averaged: devices add a one in a slot of their own, so who counted can be read from the sum."""


def model_bytes(model: Tensors = MODEL) -> tuple[bytes, str]:
    """A checkpoint's bytes and digest."""
    body = to_bytes(model)
    return body, hashlib.sha256(body).hexdigest()


def plan(name: str, *, select: int = 1, goal: int | None = None, **more: Any) -> dict[str, Any]:
    """A plan for such devices, as from its TOML file. Its learner has the run's name: tests share no devices."""
    cohort = {"select": select, "goal": goal or select, "select_s": 60, "collect_s": 60, **more.pop("cohort", {})}
    return {"name": name, "task": {"learner": f"tests:{name}"}, "cohort": cohort, **more}


class Signing(httpx2.Auth):
    """Signs each request, and each retry afresh, in the place of whatever credentials the client has."""

    requires_request_body = True

    def __init__(self, key: DeviceKey, clock: Callable[[], float] = time.time) -> None:
        """``clock``: the signer's, in Unix seconds."""
        self.key = key
        self.clock = clock

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers.pop("authorization", None)
        result = request.headers.get(RESULT_HEADER)
        request.headers.update(self.headers(request.method, str(request.url), request.content, result))
        yield request

    def headers(self, method: str, uri: str, body: bytes = b"", result: str | None = None) -> dict[str, str]:
        """The headers of a request that is signed now."""
        return headers(self.key, at=self.clock(), method=method, uri=uri, body=body, result=result)


class Given(httpx2.Auth):
    """Sends these headers in the place of whatever credentials the client has."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.given = dict(headers)

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers.pop("authorization", None)
        request.headers.update(self.given)
        yield request


class Peer:
    """The holder of a certificate, which speaks the wire directly. ``http`` is shared by the peers of a test."""

    def __init__(self, http: httpx2.Client, enrolment_token: str) -> None:
        self.http = http
        self.headers = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
        self.auth = Signing(DeviceKey.create(os.urandom))
        token = EnrolmentToken.parse(enrolment_token)
        inside = token.url == str(http.base_url).rstrip("/")
        with AuthorityClient(token.url, token.authority, http=http if inside else None) as authority:
            self.certificate = authority.enrol(token, self.auth.key)
        self.id = self.certificate.id

    def send(self, method: str, path: str, *, auth: httpx2.Auth | None = None, **options: Any) -> httpx2.Response:
        """Sends a signed request."""
        given = {**self.headers, **options.pop("headers", {})}
        return self.http.request(method, path, headers=given, auth=auth or self.auth, **options)

    def signed(self, method: str, path: str, body: bytes = b"", **options: Any) -> dict[str, str]:
        """The headers of a request that is signed now. Its Host must be that of the URL."""
        return self.auth.headers(method, f"{str(self.http.base_url).rstrip('/')}{path}", body, **options)

    def lines(self, method: str, path: str, body: bytes = b"", *, host: str = "localhost") -> list[str]:
        """The headers of a signed request to a server without a public URL, with the protocol's version, as lines of
        HTTP. ``host``: its Host header."""
        signed = self.auth.headers(method, f"http://{host}{path}", body)
        return [f"{name}: {value}" for name, value in {**self.headers, **signed}.items()]


class Device(Peer):
    """Registered with a fresh key. Every method is one request."""

    def __init__(self, http: httpx2.Client, enrolment_token: str, run: str, *, slot: int = 0) -> None:
        super().__init__(http, enrolment_token)
        self.slot = slot
        self.learner = f"tests:{run}"
        response = self.register()
        response.raise_for_status()
        assert Registered.model_validate_json(response.content).device == self.id

    def register(self, **options: Any) -> httpx2.Response:
        message = Registration(certificate=self.certificate.encoded.hex(), examples=10)
        return self.send("POST", Route.REGISTER, content=message.model_dump_json(), **options)

    def check_in(self, hold_s: float = 0, *, process: str = "", **options: Any) -> httpx2.Response:
        message = CheckIn(examples=10, learners={self.learner: "1"}, hold_s=hold_s, process=process)
        return self.send("POST", Route.CHECK_IN, content=message.model_dump_json(), **options)

    def wait_for_work(self, hold_s: float = 20) -> Assignment:
        response = self.check_in(hold_s)
        assert response.json()["kind"] == "assignment", response.text
        return Assignment.model_validate_json(response.content)

    def started(self, work: Assignment) -> httpx2.Response:
        path = Route.STARTED.format(run=work.run, round=work.round)
        return self.send("POST", path, json={"attempt": work.attempt})

    def fetch(self, work: Assignment) -> httpx2.Response:
        return self.send("GET", Route.CHECKPOINT.format(digest=work.checkpoint.digest))

    def body(self, work: Assignment, *, value: float = 1.0, examples: int = 10) -> bytes:
        """An update with ``value`` in this device's own slot."""
        marks = np.zeros(64, np.float32)
        marks[self.slot] = value
        update = Update({"marks": marks}, examples, work=Work(steps=1, steps_planned=1))
        return encode_update(update, work.task.codec, work.run, work.round, work.attempt, Seconds())

    def put(
        self, work: Assignment, body: Any, *, signed: bytes | None = None, replaced: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """``signed``: the bytes that are signed, where they are not those that are sent. ``replaced``: headers in the
        place of signed ones."""
        path = Route.UPDATE.format(run=work.run, round=work.round, attempt=work.attempt)
        if signed is None and replaced is None:
            return self.send("PUT", path, content=body)
        given = self.signed("PUT", path, body if signed is None else signed)
        return self.send("PUT", path, content=body, auth=Given({**given, **(replaced or {})}))

    def withdraw(self, work: Assignment, reason: str) -> httpx2.Response:
        path = Route.WITHDRAWN.format(run=work.run, round=work.round)
        return self.send("POST", path, json={"attempt": work.attempt, "reason": reason})

    def outcome(self, run: str, round_: int) -> httpx2.Response:
        return self.send("GET", Route.OUTCOME.format(run=run, round=round_))
