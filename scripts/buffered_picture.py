"""Draws the picture of docs/buffered.md: time to accuracy of buffered and of synchronous rounds where a few devices are
very slow.

``python -m scripts.buffered_picture`` writes docs/images/buffered.svg and prints the figures of the page; MNIST is
fetched where it is not cached. Equal data and seeds give equal curves. Three minutes of one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulation import Behaviour, History, partition, simulate
from simulation.datasets import load
from simulation.learners import mnist_mlp

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CLIENTS, AT_ONCE, UNTIL_S = 300, 40, 300.0
TAIL = Behaviour(step_s=0.1, network_s=0.2, speed_sigma=1.5, jitter_sigma=0.25)
"""Log-normal: of 300 devices the slowest takes some sixty times as long as the median."""
TARGETS = (0.85, 0.9, 0.93)
WAYS: dict[str, dict[str, Any]] = {
    "closes at 40 of 40": {"cohort": {"select": AT_ONCE, "goal": AT_ONCE}, "finish": {"rounds": 40}},
    "closes at 30 of 40": {"cohort": {"select": AT_ONCE, "goal": 30}, "finish": {"rounds": 130}},
    "buffered, 40 at once, K = 10": {
        "cohort": {"goal": 10},
        "buffered": {"concurrency": AT_ONCE, "most_stale": 30},
        "finish": {"rounds": 400},
    },
    "buffered, 40 at once, K = 30": {
        "cohort": {"goal": 30},
        "buffered": {"concurrency": AT_ONCE, "most_stale": 30},
        "finish": {"rounds": 140},
    },
}


def run(way: str, held: Any, test: Any) -> History:
    """One of the ways."""
    plan = {
        "name": "tail",
        "task": {"epochs": 1, "batch_size": 10, "learning_rate": 0.05},
        **{name: {"collect_s": 600, **section} if name == "cohort" else section for name, section in WAYS[way].items()},
    }
    every = 1 if "buffered" not in WAYS[way] else 4
    return simulate(plan, mnist_mlp(), held, test=test, score_every=every, behaviour=TAIL, progress=False)


def curve(history: History) -> tuple[np.ndarray, np.ndarray]:
    """(virtual seconds since the run began, accuracy) of each scored version."""
    began = history.rounds[0].opened_at
    ended = {row.version: (row.closed_at or began) - began for row in history.rounds if row.version is not None}
    versions, values = history.metric("accuracy")
    points = [(ended.get(int(version), 0.0), value) for version, value in zip(versions, values, strict=True)]
    kept = np.array([point for point in points if point[0] <= UNTIL_S])
    return kept[:, 0], kept[:, 1]


def draw(histories: dict[str, History]) -> Figure:
    """Accuracy over time, how stale reports were, and how often devices counted."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    accuracy, stale, counted = figure.subplots(1, 3)
    for way, history in histories.items():
        (line,) = accuracy.plot(*curve(history), label=way)
        found = np.zeros(31)
        for reports in history.staleness.values():
            found[: len(reports)] += reports
        if found.any():
            stale.plot(range(31), found / found.sum(), color=line.get_color())
        times = sorted((one.counted for one in history.participants), reverse=True)
        counted.plot(range(1, CLIENTS + 1), np.array(times) / sum(times) * CLIENTS, color=line.get_color())
    accuracy.set_title("accuracy on the test images")
    accuracy.set_xlabel("virtual seconds")
    accuracy.set_ylim(0.5, 1)
    accuracy.legend(fontsize=8, loc="lower right")
    stale.set_title("staleness: part of the reports")
    stale.set_xlabel("versions behind")
    counted.set_title("how often each client counted, 1 is the mean")
    counted.set_xlabel("clients, the most frequent first")
    return figure


def main() -> None:
    data = load("mnist")
    held = partition(data.train, CLIENTS, by="dirichlet", alpha=0.5, seed=1)
    histories = {}
    for way in WAYS:
        history = histories[way] = run(way, held, data.test)
        times, values = curve(history)
        first = [
            next((f"{at:.0f} s" for at, value in zip(times, values, strict=True) if value >= target), "-")
            for target in TARGETS
        ]
        never = sum(not one.counted for one in history.participants)
        ended = history.rounds[-1].closed_at or 0.0
        print(
            f"{way}: {', '.join(f'{target}: {when}' for target, when in zip(TARGETS, first, strict=True))}; after "
            f"{UNTIL_S:g} s {values[-1]:.3f}; {len(history)} rounds in {ended - history.rounds[0].opened_at:.0f} s; "
            f"{never} never counted",
            flush=True,
        )
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(histories).savefig(IMAGES / "buffered.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
