"""Signs and sends one request of a device over HTTP, and returns its result as a reply of the session."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any, BinaryIO, Protocol

import httpx2
from pydantic import ValidationError

from client_sdk.credentials.request_signature import NONCE_BYTES, sign_request
from client_sdk.device.actions import Answered, Failed, Fetch, Fetched, RequestRefused, Send, Unreachable, Unreadable
from client_sdk.device.checkpoint_cache import CheckpointCache, Download, WrongBytes
from client_sdk.extensions import installed_version
from client_sdk.http.transport import in_short, why_silent
from client_sdk.identity import Entropy, Signer
from client_sdk.protocol.devices import Assignment, CheckIn, CheckpointRef
from client_sdk.protocol.flower import FlowerPoll
from client_sdk.protocol.names import (
    BASE_HEADER,
    DELTA_MEDIA_TYPE,
    DIGEST_HEADER,
    HOLDS_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    Message,
    Route,
    content_digest,
)
from client_sdk.protocol.problems import Problem, parse_problem, problem
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE, SECURE_HEADER, NotReady, Octets, SecureWait
from client_sdk.protocol.workers import RESULT_HEADER, WorkerPoll
from client_sdk.tensors.checkpoint_delta import decode
from client_sdk.tensors.manifest import TensorError

# ------------------------------------------------------------ signing
# Signs the requests of one device or worker to one coordinator (``credentials.request_signature``).
#
# A request is signed for the coordinator's URL as the device has it, so what one coordinator receives is of no use at
# another one. Each attempt is signed afresh, with a nonce of its own. Only the signatures' times go by what was
# learnt of the coordinator's clock.


class LearntClock:
    """A clock for request signatures: the machine's, corrected by what a server's answers said. ``now`` is what servers
    take for the time, as far as is known.

    Only signatures of requests go by it. Certificates, revocation lists and secure attempts go by the machine's own
    clock: a server that lies about the time must not make an expired one valid.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ahead_s = 0.0
        """Seconds by which servers' clocks are ahead of this machine's."""

    def now(self) -> float:
        """Unix seconds."""
        return self._clock() + self.ahead_s

    def learn(self, date: str | None) -> bool:
        """Take the time of an answer that refused a request as *wrong-clock*: its Date header (RFC 9110, section
        6.6.1). Whether it had one that can be read: then the request may be signed again."""
        try:
            found = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return False
        self.ahead_s = found - self._clock()
        return True


class RequestSigner:
    """The signatures for ``coordinator``, a URL that ``urls.check_url`` gave; its host is signed in lower case and
    without the scheme's own port, as it is sent. ``clock``: Unix seconds.

    ``signer`` is the holder's present key, and None until there is one: its owner replaces it when it was rotated."""

    def __init__(self, coordinator: str, clock: Callable[[], float], entropy: Entropy = os.urandom) -> None:
        self.signer: Signer | None = None
        self.clock = LearntClock(clock)
        self._coordinator = str(httpx2.URL(coordinator)).rstrip("/")
        self._entropy = entropy

    def headers(self, method: str, path: str, sha256: bytes, result: str | None = None) -> dict[str, str]:
        """The headers that sign one attempt; none where there is no key. ``sha256``: of the body, 32 bytes.
        ``result``: the header *Quorate-Result*, where the request has it."""
        if self.signer is None:
            return {}
        return sign_request(
            self.signer,
            method=method,
            uri=self._coordinator + path,
            sha256=sha256,
            at=self.clock.now(),
            nonce=self._entropy(NONCE_BYTES),
            result=result,
        )


# ------------------------------------------------------------ exchange


ANSWER_LIMIT = 1 << 20
"""Bytes of a JSON answer that are read: far more than any message of the protocol has."""
OCTETS_LIMIT = 1 << 24
"""Bytes of an answer in a secure round that are read: three times the roster of the largest cohort."""
ANSWER_S = 60.0
"""Longest wait for an answer, beyond what the request itself asks to be held."""

HOLDS = CheckIn | WorkerPoll | SecureWait | FlowerPoll
"""Requests that say how long they may be held, in seconds: ``hold_s``."""

STALE = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
"""Errors of an idle connection that the other end had closed; the request is then repeated at once, once."""

NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""Errors before the request was sent."""


def headers(token: str | None = None) -> dict[str, str]:
    """The headers of every request."""
    sent = {PROTOCOL_HEADER: str(PROTOCOL_VERSION), "User-Agent": f"quorate/{installed_version()}"}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    return sent


def read_limited(response: httpx2.Response, limit: int = ANSWER_LIMIT) -> bytes:
    """The body of a streamed response, or its first ``limit`` bytes and a few."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


def exchanged(http: httpx2.Client, method: str, url: str, limit: int, **sent: Any) -> tuple[httpx2.Response, bytes]:
    """One request of what ``sent`` says (``httpx2.Client.build_request``), its answer, and the body of that as
    ``read_limited`` gives it. Redirects are not followed. httpx2.HTTPError."""
    request = http.build_request(method, url, **sent)
    with closing(http.send(request, stream=True, follow_redirects=False)) as response:
        return response, read_limited(response, limit)


class DeviceFiles(Protocol):
    """The files that requests need, checkpoints and bodies: a device's storage, or a worker's folder."""

    @property
    def checkpoints(self) -> CheckpointCache: ...

    def update(self, digest: str) -> BinaryIO:
        """The body of this digest, open for reading from its start."""


@dataclass(frozen=True, slots=True)
class SignedBody:
    """What a request carries, and what is signed of it."""

    content: bytes | BinaryIO | None
    sha256: bytes
    headers: dict[str, str]
    result: str | None = None
    """The header *Quorate-Result*, which is signed too."""


EMPTY = SignedBody(None, hashlib.sha256().digest(), {})


class Exchange:
    """Requests to one coordinator. ``now`` gives Unix seconds; ``coordinator`` is for messages only. ``signing`` signs
    each attempt; None: nothing is signed."""

    def __init__(
        self,
        http: httpx2.Client,
        coordinator: str,
        storage: DeviceFiles,
        now: Callable[[], float],
        signing: RequestSigner | None = None,
    ) -> None:
        self._http = http
        self._coordinator = coordinator
        self._storage = storage
        self._now = now
        self._signing = signing

    def send(self, action: Send) -> Answered | RequestRefused | Unreachable | Unreadable:
        """Deliver once. A stale connection is replaced and the request repeated, which is safe for every request; so is
        one that was signed by a wrong clock. Each attempt is signed afresh."""
        began, held_s = self._now(), 0.0
        try:
            try:
                return self._once(action)
            except STALE:
                held_s = self._now() - began
                return self._once(action)
        except NO_CONNECTION as error:
            return Unreachable(self._silence(error), self._now(), held_s)
        except httpx2.HTTPError as error:
            return Unreachable(self._silence(error), self._now(), self._now() - began)

    def fetch(self, action: Fetch) -> Fetched | RequestRefused | Unreachable | Failed:
        """Download the checkpoint unless it is stored, from where an earlier try ended."""
        try:
            if not self._storage.checkpoints.has(action.checkpoint.digest):
                try:
                    self._receive(action)
                except STALE:
                    self._receive(action)
        except _NotGiven as error:
            return RequestRefused(error.problem, self._now())
        except WrongBytes as error:
            return RequestRefused(problem("digest-mismatch", str(error)).problem, self._now())
        except httpx2.HTTPError as error:
            return Unreachable(self._silence(error), self._now())
        except OSError as error:
            return Failed(f"This device cannot keep the checkpoint: {error.strerror or error}.", self._now())
        return Fetched(self._now())

    def _once(self, action: Send, learns: bool = True) -> Answered | RequestRefused | Unreachable | Unreadable:
        with self._body(action) as body:
            hold_s = action.message.hold_s if isinstance(action.message, HOLDS) else 0.0
            limit = OCTETS_LIMIT if Octets in action.answers else ANSWER_LIMIT
            response, answer = exchanged(
                self._http,
                action.method,
                action.url,
                limit,
                content=body.content,
                headers={**headers(), **body.headers, **self._signed(action.method, action.url, body)},
                timeout=httpx2.Timeout(connect=5.0, read=hold_s + ANSWER_S, write=30.0, pool=30.0),
            )
        at = self._now()
        if response.is_success:
            if Octets in action.answers:
                return _octets(response.status_code, answer, at)
            return understood(action.answers, answer, at)
        refused = parse_problem(response.status_code, answer, response.headers)
        if learns and self._learns(refused, response):
            return self._once(action, learns=False)
        return RequestRefused(refused, at)

    def _signed(self, method: str, path: str, body: SignedBody = EMPTY) -> dict[str, str]:
        return self._signing.headers(method, path, body.sha256, body.result) if self._signing is not None else {}

    def _learns(self, refused: Problem, response: httpx2.Response) -> bool:
        """Whether the request was refused for its times, and may be signed again by what the answer said."""
        if self._signing is None or refused.kind != "wrong-clock":
            return False
        return self._signing.clock.learn(response.headers.get("date"))

    @contextmanager
    def _body(self, action: Send) -> Iterator[SignedBody]:
        if action.update is not None:
            with self._storage.update(action.update) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                sent = {
                    "Content-Type": action.media_type,
                    "Content-Length": str(size),
                    DIGEST_HEADER: content_digest(action.update),
                }
                result = action.message.model_dump_json() if action.message is not None else None
                if result is not None:
                    sent[RESULT_HEADER] = result
                yield SignedBody(file, bytes.fromhex(action.update), sent, result)
        elif action.octets is not None:
            sha256 = hashlib.sha256(action.octets)
            sent = {"Content-Type": OCTETS_MEDIA_TYPE, DIGEST_HEADER: content_digest(sha256.hexdigest())}
            if action.message is not None:
                sent[SECURE_HEADER] = action.message.model_dump_json()
            yield SignedBody(action.octets, sha256.digest(), sent)
        elif action.message is not None:
            content = action.message.model_dump_json().encode()
            yield SignedBody(content, hashlib.sha256(content).digest(), {"Content-Type": "application/json"})
        else:
            yield EMPTY

    def _receive(self, action: Fetch) -> None:
        with self._storage.checkpoints.download(action.checkpoint) as download:
            whole = action.place is not None or download.received > 0
            refused = self._download(action, download, [] if whole else self._storage.checkpoints.held())
            if refused is not None:
                raise _NotGiven(refused)

    def _download(
        self, action: Fetch, download: Download, held: Sequence[str] = (), learns: bool = True
    ) -> Problem | None:
        """``held``: the checkpoints from which the answer may be a difference; where that is none that gives the
        announced bytes, the whole is asked for."""
        path = action.place or Route.CHECKPOINT.format(digest=action.checkpoint.digest)
        extra = {"Range": f"bytes={download.received}-"} if download.received else {}
        if held:
            extra[HOLDS_HEADER] = ", ".join(held)
        with self._http.stream(
            "GET",
            path,
            headers={**headers(), **extra, "Accept-Encoding": "identity", **self._signed("GET", path)},
            follow_redirects=False,
        ) as response:
            delta = None
            if response.is_success and held and response.headers.get("content-type") == DELTA_MEDIA_TYPE:
                delta = read_limited(response, action.checkpoint.bytes)
            elif response.is_success:
                expected_range = f"bytes {download.received}-"
                given = response.headers.get("content-range", "")
                if response.status_code != 206 or not given.startswith(expected_range):
                    download.restart()
                for chunk in response.iter_bytes():
                    download.write(chunk)
                return None
            elif response.status_code == 416:
                download.restart()
            if delta is None:
                refused = parse_problem(response.status_code, read_limited(response), response.headers)
        if delta is not None:
            base = response.headers.get(BASE_HEADER, "")
            if self._restored(action.checkpoint, download, base if base in held else "", delta):
                return None
            download.restart()
            return self._download(action, download)
        if learns and self._learns(refused, response):
            return self._download(action, download, held, learns=False)
        return refused

    def _restored(self, ref: CheckpointRef, download: Download, base: str, delta: bytes) -> bool:
        """Whether this difference from the checkpoint ``base`` has given the announced bytes."""
        old = self._storage.checkpoints.get(base) if base else None
        if old is None:
            return False
        sha256 = hashlib.sha256()
        try:
            for part in decode(BytesIO(old), BytesIO(delta)):
                download.write(part)
                sha256.update(part)
        except (TensorError, WrongBytes):
            return False
        return sha256.hexdigest() == ref.digest

    def _silence(self, error: httpx2.HTTPError) -> str:
        probably = why_silent(self._coordinator, error)
        why = in_short(error)
        return f"The coordinator at {self._coordinator} cannot be reached ({why}).{probably and ' ' + probably}"


class _NotGiven(Exception):
    def __init__(self, refused: Problem) -> None:
        super().__init__(str(refused))
        self.problem = refused


def understood(answers: tuple[type[Message], ...], body: bytes, at: float) -> Answered | RequestRefused | Unreadable:
    """The message in a good answer. Of several, its field ``kind`` selects one, or where they have no such field, the
    fields that it must have."""
    try:
        content: Any = json.loads(body)
        kind = content.get("kind") if isinstance(content, Mapping) else None
        for answer in answers:
            if len(answers) == 1 or _is(answer, content, kind):
                return Answered(answer.model_validate(content), at)
        why = f"its kind {kind!r} is not known"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = f"{'.'.join(str(part) for part in first['loc']) or 'the whole'}: {first['msg']}"
        if Assignment in answers and kind == "assignment":
            unreadable = _unreadable(content, why, at)
            if unreadable is not None:
                return unreadable
    except ValueError:
        why = "it is not JSON"
    return _not_understood(why, at)


def _is(answer: type[Message], content: object, kind: object) -> bool:
    """Whether the answer is of this type, one of several."""
    field = answer.model_fields.get("kind")
    if field is not None and not field.is_required():
        return bool(field.default == kind)
    needed = {name for name, one in answer.model_fields.items() if one.is_required()}
    return isinstance(content, Mapping) and needed <= content.keys()


def _octets(status: int, body: bytes, at: float) -> Answered | RequestRefused:
    """The bytes of a good answer in a secure round, or that there are none yet (204)."""
    if status == 204:
        return Answered(NotReady(), at)
    if len(body) > OCTETS_LIMIT:
        return _not_understood("it is too long", at)
    return Answered(Octets(content=body), at)


def _not_understood(why: str, at: float) -> RequestRefused:
    detail = f"The coordinator's answer was not understood ({why})."
    return RequestRefused(Problem(type="about:blank", title="Answer not understood", status=502, detail=detail), at)


def _unreadable(content: Mapping[str, Any], why: str, at: float) -> Unreadable | None:
    run, number, attempt = content.get("run"), content.get("round"), content.get("attempt", 0)
    if not isinstance(run, str) or not isinstance(number, int) or not isinstance(attempt, int):
        return None
    return Unreadable(run, number, attempt, f"This device's SDK does not know what the plan asks for ({why}).", at)
