"""``quorate evaluate``: what it says, to people and to scripts, of what it scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client_sdk.commands.run_cli import quorate
from tests.client_sdk.http.operator_script import Coordinator

SCORER = "my_scorer_of_tests:scorer"


@pytest.fixture
def evaluate(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Scores the finished run of one coordinator; gives the lines that were said."""
    coordinator = Coordinator()
    coordinator.status = "finished"
    plan = {"task": {"learner": SCORER}}
    genuine = coordinator.run
    monkeypatch.setattr(coordinator, "run", lambda: {**genuine(), "reason": "reached 3 rounds", "plan": plan})
    monkeypatch.setattr("client_sdk.http.operator.OperatorClient", lambda url, **more: coordinator.client())
    (workplace / "my_scorer_of_tests.py").write_text(
        "from client_sdk import Score\n"
        "class Scorer:\n"
        "    def train(self, *args, **more): ...\n"
        "    def evaluate(self, model, data): return Score(examples=10, metrics={'sum': float(model['w'].sum())})\n"
        "scorer = Scorer()\n"
    )

    def run(*more: str) -> list[str]:
        assert quorate("evaluate", "run-1", "--data", "mine.npz", "--learner", SCORER, *more) == 0
        output = capsys.readouterr()
        assert not output.err
        return output.out.splitlines()

    return run


@pytest.mark.slow
def test_scores_and_the_end_are_json_for_scripts(evaluate: Callable[..., list[str]]) -> None:
    scored, ended = (json.loads(line) for line in evaluate("--json"))
    about: dict[str, Any] = {"run": "run-1", "source": "evaluator"}
    assert scored == {"kind": "scored", **about, "version": 0, "examples": 10, "metrics": {"sum": 3.0}}
    assert ended == {
        "kind": "ended",
        **about,
        "scored": 1,
        "status": "finished",
        "reason": "run-1 is finished: reached 3 rounds.",
    }


@pytest.mark.slow
def test_a_script_gets_the_end_where_all_was_scored_before(evaluate: Callable[..., list[str]]) -> None:
    evaluate()
    (ended,) = (json.loads(line) for line in evaluate("--json"))
    assert (ended["kind"], ended["scored"], ended["status"]) == ("ended", 0, "finished")
    assert ended["reason"].endswith("There was nothing to score: all of its checkpoints have metrics of evaluator.")


@pytest.mark.slow
def test_people_get_the_same(evaluate: Callable[..., list[str]]) -> None:
    assert evaluate("--source", "ward") == [
        "run-1 version 0: sum 3.0000 (10 examples)",
        "run-1 is finished: reached 3 rounds.",
    ]
    assert evaluate("--source", "ward") == [
        "run-1 is finished: reached 3 rounds. There was nothing to score: all of its checkpoints have metrics of ward."
    ]


def test_a_flower_run_has_nothing_to_score(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = Coordinator()
    genuine = coordinator.run
    flower = {"app": "acme/vision", "version": "1.0", "messages": 0, "replies": 0, "errors": 0}
    monkeypatch.setattr(coordinator, "run", lambda: {**genuine(), "plan": {}, "flower": flower})
    monkeypatch.setattr("client_sdk.http.operator.OperatorClient", lambda url, **more: coordinator.client())
    assert quorate("evaluate", "run-1", "--data", "mine.npz") == 1
    assert "run-1 is a Flower run: it has no checkpoints" in capsys.readouterr().err
