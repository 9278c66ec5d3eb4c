"""Datacenter rounds of a simulation that cannot be trained end as those of a deployed run."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from quorate import Learner, simulate
from simulation import Behaviour
from simulation.errors import SimulationError, Stalled
from tests.simulation.test_simulate import NET, clients, examples, plan

SECTION = {"data": "proxy", "steps": 3, "batch_size": 8, "patience": 2}
GONE = Behaviour(dropout=0.999)


def nan(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets) * float("nan")


def broken(outputs: Any, targets: Any) -> Any:
    raise ZeroDivisionError("the learner's own")


def played(learner: Learner, **sections: Any) -> Any:
    return simulate(
        plan(4, datacenter=SECTION, **sections), learner, clients(), behaviour=GONE,
        datacenter={"proxy": examples(60, seed=4)}, progress=False,
    )  # fmt: skip


def with_loss(loss: Any) -> Learner:
    return Learner(model=NET.model, loss=loss)


@pytest.mark.parametrize(("finish", "most"), [({"rounds": 4, "abandoned": 3}, 3), ({"rounds": 4}, 25)])
def test_a_loss_that_is_not_finite_abandons_the_round_and_the_run_stalls(finish: dict[str, int], most: int) -> None:
    with pytest.raises(Stalled, match=f"^{most} rounds in a row were abandoned") as stalled:
        played(with_loss(nan), finish=finish)
    history = stalled.value.history
    assert history is not None
    ended = [found for found in history.rounds if found.status == "abandoned"]
    assert len(ended) == most
    assert (ended[2].kind, ended[1].kind) == ("datacenter", "federated")
    assert "The loss at step 1 is not finite" in ended[2].reason


def test_a_learner_that_raises_ends_the_simulation_with_its_history() -> None:
    with pytest.raises(
        SimulationError, match=r"^the datacenter could not train round 3: .*ZeroDivisionError"
    ) as failed:
        played(with_loss(broken))
    assert failed.value.history is not None
    assert [found.kind for found in failed.value.history.rounds[:3]] == ["federated", "federated", "datacenter"]


def test_a_datacenter_that_makes_rounds_is_not_given_up() -> None:
    history = played(NET, finish={"rounds": 3, "abandoned": 2})
    assert (history.status, [found.kind for found in history.rounds if found.status == "committed"]) == (
        "finished", ["datacenter"] * 3,
    )  # fmt: skip
