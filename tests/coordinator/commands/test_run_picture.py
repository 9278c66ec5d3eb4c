"""A run on a terminal: it fits, and says how long it will take only where that is known."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from client_sdk.protocol.operators import ExchangeView, Funnel, MetricView, RoundView, RunView, SecureView
from coordinator.commands.watching import RunNow, left_s, picture


def view(**more: Any) -> RunView:
    given: dict[str, Any] = {
        "run": "mnist", "name": "mnist", "status": "running", "reason": "", "phase": "collecting", "round": 31,
        "version": 30, "checkpoint": "00" * 32, "rounds_committed": 30, "rounds_wanted": 40,
        "plan": {"cohort": {"goal": 256}}, "plan_digest": "00" * 32, "origin": "", "created_at": 0.0, "seq": 9,
        "funnel": Funnel(waiting=400, selected=300, training=280, reported=120, dropped=2),
    }  # fmt: skip
    return RunView.model_validate(given | more)


def ended(number: int, seconds: float = 10.0, status: Any = "committed") -> RoundView:
    return RoundView(round=number, status=status, opened_at=100.0, closed_at=100.0 + seconds)


def text(now: RunNow, width: int = 80, height: int = 24) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False, highlight=False).print(picture(now, width, height))
    return out.getvalue()


def test_the_rest_takes_as_long_a_round_as_the_last_ones_with_the_abandoned_ones() -> None:
    now = RunNow(view(), [ended(1), ended(2, 20.0, "abandoned"), ended(3)])
    assert left_s(now) == 10 * (10 + 20 + 10) / 2
    assert "30 of 40, some 3 min 20 s left" in text(now)


@pytest.mark.parametrize(
    "now",
    [
        RunNow(view()),
        RunNow(view(), [ended(1, status="abandoned")]),
        RunNow(view(status="paused"), [ended(1)]),
        RunNow(view(status="finished", rounds_committed=40), [ended(1)]),
    ],
)
def test_nothing_is_said_of_the_rest_where_it_is_not_known(now: RunNow) -> None:
    assert left_s(now) is None
    assert "left" not in text(now)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (140, 50)])
def test_it_fits_and_shows_the_newest_rounds(width: int, height: int) -> None:
    stalled = "the last 3 rounds were abandoned: 20 of 218 devices reported; see why they leave"
    now = RunNow(view(stalled=stalled), [ended(number) for number in range(12, 32)])
    found = text(now, width, height).splitlines()
    assert len(found) <= height
    assert all(len(line) <= width for line in found)
    whole = " ".join(" ".join(found).split())
    assert stalled in whole
    assert "120 of 256 that close the round" in whole
    assert "2 dropped" in whole
    assert any(line.split()[:1] == ["31"] for line in found)


def test_a_secure_round_has_its_exchanges_and_the_newest_scores_their_examples() -> None:
    came = ExchangeView(exchange="share", expected=44, came=41, needed=30, bytes=9, began_at=1.0)
    secure = RoundView(
        round=31, kind="secure", status="open", opened_at=1.0, secure=SecureView(attempts=1, exchanges=(came,))
    )
    scores = [
        MetricView(version=version, source="evaluator", name=name, value=value, examples=500, at=1.0)
        for version, name, value in ((29, "accuracy", 0.8), (30, "accuracy", 0.9), (30, "loss", 0.25))
    ]
    found = text(RunNow(view(kind="secure"), [secure], scores), 100)
    assert "41 of 44, 30 needed" in found
    assert "accuracy 0.9, loss 0.25: version 30, evaluator, 500 examples" in found
    assert "0.8" not in found
