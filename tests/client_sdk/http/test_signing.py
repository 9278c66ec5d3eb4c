"""Signed requests over HTTP: what is signed, each attempt afresh, by which clock; and whom a device believes."""

from __future__ import annotations

import hashlib
import socket
import threading
from typing import Any

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.request_signature import RequestSignature
from client_sdk.device.actions import Answered, Send
from client_sdk.device.record import Record
from client_sdk.device.storage import MemoryStorage
from client_sdk.http.client import Client, Notice
from client_sdk.http.exchange import Exchange, RequestSigner
from client_sdk.http.transport import open_http
from client_sdk.identity import DeviceKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.workers import ResultReceipt, ResultReport
from coordinator.authority.issuer import DAY_S
from tests.client_sdk.http.clients import client
from tests.client_sdk.http.http_authority import authority, shared
from tests.client_sdk.http.http_script import script, serving, trainer
from tests.coordinator.authority.world import key_of

HOUR_S = 3600


def record_of(storage: MemoryStorage) -> Record:
    record = storage.load()
    assert record is not None
    return record


def headers_of(sent: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in sent.items()]


def test_every_request_is_signed_by_the_certified_key_over_its_body() -> None:
    storage = MemoryStorage()
    with serving(script()) as server, client(server, storage) as device:
        device.run(rounds=1)
    certificate = Certificate.parse(bytes.fromhex(record_of(storage).certificate))
    assert {signature.key_id for signature in server.signatures} == {certificate.key_id.hex()}
    update = server.script.rounds[0].update
    assert update is not None
    digests = [signature.digest for signature in server.signatures]
    assert len(server.headers) == len(digests)
    (put,) = [place for place, (method, _, _) in enumerate(server.headers) if method == "PUT"]
    server.signatures[put].require_body(hashlib.sha256(update).digest())
    for place, (method, _, _) in enumerate(server.headers):
        if method == "GET":
            server.signatures[place].require_body(hashlib.sha256(b"").digest())


def test_a_request_that_is_sent_again_is_signed_afresh() -> None:
    with serving(script()) as server:
        broken = iter(range(4))

        def lose(method: str, path: str, handler: Any) -> bool:
            if method == "PUT" and next(broken, None) is not None:
                handler.rfile.read(int(handler.headers["Content-Length"]))
                handler.connection.shutdown(socket.SHUT_RDWR)
                handler.close_connection = True
                return True
            return False

        server.accident = lose
        with client(server) as device:
            device.run(rounds=1)
    sent = [RequestSignature.parse(headers_of(given)) for _, _, given in server.headers]
    assert len(sent) > len(server.signatures)
    assert len({signature.nonce for signature in sent}) == len(sent)
    puts = [RequestSignature.parse(headers_of(given)) for method, _, given in server.headers if method == "PUT"]
    assert len(puts) == 5
    assert len({signature.digest for signature in puts}) == 1, "the same bytes, signed five times"


def test_the_header_of_a_workers_result_is_signed_too() -> None:
    body = b"the model"
    digest = hashlib.sha256(body).hexdigest()
    storage = MemoryStorage()
    storage.save(Record(update_digest=digest), body)
    receipt = ResultReceipt(run="r", round=1, attempt=1, worker="w1", digest=digest, version=2)
    coordinator = script()
    coordinator.handle = lambda *asked: (200, receipt.model_dump_json().encode())  # type: ignore[method-assign]
    key = DeviceKey.create()
    with serving(coordinator) as server, open_http(server.url) as http:
        server._signer = lambda handler, body: ""  # type: ignore[method-assign]
        signing = RequestSigner(server.url, server.now)
        signing.signer = key
        report = ResultReport(fence=3, parent=digest, steps=5, examples=7, metrics={"loss": 0.5})
        path: dict[str, str | int] = {"run": "r", "round": 1, "attempt": 1}
        send = Send(
            method="PUT", route=Route.RESULT, answers=(ResultReceipt,), path=path, message=report, update=digest
        )
        assert isinstance(Exchange(http, server.url, storage, server.now, signing).send(send), Answered)
    ((method, where, sent),) = server.headers
    signature = RequestSignature.parse(headers_of(sent))
    assert signature.with_result
    signature.require_signed(
        bytes.fromhex(key.public_hex), method=method, uri=server.url + where, result=sent["quorate-result"]
    )


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("ahead_s", [-30 * HOUR_S, 30 * HOUR_S])
def test_a_device_whose_clock_is_wrong_learns_the_difference_for_signatures_only(ahead_s: float) -> None:
    storage = MemoryStorage()
    found: list[Notice] = []
    with serving(script(rounds=2)) as server, client(server, storage, on_notice=found.append) as device:
        device._clock_offset += ahead_s
        began = device._now()
        assert device.run(rounds=2) == 2
        assert device._now() >= began, "its own clock did not move"
    wrong = len(server.headers) - len(server.signatures)
    assert wrong == 1, "the first request was signed twice, and no other one"
    assert abs(device._signing.clock.ahead_s + ahead_s) < 5
    assert not [notice for notice in found if notice.kind == "trouble"]
    for entry in storage.history():
        assert entry.joined_at >= began


def test_a_checkpoint_is_fetched_after_the_clock_was_learnt() -> None:
    with serving(script()) as server, client(server) as device:

        def jump(method: str, path: str, handler: Any) -> bool:
            if path.endswith("/started"):
                device._clock_offset += HOUR_S
            return False

        server.accident = jump
        assert device.run(rounds=1) == 1
        assert server.script.rounds[0].update is not None


def test_a_coordinator_that_lies_about_the_time_makes_no_expired_certificate_current() -> None:
    """What was learnt moves no renewal: that goes by the device's own clock."""
    storage = MemoryStorage()
    with authority() as own, serving(script(rounds=2)) as server:
        server.script.authority = own
        lie_s = -60 * DAY_S
        with client(server, storage, enrolment_token=own.text) as device:
            device.run(rounds=1)
            before = record_of(storage).certificate
            server.now = lambda: device._now() + lie_s
            device._clock_offset += 50 * DAY_S
            own.now = device._now
            device._signing.clock.ahead_s = lie_s
            device.run(rounds=1)
        assert [path for path, _ in own.requests].count("/v1/certificates/renewed") == 1
        assert record_of(storage).certificate != before


# ---------------------------------------------------------------- the authority


def test_a_proxy_of_enrolment_with_an_authority_of_its_own_gets_nothing_secret() -> None:
    token = shared().enrolment
    with authority(key=key_of("the coordinator's own")) as other, serving(script()) as server:
        forged = type(token)(other.url, token.authority, token.secret)
        with client(server, enrolment_token=forged.text) as device:
            with pytest.raises(ProblemError, match=r"was not believed: This is the key of another authority"):
                device.run()
    assert [path for path, _ in other.requests] == ["/v1/authority"]
    assert not any(token.secret.hex().encode() in body for _, body in other.requests)
    assert server.headers == []


def test_a_token_that_is_none_is_refused_before_anything_is_opened() -> None:
    for text, sentence in (("guess", "one begins with qe1_"), (shared().text[:-3], "was not copied whole")):
        with pytest.raises(ValueError, match=sentence):
            Client("http://127.0.0.1:9", MemoryStorage(), trainer(), enrolment_token=text)


def test_spaces_around_a_token_do_not_matter() -> None:
    with serving(script()) as server, client(server, enrolment_token=f" {shared().text}\n") as device:
        assert device.run(rounds=1) == 1


def test_what_proves_who_the_device_is_goes_to_the_pinned_authority() -> None:
    drawn = iter(["attested 1", "attested 2"])
    with authority() as own, serving(script()) as server:
        server.script.authority = own
        busy = iter([problem("busy", "Not now.")])

        def interfere(path: str) -> None:
            trouble = next(busy, None) if path == "/v1/certificates" else None
            if trouble is not None:
                raise trouble

        own.interfere = interfere
        with client(server, enrolment_token=own.text, who=lambda: next(drawn)) as device:
            device.run(rounds=1)
        sent = [body for path, body in own.requests if path == "/v1/certificates"]
    assert [b'"who":"attested 1"' in sent[0], b'"who":"attested 2"' in sent[1]] == [True, True]


@pytest.mark.parametrize("length", [16_385, None])
def test_a_proof_that_cannot_be_had_or_sent_ends_the_device_with_a_sentence(length: int | None) -> None:
    def who() -> str:
        if length is None:
            raise OSError("the chip does not answer")
        return "x" * length

    with serving(script()) as server, client(server, who=who) as device:
        with pytest.raises(
            ProblemError, match=r"What proves who this device is (cannot be had: the chip|may have 16384)"
        ):
            device.run()
        assert server.headers == []


def test_an_authority_that_does_not_answer_is_asked_until_it_does() -> None:
    found: list[Notice] = []
    with authority() as own, serving(script()) as server:
        server.script.authority = own
        refusals = iter([problem("busy", "The authority restarts.")] * 2)

        def interfere(path: str) -> None:
            trouble = next(refusals, None)
            if trouble is not None:
                raise trouble

        own.interfere = interfere
        with client(server, enrolment_token=own.text, on_notice=found.append) as device:
            assert device.run(rounds=1) == 1
    assert found[0].text.startswith("The authority restarts. Trying again in")
    assert found[1].kind == "enrolled"


def test_a_renewal_that_fails_is_told_and_the_device_goes_on() -> None:
    found: list[Notice] = []
    storage = MemoryStorage()
    with serving(script(rounds=2)) as server:
        with authority() as own:
            server.script.authority = own
            with client(server, storage, enrolment_token=own.text) as device:
                device.run(rounds=1)
        with client(server, storage, enrolment_token=None, on_notice=found.append) as device:
            device._clock_offset += 50 * DAY_S
            server.now = device._now
            assert device.run(rounds=1) == 1
    assert found[0].text.startswith("The certificate was not renewed. No authority answers at")
    assert found[-1].kind == "receipt"


def test_a_request_that_was_signed_for_one_coordinator_is_refused_by_another() -> None:
    """Who has a device come to an address of his own cannot pass its requests on."""
    caught: list[tuple[dict[str, str], bytes]] = []
    with serving(script()) as server, serving(script()) as middle:

        def catch(method: str, path: str, handler: Any) -> bool:
            body = handler.rfile.read(int(handler.headers["Content-Length"]))
            caught.append((dict(handler.headers.items()), body))
            raise ConnectionAbortedError

        middle.accident = catch
        stop = threading.Event()
        with client(middle, on_notice=lambda notice: stop.set() if notice.kind == "trouble" else None) as device:
            device.run(stop=stop)
        sent, body = caught[0]
        with open_http(server.url) as http:
            signed = {name: sent[name] for name in ("Content-Digest", "Signature", "Signature-Input")}
            answer = http.post(Route.REGISTER, content=body, headers=signed)
    assert answer.status_code == 401
    assert server.script.registrations == 0
