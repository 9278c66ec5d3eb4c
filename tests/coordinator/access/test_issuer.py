"""Tokens of an OpenID Connect issuer, against one on this machine: who is let in, and every way not to be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from client_sdk.protocol.problems import ProblemError
from coordinator.access import issuer as issuers
from coordinator.access.issuer import COOLDOWN_S, LEEWAY_S, LIFESPAN_S, IssuerKeys, IssuerSettings, TokenIssuer
from coordinator.access.roles import Grant
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.core import Core
from coordinator.settings import Settings
from tests.coordinator.access.issuer import AUDIENCE, RSA_KEY, LocalIssuer, local_issuer
from tests.coordinator.world import StandingClock, World


@pytest.fixture
def served() -> Iterator[LocalIssuer]:
    with local_issuer() as issuer:
        yield issuer


class Trusting:
    """A coordinator's side, with a clock of its own for the keys that it keeps."""

    def __init__(self, served: LocalIssuer, claim: str = "groups", **grants: str) -> None:
        self.clock = StandingClock(0.0)
        given = grants or {"viewer": "viewer", "owner": "owner", "team-a": "operator a-*"}
        self.issuer = TokenIssuer(
            IssuerSettings(
                url=served.url,
                audience=AUDIENCE,
                claim=claim,
                grants={value: Grant.parse(text) for value, text in given.items()},
            ),
            IssuerKeys(served.url, now=self.clock.now),
        )

    def refusal(self, token: str) -> ProblemError:
        with pytest.raises(ProblemError) as caught:
            self.issuer.operator(token)
        return caught.value


def test_a_person_has_the_grants_of_all_groups(served: LocalIssuer) -> None:
    operator = Trusting(served).issuer.operator(served.token(groups=["team-a", "choir", "viewer"]))
    assert (operator.id, str(operator)) == ("oidc:olga", "operator a-*, viewer *")
    assert operator.expires_at == pytest.approx(time.time() + 60 + LEEWAY_S, abs=10)
    assert served.asked == ["/.well-known/openid-configuration", "/jwks"]


@pytest.mark.parametrize(
    ("claim", "claims"),
    [
        ("scope", {"scope": "openid owner email"}),
        ("realm_access.roles", {"realm_access": {"roles": ["owner"]}}),
        ("https://quorate.example/roles", {"https://quorate.example/roles": ["owner"]}),
    ],
)
def test_the_claim_may_be_a_text_or_inside_an_object(served: LocalIssuer, claim: str, claims: dict[str, Any]) -> None:
    operator = Trusting(served, claim).issuer.operator(served.token(groups=None, **claims))
    assert str(operator) == "owner *"


@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA"])
def test_other_asymmetric_algorithms_are_taken(served: LocalIssuer, algorithm: str) -> None:
    served.add("other", algorithm)
    assert Trusting(served).issuer.operator(served.token("other"))


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"exp": 1_000_000_000}, id="expired"),
        pytest.param({"exp": None}, id="no-expiry"),
        pytest.param({"nbf": 4_000_000_000}, id="not-yet"),
        pytest.param({"aud": "another-service"}, id="another-audience"),
        pytest.param({"aud": None}, id="no-audience"),
        pytest.param({"iss": "https://evil.example"}, id="another-issuer"),
        pytest.param({"sub": None}, id="no-subject"),
    ],
)
def test_a_token_that_is_not_for_us_now_is_refused(served: LocalIssuer, claims: dict[str, Any]) -> None:
    assert Trusting(served).refusal(served.token(**claims)).kind == "unauthenticated"


@pytest.mark.parametrize("groups", [[], ["choir"], None, 7, {"owner": True}])
def test_a_token_without_a_role_here_is_refused(served: LocalIssuer, groups: Any) -> None:
    refusal = Trusting(served).refusal(served.token(groups=groups))
    assert (refusal.kind, refusal.status) == ("not-permitted", 403)
    assert "claim groups gives no role here" in str(refusal)


def test_no_symmetric_algorithm_is_taken(served: LocalIssuer) -> None:
    """The public key must never be the secret of an HMAC, whatever the issuer names."""
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    secret = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
    served.extra_keys = [{"kty": "oct", "k": secret, "kid": "shared", "alg": "HS256", "use": "sig"}]
    trusting = Trusting(served)
    for kid, key in (("first", pem), ("shared", b"s" * 32)):
        assert trusting.refusal(_by_hand(served, {"alg": "HS256", "kid": kid}, key)).kind == "unauthenticated"
    assert trusting.refusal(_by_hand(served, {"alg": "none", "kid": "first"}, b"")).kind == "unauthenticated"


def _by_hand(served: LocalIssuer, header: dict[str, str], key: bytes) -> str:
    """What no library signs."""
    claims = jwt.decode(served.token(), options={"verify_signature": False})
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signature = hmac.digest(key, b".".join(parts), hashlib.sha256) if key else b""
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_an_algorithm_that_the_issuer_does_not_name_is_refused(served: LocalIssuer) -> None:
    served.algorithms = ["ES256"]
    assert "does not sign with" in str(Trusting(served).refusal(served.token()))


@pytest.mark.parametrize("text", ["a.b.c", "..", "é.é.é", "eyJhbGciOiJSUzI1NiJ9.e30.", "a." + "b" * 20_000 + ".c"])
def test_what_is_no_token_is_refused(served: LocalIssuer, text: str) -> None:
    assert Trusting(served).refusal(text).kind == "unauthenticated"


def test_a_rotated_key_is_fetched_and_a_withdrawn_one_is_refused(served: LocalIssuer) -> None:
    trusting = Trusting(served)
    old = served.token()
    trusting.issuer.operator(old)
    served.add("second", "ES256")
    del served.keys["first"]
    trusting.clock.at += COOLDOWN_S
    assert trusting.issuer.operator(served.token("second"))
    assert "none of the issuer's" in str(trusting.refusal(old))


def test_keys_are_read_again_after_their_lifespan(served: LocalIssuer) -> None:
    trusting = Trusting(served)
    old = served.token()
    trusting.issuer.operator(old)
    trusting.issuer.operator(old)
    assert served.asked.count("/jwks") == 1
    served.add("second", "ES256")
    del served.keys["first"]
    trusting.clock.at += LIFESPAN_S
    assert "none of the issuer's" in str(trusting.refusal(old))


def test_tokens_that_name_unknown_keys_do_not_flood_the_issuer(served: LocalIssuer) -> None:
    trusting = Trusting(served)
    for number in range(20):
        trusting.refusal(served.token(headers={"kid": f"unknown {number}"}))
    assert served.asked.count("/jwks") == 1


def test_an_issuer_that_does_not_answer_is_a_503_and_is_asked_again_later(served: LocalIssuer) -> None:
    trusting = Trusting(served)
    served.broken = True
    for _ in range(3):
        refusal = trusting.refusal(served.token())
        assert (refusal.kind, refusal.status) == ("issuer-unreachable", 503)
        assert refusal.problem.retry_after_s == COOLDOWN_S
    served.broken = False
    trusting.clock.at += COOLDOWN_S
    assert trusting.issuer.operator(served.token())
    served.broken = True
    trusting.clock.at += COOLDOWN_S
    assert trusting.issuer.operator(served.token()), "its keys are known for a while"
    trusting.clock.at += LIFESPAN_S
    assert trusting.refusal(served.token()).status == 503


def test_a_document_of_another_issuer_is_not_believed(served: LocalIssuer) -> None:
    served.calls_itself = "https://evil.example"
    assert "calls itself 'https://evil.example'" in str(Trusting(served).refusal(served.token()))


def test_one_thread_at_a_time_waits_for_the_issuer(served: LocalIssuer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = IssuerKeys(served.url)
    answers: list[ProblemError] = []

    def fetch(url: str) -> bytes:
        trusting = Trusting(served)
        trusting.issuer._keys = keys
        answers.append(trusting.refusal(served.token()))
        return json.dumps(served.document(url.removeprefix(served.url))).encode()

    monkeypatch.setattr(issuers, "read_url", fetch)
    assert keys.find("first", "RS256")
    assert {(answer.status, answer.problem.retry_after_s) for answer in answers} == {(503, 1.0)}


def test_settings_say_what_an_issuer_needs(served: LocalIssuer) -> None:
    for given, words in (
        ({"oidc_issuer": "https://login.example"}, "needs oidc_audience"),
        ({"oidc_issuer": "http://login.example", "oidc_audience": "q"}, "no https address"),
        ({"oidc_issuer": "login.example", "oidc_audience": "q"}, "no https address"),
        ({"oidc_grants": {"admins": "root"}}, "'root' is no role"),
        ({"oidc_grants": {"admins": "owner A B"}}, "is no scope"),
    ):
        with pytest.raises(ValidationError, match=words):
            Settings(**given)
    settings = Settings(oidc_issuer=served.url, oidc_audience=AUDIENCE, oidc_grants={"admins": "owner a-*"})
    world = World(0)
    coordinator = Coordinator(Core(world.store, world.blobs, settings=settings, clock=world.clock))
    token = served.token(groups=["admins", "owner"])
    assert str(coordinator.access.operator(token)) == "owner a-*"
    coordinator.access.operator(token)
    (login,) = [row for _, row in world.store.audit_of_all(0, 10) if row.by != "authority"]
    assert (login.by, login.action, login.detail, login.run) == ("oidc:olga", "login", "owner a-*", None)
