"""What an entry of the table of requests is.

::

    Direct   one call, and its answer
    Held     a first look; where it finds nothing, the request is held: look again whenever the key is woken, until the
             hold has expired or the client has gone
    Body     the limit, before the first byte of a long body is read; the stored body, after the last

The functions of a shape are called as ``function(coordinator, caller, message, ..., **path)``, without the message
where the entry has none. What stands in the path, or in the query, are their keyword-only parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_type_hints

from client_sdk.protocol.names import Message
from coordinator.requests.callers import Caller, Permission
from coordinator.runtime.coordinator import Coordinator

Handler = Callable[..., Any]
Group = Literal["runs", "fleet", "checkpoints", "devices", "workers"]


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of an annotation: what a parameter is, for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Direct:
    call: Handler
    together: Handler | None = None
    """``together(coordinator, requests)``: the answers of many, in one group commit."""

    @property
    def main(self) -> Handler:
        return self.call


@dataclass(frozen=True, slots=True)
class Held:
    """The message says in ``hold_s`` for how long the client is willing to wait."""

    first: Handler
    """The answer, or None where there is none yet."""
    key: Handler
    """The signal that is woken when there may be an answer."""
    peer: Handler
    """Who waits: of one peer only the newest request is held."""
    again: Handler
    """The same question as ``first``, asked again."""
    expired: Handler
    """The answer when the hold has expired."""
    gone: Handler | None = None
    """What is done when the client has gone while it was held."""
    together: Handler | None = None
    """``together(coordinator, requests)``: the first look of many, in one group commit."""

    @property
    def main(self) -> Handler:
        return self.first


@dataclass(frozen=True, slots=True)
class Beside:
    """Where the message of a request stands whose body is something else: in a header."""

    header: str
    about: str
    """What it is, for people."""
    missing: str
    """The answer to a client that does not send it."""


@dataclass(frozen=True, slots=True)
class Body:
    limit: Handler
    """The longest body worth reading; ProblemError where none is."""
    stored: Handler
    """The answer. It is called with the body's ``Spool`` after the message, and commits it where it takes it."""
    beside: Beside | None = None
    in_memory: Handler | None = None
    """``in_memory(coordinator, arrivals)``: the second source of a body: many that are valid and stay in the memory of
    whoever asks, in one group commit."""

    @property
    def main(self) -> Handler:
        return self.stored


Shape = Direct | Held | Body
S = TypeVar("S", bound=Shape, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[S]):
    method: str
    route: str
    """A path template."""
    permission: Permission
    shape: S
    answer: Any
    """The type of a good answer: a message, a union or a list of messages."""
    summary: str
    group: Group
    message: type[Message] | None = None
    created: bool = False
    """Whether a good answer means that something new is there,"""
    location: str | None = None
    """and the template of where: filled with the answer's fields."""
    operation: str = ""
    """The name of the operation in the API's description, where it is not the name of the function."""

    @property
    def name(self) -> str:
        return step_name(self.shape.main)

    def together(self, coordinator: Coordinator, requests: Sequence[Request]) -> list[Any]:
        """The answers of many requests of this entry, each a direct one or the first look of a held one: in one group
        commit where the entry has a way to do it, else one after another. A refusal is raised, or is an answer."""
        shape: Shape = self.shape
        if isinstance(shape, Body):
            raise TypeError(f"{self.name} has a body: what stays in memory comes by from_memory")
        if shape.together is not None:
            answers: list[Any] = shape.together(coordinator, requests)
            return answers
        return [request.call(shape.main, coordinator) for request in requests]

    def from_memory(self, coordinator: Coordinator, arrivals: Sequence[Any]) -> list[Any]:
        """The answers (ProblemError where one is refused) to many bodies that stay in memory."""
        shape: Shape = self.shape
        if not isinstance(shape, Body) or shape.in_memory is None:
            raise TypeError(f"{self.name} takes nothing from memory")
        answers: list[Any] = shape.in_memory(coordinator, arrivals)
        return answers

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.shape.main.__doc__ or "")

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What stands in the path or the query, with resolved annotations."""
        main = self.shape.main
        hints = get_type_hints(main, include_extras=True)
        return {
            name: parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(main).parameters.items()
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
        """Calls a function of the entry's shape with what the request says."""
        if self.entry.message is None:
            return step(coordinator, self.caller, *more, **self.path)
        return step(coordinator, self.caller, self.message, *more, **self.path)


def step_name(step: Handler) -> str:
    """How a function of a shape is named in logs, counts and schedules."""
    return step.__name__.replace("_", "-")
