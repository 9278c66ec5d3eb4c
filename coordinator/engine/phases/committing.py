"""The step from one version to the next, whoever made it: the line grows, the round ends, the run may be finished.

Knows nothing of how the checkpoint was made, nor of who may offer one.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.engine import effects as fx
from coordinator.engine.phases.finishing import enough_rounds, observe
from coordinator.engine.phases.lifecycle import Step, after_round, contributions, forget, mean_metrics, record, retired
from coordinator.engine.state import RunState


def advance(state: RunState, at: float, *, digest: str, size: int, optimizer: str | None, origin: str = "") -> Step:
    """The round under way is committed: this durable checkpoint is the model."""
    version, current = state.version + 1, state.current
    effects: list[fx.Effect] = [
        fx.RecordCheckpoint(
            version=version,
            digest=digest,
            parent=state.version,
            round=current.number,
            bytes=size,
            optimizer=optimizer,
            contributions=contributions(current),
            origin=origin,
        ),
        record(state, "committed", closed_at=at, version=version, digest=digest),
        *forget(state),
    ]
    scored = [(m.held_out_examples, m.held_out) for _, m in sorted(current.members.items()) if m.held_out_examples]
    examples = sum(count for count, _ in scored)
    held_out = mean_metrics(scored)
    if held_out:
        effects.append(fx.RecordMetrics(version=state.version, source="devices", examples=examples, metrics=held_out))
    scored_version = state.version
    state = replace(
        retired(state),
        version=version,
        checkpoint=digest,
        optimizer=optimizer,
        fallback=replace(state.fallback, abandoned_in_a_row=0, fleet_first=False),
        spent=(),
        exhausted="",
    )
    state, reason = observe(state, scored_version, "devices", held_out)
    reason = enough_rounds(state) or reason
    if reason is not None and state.ending is None:
        state = replace(state, ending=("finished", reason))
    following, more = after_round(state, at)
    return following, effects + more
