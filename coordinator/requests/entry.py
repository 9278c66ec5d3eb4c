"""The entry of the table of requests: a route, who may ask, the message, and the shape of the answer.

::

    Direct   one call returns the answer
    Held     where the first call has no answer, the request is held and called again whenever the key is woken, until
             the hold has expired or the client has gone
    Body     one call returns the limit before the first byte of a long body is read; another handles the stored body.
             Where the body counts already, one call returns the answer without it

The main function of an entry may return ``PendingCommit`` in place of its answer.

The functions of a shape are called as ``function(coordinator, caller, message, ..., **path)``, without the message
where the entry has none. The parameters in the path and in the query are keyword-only parameters.

The credentials of a request are resolved to its caller, who is refused what the caller may not do, before anything else
is done with the request::

    a signature (Arrived)  --check_credentials-->  SignedBy  --identify-->  a device or a worker
    a signature of a registration                  Registrant              the same: who registers
    a bearer token (str)                           the token               an operator

Handlers get the caller and never see credentials, so another kind of credentials changes this file alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import cached_property, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, assert_never, get_args, get_origin, get_type_hints

from pydantic import Field

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.errors import BadCredential
from client_sdk.protocol.devices import Registration
from client_sdk.protocol.names import TENSORS_MEDIA_TYPE, DeviceId, Message
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import NotReady, Octets
from client_sdk.protocol.workers import WorkerRegistration
from coordinator.access import EVERYTHING, Operator, Role
from coordinator.group_commit import PendingCommit
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.identities import Arrived, Registrant, SignedBy
from coordinator.store.port import DeviceRow, WorkerRow


class Permission(Enum):
    """Who may make a request."""

    NOBODY = "nobody"
    """No credentials are needed: the answer is for everybody."""
    CERTIFIED = "holder of a certificate"
    """Who registers: the authority has certified the key that signs, and the coordinator need not know it yet."""
    DEVICE = "device"
    WORKER = "worker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"
    PEER = "device, worker or viewer"

    @property
    def needs_credentials(self) -> bool:
        return self is not Permission.NOBODY

    @property
    def needs_signature(self) -> bool:
        """Whether the request must be signed by a certified key."""
        return self in (Permission.CERTIFIED, Permission.DEVICE, Permission.WORKER)

    @property
    def role(self) -> Role | None:
        """The lowest role of an operator who has this permission; None where it is not one of operators."""
        return _ROLES.get(self)

    @property
    def of_peers(self) -> bool:
        """Whether devices or workers make it."""
        return self.needs_signature or self is Permission.PEER

    @property
    def of_operators(self) -> bool:
        """Whether it is for operators alone."""
        return self.role is not None and self is not Permission.PEER


_ROLES = {
    Permission.VIEWER: Role.VIEWER,
    Permission.OPERATOR: Role.OPERATOR,
    Permission.OWNER: Role.OWNER,
    Permission.PEER: Role.VIEWER,
}
Caller = DeviceRow | WorkerRow | Operator | Registrant | None
Credentials = SignedBy | Registrant | str
"""Who has signed the request, or the text after *Bearer*: an API key, or a token of the issuer; or the text of a
browser's session. Empty: none of them."""

_REGISTRATIONS: dict[type, HolderClass] = {Registration: "device", WorkerRegistration: "worker"}
_NOT_LET_IN = (401, 403)
"""Statuses of refusals for who asks, not for when."""
_UNSIGNED = "Sign this request with the key that the authority has certified (RFC 9421)."


def check_credentials(
    coordinator: Coordinator, permission: Permission, arrived: Arrived | str, message: Any
) -> Credentials:
    """Checks the signature of a request; of one that registers, with the certificate in its ``message``. Bearer tokens
    are passed on. ProblemError: see ``SignedRequests``; the audit has a refused registration."""
    if isinstance(arrived, str):
        return arrived
    if permission is not Permission.CERTIFIED:
        return coordinator.signed.check(
            arrived.signature,
            method=arrived.method,
            uri=arrived.uri,
            at=arrived.at,
            result=arrived.result,
            sha256=arrived.sha256,
        )
    try:
        return _registrant(coordinator, arrived, message)
    except ProblemError as error:
        if error.status in _NOT_LET_IN:
            coordinator.access.audit.refused("", "registration", error.problem.detail)
        raise


def _registrant(coordinator: Coordinator, arrived: Arrived, message: Any) -> Registrant:
    try:
        certificate = Certificate.parse(bytes.fromhex(message.certificate))
    except BadCredential as error:
        raise problem("not-certified", str(error)) from None
    coordinator.signed.check_registration(
        arrived.signature,
        certificate,
        _REGISTRATIONS[type(message)],
        method=arrived.method,
        uri=arrived.uri,
        at=arrived.at,
        sha256=arrived.sha256,
    )
    return Registrant(certificate)


def identify(
    coordinator: Coordinator,
    permission: Permission,
    credentials: Credentials,
    *,
    run: str | None = None,
    scoped: bool = False,
) -> Caller:
    """Returns the caller whom the checked credentials belong to. They are ignored where none are needed.

    Of an operator the scope must include the ``run`` that the request names. A request that names none needs the
    scope of everything, unless it is ``scoped``: then it shows and takes only what is in the caller's scope.

    ProblemError *unauthenticated* where no caller has the credentials, *not-permitted* where the operator's role or
    scope does not reach so far, *issuer-unreachable*, and those of ``Identities`` for devices and workers.
    """
    match permission:
        case Permission.NOBODY:
            return None
        case Permission.CERTIFIED:
            if isinstance(credentials, Registrant):
                return credentials
        case Permission.DEVICE:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.device(credentials)
        case Permission.WORKER:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.worker(credentials)
        case Permission.PEER:
            if isinstance(credentials, SignedBy):
                return coordinator.identities.peer(credentials)
            if isinstance(credentials, str):
                return _operator(coordinator, permission, credentials, run, scoped)
        case Permission.VIEWER | Permission.OPERATOR | Permission.OWNER:
            if isinstance(credentials, str):
                return _operator(coordinator, permission, credentials, run, scoped)
        case _:
            assert_never(permission)
    raise problem("unauthenticated", _UNSIGNED if permission.needs_signature else "Send an operator's API key.")


def caller_id(caller: Caller) -> str:
    """The id of who asks, for the audit; empty: nobody."""
    match caller:
        case DeviceRow():
            return caller.device
        case WorkerRow():
            return caller.worker
        case Operator():
            return caller.id
        case Registrant():
            return caller.certificate.id
        case None:
            return ""
        case _:
            assert_never(caller)


def _operator(
    coordinator: Coordinator, permission: Permission, credentials: str, run: str | None, scoped: bool
) -> Operator:
    operator = coordinator.access.operator(credentials)
    role = permission.role or Role.OWNER
    if not operator.has(role):
        detail = f"this needs the role {role.text}; you have: {operator}"
    elif run is not None and not operator.may_with(role, run):
        detail = f"run {run} is outside of your scope as {role.text}; you have: {operator}"
    elif run is None and not scoped and not operator.may(role, EVERYTHING):
        detail = f"this concerns all runs, so it needs the role {role.text} for '*'; you have: {operator}"
    else:
        return operator
    refusal = problem("not-permitted", detail)
    coordinator.access.audit.refused(operator.id, refusal.kind, detail)
    raise refusal


Handler = Callable[..., Any]
T = TypeVar("T")
Group = Literal["runs", "fleet", "checkpoints", "devices", "workers", "flower", "access", "process"]


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of an annotation: the description of a parameter, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Direct:
    call: Handler

    @property
    def main(self) -> Handler:
        return self.call


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no answer yet."""

    hold: Any
    """Names this hold of the peer to ``Held.gone``."""


@dataclass(frozen=True, slots=True)
class Held:
    """The field ``hold_s`` of the message limits how long the client waits, in seconds."""

    first: Handler
    """Returns the answer. Where there is none yet: None, or ``NotYet`` where ``gone`` needs to know the hold."""
    key: Handler
    """``key(caller, message, **path)``: the key of the signal that is woken when there may be an answer."""
    peer: Handler
    """``peer(caller, message, **path)``: the name of the waiting peer. Only the newest request of a peer is held."""
    again: Handler
    """Called later: returns the answer, or None."""
    expired: Handler
    """Returns the answer when the hold has expired."""
    gone: Handler | None = None
    """Called with the hold after the message, when the client has disconnected while the request was held. The peer may
    have sent a newer request, here or to another replica, whose hold survives."""
    mark: Handler | None = None
    """``mark(coordinator, **path)``: a value that this process has in memory, and that changes before there can be an
    answer. Where only time has passed and it is the same, ``again`` is not called."""

    @property
    def main(self) -> Handler:
        return self.first


@dataclass(frozen=True, slots=True)
class Beside:
    """The header that carries the message of a request whose body is something else."""

    header: str
    about: str
    """The description, for people."""
    missing: str
    """The detail of the error where the header is missing."""
    signed: bool = True
    """Whether the request's signature covers the header. False: what the header says is signed by itself."""


@dataclass(frozen=True, slots=True)
class Body:
    limit: Handler
    """Returns the longest accepted body in bytes; ProblemError where no body is accepted."""
    stored: Handler
    """Returns the answer. Called with the body's ``Spool`` after the message; commits the spool where it accepts the
    body."""
    beside: Beside | None = None
    media: str = TENSORS_MEDIA_TYPE
    """The media type of the body, for people."""
    room: int = 0
    """Bytes that ``stored`` appends to the spool, beyond the limit of the body."""
    again: Handler | None = None
    """Called before ``limit``, with the body's announced SHA-256 in hexadecimal after the message: the answer where
    this body has come before and counts, so that none of it is read again; None: it is to be read."""

    @property
    def main(self) -> Handler:
        return self.stored


Shape = Direct | Held | Body
OCTETS = Octets | NotReady
"""The type of answers that are bytes, or nothing yet."""
S = TypeVar("S", bound=Shape, covariant=True)


@dataclass(frozen=True, slots=True)
class Audited:
    """What the audit has of a request, besides who made it."""

    action: str
    """A template, filled with the parameters of the path: ``run.{action}``."""
    asks: tuple[str, ...] = ()
    """Fields of the message for the detail. None of them may be a secret."""
    makes: tuple[str, ...] = ()
    """Fields of the answer by which what was created is known."""
    within: bool = False
    """Whether the function has the rows in the transaction that carries the request out: what came of it, alone."""


@dataclass(frozen=True)
class Entry(Generic[S]):
    method: str
    route: str
    """A path template."""
    shape: S
    summary: str
    _: KW_ONLY
    permission: Permission
    group: Group
    answer: Any = None
    """The type of the answer: a message, a union or a list of messages. None: what the functions of the shape are
    declared to return."""
    scoped: bool = False
    """Of a request of operators that names no run: it shows and takes only what is in the caller's scope. Where it is
    false, the caller needs the scope of everything."""
    audited: Audited | None = None
    """None: the request changes nothing that the audit must have."""
    created: bool = False
    """Whether a successful request creates something (status 201),"""
    location: str | None = None
    """and the template of its location, filled with the fields of the answer."""
    session: Literal["opens", "ends"] | None = None
    """What it does with a browser's session, whose cookie the answer then sets or clears. The main function returns
    the ``NewSession`` that it opened, in place of the ``Me`` that is sent."""
    operation: str = ""
    """The name of the operation in the API's description, where it is not the name of the function."""

    def __post_init__(self) -> None:
        if self.answer is None:
            object.__setattr__(self, "answer", _answer_of(self.shape))

    @cached_property
    def name(self) -> str:
        return step_name(self.shape.main)

    @cached_property
    def message(self) -> type[Message] | None:
        """The type of the message that the main function takes; None: it takes none."""
        hints = (found for name, found in self._hints.items() if name not in (*self.parameters, "return"))
        return next((found for found in hints if isinstance(found, type) and issubclass(found, Message)), None)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.shape.main, include_extras=True)

    def credentials(self, coordinator: Coordinator, arrived: Arrived | str, message: Any) -> Credentials:
        """Checks who has signed the request. ProblemError where the signature is not valid, or was seen before."""
        return check_credentials(coordinator, self.permission, arrived, message)

    def caller(self, coordinator: Coordinator, credentials: Credentials, path: Mapping[str, Any]) -> Caller:
        """Returns the caller. ProblemError where the caller is not known, or may not make this request."""
        return identify(coordinator, self.permission, credentials, run=path.get("run"), scoped=self.scoped)

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.shape.main.__doc__ or "")

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters in the path and the query, with resolved annotations."""
        return {
            name: parameter.replace(annotation=self._hints[name])
            for name, parameter in inspect.signature(self.shape.main).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }


@dataclass(frozen=True, slots=True)
class Request:
    """One request whose caller is known."""

    entry: Entry[Shape]
    caller: Caller
    message: Any = None
    path: Mapping[str, Any] = field(default_factory=dict)

    def call(self, step: Handler, coordinator: Coordinator, *more: Any) -> Any:
        """Calls a function of the entry's shape with the caller, the message and the path of this request. What its
        answer acknowledges is durable."""
        answer = self.begin(step, coordinator, *more)
        return answer.settle() if isinstance(answer, PendingCommit) else answer

    def begin(self, step: Handler, coordinator: Coordinator, *more: Any) -> Any:
        """Calls the function as ``call`` does; but what the answer acknowledges may not be durable yet: then it is a
        ``PendingCommit``, for who settles it together with others."""
        if self.entry.message is None:
            return step(coordinator, self.caller, *more, **self.path)
        return step(coordinator, self.caller, self.message, *more, **self.path)

    def act(self, coordinator: Coordinator, *more: Any) -> Any:
        """Calls the main function of the entry's shape. The audit has the request before it is carried out; and after
        it, what it created, or that it was refused. Where it does not, or has its rows ``within``, the answer may be
        ``PendingCommit``."""
        call, audited = self.entry.shape.main, self.entry.audited
        if audited is None or audited.within:
            return self.begin(call, coordinator, *more)
        record = coordinator.access.audit.record
        by = caller_id(self.caller)
        run, action = self.path.get("run"), audited.action.format(**self.path)
        details = {name: value for name, value in self.path.items() if name not in ("run", "action")}
        details |= {name: getattr(self.message, name) for name in audited.asks}
        record(by, action, _details(details), run=run)
        try:
            answer = self.call(call, coordinator, *more)
        except ProblemError as error:
            record(by, f"{action} refused", error.kind, run=run)
            raise
        if audited.makes:
            made = {name: getattr(answer, name) for name in audited.makes}
            record(by, f"{action} done", _details(made), run=run or made.get("run"))
        return answer


def _answer_of(shape: Shape) -> Any:
    """The type of the answers of these functions: of a held request, later ones or that of an expired hold."""
    steps = (shape.again, shape.expired) if isinstance(shape, Held) else (shape.main,)
    found = [get_type_hints(step)["return"] for step in steps]
    found = [get_args(one)[0] if get_origin(one) is PendingCommit else one for one in found]
    answers = [one for hint in found for one in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
    return reduce(or_, (one for one in answers if one is not NoneType))


def _details(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in (None, ""))


def step_name(step: Handler) -> str:
    """The name of a function of a shape in logs, counts and schedules."""
    return step.__name__.replace("_", "-")


RoundNumber = Annotated[int, Field(ge=1), About("the round's number, from 1")]
Attempt = Annotated[int, Field(ge=0), About("the round's attempt, 0 in plain rounds")]
Action = Annotated[Literal["pause", "resume", "stop"], About("what to do with the run")]
Limit = Annotated[int, Field(ge=1, le=10_000), About("at most this many")]
AfterRound = Annotated[int, Field(ge=0, lt=2**63), About("rounds with a number above this")]
AfterVersion = Annotated[int, Field(ge=-1, lt=2**63), About("versions above this")]
AfterRow = Annotated[int, Field(ge=0, lt=2**63), About("rows with a number above this")]
AfterDevice = Annotated[DeviceId | Literal[""], About("devices whose id sorts after this, for paging")]
