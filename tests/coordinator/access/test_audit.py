"""The audit has every request of operators that changes something, and every refusal; and no secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from client_sdk.identity import DeviceKey
from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import PROTOCOL_HEADER, PROTOCOL_VERSION, Route
from coordinator.access import LOCAL_OWNER
from coordinator.requests import TABLE, Body, Permission
from coordinator.service import create_app
from coordinator.settings import Settings
from coordinator.store.chain import AuditHead
from coordinator.store.port import AuditRow, StoreError
from coordinator.verify import AuditWitness, verify
from tests.coordinator.certified import key_of
from tests.coordinator.requests.entries import EXTENDED
from tests.coordinator.service.devices import Signing
from tests.coordinator.world import World

OF_A_SERVERAPP = frozenset({Route.FLOWER_CONTENT, Route.FLOWER_MESSAGES, Route.FLOWER_REPLIES, Route.FLOWER_STATE})
"""What the program of a run sends between its begin and its end, which are audited: each message is a row itself."""
CHANGE_NOTHING = frozenset({Route.CHECK_PLAN}) | OF_A_SERVERAPP
"""Routes that are POST because what they are asked about is long, and those of a program."""


class Audited:
    def __init__(self) -> None:
        self.world = World(0)
        self.world.create()
        made = self.world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="owner"))
        self.key, self.text = f"key:{made.key}", made.text
        self.app = create_app(self.world.coordinator, Settings(), EXTENDED)

    def ask(self, method: str, path: str, text: str | None = None, **options: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.text if text is None else text}"}
        headers[PROTOCOL_HEADER] = str(PROTOCOL_VERSION)

        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
                return await http.request(method, path, **options)

        return asyncio.run(ask())

    def rows(self) -> list[tuple[str | None, str, str, str]]:
        """Those since the world was made, which took an authority and a revocation list, and since its owner's key."""
        found = [(row.run, row.by, row.action, row.detail) for _, row in self.world.store.audit_of_all(0, 200)]
        assert [row[2] for row in found[:3]] == ["authority.taken", "revocations.taken", "key.create done"]
        assert found[1][1:] == ("authority", "revocations.taken", "counter=1000000 keys=0")
        return found[3:]


@pytest.fixture
def audited() -> Iterator[Audited]:
    made = Audited()
    yield made
    made.app.state.service.close()


def test_every_request_of_operators_that_changes_something_is_audited_and_who_registers_and_leaves() -> None:
    for entry in TABLE:
        changes = entry.method != "GET" and entry.permission.of_operators and entry.route not in CHANGE_NOTHING
        of_holders = entry.permission is Permission.CERTIFIED or entry.name == "leave-and-forget"
        assert (entry.audited is not None) == (changes or of_holders), entry.name
        if entry.audited is not None:
            fields = entry.message.model_fields if entry.message is not None else {}
            assert set(entry.audited.asks) <= set(fields)
            assert not {*entry.audited.asks, *entry.audited.makes} & {"token", "text", "enrolment_token", "proof"}
            assert not entry.audited.makes or not isinstance(entry.shape, Body)


def test_a_request_is_recorded_with_who_asked(audited: Audited) -> None:
    audited.ask("POST", "/v1/runs/marks/pause").raise_for_status()
    worker = audited.world.worker()
    audited.ask("POST", Route.REVOKE_WORKER.format(worker=worker.worker)).raise_for_status()
    key = audited.ask("POST", Route.KEYS, json={"role": "viewer", "scope": "marks", "label": "wall"}).json()
    audited.ask("GET", Route.RUNS).raise_for_status()
    by, stored = audited.key, audited.world.store.api_key(key["key"])
    assert stored is not None
    assert audited.rows() == [
        ("marks", by, "run.pause", ""),
        (None, by, "worker.revoke", f"worker={worker.worker}"),
        (None, by, "worker.revoke done", f"worker={worker.worker}"),
        (None, by, "key.create", "role=viewer scope=marks expires_in_s=7776000.0 label=wall"),
        (None, by, "key.create done", f"role=viewer scope=marks key={key['key']} row={stored.digest}"),
    ]
    for secret in (key["text"], key["text"].rpartition("_")[2], audited.text):
        assert secret not in repr(audited.rows())


def test_who_registers_and_who_leaves_is_recorded_without_the_devices_label(audited: Audited) -> None:
    """Rows of the audit stay, and a device that leaves is promised that its label does not (``leaving.kept_of``)."""
    world, key = audited.world, key_of("a device")
    certificate = world.authority.certificate(key, at=world.clock.at)
    message = {"certificate": certificate.encoded.hex(), "label": "ward 7", "examples": 300}
    signing = Signing(key, world.clock.now)
    audited.ask("POST", Route.REGISTER, json=message, auth=signing).raise_for_status()
    audited.ask("POST", Route.LEAVE, auth=signing).raise_for_status()
    assert audited.rows() == [
        (None, certificate.id, "device.register done", f"device={certificate.id} rounded_cap=512"),
        (None, certificate.id, "device.leave", ""),
    ]
    left = world.store.device(certificate.id)
    assert left is not None
    assert "ward 7" not in repr([left, audited.rows()])


def test_what_was_created_is_named_and_the_audit_of_a_run_has_its_creation(audited: Audited) -> None:
    init = audited.world.coordinator.operators.run("marks").checkpoint
    plan = audited.world.plan()
    made = audited.ask("POST", Route.RUNS, json={"plan": plan, "init": init, "origin": "a file"})
    assert made.json()["run"] == "marks-2"
    assert [(run, action) for run, _, action, _ in audited.rows()] == [
        (None, "run.create"),
        ("marks-2", "run.create done"),
    ]
    assert audited.rows()[0][3] == f"init={init} origin=a file"


def test_a_refused_request_has_a_row_that_says_so(audited: Audited) -> None:
    assert audited.ask("POST", "/v1/runs/marks/advance", json={"by": "olga"}).status_code == 409
    assert audited.ask("POST", "/v1/runs/nowhere/stop").status_code == 404
    assert audited.rows() == [
        ("marks", audited.key, "run.advance", "by=olga"),
        ("marks", audited.key, "run.advance refused", "conflict"),
        (None, audited.key, "run.stop", "run=nowhere"),
        (None, audited.key, "run.stop refused", "run=nowhere unknown-run"),
    ]


def test_what_cannot_be_recorded_is_not_done(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(rows: list[AuditRow]) -> None:
        raise StoreError("no room")

    monkeypatch.setattr("coordinator.store.memory.MemoryTransaction.insert_audit", lambda self, rows: full(rows))
    assert audited.ask("POST", "/v1/runs/marks/stop").status_code == 503
    assert audited.world.coordinator.operators.run("marks").status == "running"


def test_refusals_are_recorded_once_a_minute_with_their_number(audited: Audited) -> None:
    viewer = audited.world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="viewer", scope="other"))
    for _ in range(3):
        assert audited.ask("GET", Route.RUNS, "qk_junk").status_code == 401
        assert audited.ask("GET", "/v1/runs/marks", viewer.text).status_code == 403
    assert [(by, action) for _, by, action, _ in audited.rows()[1:]] == [
        ("", "refused.unauthenticated"),
        (f"key:{viewer.key}", "refused.not-permitted"),
    ]
    audited.world.clock.at += 60
    audited.ask("GET", Route.RUNS, "qk_junk")
    assert audited.rows()[-1][3] == "this API key is not valid here (and 2 more)"
    assert "qk_junk" not in repr(audited.rows())


def test_refused_registrations_are_recorded_once_a_minute_with_their_number(audited: Audited) -> None:
    """Who has no certificate can neither register nor fill the audit."""
    world, key, other = audited.world, key_of("a device"), key_of("another one")
    stolen = world.authority.certificate(other, at=world.clock.at)
    for refused in ({"certificate": "00"}, {"certificate": stolen.encoded.hex(), "label": "ward 7"}) * 20:
        answer = audited.ask("POST", Route.REGISTER, json=refused, auth=Signing(key, world.clock.now))
        assert answer.status_code in (401, 403), answer.text
    ((_, by, action, _),) = audited.rows()
    assert (by, action) == ("", "refused.registration")
    world.clock.at += 60
    audited.ask("POST", Route.REGISTER, json={"certificate": "00"}, auth=Signing(key, world.clock.now))
    assert audited.rows()[1][3].endswith("(and 39 more)")
    assert "ward 7" not in repr(audited.rows())


def test_where_the_audit_ends_is_signed_and_for_owners_of_everything(audited: Audited) -> None:
    before = audited.ask("GET", Route.AUDIT_HEAD).json()["count"]
    audited.ask("POST", "/v1/runs/marks/pause").raise_for_status()
    unsigned = audited.ask("GET", Route.AUDIT_HEAD).json()
    assert (unsigned["count"], len(unsigned["link"]), unsigned["head"]) == (before + 1, 64, "")
    key = audited.world.store.audit_signer = DeviceKey.create()
    audited.ask("POST", "/v1/runs/marks/resume").raise_for_status()
    found = audited.ask("GET", Route.AUDIT_HEAD).json()
    head = AuditHead.parse(found["head"])
    assert (head.count, head.key) == (before + 2, key.public_hex)
    assert list(verify(audited.world.store, audit=AuditWitness(heads=[head]))) == []
    scoped = audited.world.coordinator.access.keys.create(LOCAL_OWNER, CreateKey(role="owner", scope="marks"))
    assert audited.ask("GET", Route.AUDIT_HEAD, scoped.text).status_code == 403


def test_a_process_that_signs_with_another_key_than_the_newest_row_says_so(audited: Audited) -> None:
    audit, store = audited.world.coordinator.access.audit, audited.world.store
    for seed in (1, 1, 2, 1):
        key = store.audit_signer = DeviceKey(bytes([seed]) * 32)
        audit.begin(key.public_hex)
    begun = [(by, action, detail) for _, by, action, detail in audited.rows()]
    named = [DeviceKey(bytes([seed]) * 32).public_hex for seed in (1, 2, 1)]
    assert begun == [("quorate serve", "audit.key", f"key={public}") for public in named]


def test_rows_are_one_line_without_control_characters(audited: Audited) -> None:
    audit = audited.world.coordinator.access.audit
    audit.record("oidc:a\nb\x1b[2J", "login", "x" * 10_000)
    ((_, by, _, detail),) = audited.rows()
    assert by == r"oidc:a\nb\x1b[2J"
    assert len(detail) == 500


def test_a_run_with_audited_requests_verifies(audited: Audited) -> None:
    for action in ("pause", "resume", "stop"):
        audited.ask("POST", f"/v1/runs/marks/{action}").raise_for_status()
    assert [row.action for row in audited.world.store.audit("marks")] == ["run.pause", "run.resume", "run.stop"]
    assert list(verify(audited.world.store, None)) == []
