"""Whose request a proxy passes on, read from its headers, and from nobody else's."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.limits.admission import Forwarded, NotForwarded, counted_as, forwarded, parse_address
from coordinator.network_settings import NetworkSettings

PROXIES = (ip_network("10.0.0.0/24"), ip_network("fd00::/64"))


def read(*headers: tuple[str, str]) -> tuple[str, str] | None:
    found = forwarded([(name.lower().encode(), value.encode("latin-1")) for name, value in headers], PROXIES)
    return None if found is None else (str(found.address), found.scheme)


def usual(hops: str, proto: str = "https") -> tuple[str, str] | None:
    return read(("X-Forwarded-For", hops), ("X-Forwarded-Proto", proto))


def test_no_header_is_no_client() -> None:
    assert read(("Host", "x"), ("Via", "1.1 y")) is None


@pytest.mark.parametrize(
    ("hops", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("198.51.100.7, 192.0.2.1", "192.0.2.1"),
        ("198.51.100.7,192.0.2.1 , 10.0.0.7", "192.0.2.1"),
        ("whatever a client writes, 192.0.2.1, 10.0.0.7, 10.0.0.8", "192.0.2.1"),
        ("10.0.0.9, 10.0.0.7", "10.0.0.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_the_clients(hops: str, client: str) -> None:
    assert usual(hops) == (client, "https")
    assert usual(hops, "http") == (client, "http")


def test_several_lines_are_one_list() -> None:
    sent = [("X-Forwarded-For", "192.0.2.9"), ("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https")]
    assert read(*sent) == ("192.0.2.1", "https")


@pytest.mark.parametrize(
    ("header", "client", "scheme"),
    [
        ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60", "http"),
        ('For="[2001:db8:cafe::17]:4711";Proto=HTTPS', "2001:db8:cafe::17", "https"),
        ("for=192.0.2.43;proto=http, for=198.51.100.17;proto=https", "198.51.100.17", "https"),
        ("for=192.0.2.43;proto=https , for=10.0.0.7;proto=http", "192.0.2.43", "https"),
        ('for="192.0.2.43:47011";host="a,b;c";proto="https"', "192.0.2.43", "https"),
        ('for="19\\2.0.2.43";proto=https', "192.0.2.43", "https"),
    ],
)
def test_the_standard_header_is_read_too(header: str, client: str, scheme: str) -> None:
    assert read(("Forwarded", header)) == (client, scheme)


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Forwarded-For", "192.0.2.1")],
        [("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https,https")],
        [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "wss")],
        [("X-Forwarded-For", ""), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "192.0.2.1,"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "unknown"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "192.0.2.256"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "1.2.3"), ("X-Forwarded-Proto", "https")],
        [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Proto", "https"), ("Forwarded", "for=192.0.2.1;proto=https")],
        [("Forwarded", "")],
        [("Forwarded", "for=192.0.2.1")],
        [("Forwarded", "proto=https")],
        [("Forwarded", "for=_hidden;proto=https")],
        [("Forwarded", "for=unknown;proto=https")],
        [("Forwarded", "for=192.0.2.1;for=192.0.2.2;proto=https")],
        [("Forwarded", "for=192.0.2.1;proto=https,")],
        [("Forwarded", "for=192.0.2.1;proto=https;")],
        [("Forwarded", 'for="192.0.2.1;proto=https')],
        [("Forwarded", "for = 192.0.2.1;proto=https")],
        [("Forwarded", "for=192.0.2.1 proto=https")],
        [("Forwarded", "for=[2001:db8::1];proto=https")],
    ],
)
def test_what_can_be_read_in_two_ways_or_none_is_refused(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(NotForwarded):
        read(*headers)


@given(
    st.lists(st.tuples(st.sampled_from(["forwarded", "x-forwarded-for", "x-forwarded-proto"]), st.text(max_size=40)))
)
def test_no_text_breaks_the_reader(headers: list[tuple[str, str]]) -> None:
    sent = [(name.encode(), value.encode("latin-1", "ignore")) for name, value in headers]
    try:
        assert isinstance(forwarded(sent, PROXIES), Forwarded | None)
    except NotForwarded:
        pass


def test_ipv6_addresses_count_by_their_64_bits() -> None:
    for text in ("2001:db8:1:2::1", "2001:DB8:1:2:ffff::", "2001:db8:1:2::%eth0"):
        assert counted_as(parse_address(text)) == "2001:db8:1:2::/64"
    assert counted_as(parse_address("2001:db8:1:3::1")) == "2001:db8:1:3::/64"
    assert counted_as(parse_address("::ffff:192.0.2.7")) == counted_as(parse_address("192.0.2.7")) == "192.0.2.7"


@pytest.mark.parametrize("field", ["behind_proxy", "unlimited"])
@pytest.mark.parametrize("networks", ["0.0.0.0/0", "::/0", "0.0.0.0/1, 128.0.0.0/1", "8000::/1, 10.0.0.0/8, ::/1"])
def test_repro_networks_that_are_everybody_together_are_refused(field: str, networks: str) -> None:
    with pytest.raises(ValueError, match="is every address"):
        NetworkSettings.model_validate({field: networks, "public_url": "https://fl.example"})
