"""Every route of devices and workers against every wrong signature: generated from the table of requests."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.secure import SECURE_HEADER, SecureSigned
from client_sdk.protocol.workers import RESULT_HEADER
from coordinator.requests import TABLE, Body, Held, Permission
from coordinator.service.openapi import EXAMPLES
from tests.coordinator.certified import key_of
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.devices import Device, Signing
from tests.coordinator.service.wire import Sent, Wire, kind, signed
from tests.coordinator.world import World

pytestmark = pytest.mark.slow

ENTRIES = [entry for entry in TABLE if entry.permission.of_peers]
ROUTES = [f"{entry.method} {entry.route}" for entry in ENTRIES] + [f"GET {Route.CHECKPOINT}"]
STRANGER = key_of("a stranger")
REPORT = '{"fence": 1, "steps": 1, "examples": 1}'


def with_unsigned(route: str, request: Sent) -> Sent:
    """The request with the header that its route needs and that its signature does not cover."""
    if route != Route.SECURE_MESSAGE:
        return request
    said = SecureSigned.model_validate(EXAMPLES["SecureSigned"])
    return request.with_header(SECURE_HEADER, said.model_dump_json())


class Asking:
    """A world with a device and a worker, and a good request for each route."""

    def __init__(self) -> None:
        self.world = World(2)
        self.world.create()
        self.world.worker()
        self.wire = Wire(self.world.coordinator)

    def key(self, name: str) -> DeviceKey:
        """Whose route it is."""
        entry = next((entry for entry in ENTRIES if f"{entry.method} {entry.route}" == name), None)
        workers = entry is not None and (entry.permission is Permission.WORKER or entry.route == Route.REGISTER_WORKER)
        return self.world.worker_keys[0] if workers else self.world.keys[0]

    def request(self, name: str, key: DeviceKey, **more: Any) -> Sent:
        """The request of this route, signed now by ``key``."""
        method, route = name.split(" ", 1)
        entry = next((entry for entry in ENTRIES if f"{entry.method} {entry.route}" == name), None)
        digest = self.world.coordinator.operators.run("marks").checkpoint
        path = route.format(run="marks", round=1, attempt=0, digest=digest, stage="share", message="0" * 64)
        certified = more.pop("certified", key)
        usual: dict[str, Any] = {"at": self.world.clock.at}
        if entry is not None and isinstance(entry.shape, Body):
            beside = entry.shape.beside
            usual |= {"body": b"some bytes", "result": REPORT if beside is not None and beside.signed else None}
        elif entry is not None and entry.message is not None:
            usual["message"] = self.message(entry, certified)
        return with_unsigned(route, signed(key, method, path, **{**usual, **more}))

    def message(self, entry: Any, key: DeviceKey) -> dict[str, Any]:
        if entry.permission is Permission.CERTIFIED:
            holder = "worker" if entry.route == Route.REGISTER_WORKER else "device"
            certificate = self.world.authority.certificate(key, at=self.world.clock.at, holder=holder)
            return {"certificate": certificate.encoded.hex()}
        return {**EXAMPLES[entry.message.__name__], **({"hold_s": 0} if isinstance(entry.shape, Held) else {})}

    def ask(self, request: Sent) -> str:
        return kind(self.wire.send(request))


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.wire.close()


SIGNED = {"unauthenticated", "bad-signature", "unregistered", "wrong-clock", "replayed-request", "not-certified"}
"""Refusals of a signature."""


@pytest.mark.parametrize("name", ROUTES)
def test_a_good_signature_is_let_in_once(asking: Asking, name: str) -> None:
    request = asking.request(name, asking.key(name))
    assert asking.ask(request) not in SIGNED
    assert asking.ask(request) in ({"replayed-request"} if name != f"POST {Route.LEAVE}" else {"unregistered"})


@pytest.mark.parametrize("name", ROUTES)
def test_what_is_not_signed_by_the_key_for_this_request_is_refused(asking: Asking, name: str) -> None:
    key = asking.key(name)
    good = asking.request(name, key)
    bare = {header: value for header, value in good.headers.items() if header != "Signature"}
    assert asking.ask(good.other(headers=bare)) == "unauthenticated"
    for header in ("Signature", "Signature-Input", "Content-Digest"):
        assert asking.ask(good.with_header(header, "junk")) == "unauthenticated", header
    assert asking.ask(asking.request(name, key, origin="http://localhost:9")) == "bad-signature"
    assert asking.ask(asking.request(name, key, origin="https://localhost")) == "bad-signature"
    assert asking.ask(good.other(path=good.path + "?after=1")) == "bad-signature"
    other = asking.request(name, key_of("another key"), certified=key)
    stolen = good.with_header("Signature", other.headers["Signature"])
    assert asking.ask(stolen) == "bad-signature"
    registers = name.endswith((f" {Route.REGISTER}", f" {Route.REGISTER_WORKER}"))
    by_stranger = asking.ask(asking.request(name, STRANGER, certified=key))
    assert by_stranger == ("bad-signature" if registers else "unregistered")
    assert len(asking.world.coordinator.signed.nonces) == 0, "no stranger takes room"


@pytest.mark.parametrize("name", ROUTES)
def test_a_body_that_was_not_signed_is_refused(asking: Asking, name: str) -> None:
    good = asking.request(name, asking.key(name))
    if not good.body:
        empty = asking.request(name, asking.key(name), body=b"not what is sent").other(body=b"")
        assert asking.ask(empty) == "bad-signature"
    elif RESULT_HEADER in good.headers:
        assert asking.ask(good.with_header(RESULT_HEADER, REPORT.replace("1", "2"))) == "bad-signature"
    elif good.body.startswith(b"{"):
        assert asking.ask(good.other(body=good.body[:-1] + b" }")) == "bad-signature"


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("apart", [-61, 11])
def test_a_request_that_is_not_around_now_is_refused_with_the_time(asking: Asking, name: str, apart: float) -> None:
    request = asking.request(name, asking.key(name), at=asking.world.clock.at + apart)
    assert asking.ask(request) == "wrong-clock"


@pytest.mark.parametrize("name", ROUTES)
def test_two_kinds_of_credentials_are_refused(asking: Asking, name: str) -> None:
    owner = asking.world.coordinator.access.keys.create_owner("a test", "").text
    request = asking.request(name, asking.key(name)).with_header("Authorization", f"Bearer {owner}")
    answer = asking.wire.send(request)
    assert kind(answer) == "unauthenticated"
    assert "send one of them" in answer.json()["detail"]


def test_a_request_of_an_operator_with_a_signature_beside_its_key_is_refused(asking: Asking) -> None:
    owner = asking.world.coordinator.access.keys.create_owner("a test", "").text
    request = signed(asking.world.keys[0], "GET", Route.RUNS, at=asking.world.clock.at)
    assert kind(asking.wire.send(request.with_header("Authorization", f"Bearer {owner}"))) == "unauthenticated"
    answer = asking.wire.send(request)
    assert (kind(answer), "Send an operator's API key" in answer.json()["detail"]) == ("unauthenticated", True)


@pytest.mark.parametrize("name", ROUTES)
def test_a_revoked_key_is_refused_everywhere(asking: Asking, name: str) -> None:
    key, world = asking.key(name), asking.world
    world.coordinator.identities.take_list(world.authority.list(world.clock.at, key))
    assert asking.ask(asking.request(name, key)) == "revoked-key"


@pytest.mark.parametrize("name", ROUTES)
def test_an_expired_certificate_is_refused_everywhere_with_the_advice_to_renew(asking: Asking, name: str) -> None:
    key, world = asking.key(name), asking.world
    request = asking.request(name, key)
    world.clock.at += 90 * 86_400
    again = signed(key, request.method, request.path, at=world.clock.at, body=request.body, result=REPORT)
    if RESULT_HEADER not in request.headers:
        again = signed(key, request.method, request.path, at=world.clock.at, body=request.body)
    assert asking.ask(with_unsigned(name.split(" ")[1], again)) == "expired-certificate"


def test_registrations_that_strangers_send_take_no_room(asking: Asking) -> None:
    for number in range(20):
        key = key_of(f"stranger {number}")
        path, at = Route.REGISTER, asking.world.clock.at
        forged = type(asking.world.authority)("a forger").certificate(key, at=at)
        message = {"certificate": forged.encoded.hex()}
        assert asking.ask(signed(key, "POST", path, message, at=at)) == "not-certified"
        assert asking.ask(signed(key, "POST", path, {"certificate": "80ff"}, at=at)) == "not-certified"
    assert len(asking.world.coordinator.signed.nonces) == 0
    assert asking.world.store.devices() == sorted(asking.world.rows, key=lambda row: row.device)


def test_only_the_list_and_probes_need_no_credentials(asking: Asking) -> None:
    answer = asking.wire.send(Sent("GET", Route.REVOCATIONS, {}))
    assert answer.headers["content-type"] == "application/vnd.quorate.revocations"
    held = asking.world.coordinator.identities.list()
    assert held is not None
    assert answer.content == held.encoded


# ---------------------------------------------------------------- over real sockets


def test_a_device_whose_clock_is_wrong_learns_it_from_the_answer(server: Server) -> None:
    device = Device(server.http, server.token, "clock")
    honest, device.auth = device.auth, Signing(device.auth.key, lambda: honest.clock() - 7_200)
    answer = device.check_in()
    assert answer.status_code == 401
    assert answer.json()["type"] == "/problems/wrong-clock"
    here = parsedate_to_datetime(answer.headers["date"]).timestamp()
    behind = here - (honest.clock() - 7_200)
    device.auth = Signing(device.auth.key, lambda: honest.clock() - 7_200 + behind)
    assert device.check_in().status_code == 200


def test_a_key_of_an_operator_is_no_credential_of_a_device(server: Server) -> None:
    answer = server.http.post(Route.CHECK_IN, json={"hold_s": 0}, headers={"Quorate-Protocol": "2"})
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthenticated")


def test_the_example_of_a_registration_is_of_hexadecimal_digits() -> None:
    for name in ("Registration", "WorkerRegistration"):
        assert bytes.fromhex(EXAMPLES[name]["certificate"])
