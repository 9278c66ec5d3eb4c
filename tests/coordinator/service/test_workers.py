"""The workers' routes on the wire: registration, held polls, heartbeats, and the commit of a result."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx2
import numpy as np
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.workers import RESULT_HEADER, WorkerRegistration
from client_sdk.tensors import to_bytes
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import MODEL, Given, Peer, Signing
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until

SECTION: dict[str, Any] = {"data": "proxy", "patience": 1, "lease_s": 30}


class Worker(Peer):
    """Registered with a fresh key."""

    def __init__(self, server: Server, run: str) -> None:
        super().__init__(server.http, server.worker_token)
        self.run = run
        made = self.register()
        assert (made.status_code, made.json()) == (201, {"worker": self.id}), made.text

    def register(self) -> httpx2.Response:
        message = WorkerRegistration(certificate=self.certificate.encoded.hex(), label=self.run)
        return self.send("POST", Route.REGISTER_WORKER, content=message.model_dump_json())

    def poll(self, hold_s: float = 0, **more: Any) -> httpx2.Response:
        usual = {"instance": "i1", "learners": {f"tests:{self.run}": "1"}, "data": ["proxy"], "hold_s": hold_s}
        return self.send("POST", Route.LEASES, json={**usual, **more})

    def path(self, route: Route, **more: Any) -> str:
        return route.format(run=self.run, round=2, **more)

    def post(self, route: Route, **body: Any) -> httpx2.Response:
        return self.send("POST", self.path(route), json={"attempt": 1, "fence": 1, **body})

    def put(
        self, body: bytes, fence: int = 1, attempt: int = 1, *, signed: bytes | None = None, **headers: str
    ) -> httpx2.Response:
        """``signed``: the bytes that are signed, where they are not those that are sent."""
        path = self.path(Route.RESULT, attempt=attempt)
        report = f'{{"fence": {fence}, "steps": 9, "examples": 90, "metrics": {{"loss": 0.5}}}}'
        given = {RESULT_HEADER: report, **headers}
        if signed is None:
            return self.send("PUT", path, content=body, headers=given)
        auth = Given(self.signed("PUT", path, signed, result=given[RESULT_HEADER]))
        return self.send("PUT", path, content=body, headers=given, auth=auth)


def fallen_back(server: Server, name: str, **section: Any) -> Worker:
    """A run whose first round was abandoned for want of devices, and a worker that fits."""
    run = server.create_run(name, cohort={"select_s": 0.05}, datacenter={**SECTION, **section})
    until(lambda: server.http.get(f"/v1/runs/{run}").json()["phase"] == "leasing")
    return Worker(server, run)


def result(value: float = 5.0) -> bytes:
    return to_bytes({**MODEL, "marks": np.full(64, value, np.float32)})


@pytest.mark.slow
def test_a_round_from_poll_to_receipt(server: Server) -> None:
    worker = fallen_back(server, "center")
    lease = worker.poll().json()
    assert (lease["kind"], lease["run"], lease["round"], lease["attempt"], lease["fence"]) == (
        "lease", "center", 2, 1, 1,
    )  # fmt: skip
    assert lease["datacenter"]["data"] == "proxy"
    fetched = worker.send("GET", Route.CHECKPOINT.format(digest=lease["checkpoint"]["digest"]))
    assert hashlib.sha256(fetched.content).hexdigest() == lease["checkpoint"]["digest"]
    kept = worker.post(Route.HEARTBEAT, step=3, metrics={"loss": 0.7})
    assert 29 < kept.json()["ends_in_s"] <= 30
    (row,) = [row for row in server.http.get(Route.WORKERS).json() if row["worker"] == worker.id]
    assert (row["state"], row["run"], row["round"], row["label"]) == ("leased", "center", 2, "center")
    body = result()
    receipt = worker.put(body)
    assert receipt.status_code == 200, receipt.text
    assert receipt.json() == {
        "run": "center", "round": 2, "attempt": 1, "worker": worker.id,
        "digest": hashlib.sha256(body).hexdigest(), "version": 1,
    }  # fmt: skip
    assert worker.put(body).json() == receipt.json(), "the same bytes again"
    refused(worker.put(result(6.0)), 409, "duplicate")
    rounds = server.http.get(f"/v1/runs/{worker.run}/rounds").json()
    assert [(row["kind"], row["status"]) for row in rounds[:2]] == [
        ("federated", "abandoned"),
        ("datacenter", "committed"),
    ]
    assert rounds[1]["because"] == "1 federated round in a row had to be abandoned"
    assert rounds[1]["lease"]["worker"] == worker.id
    assert rounds[1]["metrics"] == {"loss": 0.5}
    kinds = server.http.get(f"/v1/runs/{worker.run}/events?follow=false").text.splitlines()
    assert [kind for kind in ("event: Leased", "event: Delivered") if kind in kinds] == [
        "event: Leased",
        "event: Delivered",
    ]


@pytest.mark.slow
def test_a_poll_is_held_until_a_round_opens(server: Server) -> None:
    run = server.create_run("held-center", cohort={"select_s": 1.0}, datacenter=SECTION)
    assert server.http.get(f"/v1/runs/{run}").json()["phase"] == "selecting"
    answer = Worker(server, run).poll(hold_s=20).json()
    assert answer["kind"] == "lease", answer
    assert answer["round"] == 2


def test_a_poll_is_held_to_its_end(server: Server) -> None:
    run = server.create_run("late-center", cohort={"select_s": 60}, datacenter=SECTION)
    answer = Worker(server, run).poll(hold_s=0.2).json()
    assert "no datacenter round is open: run late-center is selecting round 1" in answer["reason"]


@pytest.mark.slow
def test_a_worker_without_work_gets_a_reason(server: Server) -> None:
    worker = fallen_back(server, "choosy", nproc=4)
    answer = worker.poll().json()
    assert answer["kind"] == "wait"
    assert "run choosy: the plan wants 4 processes; this worker has 1" in answer["reason"]


def test_keys_fences_and_bodies_are_checked(server: Server) -> None:
    worker = fallen_back(server, "checked")
    lease = worker.poll().json()
    body = result()
    refused(worker.put(body, fence=2), 409, "lease-lost")
    refused(worker.put(body, attempt=2), 409, "lease-lost")
    refused(worker.post(Route.HEARTBEAT, fence=9), 409, "lease-lost")
    refused(worker.put(body, **{RESULT_HEADER: "{}"}), 422, "invalid-request")
    bare = worker.send("PUT", worker.path(Route.RESULT, attempt=1), content=body)
    assert refused(bare, 422, "invalid-request").startswith(f"Send {RESULT_HEADER} with the lease's fence")
    refused(worker.put(body, signed=b"other bytes"), 422, "digest-mismatch")
    other = Given(worker.signed("PUT", worker.path(Route.RESULT, attempt=1), body, result='{"fence": 1}'))
    sent = {RESULT_HEADER: '{"fence": 2, "steps": 9, "examples": 90}'}
    changed = worker.send("PUT", worker.path(Route.RESULT, attempt=1), content=body, headers=sent, auth=other)
    refused(changed, 401, "bad-signature")
    refused(worker.put(to_bytes({"other": np.zeros(1, np.float32)})), 422, "invalid-update")
    refused(worker.put(body + b" " * (lease["max_result_bytes"])), 413, "too-large")
    polled = {"instance": "i"}
    stranger = Signing(DeviceKey.create())
    refused(worker.send("POST", Route.LEASES, json=polled, auth=stranger), 401, "unregistered")
    device = server.device("checked")
    refused(worker.send("POST", Route.LEASES, json=polled, auth=device.auth), 403, "not-certified")
    assert worker.put(body).status_code == 200


def test_giving_back_failing_and_being_revoked(server: Server) -> None:
    worker = fallen_back(server, "ends")
    assert worker.poll().json()["fence"] == 1
    assert worker.post(Route.LEASE_END, failed=False, reason="moved").json() == {"ok": True}
    assert worker.poll(instance="i2").json()["fence"] == 2
    worker.post(Route.LEASE_END, attempt=2, fence=2, failed=True, reason="the loss is not finite")
    ended = server.http.get(f"/v1/runs/{worker.run}/rounds/2").json()
    assert ended["reason"] == f"worker {worker.id} could not train: the loss is not finite"
    revoked = server.http.post(Route.REVOKE_WORKER.format(worker=worker.id)).json()
    assert revoked["state"] == "revoked"
    assert "revoked by an operator" in refused(worker.poll(), 403, "revoked-key")
    refused(server.http.post(Route.REVOKE_WORKER.format(worker="w0")), 404, "unknown-worker")


@pytest.mark.parametrize("metrics", [{"loss": float("inf")}, {"": 1.0}])
def test_a_heartbeat_that_is_none_is_refused(server: Server, metrics: dict[str, float]) -> None:
    worker = Worker(server, "nowhere")
    reason = worker.send(
        "POST",
        worker.path(Route.HEARTBEAT),
        content=str({"attempt": 1, "fence": 1, "metrics": metrics}).replace("'", '"').replace("inf", "1e999"),
    )
    refused(reason, 422, "invalid-request")
