"""Draws the picture of clients' data as SVG text: sizes above, noise where there is some, labels below.

Colours follow the reader's light or dark scheme; the picture has its own background, so that it can be read in
both.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10, sqrt
from pathlib import Path

import numpy as np

from simulation.clients.holdings import Holdings
from simulation.clients.naming import Names

# ------------------------------------------------------------ view
# Selects the contents of a picture of clients: which clients, which labels, and the captions.
#
# ``picture`` draws it.


MOST_COLUMNS = 100
MOST_COLOURS = 10
"""Labels that colours can tell apart; more are drawn as rows."""
MOST_ROWS = 26
OTHERS = "others"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One client."""

    label: str
    """Its id, and its name in the data where that differs."""
    train: int
    held_out: int
    counts: tuple[int, ...]
    """Examples of each of the view's labels, held-out ones included; empty where there are no labels."""
    level: float | None
    """The noise on its features."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The contents of a picture."""

    title: str
    lines: tuple[str, ...]
    caption: str
    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    """The labels' names, as many as a column's counts."""

    @property
    def stacked(self) -> bool:
        """Whether labels are few enough for colours."""
        return len(self.labels) <= MOST_COLOURS


def view_of(
    names: Names, holdings: Holdings, *, lines: Sequence[str], classes: Sequence[str] | None, by_size: bool
) -> View:
    """The contents of the picture of these clients: all up to 100, else 100 at even distances (of their numbers, or
    of their ranks by size, largest first). ``lines``: the lines below the title; ``classes``: the labels' names."""
    count = len(names)
    order = np.argsort(-holdings.sizes, kind="stable") if by_size else np.arange(count)
    shown = order if count <= MOST_COLUMNS else order[np.linspace(0, count - 1, MOST_COLUMNS).round().astype(np.int64)]
    numbers = [int(number) for number in shown]
    counters = _counters(holdings, numbers)
    kinds, rest = _kinds(counters)
    columns = tuple(
        Column(
            label=_called(names, number),
            train=holdings.examples(number),
            held_out=holdings.held_out(number),
            counts=_counts(counter, kinds, rest),
            level=holdings.level(number),
        )
        for number, counter in zip(numbers, counters, strict=True)
    )
    labels = [_class_name(classes, kind) for kind in kinds]
    return View(
        title=f"Who holds what: {count:,} client{'s' * (count != 1)}",
        lines=tuple(lines),
        caption=_caption(names, numbers, by_size=by_size),
        columns=columns,
        labels=(*labels, OTHERS) if rest else tuple(labels),
    )


def _counters(holdings: Holdings, numbers: list[int]) -> list[Counter[int]]:
    """Label -> examples, for each client; all empty unless every one of them has labels."""
    held = [holdings.labels(number) for number in numbers]
    if any(labels is None for labels in held):
        return [Counter() for _ in numbers]
    return [Counter(labels.tolist()) for labels in held if labels is not None]


def _kinds(counters: list[Counter[int]]) -> tuple[list[int], bool]:
    """(the labels to show, ascending; whether there are others): the most frequent ones where there are too many."""
    total = sum(counters, Counter[int]())
    if len(total) <= MOST_ROWS:
        return sorted(total), False
    return sorted(kind for kind, _ in total.most_common(MOST_ROWS - 1)), True


def _counts(counter: Counter[int], kinds: list[int], rest: bool) -> tuple[int, ...]:
    counts = [counter[kind] for kind in kinds]
    return (*counts, counter.total() - sum(counts)) if rest else tuple(counts)


def _class_name(classes: Sequence[str] | None, kind: int) -> str:
    return str(classes[kind]) if classes is not None and 0 <= kind < len(classes) else str(kind)


def _called(names: Names, number: int) -> str:
    made, name = names.id(number), names.name(number)
    return made if name == made else f"{made} ({name})"


def _caption(names: Names, numbers: list[int], *, by_size: bool) -> str:
    if len(names) == 1:
        return f"One column: {names.id(0)}."
    order = "largest first" if by_size else f"{names.id(numbers[0])} to {names.id(numbers[-1])}"
    if len(numbers) == len(names):
        return f"One column a client, {order}."
    return f"One column a client, {order}: {len(numbers)} of {len(names):,}, at even distances."


# ------------------------------------------------------------ picture


WIDTH, LEFT, RIGHT = 900.0, 66.0, 22.0
WIDEST_COLUMN = 82.0
SIZES_HEIGHT, NOISE_HEIGHT, STACK_HEIGHT, ROW_HEIGHT = 84.0, 54.0, 170.0, 12.0
SHADES = 8
LETTER = 6.4
"""About how wide a letter of the 12-pixel text is."""
PALETTE = ("4e79a7", "f28e2b", "59a14f", "e15759", "b07aa1", "edc948", "76b7b2", "ff9da7", "9c755f", "8f979e")
STYLE = """
.qh{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.qh .bg{fill:#fff}.qh text{fill:#59636e}.qh .h{fill:#1f2328;font-size:16px;font-weight:600}.qh .b{fill:#1f2328}
.qh .g{stroke:#d1d9e0;stroke-width:1;fill:none}.qh .s{fill:#57606a}.qh .s2{fill:#b4bcc5}.qh .n{fill:#b07aa1}
.qh .r{fill:#2f6fb2}.qh .f{fill:#eff2f5}.qh .k{fill:#000;fill-opacity:0}.qh .k:hover{fill-opacity:.12}
@media (prefers-color-scheme:dark){.qh .bg{fill:#0d1117}.qh text{fill:#9198a1}.qh .h,.qh .b{fill:#f0f6fc}
.qh .g{stroke:#3d444d}.qh .s{fill:#aab4be}.qh .s2{fill:#555e68}.qh .r{fill:#58a6ff}.qh .f{fill:#161b22}
.qh .k{fill:#fff}}
"""


class Picture:
    """An SVG image that notebooks show by themselves; ``str`` is its text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: str | Path) -> Path:
        """Write it. Raises ``ValueError`` unless the path ends in ``.svg``, ``OSError`` where it cannot be written."""
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise ValueError(f"the picture is SVG: {path} should end in .svg")
        path.write_text(self.svg + "\n", encoding="utf-8")
        return path

    def __str__(self) -> str:
        return self.svg

    def _repr_svg_(self) -> str:
        return self.svg


def draw(view: View) -> Picture:
    """The whole picture."""
    return Picture(_SvgDrawing(view).drawn())


class _SvgDrawing:
    """Draws from top to bottom; ``_y`` is how far it has come."""

    def __init__(self, view: View) -> None:
        self._view, self._y, self._parts = view, 0.0, list[str]()
        self._pitch = min(WIDEST_COLUMN, (WIDTH - LEFT - RIGHT) / len(view.columns))
        self._gap = min(4.0, 0.15 * self._pitch)
        self._span = self._pitch * len(view.columns)

    def drawn(self) -> str:
        view = self._view
        self._head()
        top = self._y
        self._sizes()
        if any(column.level is not None for column in view.columns):
            self._noise()
        if view.labels:
            self._stack() if view.stacked else self._rows()
        self._hovers(top, self._y)
        self._text(LEFT, self._y + 18, view.caption)
        height = self._y + 32
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="qh" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
            f'aria-label="{escape(view.title)}" style="max-width:{WIDTH:g}px;width:100%"><style>{STYLE}</style>'
            f'<rect class="bg" width="{WIDTH:g}" height="{height:g}" rx="6"/>{"".join(self._parts)}</svg>'
        )

    def _head(self) -> None:
        self._text(20, 30, self._view.title, "h")
        self._y = 34.0
        for line in self._view.lines:
            for wrapped in textwrap.wrap(line, int((WIDTH - 40) / LETTER)):
                self._y += 17
                self._text(20, self._y, wrapped)
        keys = []
        if any(column.held_out for column in self._view.columns):
            keys += [("s", "", "training examples"), ("s2", "", "held out")]
        if self._view.labels and self._view.stacked:
            keys += [("", PALETTE[place], _short(label)) for place, label in enumerate(self._view.labels)]
        x, self._y = 20.0, self._y + (22 if keys else 0)
        for style, colour, label in keys:
            wide = 18 + 1.15 * LETTER * len(label) + 14
            if x + wide > WIDTH - RIGHT and x > 20:
                x, self._y = 20.0, self._y + 18
            fill = f'class="{style}"' if style else f'fill="#{colour}"'
            self._parts.append(f'<rect x="{x:g}" y="{self._y - 10:g}" width="11" height="11" rx="2" {fill}/>')
            self._text(x + 17, self._y, label, "b")
            x += wide
        self._y += 20

    def _sizes(self) -> None:
        columns = self._view.columns
        steps = _ticks(max(column.train + column.held_out for column in columns), whole=True)
        scale = SIZES_HEIGHT / steps[-1] if steps[-1] else 0.0
        base = self._axis("examples", [(step * scale, f"{step:,g}") for step in steps], SIZES_HEIGHT)
        self._path('class="s"', [self._bar(k, base, column.train * scale) for k, column in enumerate(columns)])
        tops = [
            self._bar(k, base - column.train * scale, column.held_out * scale)
            for k, column in enumerate(columns)
            if column.held_out
        ]
        self._path('class="s2"', tops)

    def _noise(self) -> None:
        levels = [column.level or 0.0 for column in self._view.columns]
        steps = _ticks(max(levels), 2)
        scale = NOISE_HEIGHT / steps[-1] if steps[-1] else 0.0
        base = self._axis("noise", [(step * scale, f"{step:g}") for step in steps], NOISE_HEIGHT)
        self._path('class="n"', [self._bar(k, base, level * scale) for k, level in enumerate(levels)])

    def _stack(self) -> None:
        """Each client's labels as shares of its examples, one colour per label."""
        ticks = [(share * STACK_HEIGHT, f"{share:.0%}") for share in (0.0, 0.5, 1.0)]
        base = self._axis("labels", ticks, STACK_HEIGHT)
        bars: list[list[str]] = [[] for _ in self._view.labels]
        for k, column in enumerate(self._view.columns):
            foot, total = base, sum(column.counts)
            for place, count in enumerate(column.counts):
                if count:
                    tall = STACK_HEIGHT * count / total
                    bars[place].append(self._bar(k, foot, tall))
                    foot -= tall
        for place, paths in enumerate(bars):
            self._path(f'fill="#{PALETTE[place]}"', paths)

    def _rows(self) -> None:
        """One row per label. The colour is stronger for a larger share of the client's examples, by square roots, and
        full at the 99th percentile, so that one client with a single label does not make all others pale."""
        labels, columns = self._view.labels, self._view.columns
        top, tall = self._y + 10, ROW_HEIGHT * len(labels)
        shares = [[count / max(1, sum(column.counts)) for count in column.counts] for column in columns]
        met = sorted(share for row in shares for share in row if share) or [1.0]
        most = met[int(0.99 * (len(met) - 1))]
        self._parts.append(f'<rect class="f" x="{LEFT:g}" y="{top:g}" width="{self._span:.6g}" height="{tall:g}"/>')
        shades: list[list[str]] = [[] for _ in range(SHADES)]
        for k, row in enumerate(shares):
            for place, share in enumerate(row):
                if share:
                    foot = top + ROW_HEIGHT * (place + 1)
                    shades[min(SHADES - 1, int(SHADES * sqrt(share / most)))].append(self._bar(k, foot, ROW_HEIGHT - 1))
        for shade, paths in enumerate(shades):
            self._path(f'class="r" fill-opacity="{0.16 + 0.84 * shade / (SHADES - 1):.2f}"', paths)
        for place, label in enumerate(labels):
            self._text(LEFT - 7, top + ROW_HEIGHT * place + 10, _short(label, 8), "", anchor="end", size=10)
        others = "; the last row: all others" if labels[-1] == OTHERS else ""
        self._y = top + tall
        self._text(
            LEFT, self._y + 16, f"Labels by row{others}. Full colour: {most:.0%} or more of what the client holds."
        )
        self._y += 16

    def _axis(self, title: str, ticks: list[tuple[float, str]], height: float) -> float:
        """Grid lines with their numbers, the panel's name above them; returns the y of zero."""
        self._text(LEFT, self._y + 6, title, "b")
        base = self._y + 14 + height
        for up, label in ticks:
            line = f'<path class="g" d="M{LEFT:g} {base - up:.6g}h{self._span:.6g}"/>'
            self._parts.append(line)
            self._text(LEFT - 7, base - up + 4, label, "", anchor="end", size=11)
        self._y = base + 16
        return base

    def _hovers(self, top: float, foot: float) -> None:
        """Tooltips: a client's id and numbers."""
        for k, column in enumerate(self._view.columns):
            x = LEFT + k * self._pitch
            self._parts.append(
                f'<rect class="k" x="{x:.6g}" y="{top:g}" width="{self._pitch:.6g}" height="{foot - top:.6g}">'
                f"<title>{_plain(_tooltip(column, self._view.labels))}</title></rect>"
            )

    def _bar(self, k: int, foot: float, tall: float) -> str:
        x, wide = LEFT + k * self._pitch + self._gap / 2, self._pitch - self._gap
        return f"M{x:.6g} {foot:.6g}h{wide:.4g}v{-tall:.5g}h{-wide:.4g}z"

    def _path(self, style: str, bars: list[str]) -> None:
        if bars:
            self._parts.append(f'<path {style} d="{"".join(bars)}"/>')

    def _text(self, x: float, y: float, words: str, style: str = "", *, anchor: str = "", size: int = 0) -> None:
        marks = f' class="{style}"' * bool(style) + f' text-anchor="{anchor}"' * bool(anchor)
        marks += f' font-size="{size}"' * bool(size)
        self._parts.append(f'<text x="{x:.6g}" y="{y:.6g}"{marks}>{_plain(words)}</text>')


def _tooltip(column: Column, labels: tuple[str, ...]) -> str:
    text = f"{column.label}: {column.train:,} to train on"
    if column.held_out:
        text += f", {column.held_out:,} held out"
    if column.level is not None:
        text += f", noise {column.level:.3g}"
    held = sorted(zip(column.counts, labels, strict=True), key=lambda pair: -pair[0]) if labels else []
    return "\n".join([text, *(f"{label}: {count:,}" for count, label in held if count)])


def _ticks(most: float, parts: int = 3, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to ``most`` or just above: at most ``parts`` steps of 1, 2 or 5 times a power of ten.
    ``whole``: none between 0 and 1."""
    if most <= 0:
        return [0.0]
    power = max(10.0 ** floor(log10(most / parts)), float(whole))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * parts >= most * (1 - 1e-9))
    count = next(count for count in range(1, parts + 1) if count * step >= most * (1 - 1e-9))
    return [number * step for number in range(count + 1)]


def _plain(words: str) -> str:
    """The text for XML: escaped, and without characters that XML does not allow."""
    return escape("".join(letter if letter.isprintable() or letter == "\n" else "·" for letter in words))


def _short(label: str, most: int = 22) -> str:
    shown = "␣" if label == " " else label.replace("\n", "⏎")
    return shown if len(shown) <= most else shown[: most - 1] + "…"
