"""A device for HTTP tests: speaks the wire directly, so that a test can also say what a real client never would."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import httpx2
import numpy as np

from client_sdk.identity import DeviceKey
from client_sdk.protocol.devices import Assignment, CheckIn, Enrolled, EnrolRequest, Work, enrolment_bytes
from client_sdk.protocol.names import DIGEST_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION, Route, content_digest
from client_sdk.tensors import Tensors, to_bytes
from client_sdk.update import Seconds, Update, encode_update

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


class Device:
    """Enrolled with a fresh key. Every method is one request; ``http`` is shared by the devices of a test."""

    def __init__(self, http: httpx2.Client, enrolment_token: str, run: str, *, slot: int = 0) -> None:
        self.http = http
        self.slot = slot
        self.learner = f"tests:{run}"
        self.headers = {PROTOCOL_HEADER: str(PROTOCOL_VERSION)}
        key = DeviceKey.create(os.urandom)
        request = EnrolRequest(
            public_key=key.public_hex,
            enrolment_token=enrolment_token,
            proof=key.sign(enrolment_bytes(key.public_hex, enrolment_token)).hex(),
            examples=10,
        )
        response = http.post(Route.ENROL, content=request.model_dump_json(), headers=self.headers)
        response.raise_for_status()
        enrolled = Enrolled.model_validate_json(response.content)
        self.id = enrolled.device
        self.headers["Authorization"] = f"Bearer {enrolled.token}"

    def check_in(self, hold_s: float = 0, **options: Any) -> httpx2.Response:
        message = CheckIn(examples=10, learners={self.learner: "1"}, hold_s=hold_s)
        return self.http.post(Route.CHECK_IN, content=message.model_dump_json(), headers=self.headers, **options)

    def wait_for_work(self, hold_s: float = 20) -> Assignment:
        response = self.check_in(hold_s)
        assert response.json()["kind"] == "assignment", response.text
        return Assignment.model_validate_json(response.content)

    def started(self, work: Assignment) -> httpx2.Response:
        path = Route.STARTED.format(run=work.run, round=work.round)
        return self.http.post(path, json={"attempt": work.attempt}, headers=self.headers)

    def fetch(self, work: Assignment) -> httpx2.Response:
        return self.http.get(Route.CHECKPOINT.format(digest=work.checkpoint.digest), headers=self.headers)

    def body(self, work: Assignment, *, value: float = 1.0, examples: int = 10) -> bytes:
        """An update with ``value`` in this device's own slot."""
        marks = np.zeros(64, np.float32)
        marks[self.slot] = value
        update = Update({"marks": marks}, examples, work=Work(steps=1, steps_planned=1))
        return encode_update(update, work.task.codec, work.run, work.round, work.attempt, Seconds())

    def put(self, work: Assignment, body: Any, *, digest: str | None = None, **headers: str) -> httpx2.Response:
        path = Route.UPDATE.format(run=work.run, round=work.round, attempt=work.attempt)
        sent = {**self.headers, **headers}
        if digest is not None:
            sent[DIGEST_HEADER] = content_digest(digest)
        return self.http.put(path, content=body, headers=sent)

    def withdraw(self, work: Assignment, reason: str) -> httpx2.Response:
        path = Route.WITHDRAWN.format(run=work.run, round=work.round)
        return self.http.post(path, json={"attempt": work.attempt, "reason": reason}, headers=self.headers)

    def outcome(self, run: str, round_: int) -> httpx2.Response:
        return self.http.get(Route.OUTCOME.format(run=run, round=round_), headers=self.headers)
