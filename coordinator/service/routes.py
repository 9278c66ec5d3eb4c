"""Registers the entries of the table of requests as HTTP routes.

The shape of an entry decides how its request is answered: by one call in a thread, held until there is an answer, or
with a body that is received into a spool.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from fastapi import Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive

from client_sdk.protocol.names import PROTOCOL_HEADER
from client_sdk.protocol.problems import ProblemError, problem
from client_sdk.protocol.secure import OCTETS_MEDIA_TYPE, NotReady, Octets
from coordinator.access.sessions import NewSession, me
from coordinator.blobs import Spool
from coordinator.requests import Body, Caller, Credentials, Direct, Entry, Held, NotYet, Request, Shape
from coordinator.requests.entry import OCTETS, About, Beside
from coordinator.runtime import log_context
from coordinator.runtime.identities import Arrived, SignedBy
from coordinator.service.core import Service, at_once, caller_name, until_gone
from coordinator.service.declaring import BINARY, PAGED, declared, extras
from coordinator.service.edge import version_refusal
from coordinator.service.errors import sentence
from coordinator.service.route import (
    Endpoint,
    HeadArrived,
    LeanRoute,
    Uploads,
    announced_digest,
    arrived,
    bearer,
    json_list,
    json_response,
    note_arrival,
    sender_of,
)
from coordinator.service.session_cookie import require_proof, with_session, without_session

Respond = Callable[[HttpRequest, Arrived | str, Any, dict[str, Any]], Awaitable[Any]]
"""Answers a request, given its credentials, which are not checked yet, its message and the parameters of its path and
query."""


def table_routes(service: Service, uploads: Uploads, entries: Iterable[Entry[Shape]]) -> list[APIRoute]:
    """Returns a route for each entry, in order."""
    holds = Holds(service)
    prefix = service.settings.prefix
    return [_route(entry, _respond(service, uploads, holds, entry), prefix) for entry in entries]


# ------------------------------------------------------------ one function for each shape


def _respond(service: Service, uploads: Uploads, holds: Holds, entry: Entry[Shape]) -> Respond:
    coordinator, shape = service.coordinator, entry.shape

    def request(given: Arrived | str, message: Any, path: dict[str, Any]) -> Request:
        credentials = entry.credentials(coordinator, given, message)
        return Request(entry, service.count(entry.caller(coordinator, credentials, path)), message, path)

    async def direct(http: HttpRequest, given: Arrived | str, message: Any, path: dict[str, Any]) -> Any:
        def act() -> Any:
            return at_once(request(given, message, path).act(coordinator))

        return await service.settled(await service.work(act))

    async def held(http: HttpRequest, given: Arrived | str, message: Any, path: dict[str, Any]) -> Any:
        assert isinstance(shape, Held)  # noqa: S101 - narrowed for the type checker
        return await holds.answer(entry, shape, given, message, path, http.receive)

    async def body(http: HttpRequest, given: Arrived | str, message: Any, path: dict[str, Any]) -> Any:
        assert isinstance(shape, Body)  # noqa: S101 - narrowed for the type checker

        announced = announced_digest(http)

        def admit() -> tuple[Request, int, Any]:
            asked = request(given, message, path)
            answer = None if shape.again is None else asked.call(shape.again, coordinator, announced)
            return asked, 0 if answer is not None else asked.call(shape.limit, coordinator), answer

        asked, limit, answer = await service.work(admit)
        if answer is not None:
            return answer

        def finish(spool: Spool) -> Any:
            return at_once(asked.act(coordinator, spool))

        taken = await uploads.receive(http, limit, finish, caller_name(asked.caller), room=shape.room)
        return await service.settled(taken)

    return {Direct: direct, Held: held, Body: body}[type(shape)]


def _beside(http: HttpRequest, beside: Beside, model: type[BaseModel] | None) -> BaseModel:
    """Returns the message in a header. ProblemError *invalid-request* where the header is missing or has none."""
    value = http.headers.get(beside.header)
    if value is None or model is None:
        raise problem("invalid-request", beside.missing)
    try:
        return model.model_validate_json(value)
    except ValidationError as error:
        rows = [{**row, "loc": (beside.header, *row["loc"])} for row in error.errors(include_url=False)]
        raise problem("invalid-request", sentence(rows)) from None


# ------------------------------------------------------------ routes for FastAPI


def _route(entry: Entry[Shape], respond: Respond, prefix: str) -> APIRoute:
    permission, render = entry.permission, _renderer(entry, prefix)
    ordinary = not permission.of_peers
    beside = entry.shape.beside if isinstance(entry.shape, Body) else None
    in_body = entry.message if not isinstance(entry.shape, Body) else None

    async def endpoint(request: HttpRequest, **values: Any) -> Response:
        message = values.pop("body", None) if beside is None else _beside(request, beside, entry.message)
        log_context.known(**{name: values[name] for name in log_context.NAMES if name in values})
        given = bearer(request, permission) if ordinary else arrived(request)
        return render(request, await respond(request, given, message, values))

    _sign(endpoint, entry, in_body)
    options: dict[str, Any] = {
        "methods": [entry.method],
        "name": endpoint.__name__,
        "description": entry.description,
        "summary": entry.summary,
        **_answers(entry),
        "tags": [entry.group],
        "openapi_extra": extras(entry) or None,
    }
    if entry.created:
        options["status_code"] = 201
    head_arrived = _operator_arrived(entry) if ordinary else _peer_arrived(entry)
    route = LeanRoute(entry.route, endpoint, head_arrived=head_arrived, **options)
    return declared(route, permission, scoped=entry.scoped)


def _answers(entry: Entry[Shape]) -> dict[str, Any]:
    """What FastAPI says of the answers: bytes or nothing, or JSON."""
    if entry.method == "GET" and get_origin(entry.answer) is list:
        return {"response_model": entry.answer, "responses": {200: {"headers": PAGED}}}
    if entry.answer != OCTETS:
        return {"response_model": entry.answer}
    octets = {"description": "The bytes", "content": {OCTETS_MEDIA_TYPE: BINARY}}
    return {"response_class": Response, "responses": {200: octets, 204: {"description": "Not yet: ask again"}}}


def _renderer(entry: Entry[Shape], prefix: str) -> Callable[[HttpRequest, Any], Response]:
    status, location = 201 if entry.created else 200, entry.location
    if get_origin(entry.answer) is list:
        (model,) = get_args(entry.answer)
        return lambda _, answer: json_list(model, answer)

    def render(request: HttpRequest, answer: Any) -> Response:
        if isinstance(answer, NewSession):
            return with_session(request, json_response(me(answer.operator), status), answer)
        if isinstance(answer, Octets):
            return Response(answer.content, media_type=OCTETS_MEDIA_TYPE)
        if isinstance(answer, NotReady):
            return Response(status_code=204)
        response = json_response(answer, status)
        if location is not None:
            response.headers["Location"] = prefix + location.format(**dict(answer))
        return without_session(request, response) if entry.session == "ends" else response

    return render


def _sign(endpoint: Endpoint, entry: Entry[Shape], message: type[BaseModel] | None) -> None:
    """Sets the name and the signature of the endpoint that FastAPI reads: the parameters of path and query, and the
    body."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("request", kind, annotation=HttpRequest)]
    for name, parameter in entry.parameters.items():
        found = parameter.annotation
        about = next((one.text for one in getattr(found, "__metadata__", ()) if isinstance(one, About)), None)
        if f"{{{name}}}" not in entry.route:
            found = Annotated[found, Query(description=about)]
        elif about is not None:
            found = Annotated[found, Path(description=about)]
        parameters.append(parameter.replace(annotation=found))
    if message is not None:
        parameters.append(inspect.Parameter("body", kind, annotation=message))
    endpoint.__name__ = entry.operation or entry.name.replace("-", "_")
    endpoint.__doc__ = entry.description
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    endpoint.__annotations__ = {one.name: one.annotation for one in parameters}


def _peer_arrived(entry: Entry[Shape]) -> HeadArrived:
    """Refuses a device or worker that sends no version of the protocol, and notes the credentials: they are read before
    the body (``route``)."""
    long_body = isinstance(entry.shape, Body)
    with_result = isinstance(entry.shape, Body) and entry.shape.beside is not None and entry.shape.beside.signed

    async def noted(request: HttpRequest) -> None:
        if PROTOCOL_HEADER not in request.headers and (refused := version_refusal(None)) is not None:
            raise ProblemError(refused)
        note_arrival(request, entry.permission, with_result=with_result, long_body=long_body)

    return noted


def _operator_arrived(entry: Entry[Shape]) -> HeadArrived:
    """Refuses an operator who may not make the request. The path is taken as it is sent: what is no run's name is in no
    scope but that of everything."""

    async def identified(request: HttpRequest) -> None:
        service: Service = request.app.state.service
        if entry.session == "opens":
            require_proof(request)
        token = bearer(request, entry.permission)
        service.count(
            await service.work(entry.caller, service.coordinator, token, request.path_params), sender_of(request)
        )

    return identified


# ------------------------------------------------------------ held requests
# Held open until there is an answer, without a thread and without a timer that ticks::
#
#     first call --an answer--> answer
#        |not yet
#        v
#     wait for the key --woken, or every reread_s--> call again --an answer--> answer
#        |                                                    |None: wait on
#        |the hold has expired, or the server stops --> expired: its own answer
#        |client gone --> gone: no answer
#        |the key is revoked, or its certificate expires --> gone: refused
#
# Where a peer sends a new request while an older one is still held, the newer one is held; the older one is answered as
# if its hold had expired. The disconnection of an older one has no effect, on whichever replica the newer one is.


class _Seen(NamedTuple):
    version: int
    """Of the key's signal."""
    mark: object
    """See ``Held.mark``; None: there is none."""


class Holds:
    """The requests held by this process, the latest of each peer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._latest: dict[tuple[str, str], object] = {}

    async def answer(
        self,
        entry: Entry[Shape],
        shape: Held,
        given: Arrived | str,
        message: Any,
        path: dict[str, Any],
        receive: Receive,
    ) -> Any:
        """Returns the answer to one request as soon as there is one. The signature is checked once, when the request
        has arrived; whether its key is still certified and good, whenever there may be an answer. ClientDisconnect
        where the client disconnects first."""
        service, coordinator = self._service, self._service.coordinator
        hold_s = 0.0 if service.stopping else min(message.hold_s, service.settings.max_hold_s)
        message = message if message.hold_s == hold_s else message.model_copy(update={"hold_s": hold_s})

        def begin() -> tuple[Credentials, float, Caller, _Seen, Any]:
            credentials = entry.credentials(coordinator, given, message)
            caller = service.count(entry.caller(coordinator, credentials, path))
            request = Request(entry, caller, message, path)
            seen = self._seen(request, shape)
            answer = at_once(request.begin(shape.first, coordinator))
            return credentials, self._valid_s(credentials), caller, seen, answer

        credentials, valid_s, caller, seen, answer = await service.work(begin)
        answer = await service.settled(answer)
        named: tuple[Any, ...] = ()
        if isinstance(answer, NotYet):
            named, answer = (answer.hold,), None
        if answer is not None:
            return answer
        request = Request(entry, caller, message, path)
        if hold_s > 0:
            try:
                answer = await self._until(request, shape, credentials, valid_s, seen, hold_s, receive)
            except (ClientDisconnect, ProblemError):
                if shape.gone is not None:
                    await service.work(request.call, shape.gone, coordinator, *named)
                raise
        if answer is None:
            return await service.work(request.call, shape.expired, coordinator)
        return answer

    def _valid_s(self, credentials: Credentials) -> float:
        """How long the certificate of who has signed is still valid, in seconds."""
        return (
            self._service.coordinator.identities.valid_s(credentials) if isinstance(credentials, SignedBy) else math.inf
        )

    def _seen(self, request: Request, shape: Held) -> _Seen:
        """To be read before the answer is looked for."""
        version = self._service.signals.version(shape.key(request.caller, request.message, **request.path))
        mark = None if shape.mark is None else shape.mark(self._service.coordinator, **request.path)
        return _Seen(version, mark)

    async def _until(
        self,
        request: Request,
        shape: Held,
        credentials: Credentials,
        valid_s: float,
        seen: _Seen,
        hold_s: float,
        receive: Receive,
    ) -> Any:
        """Calls ``again`` in a thread whenever the key is woken, and every ``reread_s``, and returns the answer. None
        where the hold has expired or a newer request of this peer is held; ClientDisconnect where the client
        disconnects; ProblemError where the credentials are no longer valid: a certificate's end is waited for.
        """
        service = self._service

        def again() -> tuple[Any, float]:
            request.entry.caller(service.coordinator, credentials, request.path)
            return request.call(shape.again, service.coordinator), self._valid_s(credentials)

        key = shape.key(request.caller, request.message, **request.path)
        peer = (request.entry.route, shape.peer(request.caller, request.message, **request.path))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + hold_s
        gone = loop.create_task(until_gone(receive))
        gone.add_done_callback(lambda _: service.signals.wake(key))
        mine = object()
        if self._latest.get(peer) is not None:
            service.signals.wake(key)
        self._latest[peer] = mine
        service.meters.held.inc()
        try:
            while (left_s := deadline - loop.time()) > 0 and not service.stopping:
                wait_s = min(left_s, valid_s, service.settings.reread_s)
                woken = await service.signals.async_wait(key, seen.version, wait_s)
                if self._latest.get(peer) is not mine:
                    return None
                if gone.done():
                    break
                before, seen = seen, self._seen(request, shape)
                if not woken and seen.mark is not None and seen == before and wait_s < valid_s:
                    valid_s -= wait_s
                    continue
                answer, valid_s = await service.work(again)
                if answer is not None:
                    return answer
            if gone.done():
                raise ClientDisconnect
            return None
        finally:
            gone.cancel()
            service.meters.held.dec()
            if self._latest.get(peer) is mine:
                del self._latest[peer]
