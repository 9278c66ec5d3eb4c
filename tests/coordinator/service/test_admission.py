"""The limits by address and by caller, on a clock of their own: rates, bursts, what a refusal costs, bounded memory."""

from __future__ import annotations

from typing import Any

import pytest

from client_sdk.protocol.problems import ProblemError, problem
from coordinator.limits.admission import Admission, InFlight, Sender, TokenBuckets, spread
from coordinator.network_settings import NetworkSettings

FORWARDED = [(b"x-forwarded-for", b"192.0.2.1"), (b"x-forwarded-proto", b"https")]


A, B, SITE = Sender("a", "a"), Sender("b", "b"), Sender("192.0.2.1", "192.0.2.1", "https", "forwarded")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(clock: Clock, most: int = 10_000, **settings: Any) -> Admission:
    few = {"requests_per_address": 10, "burst_per_address": 20, "requests_per_caller": 5, "burst_per_caller": 10}
    return Admission(NetworkSettings(**{**few, **settings}), most, clock, lambda: 0.5)


def refused(call: Any, *arguments: Any) -> ProblemError:
    with pytest.raises(ProblemError) as found:
        call(*arguments)
    return found.value


def test_a_burst_then_a_rate_and_another_address_is_another_matter() -> None:
    clock = Clock()
    limits = admission(clock)
    for _ in range(20):
        limits.request(A)
    error = refused(limits.request, A)
    assert (error.kind, error.status) == ("too-many-requests", 429)
    limits.request(B)
    clock.now = 0.1  # the refused one took a token too
    refused(limits.request, A)
    clock.now = 0.45
    limits.request(A)
    limits.request(A)
    refused(limits.request, A)


def test_retry_after_is_when_there_is_a_token_drawn_from_an_interval() -> None:
    clock = Clock()
    limits = admission(clock, requests_per_address=0.1)
    for _ in range(20):
        limits.request(A)
    assert refused(limits.request, A).problem.retry_after_s == pytest.approx(10 * 1.5)
    assert refused(limits.request, A).problem.retry_after_s == pytest.approx(20 * 1.5)
    drawn = {spread(4) for _ in range(50)}
    assert len(drawn) > 40
    assert all(4 <= seconds < 8 for seconds in drawn)
    assert spread(0.001, lambda: 0.0) == 1.0


def test_an_address_with_many_bad_requests_gets_no_new_connection_for_some_time() -> None:
    clock = Clock()
    limits = admission(clock, refusals_per_address=0.5, refusal_burst_per_address=3)
    assert [limits.charge("192.0.2.1") for _ in range(5)] == [False, False, False, True, True]
    assert limits.admit("192.0.2.1") is None
    assert limits.admit("192.0.2.2") is not None
    error = refused(limits.request, SITE)
    assert error.problem.retry_after_s == pytest.approx(5 * 1.5)
    limits.request(Sender("192.0.2.1", "192.0.2.1"))  # connections that it has go on
    clock.now = 6.1
    assert limits.admit("192.0.2.1") is not None
    limits.request(SITE)


def test_who_goes_on_after_refusals_is_not_connected_until_some_time_has_passed() -> None:
    clock = Clock()
    limits = admission(clock)
    for _ in range(20):
        limits.request(SITE)
    for _ in range(20):
        refused(limits.request, SITE)
    assert limits.admit("192.0.2.1") is None
    assert limits.admit("192.0.2.2") is not None
    clock.now = 1.0
    assert limits.admit("192.0.2.1") is not None


def test_a_caller_has_a_rate_of_its_own_wherever_it_is() -> None:
    clock = Clock()
    limits = admission(clock)
    for _ in range(10):
        limits.caller("device:d-1")
    error = refused(limits.caller, "device:d-1")
    assert error.kind == "too-many-requests"
    assert "The device sends" in str(error)
    limits.caller("device:d-2")


def test_connections_of_an_address_are_bounded_and_given_back() -> None:
    limits = admission(Clock(), connections_per_address=3)
    admitted = [limits.admit(f"2001:db8::{n}") for n in range(3)]
    assert None not in admitted
    assert limits.admit("2001:db8::99") is None
    assert limits.admit("2001:db8:0:1::") is not None
    first = admitted[0]
    assert first is not None
    first.leave()
    first.leave()  # once
    assert limits.admit("2001:db8::99") is not None
    assert limits.admit("2001:db8::98") is None


def test_no_address_has_more_than_an_eighth_of_all_connections() -> None:
    limits = admission(Clock(), most=80)
    assert [limits.admit("192.0.2.1") is not None for _ in range(11)] == [True] * 10 + [False]


def test_this_machines_own_address_is_not_counted_and_the_rest_of_127_is() -> None:
    limits = admission(Clock())
    for address, counted in (("127.0.0.1", False), ("::1", False), ("127.0.0.2", True)):
        admitted = limits.admit(address)
        assert admitted is not None
        assert bool(admitted.sender([]).key) is counted
    everybody = admission(Clock(), unlimited="")
    admitted = everybody.admit("127.0.0.1")
    assert admitted is not None
    assert admitted.sender([]).key == "127.0.0.1"


# ------------------------------------------------------------ proxies


def behind(clock: Clock, proxies: str = "10.0.0.0/24") -> Admission:
    return admission(clock, behind_proxy=proxies, public_url="https://fl.example.org")


def test_headers_count_from_a_proxy_only() -> None:
    proxy, local = behind(Clock()).admit("10.0.0.7"), behind(Clock()).admit("127.0.0.1")
    assert proxy is not None
    assert local is not None
    found = proxy.sender(FORWARDED)
    assert (found.address, found.key, found.scheme, found.way) == ("192.0.2.1", "192.0.2.1", "https", "forwarded")
    assert proxy.sender([]).way == "unnamed"
    assert (local.sender(FORWARDED).address, local.sender(FORWARDED).way) == ("127.0.0.1", "direct")
    error = refused(proxy.sender, FORWARDED[:1])
    assert error.kind == "malformed-request"


def test_plain_text_from_elsewhere_than_the_proxy_is_not_connected() -> None:
    assert behind(Clock()).admit("10.0.1.7") is None
    assert behind(Clock()).admit("192.0.2.1") is None
    both = admission(
        Clock(), behind_proxy="10.0.0.0/24", public_url="https://x", tls_cert="cert.pem", tls_key="key.pem"
    )
    assert both.admit("192.0.2.1") is not None


def test_a_proxys_own_connections_are_not_counted_and_its_clients_requests_are() -> None:
    limits = behind(Clock())
    admitted = [limits.admit("10.0.0.7") for _ in range(2000)]
    assert None not in admitted
    for _ in range(20):
        limits.request(SITE)
    refused(limits.request, SITE)


# ------------------------------------------------------------ memory


def test_buckets_are_forgotten_when_they_are_full_and_there_are_never_too_many() -> None:
    clock = Clock()
    buckets = TokenBuckets(1.0, 5, clock, most=100)
    for number in range(1000):
        buckets.take(str(number))
    assert len(buckets) == 100
    clock.now = 10.0
    assert not buckets.spent("999")
    assert len(buckets) == 99


def test_what_is_under_way_is_counted_by_key_and_of_all_and_forgotten() -> None:
    refusals: list[bool] = []

    def no(of_all: bool) -> ProblemError:
        refusals.append(of_all)
        return problem("busy", "no")

    flight = InFlight(no, each=10, total=25)
    with flight.held("a", 8), flight.held("b", 10) as held:
        held.add(0)
        refused(flight.reserve, "a", 3)
        with flight.held("c", 7):
            refused(flight.reserve, "d", 1)
        flight.reserve("d", 7)
        assert (flight.amount, len(flight)) == (25, 3)
        flight.release("d", 7)
    assert (flight.amount, len(flight), refusals) == (0, 0, [False, True])


def test_a_single_body_is_never_too_large() -> None:
    flight = InFlight(lambda of_all: problem("busy", "no"), each=10, total=10)
    with flight.held("a", 100):
        refused(flight.reserve, "b", 1)
    with flight.held("a") as held:
        held.add(100)
        refused(held.add, 1)
    assert flight.amount == 0
