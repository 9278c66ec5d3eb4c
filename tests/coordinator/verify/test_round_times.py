"""When rounds ended, by the events of their log."""

from __future__ import annotations

from typing import Any

from coordinator.engine.plan import Plan
from coordinator.store.port import EventRow, RoundRow
from coordinator.verify.logged_round import LoggedRound
from coordinator.verify.public_rows import RoundTimes


def event(seq: int, kind: str, **body: Any) -> EventRow:
    return EventRow(seq=seq, at=float(seq), kind=kind, body=body)


def test_repro_a_late_decline_is_of_a_round_that_was_over() -> None:
    """It came before the next round was drawn, and verify looked for the end of its round after it."""
    times = RoundTimes()
    events = [
        event(1, "Created"),
        event(2, "Drawn", round=1),
        event(3, "Tick"),
        event(4, "Declined", round=1, late=True),
    ]
    for one in events:
        times.add(one)
    about: dict[str, Any] = {"run": "marks", "round": 1, "attempt": 0, "kind": "secure", "collecting_at": 2.0}
    row = RoundRow(**about, status="abandoned", reason="too few were left", opened_at=1.0, closed_at=3.0)
    assert list(times.findings({1: row})) == []


def test_repro_who_is_spent_has_left_its_round() -> None:
    """It counted as training, and the row of a round that was committed as withdrawn."""
    secure = Plan.parse({"name": "n", "task": {"learner": "a:b"}, "secure": {"max_norm": 1.0, "max_abs": 0.5}})
    logged = LoggedRound()
    logged.add(event(1, "Spent", round=1, device="a"), secure)
    logged.add(event(2, "Declined", round=1, device="b"), secure)
    logged.add(event(3, "Declined", round=1, device="c", late=True), secure)
    assert logged.left == {"a", "b"}
