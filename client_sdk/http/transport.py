"""HTTP connections whose waits can be interrupted: a long poll ends within a second when the device is to stop.

A read that waits for a server cannot be interrupted from another thread, so here it waits in slices and checks between
them whether to stop. The caller gives the condition for its own thread only, so a fleet of hundreds of clients in one
process may share one ``open_http``.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from client_sdk.http.urls import check_url, is_loopback

CA_VARIABLE = "QUORATE_CA"
SLICE_S = 0.5
"""Longest time that a read waits before it checks whether to stop."""

_stopped: ContextVar[Callable[[], bool] | None] = ContextVar("quorate_stopped", default=None)


class Interrupted(Exception):
    """The request was given up because its thread is to stop. Whether it arrived is not known."""


@contextmanager
def until(stopped: Callable[[], bool]) -> Iterator[None]:
    """Requests of this thread inside the block end with Interrupted soon after ``stopped()`` is true."""
    token = _stopped.set(stopped)
    try:
        yield
    finally:
        _stopped.reset(token)


def open_http(coordinator: str, *, ca: Path | str | None = None, tls: ssl.SSLContext | None = None) -> httpx2.Client:
    """An HTTP client for one coordinator's URL, without a limit on connections, its waits interruptible (``until``).

    ``ca``: a PEM file with the one authority that is trusted, where the coordinator's certificate is from a private
    authority; None: the file that the environment variable QUORATE_CA names, or else the usual authorities. ``tls``: a
    context that decides all of this instead. The environment's proxy for that URL is used (``HTTPS_PROXY``,
    ``NO_PROXY``). Redirects are not followed, and answers are not decompressed. ValueError where the URL is not http or
    https, is plain http beyond this machine, or the file has no certificate.
    """
    url = check_url(coordinator)
    return httpx2.Client(
        base_url=url,
        transport=_Transport(_proxy_of(url), tls if tls is not None else trust(ca)),
        timeout=httpx2.Timeout(connect=5.0, read=30.0, write=30.0, pool=30.0),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
    )


def trust(ca: Path | str | None = None) -> ssl.SSLContext | None:
    """A context that trusts the authorities in this PEM file only, or in the one that QUORATE_CA names; None where
    neither is given. ValueError, in a sentence, where the file cannot be read or has no certificate."""
    file = ca if ca is not None else os.environ.get(CA_VARIABLE)
    if not file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError:
        wrong = f"{file} has no certificate in PEM form: --ca and {CA_VARIABLE} name one of an authority"
        raise ValueError(wrong) from None
    except OSError as error:
        raise ValueError(f"The file of the authority's certificate, {file}, cannot be read: {error.strerror}") from None
    return context


def in_short(error: httpx2.HTTPError) -> str:
    """Why there was no answer, in a few words."""
    return "no answer in time" if isinstance(error, httpx2.TimeoutException) else str(error) or type(error).__name__


def why_silent(url: str, error: httpx2.HTTPError) -> str:
    """What is probably wrong where a request to this URL got no answer, in a sentence; empty where nothing is known."""
    text, scheme = str(error), urlsplit(url).scheme
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"Its certificate is not trusted here: name its authority's with --ca FILE, or {CA_VARIABLE}."
    if scheme == "https" and re.search(
        r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|UNKNOWN_PROTOCOL|HTTP_REQUEST", text
    ):
        return "There is no TLS at this port: give its http URL, or the port of its https."
    if (proxy := _proxy_of(url)) is not None:
        return f"It was asked by the environment's proxy {proxy.rpartition('@')[2]} (see HTTPS_PROXY, NO_PROXY)."
    if scheme == "http" and isinstance(error, httpx2.RemoteProtocolError):
        return "It may speak https there: give its https URL."
    return ""


def _proxy_of(url: str) -> str | None:
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


class _Transport(httpx2.BaseTransport):
    """httpx2's requests over an httpcore2 pool that has our network backend."""

    def __init__(self, proxy: str | None, tls: ssl.SSLContext | None) -> None:
        shared: dict[str, Any] = {
            "ssl_context": tls,
            "max_connections": None,
            "max_keepalive_connections": None,
            "keepalive_expiry": 3.0,
            "network_backend": _Backend(),
        }
        if proxy is None:
            self._pool: httpcore2.ConnectionPool = httpcore2.ConnectionPool(**shared)
        else:
            self._pool = httpcore2.HTTPProxy(proxy_url=proxy if "://" in proxy else f"http://{proxy}", **shared)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if not isinstance(request.stream, httpx2.SyncByteStream):
            raise TypeError("this transport sends synchronous bodies only")
        url = httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        with _as_httpx2():
            answer = self._pool.handle_request(
                httpcore2.Request(
                    method=request.method,
                    url=url,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        if any(name.lower() == b"content-encoding" and value.lower() != b"identity" for name, value in answer.headers):
            answer.close()
            raise httpx2.DecodingError("the answer is compressed, and nothing is decompressed here")
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx2.SyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx2():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


@contextmanager
def _as_httpx2() -> Iterator[None]:
    """Raise httpcore2's errors as httpx2's of the same name."""
    try:
        yield
    except Exception as error:
        kind = getattr(httpx2, type(error).__name__, None)
        if type(error).__module__.partition(".")[0] != "httpcore2" or kind is None:
            raise
        raise kind(str(error)) from error


class _Backend(httpcore2.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        _stop_here()
        return _Stream(super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore2.NetworkStream):
    """A stream whose reads wait in slices."""

    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if _stopped.get() is None:
            return self._inner.read(max_bytes, timeout)
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE_S if ends_at is None else ends_at - time.monotonic()
            try:
                return self._inner.read(max_bytes, max(0.001, min(SLICE_S, left)))
            except httpcore2.ReadTimeout:
                _stop_here()
                if left <= SLICE_S and ends_at is not None:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        _stop_here()
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _stop_here() -> None:
    stopped = _stopped.get()
    if stopped is not None and stopped():
        raise Interrupted
