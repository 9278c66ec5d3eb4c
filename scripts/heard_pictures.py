"""Draws the picture of docs/selection.md: slow devices hold half of the digits, and how early rounds close decides
whether the model learns them.

``python -m scripts.heard_pictures`` writes docs/images/not-heard.svg and prints the figures of the page; MNIST is
fetched where it is not cached. Equal data and seeds give equal curves. A minute of one core.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simulation import Behaviour, History, simulate
from simulation.datasets import load
from simulation.learners import mnist_mlp

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CLIENTS, SLOW, EXAMPLES, ROUNDS = 400, 100, 60, 100
FLEET = {"slow": Behaviour(step_s=0.4, jitter_sigma=0.5), "fast": Behaviour(step_s=0.1, jitter_sigma=0.5)}
WAYS: dict[str, dict[str, Any]] = {
    "closes at 39 of 40": {"cohort": {"select": 40, "goal": 39}},
    "closes at 30 of 40": {"cohort": {"select": 40, "goal": 30}},
    "30 of 40, weighed by 1/p": {
        "cohort": {"select": 40, "goal": 30},
        "aggregation": {"inverse_participation": 16, "weight_cap": 1000},
    },
    "closes at 52 of 56": {"cohort": {"select": 56, "goal": 52}},
}


def clients() -> dict[str, Any]:
    """400 clients of 60 examples; the first hundred are slow and hold the digits 5 to 9, the others 0 to 4."""
    data, rng = load("mnist").train, np.random.default_rng(0)
    x, y = np.asarray(data.x), np.asarray(data.y)
    low, high = (rng.permutation(np.flatnonzero(part)) for part in (y < 5, y >= 5))
    found, used = {}, [0, 0]
    for number in range(CLIENTS):
        slow = number < SLOW
        pool = high if slow else low
        places = pool[used[slow] : used[slow] + EXAMPLES]
        used[slow] += EXAMPLES
        train, test = places[: EXAMPLES * 4 // 5], places[EXAMPLES * 4 // 5 :]
        found[f"c{number:03}"] = SimpleNamespace(train=(x[train], y[train]), test=(x[test], y[test]))
    return found


def run(way: str, held: dict[str, Any]) -> History:
    """One of the ways."""
    plan = {
        "name": "heard",
        "task": {"epochs": 1, "batch_size": 12, "learning_rate": 0.1},
        "finish": {"rounds": ROUNDS},
        **WAYS[way],
    }
    return simulate(
        plan,
        mnist_mlp(),
        held,
        score_clients="all",
        score_every=5,
        behaviour=FLEET,
        classes=lambda client: "slow" if int(client[1:]) < SLOW else "fast",
        progress=False,
    )


def draw(histories: dict[str, History]) -> Figure:
    """Accuracy on the digits of slow clients, training loss, and how often devices counted."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    slow, loss, counted = figure.subplots(1, 3)
    for way, history in histories.items():
        versions, values = history.metric("accuracy", "class.slow")
        slow.plot(versions, values, label=way)
        versions, values = history.metric("loss", "training")
        loss.plot(versions, values, linewidth=1)
        times = sorted((one.counted for one in history.participants if one.device_class == "slow"), reverse=True)
        counted.plot(range(1, SLOW + 1), times)
    slow.set_title("accuracy on the slow clients' digits")
    slow.set_xlabel("version")
    slow.set_ylim(0, 1)
    slow.legend(fontsize=8)
    loss.set_title("training loss of the counted updates")
    loss.set_xlabel("version")
    counted.set_title("how often each slow client counted")
    counted.set_xlabel("slow clients, the most frequent first")
    return figure


def main() -> None:
    held = clients()
    histories = {way: run(way, held) for way in WAYS}
    for way, history in histories.items():
        never = sum(not one.counted for one in history.participants)
        seconds = sum(row.seconds or 0.0 for row in history.rounds) / len(history.rounds)
        print(
            f"{way}: slow {history.final('accuracy', 'class.slow'):.2f}, fast "
            f"{history.final('accuracy', 'class.fast'):.2f}, training loss {history.final('loss', 'training'):.3f}, "
            f"{never} never counted, {seconds:.1f} virtual s a round"
        )
        print("  " + (next((line for line in history.summary().splitlines() if "Lateness" in line), "nothing is said")))
    with rc_context({"svg.hashsalt": "quorate"}):
        draw(histories).savefig(IMAGES / "not-heard.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
