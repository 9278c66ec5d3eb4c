"""The map's diagram of phases is drawn from what the engine does."""

from __future__ import annotations

import pytest

from coordinator.engine.state import PHASES
from scripts.phase_diagram import PAGE, diagram, page
from tests.coordinator.engine.story import Transition
from tests.coordinator.engine.transitions import KINDS, transitions


@pytest.mark.slow
def test_the_diagram_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m scripts.phase_diagram"
    assert text.count("stateDiagram-v2") == 1


@pytest.mark.slow
def test_every_phase_and_every_event_of_a_round_was_observed() -> None:
    seen = transitions()
    assert {step.phase for step in seen} == {"idle", *PHASES}
    of_the_run = {
        "Scored",
        "Discarded",
        "Unbarred",
        "Vouched",
        "Seeded",
    }  # they change no phase, and here no run either
    assert {step.event for step in seen} == set(KINDS) - of_the_run


def test_what_is_drawn_of_a_few_steps() -> None:
    steps = [
        Transition("idle", "Created", "selecting", False),
        Transition("selecting", "Drawn", "collecting", False),
        Transition("selecting", "Drawn", "selecting", True),
        Transition("collecting", "Started", "collecting", False),
        Transition("collecting", "Stopped", "idle", True),
        *(Transition(phase, "Ends", "leasing", True) for phase in PHASES if phase != "training"),
    ]
    assert diagram(steps).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> selecting",
        "    [*] --> leasing",
        "    selecting --> [*]: Drawn",
        "    selecting --> collecting: Drawn",
        "    collecting --> [*]: Stopped",
        "```",
        "`Ends` ends the round in every phase but *training*.",
    ]
