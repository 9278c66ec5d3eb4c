"""The revocation list of a coordinator: fetched from a real authority, stored, served on; and what is said without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from client_sdk.credentials.certificate import RevocationList, following
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.http.authority import AuthorityClient
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import problem
from coordinator.service.revocations import ListKeeper
from coordinator.store.port import StoreError
from tests.coordinator.certified import Certifier
from tests.coordinator.service.authorities import AuthorityProcess
from tests.coordinator.service.conftest import NO_AUTHORITY, Server
from tests.coordinator.service.devices import Device, Peer
from tests.coordinator.service.test_edge import refused
from tests.coordinator.service.test_rounds import until
from tests.coordinator.world import World
from tests.rotating import on_day


class Fetching:
    """Answers as a test says: with bytes, or with an error."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer

    def __call__(self) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_fetch_that_fails_is_said_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(1)
    identities = world.coordinator.identities
    held, fetching = identities.list(), Fetching(OSError("the cable is out"))
    keeper = ListKeeper(identities, fetching, 60)
    for error, words in (
        (OSError("the cable is out"), "the cable is out"),
        (problem("busy", "No authority answers."), "No authority answers"),
        (StoreError("The disk is full."), "The disk is full"),
    ):
        fetching.answer = error
        keeper.take()
        assert words in identities.trouble()
        assert words in str(world.coordinator.healthy()["authority"])
    for wrong in (b"no list", Certifier("another").list(world.clock.at)):
        fetching.answer = wrong
        keeper.take()
        assert "failed: " in identities.trouble()
    assert identities.list() is held
    fetching.answer = newer = world.authority.list(world.clock.at)
    keeper.take()
    assert identities.trouble() == ""
    now = identities.list()
    assert now is not None
    assert now.encoded == newer
    logged = capsys.readouterr()
    assert (logged.out + logged.err).count("was not taken") == 1, "once, until it works again"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorityProcess]:
    running = AuthorityProcess.start(tmp_path_factory.mktemp("apart") / "authority")
    yield running
    running.stop()


@pytest.fixture
def quick(tmp_path: Path, authority: AuthorityProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A coordinator with an authority apart, whose list it fetches ten times a second."""
    monkeypatch.setenv("QUORATE_REVOCATIONS_S", "0.1")
    running = Server.start(tmp_path / "data", *authority.options)
    yield running
    running.stop()


@pytest.mark.slow
def test_with_an_authority_apart_devices_register_and_a_revoked_one_is_out(
    quick: Server, authority: AuthorityProcess
) -> None:
    until(lambda: "authority" not in quick.http.get("/readyz").json())
    run = quick.create_run("apart", select=2)
    device, other = (Device(quick.http, authority.token(), run) for _ in range(2))
    assert device.check_in().status_code == 200
    trusted = TrustedAuthority(bytes.fromhex(authority.key))
    before = following(None, httpx2.get(quick.url + Route.REVOCATIONS).content, trusted)
    authority.revoke(device.id)
    until(lambda: device.check_in().status_code == 403)
    refused(device.register(), 403, "revoked-key")
    assert other.check_in().status_code == 200
    after = following(before, httpx2.get(quick.url + Route.REVOCATIONS).content, trusted)
    assert after.revoked == (device.certificate.key_id,)
    assert quick.http.get(f"/v1/runs/{run}/rounds").json()[0]["authority"] == "apart"
    assert [row["detail"] for row in quick.http.get(Route.AUDIT).json() if row["action"] == "revocations.taken"][
        -1
    ] == (f"counter={after.counter} keys=1")


@on_day(2, of=3)
def test_an_authority_that_is_down_stops_no_registered_device(
    quick: Server, authority: AuthorityProcess, tmp_path: Path
) -> None:
    until(lambda: "authority" not in quick.http.get("/readyz").json())
    device, late = Device(quick.http, authority.token(), "down"), Peer(quick.http, authority.token())
    authority.stop()
    try:
        until(lambda: "failed" in quick.http.get("/readyz").json().get("authority", ""))
        assert device.check_in().status_code == 200
        assert device.register().status_code == 201
        listed = quick.http.get(Route.REVOCATIONS).content
        quick.stop()
        again = Server.start(tmp_path / "data", *authority.options)
        try:
            assert again.http.get(Route.REVOCATIONS).content == listed, "it was stored"
            device.http = late.http = again.http
            assert device.check_in().status_code == 200
        finally:
            again.stop()
    finally:
        authority.start_again()


@pytest.mark.slow
def test_a_coordinator_without_an_authority_says_what_to_do(tmp_path: Path) -> None:
    alone = Server.start(tmp_path / "data", NO_AUTHORITY)
    try:
        ready = alone.http.get("/readyz")
        assert (ready.status_code, "--authority-key" in ready.json()["authority"]) == (200, True)
        assert "--dev-authority" in refused(alone.http.get(Route.REVOCATIONS), 503, "busy")
        assert alone.token == ""
    finally:
        alone.stop()


def test_the_list_is_served_as_it_is(server: Server) -> None:
    answer = httpx2.get(server.url + Route.REVOCATIONS)
    assert answer.headers["content-type"] == "application/vnd.quorate.revocations"
    assert RevocationList.parse(answer.content).counter > 0


def test_a_device_enrols_renews_and_leaves_at_the_coordinators_url(server: Server) -> None:
    token = EnrolmentToken.parse(server.token)
    assert token.url == server.url
    device = Device(server.http, server.token, "inside")
    assert device.register().json()["authority_inside"] is True
    with AuthorityClient(token.url, token.authority) as authority:
        assert authority.renew(device.auth.key) == device.certificate
        authority.leave(device.auth.key)
    run = server.create_run("inside")
    assert server.http.get(f"/v1/runs/{run}/rounds/1").json()["authority"] == "inside"
