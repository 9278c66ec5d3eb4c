"""A browser logs in at an OpenID Connect issuer on this machine, and is sent back where that denies it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import Visitor
from tests.coordinator.access.issuer import AUDIENCE, CLIENT, LocalIssuer, local_issuer
from tests.coordinator.service.conftest import Server

pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture(scope="module")
def issuer() -> Iterator[LocalIssuer]:
    with local_issuer() as made:
        yield made


@pytest.fixture(scope="module")
def server(issuer: LocalIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator at which the issuer's people may log in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUORATE_OIDC_ISSUER", issuer.url)
        patch.setenv("QUORATE_OIDC_AUDIENCE", AUDIENCE)
        patch.setenv("QUORATE_OIDC_CLIENT", CLIENT)
        started = Server.start(tmp_path_factory.mktemp("coordinator"))
    yield started
    started.stop()


def asked_of(visitor: Visitor, issuer: LocalIssuer) -> list[str]:
    """Takes the addresses at the issuer out of those that were asked: the browser goes there to log in."""
    there = [url for url in visitor.requests if url.startswith(issuer.url)]
    visitor.requests = [url for url in visitor.requests if url not in there]
    return there


def test_somebody_logs_in_at_the_issuer_and_out_again(chromium: Any, server: Server, issuer: LocalIssuer) -> None:
    visitor = Visitor(chromium, server.url)
    try:
        page = visitor.open()
        page.get_by_role("link", name="Log in at 127.0.0.1").click()
        page.get_by_role("heading", name="Runs").wait_for()
        page.get_by_text("oidc:olga").wait_for()
        page.get_by_role("link", name="Audit").wait_for()
        assert page.evaluate("location.search + location.hash") in ("", "#/runs")
        (there,) = asked_of(visitor, issuer)
        assert all(part in there for part in ("state=", "nonce=", "code_challenge="))
        (cookie,) = [one for one in visitor.context.cookies() if one["value"].startswith("qs_")]
        assert cookie["httpOnly"]
        page.reload()
        page.get_by_role("heading", name="Runs").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("You are logged out.").wait_for()
        page.reload()
        page.get_by_label("API key").wait_for()
    finally:
        visitor.close()


def test_somebody_of_no_group_gets_no_session(chromium: Any, server: Server, issuer: LocalIssuer) -> None:
    visitor = Visitor(chromium, server.url)
    issuer.claims = {"groups": ["strangers"]}
    try:
        page = visitor.open()
        page.get_by_role("link", name="Log in at 127.0.0.1").click()
        page.wait_for_url(server.url + "/**")
        page.wait_for_load_state()
        assert page.get_by_role("heading", name="Runs").count() == 0
        assert not [one for one in visitor.context.cookies() if one["value"].startswith("qs_")]
        assert len(asked_of(visitor, issuer)) == 1
        visitor.allow("40")
    finally:
        issuer.claims = {}
        visitor.close()
