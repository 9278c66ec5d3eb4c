"""One request of an operator and its answer, or the problem: what all parts of the operator's client share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from client_sdk.http.exchange import exchanged, headers, read_limited
from client_sdk.http.operator_key import API_KEY, KEY_FILE, find_key, noted_beside
from client_sdk.http.transport import in_short, open_http, why_silent
from client_sdk.http.urls import check_url
from client_sdk.protocol.names import NEXT_HEADER, Page, Route, did_you_mean
from client_sdk.protocol.problems import Problem, ProblemError, parse_problem, problem

ANSWER_LIMIT = 256 << 20
"""Bytes of an answer that are read: lists of long runs are long."""

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_RUN = re.compile(r"/runs/([^/]+)")


class OperatorTransport:
    """Sends requests with the operator's key. Raises ProblemError for what the coordinator refuses; where it cannot be
    reached the problem is ``busy``. ValueError where ``coordinator`` is no URL."""

    def __init__(
        self, coordinator: str, *, key: str | None, key_file: Path | str | None, http: httpx2.Client | None
    ) -> None:
        self.coordinator = check_url(coordinator)
        self._key = key or find_key(self.coordinator, key_file)
        self._own_http = http is None
        self._http = http if http is not None else open_http(self.coordinator)

    def close(self) -> None:
        """Close the connections, where they are its own."""
        if self._own_http:
            self._http.close()

    def ask(
        self,
        method: str,
        url: str,
        answer: type[T],
        message: BaseModel | None = None,
        params: dict[str, Any] | None = None,
        timeout: httpx2.Timeout | None = None,
    ) -> T:
        """The answer as a message, or a list of them."""
        content = message.model_dump_json().encode() if message is not None else None
        extra = {"Content-Type": "application/json"} if message is not None else {}
        body = self.send(method, url, content=content, params=params, extra=extra, timeout=timeout)
        return self._read(answer, body)

    def _read(self, answer: type[T], body: bytes) -> T:
        try:
            return TypeAdapter(answer).validate_json(body)
        except ValidationError as error:
            detail = f"The answer of {self.coordinator} was not understood: is it a Quorate coordinator?"
            raise ProblemError(
                Problem(type="about:blank", title="Answer not understood", status=502, detail=detail)
            ) from error

    def page(self, url: str, item: type[M], after: object, limit: int, **wanted: str) -> Page[M]:
        """A page of a list of messages, with where the rest begins."""
        response, body = self._exchanged("GET", url, params={"after": after, "limit": limit, **wanted})
        return Page(self._read(list[item], body), response.headers.get(NEXT_HEADER, ""))  # type: ignore[valid-type]

    def send(self, method: str, url: str, **given: Any) -> bytes:
        """The body of the answer. ``given``: as for ``ask``, and ``content`` and ``extra`` headers."""
        return self._exchanged(method, url, **given)[1]

    def _exchanged(
        self,
        method: str,
        url: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        params: dict[str, Any] | None = None,
        extra: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
    ) -> tuple[httpx2.Response, bytes]:
        try:
            sent = {**headers(self._key), **(extra or {})}
            timeout = timeout or self._http.timeout
            response, body = exchanged(
                self._http, method, url, ANSWER_LIMIT, content=content, params=params, headers=sent, timeout=timeout
            )
        except httpx2.HTTPError as error:
            raise self.silent(error) from error
        if not response.is_success:
            raise self._refusal(response, body)
        return response, body

    @contextmanager
    def streamed(
        self, url: str, extra: dict[str, str], timeout: httpx2.Timeout | None = None
    ) -> Iterator[httpx2.Response]:
        """The answer to a GET, to be read part by part. httpx2.HTTPError where the connection breaks."""
        sent, timeout = {**headers(self._key), **extra}, timeout or self._http.timeout
        with self._http.stream("GET", url, headers=sent, timeout=timeout, follow_redirects=False) as response:
            if not response.is_success:
                raise self._refusal(response, read_limited(response))
            yield response

    def silent(self, error: httpx2.HTTPError) -> ProblemError:
        """The problem of a coordinator that does not answer."""
        fix = why_silent(self.coordinator, error)
        fix = fix or "Start it with 'quorate serve', or name another with --coordinator."
        return problem("busy", f"No coordinator answers at {self.coordinator} ({in_short(error)}). {fix}")

    def _refusal(self, response: httpx2.Response, body: bytes) -> ProblemError:
        if response.status_code == 401 and self._key is None:
            how = f"give --key-file FILE, or set {KEY_FILE} or {API_KEY}"
            if other := noted_beside(self.coordinator):
                how = f"yours is for {other}, which is the address to use; or {how}"
            return problem("unauthenticated", f"There is no API key for the coordinator at {self.coordinator}: {how}.")
        found = parse_problem(response.status_code, body, response.headers)
        run = _RUN.search(response.request.url.path)
        if found.kind == "unknown-run" and run is not None:
            near = did_you_mean(run[1], self._runs())
            found = found.model_copy(update={"detail": found.detail.rstrip(".") + near} if near else {})
        return ProblemError(found)

    def _runs(self) -> list[str]:
        """The runs that the caller sees; none where they cannot be had."""
        try:
            return [row["run"] for row in self.ask("GET", Route.RUNS, list[dict[str, Any]])]
        except ProblemError:
            return []
