"""Draws the picture of the README: the last screen of a real ``quorate demo``, in the folder ``demo``.

``python -m scripts.demo_picture`` runs the whole demo (four minutes of two cores) and writes docs/images/demo.svg.
MNIST is fetched where it is not cached.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.text import Text

from simulation.demo.command import closing_lines, directed
from simulation.demo.screen import Journal, Terminal, picture
from simulation.demo.setting import Setting
from simulation.fleet.split import Split
from simulation.fleet.trainer import FleetHabits

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
COLUMNS = 104


class LastScreen(Terminal):
    """A terminal that records what stands on it at the end: of the live table only its last state."""

    def __init__(self) -> None:
        self.console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
        super().__init__(self.console)

    def note(self, line: str) -> None:
        self.console.print(Text(line))  # a picture has no terminal that wraps long lines

    def show(self, journal: Journal, final: bool = False) -> None:
        if final:
            self.console.print(picture(journal, COLUMNS))


def main() -> None:
    """Runs the demo with the defaults of the command."""
    screen = LastScreen()
    setting = Setting(split=Split(data="mnist", devices=400, alpha=0.5, size_sigma=0.5), habits=FleetHabits())
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        screen.console.print(Text("$ quorate demo --folder demo", style="bold"))
        with directed(setting, Path("demo"), screen, Event()) as played:
            for line in closing_lines(setting, Path("demo"), played.result, ascii_only=False):
                screen.note(line)
        os.chdir("/")
    svg = screen.console.export_svg(title="quorate demo", unique_id="demo")
    IMAGE.write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
