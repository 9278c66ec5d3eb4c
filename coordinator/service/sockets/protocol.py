"""uvicorn's HTTP/1.1 protocol with limits: how long a head may be and may take, and how its refusal is sent.

::

    IDLE --first byte--> HEAD --blank line--> BODY --last byte--> IDLE
      |                   |                    |
      |                   |                    |-- too much framing, broken framing: malformed-request
      |                   |-- head_bytes, headers: headers-too-large     (the time of a body: service/route.py)
      |                   |-- whose request is it, has the address sent too many: too-many-requests
      |                   |-- head_s: request-timeout
      |                   `-- broken, no HTTP/1.x: malformed-request
      `-- keep_alive_s, or head_s on a new connection: closed without an answer

A refusal is a problem document. It is sent after the answers to the requests before it, and the connection closes:
after broken framing nobody knows where the next request begins (RFC 9112, section 11.2).
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Self

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator.limits import Admission, AdmittedConnection
from coordinator.service.errors import problem_response
from coordinator.settings import KIB, Settings


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of each connection. Those that an operator may change come from ``Settings``."""

    head_bytes: int
    """Longest request line and headers together, as sent."""
    head_s: float
    """Seconds within which a head must be complete: from the connection's start, or from the head's first byte."""
    send_idle_s: float
    """Seconds for which a receiver may accept no byte of an answer."""
    keep_alive_s: int = 75
    """Seconds for which idle connections stay open: a device trains between two requests, and a new connection has a
    cost."""
    headers: int = 100
    """Most header fields of one request. Our clients send some ten, a browser some twenty."""
    pipelined: int = 16
    """Most requests that wait on one connection while an earlier one is answered. Our clients send none ahead."""
    framing_bytes: int = 64 * KIB
    """Bytes of a body that are no content: sizes and extensions of chunks, trailers. Each byte of content allows
    ``framing_ratio`` more."""
    framing_ratio: int = 16
    """A chunk of one byte has five bytes of framing."""
    linger_s: float = 5.0
    """Seconds for which the rest of a refused request is read and dropped. Closing at once would reset the connection,
    and a peer that is still sending could lose the answer."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Returns the limits under these settings."""
        return cls(head_bytes=settings.max_head_bytes, head_s=settings.head_s, send_idle_s=settings.send_idle_s)


def most_connections(settings: Settings) -> int:
    """Returns how many connections leave enough file handles for the disk.

    Every upload and every thread may have files open (a spool; a database with its log; a checkpoint). At least half of
    the handles are for connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 64 + settings.uploads + 4 * settings.threads
    return max(soft - files, soft // 2)


# ------------------------------------------------------------ the protocol

_VERSIONS = frozenset({"1.0", "1.1"})


class _Part(Enum):
    """Which part of a request the next byte belongs to."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class BoundedHttp(HttpToolsProtocol):
    """One ``admitted`` connection. ``refused`` is called with each problem that is answered here;
    ``standing`` are headers of every answer. A problem that is raised in the parser's callbacks stops the reading."""

    def __init__(
        self,
        limits: Limits,
        admission: Admission,
        admitted: AdmittedConnection,
        refused: Callable[[Problem], None],
        standing: list[tuple[bytes, bytes]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.timeout_keep_alive = limits.keep_alive_s
        self._limits = limits
        self._admission = admission
        self._admitted = admitted
        self._count_refusal = refused
        self._standing = standing
        self._part = _Part.IDLE
        self._head_bytes = 0
        self._framing_bytes = 0
        self._content_bytes = 0
        self._before_head = b""
        """Of the bytes that are parsed now, the end of the body after which the newest head begins at once."""
        self._head_began = False
        """Whether the newest head began among them."""
        self._answered: RequestResponseCycle | None = None
        """The request that the application works on; ``cycle`` is the newest one."""
        self._refusal: Problem | None = None
        self._upgraded = False
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        self.resume_writing()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._admitted.leave()
        if self._answered is not None and not self._answered.response_complete:
            self._leave(self._answered)
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._upgraded:
            return
        self._unset_keepalive_if_required()
        content_before, part_before, request_before = self._content_bytes, self._part, self.scope
        self._head_bytes += len(data)
        self._head_began = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgraded = True  # the request is answered as any other; what follows it is no HTTP/1.1
            return
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, ProblemError):
                self._refuse(cause.problem)
            else:
                self._refuse(problem("malformed-request", f"This is not HTTP/1.1: {_reason(error)}.").problem)
            return
        before, self._before_head = self._before_head, b""
        if self._part is _Part.HEAD:
            if self._head_began:  # behind the heads and bodies of others, which may be in the same bytes
                rest, body = (part.rpartition(b"\r\n\r\n")[2] for part in (data, before))
                self._head_bytes = len(rest) - len(body) * rest.startswith(body)
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(self._too_large().problem)
                return
        elif self._part is _Part.BODY and part_before is _Part.BODY and self.scope is request_before:
            self._framing_bytes += len(data) - (self._content_bytes - content_before)
            if self._framing_bytes > self._limits.framing_bytes + self._limits.framing_ratio * self._content_bytes:
                detail = "The sizes, extensions and trailers of the body's chunks are longer than its content allows."
                self._refuse(problem("malformed-request", detail).problem)
                return
        if self._part is not _Part.BODY and self._deadline is None and not self._busy:
            self._expect_within(self._limits.head_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._limits.send_idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    # ------------------------------------------------------------ what the parser finds

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            raise problem("malformed-request", f"More than {self._limits.pipelined} requests wait on this connection.")
        self._part, self._head_began = _Part.HEAD, True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is _Part.BODY:
            return  # a trailer: no route reads any, and none may change the headers of a request that has begun
        if len(self.headers) >= self._limits.headers:
            raise self._too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size, length, coding, host = len(self.url), None, None, b""
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                coding = value.lower()
            elif name == b"host":
                host = value.lower()
        if size > self._limits.head_bytes:
            raise self._too_large()
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise problem("malformed-request", f"HTTP/{version} is not spoken here: use HTTP/1.1.")
        if coding is not None and (coding != b"chunked" or version == "1.0"):
            raise problem("malformed-request", "A body comes with a Content-Length, or chunked by HTTP/1.1.")
        if b"#" in self.url or not (self.url.startswith(b"/") or _host_of(self.url) in (host, b"")):
            raise problem("malformed-request", "A target names no fragment, and no other host than the Host header.")
        if self.parser.should_upgrade() and (coding is not None or length not in (None, b"0")):
            raise problem("malformed-request", "A request with a body cannot ask for another protocol.")
        self._count_request()
        if self._deadline is not None:
            self._expect_within(None)
        self._part, self._before_head = _Part.BODY, b""
        self._framing_bytes = self._content_bytes = 0
        super().on_headers_complete()

    def _count_request(self) -> None:
        """Finds whose request this is, and counts it before it costs more. The parser's callback may raise."""
        sender = self._admitted.sender(self.headers)
        self._admission.request(sender)
        if sender.scheme is not None:
            self.scope["client"], self.scope["scheme"] = (sender.address, 0), sender.scheme
        self.scope["state"]["sender"] = sender

    def on_body(self, body: bytes) -> None:
        self._content_bytes += len(body)
        self._before_head = body
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        self._before_head = b""

    def on_message_complete(self) -> None:
        self._part = _Part.IDLE
        super().on_message_complete()
        if self.cycle.response_complete and self._deadline is not None:  # the rest of a body that nobody wanted
            self._expect_within(None)
            self._keep_alive()

    # ------------------------------------------------------------ answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if self._upgraded or self.parser.should_upgrade():
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._busy:
            return
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._part is _Part.BODY:
            self._unset_keepalive_if_required()
            self._expect_within(self._limits.linger_s)
        elif self._part is _Part.HEAD and self._deadline is None:
            self._unset_keepalive_if_required()
            self._expect_within(self._limits.head_s)

    @property
    def _busy(self) -> bool:
        """Whether the application works on a request of this connection."""
        return self._answered is not None and not self._answered.response_complete

    def _keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    # ------------------------------------------------------------ refusals

    def _too_large(self) -> ProblemError:
        return problem(
            "headers-too-large",
            f"The request line and headers may have {self._limits.head_bytes} bytes and {self._limits.headers} fields.",
        )

    def _refuse(self, found: Problem) -> None:
        """Reads no further request. The answer is sent when all requests before this one are answered."""
        self._refusal = found
        self._count_refusal(found)
        if found.status != 429:
            self._admitted.refused()
        self._expect_within(None)
        if self._part is _Part.BODY and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # its body is broken, and the application does not know of it yet
        elif self._part is _Part.BODY and self._busy and self._answered is self.cycle:
            self._leave(self.cycle)
            if self.cycle.response_started:
                self.transport.close()
                return
            self._answered = None
        if not self._busy:
            self._send_refusal(found)

    def _leave(self, cycle: RequestResponseCycle) -> None:
        """Tells the application that the peer of this request is gone."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _send_refusal(self, found: Problem) -> None:
        if self.transport.is_closing():
            return
        response = problem_response(found, {"Connection": "close"})
        head = [*self.server_state.default_headers, *self._standing, *response.raw_headers]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in head)
        self.transport.write(STATUS_LINE[found.status] + lines + b"\r\n" + bytes(response.body))
        if self.transport.can_write_eof():  # TLS has no half-closed connections: the peer reads `Connection: close`
            self.transport.write_eof()
        self.flow.resume_reading()
        self._expect_within(self._limits.linger_s)

    # ------------------------------------------------------------ time

    def _expect_within(self, seconds: float | None) -> None:
        """Sets the time within which the next step must happen, in place of the one before; None: there is none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        self._deadline = None
        if self._refusal is not None:
            self.transport.abort()
        elif self._part is _Part.HEAD:
            detail = f"The head of the request was not complete after {self._limits.head_s:g} s."
            self._refuse(problem("request-timeout", detail).problem)
        else:
            self.transport.close()


def _host_of(target: bytes) -> bytes:
    """Host and port of a target in absolute form, in lower case; empty where it has none, as ``*``."""
    return target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].lower()


def _reason(error: httptools.HttpParserError) -> str:
    """The parser's words, and none of the peer's: an error of a callback has the peer's bytes in it."""
    if isinstance(error, httptools.HttpParserCallbackError | httptools.HttpParserInvalidURLError):
        return "the request target cannot be read"
    return str(error) or "the request cannot be read"
