"""Sessions of browsers: opened by a key, valid on every replica, ended by logout, by time, and with their key."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from client_sdk.protocol.access import CreateKey
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import ProblemError
from coordinator.access import LOCAL_OWNER, OperatorAccess
from coordinator.access.sessions import AGAIN_S, IN_A_ROW, LINK_S, MOST, SESSION_S
from tests.coordinator.service.browser import Browser
from tests.coordinator.world import World

pytestmark = pytest.mark.whole

HOUR_S = 3600.0


class Logins:
    def __init__(self) -> None:
        self.world = World(0)
        self.world.create()
        self.browser = Browser.of(self.world.coordinator)

    def key(self, role: str = "operator", scope: str = "*", hours: float = 1000.0) -> str:
        asked = CreateKey.model_validate({"role": role, "scope": scope, "expires_in_s": hours * HOUR_S})
        return self.world.coordinator.access.keys.create(LOCAL_OWNER, asked).text

    def audited(self) -> list[tuple[str, str]]:
        rows = [(row.action, row.detail) for _, row in self.world.store.audit_of_all(0, 1000)]
        return [row for row in rows if row[0] not in ("authority.taken", "revocations.taken", "key.create done")]


@pytest.fixture
def logins() -> Iterator[Logins]:
    made = Logins()
    yield made
    made.browser.close()


def id_of(key: str) -> str:
    return key.split("_")[1]


# ------------------------------------------------------------ by key


def test_a_browser_logs_in_with_a_key_and_is_its_operator(logins: Logins) -> None:
    key = logins.key("operator", "mar*")
    assert logins.browser.me().status_code == 401
    answer = logins.browser.log_in(key)
    assert answer.status_code == 201, answer.text
    expected = {
        "id": f"key:{id_of(key)}",
        "grants": [{"role": "operator", "scope": "mar*"}],
        "expires_at": logins.world.clock.at + SESSION_S,
        "by": "key",
    }
    assert answer.json() == expected
    assert logins.browser.me().json() == expected
    assert [run["run"] for run in logins.browser.ask("GET", Route.RUNS).json()] == ["marks"]
    assert logins.browser.ask("POST", "/v1/runs/marks/pause").json()["status"] == "paused"
    assert logins.browser.ask("GET", Route.KEYS).status_code == 403, "an operator is no owner"


def test_the_cookie_is_for_this_site_alone_and_no_script_reads_it(logins: Logins) -> None:
    cookie = logins.browser.log_in(logins.key()).headers["set-cookie"]
    name, *attributes = [part.strip() for part in cookie.split(";")]
    assert re.fullmatch(r"quorate-8470=qs_[0-9a-f]{16}_[0-9a-f]{64}", name)
    assert {one.lower() for one in attributes} == {f"max-age={SESSION_S:.0f}", "path=/", "httponly", "samesite=lax"}


def test_a_session_ends_after_twelve_hours_and_with_its_key(logins: Logins) -> None:
    logins.browser.log_in(logins.key())
    logins.world.clock.at += SESSION_S - 1
    assert logins.browser.me().status_code == 200
    logins.world.clock.at += 1
    ended = logins.browser.me()
    assert (ended.status_code, ended.json()["detail"]) == (401, "this session has ended; log in again")
    assert logins.browser.log_in(logins.key(hours=1)).json()["expires_at"] == logins.world.clock.at + HOUR_S
    logins.world.clock.at += HOUR_S
    assert logins.browser.me().status_code == 401


def test_a_revoked_key_ends_its_sessions_on_every_replica(logins: Logins) -> None:
    key = logins.key()
    logins.browser.log_in(key)
    other = Browser.of(logins.world.replica())
    other.cookies = logins.browser.cookies
    assert other.me().json() == logins.browser.me().json()
    logins.world.coordinator.access.keys.revoke(LOCAL_OWNER, id_of(key))
    for browser in (logins.browser, other):
        refused = browser.me()
        assert (refused.status_code, refused.json()["detail"]) == (401, f"the API key {id_of(key)} was revoked")
    other.close()


def test_logging_out_ends_the_session_on_every_replica_and_takes_the_cookie(logins: Logins) -> None:
    logins.browser.log_in(logins.key("viewer"))
    other = Browser.of(logins.world.replica())
    other.cookies = dict(logins.browser.cookies)
    assert logins.browser.ask("DELETE", Route.CURRENT_SESSION).status_code == 200
    assert logins.browser.cookies == {}
    assert other.me().status_code == 401
    assert logins.world.store.logins() == []
    other.close()


def test_a_key_is_no_session_to_end(logins: Logins) -> None:
    answer = logins.browser.ask("DELETE", Route.CURRENT_SESSION, {"Authorization": f"Bearer {logins.key()}"})
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")


def test_each_login_has_another_session_also_where_there_is_one(logins: Logins) -> None:
    """Whoever planted a session, or knows an older one, does not have the new one."""
    planted = {"quorate-8470": f"qs_{'0' * 16}_{'1' * 64}"}
    logins.browser.cookies = dict(planted)
    logins.browser.log_in(logins.key())
    first = dict(logins.browser.cookies)
    logins.browser.log_in(logins.key())
    assert len({*planted.values(), *first.values(), *logins.browser.cookies.values()}) == 3
    assert logins.world.store.login("0" * 16) is None


def test_an_operator_has_so_many_sessions_and_the_oldest_ends(logins: Logins) -> None:
    key, first = logins.key(), dict(logins.browser.cookies)
    for number in range(MOST + 1):
        logins.browser.log_in(key)
        first = first or dict(logins.browser.cookies)
        logins.world.clock.at += 1
        assert len(logins.world.store.logins()) == min(number + 1, MOST)
    assert logins.browser.me().status_code == 200
    logins.browser.cookies = first
    assert logins.browser.me().status_code == 401
    other = Browser(logins.browser.app)
    other.log_in(logins.key())
    assert len(logins.world.store.logins()) == MOST + 1, "another operator's are not counted"
    owner = logins.key("owner")
    tokens = []
    for _ in range(MOST + 1):
        tokens.append(link_of(logins, owner))
        logins.world.clock.at += 1
    for _ in range(2):
        other.log_in(owner)
    assert len(logins.world.store.logins()) == 2 * MOST + 1 + 2, "links are counted apart, and the oldest is gone"
    assert [follow(other, token) for token in (tokens[0], tokens[1])] == [401, 201]


def test_who_has_a_key_cannot_fill_the_audit_by_logging_in(logins: Logins) -> None:
    """Nor by logging out: that takes a session."""
    key = logins.key("viewer")
    answers = [logins.browser.log_in(key) for _ in range(IN_A_ROW + 20)]
    assert [answer.status_code for answer in answers] == [201] * IN_A_ROW + [429] * 20
    assert answers[-1].headers["retry-after"]
    assert answers[-1].json()["detail"].startswith(f"key:{id_of(key)} logged in too often; it can log in again in ")
    assert [action for action, _ in logins.audited()] == ["login"] * IN_A_ROW + ["refused.login"]
    assert Browser(logins.browser.app).log_in(logins.key()).status_code == 201, "another operator's are not counted"
    logins.world.clock.at += 21 * AGAIN_S
    assert logins.browser.log_in(key).status_code == 201


def test_rows_that_have_expired_are_deleted_at_the_next_login(logins: Logins) -> None:
    for _ in range(3):
        logins.browser.log_in(logins.key())
    logins.world.clock.at += SESSION_S
    logins.browser.log_in(logins.key())
    assert len(logins.world.store.logins()) == 1


@pytest.mark.parametrize("key", ["qk_junk", "", "x" * 201, f"qk_{'0' * 16}_{'0' * 64}", "a.b.c"])
def test_what_is_no_key_is_refused_and_not_repeated(logins: Logins, key: str) -> None:
    answer = logins.browser.log_in(key)
    assert answer.status_code in (401, 422)
    assert not answer.headers.get("set-cookie")
    assert not key or key not in answer.text
    assert logins.browser.cookies == {}


def test_a_key_that_stands_where_a_message_should_is_not_repeated(logins: Logins) -> None:
    key = logins.key()
    for content in (json.dumps(key), key, json.dumps({"keys": key}), json.dumps({"key": [key]})):
        answer = logins.browser.ask("POST", Route.SESSIONS, content=content)
        assert answer.status_code == 422
        assert key[:30] not in answer.text


def test_the_store_and_the_audit_have_no_secret(logins: Logins) -> None:
    key = logins.key()
    logins.browser.log_in(key[:-1] + ("0" if key[-1] != "0" else "1"))
    logins.browser.log_in(key)
    (row,) = logins.world.store.logins()
    (text,) = logins.browser.cookies.values()
    logins.browser.ask("DELETE", Route.CURRENT_SESSION)
    for secret in (text, text[-64:], key, key[-64:]):
        assert secret not in repr([row, logins.audited()])
    assert logins.audited() == [
        ("refused.login", "this API key is not valid here"),
        ("login", f"operator * by=key session={row.login}"),
        ("logout", ""),
    ]


def test_an_id_without_its_secret_is_no_session_and_no_link(logins: Logins) -> None:
    """The audit names the ids of sessions."""
    logins.browser.log_in(logins.key())
    ((name, text),) = logins.browser.cookies.items()
    token = link_of(logins)
    other = Browser(logins.browser.app)
    for place in (-1, -64):  # the last and the first letter of a secret
        changed = []
        for whole in (text, token):
            letters = list(whole)
            letters[place] = "0" if letters[place] != "0" else "1"
            changed.append("".join(letters))
        other.cookies = {name: changed[0]}
        assert other.me().status_code == 401
        assert follow(other, changed[1]) == 401
    assert logins.browser.me().status_code == 200
    assert follow(logins.browser, token) == 201


def test_a_session_is_no_bearer_token(logins: Logins) -> None:
    """What a script reads elsewhere, such as a log, opens nothing without the cookie's protection."""
    logins.browser.log_in(logins.key())
    (text,) = logins.browser.cookies.values()
    answer = Browser(logins.browser.app).ask("GET", Route.ME, {"Authorization": f"Bearer {text}"})
    assert answer.status_code == 401


def test_ways_and_me_say_what_a_page_needs(logins: Logins) -> None:
    assert logins.browser.ask("GET", Route.SESSION_WAYS, {}).json() == {"key": True, "link": True, "oidc": None}
    key = logins.key("owner", "marks")
    shown = logins.browser.ask("GET", Route.ME, {"Authorization": f"Bearer {key}"}).json()
    assert (shown["grants"], shown["by"]) == ([{"role": "owner", "scope": "marks"}], "key")


# ------------------------------------------------------------ by link


def link_of(logins: Logins, key: str | None = None) -> str:
    answer = logins.browser.ask("POST", Route.SESSION_LINKS, {"Authorization": f"Bearer {key or logins.key('owner')}"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["expires_at"] == logins.world.clock.at + LINK_S
    return str(answer.json()["token"])


def follow(browser: Browser, token: str) -> int:
    return browser.ask("POST", Route.SESSION_BY_LINK, json={"token": token}).status_code


def test_a_link_opens_one_session_of_the_owner(logins: Logins) -> None:
    key = logins.key("owner")
    token = link_of(logins, key)
    assert follow(logins.browser, token) == 201
    shown = logins.browser.me().json()
    assert (shown["id"], shown["by"]) == (f"key:{id_of(key)}", "local")
    assert shown["grants"] == [{"role": "owner", "scope": "*"}]
    other = Browser.of(logins.world.replica())
    assert follow(other, token) == 401
    assert other.cookies == {}
    other.close()
    assert [row.kind for row in logins.world.store.logins()] == ["session"]
    logins.world.coordinator.access.keys.revoke(LOCAL_OWNER, id_of(key))
    assert logins.browser.me().status_code == 401


def test_of_replicas_that_get_a_link_at_the_same_moment_one_opens_a_session(logins: Logins) -> None:
    token, together = link_of(logins), threading.Barrier(4)
    opened: list[str] = []

    def follow_it(access: OperatorAccess) -> None:
        together.wait(10)
        with suppress(ProblemError):
            opened.append(access.sessions.open_by_link(token).secret)

    replicas = [logins.world.replica().access for _ in range(4)]
    threads = [threading.Thread(target=follow_it, args=(access,)) for access in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 1
    assert [row.kind for row in logins.world.store.logins()] == ["session"]


def test_a_link_holds_for_five_minutes_and_as_long_as_its_key(logins: Logins) -> None:
    key = logins.key("owner")
    late, revoked, used = (link_of(logins, key) for _ in range(3))
    logins.world.clock.at += LINK_S - 1
    assert follow(logins.browser, used) == 201
    logins.world.clock.at += 1
    assert follow(logins.browser, late) == 401
    fresh = link_of(logins, key)
    logins.world.coordinator.access.keys.revoke(LOCAL_OWNER, id_of(key))
    assert [follow(logins.browser, token) for token in (fresh, revoked)] == [401, 401]


def test_a_link_s_token_is_no_session_and_a_session_no_link(logins: Logins) -> None:
    token = link_of(logins)
    other = Browser(logins.browser.app)
    for text in (token, token.replace("ql_", "qs_")):
        other.cookies = {"quorate-8470": text}
        assert other.me().status_code == 401
    logins.browser.log_in(logins.key("owner"))
    (text,) = logins.browser.cookies.values()
    assert follow(other, text) == follow(other, text.replace("qs_", "ql_")) == 401
    assert follow(other, token) == 201, "no attempt used it up"


def test_only_an_owner_of_everything_makes_links(logins: Logins) -> None:
    for key in (logins.key("operator"), logins.key("owner", "marks")):
        answer = logins.browser.ask("POST", Route.SESSION_LINKS, {"Authorization": f"Bearer {key}"})
        assert answer.status_code == 403
    assert logins.world.store.logins() == []


def test_links_leave_no_secret_in_the_audit(logins: Logins) -> None:
    token = link_of(logins)
    follow(logins.browser, token)
    follow(logins.browser, token)
    assert [action for action, _ in logins.audited()] == ["link.create", "login", "refused.login"]
    assert token[-64:] not in repr([logins.audited(), logins.world.store.logins()])
