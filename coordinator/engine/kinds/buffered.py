"""Asynchronous rounds with devices: collecting, committing (FedBuff: Nguyen et al. 2022, arXiv:2106.06639).

A device keeps its place over rounds: it is drawn in one, trains the version that this one begins with, and its report
counts in the round that is open when it comes. So a device names the round of its draw, ``Member.since``, in all that
it sends; the log has the round under way, and that one as the ``attempt`` of its events (``addressed``).

A place ends with a report, when the device withdraws or its update is not valid, when ``cohort.collect_s`` is over,
when its version is more than ``most_stale`` behind, and, where no round follows the one that ended, because the run is
paused or over. A device whose report has come, or whose update was refused, is drawn again in the next round at the
soonest, so that it counts once in a version, and does not send what is refused for ever. A report that comes while a
commit is under way is to be sent again: the device keeps its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.aggregation.section import reason_against, weight_of
from coordinator.engine.buffered import WHOLE
from coordinator.engine.event_fields import OfDevice
from coordinator.engine.kinds import RoundKind
from coordinator.engine.phases import committing, public_record
from coordinator.engine.phases.collecting import AWAITED, as_reported, work_of
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.plan import Plan
from coordinator.engine.reasons import printable
from coordinator.engine.state import Member, Members, Round, RunState, altered

_LOST = "its stored bytes were damaged or gone before the commit"


class Buffered(RoundKind[ev.DeviceEvent]):
    first_phase = "collecting"
    keeps_claims = True

    def happened(self, state: RunState, event: ev.DeviceEvent) -> Step:
        match event:
            case ev.Drawn():
                return _drawn(state, event)
            case ev.TrainingStarted():
                return _started(state, event)
            case ev.Reported():
                return _reported(state, event)
            case ev.UpdateRefused():
                return _update_refused(state, event)
            case ev.UpdateLost():
                return _update_lost(state, event)
            case ev.Withdrew():
                return _withdrew(state, event)
            case _:
                assert_never(event)

    def time_is_up(self, state: RunState, at: float) -> Step:
        """Ends the places whose time is up."""
        ends = {
            device: altered(member, status="expired", reason=f"no update came in {state.plan.cohort.collect_s:g} s")
            for device, member in state.current.members.items()
            if member.status in AWAITED and member.until is not None and member.until <= at
        }
        if not ends:
            return state, []
        state = _due(state.with_round(replace(state.current, members=Members({**state.current.members, **ends}))))
        return state, [*_releases(ends), *self._draws(state)]

    def pending(self, state: RunState) -> list[fx.Action]:
        if state.phase == "committing":
            return committing.pending(state)
        current = state.current
        awaited = tuple(device for device, member in current.members.items() if member.status in AWAITED)
        folds = [fx.Fold(round=current.number, contribution=item) for item in self.contributions(current)]
        return [*self._draws(state), fx.Wake(devices=awaited), *folds]

    def public(self, state: RunState) -> dict[str, object]:
        """With how many reports there are of each staleness."""
        counts = list[int]()
        for member in state.current.members.values():
            if member.digest is not None:
                late = staleness(state, member.since)
                counts += [0] * (late + 1 - len(counts))
                counts[late] += 1
        return {**public_record.fleet_body(state.current), "staleness": counts}

    def lasts_s(self, plan: Plan, round: Round) -> float:
        """Of the places: a buffered round itself has no end but its commit."""
        return plan.cohort.collect_s if round.phase == "collecting" else 0.0

    def against(self, state: RunState, round: int, attempt: int, device: str) -> tuple[str, str] | None:
        current = state.round
        if round > state.round_number:
            return "stale", f"round {round} has not been opened: the run is at round {state.round_number}"
        if current is not None and (member := current.members.get(device)) is not None and member.since == round:
            return None
        late = staleness(state, round)
        if (most := most_stale(state.plan)) < late:
            return "late", (
                f"the update is of version {state.version - late}, more than most_stale = {most} versions behind "
                f"version {state.version}"
            )
        if round < state.round_number or current is None:
            why = "its place has ended" if current is not None else f"the run is {state.status}"
            return "late", f"{why}: an update of a device that was drawn in round {round} counts no more"
        return "not-selected", f"device {device} was not selected for round {round}"

    def addressed(self, state: RunState, event: ev.Event) -> ev.Event:
        if not isinstance(event, OfDevice):
            return event
        return replace(event, round=state.round_number, attempt=event.round)

    def assigned(self, state: RunState, round: int, device: str) -> tuple[int, float] | None:
        member = None if state.round is None else state.round.members.get(device)
        if member is None or (member.since, member.status in AWAITED) != (round, True) or member.until is None:
            return None
        return state.version - staleness(state, round), member.until

    def drawable(self, round: Round, device: str) -> bool:
        member = round.members.get(device)
        return member is None or member.status in ("withdrawn", "expired")

    def free(self, state: RunState) -> int:
        if state.phase != "collecting" or state.status != "running":
            return 0
        return max(0, state.plan.places - state.current.count(*AWAITED))

    def opened(self, state: RunState, at: float, kept: Mapping[str, Member]) -> RunState:
        return _due(state.with_round(replace(state.current, collecting_at=at, members=Members(kept))))

    def kept(self, following: RunState, ended: Round, *, goes_on: bool) -> tuple[Mapping[str, Member], list[fx.Effect]]:
        kept, ends = dict[str, Member](), dict[str, Member]()
        for device, member in ended.members.items():
            if member.status in AWAITED:
                lasts = goes_on and staleness(following, member.since) <= most_stale(following.plan)
                (kept if lasts else ends)[device] = member
        return kept, _releases(ends)

    def releases(self, round: Round) -> list[fx.Effect]:
        """None: who trains goes on."""
        return []

    def awaits(self, state: RunState, device: str) -> bool:
        return state.current.members[device].status in AWAITED

    def _draws(self, state: RunState) -> list[fx.Action]:
        return [fx.Draw(round=state.round_number)] if self.free(state) else []


def staleness(state: RunState, since: int) -> int:
    """How many versions have been committed since a device was drawn in this round; no more than are remembered."""
    return sum(number >= since for number in state.made_by)


def most_stale(plan: Plan) -> int:
    return 0 if plan.buffered is None else plan.buffered.most_stale


def _due(state: RunState) -> RunState:
    """The state with the next time at which a place ends."""
    times = [one.until for one in state.current.members.values() if one.status in AWAITED and one.until is not None]
    deadline = min(times, default=None) if state.phase == "collecting" else None
    return state if deadline == state.deadline else state.with_round(altered(state.current, deadline=deadline))


def _releases(members: Mapping[str, Member]) -> list[fx.Effect]:
    """The assignments of these devices end."""
    by_round: dict[int, list[str]] = {}
    for device, member in sorted(members.items()):
        by_round.setdefault(member.since, []).append(device)
    return [fx.Release(round=number, devices=tuple(devices)) for number, devices in sorted(by_round.items())]


def _place(state: RunState, event: OfDevice) -> Member | tuple[str, str]:
    """The device's place, or why it has none: (kind, reason)."""
    current = state.round
    if current is not None and event.round != current.number:
        return "stale", f"the run is at round {current.number}, not {event.round}"
    against = KIND.against(state, event.attempt, 0, event.device)
    return against if against is not None else state.current.members[event.device]


def _refused(state: RunState, event: ev.Reported | ev.UpdateRefused, kind: str, reason: str, since: int = 0) -> Step:
    """A refused update, recorded; ``since``: in this round, where it is not the one under way."""
    record = fx.RecordRefusal(
        round=since or event.round, device=event.device, digest=event.digest, kind=kind, reason=reason
    )
    return state, [fx.Refused(kind=kind, reason=reason), record]


def _drawn(state: RunState, event: ev.Drawn) -> Step:
    current, free = state.round, KIND.free(state)
    if current is None or event.round != current.number or not 0 < len(event.cohort) <= free:
        return refuse(state, "stale", f"round {event.round} does not wait for {len(event.cohort)} devices")
    devices = tuple(device for device, _ in event.cohort)
    if twice := [device for device in devices if not KIND.drawable(current, device)]:
        return refuse(state, "stale", f"{twice[0]} has a place in round {event.round}, or has had its turn")
    until = event.at + state.plan.cohort.collect_s
    drawn = {device: Member(examples=examples, since=current.number, until=until) for device, examples in event.cohort}
    current = replace(
        current,
        members=Members({**current.members, **drawn}),
        waiting=event.waiting,
        pool=event.pool,
        pools=(*current.pools, event.pool or ""),
    )
    state = _due(state.with_round(current))
    return state, [
        fx.Claim(round=current.number, attempt=0, devices=devices, until=until),
        fx.Wake(devices=devices),
    ]


def _started(state: RunState, event: ev.TrainingStarted) -> Step:
    member = _place(state, event)
    if not isinstance(member, Member):
        return refuse(state, *member)
    if member.status != "selected":
        return state, []
    return state.with_member(event.device, altered(member, status="training")), []


def _reported(state: RunState, event: ev.Reported) -> Step:
    """The first update of a place counts, the same bytes again get the same answer, others are refused."""
    member = _place(state, event)
    if not isinstance(member, Member):
        return _refused(state, event, *member, event.attempt) if member[0] == "late" else refuse(state, *member)
    device, section, aggregation = event.device, state.plan.buffered, state.plan.aggregation
    if member.digest == event.digest:
        return state, [fx.Accepted(device=device, digest=event.digest, weight=member.weight)]
    against, work = _against_update(state, member), work_of(event)
    if against is None and (weightless := reason_against(aggregation, **work)) is not None:
        against = "invalid-update", weightless
    if against is not None or section is None:
        kind, reason = against or ("stale", "the run has no buffered rounds")
        known = kind == "busy" or member.status == "refused"
        return refuse(state, kind, reason) if known else _refused(state, event, kind, reason)
    whole = weight_of(aggregation, state.weight_unit // WHOLE, **work)
    weight = whole * section.in_parts[staleness(state, member.since)]
    drawn_at = event.at if member.until is None else member.until - state.plan.cohort.collect_s
    member = as_reported(state, member, event, weight, max(0.0, event.at - drawn_at))
    state, since, number = _due(state.with_member(device, member)), member.since, state.current.number
    effects: list[fx.Effect] = [
        fx.Accepted(device=device, digest=event.digest, weight=weight),
        fx.Release(round=since, devices=(device,)),
        fx.Fold(round=number, contribution=fx.Contribution(device=device, digest=event.digest, weight=weight)),
    ]
    if state.current.count("reported") < state.plan.cohort.goal:
        return state, [*effects, *KIND._draws(state)]
    following, more = committing.close(state, event.at)
    return following, effects + more


def _update_refused(state: RunState, event: ev.UpdateRefused) -> Step:
    """The device loses its place; in this round it gets the same reason again."""
    member = _place(state, event)
    if not isinstance(member, Member):
        return _refused(state, event, *member, event.attempt) if member[0] == "late" else refuse(state, *member)
    if (against := _against_update(state, member)) is not None and against[0] != "busy":
        return refuse(state, *against) if member.status == "refused" else _refused(state, event, *against)
    reason = printable(event.reason)
    refusal = fx.RecordRefusal(
        round=event.round, device=event.device, digest=event.digest, kind="invalid-update", reason=reason
    )
    following, effects = _left(state, event.device, altered(member, status="refused", reason=reason))
    return following, [refusal, *effects]


def _update_lost(state: RunState, event: ev.UpdateLost) -> Step:
    """The update does not count, and the round collects again: another device reports in its place."""
    current = state.round
    member = None if current is None or current.number != event.round else current.members.get(event.device)
    if current is None or member is None or member.digest != event.digest:
        return refuse(state, "stale", f"no such update of {event.device} counts in round {event.round}")
    gone = Member(examples=member.examples, status="refused", reason=_LOST, since=member.since, until=member.until)
    current = replace(current, phase="collecting", members=current.members.changed(event.device, gone))
    state = _due(state.with_round(current))
    refusal = fx.RecordRefusal(
        round=event.round, device=event.device, digest=event.digest, kind="invalid-update", reason=_LOST
    )
    wake = fx.Wake(devices=(event.device,))
    return state, [refusal, public_record.record(state, "open"), wake, *KIND._draws(state)]


def _withdrew(state: RunState, event: ev.Withdrew) -> Step:
    member = _place(state, event)
    if not isinstance(member, Member):
        return refuse(state, *member)
    if member.status == "reported":
        return refuse(state, "conflict", "the device's update has been received and counts")
    if member.status not in AWAITED:
        return state, []
    return _left(state, event.device, altered(member, status="withdrawn", reason=printable(event.reason)))


def _left(state: RunState, device: str, member: Member) -> Step:
    """The state in which the device's place is free."""
    state = _due(state.with_member(device, member))
    return state, [fx.Release(round=member.since, devices=(device,)), *KIND._draws(state)]


def _against_update(state: RunState, member: Member) -> tuple[str, str] | None:
    """Why an update of this device does not count now, whatever is in it: (kind, reason), or None."""
    match member.status:
        case "refused":
            return "invalid-update", member.reason
        case "reported":
            return "duplicate", "another update of this device was received in this round; the first one counts"
        case "withdrawn":
            return "withdrawn", "the device has withdrawn from this round"
        case "expired":
            return "late", f"its time was up: {member.reason}"
        case _ if state.phase == "committing":
            return "busy", "a commit is under way: send the same update again"
        case _:
            return None


KIND = Buffered()
