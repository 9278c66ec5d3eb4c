"""The current attempt of a secure round: reads and changes its state, and ends it for a new attempt.

Before any device could sign, an exchange that failed leads to attempt + 1 under new keys, without the devices that
failed, for ``secure.attempts`` attempts at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from itertools import islice

from coordinator.engine import effects as fx
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.lifecycle import abandon
from coordinator.engine.phases.public_record import record
from coordinator.engine.phases.refusing import Step
from coordinator.engine.secure.disputes import at_fault
from coordinator.engine.secure.holders import complete, enough, needed
from coordinator.engine.secure.margin import ended, short
from coordinator.engine.secure.plan import Secure
from coordinator.engine.secure.progress import given_up
from coordinator.engine.secure.state import FOR_THE_SUM, SecureRound
from coordinator.engine.state import Members, RoundPhase, RunState, altered


def under_way(state: RunState) -> tuple[SecureRound, Secure]:
    """The attempt and the plan's section ``[secure]``; only for states with a current secure round."""
    secure = state.current.secure
    if secure is None or state.plan.secure is None:
        raise AssertionError(f"round {state.round_number} of run {state.run} is not a secure round under way")
    return secure, state.plan.secure


def with_secure(state: RunState, secure: SecureRound) -> RunState:
    """The state with this attempt."""
    return state.with_round(altered(state.current, secure=secure))


def with_deadline(state: RunState, deadline: float | None) -> RunState:
    """The state with this deadline of its phase."""
    return state.with_round(altered(state.current, deadline=deadline))


def enter(state: RunState, phase: RoundPhase, at: float, deadline: float | None) -> RunState:
    """The state in this phase, which begins now and ends at the deadline."""
    secure, _ = under_way(state)
    secure = replace(secure, began={**secure.began, phase: at})
    return state.with_round(replace(state.current, phase=phase, deadline=deadline, secure=secure))


def exchange_deadline(state: RunState, at: float) -> float:
    """The deadline of an exchange that begins now: never after the attempt has expired, where it has a header."""
    secure, plan = under_way(state)
    until = at + plan.exchange_s
    return min(until, float(secure.expires_at or until))


def until_quiet(state: RunState, at: float) -> RunState:
    """The state of an exchange in which enough devices have come, one of them now: the others have ``quiet_s``, and
    never longer than the exchange lasts."""
    secure, plan = under_way(state)
    since = max(secure.began[state.phase], secure.recovered_at)
    return with_deadline(state, min(at + plan.quiet, exchange_deadline(state, since)))


def recovered(state: RunState, at: float) -> RunState:
    """The state whose exchange has its whole time again after an outage. Its devices keep to the attempt's expiry: what
    remains of it is the most that all outages together give back."""
    secure, _ = under_way(state)
    return with_deadline(with_secure(state, replace(secure, recovered_at=at)), exchange_deadline(state, at))


def present(state: RunState, devices: Iterable[str]) -> tuple[str, ...]:
    """The devices among these that are neither withdrawn nor excluded, sorted."""
    members, gone = state.current.members, state.current.excluded
    return tuple(sorted(d for d in devices if d not in gone and members[d].status != "withdrawn"))


def awaited(state: RunState, devices: Iterable[str], came: Set[str]) -> tuple[str, ...]:
    """Those of ``devices`` that are present and have not ``came``, sorted."""
    return present(state, (device for device in devices if device not in came))


def count_awaited(state: RunState, devices: Iterable[str], came: Set[str], *, most: int) -> int:
    """How many they are, counted up to ``most``: all that nearly every message of an exchange needs to know."""
    members, gone = state.current.members, state.current.excluded
    there = (d for d in devices if d not in came and d not in gone and members[d].status != "withdrawn")
    return sum(1 for _ in islice(there, most))


def route(state: RunState, devices: Iterable[str]) -> fx.SendAnswers:
    """The hint that the answers of this phase are ready for these devices."""
    current = state.current
    return fx.SendAnswers(
        round=current.number, attempt=current.attempt, phase=current.phase, devices=tuple(sorted(devices))
    )


def fresh(state: RunState, at: float, reason: str, silent: tuple[str, ...] = ()) -> Step:
    """End this attempt, before any device could sign, and begin the next one without the devices that failed."""
    secure, plan = under_way(state)
    current = state.current
    quiet = dict.fromkeys(silent, f"it did not answer in the {current.phase} of attempt {current.attempt}")
    current = replace(current, excluded={**quiet, **at_fault(secure.complaints, state.disputes), **current.excluded})
    state = state.with_round(current)
    left, fewest = present(state, current.members), plan.fewest_advertisers(state.plan.cohort)
    if current.attempt + 1 >= plan.attempts:
        return abandon(state, at, f"{reason}; the plan allows no more attempts (secure.attempts = {plan.attempts})")
    if len(left) < fewest:
        return abandon(state, at, f"{reason}; {len(left)} devices are left, and a new attempt takes {fewest}")
    refusals = [
        fx.RecordRefusal(
            round=current.number,
            device=item.device,
            digest=item.digest,
            kind="abandoned",
            reason=f"attempt {current.attempt} of the round was given up: {reason}",
        )
        for item in kind_of(current).contributions(current)
    ]
    current = replace(
        current,
        phase="collecting",
        attempt=current.attempt + 1,
        earlier=(*current.earlier, given_up(current, secure, plan, state.plan.cohort, reason, at)),
        deadline=at + plan.exchange_s,
        secure=SecureRound(older=secure.blobs, began={"collecting": at}),
        members=Members(
            {
                device: replace(member, status="training") if member.status == "reported" else member
                for device, member in current.members.items()
            }
        ),
    )
    state = state.with_round(current)
    return state, [
        *refusals,
        fx.Release(round=current.number, devices=None),
        fx.Claim(round=current.number, attempt=current.attempt, devices=left, until=at + plan.exchange_s),
        record(state, "open"),
        fx.Announce(round=current.number, attempt=current.attempt),
    ]


def close_or_wait(
    state: RunState,
    at: float,
    *,
    did: str,
    came: Collection[str],
    of: Collection[str],
    answered: Set[str],
    following: Callable[[RunState, float], Step],
    time_is_up: bool,
    listed: bool = False,
) -> Step:
    """Ends an exchange before the list is fixed, or goes on waiting. It ends when nobody is silent, when too few could
    still come, or when the time is up: the ``following`` one begins where enough came, else a new attempt.
    ``listed``: enough for lists with their margins.

    ``did``: what the exchange is for, for people; ``came``: who has done it, ``of`` whom; ``answered``: they, and who
    has reported that it cannot. The others may still do it, where they are present."""
    secure, _ = under_way(state)
    if at >= secure.expires_at:
        return fresh(state, at, f"attempt {state.current.attempt} expired before all had {did}")
    quorum, have = state.plan.cohort.quorum_count, len(came)
    wanted = needed(quorum, secure, listed=listed)
    groups = complete(secure, came, secure.shared, listed=listed) if have >= wanted else frozenset[int]()
    suffices = enough(quorum, secure, groups, came)
    without_margin = listed and not suffices and enough(quorum, secure, complete(secure, came, secure.shared), came)
    if not time_is_up:
        left = count_awaited(state, of, answered, most=max(1, wanted - have))
        if left and have + left >= wanted:
            return until_quiet(state, at) if suffices else state, []
    if suffices:
        state, fell = only(state, groups, f"too few devices of its group {did}")
        state, more = following(state, at)
        return state, [*fell, *more]
    lack = f"; it takes {wanted}" if have < wanted else ", too few of them share holders of one device"
    if without_margin:
        signers = sum(group.signers for group in secure.standing.values())
        spare = sum(secure.margins[number] for number in secure.standing)
        state, lack = short(state), f"; {signers} must sign the list, and {spare} more may vanish before"
    reason = f"{have} of {len(of)} devices {did} in attempt {state.current.attempt}{lack}"
    return fresh(state, at, reason, awaited(state, of, answered) if time_is_up else ())


def only(state: RunState, groups: Set[int], reason: str) -> Step:
    """The round goes on with these groups alone: the devices of the others are excluded for this ``reason``, and what
    they have sent is deleted when the round ends."""
    secure, _ = under_way(state)
    fallen = secure.standing.keys() - groups
    if not fallen:
        return state, []
    current = state.current
    members = {device for number in fallen for device in secure.groups[number].order}
    gone = present(state, members)
    refusals = [
        fx.RecordRefusal(round=current.number, device=item.device, digest=item.digest, kind="abandoned", reason=reason)
        for item in kind_of(current).contributions(current)
        if item.device in members
    ]
    for exchange in FOR_THE_SUM:
        secure = secure.without(exchange, *sorted(members))
    secure = replace(secure, fallen={**secure.fallen, **dict.fromkeys(sorted(fallen), reason)})
    current = replace(
        current,
        secure=secure,
        excluded={**dict.fromkeys(gone, reason), **current.excluded},
        members=Members(
            {
                device: replace(member, status="training") if device in gone and member.status == "reported" else member
                for device, member in current.members.items()
            }
        ),
    )
    state = state.with_round(current)
    return state, [*refusals, fx.Release(round=current.number, devices=gone), record(state, "open")]


def go_on_with(
    state: RunState,
    at: float,
    groups: Set[int],
    reasons: Sequence[str],
    following: Callable[[RunState, float], Step],
    vanished: Set[str] = frozenset(),
) -> Step:
    """What follows once the list is fixed, with these groups alone, where they are enough; else the round is abandoned,
    for the first of the ``reasons`` why the others cannot go on. ``vanished``: of the lists, as far as anybody can
    know."""
    secure, _ = under_way(state)
    if not enough(state.plan.cohort.quorum_count, secure, groups, secure.masked):
        return abandon(ended(state, secure, len(vanished)) if vanished else state, at, reasons[0])
    state, fell = only(state, groups, next(iter(reasons), ""))
    state, more = following(state, at)
    return state, [*fell, *more]
