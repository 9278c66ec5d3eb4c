"""A real coordinator is killed in every exchange of a secure round, and goes on with the same attempt."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk.credentials.certificate import RevocationList
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.http.authority import AuthorityClient
from client_sdk.protocol.devices import CheckIn, Policy
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SECURE_HEADER, SECURE_VERSION, SecureSigned
from client_sdk.secagg.device import SecureDevice
from client_sdk.secagg.header import AttemptHeader
from client_sdk.tensors import from_bytes, to_bytes
from tests.client_sdk.bounds import any_work
from tests.client_sdk.secagg.attempt import entropy
from tests.client_sdk.secagg.fleet import POLICY, Member, expected
from tests.coordinator.served import SECTION, digest_of
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device, plan
from tests.rotating import on_day

pytestmark = [pytest.mark.slow, pytest.mark.service]

MODEL = {"w": np.linspace(-1, 1, 5).astype(np.float32)}
NUMBER = 5


class Killed:
    """A server that is killed and started again in the same folder, and devices that ask on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Server.start(folder)
        self.port = int(self.server.url.rsplit(":", 1)[1])
        self.peers = [Device(self.server.http, self.server.token, "secret") for _ in range(NUMBER)]
        body = to_bytes(MODEL)
        self.server.http.put(Route.CHECKPOINT.format(digest=digest_of(body)), content=body).raise_for_status()
        wanted = plan(
            "secret",
            select=NUMBER,
            finish={"rounds": 1},
            secure={**SECTION, "exchange_s": 60},
            aggregation={"partial": "refuse", "weighting": "examples"},
        )
        made = self.server.http.post(Route.RUNS, json={"plan": wanted, "init": digest_of(body), "origin": "a test"})
        assert made.status_code == 201, made.text
        self.run = made.json()["run"]
        token = EnrolmentToken.parse(self.server.token)
        with AuthorityClient(token.url, token.authority, http=self.server.http) as authority:
            self.trusted = authority.trusted()
        self.members = [self._member(number, peer) for number, peer in enumerate(self.peers)]
        self.kills = 0

    def _member(self, number: int, peer: Device) -> Member:
        device = SecureDevice(
            device=peer.id,
            certificate=peer.certificate.encoded,
            signer=peer.auth.key,
            entropy=entropy(("killed", number)),
            authority=self.trusted,
            policy=POLICY,
        )
        values = np.full(5, 0.01 * number, np.float32)
        values[number] = 0.9
        return Member(device, values, weight=10 * number + 10)

    def kill(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.server = Server.start(self.folder, port=self.port)
        self.kills += 1
        for peer in self.peers:
            peer.http = self.server.http

    def path(self, route: str, **more: Any) -> str:
        return str(route).format(**{"run": self.run, "round": 1, "attempt": 0, **more})

    def asked(self, peer: Device, path: str) -> bytes:
        """The answer, however often it is to be asked for."""
        for _ in range(100):
            answer = peer.send("POST", path, json={"hold_s": 5})
            if answer.status_code == 200:
                return answer.content
            early = "has no cohort yet" in answer.text  # it is drawn after the check-ins were answered
            assert early or answer.status_code in (204, 503), answer.text
            time.sleep(0.05)
        raise AssertionError(f"no answer of {path}")

    def check_in(self) -> None:
        policy = Policy(secure=any_work(smallest_cohort=3))
        for peer in self.peers:
            message = CheckIn(examples=10, learners={peer.learner: "1"}, policy=policy, hold_s=0, secure=SECURE_VERSION)
            peer.send("POST", Route.CHECK_IN, content=message.model_dump_json()).raise_for_status()

    def begin(self) -> None:
        found = RevocationList.parse(self.server.http.get(Route.REVOCATIONS).content)
        for peer, member in zip(self.peers, self.members, strict=True):
            head = AttemptHeader.parse(self.asked(peer, self.path(Route.SECURE)))
            assert head.attempt == 0
            wants = replace(expected(head), revocations=found)
            member.start(head, time.time(), wants)

    def _send(self, peer: Device, stage: str, body: bytes, said: SecureSigned) -> None:
        path, headers = self.path(Route.SECURE_MESSAGE, stage=stage), {SECURE_HEADER: said.model_dump_json()}
        answer = peer.send("PUT", path, content=body, headers=headers)
        enough = stage == "unmask" and answer.status_code == 409 and "late" in answer.text
        assert answer.status_code == 200 or enough, answer.text

    def exchange(self) -> str:
        """All send their message, with a kill in the middle; then they ask for the answers."""
        stage = ""
        for number, (peer, member) in enumerate(zip(self.peers, self.members, strict=True)):
            message = member.outgoing
            assert message is not None
            stage, masked = message.stage, message.stage == "mask"
            said = SecureSigned(
                signature=message.signature.hex(),
                certificate=message.blob.hex() if stage == "advertise" else "",
                body=message.body.hex() if masked else "",
            )
            body = message.blob if masked else message.body
            self._send(peer, stage, body, said)
            if number == NUMBER // 2:
                self.kill()
                self._send(peer, stage, body, said)  # the answer to the first was lost with the process
        for peer, member in zip(self.peers, self.members, strict=True):
            body = self.asked(peer, self.path(Route.SECURE_ANSWER, stage=stage))
            member.tell(body, time.time())
        return stage


@on_day(1, of=2)
def test_a_coordinator_that_is_killed_in_every_exchange_goes_on_with_the_same_attempt(tmp_path: Path) -> None:
    world = Killed(tmp_path / "data")
    try:
        world.check_in()
        world.kill()
        world.begin()
        stages = [world.exchange() for _ in range(5)]
        assert stages == ["advertise", "share", "mask", "survivors", "unmask"]
        for _ in range(100):
            view = world.server.http.get(Route.RUN.format(run=world.run)).json()
            if view["status"] == "finished":
                break
            time.sleep(0.1)
        assert (view["status"], view["version"]) == ("finished", 1), view
        weights = np.array([member.weight for member in world.members], np.float64)
        values = np.array([member.values for member in world.members], np.float64)
        wanted = MODEL["w"] + (weights @ values) / weights.sum()
        model = from_bytes(world.server.http.get(Route.CHECKPOINT.format(digest=view["checkpoint"])).content)
        assert np.allclose(model["w"], wanted, atol=1e-3)
        (shown,) = world.server.http.get(Route.ROUNDS.format(run=world.run)).json()
        assert (shown["status"], shown["attempt"]) == ("committed", 0)
        assert world.kills == 6
    finally:
        world.server.stop()
