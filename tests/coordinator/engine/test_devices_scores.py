"""What the devices of a round scored: means by weight, and the sums of states."""

from __future__ import annotations

from coordinator.engine.event_fields import Treated
from coordinator.engine.phases.public_record import _treated, added_states, mean_scores
from coordinator.engine.state import Member, Members, Round


def of(**members: Member) -> Round:
    return Round(number=1, kind="federated", phase="committing", opened_at=0.0, members=Members(members))


def device(examples: int, metrics: dict[str, float], **more: dict[str, list[float]]) -> Member:
    return Member(
        examples=9,
        status="reported",
        held_out=metrics,
        held_out_examples=examples,
        held_out_states=more.get("states", {}),
    )


def test_a_metric_with_a_state_has_no_mean_of_values() -> None:
    """It would stand as the metric until somebody computes it, and could finish the run."""
    scored = of(
        a=device(2, {"loss": 1.0, "f1": 0.5, "auc": 0.25}, states={"f1": [1.0, 2.0]}),
        b=device(6, {"loss": 3.0, "f1.undefined": 1.0, "auc.undefined": 1.0}, states={"f1": [0.0, 4.0]}),
        c=device(0, {}),
    )
    assert mean_scores(scored) == {"loss": 2.5, "auc": 0.25, "auc.undefined": 1.0}
    assert added_states(scored) == {"f1": [1.0, 6.0]}
    assert mean_scores(of()) == {}
    assert added_states(of()) == {}


def test_a_weight_counts_in_place_of_the_examples() -> None:
    heavy = Member(examples=9, held_out={"loss": 1.0}, held_out_examples=2, held_out_weights={"loss": 30.0})
    assert mean_scores(of(a=heavy, b=device(10, {"loss": 5.0}))) == {"loss": (30 + 50) / 40}


def test_of_treated_updates_counts_are_added_and_the_largest_rounding_is_told() -> None:
    found = _treated([Treated(clipped=True, rounding=0.25), Treated(capped=True, clipped=True, rounding=0.5)])
    assert found == {"treatment": {"clipped": 2, "capped": 1, "statistics_cut": 0, "rounding": 0.5}}
    assert _treated([]) == {}
