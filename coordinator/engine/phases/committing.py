"""The committing phase: the counted set is fixed; the next checkpoint becomes the model, or cannot be made.

``advance`` adds the checkpoint to the line, for those made of devices' updates, by a worker, or for an exhausted run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine import events as ev
from coordinator.engine.kinds import kind_of
from coordinator.engine.phases.debiting import debit
from coordinator.engine.phases.finishing import enough_rounds, observe
from coordinator.engine.phases.lifecycle import abandon, after_round, refusals, retired
from coordinator.engine.phases.public_record import mean_scores, record, scored_by
from coordinator.engine.phases.refusing import Step, refuse
from coordinator.engine.state import Round, RunState


def close(state: RunState, at: float) -> Step:
    """From *collecting*: the received updates count; later ones are late."""
    closed = state.with_round(replace(state.current, phase="committing", deadline=None))
    return closed, [
        *kind_of(state.current).releases(state.current),
        record(closed, "open", closed_at=at),
        commit_action(closed),
    ]


def committed(state: RunState, event: ev.Committed) -> Step:
    current = state.round
    if current is None or current.phase != "committing" or event.round != current.number:
        return _refused(state, event.round)
    learned = state if current.advancing else replace(state, named_tensors=event.named_tensors, small=event.small)
    return advance(
        learned,
        event.at,
        digest=event.digest,
        size=event.bytes,
        tensors=event.tensors,
        raised=event.raised,
        origin=origin_of_advance(current) if current.advancing else "",
        zero_sum=event.zero_sum,
        rounding=event.rounding,
    )


def seeded(state: RunState, event: ev.Seeded) -> Step:
    """The round costs its devices now. A round has one seed: the noise of another one would be other noise in the same
    sum. Where an update is lost afterwards and the round closes again, the same seed comes again, and its other list
    costs again."""
    current, privacy = state.round, state.plan.privacy
    closed = current is not None and current.phase == "committing" and event.round == current.number
    if privacy is None or current is None or not closed or current.seed not in ("", event.digest):
        return _refused(state, event.round)
    counted = kind_of(current).contributions(current)
    following = state.with_round(replace(current, seed=event.digest))
    return following, [debit(state, counted, privacy.cost(state.plan))]


def commit_failed(state: RunState, event: ev.CommitFailed) -> Step:
    if state.phase != "committing" or event.round != state.round_number:
        return _refused(state, event.round)
    return abandon(state, event.at, event.reason)


def pending(state: RunState) -> list[fx.Action]:
    """Of a plain round: a running sum that was lost is folded again before it is committed."""
    commit = commit_action(state)
    return [*(fx.Fold(round=commit.round, contribution=item) for item in commit.contributions), commit]


def commit_action(state: RunState) -> fx.Commit:
    return fx.Commit(
        round=state.round_number,
        parent=state.checkpoint,
        contributions=kind_of(state.current).contributions(state.current),
        named_tensors=state.named_tensors,
        small=state.small,
        settings=state.plan.settings_at(state.version),
    )


def origin_of_advance(round: Round) -> str:
    """The origin of a checkpoint that the owner of an exhausted run requested, as text for the operator."""
    return f"round {round.number}, moved by one unit for {round.advancing}: no device contributed"


def _participation(state: RunState) -> Mapping[str, tuple[int, int]]:
    """The state's count of participation once the round under way has counted; where its list has, it is there."""
    if state.current.secure is not None and state.plan.privacy is not None:
        return state.participation
    if state.plan.aggregation.inverse_participation is None and state.plan.cohort.most_rounds is None:
        return state.participation
    found = dict(state.participation)
    for device, member in state.current.members.items():
        if member.status not in ("withdrawn", "refused"):
            selected, counted = found.get(device, (0, 0))
            found[device] = selected + 1, counted + (member.status == "reported")
    return found


def _counted_at(state: RunState) -> Mapping[str, int]:
    """``counted_at`` of the state once the round under way is committed."""
    if state.plan.cohort.apart is None:
        return state.counted_at
    counted = [device for device, member in state.current.members.items() if member.status == "reported"]
    return {**state.counted_at, **dict.fromkeys(counted, state.version + 1)}


def _made_by(state: RunState) -> tuple[int, ...]:
    """``made_by`` of the state once the round under way is committed."""
    if state.plan.secure is not None:
        return (state.round_number,)
    section = state.plan.buffered
    return () if section is None else (*state.made_by, state.round_number)[-section.most_stale - 1 :]


def _refused(state: RunState, round: int) -> Step:
    return refuse(state, "stale", f"round {round} is not committing")


def advance(
    state: RunState,
    at: float,
    *,
    digest: str,
    size: int,
    tensors: str = "",
    raised: int = 0,
    origin: str = "",
    zero_sum: bool = False,
    rounding: float = 0.0,
) -> Step:
    """The round under way is committed: this durable checkpoint is the model. ``state`` has the named tensors and the
    small state that go with it."""
    version, current = state.version + 1, state.current
    effects: list[fx.Effect] = [
        fx.RecordCheckpoint(
            version=version,
            digest=digest,
            parent=state.version,
            round=current.number,
            bytes=size,
            named_tensors=state.named_tensors,
            contributions=kind_of(current).contributions(current),
            origin=origin,
        ),
        *refusals(state, current.lost, "its stored bytes were damaged or gone; another update of its device counts"),
        record(
            state,
            "committed",
            closed_at=at,
            version=version,
            digest=digest,
            zero_sum=zero_sum,
            raised=raised,
            rounding=rounding,
        ),
        *kind_of(current).forget(state),
    ]
    examples = sum(member.held_out_examples for member in scored_by(current))
    held_out = mean_scores(current)
    if held_out:
        effects.append(fx.RecordMetrics(version=state.version, source="devices", examples=examples, metrics=held_out))
    scored_version = state.version
    state = replace(
        retired(state),
        version=version,
        checkpoint=digest,
        tensors=tensors,
        participation=_participation(state),
        counted_at=_counted_at(state),
        made_by=_made_by(state),
        fallback=replace(state.fallback, abandoned_in_a_row=0, fleet_first=False, tried=False),
        abandoned=0,
        spent=(),
        declined={},
        exhausted="",
    )
    state, reason = observe(state, scored_version, "devices", held_out)
    reason = enough_rounds(state) or reason
    if reason is not None and state.ending is None:
        state = replace(state, ending=("finished", reason))
    return after_round(state), effects
