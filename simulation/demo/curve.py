"""Draws accuracies as bars of text, fine enough that the small progress of the last rounds is seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH = 66
"""Columns for the rounds."""
_LINES = 12
"""The most lines of bars."""
_STEPS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""What a line may stand for, in percent."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
"""A line of a bar, by how many eighths of it are filled."""
_ASCII = str.maketrans("▁▂▃▄▅▆▇█┤└", "...::::#|+")


def plot(accuracies: Sequence[float | None], *, width: int = WIDTH, ascii_only: bool = False) -> list[str]:
    """Lines of a plot of accuracies (0 to 1; None: not known) against rounds 1, 2, ...

    A label stands at the height of the lower edge of its line. The axis is the last multiple of 5 % below the smallest
    value, the highest label the first one from the largest value on. A line stands for 0.25 to 10 %, so that there are
    at most 12, and is divided into eighths. Where there are more rounds than fit, every second, third, ... is shown,
    the last one always. ``ascii_only``: for terminals without Unicode, where an eighth is not seen.
    """
    known = [100 * min(value, 1.0) for value in accuracies if value is not None]
    if not known:
        return []
    low = min(95, 5 * math.floor(min(known) / 5))
    top = max(low + 5, 5 * math.ceil(max(known) / 5 - 1e-9))
    step = next(step for step in _STEPS if top - low <= _LINES * step)
    height = round((top - low) / step)
    column = max(3, len(str(len(accuracies))) + 1)
    stride = -(-len(accuracies) * column // width)
    shown = [n for n in range(len(accuracies)) if (len(accuracies) - 1 - n) % stride == 0]
    bars = [_bar(accuracies[n], low, step, height) for n in shown]
    labels = [_label(top - step * row) for row in range(height + 1)]
    lines = [f"{labels[0]} ┤"]
    for row in range(height):
        cells = "".join(" " + bar[height - 1 - row] * (column - 1) for bar in bars)
        end = "┤" if row + 1 < height else "└"
        lines.append(f"{labels[row + 1]} {end}{cells}".rstrip())
    lines.append(" " * 9 + "".join(f"{n + 1:>{column}}" for n in shown))
    return [line.translate(_ASCII) for line in lines] if ascii_only else lines


def _bar(value: float | None, low: float, step: float, height: int) -> str:
    """The letters of a bar from the axis up; a bar has at least an eighth, so that it is seen."""
    if value is None:
        return " " * height
    eighths = max(1, round(8 * (100 * min(value, 1.0) - low) / step))
    return "".join(_EIGHTHS[max(0, min(8, eighths - 8 * row))] for row in range(height))


def _label(level: float) -> str:
    return f"{level:5.0f} %" if level % 5 == 0 else " " * 7
