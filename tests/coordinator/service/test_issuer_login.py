"""A browser logs in at an OpenID Connect issuer on this machine: there and back, and every way not to be let in."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from pydantic import ValidationError

from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError
from coordinator.access import code_flow
from coordinator.access.code_flow import BEGUN_S
from coordinator.access.sessions import SESSION_S
from coordinator.service import create_app
from coordinator.settings import Settings
from tests.coordinator.access.issuer import AUDIENCE, CLIENT, CLIENT_SECRET, LocalIssuer, local_issuer
from tests.coordinator.service.at_issuer import ORIGIN, PAGE, AtIssuer
from tests.coordinator.service.browser import Browser
from tests.coordinator.world import World

pytestmark = pytest.mark.whole

ENDED = (401, "/problems/unauthenticated")


@pytest.fixture
def issuer() -> Iterator[LocalIssuer]:
    with local_issuer() as served:
        yield served


@pytest.fixture(scope="module")
def shared() -> Iterator[AtIssuer]:
    with local_issuer() as served:
        made = AtIssuer(served)
        yield made
        made.close()


@pytest.fixture
def at(shared: AtIssuer) -> AtIssuer:
    """A new browser, an issuer that does what it is asked, and a store without logins."""
    shared.browser = Browser(shared.browser.app, ORIGIN)
    shared.settings = shared.coordinator.core.settings
    shared.world.clock.at = time.time()
    shared.issuer.claims, shared.issuer.denies, shared.issuer.down, shared.issuer.broken = {}, "", "", False
    shared.issuer.forms.clear()
    with shared.world.store.transaction() as tx:
        tx.drop_logins([row.login for row in tx.logins()])
    return shared


# ------------------------------------------------------------ there and back


def test_a_person_logs_in_and_comes_back_to_the_page(at: AtIssuer) -> None:
    assert at.browser.ask("GET", Route.SESSION_WAYS, {}).json()["oidc"] == at.issuer.url
    begun = at.begin(next="/runs/marks?tab=rounds#last")
    asked = dict(parse_qsl(urlsplit(begun.headers["location"]).query))
    assert asked["redirect_uri"] == ORIGIN + Route.OIDC_CALLBACK
    assert set(asked) == {
        "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge",
        "code_challenge_method",
    }  # fmt: skip
    back = at.back(at.there(begun))
    assert (back.status_code, back.headers["location"]) == (303, "/runs/marks?tab=rounds#last")
    assert list(at.browser.cookies) == ["quorate-8470"], "the login's own cookie is gone"
    shown = at.browser.me().json()
    assert (shown["id"], shown["by"]) == ("oidc:olga", "oidc")
    assert shown["grants"] == [{"role": "owner", "scope": "*"}]
    assert shown["expires_at"] < time.time() + SESSION_S, "never longer than the token"
    assert at.browser.ask("POST", "/v1/runs/marks/pause").status_code == 200


def test_the_session_ends_with_the_token(at: AtIssuer) -> None:
    at.log_in()
    ends = at.browser.me().json()["expires_at"]
    at.world.clock.at = ends - 0.5
    assert at.browser.me().status_code == 200
    at.world.clock.at = ends
    assert at.browser.me().status_code == 401


def test_the_session_holds_on_another_replica_and_over_a_restart(at: AtIssuer) -> None:
    at.log_in()
    other = Browser(create_app(at.serve(), at.settings), ORIGIN)
    other.cookies = at.browser.cookies
    assert other.me().json() == at.browser.me().json()
    other.close()


def test_a_group_that_gives_nothing_any_longer_ends_its_sessions(at: AtIssuer) -> None:
    """An owner takes a group out of the settings, and starts the coordinator again."""
    at.issuer.claims = {"groups": ["viewer", "choir"]}
    at.log_in()
    assert at.browser.me().json()["grants"] == [{"role": "viewer", "scope": "*"}]
    (secret,) = at.browser.cookies.values()
    at.settings = at.settings.model_copy(update={"oidc_grants": {"viewer": "operator marks"}})
    assert str(at.serve().access.operator(secret)) == "operator marks"
    without = [at.settings.model_copy(update={"oidc_grants": grants}) for grants in ({"choir": "owner"}, {})]
    for at.settings in (*without, Settings()):
        with pytest.raises(ProblemError, match="gives no role here any longer"):
            at.serve().access.operator(secret)


@pytest.mark.parametrize("ways", [["client_secret_basic", "client_secret_post"], ["client_secret_post"]])
def test_a_client_with_a_secret_shows_it_as_the_issuer_reads_it(
    issuer: LocalIssuer, tmp_path: Path, ways: list[str]
) -> None:
    file = tmp_path / "secret"
    file.write_text(CLIENT_SECRET + "\n")
    issuer.secret, issuer.ways = CLIENT_SECRET, ways
    made = AtIssuer(issuer, oidc_client_secret=file)
    assert made.log_in().status_code == 303
    assert ("client_secret" in issuer.forms[0]) is ("client_secret_basic" not in ways)
    file.write_text("another")  # it is read at each login
    other = Browser(made.browser.app)
    assert "does not take the code" in made.refused(made.there(made.begin(other)), other)
    made.close()


def test_behind_a_public_url_the_issuer_sends_the_browser_there(issuer: LocalIssuer) -> None:
    made = AtIssuer(issuer, public_url="https://fl.example/quorate", behind_proxy="10.0.0.0/8")
    begun = made.begin()
    asked = dict(parse_qsl(urlsplit(begun.headers["location"]).query))
    assert asked["redirect_uri"] == "https://fl.example/quorate/v1/sessions/oidc/callback"
    assert begun.headers["set-cookie"].startswith("__Host-quorate-login=")
    assert "Secure" in begun.headers["set-cookie"]
    back = made.back(made.there(begun))
    assert back.headers["location"] == "/quorate/"
    assert set(made.browser.cookies) == {"__Host-quorate"}
    made.close()


# ------------------------------------------------------------ who is not let in


def test_a_login_that_another_browser_began_is_refused(at: AtIssuer) -> None:
    """An attacker sends a victim the address with the attacker's own code: the victim would work as the attacker."""
    attacker, victim = at.browser, Browser(at.browser.app, ORIGIN)
    address = at.there(at.begin(attacker))
    assert at.refused(address, victim).startswith("unauthenticated: this browser has not begun this login")
    at.begin(victim)
    assert at.refused(address, victim).startswith("unauthenticated: this browser has not begun this login")
    assert at.issuer.forms == [], "the code was not sent on"


def test_a_login_is_finished_once(at: AtIssuer) -> None:
    address = at.there(at.begin())
    planted = dict(at.browser.cookies)
    at.back(address)
    at.browser.cookies = {}
    assert "has not begun this login" in at.refused(address)
    at.browser.cookies = planted
    assert "does not take the code" in at.refused(address)


@pytest.mark.parametrize("secret", ["", "0" * 63, "0" * 65, "g" * 64, "qs_"])
def test_a_state_that_anybody_can_compute_is_refused(at: AtIssuer, secret: str) -> None:
    """Also where the browser has no cookie: nothing is computed from an empty secret."""
    said = urlsafe_b64encode(json.dumps([time.time(), "/"]).encode()).rstrip(b"=").decode()
    forged = f"{said}.{code_flow._mac(secret, 'state' + said)}"
    for cookies in ({}, {"quorate-login-8470": secret}):
        at.browser.cookies = dict(cookies)
        address = f"{Route.OIDC_CALLBACK}?{urlencode({'state': forged, 'code': 'a'})}"
        assert "has not begun this login" in at.refused(address)


@pytest.mark.parametrize("said", ["", "junk", "é", [1], ["now", "/"], [1e400, "/"], ["now", "https://evil.example/"]])
def test_whoever_writes_a_state_for_a_cookie_that_they_planted_gets_nowhere(at: AtIssuer, said: Any) -> None:
    """On loopback another program of this machine can plant a cookie."""
    if isinstance(said, list):
        said = [time.time() if one == "now" else one for one in said]
        said = urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
    secret = "0" * 64
    at.browser.cookies = {"quorate-login-8470": secret}
    state = f"{said}.{code_flow._mac(secret, 'state' + said)}"
    answer = at.back(f"{Route.OIDC_CALLBACK}?{urlencode({'state': state, 'code': 'a'})}", Accept="*/*")
    assert answer.status_code in (401, 422), answer.text
    assert at.browser.me().status_code == 401


def test_two_login_cookies_are_none(at: AtIssuer) -> None:
    address = at.there(at.begin())
    ((name, secret),) = at.browser.cookies.items()
    answer = at.back(address, Cookie=f"{name}={'0' * 64}; {name}={secret}")
    assert answer.status_code == 401


def test_a_login_takes_ten_minutes_at_most(at: AtIssuer) -> None:
    late = at.there(at.begin())
    at.world.clock.at += BEGUN_S + 1
    assert "longer than 10 minutes" in at.refused(late)


def test_a_login_that_the_issuer_refuses_says_so_and_repeats_none_of_its_text(at: AtIssuer) -> None:
    for denies, words in (
        ("access_denied", "the login was denied at the issuer"),
        ("login_required", "the issuer refused the login: login_required"),
        ("<script>", "the issuer refused the login: an error without a name"),
    ):
        at.issuer.denies = denies
        assert at.refused(at.there(at.begin())) == f"unauthenticated: {words}"


def test_an_answer_of_another_issuer_is_refused(at: AtIssuer) -> None:
    address = at.there(at.begin()).replace(
        urlencode({"iss": at.issuer.url}), urlencode({"iss": "https://evil.example"})
    )
    assert "another issuer than ours" in at.refused(address)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        pytest.param({"nonce": "another"}, "its nonce is not that of this login", id="nonce"),
        pytest.param({"nonce": None}, "its nonce is not that of this login", id="no-nonce"),
        pytest.param({"aud": AUDIENCE}, "the token is not valid here", id="for-the-api"),
        pytest.param({"aud": [CLIENT, "other"]}, "issued to another client", id="for-several"),
        pytest.param({"azp": "other"}, "issued to another client", id="to-another-client"),
        pytest.param({"iss": "https://evil.example"}, "the token is not valid here", id="issuer"),
        pytest.param({"exp": 1_000_000_000}, "the token is not valid here", id="expired"),
        pytest.param({"exp": None}, "the token is not valid here", id="no-expiry"),
        pytest.param({"groups": ["choir"]}, "gives no role here", id="no-role"),
    ],
)
def test_an_id_token_that_is_not_for_this_login_is_refused(at: AtIssuer, claims: dict[str, Any], words: str) -> None:
    at.issuer.claims = claims
    assert words in at.refused(at.there(at.begin()))


def test_an_id_token_is_no_bearer_token_and_a_bearer_token_logs_nobody_in(at: AtIssuer) -> None:
    token = at.issuer.token(aud=CLIENT, nonce="n")
    assert at.browser.ask("GET", Route.ME, {"Authorization": f"Bearer {token}"}).status_code == 401
    assert at.browser.log_in(at.issuer.token()).status_code in (401, 422)


def test_an_issuer_that_does_not_answer_is_a_503(at: AtIssuer) -> None:
    address = at.there(at.begin())
    at.issuer.down = "/token"
    assert at.refused(address).startswith(f"issuer-unreachable: the issuer {at.issuer.url} cannot be asked now")
    at.issuer.broken = True
    other = AtIssuer(at.issuer)
    answer = other.begin()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert other.browser.cookies == {}
    other.close()


def test_a_coordinator_without_a_client_has_no_such_login() -> None:
    world = World(0)
    browser = Browser.of(world.coordinator)
    for route in (Route.SESSION_OIDC, Route.OIDC_CALLBACK):
        assert browser.ask("GET", route, PAGE).status_code == 404
    browser.close()


# ------------------------------------------------------------ where it leads, and what is kept


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example", "//evil.example", "/\\evil.example", "/\\/evil.example", "\\evil", "evil",
        "/a//evil.example", "/%5cevil\n", "/\tevil", "javascript:alert(1)", "/ ", "/é", "/" + "a" * 2000,
        "/a\r\nSet-Cookie: a=b",
    ],
)  # fmt: skip
def test_a_login_leads_to_no_other_site(at: AtIssuer, page: str) -> None:
    answer = at.begin(next=page)
    assert answer.status_code == 422
    assert at.browser.cookies == {}


def test_below_a_prefix_a_login_leads_to_pages_below_it(issuer: LocalIssuer) -> None:
    made = AtIssuer(issuer, public_url="https://fl.example/quorate", behind_proxy="10.0.0.0/8")
    assert made.begin(next="/another-app").status_code == 422
    assert made.begin(next="/quorate-evil/").status_code == 422
    assert made.log_in(next="/quorate/runs").headers["location"] == "/quorate/runs"
    made.close()


def test_a_browser_that_is_refused_gets_a_page_without_scripts(at: AtIssuer) -> None:
    at.issuer.claims = {"groups": ["<script>alert(1)</script>"]}
    answer = at.back(at.there(at.begin()))
    assert (answer.status_code, answer.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "gives no role here: [&#x27;&lt;script&gt;" in answer.text
    assert "<script" not in answer.text
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert 'href="/"' in answer.text


def test_nothing_is_stored_of_who_has_not_logged_in_and_no_secret_of_who_has(at: AtIssuer) -> None:
    rows = len(at.world.store.audit_of_all(0, 1000))
    for _ in range(20):
        at.begin(Browser(at.browser.app, ORIGIN))
    assert len(at.world.store.audit_of_all(0, 1000)) == rows
    assert at.world.store.logins() == []
    begun = at.begin()
    secrets = [*at.browser.cookies.values(), *dict(parse_qsl(urlsplit(begun.headers["location"]).query)).values()]
    address = at.there(begun)
    at.back(address)
    secrets += [dict(parse_qsl(urlsplit(address).query))["code"], *at.browser.cookies.values()]
    found = [row for _, row in at.world.store.audit_of_all(0, 1000)][rows:]
    assert [(row.by, row.action) for row in found] == [("oidc:olga", "login")]
    kept = repr([found, at.world.store.logins()])
    assert not [secret for secret in secrets if len(secret) >= 20 and secret in kept]


def test_a_refused_login_is_audited(issuer: LocalIssuer) -> None:
    at = AtIssuer(issuer)
    at.issuer.denies = "access_denied"
    at.log_in()
    row = [row for _, row in at.world.store.audit_of_all(0, 1000)][-1]
    at.close()
    assert (row.by, row.action, row.detail) == ("", "refused.login", "the login was denied at the issuer")


def test_settings_say_what_a_client_needs(issuer: LocalIssuer, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    known: dict[str, Any] = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
    for given, words in (
        ({"oidc_client": CLIENT}, "needs oidc_issuer"),
        ({**known, "oidc_client_secret": empty}, "needs oidc_client"),
        ({**known, "oidc_client": CLIENT, "oidc_client_secret": empty}, "has no secret"),
        ({**known, "oidc_client": CLIENT, "oidc_client_secret": tmp_path / "none"}, "cannot be read"),
        ({**known, "oidc_client": CLIENT, "oidc_scope": "email"}, "oidc_scope"),
    ):
        with pytest.raises(ValidationError, match=words):
            Settings(**given)
