"""A plot of accuracies in text.

This file knows numbers and characters.
"""

from __future__ import annotations

from collections.abc import Sequence

HEIGHT = 9
ASCII = {"•": "*", "┤": "|", "└": "+", "─": "-"}


def plot(
    accuracies: Sequence[float | None], *, height: int = HEIGHT, width: int = 66, ascii_only: bool = False
) -> list[str]:
    """Lines of a plot of accuracies (0 to 1; None: not known) against rounds 1, 2, ...

    The lowest line stands for the last multiple of 10 % below the smallest value, the highest for 100 %. Where there
    are more rounds than fit, every second, third, ... is shown, the last one always.
    """
    known = [value for value in accuracies if value is not None]
    if not known:
        return []
    step = max(3, len(str(len(accuracies))) + 1)
    stride = -(-len(accuracies) * step // width)
    shown = [n for n in range(len(accuracies)) if (len(accuracies) - 1 - n) % stride == 0]
    low = min(9, int(min(known) * 10)) / 10
    rows = [[" "] * (step * len(shown)) for _ in range(height)]
    for column, n in enumerate(shown):
        value = accuracies[n]
        if value is not None:
            rows[height - 1 - round((value - low) / (1.0 - low) * (height - 1))][step * column + step - 1] = "•"
    lines = []
    for row, cells in enumerate(rows):
        level = 1.0 - (1.0 - low) * row / (height - 1)
        lines.append(f"{100 * level:5.0f} % ┤{''.join(cells)}".rstrip())
    lines.append(" " * 8 + "└" + "─" * (step * len(shown)))
    lines.append(" " * 9 + "".join(f"{n + 1:>{step}}" for n in shown))
    if ascii_only:
        lines = ["".join(ASCII.get(letter, letter) for letter in line) for line in lines]
    return lines
