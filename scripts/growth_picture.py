"""Draws the picture of docs/speed.md: what each cost grows with, on logarithmic axes, with its slope.

``python -m scripts.growth_picture`` runs ``benchmarks.growth`` (four minutes of a core), writes its figures down, and
draws docs/images/growth.svg.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIGURES = IMAGES / "growth.json"
SUBJECTS = {
    "round": "a client of a round, by clients",
    "history": "a round of 20, by rounds played",
    "check_in": "a held check-in, by waiting devices",
    "ended": "the same, by runs that have ended",
    "create": "creating a run, by runs that have ended",
    "page": "a page of the fleet, by devices",
    "by_state": "devices in a state that none is in",
    "by_text": "devices with a text that none has",
    "participation": "who takes part in a run, by devices",
    "runs": "the list of runs, by devices",
    "standstill": "the same, nothing kept",
    "draw": "a draw of 300, by waiting devices",
    "first_draw": "the first one of a process",
    "sum": "16 updates added, by parameters",
}


def draw(found: dict[str, float]) -> Figure:
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for subject, said in SUBJECTS.items():
        costs = {
            int(name.removeprefix(f"{subject}_")): value
            for name, value in found.items()
            if name.startswith(f"{subject}_") and not name.endswith("_slope")
        }
        slope = found[f"{subject}_slope"] - (1 if subject == "round" else 0)  # shown for one client
        axes.plot(list(costs), list(costs.values()), "o-", label=f"{said} ({slope:+.2f})")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("n")
    axes.set_ylabel("CPU milliseconds")
    axes.legend(fontsize=8, title="cost, by n (slope)", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def main() -> None:
    command = [sys.executable, "-m", "benchmarks.growth", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = {row["name"]: float(f"{row['value']:.4g}") for row in json.loads(done.stdout.splitlines()[-1])["results"]}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(found).savefig(IMAGES / "growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
