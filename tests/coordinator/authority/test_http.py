"""The authority over HTTP, asked by the client that devices use: a holder's whole life, and who is not believed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any

import httpx2
import pytest

from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.credentials.errors import BadCredential, RolledBackList
from client_sdk.http.authority import AuthorityClient
from client_sdk.http.exchange import LearntClock
from client_sdk.protocol.authority import AuthorityRoute
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.answering import AuthorityAnswers
from coordinator.authority.app import create_authority_app
from coordinator.authority.issuer import DAY_S, AuthorityPolicy
from coordinator.settings import Settings
from tests.coordinator.authority.world import NOW, AuthorityWorld, Holder, key_of, public

LOCAL = "http://localhost:8471/quorate"


@dataclass
class Proxy(httpx2.BaseTransport):
    """Passes requests on to the authority's application, without the prefix of its public URL, and answers' dates."""

    world: AuthorityWorld
    sent: list[tuple[str, str]] = field(default_factory=list)
    change: Callable[[httpx2.Request, httpx2.Response], httpx2.Response] = lambda request, response: response

    def __post_init__(self) -> None:
        app = create_authority_app(self.world.answers, Settings(), lambda: self.world.at)
        self._app = httpx2.ASGITransport(app=app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append((request.method, request.url.path))
        prefix, slash, path = request.url.path.partition("/v1")
        inner = httpx2.Request(
            request.method, f"http://localhost{slash}{path or prefix}", headers=request.headers, content=request.read()
        )
        return self.change(request, asyncio.run(self._ask(inner)))

    async def _ask(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._app.handle_async_request(request)
        date = {"date": formatdate(self.world.at, usegmt=True)}
        return httpx2.Response(answer.status_code, headers={**answer.headers, **date}, content=await answer.aread())


def local_world(name: str = "authority") -> AuthorityWorld:
    world = AuthorityWorld()
    issuer = replace(world.issuer, signer=key_of(name), policy=AuthorityPolicy(url=LOCAL))
    world.answers.issuer = issuer
    return world


def client(world: AuthorityWorld, proxy: Proxy | None = None, **changes: Any) -> AuthorityClient:
    http = httpx2.Client(base_url=LOCAL, transport=proxy or Proxy(world))
    given: dict[str, Any] = {"clock": lambda: world.at, "http": http, **changes}
    return AuthorityClient(LOCAL, world.issuer.trusted.digest, **given)


def test_a_crowd_that_enrols_shares_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    world, batches = local_world(), list[int]()
    commit, token = AuthorityAnswers._enrol_all, world.token(uses=40)

    def counted(self: AuthorityAnswers, batch: Any) -> Any:
        batches.append(len(batch))
        time.sleep(0.02)  # as on a disk
        return commit(self, batch)

    monkeypatch.setattr(AuthorityAnswers, "_enrol_all", counted)
    world.answers = AuthorityAnswers(world.issuer, world.answers.ledger)
    bodies = [Holder(world, f"phone {number}").enrolment(token).model_dump_json() for number in range(40)]

    async def scenario() -> list[httpx2.Response]:
        app = create_authority_app(world.answers, Settings(threads=4), lambda: world.at)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:
            found = await asyncio.gather(*(http.post(AuthorityRoute.CERTIFICATES, content=body) for body in bodies))
        await asyncio.to_thread(app.state.service.close)
        return found

    found = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert len({answer.json()["id"] for answer in found}) == 40
    assert sum(batches) == 40
    assert len(batches) < 20


def test_a_holders_whole_life_behind_a_proxy_with_a_prefix() -> None:
    world = local_world()
    phone, new = key_of("phone"), key_of("new")
    with client(world) as asking:
        first = asking.enrol(EnrolmentToken.parse(world.token().text), phone, label="a phone")
        first.require(asking.trusted(), world.at)
        before = asking.revocations()
        world.at += 50 * DAY_S
        renewed = asking.renew(phone)
        assert (renewed.id, renewed.not_after) == (first.id, world.at + 90 * DAY_S)
        rotated = asking.rotate(renewed, phone, new)
        assert (rotated.id, rotated.public_key) == (first.id, public(new))
        assert asking.rotate(renewed, phone, new) == rotated, "as after a lost answer"
        after = asking.revocations(before)
        assert after.revoked == (first.key_id,)
        asking.leave(new)
        asking.leave(new)
        assert len(asking.revocations(after).revoked) == 2


def test_an_authority_with_another_key_is_refused_before_anything_secret_is_sent() -> None:
    """A coordinator that proxies enrolment with an authority of its own."""
    world, impostor = local_world(), local_world("impostor")
    proxy = Proxy(impostor)
    asking = client(world, proxy)
    with pytest.raises(BadCredential, match="another authority"):
        asking.enrol(world.token(), key_of("phone"))
    with pytest.raises(BadCredential, match="another authority"):
        asking.revocations()
    assert {method for method, _ in proxy.sent} == {"GET"}
    with pytest.raises(BadCredential, match="for another authority"):
        asking.enrol(impostor.token(), key_of("phone"))


def test_an_impostor_that_shows_the_right_key_is_found_by_what_it_signs() -> None:
    world, impostor = local_world(), local_world("impostor")

    forged = Holder(impostor, "phone")
    forged.enrol(impostor.token())

    def show(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if request.url.path.endswith(AuthorityRoute.AUTHORITY):
            return httpx2.Response(200, content=world.answers.key().model_dump_json())
        if request.url.path.endswith(AuthorityRoute.RENEWED):
            assert forged.certificate is not None
            answer = impostor.issuer.certified(forged.certificate.encoded)
            return httpx2.Response(200, content=answer.model_dump_json())
        return response

    asking = client(world, Proxy(impostor, change=show))
    with pytest.raises(BadCredential):
        asking.revocations()
    with pytest.raises(BadCredential, match="another authority"):
        asking.renew(key_of("phone"))
    token = impostor.token()
    with pytest.raises(ProblemError, match="signature of the new key"):
        asking.enrol(EnrolmentToken(LOCAL, world.issuer.trusted.digest, token.secret), key_of("phone"))


def test_a_certificate_of_another_key_is_refused() -> None:
    world = local_world()
    kept: list[bytes] = []

    def swap(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if request.method == "POST":
            kept.append(response.content)
            return httpx2.Response(200, content=kept[0])
        return response

    asking = client(world, Proxy(world, change=swap))
    asking.enrol(world.token(), key_of("first"))
    with pytest.raises(BadCredential, match="another key"):
        asking.enrol(world.token(), key_of("second"))


def test_an_older_list_is_refused() -> None:
    world = local_world()
    asking = client(world)
    old = asking.revocations()
    world.at += DAY_S // 2
    newer = asking.revocations(old)

    def older(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        return httpx2.Response(200, content=old.encoded) if "revocations" in request.url.path else response

    with pytest.raises(RolledBackList):
        client(world, Proxy(world, change=older)).revocations(newer)


@pytest.mark.parametrize("apart", [-5 * DAY_S, 3600])
def test_a_clock_that_is_wrong_is_learnt_for_signatures_only(apart: int) -> None:
    world = local_world()
    phone = key_of("phone")
    proxy = Proxy(world)
    asking = client(world, proxy, clock=lambda: world.at + apart)
    asking.enrol(world.token(), phone)
    asking.renew(phone)
    asking.renew(phone)
    assert asking.clock.ahead_s == -apart
    assert [path for _, path in proxy.sent].count("/quorate" + AuthorityRoute.RENEWED) == 3, "one was refused"
    assert asking.renew(phone).not_before == NOW - 600, "what is certified goes by the authority's clock"


def test_a_server_that_never_agrees_on_the_time_is_not_asked_for_ever() -> None:
    world = local_world()
    asking = client(world, clock=lambda: world.at + 3600)
    asking.enrol(world.token(), key_of("phone"))

    def hour_old(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        response.headers["date"] = formatdate(world.at - 3600, usegmt=True)
        return response

    proxy = Proxy(world, change=hour_old)
    with pytest.raises(ProblemError) as refused:
        client(world, proxy, clock=lambda: world.at + 3600).renew(key_of("phone"))
    assert refused.value.kind == "wrong-clock"
    assert len(proxy.sent) == 2


@pytest.mark.parametrize("date", [None, "", "yesterday", "Mon, 99 Nov 2026 00:00:00 GMT"])
def test_a_date_that_cannot_be_read_teaches_nothing(date: str | None) -> None:
    clock = LearntClock(lambda: 5.0)
    assert not clock.learn(date)
    assert clock.now() == 5.0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", AuthorityRoute.RENEWED, b"", 401, "unauthenticated"),
        ("POST", AuthorityRoute.ROTATED, b"{}", 401, "unauthenticated"),
        ("POST", AuthorityRoute.LEFT, b"", 401, "unauthenticated"),
        ("POST", AuthorityRoute.CERTIFICATES, b"{}", 422, "invalid-request"),
        ("POST", AuthorityRoute.CERTIFICATES, b"x" * 300_000, 413, "too-large"),
        ("GET", AuthorityRoute.CERTIFICATES, b"", 405, "about:blank"),
        ("GET", "/v1/devices", b"", 404, "about:blank"),
        ("GET", "/docs", b"", 404, "about:blank"),
    ],
)
def test_what_is_refused_is_a_problem(method: str, path: str, body: bytes, status: int, kind: str) -> None:
    with httpx2.Client(base_url="http://localhost", transport=Proxy(local_world())) as http:
        answer = http.request(method, path, content=body)
    assert (answer.status_code, answer.json()["type"].removeprefix("/problems/")) == (status, kind)
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_platform_can_watch_it(path: str) -> None:
    with httpx2.Client(base_url="http://localhost", transport=Proxy(local_world())) as http:
        assert http.get(path).status_code == 200
        elsewhere = http.get(path, headers={"Host": "10.244.0.5:8471"}).status_code
        assert elsewhere == http.head(path, headers={"Host": "10.244.0.5"}).status_code or path == "/metrics"
        assert elsewhere == (421 if path == "/metrics" else 200)


def test_an_authority_that_is_not_there_is_said_so() -> None:
    def nobody(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    http = httpx2.Client(base_url=LOCAL, transport=httpx2.MockTransport(nobody))
    with pytest.raises(ProblemError, match="No authority answers at") as busy:
        client(local_world(), http=http).trusted()
    assert busy.value.kind == "busy"
