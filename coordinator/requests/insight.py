"""The requests of people who look closely: a round's lanes, devices, the fleet, the process, the cost of a plan."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field

from client_sdk.protocol.insight import (
    CheckPlan,
    DeviceDetail,
    FleetView,
    LanesView,
    PlanSchema,
    PlanView,
    RunParticipation,
    SystemView,
)
from client_sdk.protocol.names import DeviceId, Finite, Route, RunId
from client_sdk.protocol.operators import DeviceState, DeviceView
from client_sdk.protocol.privacy_report import SignedReport
from client_sdk.protocol.workers import LeasesView
from coordinator.access import Operator, Role
from coordinator.requests.entry import About, AfterDevice, Direct, Entry, Limit, Permission, RoundNumber
from coordinator.runtime.coordinator import Coordinator
from coordinator.runtime.insight.fleet_views import DeviceFilter
from coordinator.runtime.insight.plan_check import plan_schema as schema_of_plans

LaneLimit = Annotated[int, Field(ge=1, le=1000), About("at most this many")]
AfterPage = Annotated[str, Field(max_length=80), About("devices after the `next` of an earlier page")]
StateWanted = Annotated[DeviceState | None, About("devices in this state")]
ClassWanted = Annotated[str, Field(max_length=64), About("devices of this class")]
SeenSince = Annotated[Finite | None, About("devices that checked in at this time or later, Unix seconds")]
Part = Annotated[str, Field(max_length=64), About("devices with this part in their id or label, in whatever case")]


def lanes(
    to: Coordinator,
    operator: Operator,
    *,
    run: RunId,
    round: RoundNumber,
    after: AfterDevice = "",
    limit: LaneLimit = 1000,
) -> LanesView:
    """What each selected device did in a round: began, trained, sent, and how it ended. Of a secure round it says
    nothing of single devices, and why."""
    return to.insight.lanes.of_round(run, round, after, limit)


def participation(
    to: Coordinator, operator: Operator, *, run: RunId, after: AfterPage = "", limit: LaneLimit = 1000
) -> RunParticipation:
    """Who takes part in a run's rounds, the least counted first: devices that never counted too, and in which lateness
    is concentrated. Who does not see everything sees the devices that were selected."""
    return to.insight.participation.of_run(run, after, limit, fleet=operator.sees_everything)


def privacy_report(to: Coordinator, operator: Operator, *, run: RunId) -> SignedReport:
    """What the models of a private run tell of one device, whom one has to trust for it, and what it does not cover,
    signed by the coordinator's key. Names no device."""
    return to.insight.privacy_reports.of_run(run, everything=operator.sees_everything)


def leases(to: Coordinator, operator: Operator, *, run: RunId, round: RoundNumber) -> LeasesView:
    """The leases of a datacenter round: which worker had each, how it ended, and what was reported while it trained. A
    round of devices has none."""
    return to.insight.leases.of_round(run, round)


def devices(
    to: Coordinator,
    operator: Operator,
    *,
    after: AfterDevice = "",
    limit: Limit = 1000,
    state: StateWanted = None,
    device_class: ClassWanted = "",
    seen_since: SeenSince = None,
    q: Part = "",
) -> list[DeviceView]:
    """Enrolled devices in order of id: when each was last seen, what it does now, how often it took part. Who does not
    see everything sees those that have an assignment of a run in scope."""
    sees = None if operator.sees_everything else operator.sees
    wanted = DeviceFilter(state=state, device_class=device_class, seen_since=seen_since, q=q, sees=sees)
    return to.insight.fleet.devices(limit, after, wanted)


def one_device(to: Coordinator, operator: Operator, *, device: DeviceId) -> DeviceDetail:
    """One device with the newest of its rounds. Who does not see everything sees its rounds of runs in scope."""
    return to.insight.fleet.device(device, None if operator.sees_everything else operator.sees)


def fleet(to: Coordinator, operator: Operator) -> FleetView:
    """The fleet in numbers: devices by state, participation by class, devices seen in each of the last 24 hours."""
    return to.insight.fleet.fleet()


def system(to: Coordinator, operator: Operator) -> SystemView:
    """This process and what it shares with others: replicas, storage, requests answered, streams."""
    return to.insight.system.view()


def check_plan(to: Coordinator, operator: Operator, message: CheckPlan) -> PlanView:
    """Whether a run could be created from this plan, and what it would cost. Nothing is created. What would be refused
    then is refused now, with the same problem."""

    def permitted(run: str) -> bool:
        return operator.may_with(Role.OPERATOR, run)

    return to.insight.plans.check(
        message, permitted=permitted, sees=None if operator.sees_everything else operator.sees
    )


def plan_schema(to: Coordinator, operator: Operator) -> PlanSchema:
    """What can be written in a plan: the schema that `quorate plan schema` prints, of the coordinator's version."""
    return PlanSchema(document=schema_of_plans())


_viewer_of_runs = partial(Entry, permission=Permission.VIEWER, group="runs")
_viewer_of_fleet = partial(Entry, permission=Permission.VIEWER, group="fleet")

LANES = _viewer_of_runs("GET", Route.LANES, Direct(lanes), "Show a round's lanes")
PARTICIPATION = _viewer_of_runs("GET", Route.PARTICIPATION, Direct(participation), "Show who takes part")
PRIVACY_REPORT = _viewer_of_runs("GET", Route.PRIVACY_REPORT, Direct(privacy_report), "Report a run's privacy, signed")
LEASES = _viewer_of_runs("GET", Route.ROUND_LEASES, Direct(leases), "Show a datacenter round's leases")
CHECK_PLAN = Entry(
    "POST",
    Route.CHECK_PLAN,
    Direct(check_plan),
    "Check a plan",
    permission=Permission.OPERATOR,
    scoped=True,
    group="runs",
)
PLAN_SCHEMA = _viewer_of_runs("GET", Route.PLAN_SCHEMA, Direct(plan_schema), "Show the schema of plans", scoped=True)
DEVICES = _viewer_of_fleet("GET", Route.DEVICES, Direct(devices), "List devices", scoped=True)
DEVICE = _viewer_of_fleet("GET", Route.DEVICE, Direct(one_device), "Show a device", scoped=True)
FLEET = _viewer_of_fleet("GET", Route.FLEET, Direct(fleet), "Show the fleet")
SYSTEM = Entry("GET", Route.SYSTEM, Direct(system), "Show the process", permission=Permission.VIEWER, group="process")
ENTRIES = (PARTICIPATION, PRIVACY_REPORT, LANES, LEASES, CHECK_PLAN, PLAN_SCHEMA, DEVICES, DEVICE, FLEET, SYSTEM)
