"""Draws the phases of a round into ``docs/architecture.md``, from what the tests observe of the engine.

::

    python -m scripts.phase_diagram          # writes the page anew where the diagram is out of date

An arrow is drawn where an event led from one phase to another; its label names the events. ``[*]`` is where a round
opens, and where it ends, committed or abandoned.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Protocol

from coordinator.engine.state import PHASES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
_MARKED = re.compile(r"(<!-- phases: [^>]*-->\n).*?(<!-- end of phases -->)", re.DOTALL)
_ENDS = "[*]"


class Step(Protocol):
    """One event that changed the state: the phases before and after it, and whether the round ended with it."""

    @property
    def phase(self) -> str: ...

    @property
    def event(self) -> str: ...

    @property
    def following(self) -> str: ...

    @property
    def ended(self) -> bool: ...


def observed() -> Collection[Step]:
    """What the tests' table of every event in every phase observes."""
    found: Collection[Step] = import_module("tests.coordinator.engine.transitions").transitions()
    return found


def diagram(steps: Collection[Step]) -> str:
    """A Mermaid state diagram, and a sentence on the events that end a round nearly everywhere."""
    everywhere = _ends_everywhere(steps)
    arrows: dict[tuple[str, str], set[str]] = {}
    for step in steps:
        if step.following != "idle" and (step.ended or step.phase == "idle"):
            arrows.setdefault((_ENDS, step.following), set())
        if step.ended and step.event not in everywhere:
            arrows.setdefault((step.phase, _ENDS), set()).add(step.event)
        elif not step.ended and "idle" not in (step.phase, step.following) and step.phase != step.following:
            arrows.setdefault((step.phase, step.following), set()).add(step.event)
    order = (_ENDS, *PHASES)
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, after in sorted(arrows, key=lambda arrow: (order.index(arrow[0]), order.index(arrow[1]))):
        events = ", ".join(sorted(arrows[before, after]))
        lines.append(f"    {before} --> {after}" + (f": {events}" if events else ""))
    lines.append("```")
    lines += [f"`{event}` ends the round in every phase but {_words(everywhere[event])}." for event in everywhere]
    return "\n".join(lines) + "\n"


def _ends_everywhere(steps: Collection[Step]) -> dict[str, list[str]]:
    """Event -> the phases that it does not end, where these are at most one of all."""
    ends: dict[str, set[str]] = {}
    for step in steps:
        if step.ended:
            ends.setdefault(step.event, set()).add(step.phase)
    left: dict[str, list[str]] = {
        event: [phase for phase in PHASES if phase not in phases] for event, phases in sorted(ends.items())
    }
    return {event: phases for event, phases in left.items() if len(phases) == 1}


def _words(phases: list[str]) -> str:
    return ", ".join(f"*{phase}*" for phase in phases)


def page(text: str) -> str:
    """The page with its diagram made anew."""
    drawn = diagram(observed())
    return _MARKED.sub(lambda found: found[1] + drawn + found[2], text)


def main() -> None:
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} has been brought up to date.\n")


if __name__ == "__main__":
    main()
