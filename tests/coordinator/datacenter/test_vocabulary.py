"""A number of datacenter training has one name: in a plan's section, a recipe, a job, and as an option."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from client_sdk.protocol.workers import DatacenterTask, Mesh, Server
from coordinator.datacenter.recipe import Recipe, recipe_of
from coordinator.datacenter.spec import JobSpec
from tests.coordinator.datacenter.test_agent import lease
from tests.deploy.command_lines import command

OF_THE_JOB = {"data", "nproc"}
"""Fields of a plan's section that belong to the job, and not to its recipe."""
OTHER: dict[str, Any] = {
    "steps": 7,
    "batch_size": 30,
    "accumulate": 2,
    "learning_rate": 0.3,
    "linear_scaling": True,
    "warmup_steps": 3,
    "decay": "linear",
    "optimizer": "lamb",
    "momentum": 0.5,
    "weight_decay": 0.2,
    "trust_coefficient": 0.02,
    "precision": "bfloat16",
    "shard": "optimizer",
    "recompute": True,
    "compress": "powersgd",
    "compress_rank": 2,
    "compress_density": 0.5,
    "sync_every": 8,
    "outer_learning_rate": 0.7,
    "outer_momentum": 0.9,
    "sync_within": 2,
    "mesh": Mesh(data=2),
    "schedule": "gpipe",
    "server": Server(staleness=3),
    "hogwild": True,
}
"""Another value than the default for every number of a plan's section."""


def options() -> dict[str, Any]:
    """Option of ``quorate datacenter train`` -> its default."""
    return {str(option.name): option.default for option in command("datacenter", "train").params}


def test_a_plan_and_a_recipe_have_the_same_names() -> None:
    shared = set(DatacenterTask.model_fields) - OF_THE_JOB
    assert shared == set(OTHER)
    for name in shared:
        mine, recipes = DatacenterTask.model_fields[name], Recipe.model_fields[name]
        assert set(get_args(mine.annotation)) <= set(get_args(recipes.annotation)), name
        assert name in ("steps", "optimizer") or mine.default == recipes.default, name
    assert set(JobSpec.model_fields) >= OF_THE_JOB


@pytest.mark.parametrize("name", OTHER)
def test_every_number_of_a_plan_reaches_its_training(name: str) -> None:
    alone = {"shard", "compress", "sync_every", "mesh", "server", "hogwild"}  # these do not go together
    of = "sync_every" if name == "sync_within" else name
    without = alone - {of} if of in alone else {"sync_every", "mesh", "server", "hogwild"}
    without |= {"sync_within"} if "sync_every" in without else set()
    chosen = {one: value for one, value in OTHER.items() if one not in without}
    found = recipe_of(lease(chosen | ({"nproc": 2} if name in ("mesh", "sync_every", "sync_within") else {})))
    assert getattr(found, name) == OTHER[name]
    assert DatacenterTask.model_fields[name].default != OTHER[name]


def test_every_number_of_a_job_is_an_option_of_its_name_and_default() -> None:
    there = options()
    fields = {**Recipe.model_fields, **JobSpec.model_fields}
    assert set(fields) - {"recipe", "init_digest"} == set(there) - {"as_json", "target"}  # --target is a part of --data
    for name, field in fields.items():
        if name not in ("recipe", "resume", "init_digest") and not field.is_required():
            assert there[name] == field.default, name
