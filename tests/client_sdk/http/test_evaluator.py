"""The evaluator against a coordinator that answers from memory."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import pytest

from client_sdk.http import evaluator
from client_sdk.protocol.devices import Score
from client_sdk.protocol.operators import MetricReport
from client_sdk.protocol.problems import ProblemError
from client_sdk.tensors import Tensors, from_bytes, to_bytes
from tests.client_sdk.http.operator_script import DIGEST, Coordinator, refusal


def score(model: Tensors) -> Score:
    return Score(examples=10, metrics={"sum": float(model["w"].sum())})


def test_each_checkpoint_is_scored_once_as_it_comes_until_the_run_ends() -> None:
    coordinator = Coordinator()
    more = [to_bytes({"w": np.full(3, n, np.float32)}) for n in (5, 6, 7)]
    answer: list[tuple[int, float]] = []

    def grow(checkpoint: Any, found: Score) -> None:
        answer.append((checkpoint.version, found.metrics["sum"]))
        if more:
            coordinator.line.append(more.pop(0))
        else:
            coordinator.status = "finished"

    view = evaluator.follow(coordinator.client(), "run-1", score, source="test", on_score=grow, poll_s=0)
    assert view.status == "finished"
    assert answer == [(0, 3.0), (1, 15.0), (2, 18.0), (3, 21.0)]
    assert [(report.version, report.source, report.digest) for report in coordinator.metrics] == [
        (version, "test", hashlib.sha256(body).hexdigest()) for version, body in enumerate(coordinator.line)
    ]


def test_what_this_source_scored_before_is_left_out() -> None:
    coordinator = Coordinator()
    coordinator.line.append(to_bytes({"w": np.ones(3, np.float32)}))
    coordinator.status = "stopped"
    coordinator.metrics = [
        MetricReport(version=0, digest=DIGEST, source="test", score=Score(examples=1, metrics={"sum": 3.0})),
        MetricReport(version=1, digest=DIGEST, source="other", score=Score(examples=1, metrics={"sum": 3.0})),
    ]
    evaluator.follow(coordinator.client(), "run-1", score, source="test", poll_s=0)
    assert [(report.version, report.source) for report in coordinator.metrics[2:]] == [(1, "test")]


def test_trouble_is_reported_once_and_waited_out() -> None:
    coordinator = Coordinator()
    coordinator.status = "finished"
    troubles = iter([refusal("busy", "Full.")] * 3)
    coordinator.trouble = lambda request: next(troubles, None)
    found: list[str] = []
    evaluator.follow(coordinator.client(), "run-1", score, on_trouble=found.append, poll_s=0)
    assert found == ["Full."]
    assert len(coordinator.metrics) == 1


def test_a_refusal_ends_the_evaluation() -> None:
    coordinator = Coordinator()
    coordinator.trouble = lambda request: refusal("unknown-run", "There is no run x.")
    with pytest.raises(ProblemError, match="no run x"):
        evaluator.follow(coordinator.client(), "x", score, poll_s=0)


def test_stop_ends_it_between_two_checkpoints() -> None:
    coordinator = Coordinator()
    coordinator.line += [to_bytes({"w": np.full(3, n, np.float32)}) for n in (1, 2)]
    stop = threading.Event()
    evaluator.follow(coordinator.client(), "run-1", score, on_score=lambda *_: stop.set(), stop=stop, poll_s=0)
    assert len(coordinator.metrics) == 1
    assert from_bytes(coordinator.line[0])["w"].sum() == 3
