"""What is not HTTP, or could be read in two ways, is refused by a problem document, and the connection closes."""

from __future__ import annotations

import pytest

from client_sdk.protocol.names import Route
from tests.coordinator.service.conftest import Server
from tests.coordinator.service.raw import RawAnswer, RawConnection, ask, head

CHUNKED = "Transfer-Encoding: chunked"
STOP = "/v1/runs/nobody/stop"


def post(*lines: str) -> bytes:
    return head(STOP, *lines, method="POST")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(post("Content-Length: 3", CHUNKED) + b"0\r\n\r\n", id="length-and-chunks"),
        pytest.param(post(CHUNKED, "Content-Length: 3") + b"0\r\n\r\n", id="chunks-and-length"),
        pytest.param(post("Content-Length: 3", "Content-Length: 4") + b"abc", id="two-lengths"),
        pytest.param(post("Content-Length: 3, 4") + b"abc", id="a-list-of-lengths"),
        pytest.param(post("Content-Length: -3") + b"abc", id="a-negative-length"),
        pytest.param(post("Content-Length: +3") + b"abc", id="a-signed-length"),
        pytest.param(post("Content-Length: 0x3") + b"abc", id="a-hexadecimal-length"),
        pytest.param(post("Content-Length: " + "9" * 30) + b"abc", id="a-length-beyond-64-bits"),
        pytest.param(post("Transfer-Encoding: gzip") + b"abc", id="an-unknown-coding"),
        pytest.param(post("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", id="two-codings"),
        pytest.param(post("Transfer-Encoding: chunked, identity") + b"0\r\n\r\n", id="chunks-not-last"),
        pytest.param(post(CHUNKED, CHUNKED) + b"0\r\n\r\n", id="chunked-twice"),
        pytest.param(post("Transfer-Encoding : chunked") + b"0\r\n\r\n", id="a-space-before-the-colon"),
        pytest.param(post(CHUNKED).replace(b"1.1", b"1.0") + b"0\r\n\r\n", id="chunks-in-http-1.0"),
        pytest.param(post(CHUNKED) + b"3\nabc\r\n0\r\n\r\n", id="a-bare-lf-after-a-chunk-size"),
        pytest.param(post(CHUNKED) + b"f" * 20 + b"\r\nabc", id="a-chunk-beyond-64-bits"),
        pytest.param(post(CHUNKED) + b"-1\r\nabc", id="a-negative-chunk"),
        pytest.param(head("/healthz", "X: a\0b"), id="nul-in-a-header"),
        pytest.param(head("/healthz", "X: a\rb"), id="bare-cr-in-a-header"),
        pytest.param(head("/healthz", "X: a\nY: b"), id="bare-lf-in-a-header"),
        pytest.param(head("/healthz", "X: a", " b"), id="a-folded-header"),
        pytest.param(head("/healthz", ": x"), id="a-header-without-a-name"),
        pytest.param(head("/healthz", "X y: z"), id="a-space-in-a-name"),
        pytest.param(head().replace(b"\r\n", b"\n"), id="bare-lf-everywhere"),
        pytest.param(head("/heal\0thz"), id="nul-in-the-target"),
        pytest.param(head("/heal\xffthz"), id="no-ascii-in-the-target"),
        pytest.param(b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", id="a-target-without-a-path"),
        pytest.param(head("http://evil.example/healthz"), id="another-host-in-the-target"),
        pytest.param(head("http://localhost@evil.example/healthz"), id="a-user-and-another-host-in-the-target"),
        pytest.param(head("/healthz#x"), id="a-fragment-in-the-target"),
        pytest.param(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", id="connect"),
        pytest.param(b"MAKE / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="an-unknown-method"),
        pytest.param(b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n", id="an-unknown-version"),
        pytest.param(b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n", id="http-2.0-as-text"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="http-2"),
        pytest.param(b"GET /healthz\r\n\r\n", id="http-0.9"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
        pytest.param(
            post("Connection: upgrade", "Upgrade: h2c", "Content-Length: 3") + b"abc", id="an-upgrade-with-a-body"
        ),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", id="no-host"),
        pytest.param(head("/healthz", "Host: localhost"), id="two-hosts"),
        pytest.param(head("/healthz", "Host: evil.example"), id="two-different-hosts"),
        pytest.param(head().replace(b"localhost", b"localhost:http"), id="a-port-that-is-no-number"),
        pytest.param(head().replace(b"localhost", b"[::1]x"), id="a-host-with-more-behind"),
    ],
)
def test_what_is_ambiguous_or_no_http_is_a_problem_and_the_end_of_the_connection(server: Server, sent: bytes) -> None:
    with RawConnection(server.url) as connection:
        connection.send(sent + head("/smuggled"))
        answer = connection.read()
        assert (answer.status, answer.kind()) == (400, "malformed-request")
        assert answer.headers["connection"] == "close"
        assert answer.headers["quorate-protocol"] == "2"
        assert connection.closed()


def test_the_sentence_says_what_the_parser_found(server: Server) -> None:
    found = ask(server.url, b"MAKE / HTTP/1.1\r\nHost: localhost\r\n\r\n").json()["detail"]
    assert found == "This is not HTTP/1.1: Invalid method encountered."


def test_refusals_of_a_connection_are_counted(server: Server) -> None:
    meter = 'quorate_problems_total{kind="malformed-request"}'
    before = server.meter(meter)
    ask(server.url, b"nonsense\r\n\r\n")
    ask(server.url, b"GET / HTTP/1.1\r\n\r\n")
    assert server.meter(meter) == before + 2


def test_requests_sent_ahead_are_answered_in_order_and_then_the_broken_one_is_refused(server: Server) -> None:
    with RawConnection(server.url) as connection:
        paths = [*(["/readyz", "/healthz", Route.RUNS] * 4), "/v1/nowhere"]
        connection.send(b"".join(head(path, server.key_line) for path in paths) + b"GET / HTTP/1.1\r\nX: \0\r\n\r\n")
        answers = [connection.read() for _ in paths]
        assert [answer.status for answer in answers] == [200] * 12 + [404]
        assert answers[0].json()["ok"] is answers[1].json()["ok"] is True
        assert isinstance(answers[2].json(), list)
        assert connection.read().kind() == "malformed-request"
        assert connection.closed()


def test_only_so_many_requests_wait_on_one_connection(server: Server) -> None:
    with RawConnection(server.url) as connection:
        connection.send(head("/readyz") * 500)
        answers: list[RawAnswer] = []
        while not answers or answers[-1].status == 200:
            answers.append(connection.read())
        assert len(answers) == 18, "one is worked on, 16 wait, and the next is refused"
        assert "16 requests" in answers[-1].json()["detail"]
        assert connection.closed()


def test_trailers_change_nothing(server: Server) -> None:
    device = server.device()
    body = b'c;name=value\r\n{"hold_s":0}\r\n' + b"0\r\nAuthorization: Bearer nobody\r\nHost: evil.example\r\n\r\n"
    lines = [CHUNKED, *device.lines("POST", Route.CHECK_IN, b'{"hold_s":0}')]
    with RawConnection(server.url) as connection:
        connection.send(head(Route.CHECK_IN, *lines, method="POST") + body + head())
        assert connection.read().json()["kind"] == "wait"
        assert connection.read().json() == {"ok": True}
    lines = [CHUNKED, *device.lines("POST", Route.CHECK_IN, b"{}")]
    without = [line for line in lines if not line.startswith("Signature:")]
    (signature,) = [line for line in lines if line.startswith("Signature:")]
    trailer = b"2\r\n{}\r\n0\r\n" + signature.encode() + b"\r\n\r\n"
    answer = ask(server.url, head(Route.CHECK_IN, *without, method="POST") + trailer)
    assert answer.kind() == "unauthenticated"


def test_an_upgrade_that_is_not_spoken_is_ignored(server: Server) -> None:
    with RawConnection(server.url) as connection:
        connection.send(head("/healthz", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM"))
        assert connection.read().json() == {"ok": True}
        assert connection.closed()


@pytest.mark.parametrize("host", ["LOCALHOST", "LocalHost:8470", "localhost.", "LOCALHOST.:80", "[::1]", "127.0.0.1."])
def test_the_name_of_a_host_has_no_case_and_may_end_with_a_dot(server: Server, host: str) -> None:
    assert ask(server.url, head().replace(b"localhost", host.encode())).status == 200
    origin = f"Origin: http://{host.lower()}"
    own = head(STOP, origin, server.key_line, method="POST").replace(b"Host: localhost", b"Host: " + host.encode())
    assert ask(server.url, own).kind() == "unknown-run"


def test_a_target_in_absolute_form_names_the_host_of_the_host_header(server: Server) -> None:
    sent = b"GET http://LocalHost:8470/healthz HTTP/1.1\r\nHost: localhost:8470\r\n\r\n"
    assert ask(server.url, sent).status == 200
    assert ask(server.url, head("/healthz?a=http://evil.example/")).status == 200


def test_the_hosts_of_others_are_refused_in_any_case(server: Server) -> None:
    for host in ("EVIL.EXAMPLE", "localhost.evil.example", "localhost..", "x@localhost", "[::2]", "0.0.0.0", "."):
        answer = ask(server.url, head("/v1/runs").replace(b"localhost", host.encode()))
        assert (answer.status, answer.kind()) == (421, "about:blank"), host


def test_repro_an_origin_that_is_no_url_is_refused(server: Server) -> None:
    for origin in ("http://[", "http://[::1", "http://[x]:1", "//"):
        assert ask(server.url, head(STOP, f"Origin: {origin}", method="POST")).status == 403, origin


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize(
    "sent",
    [
        b"GET {} HTTP/1.1\r\nHost: 10.244.0.5:8470\r\n\r\n",
        b"GET {} HTTP/1.1\r\nHost: fl.example.org\r\n\r\n",
        b"GET {} HTTP/1.1\r\nHost: [2001:db8::7]:8470\r\n\r\n",
        b"GET {} HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET {} HTTP/1.0\r\n\r\n",
        b"GET {} HTTP/1.0\r\nHost: quorate-0.quorate.ns.svc.cluster.local\r\n\r\n",
        b"HEAD {} HTTP/1.1\r\nHost: 10.244.0.5\r\n\r\n",
        b"HEAD {} HTTP/1.0\r\n\r\n",
    ],
)
def test_probes_are_answered_by_any_name_in_any_form_and_say_no_more_than_ok(
    server: Server, path: str, sent: bytes
) -> None:
    answer = _probe(server, sent.replace(b"{}", path.encode()))
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
    body = answer.partition(b"\r\n\r\n")[2]
    assert body == (b"" if sent.startswith(b"HEAD") else b'{"ok":true}')
    elsewhere = _probe(server, sent.replace(b"{}", b"/v1/runs"))
    assert b" 421 " in elsewhere.partition(b"\r\n")[0]


def _probe(server: Server, sent: bytes) -> bytes:
    """All that comes back."""
    with RawConnection(server.url) as connection:
        connection.send(sent)
        return connection.drain(0.3, half_closed=False)
