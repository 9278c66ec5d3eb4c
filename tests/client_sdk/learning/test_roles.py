"""What a device checks of a run's roles: its learner knows them, and it takes part in no run that gives others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from client_sdk.learners import Catalogue, LearnerError, LearnerTrainer
from client_sdk.learning import Learner
from client_sdk.protocol.devices import Assignment, CheckpointRef, Task
from client_sdk.protocol.secure import SecureTask
from client_sdk.tensors import Manifest, Roles, Tensors
from client_sdk.tensors.manifest import digest_of
from client_sdk.update import Update
from simulation import simulate

NAME = "clinic:normed"
LEARNER = Learner(
    model=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), loss=nn.functional.cross_entropy, version="1"
)
MODEL = LEARNER.initial(0)
ROLES: Roles = {"0.running_mean": "statistic", "0.running_var": "non-negative"}
DATA = np.ones((4, 3), np.float32), np.zeros(4, np.int64)
SECURE = SecureTask(q=16, max_norm=1.0, max_abs=1.0, weight_cap=1, profile="strict", minimum_cohort=64)


def assignment(roles: Roles, digest: str | None = None, *, secure: bool = False, **task: Any) -> Assignment:
    return Assignment(
        run="r",
        round=1,
        device="d1",
        checkpoint=CheckpointRef(version=0, digest="0" * 64, bytes=1),
        plan_digest="0" * 64,
        task=Task(learner=NAME, **task),
        report_within_s=60,
        secure=SECURE if secure else None,
        max_update_bytes=1 << 20,
        roles=dict(roles),
        roles_digest=digest_of(Manifest.of(MODEL), roles) if digest is None else digest,
    )


def trained(learner: Any, asked: Assignment) -> Update:
    trainer = LearnerTrainer(Catalogue({NAME: learner}, installed=[]), DATA)
    return trainer.train(asked, MODEL, "d1", lambda: 60.0)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    "roles",
    [
        {},
        {"0.running_mean": "statistic"},
        {"0.running_mean": "statistic", "0.running_var": "statistic"},
        {**ROLES, "1.weight": "statistic"},
    ],
)
def test_a_device_whose_learner_knows_its_roles_refuses_others(roles: Roles, secure: bool) -> None:
    assert trained(LEARNER, assignment(ROLES, secure=secure)).examples == 4
    with pytest.raises(LearnerError, match="The run gives other tensors the role of statistics than the learner"):
        trained(LEARNER, assignment(roles, secure=secure))


@pytest.mark.parametrize("digest", ["", "ab" * 32])
def test_a_digest_that_is_not_of_what_is_said_is_refused_whoever_trains(digest: str) -> None:
    def train(model: Tensors, data: Any, task: Task) -> Update:
        return Update({"w": np.zeros(1, np.float32)}, 1)

    assert trained(train, assignment(ROLES))
    for learner in (train, LEARNER):
        with pytest.raises(LearnerError, match="The run gives other tensors"):
            trained(learner, assignment(ROLES, digest))


def test_what_is_not_averaged_has_no_role_in_the_run() -> None:
    asked = assignment({}, averaged=("!*running_*",))
    assert "0.running_var" not in trained(LEARNER, asked).delta
    half = assignment({"0.running_mean": "statistic"}, averaged=("!*_var",))
    assert "0.running_mean" in trained(LEARNER, half).delta


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (lambda: ["0.running_mean"], "roles.. of the learner: a list says no roles"),
        (lambda: {"0.running_mean": "mean"}, "'0.running_mean': 'mean' is no name and role"),
        (lambda: {"0.running_men": "statistic"}, "the model: 0.running_men; did you mean 0.running_mean"),
        (
            lambda: {"0.num_batches_tracked": "statistic"},
            "no floating-point tensor of the model: 0.num_batches_tracked",
        ),
        ({"0.running_mean": "statistic"}, "The learner's roles is a dict: make it a method"),
    ],
)
def test_a_learner_that_says_no_roles_is_told_so_on_devices_and_in_simulations(roles: Any, words: str) -> None:
    class Wrong:
        def train(self, model: Tensors, data: Any, task: Task, **more: Any) -> Update:
            raise AssertionError

    learner = Wrong()
    learner.roles = roles  # type: ignore[attr-defined]
    with pytest.raises(LearnerError, match=words):
        trained(learner, assignment(ROLES))
    with pytest.raises(ValueError, match=words):
        simulate({"cohort": {"select": 1, "goal": 1}}, learner, [DATA], init=MODEL, progress=False)


def test_roles_that_leave_a_statistic_out_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Forgetful:
        def train(self, model: Tensors, data: Any, task: Task, **more: Any) -> Update:
            return Update({name: array * 0 for name, array in model.items() if array.dtype == np.float32}, 1)

        def roles(self) -> Roles:
            return {"0.running_mean": "statistic"}

    plan = {"cohort": {"select": 1, "goal": 1}, "finish": {"rounds": 1}}
    simulate(plan, Forgetful(), [DATA], init=MODEL)
    assert "The learner's roles() leave out 0.running_var, named as statistics are" in capsys.readouterr().err
