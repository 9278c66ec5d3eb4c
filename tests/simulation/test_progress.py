"""The time that a simulation's progress says is left."""

from __future__ import annotations

import io
import time

import pytest

from client_sdk.protocol.operators import Funnel, RoundView
from simulation.simulator.simulate import RoundProgress


def test_what_is_left_takes_as_long_a_round_as_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    progress = RoundProgress(6, True, stream)
    for number, now in ((1, 110.0), (2, 120.0)):  # noqa: B007
        view = RoundView(round=number, status="committed", opened_at=1.0, closed_at=9.0, funnel=Funnel())
        progress.ended(view, {})
    assert [line.rpartition(", ")[2] for line in stream.getvalue().splitlines()] == ["50 s left", "40 s left"]
