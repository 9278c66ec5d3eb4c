"""Every reason to refuse a request, as RFC 9457 problem documents: kind, status, and what a device then does.

::

    Exception
    |-- ProblemError                  the request cannot be fulfilled, or not now; carries the problem document
    |   |  kind                  status  a device then
    |   |-- malformed-request       400  drop    not HTTP/1.1, or ambiguous; the connection closes
    |   |-- truncated               400  retry   sends the same bytes again
    |   |-- unauthenticated         401  stop    an operator's key or token is missing or not valid; nothing is signed
    |   |-- bad-signature           401  retry   the signature is not that of its key over this request, for this URL
    |   |-- unregistered            401  register  registers again with its certificate, a few times
    |   |-- expired-certificate     401  renew   asks its authority for a newer certificate
    |   |-- wrong-clock             401  retry   signs afresh, by the time in the answer's Date header
    |   |-- replayed-request        401  retry   signs afresh: this signed request was received before
    |   |-- enrolment-refused       403  stop    needs a person: the token is not valid
    |   |-- not-certified           403  stop    needs a person: a certificate of another authority or class, or older
    |   |-- revoked-key             403  stop    needs a person: the authority has revoked the key, or its holder left
    |   |-- not-permitted           403  drop    an operator's role or scope does not reach so far
    |   |-- not-selected            403  drop    this round is not for it
    |   |-- unknown-device          404  drop    only operators name devices
    |   |-- unknown-worker          404  drop
    |   |-- unknown-key             404  drop    only owners name API keys
    |   |-- unknown-run             404  drop
    |   |-- unknown-ledger          404  drop    only operators name privacy ledgers
    |   |-- unknown-round           404  drop
    |   |-- unknown-checkpoint      404  drop
    |   |-- unknown-content       404  drop    no content of this digest that the peer may read
    |   |-- unknown-list            404  drop    no revocation list of this digest, or one that is out of date
    |   |-- request-timeout         408  retry   the headers were not complete in time; the connection closes
    |   |-- conflict                409  drop    the request contradicts the current state
    |   |-- lease-lost              409  drop    a worker's lease is over, or a newer one was granted
    |   |-- late                    409  drop    the round has closed
    |   |-- stale                   409  drop    another round or attempt is under way
    |   |-- duplicate               409  drop    another update of this device was accepted first
    |   |-- withdrawn               409  drop    this device has withdrawn from the round
    |   |-- length-required         411  drop
    |   |-- too-large               413  drop
    |   |-- compressed              415  drop    a body with a Content-Encoding: nothing is decompressed
    |   |-- invalid-request         422  drop
    |   |-- invalid-plan            422  drop    only operators send plans
    |   |-- invalid-update          422  drop    names, shapes, dtypes, NaN, infinity, range
    |   |-- digest-mismatch         422  retry   the bytes changed on the way
    |   |-- protocol-version        426  stop    one of the two must be upgraded
    |   |-- too-many-requests       429  retry   honours Retry-After: this address, device or key sent too many
    |   |-- headers-too-large       431  drop    request line and headers; the connection closes
    |   |-- internal                500  retry   a bug of the coordinator; logged there with its traceback
    |   |-- busy                    503  retry   honours Retry-After
    |   |-- issuer-unreachable      503  retry   an operator's token cannot be checked now; honours Retry-After
    |   `-- disk-full               507  retry   honours Retry-After
    `-- anything else                   a bug: never shown to a peer, answered as ``internal``

*drop*: discard this round's work and log the reason. *retry*: send the same request later. *register*: register again
with the same certificate. *renew*: get another certificate from the authority, and register with it. *stop*: end with
the problem's sentence. Without a round (check-in, registration), *drop* means *stop*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Advice = Literal["drop", "retry", "register", "renew", "stop"]

TYPE_PREFIX = "/problems/"
DETAIL_LIMIT = 2000
"""Longest ``detail`` in characters; the rest is cut."""
FIELDS_LIMIT = 50
"""The most entries of ``Problem.fields``."""


class ProblemKind(NamedTuple):
    """The status, title and advice that all problems of one kind share."""

    status: int
    title: str
    advice: Advice


PROBLEMS: dict[str, ProblemKind] = {
    "malformed-request": ProblemKind(400, "The request is not well-formed HTTP", "drop"),
    "truncated": ProblemKind(400, "The body ended before its declared length", "retry"),
    "unauthenticated": ProblemKind(401, "The credentials are missing or not valid", "stop"),
    "bad-signature": ProblemKind(401, "The request's signature is not valid here", "retry"),
    "unregistered": ProblemKind(401, "This key is not registered here", "register"),
    "expired-certificate": ProblemKind(401, "The certificate is not valid now", "renew"),
    "wrong-clock": ProblemKind(401, "The request is not around the time here", "retry"),
    "replayed-request": ProblemKind(401, "The request was received before", "retry"),
    "enrolment-refused": ProblemKind(403, "This device may not enrol", "stop"),
    "not-certified": ProblemKind(403, "This certificate is not taken here", "stop"),
    "revoked-key": ProblemKind(403, "The authority has revoked this key", "stop"),
    "not-permitted": ProblemKind(403, "Your role or scope does not permit this", "drop"),
    "not-selected": ProblemKind(403, "This device was not selected for the round", "drop"),
    "unknown-device": ProblemKind(404, "No such device", "drop"),
    "unknown-worker": ProblemKind(404, "No such worker", "drop"),
    "unknown-key": ProblemKind(404, "No such API key", "drop"),
    "unknown-run": ProblemKind(404, "No such run", "drop"),
    "unknown-ledger": ProblemKind(404, "No such privacy ledger", "drop"),
    "unknown-round": ProblemKind(404, "No such round", "drop"),
    "unknown-checkpoint": ProblemKind(404, "No such checkpoint", "drop"),
    "unknown-content": ProblemKind(404, "No such content", "drop"),
    "unknown-list": ProblemKind(404, "No such revocation list", "drop"),
    "request-timeout": ProblemKind(408, "The request did not arrive in time", "retry"),
    "conflict": ProblemKind(409, "The request contradicts the present state", "drop"),
    "lease-lost": ProblemKind(409, "The lease of this datacenter round is over", "drop"),
    "late": ProblemKind(409, "The round has closed", "drop"),
    "stale": ProblemKind(409, "Another round or attempt is under way", "drop"),
    "duplicate": ProblemKind(409, "Another update of this device was accepted first", "drop"),
    "withdrawn": ProblemKind(409, "This device has withdrawn from the round", "drop"),
    "length-required": ProblemKind(411, "Content-Length is missing", "drop"),
    "too-large": ProblemKind(413, "The body is longer than allowed", "drop"),
    "compressed": ProblemKind(415, "Compressed bodies are not read", "drop"),
    "invalid-request": ProblemKind(422, "The request is not valid", "drop"),
    "invalid-plan": ProblemKind(422, "The plan is not valid", "drop"),
    "invalid-update": ProblemKind(422, "The update does not fit the run's model", "drop"),
    "digest-mismatch": ProblemKind(422, "The bytes do not have the announced digest", "retry"),
    "protocol-version": ProblemKind(426, "This protocol version is not spoken here", "stop"),
    "too-many-requests": ProblemKind(429, "Too many requests", "retry"),
    "headers-too-large": ProblemKind(431, "The request's headers are longer than allowed", "drop"),
    "internal": ProblemKind(500, "The coordinator failed", "retry"),
    "busy": ProblemKind(503, "The coordinator is busy", "retry"),
    "issuer-unreachable": ProblemKind(503, "The issuer of tokens cannot be reached", "retry"),
    "disk-full": ProblemKind(507, "The coordinator's disk is full", "retry"),
}


class FieldProblem(BaseModel):
    """What is wrong with one field of the document that was sent."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    field: tuple[str, ...]
    """The names that lead to it: ``["cohort", "goal"]``. Of a contradiction between fields, to the section that has
    them; empty: it is the whole document's."""
    detail: str
    """A clause without the field's name."""


class Problem(BaseModel):
    """One problem document. ``type`` names the kind; a peer that does not know the kind uses ``status``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = Field(max_length=300)
    """``/problems/<kind>``, a relative URI as RFC 9457 allows."""
    title: str = Field(max_length=300)
    """The title of the kind; every problem of the kind has it."""
    status: int = Field(ge=400, le=599)
    detail: str = ""
    """One plain sentence about this occurrence, with the fix where there is one."""
    instance: str | None = None
    """The request's path, or None."""
    retry_after_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds after which the same request may succeed; also sent as the ``Retry-After`` header."""
    retryable: bool = False
    """Whether the same request may succeed later."""
    fields: tuple[FieldProblem, ...] | None = None
    """The parts of ``detail`` by field, at most 50, where the document that was sent is a plan; None: they are not
    known."""

    @property
    def kind(self) -> str:
        """The last segment of ``type``: ``late``."""
        return self.type.removeprefix(TYPE_PREFIX)

    @property
    def is_ours(self) -> bool:
        """Whether a coordinator wrote it. An error of a proxy in between is never final."""
        return self.type.startswith(TYPE_PREFIX)

    @property
    def advice(self) -> Advice:
        """What a device does. For a kind that only newer versions have, the status decides."""
        known = PROBLEMS.get(self.kind)
        return known.advice if known is not None else _advice_of_status(self.status, self.retryable)

    def __str__(self) -> str:
        return self.detail or self.title


class ProblemError(Exception):
    """A problem as an exception: raised by the coordinator for a request, and by clients for the answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem

    @property
    def kind(self) -> str:
        return self.problem.kind

    @property
    def status(self) -> int:
        return self.problem.status

    def __reduce__(self) -> tuple[type[ProblemError], tuple[Problem]]:
        return (type(self), (self.problem,))


def problem(
    kind: str,
    detail: str,
    *,
    instance: str | None = None,
    retry_after_s: float | None = None,
    fields: Sequence[FieldProblem] = (),
) -> ProblemError:
    """The error to raise: ``raise problem("late", "Round 7 closed 12 s ago.")``.

    KeyError for an unknown ``kind``. ``detail`` is cut at DETAIL_LIMIT characters, ``fields`` at FIELDS_LIMIT entries.
    """
    status, title, advice = PROBLEMS[kind]
    return ProblemError(
        Problem(
            type=TYPE_PREFIX + kind,
            title=title,
            status=status,
            detail=_cut(detail),
            fields=tuple(fields[:FIELDS_LIMIT]) or None,
            instance=instance,
            retry_after_s=retry_after_s,
            retryable=advice == "retry",
        )
    )


def _cut(detail: str) -> str:
    return detail if len(detail) <= DETAIL_LIMIT else detail[: DETAIL_LIMIT - 1] + "…"


def parse_problem(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem in an error response; one is made if the sender (a proxy, for example) sent no problem document.

    ``headers`` are looked up by their lower-case names (``httpx2.Headers`` or a dict with such keys);
    ``Retry-After`` in seconds fills ``retry_after_s`` if the document has none. Nothing that a peer sends raises.
    """
    headers = headers or {}
    found: Problem | None = None
    try:
        found = Problem.model_validate_json(body)
    except (ValidationError, ValueError):
        pass
    if found is None or not found.is_ours:
        advice = _advice_of_status(status, retryable=False)
        text = body[:200].decode("utf-8", "replace").strip() if body[:1] not in (b"<", b"{") else ""
        found = Problem(
            type="about:blank",
            title=f"HTTP status {status}",
            status=min(max(status, 400), 599),
            detail=(found.detail if found else "") or _redirect(status, headers) or text or _bare(status),
            retryable=advice == "retry",
        )
    if found.retry_after_s is None:
        found = found.model_copy(update={"retry_after_s": _seconds(headers.get("retry-after"))})
    return found


def _bare(status: int) -> str:
    return f"The server answered with HTTP status {status}."


def _redirect(status: int, headers: Mapping[str, str]) -> str:
    """No redirect is followed: credentials go to no other place than the one that was named."""
    place = headers.get("location", "")
    if not 300 <= status < 400 or not place:
        return ""
    return f"The server redirects to {place[:200]!r}, which is not followed: name the coordinator's own URL."


def _advice_of_status(status: int, retryable: bool) -> Advice:
    if retryable or status in (408, 425, 429) or status >= 500:
        return "retry"
    if status == 401:
        return "register"
    return "stop" if status == 426 else "drop"


def _seconds(header: str | None) -> float | None:
    """``Retry-After`` as seconds; its other form, a date, is ignored because devices' clocks are not trusted."""
    if header is None or not header.strip().isascii() or not header.strip().isdigit():
        return None
    return float(header.strip()[:9])
