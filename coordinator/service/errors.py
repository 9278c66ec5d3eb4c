"""Translates every error to one RFC 9457 problem document: the only place that decides the answer of a failed request.

::

    ProblemError                 as it is: an error of the peer, with kind, sentence and advice
    pydantic's errors            invalid-request: which field, and why
    HTTPException                about:blank with the text of the status: no such route, method not allowed, range
    StoreError                   busy: nothing happened, the peer may retry
    StoreFull                    disk-full
    NoSuchValue                  invalid-request: the same again would be refused again
    BlobError                    disk-full, digest-mismatch, too-large; else busy: the disk reported an error
    OSError ENOSPC, EDQUOT       disk-full
    OSError EMFILE, ENFILE       busy: no file handle is free
    ClientDisconnect             no answer: the peer is gone
    anything else                internal: our bug. Logged with its traceback; the peer gets one sentence and an id
"""

from __future__ import annotations

import errno
import math
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from client_sdk.protocol.names import PROBLEM_MEDIA_TYPE, PROTOCOL_VERSION, message_of
from client_sdk.protocol.problems import Problem, ProblemError, problem
from coordinator.blobs.port import BlobError, Damaged, DigestMismatch, DiskFull, TooLarge
from coordinator.store.gateway import NoSuchValue
from coordinator.store.port import StoreError, StoreFull

log = structlog.get_logger("coordinator.service")

NO_SUCH_VALUE = "The request holds a number beyond 64 bits or a text that is no Unicode, which cannot be stored."
_NO_ROOM = problem("disk-full", "The coordinator has no room left; nothing was stored.", retry_after_s=30).problem
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_HANDLES = (errno.EMFILE, errno.ENFILE)
_SHOWN = 5
_NO_FIELDS = frozenset({"body", "query", "path", "constrained-str"})
"""Parts of pydantic's locations that are no fields of a request: where it stood, and the branch of a union."""
_SECRETS = frozenset({"secret", "who", "key", "token"})
"""Fields of messages whose values are not repeated: senders log what they are answered."""
_WHOLE = frozenset({"extra_forbidden", "json_invalid", "model_type"})
"""Types of errors whose input is a text that we know nothing of: it may be a secret too."""


def problem_of(error: BaseException, *, path: str = "") -> Problem:
    """Returns the document for ``error``; logs it where it is a bug of ours."""
    match error:
        case ProblemError():
            return error.problem
        case RequestValidationError():
            return problem("invalid-request", sentence(error.errors())).problem
        case ValidationError():
            return problem("invalid-request", sentence(error.errors(include_url=False))).problem
        case HTTPException():
            return plain(error.status_code, str(error.detail))
        case StoreFull():
            log.warning("store is full", path=path, error=str(error))
            return _NO_ROOM
        case NoSuchValue():
            return problem("invalid-request", NO_SUCH_VALUE).problem
        case StoreError():
            log.warning("store refused", path=path, error=str(error))
            return problem("busy", "The coordinator's database is busy; nothing happened.", retry_after_s=2).problem
        case DiskFull():
            return _NO_ROOM
        case OSError() if error.errno in _FULL:
            return _NO_ROOM
        case OSError() if error.errno in _NO_HANDLES:
            log.warning("no file handle is free; raise `ulimit -n`", path=path)
            return problem(
                "busy", "The coordinator has no file handle left; nothing happened.", retry_after_s=5
            ).problem
        case DigestMismatch():
            return problem("digest-mismatch", str(error)).problem
        case TooLarge():
            return problem("too-large", str(error)).problem
        case Damaged():
            log.error("a file is damaged", path=path, error=str(error))
            return problem("busy", str(error), retry_after_s=5).problem
        case BlobError():
            log.error("blobs refused", path=path, error=str(error))
            return problem(
                "busy", "The coordinator's disk reported an error; nothing was stored.", retry_after_s=5
            ).problem
        case _:
            reference = secrets.token_hex(4)
            log.error("bug", path=path, reference=reference, exc_info=error)
            return problem("internal", f"A bug in the coordinator; its log has the details under {reference}.").problem


def plain(status: int, detail: str) -> Problem:
    """Returns a problem without a kind of its own: the status is enough (RFC 9457, section 4.2.1)."""
    title = HTTPStatus(status).phrase
    return Problem(type="about:blank", title=title, status=status, detail=detail if detail != title else "")


def problem_response(found: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the document as a response, with the headers of its kind."""
    extra = dict(headers or {})
    if found.retry_after_s is not None:
        extra["Retry-After"] = str(math.ceil(found.retry_after_s))
    if found.status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    if found.status == 426:
        extra["Upgrade"] = f"quorate/{PROTOCOL_VERSION}"
    return Response(
        found.model_dump_json(exclude_none=True),
        status_code=found.status,
        media_type=PROBLEM_MEDIA_TYPE,
        headers=extra,
    )


def sentence(errors: Sequence[Any]) -> str:
    """Returns pydantic's list of errors as one line: ``hold_s: Input should be greater than or equal to 0 (got
    -1)``."""
    parts = []
    for error in errors[:_SHOWN]:
        where = ".".join(str(part) for part in error["loc"] if part not in _NO_FIELDS)
        parts.append((f"{where}: " if where else "") + message_of(error) + _shown(error))
    if len(errors) > _SHOWN:
        parts.append(f"and {len(errors) - _SHOWN} more")
    return "; ".join(parts) + "."


def _shown(error: Any) -> str:
    """The value that was sent, where it is short and cannot be a secret."""
    given, secret = error.get("input"), error["type"] in _WHOLE or not _SECRETS.isdisjoint(error["loc"])
    if secret or given == "" or not isinstance(given, str | int | float | bool):
        return ""
    return f" (got {given!r:.80})"
