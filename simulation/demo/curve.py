"""A plot of accuracies in text.

This file knows numbers and characters.
"""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 66
"""Columns for the rounds."""
ASCII = {"•": "*", "┤": "|", "└": "+", "─": "-"}


def plot(accuracies: Sequence[float | None], *, width: int = WIDTH, ascii_only: bool = False) -> list[str]:
    """Lines of a plot of accuracies (0 to 1; None: not known) against rounds 1, 2, ...

    The highest line stands for 100 %, the lowest for the last multiple of 10 % below the smallest value; a line is
    2.5 % where that is at least 70 %, 5 % where it is at least 50 %, else 10 %. Where there are more rounds than fit,
    every second, third, ... is shown, the last one always.
    """
    known = [value for value in accuracies if value is not None]
    if not known:
        return []
    low = min(90, 10 * int(min(known) * 10))
    line_percent = 2.5 if low >= 70 else 5.0 if low >= 50 else 10.0
    height = round((100 - low) / line_percent) + 1
    column = max(3, len(str(len(accuracies))) + 1)
    stride = -(-len(accuracies) * column // width)
    shown = [n for n in range(len(accuracies)) if (len(accuracies) - 1 - n) % stride == 0]
    rows = [[" "] * (column * len(shown)) for _ in range(height)]
    for place, n in enumerate(shown):
        value = accuracies[n]
        if value is not None:
            row = round((100 - 100 * min(value, 1.0)) / line_percent)
            rows[min(row, height - 1)][column * (place + 1) - 1] = "•"
    lines = []
    for row, cells in enumerate(rows):
        level = 100 - line_percent * row
        label = f"{level:5.0f} %" if level % 5 == 0 else " " * 7
        lines.append(f"{label} ┤{''.join(cells)}".rstrip())
    lines.append(" " * 8 + "└" + "─" * (column * len(shown)))
    lines.append(" " * 9 + "".join(f"{n + 1:>{column}}" for n in shown))
    if ascii_only:
        lines = ["".join(ASCII.get(letter, letter) for letter in line) for line in lines]
    return lines
