"""Definitions that all messages share: patterns and types of names, the protocol's version and headers, the routes.

Each pattern has a description, which an error shows in place of the regular expression.

An update's report travels in the metadata of its safetensors body (one key, since the library writes several in random
order), not in headers or a second request: one digest then covers tensors and report, and one request is one sync to
disk. Checkpoints carry no metadata, since their digest must depend on the tensors alone.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

DIGEST_PATTERN = r"^[0-9a-f]{64}$"
SIGNATURE_PATTERN = r"^[0-9a-f]{128}$"
LEARNER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$"
CODEC_PATTERN = r"^([A-Za-z0-9][A-Za-z0-9._-]*:)?[a-z0-9-]+@[0-9]+$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
LEDGER_PATTERN = r"^(run:)?[a-z0-9][a-z0-9._-]{0,63}$"
PLAN_PATTERN = r"^[a-z0-9][a-z0-9-]{0,47}$"
METRIC_PATTERN = r"^[A-Za-z][A-Za-z0-9_./-]{0,63}$"

DESCRIPTIONS = {
    DIGEST_PATTERN: "a SHA-256 in lower-case hexadecimal, 64 digits",
    SIGNATURE_PATTERN: "an Ed25519 signature in lower-case hexadecimal, 128 digits",
    LEARNER_PATTERN: "the package and name of a learner, such as quorate:mnist-mlp",
    CODEC_PATTERN: "the name and version of a codec, such as float16@1 (of a package: package:name@1)",
    NAME_PATTERN: "up to 64 lower-case letters, digits, dots, dashes and underscores, a letter or digit first",
    LEDGER_PATTERN: "the name of a privacy ledger, or run: and the id of a run that has one of its own",
    PLAN_PATTERN: "up to 48 lower-case letters, digits and dashes, a letter or digit first",
    METRIC_PATTERN: "up to 64 letters, digits and . _ / -, a letter first",
}


def message_of(error: Mapping[str, Any]) -> str:
    """The message of one of pydantic's errors; for a text that does not match a pattern above, what it should be."""
    if error["type"] == "string_pattern_mismatch":
        description = DESCRIPTIONS.get(error["ctx"]["pattern"])
        if description is not None:
            return f"should be {description}"
    return str(error["msg"]).removeprefix("Value error, ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean a or b?`` of the known names that are most similar, in whatever case; empty where none is."""
    names = sorted(known)
    close = get_close_matches(name.lower(), sorted({one.lower() for one in names}))
    near = [one for lower in close for one in names if one.lower() == lower][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


PROTOCOL_VERSION = 2
"""The version of the protocol that this code uses. It is raised by a change that older peers cannot read."""
PROTOCOL_OLDEST = 2
"""The oldest version of the protocol that this code accepts."""

PROTOCOL_HEADER = "Quorate-Protocol"
TENSORS_MEDIA_TYPE = "application/vnd.safetensors"
PROBLEM_MEDIA_TYPE = "application/problem+json"
REPORT_KEY = "quorate.report"
"""The only key of an update's safetensors ``__metadata__``: the UpdateReport as JSON. With one key, the order of the
bytes is defined."""
HOLDS_HEADER = "Quorate-Holds"
"""Digests of the checkpoints that a device has, newest first, with commas between, in a request for another one. The
answer may then be a difference from one of these, which it names under ``BASE_HEADER``."""
BASE_HEADER = "Quorate-Base"
DELTA_MEDIA_TYPE = "application/vnd.quorate.delta"
"""Of such an answer: ``client_sdk.tensors.checkpoint_delta``."""
DIGEST_HEADER = "Content-Digest"
"""RFC 9530: the SHA-256 of the body, as ``content_digest`` writes it. Devices send it with updates."""

NEXT_HEADER = "Quorate-Next"
"""In the answer with a page of a list, or of what has one: the rest begins ``after`` this. Without it the page ends the
list. A page may be short, or empty, and have it: the server looks at so many things for one answer, and no more."""

Digest = Annotated[str, Field(pattern=DIGEST_PATTERN, description="SHA-256 in lower-case hexadecimal")]
LearnerName = Annotated[str, Field(pattern=LEARNER_PATTERN, description="package:name of an installed learner")]
RunId = Annotated[str, Field(pattern=NAME_PATTERN)]
DeviceId = Annotated[str, Field(pattern=NAME_PATTERN)]
WorkerId = Annotated[str, Field(pattern=NAME_PATTERN)]
MetricName = Annotated[str, Field(pattern=METRIC_PATTERN)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
StatisticRole = Literal["statistic", "non-negative"]
"""The role of a tensor that is no parameter: see ``client_sdk.tensors.manifest``, which has the same."""


class Route(StrEnum):
    """Path templates, shared by both ends. FastAPI takes them unchanged; clients fill them by ``.format()``."""

    REGISTER = "/v1/devices"
    LEAVE = "/v1/devices/left"
    CHECK_IN = "/v1/checkins"
    CHECKPOINT = "/v1/checkpoints/{digest}"
    STARTED = "/v1/runs/{run}/rounds/{round}/started"
    UPDATE = "/v1/runs/{run}/rounds/{round}/attempts/{attempt}/update"
    WITHDRAWN = "/v1/runs/{run}/rounds/{round}/withdrawn"
    OUTCOME = "/v1/runs/{run}/rounds/{round}/outcome"
    # secure rounds
    SECURE = "/v1/runs/{run}/rounds/{round}/secure"
    SECURE_MESSAGE = "/v1/runs/{run}/rounds/{round}/attempts/{attempt}/secure/{stage}"
    SECURE_ANSWER = "/v1/runs/{run}/rounds/{round}/attempts/{attempt}/secure/{stage}/answer"
    SECURE_REFUSAL = "/v1/runs/{run}/rounds/{round}/attempts/{attempt}/refusal"
    # workers
    REGISTER_WORKER = "/v1/workers"
    LEASES = "/v1/leases"
    HEARTBEAT = "/v1/runs/{run}/rounds/{round}/lease"
    RESULT = "/v1/runs/{run}/rounds/{round}/attempts/{attempt}/result"
    LEASE_END = "/v1/runs/{run}/rounds/{round}/lease/end"
    # Flower runs
    FLOWER_RUNS = "/v1/flower/runs"
    FLOWER_RUN = "/v1/flower/runs/{run}"
    FLOWER_NODES = "/v1/flower/runs/{run}/nodes"
    FLOWER_CONTENT = "/v1/flower/runs/{run}/contents/{digest}"
    FLOWER_MESSAGES = "/v1/flower/runs/{run}/messages"
    FLOWER_REPLIES = "/v1/flower/runs/{run}/replies"
    FLOWER_STATE = "/v1/flower/runs/{run}/state"
    FLOWER_END = "/v1/flower/runs/{run}/end"
    FLOWER_TASKS = "/v1/flower/tasks"
    FLOWER_REPLY = "/v1/flower/runs/{run}/messages/{message}/reply"
    FLOWER_ERROR = "/v1/flower/runs/{run}/messages/{message}/error"
    # operators
    RUNS = "/v1/runs"
    RUN = "/v1/runs/{run}"
    ADVANCE = "/v1/runs/{run}/advance"
    UNBAR = "/v1/runs/{run}/devices/{device}/unbar"
    SIGN_RUN = "/v1/runs/{run}/sign"
    RENAME = "/v1/runs/{run}/name"
    RUN_ACTION = "/v1/runs/{run}/{action}"
    ROUNDS = "/v1/runs/{run}/rounds"
    ROUND = "/v1/runs/{run}/rounds/{round}"
    PARTICIPATION = "/v1/runs/{run}/participation"
    PRIVACY_REPORT = "/v1/runs/{run}/privacy/report"
    LANES = "/v1/runs/{run}/rounds/{round}/lanes"
    ROUND_LEASES = "/v1/runs/{run}/rounds/{round}/leases"
    CHECK_PLAN = "/v1/plans/check"
    PLAN_SCHEMA = "/v1/plans/schema"
    RUN_PRIVACY = "/v1/runs/{run}/privacy"
    LEDGERS = "/v1/privacy/ledgers"
    LEDGER = "/v1/privacy/ledgers/{ledger}"
    ALLOW_SPENDING = "/v1/privacy/ledgers/{ledger}/allow"
    RUN_CHECKPOINTS = "/v1/runs/{run}/checkpoints"
    METRICS = "/v1/runs/{run}/metrics"
    EVENTS = "/v1/runs/{run}/events"
    STREAM = "/v1/stream"
    DEVICES = "/v1/devices"
    DEVICE = "/v1/devices/{device}"
    FLEET = "/v1/fleet"
    SYSTEM = "/v1/system"
    WORKERS = "/v1/workers"
    REVOKE_WORKER = "/v1/workers/{worker}/revoke"
    KEYS = "/v1/keys"
    REVOKE_KEY = "/v1/keys/{key}/revoke"
    AUDIT = "/v1/audit"
    AUDIT_HEAD = "/v1/audit/head"
    # browsers
    ME = "/v1/me"
    SESSIONS = "/v1/sessions"
    SESSION_WAYS = "/v1/sessions/ways"
    SESSION_BY_LINK = "/v1/sessions/link"
    SESSION_LINKS = "/v1/sessions/links"
    SESSION_OIDC = "/v1/sessions/oidc"
    OIDC_CALLBACK = "/v1/sessions/oidc/callback"
    CURRENT_SESSION = "/v1/sessions/current"
    # everybody
    REVOCATIONS = "/v1/revocations"
    REVOCATION_LIST = "/v1/revocations/{digest}"


def content_digest(sha256_hex: str) -> str:
    """The value of ``DIGEST_HEADER`` for a SHA-256 in hexadecimal: ``sha-256=:<base64>:``."""
    return "sha-256=:" + b64encode(bytes.fromhex(sha256_hex)).decode() + ":"


def read_content_digest(value: str) -> str | None:
    """The SHA-256, in hexadecimal, of the value of a ``DIGEST_HEADER``; None if it has none that can be read."""
    found = re.search(r"(?:^|[,\s])sha-256=:([A-Za-z0-9+/]{43}=):", value)
    return b64decode(found[1]).hex() if found else None


def size_text(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def changed(self, **changes: object) -> Self:
        """What ``model_copy(update=changes)`` gives, which validates nothing either, at a third of its price: a
        message has neither extra nor private fields."""
        following = object.__new__(type(self))
        object.__setattr__(following, "__dict__", {**self.__dict__, **changes})
        object.__setattr__(following, "__pydantic_fields_set__", self.model_fields_set | changes.keys())
        object.__setattr__(following, "__pydantic_extra__", None)
        object.__setattr__(following, "__pydantic_private__", None)
        return following


T = TypeVar("T")


def copied(kind: type[T], /, *sources: object, **others: Any) -> T:
    """One of ``kind``, a message or a dataclass: its fields are ``others``, and the attributes of their names of the
    first source that has them."""
    names: Iterable[str] = kind.model_fields if issubclass(kind, BaseModel) else vars(kind)["__dataclass_fields__"]
    found = ((name, next((one for one in sources if hasattr(one, name)), None)) for name in names if name not in others)
    return kind(**{name: getattr(one, name) for name, one in found if one is not None}, **others)


class Page(list[T]):
    """A part of a list. ``next``: the rest begins ``after`` this (``NEXT_HEADER``); empty: it ends the list."""

    next: str = ""

    def __init__(self, items: Iterable[T] = (), next: str = "") -> None:
        super().__init__(items)
        self.next = next


def first_of(found: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Page[T]:
    """The page of the first ``limit`` of these, of which there is one more where the list goes on. ``cursor``: what the
    rest is asked for after, of the last one."""
    return Page(found[:limit], str(cursor(found[limit - 1])) if len(found) > limit else "")
