"""One thread a process, unless the user gives another number."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest

from client_sdk.commands.long_running import VARIABLES, thread_variables, use_threads
from coordinator.datacenter import job
from coordinator.datacenter.recipe import Recipe
from coordinator.datacenter.spec import JobSpec


@pytest.mark.parametrize(
    ("option", "environment", "threads"),
    [(None, {}, 1), (None, {"OMP_NUM_THREADS": "6"}, 6), (3, {"OMP_NUM_THREADS": "6"}, 3), (2, {}, 2)],
)
def test_the_option_comes_before_the_environment_and_one_is_the_default(
    option: int | None, environment: dict[str, str], threads: int
) -> None:
    assert thread_variables(option, environment) == dict.fromkeys(VARIABLES, str(threads))


def test_a_library_that_the_user_has_set_by_itself_keeps_its_number() -> None:
    assert thread_variables(None, {"MKL_NUM_THREADS": "4"})["MKL_NUM_THREADS"] == "4"


def test_this_process_takes_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "9")
    use_threads(2)
    assert {os.environ[name] for name in VARIABLES} == {"2"}


@pytest.mark.parametrize(("option", "threads"), [(None, "1"), (4, "4")])
@pytest.mark.parametrize("nproc", [1, 2])
def test_ranks_are_started_with_them(
    option: int | None, threads: str, nproc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(job, "SupervisedChild", lambda command, **options: started.append(options))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    spec = JobSpec(learner="a:b", data="mnist", recipe=Recipe(steps=1), nproc=nproc, threads=option)
    with tempfile.TemporaryFile("w+") as log:
        job.start_processes(spec, 0, log, "scratch")
    assert started[0]["environment"]["OMP_NUM_THREADS"] == threads
    assert started[0]["threads"] is None, "the supervisor sets no other number"
