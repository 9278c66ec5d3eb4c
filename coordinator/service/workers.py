"""The workers' routes: ask for a datacenter round, say how it goes, send the result, give it back. And registration.

Each is a few lines between the wire and ``Coordinator``, which decides everything. Workers send the protocol's version
and their token; operators register and revoke them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import Response

from client_sdk.protocol.devices import Noted, Wait
from client_sdk.protocol.names import Route, RunId, WorkerId
from client_sdk.protocol.problems import problem
from client_sdk.protocol.workers import (
    RESULT_HEADER,
    CreateWorker,
    Heartbeat,
    Lease,
    LeaseEnd,
    LeaseRenewed,
    ResultReceipt,
    ResultReport,
    WorkerCreated,
    WorkerPoll,
    WorkerView,
)
from coordinator.service.core import Service
from coordinator.service.errors import sentence
from coordinator.service.peers import Attempt, RoundNumber, digest_header, header, peer_route
from coordinator.service.polls import WorkerPolls
from coordinator.service.route import LeanRoute, bearer, json_list, json_response
from coordinator.service.uploads import Uploads

if TYPE_CHECKING:
    from coordinator.blobs.port import Spool
    from coordinator.store.port import WorkerRow

T = TypeVar("T")


def worker_routes(service: Service, uploads: Uploads) -> list[APIRoute]:
    """All routes that workers use, except the checkpoints, and those by which operators register them."""
    coordinator = service.coordinator
    polls = WorkerPolls(service)

    async def as_worker(request: Request, task: Callable[[WorkerRow], T]) -> T:
        token = bearer(request)
        return await service.work(lambda: task(coordinator.workers.authenticate(token)))

    async def lease(request: Request, body: WorkerPoll) -> Response:
        """ "I could take a datacenter round." Held open until one is to be had, or until `hold_s` has passed.

        The same instance asking again gets the lease that it has; the same installation started again a new one, at
        once; any other waits until the lease has ended.
        """
        return json_response(await polls.lease(bearer(request), body, request.receive))

    async def heartbeat(request: Request, run: RunId, round: RoundNumber, body: Heartbeat) -> Response:
        """Keeps the lease for another `lease_s`, and says how far the training is."""
        return json_response(
            await as_worker(request, lambda worker: coordinator.workers.heartbeat(worker, run, round, body))
        )

    async def lease_end(request: Request, run: RunId, round: RoundNumber, body: LeaseEnd) -> Response:
        """The worker gives the round back, or says that it cannot be done."""
        await as_worker(request, lambda worker: coordinator.workers.end_lease(worker, run, round, body))
        return json_response(Noted())

    async def put_result(request: Request, run: RunId, round: RoundNumber, attempt: Attempt) -> Response:
        """The worker's result: the next checkpoint, whole, with its buffers, committed as it is.

        The receipt means that it is durable and the model. The same bytes again give the same receipt; other bytes are
        refused (*duplicate*), and so is what comes under a lease that is over (*lease-lost*).
        """
        report = read_report(request)

        def admit(worker: WorkerRow) -> tuple[WorkerRow, int]:
            return worker, coordinator.workers.result_limit(worker, run, round, attempt, report)

        worker, limit = await as_worker(request, admit)

        def finish(spool: Spool) -> ResultReceipt:
            return coordinator.workers.result(worker, run, round, attempt, report, spool)

        return json_response(await uploads.receive(request, limit, finish))

    async def create(request: Request, body: CreateWorker) -> Response:
        """Registers a worker. Its token is in this answer, and nowhere else."""
        return json_response(await service.work(coordinator.workers.create, body), 201)

    async def listed(request: Request) -> Response:
        """All workers: when each was last seen, and which round it has."""
        return json_list(WorkerView, await service.work(coordinator.workers.listed))

    async def revoke(request: Request, worker: WorkerId) -> Response:
        """Makes a worker's token worthless, for good. A lease that it holds ends as if it had fallen silent."""
        return json_response(await service.work(coordinator.workers.revoke, worker))

    of_worker = partial(peer_route, "worker")

    def of_operator(path: Route, method: str, endpoint: Any, model: Any, summary: str, **more: Any) -> APIRoute:
        return LeanRoute(
            path, endpoint, methods=[method], response_model=model, summary=summary, tags=["workers"], **more
        )

    headers = [
        digest_header(required=False),
        header(RESULT_HEADER, "A ResultReport as JSON: the lease's fence, steps, examples, metrics.", required=True),
    ]
    return [
        of_operator(Route.WORKERS, "POST", create, WorkerCreated, "Register a worker", status_code=201),
        of_operator(Route.WORKERS, "GET", listed, list[WorkerView], "List workers"),
        of_operator(Route.REVOKE_WORKER, "POST", revoke, WorkerView, "Revoke a worker"),
        of_worker(Route.LEASES, "POST", lease, Lease | Wait, "Ask for a datacenter round"),
        of_worker(Route.HEARTBEAT, "POST", heartbeat, LeaseRenewed, "Keep the lease"),
        of_worker(Route.RESULT, "PUT", put_result, ResultReceipt, "Send the result", *headers, tensors=True),
        of_worker(Route.LEASE_END, "POST", lease_end, Noted, "End the lease"),
    ]


def read_report(request: Request) -> ResultReport:
    """What goes with a result; invalid-request where the header is missing or is none."""
    header = request.headers.get(RESULT_HEADER)
    if header is None:
        raise problem("invalid-request", f'Send {RESULT_HEADER} with the lease\'s fence: {{"fence": 3, ...}}.')
    try:
        return ResultReport.model_validate_json(header)
    except ValidationError as error:
        rows = [{**row, "loc": (RESULT_HEADER, *row["loc"])} for row in error.errors(include_url=False)]
        raise problem("invalid-request", sentence(rows)) from None
