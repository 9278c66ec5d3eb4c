"""The selecting phase: devices wait in the pool until the cohort is drawn from it.

The draw is the runtime's, under the run's lock; with its event the cohort is claimed and begins to train.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.phases.lifecycle import abandon, missed
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.state import Member, Members, RunState


def drawn(state: RunState, event: ev.Drawn) -> Step:
    """The cohort of a plain round, where it is a quorum; for those of secure rounds see ``secure.collecting``. Where
    enough devices waited and the selection drew too few of them, the next round draws anew."""
    current, cohort = state.round, state.plan.cohort
    if current is None or current.phase != "selecting" or event.round != current.number:
        return not_selecting(state, event.round)
    current = replace(current, waiting=event.waiting, pool=event.pool)
    if len(event.cohort) < cohort.quorum_count:
        if event.pool is not None:
            drawn = f"{cohort.choose} drew {len(event.cohort)} of {event.waiting} waiting devices"
            reason = f"{drawn}; a round needs at least {cohort.quorum_count}"
            return abandon(state.with_round(current), event.at, reason)
        found = f"{event.waiting} eligible devices waited; a round needs at least {cohort.quorum_count}"
        return missed(state.with_round(current), event.at, f"{found}. {event.others}" if event.others else found)
    devices = tuple(device for device, _ in event.cohort)
    deadline = event.at + cohort.collect_s
    current = replace(
        current,
        phase="collecting",
        collecting_at=event.at,
        deadline=deadline,
        members=Members({device: Member(examples=examples) for device, examples in event.cohort}),
    )
    state = state.with_round(current)
    return state, [
        fx.Claim(round=current.number, attempt=current.attempt, devices=devices, until=deadline),
        record(state, "open"),
        fx.Wake(devices=devices),
    ]


def not_selecting(state: RunState, round: int) -> Step:
    return refuse(state, "stale", f"round {round} is not selecting")


def pending(state: RunState) -> list[fx.Action]:
    """The draw. It is what the deadline asks for too: the state changes with the draw, not with the time."""
    return [fx.Draw(round=state.round_number)]
