"""The operators' routes: create, list, show, pause, resume, stop and advance runs; read what became of them.

Operators have no credentials yet: the service listens on loopback only, and ``edge`` refuses what comes from web pages
of elsewhere. Nothing is decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from client_sdk.protocol.names import DeviceId, Route, RunId
from client_sdk.protocol.operators import (
    AdvanceRun,
    CheckpointView,
    CreateRun,
    DeviceView,
    MetricReport,
    MetricView,
    RoundView,
    RunView,
)
from coordinator.service.core import Service
from coordinator.service.peers import RoundNumber
from coordinator.service.route import LeanRoute, json_list, json_response

Action = Annotated[Literal["pause", "resume", "stop"], Path(description="what to do with the run")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="at most this many")]
AfterRound = Annotated[int, Query(ge=0, lt=2**63, description="rounds with a number above this")]
AfterDevice = Annotated[DeviceId | Literal[""], Query(description="devices whose id sorts after this, for paging")]


def operator_routes(service: Service) -> list[APIRoute]:
    """All routes that operators use, except the event stream and the checkpoints' bytes."""
    coordinator = service.coordinator

    async def create(request: Request, body: CreateRun) -> Response:
        """Starts a run from a plan and an uploaded checkpoint (`PUT /v1/checkpoints/{digest}`)."""
        view = await service.work(coordinator.operators.create_run, body)
        response = json_response(view, 201)
        response.headers["Location"] = Route.RUN.format(run=view.run)
        return response

    async def runs(request: Request) -> Response:
        """All runs, oldest first."""
        return json_list(RunView, await service.work(coordinator.operators.runs))

    async def show(request: Request, run: RunId) -> Response:
        """One run: its status and why, the round under way and how far its devices are."""
        return json_response(await service.work(coordinator.operators.run, run))

    async def act(request: Request, run: RunId, action: Action) -> Response:
        """Pauses (the round under way is still finished), resumes, or stops a run for good."""
        operators = coordinator.operators
        acts = {"pause": operators.pause, "resume": operators.resume, "stop": operators.stop}
        return json_response(await service.work(acts[action], run))

    async def advance(request: Request, run: RunId, body: AdvanceRun) -> Response:
        """Lets an exhausted run commit its model moved by one unit, without contributions. Who asked is audited."""
        return json_response(await service.work(coordinator.operators.advance, run, body.by))

    async def rounds(run: RunId, after: AfterRound = 0, limit: Limit = 1000) -> Response:
        """The rounds of a run, in order."""
        return json_list(RoundView, await service.work(coordinator.operators.rounds, run, after, limit))

    async def one_round(request: Request, run: RunId, round: RoundNumber) -> Response:
        """One round: how it ended and why, its funnel, its checkpoint."""
        return json_response(await service.work(coordinator.operators.round, run, round))

    async def checkpoints(request: Request, run: RunId) -> Response:
        """The run's line of checkpoints, each with its parent."""
        return json_list(CheckpointView, await service.work(coordinator.operators.checkpoints, run))

    async def metrics(request: Request, run: RunId) -> Response:
        """All metrics of a run: per checkpoint, source and name, with the number of examples behind each."""
        return json_list(MetricView, await service.work(coordinator.operators.metrics, run))

    async def report_metrics(request: Request, run: RunId, body: MetricReport) -> Response:
        """An evaluator's scores for one checkpoint. Reported again they replace the earlier ones."""
        return json_list(MetricView, await service.work(coordinator.operators.report_metrics, run, body))

    async def devices(after: AfterDevice = "", limit: Limit = 1000) -> Response:
        """Enrolled devices in order of id: when they were last seen and what they do now."""
        return json_list(DeviceView, await service.work(coordinator.operators.devices, limit, after))

    def lean(path: Route, method: str, endpoint: Any, model: Any, summary: str, **more: Any) -> LeanRoute:
        return LeanRoute(path, endpoint, methods=[method], response_model=model, summary=summary, **{**_TAGS, **more})

    def full(path: Route, endpoint: Any, model: Any, summary: str, **more: Any) -> APIRoute:
        return APIRoute(path, endpoint, methods=["GET"], response_model=model, summary=summary, **{**_TAGS, **more})

    return [
        lean(Route.RUNS, "POST", create, RunView, "Create a run", status_code=201),
        lean(Route.RUNS, "GET", runs, list[RunView], "List runs"),
        lean(Route.RUN, "GET", show, RunView, "Show a run"),
        full(Route.ROUNDS, rounds, list[RoundView], "List a run's rounds"),
        lean(Route.ROUND, "GET", one_round, RoundView, "Show a round"),
        lean(Route.RUN_CHECKPOINTS, "GET", checkpoints, list[CheckpointView], "List a run's checkpoints"),
        lean(Route.METRICS, "GET", metrics, list[MetricView], "Read a run's metrics"),
        lean(Route.METRICS, "POST", report_metrics, list[MetricView], "Report metrics"),
        lean(Route.ADVANCE, "POST", advance, RunView, "Advance an exhausted run"),
        lean(Route.RUN_ACTION, "POST", act, RunView, "Pause, resume or stop a run"),
        full(Route.DEVICES, devices, list[DeviceView], "List devices", tags=["fleet"]),
    ]


_TAGS: dict[str, Any] = {"tags": ["runs"]}
