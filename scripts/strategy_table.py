"""Writes the table of docs/datacenter.md that says what each strategy gives, case by case.

::

    python -m scripts.strategy_table

Each cell is one that ``tests/coordinator/datacenter/test_strategies.py`` plays, from the same rows and columns.
"""

from __future__ import annotations

from pathlib import Path

from tests.coordinator.datacenter.strategies import CASES, LIVES, STRATEGIES, TOLERANCE, mark

PAGE = Path(__file__).resolve().parents[1] / "docs" / "datacenter.md"
BEGIN, END = "<!-- scripts.strategy_table begins -->\n", "<!-- scripts.strategy_table ends -->\n"


def table() -> str:
    """The table and its notes, as Markdown."""
    columns = [*CASES, *LIVES]
    notes: dict[str, int] = {}
    lines = [f"| `[datacenter]` | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in STRATEGIES.values():
        cells = []
        for case in columns:
            word = mark(row, case)
            if word == "near":
                word = f"{row.near[case]:.0%}"
            elif word == "refused":
                word = f"no ({notes.setdefault(row.refused[case], len(notes) + 1)})"
            cells.append(word)
        lines.append(f"| `{row.said}` | {' | '.join(cells)} |")
    equal = f"the numbers of one process at the same batch, to {TOLERANCE:g} after 20 steps in float64"
    lines += [
        "",
        f"*equal*: {equal}; after a kill, the bits of a training without it.",
        "*A percentage*: other numbers, and after 20 steps a loss over all examples that is above by so much at most.",
        "*no*: one process refuses it in a sentence:",
        "",
        *(f"{number}. {words}" for words, number in notes.items()),
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page, with the table of now."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
