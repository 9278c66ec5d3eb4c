"""What others do in runs outside of a scope changes no answer within it; and nobody takes their models by a digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from client_sdk.protocol.names import Route
from client_sdk.protocol.operators import possession
from client_sdk.tensors import to_bytes
from tests.coordinator.service.apps import give_back
from tests.coordinator.service.test_scopes import Served
from tests.coordinator.service.test_scopes_everywhere import STREAMS

OF_A_PROCESS = re.compile(r"id: [0-9a-f]{8}-")
"""What a feed of events draws for itself."""


def answers(served: Served, key: str) -> dict[str, tuple[int, str]]:
    """What each route that reads answers about ``red``."""
    found = {}
    names = {"round": "1", "device": served.world.rows[0].device, "run": "red"}
    names["digest"] = str(served.world.coordinator.operators.run("red").checkpoint)
    for path, methods in served.app.openapi()["paths"].items():
        if "get" in methods:
            filled = path
            for name, value in names.items():
                filled = filled.replace(f"{{{name}}}", value)
            filled = re.sub(r"\{\w+\}", "x", filled)
            answer = served.ask("GET", filled + STREAMS.get(path, ""), key)
            found[filled] = (answer.status_code, OF_A_PROCESS.sub("id: ", answer.text))
    return found


def busy(served: Served) -> None:
    """A committed round of ``blue``, in which one update was refused; a third run; a wrong key; a pause."""
    world = served.world
    message = world.message().model_copy(update={"learners": {"tests:blue": "1"}})
    for row in world.rows:
        world.coordinator.devices.check_in(row, message)()
    world.settle()
    selected = [number for number, row in enumerate(world.rows) if world.store.claim(row.device) is not None]
    for number in selected[:3]:
        world.send(number, world.body(number, run="blue"), run="blue")
    world.settle()
    world.create(name="green")
    served.ask("POST", "/v1/runs/green/pause", served.key("operator", "green")).raise_for_status()
    served.ask("GET", Route.RUNS, f"qk_{'0' * 16}_{'0' * 64}")
    assert world.coordinator.operators.run("blue").version == 1


@pytest.mark.parametrize("role", ["viewer", "operator", "owner"])
def test_no_answer_within_a_scope_depends_on_what_happens_outside(role: str) -> None:
    shown = []
    for act in (lambda served: None, busy):
        served = Served()
        key = served.key(role, "red")
        act(served)
        shown.append(answers(served, key))
        served.service.close()
        give_back(served.app)
    quiet, loud = shown
    assert {path for path in quiet if quiet[path] != loud[path]} == set()
    assert sum(status == 200 for status, _ in quiet.values()) > 10


@pytest.fixture
def two() -> Iterator[Served]:
    made = Served()
    yield made
    made.service.close()
    give_back(made.app)


def plan(served: Served, name: str = "red-again") -> dict[str, Any]:
    return served.world.plan(name=name, task={"learner": "tests:red"})


def created(served: Served, key: str, init: str, **more: Any) -> httpx2.Response:
    asked = {"plan": plan(served), "init": init, **more}
    checked = served.ask("POST", Route.CHECK_PLAN, key, json=asked)
    answer = served.ask("POST", Route.RUNS, key, json=asked)
    assert (checked.status_code == 200) == (answer.status_code == 201), (checked.text, answer.text)
    if answer.status_code != 201:
        assert checked.json() == answer.json()
    return answer


def test_repro_no_run_begins_from_a_checkpoint_of_runs_outside_of_the_scope(two: Served) -> None:
    """Whoever knew its digest started a run from it, and then could download it."""
    blue = str(two.world.coordinator.operators.run("blue").checkpoint)
    key = two.key("owner", "red*")
    refused, nowhere = created(two, key, blue), created(two, key, "0" * 64)
    assert refused.status_code == nowhere.status_code == 404
    assert refused.json()["type"] == "/problems/unknown-checkpoint"
    assert refused.text.replace(blue, "X") == nowhere.text.replace("0" * 64, "X"), "nothing tells that it is there"
    assert "run create --init FILE" in refused.json()["detail"]
    assert created(two, key, blue, init_proof="0" * 64).status_code == 404
    assert two.ask("GET", Route.CHECKPOINT.format(digest=blue), key).status_code == 404
    assert created(two, two.key("owner", "*"), blue).status_code == 201


def test_who_has_the_file_begins_a_run_from_it_whoever_else_has_it(two: Served) -> None:
    """Two teams make the same first checkpoint with the same learner and seed."""
    file = two.world.blobs.open(str(two.world.coordinator.operators.run("blue").checkpoint)).read()
    digest, key = hashlib.sha256(file).hexdigest(), two.key("operator", "red*")
    assert created(two, key, digest, init_proof=possession([file[:7], file[7:]])).status_code == 201
    assert possession([file]) not in repr(two.world.store.audit_of_all(0, 1000))
    mine = to_bytes(two.world.model() | {"other": two.world.model()["marks"]})
    upload = Route.CHECKPOINT.format(digest=hashlib.sha256(mine).hexdigest())
    two.ask("PUT", upload, key, content=mine).raise_for_status()
    assert created(two, key, hashlib.sha256(mine).hexdigest()).status_code == 201, "it belongs to no run yet"


def test_repro_a_name_outside_of_the_scope_is_refused_whether_it_is_taken_or_not(two: Served) -> None:
    key = two.key("owner", "red*")
    said = []
    for name in ("blue", "grey"):
        asked = {"plan": plan(two, name), "init": str(two.world.coordinator.operators.run("red").checkpoint)}
        answer = two.ask("POST", Route.RUNS, key, json=asked)
        assert answer.status_code == 403
        assert two.ask("POST", Route.CHECK_PLAN, key, json=asked).json() == answer.json()
        said.append(answer.text.replace(name, "X"))
    assert said[0] == said[1]
