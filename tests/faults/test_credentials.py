"""The explorer's own credentials: its authority, its signatures, and the checks of who is served."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.credentials.errors import BadCredential
from client_sdk.device.actions import Send
from client_sdk.protocol.devices import Assignment, CheckIn, Wait
from client_sdk.protocol.names import Route
from client_sdk.protocol.problems import Problem
from tests.explorer.admission import Admitted
from tests.explorer.authority import ExplorerAuthority
from tests.explorer.faults import Broken
from tests.explorer.holders import (
    QuickSigner,
    certificate_of,
    holder_of,
    is_of_key,
    parsed_once,
    token_of,
    trusted,
)
from tests.explorer.request import SentRequest
from tests.explorer.search import play
from tests.explorer.shape import Shape
from tests.explorer.world import BEGINNING, World

ONE, OTHER = holder_of("device-1"), holder_of("device-2")


def request_of(at: float) -> SentRequest:
    send = Send(method="POST", route=Route.CHECK_IN, answers=(Assignment, Wait), message=CheckIn())
    return SentRequest(send, QuickSigner(ONE, lambda: at, count()))


def authority(*short: str) -> ExplorerAuthority:
    world = World(Shape.of(0))
    world.authority.short = set(short)
    return world.authority


def test_signature_is_that_of_its_key_alone() -> None:
    signed, lied = QuickSigner(ONE, lambda: 1e6, count()).sign(), QuickSigner(ONE, lambda: 1e6, count())
    is_of_key(signed, ONE.public, method="GET", uri="/")
    with pytest.raises(BadCredential):
        is_of_key(signed, OTHER.public, method="GET", uri="/")
    with pytest.raises(BadCredential):
        is_of_key(lied.sign(as_holder=OTHER), OTHER.public, method="GET", uri="/")


def test_request_is_signed_afresh_where_it_is_copied() -> None:
    request = request_of(1e6)
    assert replace(request).signature.nonce != request.signature.nonce


def test_certificate_of_another_authority_is_refused_also_where_it_is_remembered() -> None:
    good, foreign = certificate_of(ONE, 0, 10**9), certificate_of(ONE, 0, 10**9, "another authority")
    for _ in range(2):
        good.require_signed(trusted())
        with pytest.raises(BadCredential):
            foreign.require_signed(trusted())
        with pytest.raises(BadCredential):
            replace(good, signature=bytes(64)).require_signed(trusted())


def test_parsing_is_what_it_was_once_the_block_has_ended() -> None:
    encoded = certificate_of(ONE, 0, 10**9).encoded
    with parsed_once():
        assert Certificate.parse(encoded) is Certificate.parse(encoded)
    assert Certificate.parse(encoded) is not Certificate.parse(encoded)
    assert Certificate.parse(encoded) == certificate_of(ONE, 0, 10**9)


def test_authority_renews_in_the_second_half_and_refuses_what_has_expired() -> None:
    found = authority(ONE.id)
    first = found.ask("enrol", ONE, token_of(0))
    assert isinstance(first, Certificate)
    world = found._world
    world.stormy = True
    assert found.ask("renew", ONE, None) == first, "it is young"
    assert found.ask("enrol", ONE, token_of(0)) == first, "an answer was lost"
    world.agenda.now = (first.not_before + first.not_after) / 2
    second = found.ask("renew", ONE, None)
    assert isinstance(second, Certificate)
    assert second.not_after > first.not_after
    world.agenda.now = second.not_after
    for what, token in (("renew", None), ("enrol", token_of(0))):
        refused = found.ask(what, ONE, token)  # type: ignore[arg-type]
        assert isinstance(refused, Problem)
        assert refused.kind == "enrolment-refused"
    assert isinstance(found.ask("enrol", ONE, token_of(1)), Certificate), "a person has brought another token"


def test_authority_lists_who_is_revoked_and_certifies_it_no_more() -> None:
    found = authority()
    found.ask("enrol", ONE, token_of(0))
    revoked = found.revoke(ONE)
    assert (revoked.counter, revoked.revoked) == (2, (bytes.fromhex(ONE.key_id),))
    refused = found.ask("renew", ONE, None)
    assert isinstance(refused, Problem)
    assert refused.kind == "revoked-key"
    found.silent_until = BEGINNING + 1.0
    assert found.ask("enrol", OTHER, token_of(0)) is None


class Process:
    name = "r0"


def test_same_request_may_be_let_in_once_and_in_its_time() -> None:
    admitted, request = Admitted(), request_of(1e6)
    admitted.add(Process(), request, 1e6)  # type: ignore[arg-type]
    with pytest.raises(Broken, match="replay: r0 took the same signed check-in of device-1 twice"):
        admitted.add(Process(), request, 1e6 + 1)  # type: ignore[arg-type]
    admitted.forget()
    admitted.add(Process(), request, 1e6 + 60)  # type: ignore[arg-type]
    for at in (1e6 + 61, 1e6 - 11):
        with pytest.raises(Broken, match="permission: r0 served"):
            admitted.add(Process(), request_of(1e6), at)  # type: ignore[arg-type]


def test_few_schedules_have_certificates_that_expire() -> None:
    rates = [Shape.of(seed).rates for seed in range(2000)]
    assert 0.03 < sum("certificate-expires" in one for one in rates) / len(rates) < 0.1


def test_devices_come_through_expired_certificates_wrong_clocks_and_replays() -> None:
    met: set[str] = set()
    for seed in range(12):
        shape = Shape.of(seed)
        rates = {"certificate-expires": 0.5, "revoked": 0.5, "clock-off": 0.5, "replayed": 0.2, "delay": 0.05}
        trace: list[str] = []
        _, broken = play(replace(shape, rates=rates, storm_s=60.0, http=False), trace=trace)
        assert broken is None, (seed, broken)
        words = ("learns the time", "replayed-request", "stops: revoked-key", "has a certificate", "refuses list")
        met |= {word for word in words if any(word in line for line in trace)}
    assert len(met) == 5, met
